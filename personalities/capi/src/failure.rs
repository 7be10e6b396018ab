//! Why a call failed: a code, an errno, and a text that names what it happened to; and the last one of each thread.

use core::cell::RefCell;
use core::ffi::{c_char, c_int};
use std::ffi::CString;

use madrigal::circuit::CircuitError;
use madrigal::error::{AcceptError, ConnectError, ListenError, Os, ReadError, WriteError};
use madrigal::{AddressError, CardError, NoPath, StartError};
use madrigal_base::node::NotAnAddress;

use crate::codes::*;

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: c_int,
    pub(crate) errno: c_int,
    pub(crate) text: String,
}

impl Failure {
    #[cold]
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Self {
        Self { code, errno: 0, text: text.into() }
    }

    /// What the kernel refused.
    #[cold]
    pub(crate) fn system(errno: c_int, what: &str) -> Self {
        Self { code: MDG_ESYSTEM, errno, text: format!("{what}: {}", Os(errno)) }
    }

    /// With the two ends it happened between in front.
    #[cold]
    pub(crate) fn between(mut self, local: &dyn core::fmt::Display, peer: &dyn core::fmt::Display) -> Self {
        self.text = format!("{local} -> {peer}: {}", self.text);
        self
    }

    #[cold]
    fn of(code: c_int, errno: c_int, error: &dyn core::fmt::Display) -> Self {
        let text = match code {
            // The system's own sentence has the number.
            MDG_ESYSTEM => error.to_string(),
            _ => format!("{error} (errno {errno})"),
        };
        Self { code, errno, text }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let code = match &error {
            ConnectError::Refused { .. } => MDG_EREFUSED,
            ConnectError::Busy { .. } => MDG_EBUSY,
            ConnectError::TimedOut { .. } => MDG_ETIMEDOUT,
            ConnectError::OtherUser { .. } => MDG_EPERM,
            ConnectError::BadAddress { .. } => MDG_EADDRESS,
            ConnectError::NoDriver { .. } => MDG_ENODRIVER,
            ConnectError::NoPath { .. } => MDG_ENOPATH,
            ConnectError::Closed { .. } => MDG_ECLOSED,
            _ => MDG_ESYSTEM,
        };
        Self::of(code, error.errno(), &error)
    }
}

impl From<ListenError> for Failure {
    fn from(error: ListenError) -> Self {
        let code = match &error {
            ListenError::InUse { .. } => MDG_EINUSE,
            ListenError::BadAddress { .. } => MDG_EADDRESS,
            ListenError::NoDriver { .. } => MDG_ENODRIVER,
            ListenError::Unusable { .. } => MDG_EUNUSABLE,
            _ => MDG_ESYSTEM,
        };
        Self::of(code, error.errno(), &error)
    }
}

impl From<AcceptError> for Failure {
    fn from(error: AcceptError) -> Self {
        let code = if matches!(error, AcceptError::Closed { .. }) { MDG_ECLOSED } else { MDG_ESYSTEM };
        Self::of(code, error.errno(), &error)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let code = match &error {
            ReadError::Closed { .. } => MDG_ECLOSED,
            ReadError::Reset { .. } => MDG_ERESET,
            ReadError::Corrupt { .. } => MDG_ECORRUPT,
            _ => MDG_ESYSTEM,
        };
        Self::of(code, error.errno(), &error)
    }
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Self {
        let code = match &error {
            WriteError::Closed { .. } => MDG_ECLOSED,
            WriteError::PeerGone { .. } => MDG_EGONE,
            WriteError::TooLong { .. } => MDG_ETOOLONG,
            WriteError::Corrupt { .. } => MDG_ECORRUPT,
            _ => MDG_ESYSTEM,
        };
        Self::of(code, error.errno(), &error)
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Engine(os) => Self::system(os.0, "cannot start the engine"),
            other => Self::new(MDG_ESYSTEM, other.to_string()),
        }
    }
}

impl From<AddressError> for Failure {
    fn from(error: AddressError) -> Self {
        Self::new(MDG_EADDRESS, error.to_string())
    }
}

impl From<CardError> for Failure {
    fn from(error: CardError) -> Self {
        Self::new(MDG_EADDRESS, error.to_string())
    }
}

impl From<NoPath> for Failure {
    fn from(error: NoPath) -> Self {
        Self::new(MDG_ENOPATH, error.to_string())
    }
}

impl From<CircuitError> for Failure {
    fn from(error: CircuitError) -> Self {
        let code = match &error {
            CircuitError::NoSuchNode => MDG_ERANK,
            CircuitError::Lost { .. } => MDG_ELOST,
            CircuitError::Mismatch { .. } => MDG_EMISMATCH,
            _ => MDG_EINTERNAL,
        };
        Self::new(code, error.to_string())
    }
}

impl From<NotAnAddress> for Failure {
    fn from(error: NotAnAddress) -> Self {
        Self::new(MDG_EADDRESS, error.to_string())
    }
}

struct Last {
    text: CString,
    errno: c_int,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last { text: CString::default(), errno: 0 });
}

/// Stores why the calling thread's call failed. Returns the code.
#[cold]
pub(crate) fn note(failure: Failure) -> c_int {
    let text = failure.text.replace('\0', " ");
    // A thread that is ending keeps nothing.
    let _ = LAST.try_with(|last| {
        if let (Ok(mut last), Ok(text)) = (last.try_borrow_mut(), CString::new(text)) {
            *last = Last { text, errno: failure.errno };
        }
    });
    failure.code
}

/// The text of the calling thread's last failure, which stays until the next one or the end of the thread; empty before any.
pub(crate) fn last_text() -> *const c_char {
    let text = LAST.try_with(|last| last.try_borrow().map(|last| last.text.as_ptr()));
    text.ok().and_then(Result::ok).unwrap_or(c"".as_ptr())
}

/// Its errno; 0 where there is none.
pub(crate) fn last_errno() -> c_int {
    let errno = LAST.try_with(|last| last.try_borrow().map(|last| last.errno));
    errno.ok().and_then(Result::ok).unwrap_or(0)
}
