//! What the mailboxes of a process share: the endpoint, the lock, and what is due whenever a thread is in a call.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard};

use madrigal_sys::time;

use super::buffer::Buffer;
use super::error::MailError;
use super::state::{Owing, State};
use super::wire::{Call, data_tag};
use crate::endpoint::{PeerId, PostError, Posted, Send};
use crate::filing::{Filing, lock};
use crate::memory::lend;
use crate::ports::{Change, PortAddress};

/// How often a waiting thread looks whether a process has gone.
const LOOK_NS: u64 = 100_000_000;
/// The same of one that always finds something.
const BUSY_LOOK_NS: u64 = 1_000_000_000;
/// Calls that one pass handles: who waits has a deadline.
const MOST_AT_ONCE: usize = 64;
/// Answers to a process's calls that are kept while it takes none; further ones are not given.
const MOST_OWED: usize = 4096;
/// Polls between two reads of the clock.
const CLOCK_POLLS: u32 = 8;
/// How long the last data may take to leave when everything is closed, ...
const LEAVE_NS: u64 = 5_000_000_000;
/// ... and behind them the word that there are no more.
const OVER_NS: u64 = 1_000_000_000;

/// See the module. The endpoint is closed before any memory that it was lent is dropped.
pub(super) struct Hub {
    pub(super) filing: Filing,
    is_shut: AtomicBool,
    state: Mutex<State>,
}

impl Hub {
    pub(super) fn new(filing: Filing, state: State) -> Self {
        Self { filing, is_shut: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Threads that wait return.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::Release);
    }

    pub(super) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Acquire)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The address of a mailbox here.
    pub(super) fn address(&self, name: &str) -> PortAddress {
        PortAddress { name: name.to_owned(), node: self.filing.endpoint().address() }
    }

    /// Does what is due; how much that was.
    pub(super) fn handle(&self) -> usize {
        let mut state = self.lock();
        let mut count = self.take_calls(&mut state);
        if count == 0 {
            self.filing.endpoint().worker().progress();
            count = self.take_calls(&mut state);
        }
        if !(state.fetches.is_empty() && state.sending.is_empty()) {
            self.filing.collect();
            count += self.complete(&mut state);
        }
        if !state.owed.is_empty() {
            self.pay(&mut state);
        }
        if !state.early.is_empty() {
            self.fetch_early(&mut state);
        }
        // What had come before is read first, unless it does not end.
        let (now, pause) = (time::now_ns(), if count == 0 { LOOK_NS } else { BUSY_LOOK_NS });
        if now >= state.looked + pause {
            state.looked = now;
            self.look_for_the_gone(&mut state);
        }
        count
    }

    /// Repeats an attempt until it gives something; `None`: `deadline` (nanoseconds of the monotonic clock) has passed. What is due is done
    /// meanwhile, at least once.
    pub(super) fn until<T>(
        &self,
        deadline: Option<u64>,
        mut attempt: impl FnMut(&mut State) -> Result<Option<T>, MailError>,
    ) -> Result<Option<T>, MailError> {
        let mut polls = 0u32;
        loop {
            if let Some(found) = attempt(&mut self.lock())? {
                return Ok(Some(found));
            }
            if self.is_shut() {
                return Err(MailError::Closed);
            }
            if polls % CLOCK_POLLS == 1 && deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
                return Ok(None);
            }
            polls = polls.wrapping_add(1);
            if self.handle() == 0 && polls > 1 {
                self.filing.endpoint().worker().idle();
            }
        }
    }

    fn take_calls(&self, state: &mut State) -> usize {
        let mut count = 0;
        while count < MOST_AT_ONCE
            && let Some((from, body)) = self.filing.endpoint().plain_here()
        {
            count += 1;
            match body {
                // What is no call is nobody's.
                Ok(bytes) => Call::read(&bytes).map_or((), |call| self.handle_call(state, from, call)),
                // No call is so long.
                Err((_, claim)) => drop(self.filing.endpoint().discard(claim)),
            }
        }
        count
    }

    /// Sends a call if there is room.
    pub(super) fn post(&self, to: PeerId, bytes: &[u8]) -> Result<(), PostError> {
        let parts = [lend(bytes)];
        let send = Send { to, tag: None, data: None, parts: &parts, token: 0, inject: true, delivery: false };
        self.filing.endpoint().send(&send).map(drop)
    }

    /// Sends a call now, or when there is room. A process that is gone need not have it.
    pub(super) fn tell(&self, state: &mut State, to: PeerId, call: &Call) {
        self.owe(state, to, Owing::Call(call.bytes()), usize::MAX);
    }

    /// The same of an answer. False: too many wait for that process, which takes none.
    pub(super) fn answer(&self, state: &mut State, to: PeerId, call: &Call) -> bool {
        self.owe(state, to, Owing::Call(call.bytes()), MOST_OWED)
    }

    /// Sends data to one who fetches them, as [`Hub::answer`].
    pub(super) fn answer_data(&self, state: &mut State, to: PeerId, token: u64, data: Buffer) {
        self.owe(state, to, Owing::Data(token, data), MOST_OWED);
    }

    /// Sends something behind what is owed, unless so many things are by then.
    fn owe(&self, state: &mut State, to: PeerId, what: Owing, most: usize) -> bool {
        let waiting = state.owed.get(&to).map_or(0, VecDeque::len);
        if waiting == 0 && self.send_owed(state, to, &what) != Err(PostError::Again) {
            return true;
        }
        let has_room = waiting < most;
        if has_room {
            state.owed.entry(to).or_default().push_back(what);
        }
        has_room
    }

    /// Sends what was owed and there is room for; of one process in order.
    fn pay(&self, state: &mut State) {
        let mut left = core::mem::take(&mut state.owed);
        left.retain(|to, owed| {
            while let Some(first) = owed.front()
                && self.send_owed(state, *to, first) != Err(PostError::Again)
            {
                owed.pop_front();
            }
            !owed.is_empty()
        });
        state.owed = left;
    }

    fn send_owed(&self, state: &mut State, to: PeerId, owed: &Owing) -> Result<(), PostError> {
        match owed {
            Owing::Call(bytes) => self.post(to, bytes),
            Owing::Data(fetch, data) => {
                let (token, parts) = (self.filing.token(), [lend(data)]);
                let tag = Some(data_tag(*fetch));
                let send = Send { to, tag, data: None, parts: &parts, token, inject: false, delivery: false };
                if self.filing.endpoint().send(&send)? == Posted::Pending {
                    // The memory is lent until that is complete.
                    state.sending.insert(token, data.clone());
                }
                Ok(())
            }
        }
    }

    /// Why a process cannot be reached any more.
    pub(super) fn why(&self, state: &State, peer: PeerId) -> Option<String> {
        if state.over.contains(&peer) {
            return Some("it has closed its mailboxes".to_owned());
        }
        self.filing.endpoint().why(peer).map(|why| why.to_string())
    }

    /// Ends whatever there was with processes that are gone.
    pub(super) fn look_for_the_gone(&self, state: &mut State) {
        let mut peers: HashSet<PeerId> = state.store.parties().into_iter().collect();
        peers.extend(state.outgoing.values().map(|line| line.peer));
        peers.extend(state.incoming.values().map(|line| line.peer));
        peers.extend(state.requests.values().map(|request| request.asked));
        peers.extend(state.stores.iter().map(|store| store.peer));
        for peer in peers {
            if let Some(why) = self.why(state, peer) {
                self.gone(state, peer, &why);
            }
        }
    }

    fn gone(&self, state: &mut State, peer: PeerId, why: &str) {
        for line in state.outgoing.values_mut().filter(|line| line.peer == peer) {
            line.end(MailError::Lost { to: line.to.name.clone(), why: why.to_owned() });
        }
        let lines: Vec<u32> =
            state.incoming.iter().filter(|(_, line)| line.peer == peer).map(|(number, _)| *number).collect();
        for line in lines {
            state.end_incoming(line, |from| Change::Lost { from, why: why.to_owned() });
        }
        for request in state.requests.values_mut().filter(|request| request.asked == peer) {
            request.answer.get_or_insert_with(|| Err(why.to_owned()));
        }
        state.stores.retain(|store| store.peer != peer);
        state.store.gone(peer);
    }

    /// Sends what there was no room for, and data that are fetched.
    fn send_all(&self, until: u64) {
        let is_done = |state: &State| state.sending.is_empty() && state.owed.is_empty();
        while !is_done(&self.lock()) && time::now_ns() < until {
            if self.handle() == 0 {
                self.filing.endpoint().worker().idle();
            }
        }
    }

    /// Everybody who may still want something learns that there is nothing any more.
    fn leave(&self) {
        let mut state = self.lock();
        let mut peers: HashSet<PeerId> = state.store.parties().into_iter().collect();
        peers.extend(state.outgoing.values().map(|line| line.peer));
        peers.extend(state.incoming.values().map(|line| line.peer));
        peers.extend(state.requests.values().map(|request| request.asked));
        peers.extend(state.owed.keys());
        for peer in peers {
            self.tell(&mut state, peer, &Call::Over);
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // Nothing more is kept for others.
        self.lock().store.offer(0);
        self.send_all(time::now_ns() + LEAVE_NS);
        self.leave();
        self.send_all(time::now_ns() + OVER_NS);
    }
}
