//! What can be wrong with the files of an identity: each names the file and what to type.

use std::io;
use std::path::PathBuf;

use crate::moment::Moment;
use crate::name::NameError;
use crate::refusal::Refusal;

/// Why certificates cannot be made, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// No setting names the directory of the files.
    #[error("there is no HOME to have .config/madrigal in: set MADRIGAL_CONFIG_DIR to a directory")]
    NoHome,
    /// `MADRIGAL_CONFIG_DIR` is not absolute.
    #[error("MADRIGAL_CONFIG_DIR={0}: not a path from / or ~/: unset it, or give the whole path")]
    NoPath(String),
    /// A file that is needed is not there.
    #[error("{}: there is no {what}: {advice}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// What it would be.
        what: &'static str,
        /// What to type.
        advice: &'static str,
    },
    /// Others may read a key, or write what is trusted.
    #[error("{}: others may {verb} it (mode {mode:03o}): type chmod {wanted:o} {}", path.display(), path.display())]
    Open {
        /// The file or directory.
        path: PathBuf,
        /// `read` or `write`.
        verb: &'static str,
        /// Its mode.
        mode: u32,
        /// The mode that it should have.
        wanted: u32,
    },
    /// Somebody else owns it.
    #[error("{}: it belongs to user {owner}, and you are user {user}: type chown {user} {} as root, or remove it", path.display(), path.display())]
    Owner {
        /// The file or directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// A system call failed.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A file holds something else than it should.
    #[error("{}: {why}: {advice}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        why: String,
        /// What to type.
        advice: &'static str,
    },
    /// A certificate of our own that no peer would accept.
    #[error("{}: {refusal}: {advice}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The refusal that peers would give.
        refusal: Refusal,
        /// What to type.
        advice: &'static str,
    },
    /// It is there already.
    #[error("{}: {what} is there already: {advice}", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
        /// What is there.
        what: String,
        /// What to type, and what that would cost.
        advice: &'static str,
    },
    /// A name that cannot be one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The signer's certificate has expired.
    #[error("{who} ended at {at}: {advice}")]
    Ended {
        /// The signer.
        who: String,
        /// When it ended.
        at: Moment,
        /// What to type.
        advice: &'static str,
    },
    /// Nothing that was issued is meant.
    #[error("the CA has issued no certificate for {what}: `madrigal ca list` shows what it has")]
    NotIssued {
        /// What was missing.
        what: String,
    },
    /// Certificates cannot be made here.
    #[error("cannot make a certificate: {0}")]
    Make(String),
}

impl From<rcgen::Error> for IdentityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Make(error.to_string())
    }
}
