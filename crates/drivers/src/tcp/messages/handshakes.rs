//! Connections that are not up yet: accepted, dialled, and the actions that the machine of [`madrigal_proto::reach`] requests.

use std::collections::{HashMap, HashSet, VecDeque};

use madrigal_base::error::Os;
use madrigal_base::node::NodeId;
use madrigal_proto::race::{Way, Wish};
use madrigal_proto::reach::{Action, End, Key, Limits, Reach};
use madrigal_proto::talk::LONG;
use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, time};
use rustix::event::epoll;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use super::super::sites::{Ask, Sites};
use super::super::socket::peer_of;
use super::events;
use super::listener::{Listener, dial};

/// How long an accepted peer may take to authenticate.
const INTRODUCTION: u64 = 5_000_000_000;
/// So many may do so at once, fewer where few descriptors are allowed.
const UNAUTHENTICATED: usize = 1024;
/// So many are accepted at a time.
const ACCEPTS: usize = 64;
/// How long no connection is accepted when there is no descriptor for another one.
const SHUT: u64 = 100_000_000;

/// The outcome of an attempt.
pub(super) enum Outcome {
    /// The connection with that node, and how it goes where it is by the daemon.
    Up(NodeId, Fd, Option<Box<str>>),
    /// Nothing worked; whether every address refused.
    Unreachable(NodeId, String, bool),
}

/// Everything about connections that are not up.
pub(super) struct Handshakes {
    pub(super) listener: Listener,
    pub(super) sites: Sites,
    reach: Reach,
    halves: HashMap<Key, Half>,
    /// Those of them that epoll reported.
    ready: HashSet<Key>,
    /// A connection waits at the listener.
    knock: bool,
    shut_until: u64,
    outcomes: VecDeque<Outcome>,
}

struct Half {
    socket: Fd,
    connecting: bool,
    /// The daemon's answer so far.
    ask: Option<Ask>,
    /// How the daemon carries it.
    by: Option<Box<str>>,
}

impl Half {
    fn new(socket: Fd, connecting: bool) -> Self {
        Self { socket, connecting, ask: None, by: None }
    }

    /// Whether it stands; an error where it cannot.
    fn stands(&mut self) -> Result<bool, End> {
        if let Some(ask) = &mut self.ask {
            let Some(how) = ask.handle(&self.socket)? else { return Ok(false) };
            self.by = Some(format!("through the daemon: {how}").into());
            self.ask = None;
            return Ok(true);
        }
        stands(&self.socket).map_err(|errno| End::System(Os(errno.raw_os_error())))
    }
}

impl Handshakes {
    pub(super) fn new(me: NodeId, listener: Listener, sites: Sites, patience: u64) -> Self {
        let few = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
        let unauthenticated = UNAUTHENTICATED.min(usize::try_from(few).unwrap_or(UNAUTHENTICATED));
        let limits = Limits { patience, introduction: INTRODUCTION, unauthenticated };
        let reach = Reach::new(me, limits, Box::new(madrigal_sys::process::random));
        Self {
            listener,
            sites,
            reach,
            halves: HashMap::new(),
            ready: HashSet::new(),
            knock: false,
            shut_until: 0,
            outcomes: VecDeque::new(),
        }
    }

    /// Begins to dial a node.
    pub(super) fn seek(&mut self, epoll: &Fd, node: NodeId, ways: &[(Way, Wish)], now: u64) {
        self.reach.seek(node, ways, now);
        self.act(epoll, now);
    }

    /// The connection with a node was lost; another one shall continue it.
    pub(super) fn seek_again(&mut self, epoll: &Fd, node: NodeId, ways: &[(Way, Wish)], now: u64) {
        self.reach.seek_again(node, ways, now);
        self.act(epoll, now);
    }

    /// Tries to find a better connection.
    pub(super) fn improve(&mut self, epoll: &Fd, node: NodeId, ways: &[(Way, Wish)], (patience, now): (u64, u64)) {
        self.reach.improve(node, ways, patience, now);
        self.act(epoll, now);
    }

    /// Whether the connection with a node should be replaced by a better one.
    pub(super) fn makeshift(&mut self, node: NodeId, makeshift: bool) {
        self.reach.makeshift(node, makeshift);
    }

    /// An attempt has its whole time again.
    pub(super) fn renew(&mut self, node: NodeId, now: u64) {
        self.reach.renew(node, now);
    }

    /// The kernel reported the listener (`None`) or a connection.
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
    pub(super) fn progress(&mut self, epoll: &Fd, now: u64) {
        if self.knock && self.shut_until <= now {
            self.let_in(epoll, now);
        }
        for key in core::mem::take(&mut self.ready) {
            self.handle(epoll, key, now);
        }
        self.reach.tick(now);
        self.act(epoll, now);
    }

    /// The outcomes, one by one.
    pub(super) fn outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// The link to that node has ended, or is not wanted any more.
    pub(super) fn gone(&mut self, epoll: &Fd, node: NodeId) {
        self.reach.gone(node);
        self.act(epoll, time::now_ns());
    }

    /// The failed attempts for a node.
    pub(super) fn rejected(&self, node: NodeId) -> Vec<(String, String)> {
        self.reach.rejected(node)
    }

    fn let_in(&mut self, epoll: &Fd, now: u64) {
        (self.knock, self.shut_until) = (false, 0);
        for _ in 0..ACCEPTS {
            match self.listener.accept() {
                Ok(Some(socket)) => {
                    let direct = !peer_of(&socket).is_some_and(|from| self.sites.is_daemon(from.ip()));
                    let key = self.reach.accepted(direct, now);
                    // A connection that was dropped in favour of this one is closed before this one is handled.
                    self.act(epoll, now);
                    self.watch(epoll, key, Half::new(socket, false));
                    self.handle(epoll, key, now);
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
        let _ = epoll::add(epoll, &half.socket, events::key_token(key), events::ALL);
        self.halves.insert(key, half);
    }

    /// Something happened on a connection.
    fn handle(&mut self, epoll: &Fd, key: Key, now: u64) {
        if let Some(half) = self.halves.get_mut(&key).filter(|half| half.connecting) {
            match half.stands() {
                Ok(false) => return,
                Ok(true) => {
                    half.connecting = false;
                    self.reach.connected(key);
                    self.act(epoll, now);
                }
                Err(end) => return self.end(epoll, key, end, now),
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

    /// Begins to connect.
    fn begin(&self, to: Way, within: u64) -> Result<Half, End> {
        match to {
            Way::At(address) => {
                let socket = dial(address).map_err(|errno| End::System(Os(errno.raw_os_error())))?;
                Ok(Half::new(socket, true))
            }
            Way::Daemon { host, port } => {
                let (socket, ask) = self.sites.dial(&host, port, within)?;
                Ok(Half { ask: Some(ask), ..Half::new(socket, true) })
            }
        }
    }

    /// Does what the machine requests.
    fn act(&mut self, epoll: &Fd, now: u64) {
        while let Some(action) = self.reach.action() {
            match action {
                Action::Dial { key, to, within } => match self.begin(to, within) {
                    Ok(half) => self.watch(epoll, key, half),
                    Err(end) => self.reach.failed(key, end, now),
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
                        self.outcomes.push_back(Outcome::Up(node, half.socket, half.by));
                    }
                }
                Action::Unreachable { node, tried, absent } => {
                    self.outcomes.push_back(Outcome::Unreachable(node, tried, absent));
                }
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
