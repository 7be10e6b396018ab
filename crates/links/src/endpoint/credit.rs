//! How much may be sent to a node without having been asked for, so that what nobody receives there cannot fill its memory.
//!
//! Every message sent whole counts, with something for what keeping it costs. Once [`WINDOW`] bytes are with a node that it has not
//! told to have given to a receive, messages are announced instead, and what must be taken at once (it is injected) has to wait. A
//! node tells it in steps, so this costs a frame every few mebibytes. Everything else passes as always, and so do the packets of a
//! Circuit, which has no receives: what waits for it to be unpacked counts as received.

use super::arrive::{Came, MAX_KEPT};
use super::wire::{Head, What};
use crate::station::state::{Node, State};

/// Bytes that may be kept by a node.
const WINDOW: i64 = 64 << 20;
/// Bytes given to receives that are told at once.
const STEP: i64 = WINDOW / 8;
/// What is counted for a message beside its bytes.
const EACH: i64 = 256;

/// What a message costs who keeps it. Bodies that are sent whole are short.
#[inline]
fn cost(len: usize) -> i64 {
    len as i64 + EACH
}

/// Messages sent whole, either way, between us and a node.
pub(crate) struct Credit {
    window: i64,
    /// What may still be sent: the window without what was sent and not yet told to have been received.
    room: i64,
    /// Received from it since that was told last, counted down from [`STEP`].
    untold: i64,
    /// Kept of it.
    kept: i64,
}

impl Default for Credit {
    fn default() -> Self {
        Self { window: WINDOW, room: WINDOW, untold: STEP, kept: 0 }
    }
}

impl Credit {
    /// Without a limit: what one sends to oneself.
    pub(crate) fn endless() -> Self {
        Self { window: i64::MAX, room: i64::MAX, ..Self::default() }
    }
}

impl Node {
    /// Whether a message may be sent whole.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.credit.room > 0
    }

    /// A message is sent whole.
    #[inline]
    pub(crate) fn sends(&mut self, len: usize) {
        self.credit.room -= cost(len);
    }
}

impl State {
    /// A whole message of a node is where it belongs, or not wanted.
    #[inline]
    pub(crate) fn taken(&mut self, node: u32, len: usize) {
        let credit = &mut self.nodes[node as usize].credit;
        credit.untold -= cost(len);
        if credit.untold < 0 {
            self.tell_taken(node);
        }
    }

    #[cold]
    fn tell_taken(&mut self, node: u32) {
        let credit = &mut self.nodes[node as usize].credit;
        let taken = STEP - core::mem::replace(&mut credit.untold, STEP);
        self.queue(node, Head::new(What::Credit, 0, 0, 0).word(taken.unsigned_abs()), Vec::new());
    }

    /// A whole message of a node is kept. `None`: it sent more than it may.
    #[inline]
    pub(crate) fn kept(&mut self, node: u32, len: usize) -> Option<()> {
        let credit = &mut self.nodes[node as usize].credit;
        credit.kept += cost(len);
        // One message may go beyond the window.
        (credit.kept <= credit.window.saturating_add(2 * cost(MAX_KEPT))).then_some(())
    }

    /// A message that was kept is not any more.
    #[inline]
    pub(crate) fn released(&mut self, node: u32, len: usize) {
        self.nodes[node as usize].credit.kept -= cost(len);
        self.taken(node, len);
    }

    /// A node tells what it has taken.
    pub(crate) fn credited(&mut self, came: &Came<'_>) -> Option<()> {
        let taken = i64::try_from(came.head.word(0)?).ok()?;
        let credit = &mut self.nodes[came.node as usize].credit;
        credit.room = credit.room.saturating_add(taken).min(credit.window);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use madrigal_base::node::NodeId;
    use madrigal_netaccess::message::Link;

    use crate::endpoint::wire::Seen;

    fn state() -> (State, u32) {
        let mut state = State::default();
        let node = state.node(NodeId::new(7).expect("a number"));
        (state, node)
    }

    #[test]
    fn a_node_may_be_sent_so_much_and_more_once_it_tells() {
        let (mut state, node) = state();
        let mut count = 0;
        while state.nodes[0].may_send() {
            state.nodes[0].sends(1 << 20);
            count += 1;
        }
        assert_eq!(count, 64);
        let told = Head::new(What::Credit, 0, 0, 0).word(u64::MAX >> 1);
        let head = Seen::read(told.bytes()).expect("a head");
        assert_eq!(state.credited(&Came { node, via: (0, Link(0)), head }), Some(()));
        assert_eq!(state.nodes[0].credit.room, WINDOW, "never more than the window, whatever it tells");
        let told = Head::new(What::Credit, 0, 0, 0).word(u64::MAX);
        let head = Seen::read(told.bytes()).expect("a head");
        assert_eq!(state.credited(&Came { node, via: (0, Link(0)), head }), None);
    }

    #[test]
    fn who_sends_more_than_it_may_is_found_out() {
        let (mut state, node) = state();
        let all = (0..1_000_000).take_while(|_| state.kept(node, 4096).is_some()).count() as i64;
        assert!(all * cost(4096) >= WINDOW && all * cost(4096) <= WINDOW + 3 * cost(MAX_KEPT));
        state.released(node, 4096);
        state.released(node, 4096);
        assert_eq!(state.kept(node, 4096), Some(()));
    }

    #[test]
    fn what_was_taken_is_told_in_steps() {
        let (mut state, node) = state();
        let step = (STEP / cost(1000)) as usize;
        (0..step).for_each(|_| state.taken(node, 1000));
        assert_eq!(state.nodes[0].out.len(), 0);
        state.taken(node, 1000);
        assert_eq!(state.nodes[0].out.len(), 1);
        assert_eq!(state.nodes[0].credit.untold, STEP);
    }
}
