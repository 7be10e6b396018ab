//! Why a command of `madrigal grid` ends without having done it.

use madrigal_daemon::FileError;
use madrigal_identity::{IdentityError, ParcelError};

/// Why a command failed.
pub(super) enum Failure {
    /// What was typed or written makes no sense.
    Usage(String),
    /// It could not be done.
    Failed(String),
}

impl From<IdentityError> for Failure {
    fn from(error: IdentityError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<ParcelError> for Failure {
    fn from(error: ParcelError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self::Usage(format!("{error}; correct it, and type madrigal grid check"))
    }
}
