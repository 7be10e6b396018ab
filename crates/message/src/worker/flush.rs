//! Sending what waits for nodes, as their ports take it.

use madrigal_progress::message::{LinkError, LinkIndex, Sent};

use super::out::{Body, Item, Stream};
use super::state::{NodeState, State};
use super::{Core, PortSlot};
use crate::endpoint::wire::Head;
use crate::memory::{lend, slices};
use crate::slab::Key;

/// What may be held for a node that sends requests and takes no answers: more than all that may be under way at once, ours and its.
const MOST_OWED: usize = 128 << 20;

impl Core {
    /// Sends to a node what waits for it, as much as its port takes. True: nothing is left to do.
    pub(crate) fn flush(&mut self, node: u32) -> bool {
        let to = &self.state.nodes[node as usize];
        if (to.state == NodeState::None || to.sought) && !to.out.is_clear() {
            self.reach_out(node);
        }
        loop {
            let to = &mut self.state.nodes[node as usize];
            let (port, link) = match to.state {
                NodeState::Up { port, link } => (port, link),
                NodeState::Linking { .. } => return true,
                NodeState::None | NodeState::Down => return to.out.is_clear(),
            };
            let Some((item, skip)) = to.out.next() else { return true };
            match send_item(&mut self.ports[port], link, &item, skip) {
                Ok(Sent::All) => {
                    to.counters().sent(item.len());
                    if let Some(op) = item.then {
                        self.state.was_sent(op);
                    }
                }
                Ok(Sent::Part(more)) => {
                    to.out.resume(item, skip + more);
                    return false;
                }
                Err(why) => {
                    self.state.fail(node, why);
                    return true;
                }
            }
        }
    }

    /// Something must be sent to a node that no port has a way to.
    #[cold]
    fn reach_out(&mut self, node: u32) {
        let to = &mut self.state.nodes[node as usize];
        if core::mem::take(&mut to.sought) {
            // It was only sought. A sender gets the whole time.
            if let (NodeState::Linking { port, .. }, Some(address)) = (to.state, &to.address) {
                let _ = self.ports[port].port.link(address);
            }
            return;
        }
        if let Err(why) = self.link(node) {
            self.state.fail(node, why);
        }
    }

    /// Sends what waits, to every node.
    pub(crate) fn flush_all(&mut self) -> usize {
        let (mut at, mut done) = (0, 0);
        while at < self.state.pending.len() {
            let node = self.state.pending[at];
            let before = self.state.nodes[node as usize].out.len();
            let clear = self.flush(node);
            done += before.saturating_sub(self.state.nodes[node as usize].out.len());
            if clear {
                self.state.pending.swap_remove(at);
                self.state.nodes[node as usize].out.attended = false;
            } else {
                at += 1;
            }
        }
        done
    }
}

fn send_item(slot: &mut PortSlot, link: LinkIndex, item: &Item, skip: usize) -> Result<Sent, LinkError> {
    let owned;
    let parts = match &item.body {
        Body::Lent(pieces) => pieces.all(),
        Body::Owned(bytes) if bytes.is_empty() => &[],
        Body::Owned(bytes) => {
            owned = [lend(bytes)];
            &owned
        }
    };
    let (slices, count) = slices(parts);
    slot.port.send(link, item.head.bytes(), &slices[..count], skip)
}

impl State {
    /// Queues an answer to a peer's request, as long as the peer takes answers.
    pub(crate) fn answer(&mut self, node: u32, head: Head, body: Vec<u8>) {
        self.queue(node, head, body);
        self.check_owed(node);
    }

    /// The same of bytes.
    pub(crate) fn answer_by(&mut self, node: u32, stream: Stream) {
        self.nodes[node as usize].out.streams.push_back(stream);
        self.attend(node);
        self.check_owed(node);
    }

    fn check_owed(&mut self, node: u32) {
        if self.nodes[node as usize].out.held() > MOST_OWED {
            self.corrupt(node, "it asks for more and more, and takes no answers");
        }
    }

    /// Every byte of an operation was taken by a port.
    pub(crate) fn was_sent(&mut self, key: Key) {
        let Some(op) = self.ops.get(key) else { return };
        op.reading = false;
        if op.over {
            self.end(key, None);
        }
    }
}
