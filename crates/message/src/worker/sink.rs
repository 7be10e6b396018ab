//! What a port reports while it is polled.

use madrigal_base::node::NodeId;
use madrigal_progress::message::{LinkError, LinkIndex, Placement, Sink};

use super::state::{NOBODY, NodeState, Placed, State};
use crate::endpoint::arrive::Came;
use crate::endpoint::wire::{Seen, What};

/// The state, as one port may talk to it.
pub(crate) struct EventSink<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) port: usize,
}

impl EventSink<'_> {
    /// The node of a link; `None`: it has none, or the link does not count any more.
    #[inline]
    fn node(&self, link: LinkIndex) -> Option<u32> {
        let link = self.state.links.get(self.port)?.get(link.0 as usize)?;
        let alive = link.up && link.node != NOBODY && self.state.nodes[link.node as usize].state != NodeState::Down;
        alive.then_some(link.node)
    }

    #[inline]
    fn came<'h>(&mut self, link: LinkIndex, head: &'h [u8]) -> Option<Came<'h>> {
        let node = self.node(link)?;
        let Some(head) = Seen::read(head) else {
            self.state.corrupt(node, "a frame of no kind");
            return None;
        };
        Some(Came { node, via: (self.port, link), head })
    }

    fn placed(&mut self, link: LinkIndex) -> Option<&mut Placed> {
        Some(&mut self.state.links.get_mut(self.port)?.get_mut(link.0 as usize)?.placed)
    }

    /// A node was only sought, and there is no way to it. A later send in either direction may succeed. If no process is there any more,
    /// nothing comes from it: a receive for that node alone fails.
    #[cold]
    fn not_found(&mut self, node: u32) {
        let peer = &mut self.state.nodes[node as usize];
        match peer.why.take() {
            Some(why @ LinkError::Unreachable { absent: true, .. }) if self.state.is_awaited(node) => {
                self.state.fail(node, why);
            }
            _ => self.state.nodes[node as usize].try_anew(),
        }
    }

    fn handle(&mut self, came: &Came<'_>, body: &[u8]) {
        let state = &mut *self.state;
        let sense = match came.head.what {
            What::Eager => state.eager(came, body),
            What::Rendezvous => state.rendezvous(came, body),
            What::Go => state.go(came),
            What::Data => state.data(came, body),
            What::End => state.ended(came),
            What::Put => state.put(came, body),
            What::Get => state.get(came),
            What::Atomic => state.atomic(came, body),
            What::Ask => state.ask(came),
            What::Region => state.region(came),
            What::Forget => state.forget(came),
            What::Wrote => state.wrote(came),
            What::Credit => state.credited(came),
        };
        if sense.is_none() {
            state.corrupt(came.node, &format!("a frame that makes no sense: {:?}", came.head.what));
        }
    }
}

impl Sink for EventSink<'_> {
    fn crowded(&self) -> bool {
        self.state.idle.is_crowded()
    }

    fn up(&mut self, link: LinkIndex, node: NodeId) {
        let node = self.state.node(node);
        let port = self.port;
        let Some(known) = self.state.link(port, link) else { return };
        (known.node, known.up) = (node, true);
        let peer = &mut self.state.nodes[node as usize];
        peer.links.push((port, link));
        self.state.stale.push(node);
        let peer = &mut self.state.nodes[node as usize];
        if matches!(peer.state, NodeState::None | NodeState::Linking { .. }) {
            (peer.state, peer.sought, peer.why) = (NodeState::Up { port, link }, false, None);
            self.state.attend(node);
        }
    }

    fn down(&mut self, link: LinkIndex, why: LinkError) {
        let (port, ports) = (self.port, self.state.links.len());
        let Some(known) = self.state.link(port, link) else { return };
        let (node, was_up) = (known.node, known.up);
        known.up = false;
        let Some(peer) = self.state.nodes.get_mut(node as usize) else { return };
        if was_up {
            self.state.fail(node, why);
        } else if peer.state == (NodeState::Linking { port, link }) {
            self.state.stale.push(node);
            // Another driver may do.
            peer.state = NodeState::None;
            peer.tried = port + 1;
            peer.why = Some(why);
            if peer.out.is_clear() && peer.tried >= ports {
                self.not_found(node);
            }
            self.state.attend(node);
        }
    }

    fn silent(&mut self, link: LinkIndex, seconds: u64) {
        if let Some(node) = self.node(link) {
            let why = LinkError::Silent { node: self.state.nodes[node as usize].id, seconds };
            self.state.lost.push((node, why));
        }
    }

    #[inline]
    fn frame(&mut self, link: LinkIndex, head: &[u8], body: &[u8]) {
        if let Some(came) = self.came(link, head) {
            self.state.nodes[came.node as usize].counters().received(body.len());
            self.handle(&came, body);
        }
    }

    fn place(&mut self, link: LinkIndex, head: &[u8], len: usize, placement: &mut Placement) {
        let Some(came) = self.came(link, head) else { return };
        let state = &mut *self.state;
        state.nodes[came.node as usize].counters().received(len);
        let placed = match came.head.what {
            What::Eager => state.place_eager(&came, len, placement),
            What::Data => state.place_data(&came, len, placement),
            What::Put => state.place_put(&came, len, placement),
            What::Rendezvous | What::Atomic => state.place_any(len, placement),
            _ => None,
        };
        match placed {
            Some(placed) => drop(self.placed(link).map(|place| *place = placed)),
            None => {
                placement.clear();
                state.corrupt(came.node, &format!("a body where none may be, or too long a one: {:?}", came.head.what));
            }
        }
    }

    fn arrived(&mut self, link: LinkIndex, head: &[u8]) {
        let placed = self.placed(link).map(core::mem::take).unwrap_or_default();
        let Some(came) = self.came(link, head) else { return };
        match placed {
            Placed::Block(block) if came.head.what == What::Eager => {
                if self.state.eager_block(&came, block).is_none() {
                    self.state.corrupt(came.node, "a message that makes no sense");
                }
            }
            Placed::Block(block) => self.handle(&came, block.bytes()),
            Placed::Receive(arrived) => self.state.receive_arrived(came.node, arrived),
            Placed::Data { op, len } => self.state.data_arrived(op, len),
            Placed::Put { len, .. } => drop(self.state.put_arrived(&came, Some(len))),
            Placed::Nowhere if came.head.what == What::Put => drop(self.state.put_arrived(&came, None)),
            Placed::Nowhere => {}
        }
    }
}
