//! The ports of a process, the calls between processes, and the messages nobody wants any more.

use core::fmt;
use core::str::FromStr;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use madrigal_base::node::NodeAddress;
use madrigal_sys::time;

use super::elements::Order;
use super::kinds::PortType;
use super::wire::{Call, LEAVES, message_tag};
use crate::endpoint::{Claim, Completion, Kind, PeerId, PostError, Receive, Seen, Send, Status, Taken, Wanted};
use crate::filing::{Filing, lock};
use crate::memory::{lend, lend_mut};

/// The longest name of a port, in bytes.
const LONGEST_NAME: usize = 256;
/// The longest head of a message.
const LONGEST_HEAD: usize = 64 << 20;
/// The most connections of a receive port, and changes that it remembers.
const MOST_CONNECTIONS: usize = 1 << 16;
/// See [`MOST_CONNECTIONS`].
const MOST_CHANGES: usize = 1 << 16;
/// How often a waiting thread looks whether a peer has gone.
const LOOK_NS: u64 = 100_000_000;

/// Where a receive port is: its name, and the process it belongs to. As text, `NAME@` and the process's address in hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortAddress {
    /// Its name.
    pub name: String,
    /// Its process.
    pub node: NodeAddress,
}

/// Why a text is no [`PortAddress`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no address of a port: NAME@HEX, as a receive port has it")]
pub struct AddressError(String);

impl fmt::Display for PortAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@", self.name)?;
        self.node.encode(NodeAddress::LONG).iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for PortAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let read = || {
            let (name, digits) = text.rsplit_once('@')?;
            let pairs = digits.as_bytes().chunks(2);
            let byte = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok();
            let bytes: Vec<u8> = pairs.map(byte).collect::<Option<_>>()?;
            Some(Self { name: is_name(name).then(|| name.to_owned())?, node: NodeAddress::decode(&bytes).ok()? })
        };
        read().ok_or_else(|| AddressError(text.to_owned()))
    }
}

pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.chars().any(char::is_control)
}

/// Why something was not done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// A name that is none.
    #[error("`{0}` is no name of a port: one to {LONGEST_NAME} bytes without control characters")]
    Name(String),
    /// There is a receive port of that name.
    #[error("this process has a receive port `{0}` already")]
    InUse(String),
    /// The other end has no such connection, and says why.
    #[error("no connection to `{to}`: {why}")]
    Refused {
        /// The receive port's name.
        to: String,
        /// Its process's words.
        why: String,
    },
    /// The time passed.
    #[error("no answer of `{0}` in the time given")]
    TimedOut(String),
    /// The other process cannot be reached, or is gone.
    #[error("the process of `{who}` is lost: {why}")]
    Lost {
        /// The port there.
        who: String,
        /// What is known of it.
        why: String,
    },
    /// The type lets a send port have one connection.
    #[error("a send port of connection={0} has one connection")]
    One(String),
    /// There is no such connection.
    #[error("no connection to `{0}`")]
    NotConnected(String),
    /// A message of the port is being read.
    #[error("a message of this port is being read: finish it first")]
    Busy,
    /// What is read is not what comes next.
    #[error("{asked} is read, and {here} is next")]
    Mismatch {
        /// What was asked for.
        asked: String,
        /// What is there.
        here: String,
    },
    /// The other end sent what is no message.
    #[error("`{0}` sent what is no message; the connection is over")]
    Corrupt(String),
}

/// What the ports of a process share.
pub(super) struct Hub {
    pub(super) filing: Filing,
    /// Of the numbers that are sent.
    pub(super) order: Order,
    /// How many ports have an upcall, or are closed and wait for their senders to leave.
    tended: AtomicUsize,
    /// How many connections of send ports were closed by their receivers.
    closed: AtomicUsize,
    state: Mutex<State>,
}

/// What is guarded. The lock is held for moments.
#[derive(Default)]
pub(super) struct State {
    pub(super) ports: BTreeMap<u32, Port>,
    last_port: u32,
    last_connection: u32,
    last_attempt: u32,
    /// Connects that wait for their answers, and the answers.
    attempts: HashMap<u32, (PeerId, Option<Answer>)>,
    /// Connections of send ports, and whether the receivers have closed them.
    outgoing: HashMap<(PeerId, u32), bool>,
    looked: u64,
}

/// A connection's number at the receiver, and its port's; or why there is none.
type Answer = Result<(u32, u32), String>;

/// Reads messages of a port when they come.
pub(super) type Upcall = Box<dyn FnMut(&Arc<Hub>, u32, Arrived) + std::marker::Send>;

/// A receive port.
pub(super) struct Port {
    /// `None`: it is closed, and waits for its senders to leave.
    name: Option<String>,
    kind: PortType,
    pub(super) is_enabled: bool,
    /// A message of it is being read.
    is_busy: bool,
    pub(super) connections: BTreeMap<u32, Incoming>,
    pub(super) changes: VecDeque<Change>,
    pub(super) upcall: Option<Upcall>,
    /// It has one, which may be running.
    has_upcall: bool,
    /// Takes a message that nobody reads, with its arrays.
    throw_away: fn(&Arc<Hub>, u32, Arrived),
}

/// A connection of a receive port.
#[derive(Clone)]
pub(super) struct Incoming {
    pub(super) peer: PeerId,
    /// The send port's name.
    pub(super) from: Arc<str>,
    pub(super) order: Order,
    /// Messages that were taken.
    pub(super) received: u64,
}

/// What [`Hub::take`] finds.
pub(super) enum Found {
    Message(Arrived),
    /// No message, but calls.
    Calls,
    Nothing,
}

/// What became of a connection of a receive port.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Change {
    /// A send port has connected.
    Connected {
        /// Its name.
        from: String,
    },
    /// It has disconnected, or was closed; everything it had sent was received.
    Left {
        /// Its name.
        from: String,
    },
    /// Its process has gone, or it sent what is no message.
    Lost {
        /// Its name.
        from: String,
        /// Why.
        why: String,
    },
}

/// A message that came: its head, and where its arrays come from.
pub(super) struct Arrived {
    pub(super) connection: u32,
    pub(super) from: Incoming,
    pub(super) head: Vec<u8>,
}

impl Hub {
    pub(super) fn new(filing: Filing, order: Order) -> Self {
        Self { filing, order, tended: AtomicUsize::new(0), closed: AtomicUsize::new(0), state: Mutex::default() }
    }

    /// Adds a receive port, which nobody can connect to yet: its number.
    pub(super) fn add(
        &self,
        name: &str,
        kind: &PortType,
        throw_away: fn(&Arc<Self>, u32, Arrived),
    ) -> Result<u32, PortError> {
        let mut state = self.lock();
        if state.ports.values().any(|port| port.name.as_deref() == Some(name)) {
            return Err(PortError::InUse(name.to_owned()));
        }
        state.last_port += 1;
        let number = state.last_port;
        let port = Port {
            name: Some(name.to_owned()),
            kind: kind.clone(),
            is_enabled: false,
            is_busy: false,
            connections: BTreeMap::new(),
            changes: VecDeque::new(),
            upcall: None,
            has_upcall: false,
            throw_away,
        };
        state.ports.insert(number, port);
        Ok(number)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The address of a receive port here.
    pub(super) fn address(&self, name: &str) -> PortAddress {
        PortAddress { name: name.to_owned(), node: self.filing.endpoint().address() }
    }

    /// Handles calls, upcalls, and what closed ports are still sent; makes progress where there are no calls. Returns how much there was.
    pub(super) fn handle(self: &Arc<Self>) -> usize {
        let mut count = self.handle_calls();
        if count == 0 {
            self.filing.endpoint().worker().progress();
            count = self.handle_calls();
        }
        if self.tends() {
            let state = self.lock();
            let tended = |port: &&Port| port.name.is_none() || port.upcall.is_some();
            let tended: Vec<u32> =
                state.ports.iter().filter(|(_, port)| tended(port)).map(|(&number, _)| number).collect();
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
        while let Some((from, body)) = self.filing.endpoint().plain_here() {
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

    /// Takes the messages of a port that nobody reads from: an upcall does, or they are thrown away. One thread at a time has the upcall.
    fn tend(self: &Arc<Self>, number: u32) -> usize {
        let mut state = self.lock();
        let Some(port) = state.ports.get_mut(&number) else { return 0 };
        let (is_closed, mut upcall, throw_away) = (port.name.is_none(), port.upcall.take(), port.throw_away);
        drop(state);
        if !is_closed && upcall.is_none() {
            return 0;
        }
        let mut count = 0;
        while let Ok(Found::Message(arrived)) = self.take(number) {
            count += 1;
            match &mut upcall {
                Some(upcall) => upcall(self, number, arrived),
                None => throw_away(self, number, arrived),
            }
        }
        let mut state = self.lock();
        match state.ports.get_mut(&number) {
            Some(port) if port.name.is_some() => port.upcall = upcall,
            Some(port) if port.connections.is_empty() => {
                state.ports.remove(&number);
                self.tended.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        count
    }

    fn handle_call(&self, from: PeerId, call: Call) {
        match call {
            Call::Connect { attempt, order, to, from: name, kind } => {
                let answer = match self
                    .lock()
                    .accept((&to, &kind), Incoming { peer: from, from: name.into(), order, received: 0 })
                {
                    Ok((connection, port)) => Call::Accept { attempt, connection, port },
                    Err(why) => Call::Refuse { attempt, why },
                };
                // A sender that is gone needs no answer.
                let _ = self.call(from, &answer);
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

    /// An answer counts where it comes from the process that was asked. Nobody waits any more: the connection is given back.
    fn answered(&self, from: PeerId, attempt: u32, answer: Answer) {
        let mut state = self.lock();
        if let Some((asked, place)) = state.attempts.get_mut(&attempt)
            && *asked == from
        {
            *place = Some(answer);
            return;
        }
        drop(state);
        if let Ok((connection, port)) = answer {
            let _ = self.leave(from, connection, port);
        }
    }

    /// Asks for a connection, and waits for the answer.
    pub(super) fn connect(
        self: &Arc<Self>,
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
        let asked = self.call(peer, &Call::Connect { attempt, order: self.order, to: to.clone(), from, kind });
        let answer = asked.and_then(|()| self.wait_for_answer(peer, attempt, &to, deadline));
        self.lock().attempts.remove(&attempt);
        match answer? {
            Ok((connection, port)) => {
                self.lock().outgoing.insert((peer, connection), false);
                Ok((peer, connection, port))
            }
            Err(why) => Err(PortError::Refused { to, why }),
        }
    }

    fn wait_for_answer(
        self: &Arc<Self>,
        peer: PeerId,
        attempt: u32,
        to: &str,
        deadline: Option<u64>,
    ) -> Result<Answer, PortError> {
        loop {
            self.handle();
            if let Some((_, Some(answer))) = self.lock().attempts.get(&attempt) {
                return Ok(answer.clone());
            }
            if self.filing.endpoint().why(peer).is_some() {
                return Err(self.lost(peer, to));
            }
            if deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
                return Err(PortError::TimedOut(to.to_owned()));
            }
            self.idle();
        }
    }

    fn call(&self, to: PeerId, call: &Call) -> Result<(), PortError> {
        let bytes = call.bytes();
        self.post(to, None, None, &bytes).map_err(|_| self.lost(to, "the other end"))
    }

    /// Sends a short message, whose bytes are free at return.
    pub(super) fn post(&self, to: PeerId, tag: Option<u64>, data: Option<u64>, bytes: &[u8]) -> Result<(), PostError> {
        let parts = [lend(bytes)];
        let send = Send { to, tag, data, parts: &parts, token: 0, inject: true, delivery: false };
        self.filing.post_when_room(to, || self.filing.endpoint().send(&send)).map(drop)
    }

    /// A send port leaves: its last message says so, behind all others.
    pub(super) fn leave(&self, peer: PeerId, connection: u32, port: u32) -> Result<(), PostError> {
        self.lock().outgoing.remove(&(peer, connection));
        self.post(peer, Some(message_tag(port)), Some(u64::from(connection) | LEAVES), &[])
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
    pub(super) fn wait(self: &Arc<Self>, kind: Kind, token: u64) -> Completion {
        loop {
            if let Some(done) = self.filing.take(kind, token) {
                return done;
            }
            if self.handle() == 0 {
                self.idle();
            }
        }
    }

    /// The next message of a receive port that is here, without those that only say that a sender leaves. No other one is taken before
    /// [`Hub::is_read`], for arrays that travel alone come in the order of their messages.
    pub(super) fn take(&self, port: u32) -> Result<Found, PortError> {
        let wanted = Wanted { from: None, tag: Some(message_tag(port)), ignore: 0 };
        loop {
            let mut state = self.lock();
            match state.ports.get(&port) {
                None => return Ok(Found::Nothing),
                Some(taken) if taken.is_busy => return Err(PortError::Busy),
                Some(_) => {}
            }
            let (seen, body) = match self.filing.endpoint().take(&wanted) {
                Taken::Message(seen, body) => (seen, body),
                Taken::PlainOnes => return Ok(Found::Calls),
                Taken::Nothing => return Ok(Found::Nothing),
            };
            let counted = state.counted(port, &seen);
            drop(state);
            match (counted, body) {
                (Some((connection, from)), Ok(head)) => return Ok(Found::Message(Arrived { connection, from, head })),
                (Some((connection, from)), Err((len, claim))) => match self.receive_head(len, claim) {
                    Some(head) => return Ok(Found::Message(Arrived { connection, from, head })),
                    None => {
                        self.is_read(port);
                        self.end(port, connection, "its message is longer than one may be, or was cut short");
                    }
                },
                // Nobody's, or a sender's last one.
                (None, Err((_, claim))) => drop(self.filing.endpoint().discard(claim)),
                (None, Ok(_)) => {}
            }
        }
    }

    /// A message was read, or thrown away.
    pub(super) fn is_read(&self, port: u32) {
        if let Some(port) = self.lock().ports.get_mut(&port) {
            port.is_busy = false;
        }
    }

    fn receive_head(&self, len: usize, claim: Claim) -> Option<Vec<u8>> {
        if len > LONGEST_HEAD {
            let _ = self.filing.endpoint().discard(claim);
            return None;
        }
        let mut head = vec![0; len];
        let token = self.filing.token();
        let parts = [lend_mut(&mut head)];
        let receive = Receive { from: None, tag: None, ignore: 0, parts: &parts, token, multi: None };
        self.filing.endpoint().receive_claimed(claim, &receive).ok()?;
        let done = self.filing.wait(Kind::Received, token);
        (done.status == Status::Ok && done.len == len).then_some(head)
    }

    /// A connection of a receive port is over before its sender left.
    pub(super) fn end(&self, port: u32, connection: u32, why: &str) {
        let ended = self.lock().ports.get_mut(&port).and_then(|port| port.lose(connection, why));
        if let Some(incoming) = ended {
            let _ = self.call(incoming.peer, &Call::Closed { connection });
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
        drop(before);
    }

    /// A receive port takes nothing more: its senders are told, and what they have sent is thrown away until they have left.
    pub(super) fn close(self: &Arc<Self>, number: u32) {
        let mut state = self.lock();
        let Some(port) = state.ports.get_mut(&number) else { return };
        port.name = None;
        let upcall = port.upcall.take();
        if !port.has_upcall {
            self.tended.fetch_add(1, Ordering::Relaxed);
        }
        let senders: Vec<_> = port.connections.iter().map(|(connection, from)| (*connection, from.peer)).collect();
        drop(state);
        // It may have ports of its own.
        drop(upcall);
        for (connection, peer) in senders {
            let _ = self.call(peer, &Call::Closed { connection });
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

impl State {
    /// Gives a send port its connection, or says why not.
    fn accept(&mut self, (to, kind): (&str, &str), from: Incoming) -> Answer {
        let named = self.ports.iter_mut().find(|(_, port)| port.name.as_deref() == Some(to));
        let (number, port) = named.ok_or_else(|| format!("there is no receive port `{}`", to.escape_debug()))?;
        if !port.is_enabled {
            return Err("the receive port takes no connections now".to_owned());
        }
        let theirs: PortType = kind.parse().map_err(|_| "a type of ports that is none".to_owned())?;
        if let Some(difference) = theirs.difference(&port.kind) {
            return Err(difference);
        }
        if !port.kind.shape().from_many && !port.connections.is_empty() {
            return Err("the receive port has its one connection".to_owned());
        }
        if port.connections.len() >= MOST_CONNECTIONS {
            return Err("the receive port has as many connections as it may have".to_owned());
        }
        self.last_connection = self.last_connection.checked_add(1).ok_or("no number is left")?;
        port.note(Change::Connected { from: from.from.to_string() });
        port.connections.insert(self.last_connection, from);
        Ok((self.last_connection, *number))
    }

    /// The connection of a message, which is counted. A sender's last one, or one of nobody, is none.
    fn counted(&mut self, port: u32, seen: &Seen) -> Option<(u32, Incoming)> {
        let data = seen.data?;
        let connection = u32::try_from(data & !LEAVES).ok()?;
        let port = self.ports.get_mut(&port)?;
        let from = port.connections.get_mut(&connection).filter(|from| from.peer == seen.from)?;
        if data & LEAVES != 0 {
            let from = port.connections.remove(&connection)?;
            port.note(Change::Left { from: from.from.to_string() });
            return None;
        }
        from.received += 1;
        let from = from.clone();
        port.is_busy = true;
        Some((connection, from))
    }
}

impl Port {
    /// A connection is lost.
    fn lose(&mut self, connection: u32, why: &str) -> Option<Incoming> {
        let incoming = self.connections.remove(&connection)?;
        self.note(Change::Lost { from: incoming.from.to_string(), why: why.to_owned() });
        Some(incoming)
    }

    /// Where nobody asks, the oldest ones are forgotten.
    fn note(&mut self, change: Change) {
        if self.changes.len() >= MOST_CHANGES {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
    }
}
