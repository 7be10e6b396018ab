//! What the ports of a process know of each other's connections. No I/O: the hub has the endpoint, and the lock.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::elements::Order;
use super::error::PortError;
use super::kinds::PortType;
use super::wire::LEAVES;
use crate::endpoint::{PeerId, Seen};
use crate::memory::Block;

/// What is found of a port.
pub(super) enum Found {
    Message(Arrived),
    /// No message, but calls, or something that comes.
    Calls,
    Nothing,
}

/// The most connections of a receive port, and changes that it remembers.
const MOST_CONNECTIONS: usize = 1 << 16;
/// See [`MOST_CONNECTIONS`].
const MOST_CHANGES: usize = 1 << 16;

/// What the ports of a process know of each other's connections, guarded by the lock of the hub.
#[derive(Default)]
pub(super) struct State {
    pub(super) ports: BTreeMap<u32, Port>,
    pub(super) last_port: u32,
    pub(super) last_connection: u32,
    pub(super) last_attempt: u32,
    /// Connects that wait for their answers, and the answers.
    pub(super) attempts: HashMap<u32, (PeerId, Option<Answer>)>,
    /// Connections of send ports, and whether the receivers have closed them.
    pub(super) outgoing: HashMap<(PeerId, u32), bool>,
    pub(super) looked: u64,
}

/// A connection's number at the receiver, and its port's; or why there is none.
pub(super) type Answer = Result<(u32, u32), String>;

/// Reads a message of a port when it comes.
pub(super) type Upcall = Box<dyn FnMut(Arrived) + Send>;
/// Takes a message that nobody reads, with its arrays.
pub(super) type ThrowAway = Arc<dyn Fn(Arrived) + Send + Sync>;

/// A receive port.
pub(super) struct Port {
    /// `None`: it is closed, and waits for its senders to leave.
    pub(super) name: Option<String>,
    kind: PortType,
    pub(super) is_enabled: bool,
    /// A message of it is being read.
    pub(super) is_busy: bool,
    /// One whose head comes by rendezvous. The port stays until it is here, for its memory is lent.
    pub(super) coming: Option<Coming>,
    pub(super) connections: BTreeMap<u32, Incoming>,
    pub(super) changes: VecDeque<Change>,
    pub(super) upcall: Option<Upcall>,
    /// It has one, which may be running.
    pub(super) has_upcall: bool,
    pub(super) throw_away: ThrowAway,
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

/// A message whose head is on its way.
pub(super) struct Coming {
    pub(super) connection: u32,
    pub(super) from: Incoming,
    pub(super) head: Block,
    pub(super) token: u64,
}

/// A message that came: its head, and where its arrays come from.
pub(super) struct Arrived {
    pub(super) connection: u32,
    pub(super) from: Incoming,
    pub(super) head: Vec<u8>,
}

impl State {
    /// Adds a receive port, which nobody can connect to yet: its number, which `throw_away` is made with.
    pub(super) fn add(
        &mut self,
        name: &str,
        kind: &PortType,
        throw_away: impl FnOnce(u32) -> ThrowAway,
    ) -> Result<u32, PortError> {
        if self.ports.values().any(|port| port.name.as_deref() == Some(name)) {
            return Err(PortError::InUse(name.to_owned()));
        }
        self.last_port += 1;
        let port = Port {
            name: Some(name.to_owned()),
            kind: kind.clone(),
            is_enabled: false,
            is_busy: false,
            coming: None,
            connections: BTreeMap::new(),
            changes: VecDeque::new(),
            upcall: None,
            has_upcall: false,
            throw_away: throw_away(self.last_port),
        };
        self.ports.insert(self.last_port, port);
        Ok(self.last_port)
    }

    /// Gives a send port its connection, or says why not. `by`: whether what it sends comes by a stack.
    pub(super) fn accept(&mut self, (to, kind): (&str, &str), from: Incoming, by: impl FnOnce(&str) -> bool) -> Answer {
        let named = self.ports.iter_mut().find(|(_, port)| port.name.as_deref() == Some(to));
        let (number, port) = named.ok_or_else(|| format!("there is no receive port `{}`", to.escape_debug()))?;
        if !port.is_enabled {
            return Err("the receive port takes no connections now".to_owned());
        }
        let theirs: PortType = kind.parse().map_err(|_| "a type of ports that is none".to_owned())?;
        if let Some(difference) = theirs.difference(&port.kind) {
            return Err(difference);
        }
        if let Some(stack) = port.kind.stack().filter(|stack| !by(stack)) {
            return Err(format!("the send port does not come by stack={stack}"));
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
    pub(super) fn counted(&mut self, port: u32, seen: &Seen) -> Option<(u32, Incoming)> {
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
    /// Whether nobody reads from it but the hub.
    pub(super) fn is_tended(&self) -> bool {
        self.name.is_none() || self.upcall.is_some()
    }

    /// A connection is lost.
    pub(super) fn lose(&mut self, connection: u32, why: &str) -> Option<Incoming> {
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
