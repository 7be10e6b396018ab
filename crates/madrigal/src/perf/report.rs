//! The result of a measurement, and why there is none.

use core::fmt;

use madrigal_base::error::{AcceptError, ConnectError, ListenError, Os, ReadError, WriteError};

use crate::StartError;

/// A bare line that takes longer is not waited for by two running processors.
const QUIET_NS: f64 = 1_000.0;

/// What was measured: one-way nanoseconds of a message, half of a ping-pong.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The driver.
    pub method: String,
    /// Bytes of a message.
    pub size: usize,
    /// Ping-pongs a round, at most.
    pub iterations: u32,
    /// One round each, the VLink's.
    pub link_ns: Vec<f64>,
    /// One round each, the bare line's.
    pub bare_ns: Vec<f64>,
    /// One round each, that of the driver with nothing above it; of a Circuit only, and only of messages that are frames of their own.
    pub channel_ns: Vec<f64>,
}

impl Report {
    pub(super) fn of(method: &str, size: usize, iterations: u32) -> Self {
        let (link_ns, bare_ns, channel_ns) = (vec![], vec![], vec![]);
        Self { method: method.to_owned(), size, iterations, link_ns, bare_ns, channel_ns }
    }

    /// Median of the VLink.
    pub fn link(&self) -> f64 {
        median(&self.link_ns)
    }

    /// Median of the bare line.
    pub fn bare(&self) -> f64 {
        median(&self.bare_ns)
    }

    /// Median of the driver alone, where it was measured.
    pub fn channel(&self) -> Option<f64> {
        (!self.channel_ns.is_empty()).then(|| median(&self.channel_ns))
    }

    /// How many bare exchanges a message costs.
    pub fn ratio(&self) -> f64 {
        self.link() / self.bare()
    }

    /// Whether both processes had a processor of their own nearly all the time. If not, the figures show how busy the machine was, and
    /// nothing else.
    pub fn is_quiet(&self) -> bool {
        self.bare() < QUIET_NS && steady(&self.bare_ns) && steady(&self.link_ns)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} B: {:.0} ns one way (best {:.0}); bare line {:.0} ns (best {:.0}); ratio {:.2} ({} rounds of {})",
            self.method,
            self.size,
            self.link(),
            best(&self.link_ns),
            self.bare(),
            best(&self.bare_ns),
            self.ratio(),
            self.link_ns.len(),
            self.iterations,
        )?;
        if let Some(channel) = self.channel() {
            let (best, more) = (best(&self.channel_ns), self.link() - channel);
            write!(f, "; the driver alone {channel:.0} ns (best {best:.0}): multiplexing adds {more:.0}")?;
        }
        if self.is_quiet() { Ok(()) } else { f.write_str("; the machine was busy") }
    }
}

/// Why nothing could be measured.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// The runtime did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The method cannot join two processes of this host.
    #[error("`{method}` joins no two processes here")]
    Method {
        /// Its name.
        method: String,
    },
    /// A stack that messages cannot have.
    #[error("messages by `{stack}`: {why}")]
    Stack {
        /// As it was given.
        stack: String,
        /// Why not.
        why: String,
    },
    /// The program could not be started again, or shared memory could not be had.
    #[error("cannot start a peer: {0}")]
    Peer(Os),
    /// The peer died or never came.
    #[error("the peer is gone")]
    Gone,
    /// The peer was started with an argument that it does not understand.
    #[error("`{0}` tells a peer nothing")]
    Unclear(String),
    /// Peers that should be idle are not linked by TCP.
    #[error("only {up} of {wanted} idle peers are connected by tcp")]
    Peers {
        /// How many are.
        up: usize,
        /// How many were to be.
        wanted: usize,
    },
    /// No driver of messages could be opened.
    #[error(transparent)]
    Worker(#[from] madrigal_message::worker::OpenError),
    /// A message was lost.
    #[error(transparent)]
    Circuit(#[from] madrigal_message::circuit::CircuitError),
    /// A message between mailboxes was lost.
    #[error(transparent)]
    Mailbox(#[from] madrigal_message::mailbox::MailError),
    /// A message between ports was lost.
    #[error(transparent)]
    Port(#[from] madrigal_message::ports::PortError),
    /// A message that may lose a part was not taken.
    #[error(transparent)]
    Send(#[from] madrigal_udp::lossy::SendError),
    /// An operation failed.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// An operation failed.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// An operation failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// An operation failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An operation failed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

pub(super) fn median(all: &[f64]) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Whether nothing but the program itself took part most of the time.
pub(super) fn steady(all: &[f64]) -> bool {
    median(all) < 2.0 * best(all)
}

pub(super) fn best(all: &[f64]) -> f64 {
    all.iter().copied().fold(f64::INFINITY, f64::min)
}

pub(super) fn os(errno: madrigal_sys::Errno) -> PerfError {
    PerfError::Peer(Os(errno.raw_os_error()))
}
