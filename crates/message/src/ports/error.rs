//! Why something of a port was not done.

use super::wire::LONGEST_HEAD;

/// The longest name of a port, in bytes.
pub(super) const LONGEST_NAME: usize = 256;

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// A name that is none.
    #[error("`{0}` is no name of a port: one to {LONGEST_NAME} bytes without control characters")]
    Name(String),
    /// The type names a stack that there cannot be here.
    #[error("{0}")]
    Stack(String),
    /// There is a receive port of that name.
    #[error("this process has a receive port `{0}` already")]
    InUse(String),
    /// The other end has no such connection, and says why.
    #[error("no connection to `{to}`: {why}")]
    Refused {
        /// The receive port's name.
        to: String,
        /// Its process's words.
        why: String,
    },
    /// The time passed.
    #[error("no answer of `{0}` in the time given")]
    TimedOut(String),
    /// The other process cannot be reached, or is gone.
    #[error("the process of `{who}` is lost: {why}")]
    Lost {
        /// The port there.
        who: String,
        /// What is known of it.
        why: String,
    },
    /// The type lets a send port have one connection.
    #[error("a send port of connection={0} has one connection")]
    One(String),
    /// There is no such connection.
    #[error("no connection to `{0}`")]
    NotConnected(String),
    /// More items than one message has.
    #[error(
        "{0} bytes of numbers, texts and short arrays, and a message has at most {LONGEST_HEAD}: write long arrays, or several messages"
    )]
    TooLong(usize),
    /// It was closed here, by another thread.
    #[error("the port is closed")]
    Closed,
    /// A message of the port is being read.
    #[error("a message of this port is being read: finish it first")]
    Busy,
    /// What is read is not what comes next.
    #[error("{asked} is read, and {here} is next")]
    Mismatch {
        /// What was asked for.
        asked: String,
        /// What is there.
        here: String,
    },
    /// The other end sent what is no message.
    #[error("`{0}` sent what is no message; the connection is over")]
    Corrupt(String),
}
