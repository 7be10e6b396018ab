//! Why a call of a membership failed.

use crate::record::Refusal;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No daemon of this user runs on this host.
    #[error("pools need a daemon, and none of yours is up on this host: `madrigal up` starts one")]
    NoDaemon,
    /// The daemon refuses.
    #[error("the daemon refuses: {0}")]
    Daemon(String),
    /// The pool refuses.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// What was waited for did not come in time.
    #[error("{0}")]
    TimedOut(String),
    /// This process is no member any more: others were told that it died.
    #[error("this process is no member of the pool any more: {0}")]
    Lost(String),
    /// An argument is none.
    #[error("{0}")]
    Invalid(String),
    /// A system call failed.
    #[error("{what}: {errno}")]
    System {
        /// Which.
        what: &'static str,
        /// How.
        errno: rustix::io::Errno,
    },
}
