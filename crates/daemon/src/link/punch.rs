//! An attempt to connect with a host while that does the same; the daemon's side of it is in `punches.rs`.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::streams::stream::Stream;

/// An attempt to connect with a host while that does the same.
pub(crate) struct Punch {
    pub(crate) peer: usize,
    pub(crate) stage: Stage,
    /// When it is given up.
    pub(crate) end: u64,
}

pub(crate) enum Stage {
    /// The other end was asked for its address as seen by the relay. The received part of its answer; and the address that we connect from.
    Asked { stream: Stream, received: Vec<u8>, from: SocketAddr },
    /// Both connect.
    Connects { between: [SocketAddr; 2], socket: Option<OwnedFd>, next: u64, asked: bool },
}

/// The answer: the address at which the relay sees the end that answers.
#[derive(Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) at: String,
}

impl Punch {
    /// Its next deadline.
    pub(crate) fn deadline(&self) -> u64 {
        match &self.stage {
            Stage::Connects { socket: None, next, .. } => self.end.min(*next),
            _ => self.end,
        }
    }

    /// Whether the other end has not answered yet.
    pub(crate) fn is_asking(&self) -> bool {
        matches!(self.stage, Stage::Asked { .. })
    }
}

/// Whether an address that a peer names may be one of a host elsewhere.
pub(crate) fn may_be_dialled(to: SocketAddr) -> bool {
    let ip = to.ip().to_canonical();
    !ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast() && to.port() != 0
}
