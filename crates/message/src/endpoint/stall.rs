//! Long refusals: a node takes no more, and its messages wait for receives.

use madrigal_base::node::NodeAddress;
use madrigal_sys::time;

use super::credit::Room;
use super::refused::Refused;
use super::types::PeerId;
use crate::worker::Core;
use crate::worker::state::{Does, NodeState};

/// A node to which nothing could be sent for long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stall {
    /// Which.
    pub to: NodeAddress,
    /// For how many seconds.
    pub seconds: u64,
    /// What waits, and where.
    pub what: String,
}

impl Core {
    /// See [`Endpoint::stalled`](super::Endpoint::stalled).
    #[cold]
    pub(super) fn stalled(&mut self, channel: u16, to: PeerId) -> Option<Stall> {
        let peer = self.state.endpoint(channel)?.peers.get(to.0 as usize).copied()?;
        let node = &mut self.state.nodes[peer.node as usize];
        let sent = node.counters().sent.load(core::sync::atomic::Ordering::Relaxed);
        let long = Refused::again(&mut node.refused, sent, time::now_ns())?;
        let bare = NodeAddress::bare(node.id);
        let to = NodeAddress { channel: peer.channel, ..node.address.clone().unwrap_or(bare) };
        Some(Stall { to, seconds: long / 1_000_000_000, what: self.what_waits(peer.node) })
    }

    fn what_waits(&self, node: u32) -> String {
        let to = &self.state.nodes[node as usize];
        let rendezvous = self.state.ops.keys(|op| op.node == node && matches!(op.does, Does::Send { .. })).len();
        let Room { eager_used, eager_left, rendezvous_left } = to.credit.room();
        let whole = format!("{} KiB of messages wait there for receives", eager_used >> 10);
        match to.state {
            NodeState::None | NodeState::Linking { .. } => {
                format!("{} messages wait here for a way to it", to.out.len())
            }
            _ if !rendezvous_left => {
                format!("{whole}, and {rendezvous} more that lie here wait there for receives, too")
            }
            _ if !eager_left => whole,
            _ => format!("{} messages wait here, for its process takes none: it computes, or is stopped", to.out.len()),
        }
    }
}
