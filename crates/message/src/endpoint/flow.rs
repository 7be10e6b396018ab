//! Flow control: nodes get reports of what was taken of theirs, and send us such reports.

use super::arrive::Came;
use super::credit::Load;
use super::wire::{Head, What};
use crate::worker::state::State;

impl State {
    /// A message of a node is where it belongs, or not wanted.
    #[inline]
    pub(crate) fn taken(&mut self, node: u32, load: Load) {
        if let Some(taken) = self.nodes[node as usize].credit.taken(load) {
            self.report_taken(node, load, taken);
        }
    }

    #[cold]
    #[inline(never)]
    fn report_taken(&mut self, node: u32, load: Load, taken: u64) {
        let kind = u16::from(matches!(load, Load::Rendezvous(_)));
        self.queue(node, Head::new(What::Credit, 0, 0, 0).extra(kind).word(taken), Vec::new());
    }

    /// An unexpected message was taken.
    #[inline]
    pub(crate) fn released(&mut self, node: u32, load: Load) {
        if let Some(taken) = self.nodes[node as usize].credit.released(load) {
            self.report_taken(node, load, taken);
        }
    }

    /// A node reports what it has taken.
    pub(crate) fn credited(&mut self, came: &Came<'_>) -> Option<()> {
        let taken = i64::try_from(came.head.word(0)?).ok()?;
        let load = if came.head.extra == 0 { Load::Eager(0) } else { Load::Rendezvous(0) };
        self.nodes[came.node as usize].credit.credited(load, taken);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use madrigal_base::node::NodeId;
    use madrigal_progress::message::LinkIndex;

    use crate::endpoint::wire::Seen;

    fn state() -> (State, u32) {
        let mut state = State::default();
        let node = state.node(NodeId::new(7).expect("a number"));
        (state, node)
    }

    fn send_taken(state: &mut State, node: u32, kind: u16, taken: u64) -> Option<()> {
        let head = Head::new(What::Credit, 0, 0, 0).extra(kind).word(taken);
        let head = Seen::read(head.bytes()).expect("a head");
        state.credited(&Came { node, via: (0, LinkIndex(0)), head })
    }

    #[test]
    fn what_a_node_tells_counts_for_its_kind() {
        let (mut state, node) = state();
        for (kind, load) in [(0, Load::Eager(1 << 30)), (1, Load::Rendezvous(1 << 30))] {
            state.nodes[0].credit.sends(load);
            assert_eq!(send_taken(&mut state, node, 1 - kind, u64::MAX >> 1), Some(()));
            let may = |state: &State| (state.nodes[0].credit.may_send(), state.nodes[0].credit.may_rendezvous());
            assert_eq!(may(&state), (kind == 1, kind == 0));
            assert_eq!(send_taken(&mut state, node, kind, u64::MAX >> 1), Some(()));
            assert_eq!(may(&state), (true, true));
        }
        assert_eq!(send_taken(&mut state, node, 0, u64::MAX), None);
    }

    #[test]
    fn what_was_taken_goes_out_once_it_is_much() {
        let (mut state, node) = state();
        state.taken(node, Load::Eager(1000));
        assert_eq!(state.nodes[0].out.len(), 0);
        state.taken(node, Load::Eager(64 << 20));
        assert_eq!(state.nodes[0].out.len(), 1);
    }
}
