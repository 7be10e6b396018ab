//! Connections that are not up yet: who comes in by the door, whom we dial, and what the machine of [`madrigal_proto::reach`] wants
//! done with them.

use core::net::SocketAddr;
use std::collections::{HashMap, HashSet, VecDeque};

use madrigal_base::error::Os;
use madrigal_base::node::NodeId;
use madrigal_proto::reach::{Action, End, Key, Limits, Reach};
use madrigal_proto::talk::LONG;
use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, time};
use rustix::event::epoll;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::door::{Door, dial};
use super::events;

/// Somebody who came in has so long to say who it is.
const INTRODUCTION: u64 = 5_000_000_000;
/// So many may be about to do so at once, fewer where few descriptors are allowed.
const STRANGERS: usize = 1024;
/// So many come in at a time.
const ACCEPTS: usize = 64;
/// How long the door stays shut when there is no descriptor for another one.
const SHUT: u64 = 100_000_000;

/// What came of an attempt.
pub(super) enum Outcome {
    /// The connection with that node.
    Up(NodeId, Fd),
    /// Nothing worked.
    Unreachable(NodeId, String),
}

/// Everything about connections that are not up.
pub(super) struct Entrance {
    pub(super) door: Door,
    reach: Reach,
    halves: HashMap<Key, Half>,
    /// Those of them the kernel told about.
    ready: HashSet<Key>,
    /// Somebody waits at the door.
    knock: bool,
    shut_until: u64,
    outcomes: VecDeque<Outcome>,
}

struct Half {
    socket: Fd,
    connecting: bool,
}

impl Entrance {
    pub(super) fn new(me: NodeId, door: Door, patience: u64) -> Self {
        let few = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
        let strangers = STRANGERS.min(usize::try_from(few).unwrap_or(STRANGERS));
        let limits = Limits { patience, introduction: INTRODUCTION, strangers };
        let reach = Reach::new(me, limits, Box::new(madrigal_sys::process::random));
        let (halves, ready, outcomes) = (HashMap::new(), HashSet::new(), VecDeque::new());
        Self { door, reach, halves, ready, knock: false, shut_until: 0, outcomes }
    }

    /// Begins to look for a node.
    pub(super) fn seek(&mut self, epoll: &Fd, node: NodeId, addresses: &[(SocketAddr, bool)], now: u64) {
        self.reach.seek(node, addresses, now);
        self.act(epoll, now);
    }

    /// An attempt has its whole time again.
    pub(super) fn renew(&mut self, node: NodeId, now: u64) {
        self.reach.renew(node, now);
    }

    /// The kernel told of the door (`None`) or of a connection.
    pub(super) fn note(&mut self, key: Option<Key>) {
        match key {
            Some(key) if self.halves.contains_key(&key) => drop(self.ready.insert(key)),
            Some(_) => {}
            None => self.knock = true,
        }
    }

    /// Whether there is something to do without waiting.
    pub(super) fn is_busy(&self) -> bool {
        !self.outcomes.is_empty() || !self.ready.is_empty() || (self.knock && self.shut_until == 0)
    }

    /// When there is something to do if nothing happens.
    pub(super) fn deadline(&self) -> Option<u64> {
        let shut = (self.shut_until > 0).then_some(self.shut_until);
        self.reach.deadline().into_iter().chain(shut).min()
    }

    /// Does what can be done.
    pub(super) fn turn(&mut self, epoll: &Fd, now: u64) {
        if self.knock && self.shut_until <= now {
            self.let_in(epoll, now);
        }
        for key in core::mem::take(&mut self.ready) {
            self.hear(epoll, key, now);
        }
        self.reach.tick(now);
        self.act(epoll, now);
    }

    /// What came of it, one by one.
    pub(super) fn outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// The link to that node has ended, or is not wanted any more.
    pub(super) fn gone(&mut self, epoll: &Fd, node: NodeId) {
        self.reach.gone(node);
        self.act(epoll, time::now_ns());
    }

    /// What was tried for a node and did not do.
    pub(super) fn rejected(&self, node: NodeId) -> Vec<(String, String)> {
        self.reach.rejected(node)
    }

    fn let_in(&mut self, epoll: &Fd, now: u64) {
        (self.knock, self.shut_until) = (false, 0);
        for _ in 0..ACCEPTS {
            match self.door.accept() {
                Ok(Some(socket)) => {
                    let key = self.reach.accepted(now);
                    // One who had to go for this one has left before it is looked at.
                    self.act(epoll, now);
                    self.watch(epoll, key, Half { socket, connecting: false });
                    self.hear(epoll, key, now);
                }
                Ok(None) => return,
                Err(_) => {
                    (self.knock, self.shut_until) = (true, now + SHUT);
                    return;
                }
            }
        }
        self.knock = true;
    }

    fn watch(&mut self, epoll: &Fd, key: Key, half: Half) {
        // Without room in the epoll the attempt fails by its time-out.
        let _ = epoll::add(epoll, &half.socket, events::token_of_key(key), events::ALL);
        self.halves.insert(key, half);
    }

    /// Something happened on a connection.
    fn hear(&mut self, epoll: &Fd, key: Key, now: u64) {
        if let Some(half) = self.halves.get_mut(&key).filter(|half| half.connecting) {
            match stands(&half.socket) {
                Ok(false) => return,
                Ok(true) => {
                    half.connecting = false;
                    self.reach.connected(key);
                    self.act(epoll, now);
                }
                Err(errno) => return self.end(epoll, key, End::System(Os(errno.raw_os_error())), now),
            }
        }
        let mut bytes = [0u8; LONG];
        loop {
            let wants = self.reach.wants(key).min(LONG);
            let Some(half) = self.halves.get(&key).filter(|_| wants > 0) else { return };
            let room = bytes.get_mut(..wants).unwrap_or_default();
            match rustix::net::recv(&half.socket, room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return self.end(epoll, key, End::Closed, now),
                Ok((n, _)) => self.reach.bytes(key, bytes.get(..n).unwrap_or_default(), now),
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                Err(_) => return self.end(epoll, key, End::Closed, now),
            }
            self.act(epoll, now);
        }
    }

    fn end(&mut self, epoll: &Fd, key: Key, end: End, now: u64) {
        self.halves.remove(&key);
        self.reach.failed(key, end, now);
        self.act(epoll, now);
    }

    /// Does what the machine wants done.
    fn act(&mut self, epoll: &Fd, now: u64) {
        while let Some(action) = self.reach.action() {
            match action {
                Action::Dial { key, to } => match dial(to) {
                    Ok(socket) => self.watch(epoll, key, Half { socket, connecting: true }),
                    Err(errno) => self.reach.failed(key, End::System(Os(errno.raw_os_error())), now),
                },
                Action::Send { key, bytes } => {
                    // These are the first bytes on a connection: there is room, or it is broken, which shows when it is read.
                    if let Some(half) = self.halves.get(&key) {
                        let _ = rustix::net::send(&half.socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                    }
                }
                Action::Close { key } => drop(self.halves.remove(&key)),
                Action::Up { key, node } => {
                    if let Some(half) = self.halves.remove(&key) {
                        self.outcomes.push_back(Outcome::Up(node, half.socket));
                    }
                }
                Action::Unreachable { node, tried } => self.outcomes.push_back(Outcome::Unreachable(node, tried)),
            }
        }
    }
}

/// Whether a connection that was dialled stands; an error where it cannot.
fn stands(socket: &Fd) -> Result<bool, Errno> {
    sockopt::socket_error(socket)??;
    match rustix::net::getpeername(socket) {
        Ok(_) => Ok(true),
        Err(Errno::NOTCONN) => Ok(false),
        Err(errno) => Err(errno),
    }
}
