//! How much may be sent to a node without having been asked for, so that what nobody receives there cannot fill its memory.
//!
//! Every message sent whole counts, with something for what keeping it costs; and every rendezvous, by itself. Once [`WINDOW`] bytes
//! are with a node that it has not told to have given to a receive, messages go by rendezvous instead, and what must be taken at once (it
//! is injected, as packets of a Circuit are) has to wait; and once it has [`RENDEZVOUS`], so have those. A node tells it in steps, so this
//! costs a frame every few mebibytes. A packet of a Circuit is given to a receive when it is unpacked.

use super::arrive::{Came, MAX_KEPT};
use super::wire::{Head, What};
use crate::worker::state::{Node, State};

/// Bytes that may be kept by a node, ...
const WINDOW: i64 = 64 << 20;
/// ... and what rendezvous may cost it.
const RENDEZVOUS: i64 = 16 << 20;
/// What is given to receives is told once it is this part of a window.
const PART: i64 = 8;
/// What is counted for a message beside its bytes, ...
const EACH: i64 = 256;
/// ... and for a piece of a rendezvous.
const PIECE: i64 = 16;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Load {
    /// A message of so many bytes, sent whole.
    Eager(usize),
    /// A rendezvous of so many pieces.
    Rendezvous(usize),
}

impl Load {
    /// What it costs who keeps it. Bodies that are sent whole are short.
    #[inline]
    fn cost(self) -> i64 {
        match self {
            Self::Eager(len) => len as i64 + EACH,
            Self::Rendezvous(pieces) => pieces as i64 * PIECE + EACH,
        }
    }
}

/// Loads of one kind, either way, between us and a node.
struct Account {
    window: i64,
    /// What may still be sent: the window without what was sent and not yet told to have been received.
    room: i64,
    /// Received from it since that was told last, counted down.
    untold: i64,
    /// What may still be kept of it; one message may go beyond the window.
    space: i64,
}

impl Account {
    fn of(window: i64) -> Self {
        let space = window + 2 * Load::Eager(MAX_KEPT).cost();
        Self { window, room: window, untold: window / PART, space }
    }
}

/// What was sent without having been asked for, between us and a node.
pub(crate) struct Credit {
    eager: Account,
    rendezvous: Account,
}

impl Default for Credit {
    fn default() -> Self {
        Self { eager: Account::of(WINDOW), rendezvous: Account::of(RENDEZVOUS) }
    }
}

impl Credit {
    /// Without a limit: what one sends to oneself.
    pub(crate) fn endless() -> Self {
        let endless = || Account { window: i64::MAX, room: i64::MAX, space: i64::MAX, ..Account::of(WINDOW) };
        Self { eager: endless(), rendezvous: endless() }
    }

    #[inline]
    fn account(&mut self, load: Load) -> &mut Account {
        match load {
            Load::Eager(_) => &mut self.eager,
            Load::Rendezvous(_) => &mut self.rendezvous,
        }
    }
}

/// What is left of what may be sent.
pub(crate) struct Room {
    /// Bytes, and what keeping them costs, that were sent whole and no receive took.
    pub(crate) eager_used: i64,
    pub(crate) eager_left: bool,
    pub(crate) announced_left: bool,
}

impl Node {
    /// What may still be sent to it.
    pub(crate) fn room(&self) -> Room {
        let Credit { eager, rendezvous } = &self.credit;
        Room {
            eager_used: eager.window.saturating_sub(eager.room),
            eager_left: eager.room > 0,
            announced_left: rendezvous.room > 0,
        }
    }

    /// What was sent is taken back.
    pub(crate) fn unsends(&mut self, load: Load) {
        self.credit.account(load).room += load.cost();
    }

    /// Whether a message may be sent whole.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.credit.eager.room > 0
    }

    /// Whether a message may go by rendezvous.
    pub(crate) fn may_rendezvous(&self) -> bool {
        self.credit.rendezvous.room > 0
    }

    /// A message is sent eagerly, or by rendezvous.
    #[inline]
    pub(crate) fn sends(&mut self, load: Load) {
        self.credit.account(load).room -= load.cost();
    }
}

impl State {
    /// A message of a node is where it belongs, or not wanted.
    #[inline]
    pub(crate) fn taken(&mut self, node: u32, load: Load) {
        let account = self.nodes[node as usize].credit.account(load);
        account.untold -= load.cost();
        if account.untold < 0 {
            self.tell_taken(node, load);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_taken(&mut self, node: u32, load: Load) {
        let account = self.nodes[node as usize].credit.account(load);
        // One has no window for what one sends to oneself.
        let step = account.window.min(WINDOW) / PART;
        let taken = step - core::mem::replace(&mut account.untold, step);
        let kind = u16::from(matches!(load, Load::Rendezvous(_)));
        self.queue(node, Head::new(What::Credit, 0, 0, 0).extra(kind).word(taken.unsigned_abs()), Vec::new());
    }

    /// Charges a node for an unexpected message. `None`: it sent more than it may.
    #[inline]
    pub(crate) fn charge(&mut self, node: u32, load: Load) -> Option<()> {
        let account = self.nodes[node as usize].credit.account(load);
        account.space -= load.cost();
        (account.space >= 0).then_some(())
    }

    /// An unexpected message was taken.
    #[inline]
    pub(crate) fn released(&mut self, node: u32, load: Load) {
        let account = self.nodes[node as usize].credit.account(load);
        account.space += load.cost();
        account.untold -= load.cost();
        if account.untold < 0 {
            self.tell_taken(node, load);
        }
    }

    /// A node tells what it has taken.
    pub(crate) fn credited(&mut self, came: &Came<'_>) -> Option<()> {
        let taken = i64::try_from(came.head.word(0)?).ok()?;
        let load = if came.head.extra == 0 { Load::Eager(0) } else { Load::Rendezvous(0) };
        let account = self.nodes[came.node as usize].credit.account(load);
        account.room = account.room.saturating_add(taken).min(account.window);
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

    fn tell(state: &mut State, node: u32, kind: u16, taken: u64) -> Option<()> {
        let told = Head::new(What::Credit, 0, 0, 0).extra(kind).word(taken);
        let head = Seen::read(told.bytes()).expect("a head");
        state.credited(&Came { node, via: (0, Link(0)), head })
    }

    #[test]
    fn a_node_may_be_sent_so_much_and_more_once_it_tells() {
        let (mut state, node) = state();
        let mut count = 0;
        while state.nodes[0].may_send() {
            state.nodes[0].sends(Load::Eager(1 << 20));
            count += 1;
        }
        assert_eq!(count, 64);
        assert!(state.nodes[0].may_rendezvous(), "rendezvous count by themselves");
        assert_eq!(tell(&mut state, node, 0, u64::MAX >> 1), Some(()));
        assert_eq!(state.nodes[0].credit.eager.room, WINDOW, "never more than the window, whatever it tells");
        assert_eq!(tell(&mut state, node, 0, u64::MAX), None);
    }

    #[test]
    fn so_many_may_go_by_rendezvous_and_more_once_it_tells() {
        let (mut state, node) = state();
        let mut count = 0;
        while state.nodes[0].may_rendezvous() {
            state.nodes[0].sends(Load::Rendezvous(1));
            count += 1;
        }
        assert_eq!(count, RENDEZVOUS / (EACH + PIECE) + 1);
        assert!(state.nodes[0].may_send());
        assert_eq!(tell(&mut state, node, 1, 1 << 20), Some(()));
        assert!(state.nodes[0].may_rendezvous());
    }

    #[test]
    fn who_sends_more_than_it_may_is_found_out() {
        let (mut state, node) = state();
        let most = 2 * Load::Eager(MAX_KEPT).cost();
        for (load, window) in [(Load::Eager(4096), WINDOW), (Load::Rendezvous(64), RENDEZVOUS)] {
            let all = (0..1_000_000).take_while(|_| state.charge(node, load).is_some()).count() as i64;
            assert!(all * load.cost() >= window && all * load.cost() <= window + most);
            state.released(node, load);
            state.released(node, load);
            assert_eq!(state.charge(node, load), Some(()));
        }
    }

    #[test]
    fn what_was_taken_is_told_in_steps() {
        let (mut state, node) = state();
        let step = (WINDOW / PART / Load::Eager(1000).cost()) as usize;
        (0..step).for_each(|_| state.taken(node, Load::Eager(1000)));
        assert_eq!(state.nodes[0].out.len(), 0);
        state.taken(node, Load::Eager(1000));
        assert_eq!(state.nodes[0].out.len(), 1);
        assert_eq!(state.nodes[0].credit.eager.untold, WINDOW / PART);
    }
}
