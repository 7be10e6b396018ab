//! Which message goes into which posted receive: a machine without ports, memory or time.
//!
//! Messages of one peer are matched in the order they came, receives in the order they were posted. A receive waits in the list of its
//! peer, or in the list of those for any peer. An unexpected message waits in the list of its peer and in the list of all. So the usual
//! search checks the head of one list, whatever the number of peers.

use core::mem;

const NONE: u32 = u32::MAX;

/// A double-linked list through an [`Arena`].
#[derive(Clone, Copy)]
struct Chain {
    head: u32,
    tail: u32,
}

impl Chain {
    const EMPTY: Self = Self { head: NONE, tail: NONE };
}

/// Slots with two sets of links each.
struct Arena<T> {
    slots: Vec<Slot<T>>,
    free: u32,
    len: usize,
}

struct Slot<T> {
    links: [(u32, u32); 2],
    order: u64,
    from: Option<u32>,
    tag: u64,
    ignore: u64,
    /// Whether it is in its lists.
    listed: bool,
    value: Option<T>,
}

impl<T> Arena<T> {
    const fn new() -> Self {
        Self { slots: Vec::new(), free: NONE, len: 0 }
    }

    fn add(&mut self, slot: Slot<T>) -> u32 {
        self.len += 1;
        if self.free == NONE {
            self.slots.push(slot);
            return self.slots.len() as u32 - 1;
        }
        let at = self.free;
        let old = mem::replace(&mut self.slots[at as usize], slot);
        self.free = old.links[0].1;
        at
    }

    fn remove(&mut self, at: u32) -> Option<T> {
        let free = self.free;
        let slot = self.slots.get_mut(at as usize)?;
        let value = slot.value.take()?;
        slot.links[0].1 = free;
        slot.listed = false;
        self.free = at;
        self.len -= 1;
        Some(value)
    }

    fn push(&mut self, chain: &mut Chain, which: usize, at: u32) {
        self.slots[at as usize].links[which] = (chain.tail, NONE);
        if chain.tail == NONE {
            chain.head = at;
        } else {
            self.slots[chain.tail as usize].links[which].1 = at;
        }
        chain.tail = at;
    }

    fn unlink(&mut self, chain: &mut Chain, which: usize, at: u32) {
        let (before, after) = self.slots[at as usize].links[which];
        if before == NONE {
            chain.head = after;
        } else {
            self.slots[before as usize].links[which].1 = after;
        }
        if after == NONE {
            chain.tail = before;
        } else {
            self.slots[after as usize].links[which].0 = before;
        }
    }

    /// The first of a list that fits.
    #[inline]
    fn find(&self, chain: Chain, which: usize, fits: impl Fn(&Slot<T>) -> bool) -> Option<u32> {
        let mut at = chain.head;
        while at != NONE {
            let slot = &self.slots[at as usize];
            if fits(slot) {
                return Some(at);
            }
            at = slot.links[which].1;
        }
        None
    }
}

/// What waits for one peer: receives, and messages.
#[derive(Clone, Copy)]
struct Lists {
    receives: Chain,
    messages: Chain,
}

/// Posted receives of type `R`, messages of type `M`.
pub(crate) struct Matching<R, M> {
    receives: Arena<R>,
    messages: Arena<M>,
    any: Chain,
    all: Chain,
    peers: Vec<Lists>,
    order: u64,
}

/// A message as the matching knows it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Waiting<'a, M> {
    pub(crate) from: u32,
    pub(crate) tag: u64,
    pub(crate) message: &'a M,
}

impl<R, M> Default for Matching<R, M> {
    fn default() -> Self {
        Self {
            receives: Arena::new(),
            messages: Arena::new(),
            any: Chain::EMPTY,
            all: Chain::EMPTY,
            peers: Vec::new(),
            order: 0,
        }
    }
}

impl<R, M> Matching<R, M> {
    fn lists(&mut self, peer: u32) -> &mut Lists {
        let at = peer as usize;
        if at >= self.peers.len() {
            self.peers.resize(at + 1, Lists { receives: Chain::EMPTY, messages: Chain::EMPTY });
        }
        &mut self.peers[at]
    }

    /// The receive a message goes into. It stays posted until it is removed.
    #[inline]
    pub(crate) fn wanted(&self, from: u32, tag: u64) -> Option<u32> {
        let fits = |slot: &Slot<R>| (slot.tag ^ tag) & !slot.ignore == 0;
        let own = self.peers.get(from as usize).and_then(|lists| self.receives.find(lists.receives, 0, fits));
        let any = self.receives.find(self.any, 0, fits);
        match (own, any) {
            (Some(own), Some(any)) => {
                let order = |at: u32| self.receives.slots[at as usize].order;
                Some(if order(own) < order(any) { own } else { any })
            }
            (own, any) => own.or(any),
        }
    }

    /// Posts a receive that found no message.
    #[inline]
    pub(crate) fn post(&mut self, from: Option<u32>, tag: u64, ignore: u64, value: R) -> u32 {
        self.order += 1;
        let links = [(NONE, NONE); 2];
        let slot = Slot { links, order: self.order, from, tag, ignore, listed: true, value: Some(value) };
        let at = self.receives.add(slot);
        match from {
            None => self.receives.push(&mut self.any, 0, at),
            Some(peer) => {
                let mut chain = self.lists(peer).receives;
                self.receives.push(&mut chain, 0, at);
                self.lists(peer).receives = chain;
            }
        }
        at
    }

    /// A posted receive.
    pub(crate) fn receive(&mut self, at: u32) -> Option<&mut R> {
        self.receives.slots.get_mut(at as usize)?.value.as_mut()
    }

    /// Takes a posted receive out.
    #[inline]
    pub(crate) fn take_receive(&mut self, at: u32) -> Option<R> {
        let slot = self.receives.slots.get(at as usize).filter(|slot| slot.listed)?;
        match slot.from {
            None => self.receives.unlink(&mut self.any, 0, at),
            Some(peer) => {
                let mut chain = self.lists(peer).receives;
                self.receives.unlink(&mut chain, 0, at);
                self.lists(peer).receives = chain;
            }
        }
        self.receives.remove(at)
    }

    /// The first posted receive, in no particular order, that is meant; of that peer only, if one is given.
    pub(crate) fn posted(&self, from: Option<u32>, meant: impl Fn(&R) -> bool) -> Option<u32> {
        let found = self.receives.slots.iter().position(|slot| {
            slot.listed && (from.is_none() || slot.from == from) && slot.value.as_ref().is_some_and(&meant)
        });
        found.map(|at| at as u32)
    }

    /// The peers that receives are posted for; `None`: any.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = Option<u32>> {
        self.receives.slots.iter().filter(|slot| slot.listed).map(|slot| slot.from)
    }

    /// Whether there is no unexpected message.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.len == 0
    }

    /// The message a receive takes.
    #[inline]
    pub(crate) fn waiting(&self, from: Option<u32>, tag: u64, ignore: u64) -> Option<u32> {
        if self.messages.len == 0 {
            return None;
        }
        let fits = |slot: &Slot<M>| (slot.tag ^ tag) & !ignore == 0;
        match from {
            None => self.messages.find(self.all, 1, fits),
            Some(peer) => self.messages.find(self.peers.get(peer as usize)?.messages, 0, fits),
        }
    }

    /// Keeps a message that found no receive.
    pub(crate) fn keep(&mut self, from: u32, tag: u64, value: M) -> u32 {
        let links = [(NONE, NONE); 2];
        let slot = Slot { links, order: 0, from: Some(from), tag, ignore: 0, listed: true, value: Some(value) };
        let at = self.messages.add(slot);
        let mut chain = self.lists(from).messages;
        self.messages.push(&mut chain, 0, at);
        self.lists(from).messages = chain;
        self.messages.push(&mut self.all, 1, at);
        at
    }

    /// An unexpected message.
    pub(crate) fn message(&self, at: u32) -> Option<Waiting<'_, M>> {
        let slot = self.messages.slots.get(at as usize)?;
        Some(Waiting { from: slot.from?, tag: slot.tag, message: slot.value.as_ref()? })
    }

    /// All unexpected messages, claimed ones too.
    pub(crate) fn messages(&self) -> impl Iterator<Item = Waiting<'_, M>> {
        (0..self.messages.slots.len() as u32).filter_map(|at| self.message(at))
    }

    /// Takes a message out of the lists, so that no receive finds it; it is still there. False: it was, or there is none.
    pub(crate) fn claim(&mut self, at: u32) -> bool {
        let Some(slot) = self.messages.slots.get_mut(at as usize).filter(|slot| slot.listed) else { return false };
        slot.listed = false;
        let from = slot.from.unwrap_or_default();
        let mut chain = self.lists(from).messages;
        self.messages.unlink(&mut chain, 0, at);
        self.lists(from).messages = chain;
        self.messages.unlink(&mut self.all, 1, at);
        true
    }

    /// Takes a message out for good: its peer, its tag, and what was kept. `claimed`: only if it was claimed before.
    pub(crate) fn take_message(&mut self, at: u32, claimed: bool) -> Option<(u32, u64, M)> {
        let slot = self.messages.slots.get(at as usize)?;
        if claimed == slot.listed {
            return None;
        }
        let (from, tag) = (slot.from?, slot.tag);
        self.claim(at);
        Some((from, tag, self.messages.remove(at)?))
    }
}

#[cfg(test)]
#[path = "matching_tests.rs"]
mod tests;
