//! Data that a process keeps until the last receiver has them: of its own messages, and of others' where it offers memory. No I/O.
//!
//! ```text
//!   own:     keep ------------------------------------> kept --last release--> freed
//!   others': room --> asked --keep--> kept, not sent --sent--> kept --last release--> freed
//!                       |                  | its sender is gone
//!                       +--give_up--> freed <--+
//! ```
//! Every receiver *holds* the data once. It releases them when it has got or dropped its message; that it is gone counts as that.

use super::buffer::Buffer;
use super::header::Load;
use crate::endpoint::PeerId;
use crate::slab::{Key, Slab};

/// The data, and how many bytes they may be.
pub(super) struct Store {
    kept: Slab<Data>,
    own: Budget,
    offered: Budget,
}

/// Bytes that may be kept, and that are.
struct Budget {
    most: u64,
    held: u64,
    asked: u64,
}

struct Data {
    bytes: Buffer,
    cost: u64,
    whose: Whose,
    /// Who holds them; one that has several mailboxes as often.
    holders: Vec<PeerId>,
}

enum Whose {
    Own,
    /// Of a message between others, whose sender has not said yet that it was sent: to these, in its order.
    NotSent {
        by: PeerId,
        to: Vec<PeerId>,
    },
    Others,
}

impl Store {
    pub(super) fn new(own: u64) -> Self {
        let budget = |most| Budget { most, held: 0, asked: 0 };
        Self { kept: Slab::default(), own: budget(own), offered: budget(0) }
    }

    /// From now on so many bytes of others are kept; what is there stays.
    pub(super) fn offer(&mut self, bytes: u64) {
        self.offered.most = bytes;
    }

    pub(super) fn load(&self) -> Load {
        Load { offers: self.offered.most, held: self.offered.held, asked: self.offered.asked }
    }

    /// Bytes of our own messages, and how many they may be.
    pub(super) fn own(&self) -> (u64, u64) {
        (self.own.held, self.own.most)
    }

    /// Whether no data of our own are kept, shared ones neither.
    pub(super) fn own_is_empty(&self) -> bool {
        self.kept.keys(|data| matches!(data.whose, Whose::Own)).is_empty()
    }

    /// Whether data of our own may be kept. What is larger than may ever be kept is, alone.
    pub(super) fn has_room(&self, cost: u64) -> bool {
        self.own.held == 0 || cost <= self.own.most.saturating_sub(self.own.held)
    }

    /// Keeps data of our own. Shared ones cost nothing: they are the program's.
    pub(super) fn keep(&mut self, bytes: Buffer, holders: Vec<PeerId>) -> Key {
        let cost = if bytes.is_shared() { 0 } else { bytes.len() as u64 };
        self.own.held += cost;
        self.kept.add(Data { bytes, cost, whose: Whose::Own, holders })
    }

    /// Room for data of others that are still to come, of that cost. False: there is none.
    pub(super) fn ask(&mut self, cost: u64) -> bool {
        let Budget { most, held, asked } = self.offered;
        let fits = held.checked_add(asked).and_then(|used| used.checked_add(cost)).is_some_and(|all| all <= most);
        if fits {
            self.offered.asked += cost;
        }
        fits
    }

    /// Data that were asked for do not come.
    pub(super) fn give_up(&mut self, cost: u64) {
        self.offered.asked -= cost;
    }

    /// Data that were asked for have come.
    pub(super) fn keep_for(&mut self, by: PeerId, (bytes, cost): (Buffer, u64), holders: Vec<PeerId>) -> Key {
        self.offered.asked -= cost;
        self.offered.held += cost;
        let to = holders.clone();
        self.kept.add(Data { bytes, cost, whose: Whose::NotSent { by, to }, holders })
    }

    /// Their sender says that the headers are sent, but to these. Nobody else may say so.
    pub(super) fn sent(&mut self, by: PeerId, key: Key, missed: &[u16]) {
        let Some(data) = self.kept.get(key) else { return };
        let Whose::NotSent { by: sender, to } = &data.whose else { return };
        if *sender != by {
            return;
        }
        let missed: Vec<PeerId> = missed.iter().filter_map(|at| to.get(usize::from(*at)).copied()).collect();
        data.whose = Whose::Others;
        missed.into_iter().for_each(|peer| self.release(peer, key));
        // It may have been for nobody at all.
        self.free_unheld(key);
    }

    /// The data, for one who holds them.
    pub(super) fn get(&mut self, by: PeerId, key: Key) -> Option<Buffer> {
        let data = self.kept.get(key).filter(|data| data.holders.contains(&by))?;
        Some(data.bytes.clone())
    }

    /// One who holds them does so no more, once. From anybody else it is nothing.
    pub(super) fn release(&mut self, by: PeerId, key: Key) {
        let Some(data) = self.kept.get(key) else { return };
        if let Some(at) = data.holders.iter().position(|holder| *holder == by) {
            data.holders.swap_remove(at);
            self.free_unheld(key);
        }
    }

    /// A process is gone: it holds nothing any more, and what it had not sent nobody will read.
    pub(super) fn gone(&mut self, peer: PeerId) {
        let its = |data: &Data| matches!(data.whose, Whose::NotSent { by, .. } if by == peer);
        for key in self.kept.keys(|data| its(data) || data.holders.contains(&peer)) {
            if let Some(data) = self.kept.get(key) {
                let is_its = its(data);
                data.holders.retain(|holder| *holder != peer && !is_its);
            }
            self.free_unheld(key);
        }
    }

    /// Everybody who matters to what is kept.
    pub(super) fn parties(&mut self) -> Vec<PeerId> {
        let mut all = Vec::new();
        for key in self.kept.keys(|_| true) {
            let Some(data) = self.kept.get(key) else { continue };
            all.extend_from_slice(&data.holders);
            if let Whose::NotSent { by, .. } = data.whose {
                all.push(by);
            }
        }
        all
    }

    fn free_unheld(&mut self, key: Key) {
        if self.kept.get(key).is_none_or(|data| !data.holders.is_empty()) {
            return;
        }
        let Some(data) = self.kept.remove(key) else { return };
        let budget = if matches!(data.whose, Whose::Own) { &mut self.own } else { &mut self.offered };
        budget.held -= data.cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);
    const C: PeerId = PeerId(3);

    fn bytes(len: usize) -> Buffer {
        Buffer::from(vec![0; len])
    }

    #[test]
    fn one_copy_serves_all_who_hold_it_and_the_last_one_frees_it() {
        let mut store = Store::new(100);
        let key = store.keep(bytes(60), vec![A, B, B]);
        assert_eq!((store.has_room(40), store.has_room(41)), (true, false));
        assert!(store.get(A, key).is_some() && store.get(C, key).is_none());
        [A, A, C, B].into_iter().for_each(|peer| store.release(peer, key));
        assert!(store.get(A, key).is_none() && store.get(B, key).is_some());
        assert_eq!(store.own(), (60, 100));
        store.release(B, key);
        assert_eq!((store.own(), store.get(B, key).is_none()), ((0, 100), true));
        assert!(store.has_room(1000), "what is larger than may ever be kept is kept alone");
    }

    #[test]
    fn those_who_are_gone_hold_nothing() {
        let mut store = Store::new(100);
        let key = store.keep(bytes(10), vec![A, B, A]);
        store.gone(A);
        assert_eq!(store.parties(), [B]);
        store.gone(B);
        assert_eq!((store.own().0, store.get(B, key).is_none()), (0, true));
    }

    #[test]
    fn no_more_is_kept_for_others_than_was_offered() {
        let mut store = Store::new(0);
        assert!(!store.ask(1));
        store.offer(100);
        assert!(store.ask(60) && !store.ask(41) && store.ask(40) && !store.ask(u64::MAX));
        store.give_up(40);
        store.keep_for(A, (bytes(50), 60), vec![B]);
        assert_eq!(store.load(), Load { offers: 100, held: 60, asked: 0 });
    }

    #[test]
    fn what_is_for_nobody_goes_when_it_was_sent() {
        let mut store = Store::new(0);
        store.offer(100);
        assert!(store.ask(60));
        let key = store.keep_for(A, (bytes(60), 60), Vec::new());
        store.sent(A, key, &[]);
        assert_eq!(store.load().held, 0);
    }

    #[test]
    fn what_its_sender_has_not_sent_goes_with_it_and_what_it_has_stays() {
        let mut store = Store::new(0);
        store.offer(100);
        assert!(store.ask(10) && store.ask(20) && store.ask(30));
        let [lost, sent, missed] = [10, 20, 30].map(|len| store.keep_for(A, (bytes(len), len as u64), vec![B, C]));
        store.sent(B, lost, &[]);
        store.sent(A, sent, &[]);
        store.sent(A, missed, &[1, 7]);
        store.gone(A);
        assert!(store.get(B, lost).is_none() && store.get(B, sent).is_some());
        assert!(store.get(B, missed).is_some() && store.get(C, missed).is_none());
        [sent, missed].iter().for_each(|key| store.release(B, *key));
        store.release(C, sent);
        assert_eq!(store.load().held, 0);
    }
}
