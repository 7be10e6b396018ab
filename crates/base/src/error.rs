//! One error type per operation. Each variant is a cause and carries the object it happened to; `errno()` is what a personality
//! that speaks POSIX reports. Having nothing to read or no room to write is a value of the operation, never an error.

use core::fmt;

use crate::locator::Locator;

/// Error numbers of Linux that causes of our own translate to (errno(3); the same on all architectures we build for).
mod number {
    pub(super) const EPERM: i32 = 1;
    pub(super) const EBADF: i32 = 9;
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EPIPE: i32 = 32;
    pub(super) const EPROTO: i32 = 71;
    pub(super) const EMSGSIZE: i32 = 90;
    pub(super) const EPROTONOSUPPORT: i32 = 93;
    pub(super) const EADDRINUSE: i32 = 98;
    pub(super) const EADDRNOTAVAIL: i32 = 99;
    pub(super) const ECONNRESET: i32 = 104;
    pub(super) const ETIMEDOUT: i32 = 110;
    pub(super) const ECONNREFUSED: i32 = 111;
    pub(super) const EHOSTUNREACH: i32 = 113;
    pub(super) const ECANCELED: i32 = 125;
}

/// An error number from the kernel, printed as the system's own sentence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Os(pub i32);

impl fmt::Display for Os {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

/// Why a connection could not be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody listens there. Culprit: the peer.
    #[error("cannot connect to {to}: nobody listens there")]
    Refused {
        /// Where to.
        to: Locator,
    },
    /// The listener's queue of waiting connections is full. Culprit: the peer; trying later may help.
    #[error("cannot connect to {to}: too many connections wait to be accepted there")]
    Busy {
        /// Where to.
        to: Locator,
    },
    /// No answer in time. Culprit: the peer or the network.
    #[error("cannot connect to {to}: no answer after {waited_ms} ms")]
    TimedOut {
        /// Where to.
        to: Locator,
        /// How long we waited.
        waited_ms: u64,
    },
    /// The listener belongs to another user, and this driver joins processes of one user only.
    #[error("cannot connect to {to}: it belongs to user {owner}, and this driver joins processes of one user only")]
    OtherUser {
        /// Where to.
        to: Locator,
        /// Whose it is.
        owner: u32,
    },
    /// The driver takes another form of address. Culprit: the caller.
    #[error("cannot connect to {to}: the form is {takes}")]
    BadAddress {
        /// Where to.
        to: Locator,
        /// What the driver takes.
        takes: &'static str,
    },
    /// There is no driver of that name. Culprit: the caller.
    #[error("cannot connect to {to}: there is no driver `{}`", to.scheme())]
    NoDriver {
        /// Where to.
        to: Locator,
    },
    /// Every path was rejected; the text names each with its reason.
    #[error("cannot connect to {to}: {why}")]
    NoPath {
        /// The peer.
        to: String,
        /// Each candidate and why not.
        why: String,
    },
    /// Taken back by our own side before it was done.
    #[error("cannot connect to {to}: taken back before it was done")]
    Closed {
        /// Where to.
        to: Locator,
    },
    /// The kernel refused.
    #[error("cannot connect to {to}: {os}")]
    System {
        /// Where to.
        to: Locator,
        /// The error number.
        os: Os,
    },
}

impl ConnectError {
    /// The error number a POSIX personality reports.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused { .. } => number::ECONNREFUSED,
            Self::Busy { .. } => number::EAGAIN,
            Self::TimedOut { .. } => number::ETIMEDOUT,
            Self::OtherUser { .. } => number::EPERM,
            Self::BadAddress { .. } => number::EINVAL,
            Self::NoDriver { .. } => number::EPROTONOSUPPORT,
            Self::NoPath { .. } => number::EHOSTUNREACH,
            Self::Closed { .. } => number::ECANCELED,
            Self::System { os, .. } => os.0,
        }
    }
}

/// Why nothing can be accepted at an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is taken by another listener.
    #[error("cannot listen at {at}: somebody listens there already")]
    InUse {
        /// Where.
        at: Locator,
    },
    /// The driver takes another form of address. Culprit: the caller.
    #[error("cannot listen at {at}: the form is {takes}")]
    BadAddress {
        /// Where.
        at: Locator,
        /// What the driver takes.
        takes: &'static str,
    },
    /// There is no driver of that name. Culprit: the caller.
    #[error("cannot listen at {at}: there is no driver `{}`", at.scheme())]
    NoDriver {
        /// Where.
        at: Locator,
    },
    /// The driver cannot work here, for this reason.
    #[error("cannot listen at {at}: {why}")]
    Unusable {
        /// Where.
        at: Locator,
        /// The driver's own sentence.
        why: String,
    },
    /// The kernel refused.
    #[error("cannot listen at {at}: {os}")]
    System {
        /// Where.
        at: Locator,
        /// The error number.
        os: Os,
    },
}

impl ListenError {
    /// The error number a POSIX personality reports.
    pub fn errno(&self) -> i32 {
        match self {
            Self::InUse { .. } => number::EADDRINUSE,
            Self::BadAddress { .. } => number::EINVAL,
            Self::NoDriver { .. } => number::EPROTONOSUPPORT,
            Self::Unusable { .. } => number::EADDRNOTAVAIL,
            Self::System { os, .. } => os.0,
        }
    }
}

/// Why no connection will be accepted any more. A connection that fails while it is being accepted is dropped and is no error.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// Our own side closed the listener.
    #[error("cannot accept at {at}: we closed it")]
    Closed {
        /// Where.
        at: Locator,
    },
    /// The driver broke its contract: one that was loaded (`MADRIGAL_DRIVERS`). Culprit: that driver.
    #[error("cannot accept at {at}: its driver {what}")]
    Driver {
        /// Where.
        at: Locator,
        /// What it did.
        what: &'static str,
    },
    /// The kernel refused; with resources back, a later accept may succeed.
    #[error("cannot accept at {at}: {os}")]
    System {
        /// Where.
        at: Locator,
        /// The error number.
        os: Os,
    },
}

impl AcceptError {
    /// The error number a POSIX personality reports.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Closed { .. } => number::EBADF,
            Self::Driver { .. } => number::EPROTO,
            Self::System { os, .. } => os.0,
        }
    }
}

/// Why a read gave neither bytes nor the end of the stream.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Our own side closed the link.
    #[error("cannot read from {peer}: we closed the link")]
    Closed {
        /// The peer.
        peer: Locator,
    },
    /// The peer died, or closed without reading what we had sent. Everything it sent before was read.
    #[error("cannot read from {peer}: it reset the connection or died")]
    Reset {
        /// The peer.
        peer: Locator,
    },
    /// The peer broke the protocol. Culprit: the peer.
    #[error("cannot read from {peer}: it broke the protocol: {what}")]
    Corrupt {
        /// The peer.
        peer: Locator,
        /// What was wrong.
        what: &'static str,
    },
    /// The driver broke its contract: one that was loaded (`MADRIGAL_DRIVERS`). Culprit: that driver.
    #[error("cannot read from {peer}: its driver {what}")]
    Driver {
        /// The peer.
        peer: Locator,
        /// What it did.
        what: &'static str,
    },
    /// The kernel refused.
    #[error("cannot read from {peer}: {os}")]
    System {
        /// The peer.
        peer: Locator,
        /// The error number.
        os: Os,
    },
}

impl ReadError {
    /// The error number a POSIX personality reports.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Closed { .. } => number::EBADF,
            Self::Reset { .. } => number::ECONNRESET,
            Self::Corrupt { .. } => number::EPROTO,
            Self::Driver { .. } => number::EPROTO,
            Self::System { os, .. } => os.0,
        }
    }
}

/// Why bytes could not be written. Earlier writes that completed may or may not have been read by the peer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Our own side closed the link.
    #[error("cannot write to {peer}: we closed the link")]
    Closed {
        /// The peer.
        peer: Locator,
    },
    /// The peer closed or died.
    #[error("cannot write to {peer}: it closed the connection or died")]
    PeerGone {
        /// The peer.
        peer: Locator,
    },
    /// The packet is longer than the driver carries. Culprit: the caller.
    #[error("cannot write to {peer}: a packet of {len} bytes, and at most {max} are carried")]
    TooLong {
        /// The peer.
        peer: Locator,
        /// Bytes of the packet.
        len: usize,
        /// The driver's limit.
        max: usize,
    },
    /// The peer broke the protocol. Culprit: the peer.
    #[error("cannot write to {peer}: it broke the protocol: {what}")]
    Corrupt {
        /// The peer.
        peer: Locator,
        /// What was wrong.
        what: &'static str,
    },
    /// The driver broke its contract: one that was loaded (`MADRIGAL_DRIVERS`). Culprit: that driver.
    #[error("cannot write to {peer}: its driver {what}")]
    Driver {
        /// The peer.
        peer: Locator,
        /// What it did.
        what: &'static str,
    },
    /// The kernel refused.
    #[error("cannot write to {peer}: {os}")]
    System {
        /// The peer.
        peer: Locator,
        /// The error number.
        os: Os,
    },
}

impl WriteError {
    /// The error number a POSIX personality reports.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Closed { .. } => number::EBADF,
            Self::PeerGone { .. } => number::EPIPE,
            Self::TooLong { .. } => number::EMSGSIZE,
            Self::Corrupt { .. } => number::EPROTO,
            Self::Driver { .. } => number::EPROTO,
            Self::System { os, .. } => os.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_object_and_the_number() {
        let to: Locator = "tcp://127.0.0.1:1".parse().unwrap();
        let refused = ConnectError::Refused { to: to.clone() };
        assert_eq!(refused.to_string(), "cannot connect to tcp://127.0.0.1:1: nobody listens there");
        assert_eq!(refused.errno(), 111);
        let system = WriteError::System { peer: to.clone(), os: Os(105) };
        assert!(system.to_string().starts_with("cannot write to tcp://127.0.0.1:1: No buffer space available"));
        assert_eq!(system.errno(), 105);
        assert!(ListenError::NoDriver { at: to }.to_string().ends_with("there is no driver `tcp`"));
    }
}
