//! The ports of a process, the calls between processes, and the messages nobody wants any more.

use core::any::Any;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard};

use madrigal_sys::time;

use super::address::PortAddress;
use super::elements::Order;
use super::error::PortError;
use super::kinds::PortType;
use super::state::{Answer, Arrived, Found, Incoming, Port, State, Upcall};
use super::wire::{Call, LEAVES, message_tag};
use crate::endpoint::{Completion, Kind, PeerId, PostError, Send, Wanted};
use crate::filing::{Filing, lock};
use crate::memory::lend;

/// How often a waiting thread looks whether a peer has gone.
const LOOK_NS: u64 = 100_000_000;
/// Calls, and messages of a port that is tended, that one pass handles: who waits has a deadline.
const MOST_AT_ONCE: usize = 64;
/// What may wait for a peer before connections that it gives are not left any more.
const MOST_OWED: usize = 4096;
/// How long the last words may take to leave.
const LEAVE_NS: u64 = 5_000_000_000;

/// What the ports of a process share.
pub(super) struct Hub {
    pub(super) filing: Filing,
    /// Of the numbers that are sent.
    pub(super) order: Order,
    /// How many ports have an upcall, or are closed and wait for their senders to leave.
    tended: AtomicUsize,
    /// How many connections of send ports were closed by their receivers.
    closed: AtomicUsize,
    /// Nobody waits for a message or an answer any more.
    is_shut: AtomicBool,
    state: Mutex<State>,
    /// What there was no room for, in order.
    owed: Mutex<VecDeque<Owed>>,
    /// What an upcall panicked with.
    panicked: Mutex<Option<Box<dyn Any + std::marker::Send>>>,
}

/// A short message to be sent when there is room: nobody waits for a peer that takes nothing.
struct Owed {
    to: PeerId,
    tag: Option<u64>,
    data: Option<u64>,
    bytes: Vec<u8>,
}

impl Hub {
    pub(super) fn new(filing: Filing, order: Order) -> Self {
        let (tended, closed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (state, owed, panicked) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { filing, order, tended, closed, is_shut: AtomicBool::new(false), state, owed, panicked }
    }

    /// Threads that wait for messages or answers return.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::Release);
    }

    pub(super) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Acquire)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Handles calls, upcalls, and what closed ports are still sent; makes progress where there are no calls. Returns how much there was.
    /// Never unwinds: memory may be lent meanwhile ([`Hub::raise`]).
    pub(super) fn handle(&self) -> usize {
        let mut count = self.handle_calls();
        if count == 0 {
            self.filing.endpoint().worker().progress();
            count = self.handle_calls();
        }
        self.pay();
        if self.tends() {
            let state = self.lock();
            let tended: Vec<u32> =
                state.ports.iter().filter(|(_, port)| port.is_tended()).map(|(&number, _)| number).collect();
            drop(state);
            count += tended.into_iter().map(|number| self.tend(number)).sum::<usize>();
        }
        count
    }

    /// Whether there are ports that nobody reads from but the hub.
    pub(super) fn tends(&self) -> bool {
        self.tended.load(Ordering::Relaxed) > 0
    }

    /// Handles calls that are here, without progress.
    pub(super) fn handle_calls(&self) -> usize {
        let mut count = 0;
        while count < MOST_AT_ONCE
            && let Some((from, body)) = self.filing.endpoint().plain_here()
        {
            count += 1;
            match body {
                // What is no call is nobody's.
                Ok(bytes) => Call::read(&bytes).map_or((), |call| self.handle_call(from, call)),
                // No call is so long.
                Err((_, claim)) => drop(self.filing.endpoint().discard(claim)),
            }
        }
        count
    }

    /// Nothing was found: makes progress, lets others run, and now and then looks whether a peer has gone.
    pub(super) fn idle(&self) {
        self.filing.turn();
        self.look_for_the_gone();
    }

    /// Takes the messages of a port that nobody reads from: an upcall does, or they are thrown away. One thread at a time has the upcall; one
    /// that panics is not called again.
    fn tend(&self, number: u32) -> usize {
        let mut state = self.lock();
        let Some(port) = state.ports.get_mut(&number) else { return 0 };
        let (is_closed, upcall, throw_away) = (port.name.is_none(), port.upcall.take(), Arc::clone(&port.throw_away));
        drop(state);
        let (count, upcall) = match upcall {
            Some(upcall) => self.call_up(number, upcall),
            None if is_closed => (self.each(number, &mut |arrived| throw_away(arrived)), None),
            None => return 0,
        };
        let mut state = self.lock();
        match state.ports.get_mut(&number) {
            // A new one may have been set meanwhile.
            Some(port) if port.name.is_some() && port.upcall.is_none() => port.upcall = upcall,
            Some(port) if port.name.is_none() && port.connections.is_empty() && port.coming.is_none() => {
                state.ports.remove(&number);
                self.tended.fetch_sub(1, Ordering::Relaxed);
                drop(state);
                self.drop_upcall(upcall);
            }
            _ => {
                drop(state);
                self.drop_upcall(upcall);
            }
        }
        count
    }

    /// Gives messages to an upcall: how many, and the upcall if it is to be called again.
    fn call_up(&self, number: u32, mut upcall: Upcall) -> (usize, Option<Upcall>) {
        let ran = catch_unwind(AssertUnwindSafe(|| self.each(number, &mut upcall)));
        match ran {
            Ok(count) => (count, Some(upcall)),
            Err(payload) => {
                *lock(&self.panicked) = Some(payload);
                self.drop_upcall(Some(upcall));
                (1, None)
            }
        }
    }

    /// Takes messages of a port that are here, some of them at a time.
    fn each(&self, number: u32, read: &mut dyn FnMut(Arrived)) -> usize {
        let mut count = 0;
        while count < MOST_AT_ONCE
            && let Ok(Found::Message(arrived)) = self.take(number)
        {
            count += 1;
            read(arrived);
        }
        count
    }

    /// What a program's function has captured is dropped without a lock, for it may have ports of its own; and what that panics with is kept.
    fn drop_upcall(&self, upcall: Option<Upcall>) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(upcall))) {
            *lock(&self.panicked) = Some(payload);
        }
    }

    /// Goes on with the panic of an upcall, in a call that has lent nothing any more.
    pub(super) fn raise(&self) {
        let payload = lock(&self.panicked).take();
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    fn handle_call(&self, from: PeerId, call: Call) {
        match call {
            Call::Connect { attempt, order, to, from: name, kind } => {
                let incoming = Incoming { peer: from, from: name.into(), order, received: 0 };
                let by = |stack: &str| self.filing.endpoint().comes_by(from, stack);
                let answer = self.lock().accept((&to, &kind), incoming, by);
                self.answer(from, attempt, answer);
            }
            Call::Accept { attempt, connection, port } => self.answered(from, attempt, Ok((connection, port))),
            Call::Refuse { attempt, why } => self.answered(from, attempt, Err(why.escape_debug().to_string())),
            Call::Closed { connection } => {
                if let Some(closed) = self.lock().outgoing.get_mut(&(from, connection)) {
                    *closed = true;
                    self.closed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// A peer that takes no answers gets none: its connect comes to its deadline.
    fn answer(&self, to: PeerId, attempt: u32, answer: Answer) {
        let call = match &answer {
            Ok((connection, port)) => Call::Accept { attempt, connection: *connection, port: *port },
            Err(why) => Call::Refuse { attempt, why: why.clone() },
        };
        if self.post_once(to, (None, None), &call.bytes()).is_err()
            && let Ok((connection, port)) = answer
            && let Some(port) = self.lock().ports.get_mut(&port)
        {
            port.lose(connection, "it took no answer");
        }
    }

    /// An answer counts where it comes from the process that was asked. Nobody waits any more: the connection is given back.
    fn answered(&self, from: PeerId, attempt: u32, answer: Answer) {
        let mut state = self.lock();
        if let Some((asked, place)) = state.attempts.get_mut(&attempt)
            && *asked == from
            && place.is_none()
        {
            *place = Some(answer.clone());
            if let Ok((connection, _)) = answer {
                // At once: the next call may say that it is closed.
                state.outgoing.insert((from, connection), false);
            }
            return;
        }
        drop(state);
        if let Ok((connection, port)) = answer
            // A peer that takes nothing, and answers what nobody asked, is owed no more.
            && lock(&self.owed).iter().filter(|owed| owed.to == from).count() < MOST_OWED
        {
            self.leave(from, connection, port);
        }
    }

    /// Asks for a connection, and waits for the answer.
    pub(super) fn connect(
        &self,
        to: &PortAddress,
        from: &str,
        kind: &PortType,
        deadline: Option<u64>,
    ) -> Result<(PeerId, u32, u32), PortError> {
        let peer = self.filing.endpoint().peer(&to.node);
        let mut state = self.lock();
        state.last_attempt = state.last_attempt.wrapping_add(1);
        let attempt = state.last_attempt;
        state.attempts.insert(attempt, (peer, None));
        drop(state);
        let (to, from, kind) = (to.name.clone(), from.to_owned(), kind.to_string());
        let call = Call::Connect { attempt, order: self.order, to: to.clone(), from, kind }.bytes();
        let answer = self.wait_for_answer(peer, (attempt, &call), &to, deadline);
        let late = self.lock().attempts.remove(&attempt);
        if answer.is_err()
            && let Some((_, Some(Ok((connection, port))))) = late
        {
            // Another thread has filed it after the last look.
            self.leave(peer, connection, port);
        }
        match answer? {
            Ok((connection, port)) => Ok((peer, connection, port)),
            Err(why) => Err(PortError::Refused { to, why }),
        }
    }

    /// Asks as soon as there is room, and waits for the answer.
    fn wait_for_answer(
        &self,
        peer: PeerId,
        (attempt, call): (u32, &[u8]),
        to: &str,
        deadline: Option<u64>,
    ) -> Result<Answer, PortError> {
        let mut is_asked = false;
        loop {
            is_asked = is_asked || self.post_once(peer, (None, None), call).is_ok();
            self.handle();
            if let Some((_, Some(answer))) = self.lock().attempts.get(&attempt) {
                return Ok(answer.clone());
            }
            if self.filing.endpoint().why(peer).is_some() {
                return Err(self.lost(peer, to));
            }
            if self.is_shut() {
                return Err(PortError::Closed);
            }
            if deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
                return Err(PortError::TimedOut(to.to_owned()));
            }
            self.idle();
        }
    }

    /// Sends a short message, whose bytes are free at return, if there is room.
    fn post_once(&self, to: PeerId, (tag, data): (Option<u64>, Option<u64>), bytes: &[u8]) -> Result<(), PostError> {
        let parts = [lend(bytes)];
        let send = Send { to, tag, data, parts: &parts, token: 0, inject: true, delivery: false };
        self.filing.endpoint().send(&send).map(drop)
    }

    /// Sends a short message now, or when there is room. A peer that is gone need not have it.
    fn post_or_owe(&self, to: PeerId, (tag, data): (Option<u64>, Option<u64>), bytes: Vec<u8>) {
        let mut owed = lock(&self.owed);
        let waits = owed.iter().any(|before| before.to == to);
        if waits || self.post_once(to, (tag, data), &bytes) == Err(PostError::Again) {
            owed.push_back(Owed { to, tag, data, bytes });
        }
    }

    /// Sends what was owed and there is room for; of one peer in order.
    pub(super) fn pay(&self) {
        let mut owed = lock(&self.owed);
        let mut full: Vec<PeerId> = Vec::new();
        owed.retain(|one| {
            let posted = if full.contains(&one.to) {
                Err(PostError::Again)
            } else {
                self.post_once(one.to, (one.tag, one.data), &one.bytes)
            };
            let waits = posted == Err(PostError::Again);
            full.extend(waits.then_some(one.to));
            waits
        });
    }

    /// Sends all that there was no room for; false: not before `deadline` (nanoseconds of the monotonic clock).
    pub(super) fn pay_all(&self, deadline: Option<u64>) -> bool {
        loop {
            self.pay();
            if lock(&self.owed).is_empty() {
                return true;
            }
            if deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
                return false;
            }
            self.filing.turn();
        }
    }

    fn call_closed(&self, to: PeerId, connection: u32) {
        self.post_or_owe(to, (None, None), Call::Closed { connection }.bytes());
    }

    /// A send port leaves: its last message says so, behind all others.
    pub(super) fn leave(&self, peer: PeerId, connection: u32, port: u32) {
        self.lock().outgoing.remove(&(peer, connection));
        let data = u64::from(connection) | LEAVES;
        self.post_or_owe(peer, (Some(message_tag(port)), Some(data)), Vec::new());
    }

    /// How many connections of send ports were closed by their receivers by now.
    pub(super) fn closed(&self) -> usize {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether a receiver has closed a connection of ours.
    pub(super) fn is_closed(&self, peer: PeerId, connection: u32) -> bool {
        self.lock().outgoing.get(&(peer, connection)).is_some_and(|closed| *closed)
    }

    /// Waits for an operation, and does what is due meanwhile. It is complete when this returns.
    pub(super) fn wait(&self, kind: Kind, token: u64) -> Completion {
        loop {
            if let Some(done) = self.filing.take(kind, token) {
                return done;
            }
            if self.handle() == 0 {
                self.idle();
            }
        }
    }

    /// A connection of a receive port is over before its sender left.
    pub(super) fn end(&self, port: u32, connection: u32, why: &str) {
        let ended = self.lock().ports.get_mut(&port).and_then(|port| port.lose(connection, why));
        if let Some(incoming) = ended {
            self.call_closed(incoming.peer, connection);
        }
    }

    /// From now on an upcall reads the messages of a port.
    pub(super) fn set_upcall(&self, number: u32, upcall: Upcall) {
        let mut state = self.lock();
        let Some(port) = state.ports.get_mut(&number) else { return };
        let before = port.upcall.replace(upcall);
        if !core::mem::replace(&mut port.has_upcall, true) {
            self.tended.fetch_add(1, Ordering::Relaxed);
        }
        drop(state);
        self.drop_upcall(before);
    }

    /// A receive port takes nothing more: its senders are told, and what they have sent is thrown away until they have left.
    pub(super) fn close(&self, number: u32) {
        let mut state = self.lock();
        let Some(port) = state.ports.get_mut(&number).filter(|port| port.name.is_some()) else { return };
        port.name = None;
        let upcall = port.upcall.take();
        if !port.has_upcall {
            self.tended.fetch_add(1, Ordering::Relaxed);
        }
        let senders: Vec<_> = port.connections.iter().map(|(connection, from)| (*connection, from.peer)).collect();
        drop(state);
        self.drop_upcall(upcall);
        for (connection, peer) in senders {
            self.call_closed(peer, connection);
        }
        self.tend(number);
    }

    /// Connections whose senders' processes have gone are over.
    pub(super) fn look_for_the_gone(&self) {
        let (mut state, now) = (self.lock(), time::now_ns());
        if now < state.looked + LOOK_NS {
            return;
        }
        state.looked = now;
        let all = state.ports.iter().flat_map(|(number, port)| port.connections.iter().map(|all| (*number, all)));
        let all: Vec<_> = all.map(|(number, (connection, from))| (number, *connection, from.peer)).collect();
        drop(state);
        for (number, connection, peer) in all {
            let Some(why) = self.filing.endpoint().why(peer) else { continue };
            // What had come before is read first.
            let is_coming = |port: &Port| port.coming.as_ref().is_some_and(|coming| coming.connection == connection);
            if self.lock().ports.get(&number).is_some_and(is_coming) {
                continue;
            }
            let here = Wanted { from: Some(peer), tag: Some(message_tag(number)), ignore: 0 };
            if self.filing.endpoint().peek(&here).is_none()
                && let Some(port) = self.lock().ports.get_mut(&number)
            {
                port.lose(connection, &why.to_string());
            }
        }
    }

    pub(super) fn lost(&self, peer: PeerId, who: &str) -> PortError {
        let why = self.filing.endpoint().why(peer);
        let why = why.map_or_else(|| "it has gone".to_owned(), |why| why.to_string());
        PortError::Lost { who: who.to_owned(), why }
    }
}

impl Drop for Hub {
    /// Peers learn that ports are left, behind all that they were sent.
    fn drop(&mut self) {
        self.pay_all(Some(time::now_ns() + LEAVE_NS));
    }
}
