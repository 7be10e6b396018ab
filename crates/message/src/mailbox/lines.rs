//! Lines: what a sender's mailbox knows of a receiver's, and the receiver's of the sender's. No I/O.
//!
//! ```text
//!   sender    asked --opened--> open --closed, lost--> over       each header takes a place of its kind; `taken` gives places back
//!   receiver            open --leaves, lost, nonsense--> gone     each message that is got or dropped is a place to tell of
//! ```
//! A mailbox has so many places for each sender and each kind. So it is bounded, and a sender that finds none says that it waits.

use std::sync::Arc;

use super::error::MailError;
use super::header::Kind;
use crate::endpoint::PeerId;
use crate::ports::PortAddress;

/// A number for each kind.
pub(super) type Kinds<T> = [T; Kind::ALL.len()];

/// A line at its sender.
pub(super) struct Outgoing {
    /// The mailbox that it is from.
    pub(super) by: u32,
    pub(super) to: Arc<PortAddress>,
    pub(super) peer: PeerId,
    state: Way,
    /// Places of the receiver.
    places: u32,
    free: Kinds<u32>,
    /// It was told that we wait, and has not answered.
    waits: Kinds<bool>,
    /// Messages that were sent.
    pub(super) sequence: u64,
}

/// Whether a line may be used.
enum Way {
    Asked,
    /// The receiver's number for it.
    Open(u32),
    Over(MailError),
}

/// A line at its receiver.
pub(super) struct Incoming {
    /// The mailbox that it leads to.
    pub(super) to: u32,
    pub(super) peer: PeerId,
    /// The sender's number for it.
    pub(super) theirs: u32,
    pub(super) source: Arc<PortAddress>,
    sequence: u64,
    here: Kinds<u32>,
    untold: Kinds<u32>,
    waits: Kinds<bool>,
}

impl Outgoing {
    pub(super) fn new(by: u32, to: Arc<PortAddress>, peer: PeerId) -> Self {
        Self { by, to, peer, state: Way::Asked, places: 0, free: [0; 3], waits: [false; 3], sequence: 0 }
    }

    /// The receiver has it.
    pub(super) fn opened(&mut self, theirs: u32, places: u32) {
        if matches!(self.state, Way::Asked) {
            self.state = Way::Open(theirs);
            (self.places, self.free) = (places, [places; 3]);
        }
    }

    /// It cannot be used any more.
    pub(super) fn end(&mut self, why: MailError) {
        if !matches!(self.state, Way::Over(_)) {
            self.state = Way::Over(why);
        }
    }

    /// The receiver's number for it, once it has one.
    pub(super) fn theirs(&self) -> Option<u32> {
        if let Way::Open(theirs) = self.state { Some(theirs) } else { None }
    }

    /// Whether it is answered, and may be used.
    pub(super) fn is_open(&self) -> Result<bool, MailError> {
        match &self.state {
            Way::Asked => Ok(false),
            Way::Open(_) => Ok(true),
            Way::Over(why) => Err(why.clone()),
        }
    }

    pub(super) fn has_place(&self, kind: Kind) -> bool {
        self.free[kind as usize] > 0
    }

    /// How many messages may be unread there.
    pub(super) fn unread(&self) -> u32 {
        self.free.iter().map(|free| self.places - free).sum()
    }

    /// Takes a place; there is one.
    pub(super) fn take_place(&mut self, kind: Kind) {
        self.free[kind as usize] -= 1;
    }

    /// Places are free again: never more than there are, whatever is told.
    pub(super) fn give_places(&mut self, kind: Kind, count: u32) {
        let free = &mut self.free[kind as usize];
        *free = free.saturating_add(count).min(self.places);
        self.waits[kind as usize] = false;
    }

    /// True: the receiver is to be told that somebody waits for a place.
    pub(super) fn waits(&mut self, kind: Kind) -> bool {
        !core::mem::replace(&mut self.waits[kind as usize], true)
    }

    pub(super) fn full(&self, kind: Kind) -> MailError {
        MailError::Full { to: self.to.name.clone(), unread: self.places, kind }
    }
}

impl Incoming {
    pub(super) fn new(to: u32, peer: PeerId, theirs: u32, source: Arc<PortAddress>) -> Self {
        Self { to, peer, theirs, source, sequence: 0, here: [0; 3], untold: [0; 3], waits: [false; 3] }
    }

    /// A message comes: why it may not.
    pub(super) fn comes(&mut self, kind: Kind, sequence: u64, places: u32) -> Result<(), &'static str> {
        if Some(sequence) != self.sequence.checked_add(1) {
            return Err("a message of it is missing");
        }
        let here = self.here[kind as usize] + self.untold[kind as usize];
        if here >= places {
            return Err("it sent more than there is room for");
        }
        self.here[kind as usize] += 1;
        self.sequence = sequence;
        Ok(())
    }

    /// A message is got or dropped. So many places are to be told of now.
    pub(super) fn taken(&mut self, kind: Kind, places: u32) -> Option<u32> {
        let at = kind as usize;
        self.here[at] = self.here[at].saturating_sub(1);
        self.untold[at] += 1;
        (self.waits[at] || self.untold[at] >= places.div_ceil(2)).then(|| self.tell(kind))
    }

    /// The sender waits. So many places are to be told of now.
    pub(super) fn sender_waits(&mut self, kind: Kind) -> Option<u32> {
        self.waits[kind as usize] = true;
        (self.untold[kind as usize] > 0).then(|| self.tell(kind))
    }

    fn tell(&mut self, kind: Kind) -> u32 {
        self.waits[kind as usize] = false;
        core::mem::take(&mut self.untold[kind as usize])
    }
}

#[cfg(test)]
mod tests {
    use madrigal_base::node::{NodeAddress, NodeId};
    use proptest::prelude::*;

    use super::*;

    const DATA: usize = Kind::Data as usize;

    fn ends(places: u32) -> (Outgoing, Incoming) {
        let node = NodeAddress::bare(NodeId::new(1).expect("a number"));
        let address = Arc::new(PortAddress { name: "in".to_owned(), node });
        let mut out = Outgoing::new(1, Arc::clone(&address), PeerId(0));
        assert_eq!(out.is_open(), Ok(false));
        out.opened(9, places);
        (out, Incoming::new(2, PeerId(1), 1, address))
    }

    #[test]
    fn who_sends_what_may_not_come_is_found_out() {
        let (_, mut into) = ends(2);
        assert!(into.comes(Kind::Data, 2, 2).is_err());
        assert_eq!((into.comes(Kind::Data, 1, 2), into.comes(Kind::Data, 2, 2)), (Ok(()), Ok(())));
        assert!(into.comes(Kind::Data, 3, 2).is_err(), "it is full");
        assert_eq!(into.comes(Kind::Urgent, 3, 2), Ok(()), "and the urgent have places of their own");
        assert!(into.comes(Kind::Data, 3, 2).is_err());
    }

    #[test]
    fn places_are_never_more_than_there_are() {
        let (mut out, _) = ends(2);
        out.give_places(Kind::Data, u32::MAX);
        assert_eq!(out.free[DATA], 2);
        out.opened(10, 50);
        assert_eq!(out.places, 2);
    }

    proptest! {
        /// Whatever order things come in: a message is never refused, a sender that waits is told, and no place is lost.
        #[test]
        fn nobody_waits_for_a_place_that_is_free(places in 1u32..6, steps in proptest::collection::vec(0u8..4, 0..400)) {
            let (mut out, mut into) = ends(places);
            let (mut unread, mut told, mut says_it_waits) = (0u32, Vec::new(), false);
            for step in steps {
                match step {
                    0 if out.has_place(Kind::Data) => {
                        out.take_place(Kind::Data);
                        out.sequence += 1;
                        prop_assert_eq!(into.comes(Kind::Data, out.sequence, places), Ok(()));
                        unread += 1;
                    }
                    0 => says_it_waits |= out.waits(Kind::Data),
                    1 if unread > 0 => {
                        unread -= 1;
                        told.extend(into.taken(Kind::Data, places));
                    }
                    2 if says_it_waits => {
                        says_it_waits = false;
                        told.extend(into.sender_waits(Kind::Data));
                    }
                    _ => told.drain(..).for_each(|count| out.give_places(Kind::Data, count)),
                }
                let all = out.free[DATA] + unread + into.untold[DATA] + told.iter().sum::<u32>();
                prop_assert_eq!(all, places);
                let is_known = into.waits[DATA] && !says_it_waits;
                prop_assert!(!is_known || into.untold[DATA] == 0, "a sender waits, and is not told");
            }
        }
    }
}
