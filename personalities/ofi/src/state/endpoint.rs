//! An endpoint in the state of its domain.

use std::collections::VecDeque;

use madrigal_message::endpoint::{Completion, Endpoint, PeerId};

use super::addresses::AvState;
use super::bindings::Bindings;
use crate::abi::errno::{EAGAIN, EHOSTUNREACH, EINVAL};
use crate::abi::{ADDR_UNSPEC, Addr};
use crate::lookup::AddressServer;
use crate::names::Name;
use crate::slab::Slab;

/// An endpoint in the state of its domain.
pub(crate) struct EpState {
    pub(crate) link: Endpoint,
    pub(crate) bindings: Bindings,
    /// Completions of the link; empty except while they are filed.
    pub(crate) done: VecDeque<Completion>,
    pub(crate) enabled: bool,
    /// Where it can be found by host and port.
    pub(crate) server: Option<AddressServer>,
    pub(crate) av: Option<usize>,
    /// The version of the address vector that `peers` and the bindings' names show.
    pub(crate) version: u64,
    /// By place in the address vector.
    pub(crate) peers: Vec<Option<PeerId>>,
    /// Places whose node is not known, and the errno for each.
    pub(crate) unresolved: Vec<(usize, i32)>,
    pub(crate) tx_selective: bool,
    pub(crate) rx_selective: bool,
    /// Whether a receive may name its sender.
    pub(crate) directed: bool,
    pub(crate) min_multi: usize,
    /// Messages claimed, by the context they were claimed with.
    pub(crate) claims: Vec<(usize, u64)>,
}

impl EpState {
    /// Takes over changes of the address vector.
    #[inline]
    pub(crate) fn sync(&mut self, avs: &Slab<AvState>) {
        if let Some(av) = self.av.and_then(|at| avs.get(at))
            && av.version != self.version
        {
            self.learn(av);
        }
    }

    #[cold]
    pub(crate) fn learn(&mut self, av: &AvState) {
        self.version = av.version;
        self.bindings.names.clear();
        self.peers.clear();
        self.unresolved.clear();
        for (at, name) in av.names.iter().enumerate() {
            let peer = match name {
                Some(Name::Node(node)) => Some(self.link.peer(node)),
                Some(Name::Place(_)) => {
                    self.unresolved.push((at, if av.asks(at) { EAGAIN } else { EHOSTUNREACH }));
                    None
                }
                None => None,
            };
            self.peers.push(peer);
            if let Some(peer) = peer {
                let index = peer.0 as usize;
                if self.bindings.names.len() <= index {
                    self.bindings.names.resize(index + 1, ADDR_UNSPEC);
                }
                if self.bindings.names[index] == ADDR_UNSPEC {
                    self.bindings.names[index] = at as Addr;
                }
            }
        }
    }

    /// The peer at that place of the address vector; `Err`: there is none, or it is not known yet.
    #[inline]
    pub(crate) fn peer(&self, at: Addr) -> Result<PeerId, i32> {
        self.peers.get(at as usize).copied().flatten().ok_or_else(|| self.unresolved_error(at))
    }

    #[cold]
    pub(crate) fn unresolved_error(&self, at: Addr) -> i32 {
        self.unresolved.iter().find(|(place, _)| *place as Addr == at).map_or(EINVAL, |&(_, errno)| errno)
    }

    /// The sender that a receive names, if any; `Err` if there is no such peer.
    #[inline]
    pub(crate) fn source(&self, at: Addr) -> Result<Option<PeerId>, i32> {
        if at == ADDR_UNSPEC || !self.directed {
            return Ok(None);
        }
        self.peer(at).map(Some)
    }
}
