//! How much may be sent to a node without a request, so that unexpected messages cannot fill its memory.
//!
//! Every message sent whole counts, with a fixed cost for keeping it; every rendezvous counts separately. Once a node has [`WINDOW`] bytes
//! that it has not reported as received, messages go by rendezvous instead, and those that must go at once (injected ones, as packets of a
//! Circuit are) wait. Once it has [`RENDEZVOUS`], rendezvous wait, too. A node reports in steps, so this costs a frame every few mebibytes.
//! A packet of a Circuit counts as received when it is unpacked.

/// The longest body of an unexpected message: what may be sent without a request.
pub(crate) const MAX_KEPT: usize = 1 << 20;
/// Bytes of unexpected messages that a node may hold, ...
const WINDOW: i64 = 64 << 20;
/// ... and what rendezvous may cost it.
const RENDEZVOUS: i64 = 16 << 20;
/// Receptions are reported once they are this part of a window.
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
    /// What keeping it costs the receiver. Bodies that are sent whole are short.
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
    /// What may still be sent: the window without what was sent and not yet reported as received.
    room: i64,
    /// Received from it since the last report, counted down.
    unreported: i64,
    /// How much of it may still be kept; one message may go beyond the window.
    space: i64,
}

impl Account {
    fn of(window: i64) -> Self {
        let space = window + 2 * Load::Eager(MAX_KEPT).cost();
        Self { window, room: window, unreported: window / PART, space }
    }

    /// What was received and not reported; it is reported now.
    #[cold]
    #[inline(never)]
    fn take_unreported(&mut self) -> u64 {
        // There is no window for messages to oneself.
        let step = self.window.min(WINDOW) / PART;
        (step - core::mem::replace(&mut self.unreported, step)).unsigned_abs()
    }
}

/// What was sent without a request, between us and a node.
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

    /// What may still be sent.
    pub(crate) fn room(&self) -> Room {
        let Self { eager, rendezvous } = self;
        Room {
            eager_used: eager.window.saturating_sub(eager.room),
            eager_left: eager.room > 0,
            rendezvous_left: rendezvous.room > 0,
        }
    }

    /// Whether a message may be sent whole.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        self.eager.room > 0
    }

    /// Whether a message may go by rendezvous.
    pub(crate) fn may_rendezvous(&self) -> bool {
        self.rendezvous.room > 0
    }

    /// A message is sent eagerly, or by rendezvous.
    #[inline]
    pub(crate) fn sends(&mut self, load: Load) {
        self.account(load).room -= load.cost();
    }

    /// What was sent is taken back.
    pub(crate) fn unsends(&mut self, load: Load) {
        self.account(load).room += load.cost();
    }

    /// The node has taken so much of that kind.
    pub(crate) fn credited(&mut self, load: Load, taken: i64) {
        let account = self.account(load);
        account.room = account.room.saturating_add(taken).min(account.window);
    }

    /// A message of the node was received or dropped. The amount to report to it now, if any.
    #[inline]
    pub(crate) fn taken(&mut self, load: Load) -> Option<u64> {
        let account = self.account(load);
        account.unreported -= load.cost();
        if account.unreported < 0 { Some(account.take_unreported()) } else { None }
    }

    /// Charges the node for an unexpected message. `None`: it sent more than it may.
    #[inline]
    pub(crate) fn charge(&mut self, load: Load) -> Option<()> {
        let account = self.account(load);
        account.space -= load.cost();
        (account.space >= 0).then_some(())
    }

    /// An unexpected message was taken. The amount to report to the node now, if any.
    #[inline]
    pub(crate) fn released(&mut self, load: Load) -> Option<u64> {
        self.account(load).space += load.cost();
        self.taken(load)
    }
}

/// What is left of what may be sent.
pub(crate) struct Room {
    /// Bytes, and what keeping them costs, that were sent whole and no receive took.
    pub(crate) eager_used: i64,
    pub(crate) eager_left: bool,
    pub(crate) rendezvous_left: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_be_sent_so_much_and_more_once_it_tells() {
        let mut credit = Credit::default();
        let mut count = 0;
        while credit.may_send() {
            credit.sends(Load::Eager(1 << 20));
            count += 1;
        }
        assert_eq!(count, 64);
        assert!(credit.may_rendezvous(), "rendezvous count by themselves");
        credit.credited(Load::Eager(0), i64::MAX);
        assert_eq!(credit.eager.room, WINDOW, "never more than the window, whatever it tells");
    }

    #[test]
    fn so_many_may_go_by_rendezvous_and_more_once_it_tells() {
        let mut credit = Credit::default();
        let mut count = 0;
        while credit.may_rendezvous() {
            credit.sends(Load::Rendezvous(1));
            count += 1;
        }
        assert_eq!(count, RENDEZVOUS / (EACH + PIECE) + 1);
        assert!(credit.may_send());
        credit.credited(Load::Rendezvous(0), 1 << 20);
        assert!(credit.may_rendezvous());
    }

    #[test]
    fn who_sends_more_than_it_may_is_found_out() {
        let mut credit = Credit::default();
        let most = 2 * Load::Eager(MAX_KEPT).cost();
        for (load, window) in [(Load::Eager(4096), WINDOW), (Load::Rendezvous(64), RENDEZVOUS)] {
            let all = (0..1_000_000).take_while(|_| credit.charge(load).is_some()).count() as i64;
            assert!(all * load.cost() >= window && all * load.cost() <= window + most);
            credit.released(load);
            credit.released(load);
            assert_eq!(credit.charge(load), Some(()));
        }
    }

    #[test]
    fn what_was_taken_is_told_in_steps() {
        let mut credit = Credit::default();
        let load = Load::Eager(1000);
        let step = WINDOW / PART;
        (0..step / load.cost()).for_each(|_| assert_eq!(credit.taken(load), None));
        let granted = credit.taken(load).expect("it is time") as i64;
        assert!((step..step + load.cost()).contains(&granted));
        assert_eq!(credit.eager.unreported, step);
    }
}
