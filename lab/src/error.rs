//! The errors of a lab, in words for the user of the command.

use std::io;

use crate::file::FileError;
use crate::wan::settings::BadSetting;

/// Why a command about a lab was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The file cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(String, io::Error),
    /// Something in the file is wrong.
    #[error(transparent)]
    File(#[from] FileError),
    /// The grid cannot be laid out.
    #[error("{0}: {1}")]
    Plan(String, String),
    /// A name that cannot be one.
    #[error("`{0}` is no name for a lab: write up to 32 of a-z, A-Z, 0-9, - and _")]
    Name(String),
    /// The lab is up.
    #[error("lab `{0}` is up already; to build it anew type: madrigal lab down --name {0}")]
    IsUp(String),
    /// The lab is not up.
    #[error("lab `{0}` is not up; type: madrigal lab up FILE")]
    NotUp(String),
    /// No lab is up.
    #[error("no lab is up; type: madrigal lab up FILE")]
    NoneUp,
    /// More than one lab is up.
    #[error("several labs are up: say which by --name: {}", .0.join(", "))]
    WhichOne(Vec<String>),
    /// No such host.
    #[error("lab `{lab}` has no host `{host}`; there are {}", .known.join(", "))]
    NoHost {
        /// The lab.
        lab: String,
        /// What was typed.
        host: String,
        /// What there is.
        known: Vec<String>,
    },
    /// No such link.
    #[error("lab `{lab}` has no link `{link}`; {}", if .known.is_empty() { "it has none".to_owned() } else { format!("there are {}", .known.join(", ")) })]
    NoLink {
        /// The lab.
        lab: String,
        /// What was typed.
        link: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A host or a link has ended.
    #[error("`{0}` of lab `{1}` has ended; type: madrigal lab down --name {1}")]
    Ended(String, String),
    /// A setting was not taken.
    #[error(transparent)]
    Setting(#[from] BadSetting),
    /// A link refused.
    #[error("link `{0}`: {1}")]
    Refused(String, String),
    /// Building failed.
    #[error("cannot build the lab: {0}")]
    Build(String),
    /// Processes that do not end.
    #[error("lab `{0}` does not end: processes {1:?} are still there")]
    Stuck(String, Vec<u32>),
    /// The system refused.
    #[error("cannot {0}: {1}")]
    System(String, io::Error),
}

impl LabError {
    /// The system refused to do `what`.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let what = what.into();
        move |errno| Self::System(what, errno.into())
    }

    /// The system refused to do `what`, as an error of the standard library.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::System(what, error)
    }
}
