//! What a port carries: connections of QUIC over its socket, and the links that go by them. All of it is guarded by the port's lock.
//!
//! ```text
//!   receive --> [ QUIC ] --events--> links
//!   settle: links that something happened to, or whose time has come --pump--> [ QUIC ] --transmit--> socket
//! ```

mod incoming;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use madrigal_identity::Credentials;
use madrigal_progress::bell::Bell;
use madrigal_progress::driver::{Signal, Waker};
use madrigal_progress::engine::Registration;
use madrigal_quic::{ConnectError, Key, Limits, Outgoing, QuicEndpoint};
use madrigal_sys::Errno;
use madrigal_sys::udp::UdpSocket;

use crate::link::{Link, State, Why};
use crate::what::{Kind, What};

/// Turns of passing on and sending of one call.
const MOST_ROUNDS: u32 = 64;
const SECOND: u64 = 1_000_000_000;
/// A socket without room is tried again after this time, in nanoseconds.
const RETRY: u64 = 1_000_000;
/// The most connections whose ends are not known, and as many whose ends have not said what they want: where there are more, slow ones end.
const MOST_UNKNOWN: usize = 256;
/// A program that does not turn its engine is silent, and may be for long. That it is gone, ICMP reports, as soon as something is sent to it.
const LIMITS: Limits = Limits {
    silence: Duration::from_secs(60),
    keep_alive: Duration::from_secs(5),
    handshake: Duration::from_secs(10),
    handshakes: MOST_UNKNOWN,
    most: 8192,
    many: 64,
};
/// The reason for which a link closes that is not refused.
const CLOSED: &str = "closed";

/// A link of a port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Id(u64);

/// What is guarded.
pub(crate) struct Traffic {
    socket: Arc<Socket>,
    /// None any more, if it has panicked: all links are over then.
    endpoint: Option<QuicEndpoint>,
    credentials: Credentials,
    what: What,
    links: BTreeMap<Id, Link>,
    by_key: BTreeMap<Key, Id>,
    count: u64,
    /// Links with something to pass on, and when each of the others is due.
    stirred: BTreeSet<Id>,
    due: BTreeSet<(u64, Id)>,
    listed: BTreeMap<Id, u64>,
    /// Datagrams for which the socket had no room.
    unsent: Option<(Outgoing, Vec<u8>)>,
    /// What is sent next; kept for its memory.
    out: Vec<u8>,
    accepting: Option<Accepting>,
    /// Of links that are closed now.
    wakers: Vec<Waker>,
    registration: Option<Registration>,
    /// Since when there was always something to read.
    undrained: Option<u64>,
    /// The earliest time for which the timer is set.
    set_for: u64,
}

/// What a listener's port has.
struct Accepting {
    bell: Arc<Bell>,
    /// Links that nobody has accepted.
    ready: VecDeque<Id>,
}

/// The socket, as the engine waits for it.
struct Socket(UdpSocket);

impl Signal for Socket {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn woken(&self) {}
}

impl Traffic {
    /// That of a listener.
    pub(crate) fn accepting(credentials: &Credentials, what: &What, socket: UdpSocket) -> Result<Self, Errno> {
        let accepting = Accepting { bell: Arc::new(Bell::new()?), ready: VecDeque::new() };
        Ok(Self { accepting: Some(accepting), ..Self::dialling(credentials, what, socket)? })
    }

    /// That of a connecting end.
    pub(crate) fn dialling(credentials: &Credentials, what: &What, socket: UdpSocket) -> Result<Self, Errno> {
        let endpoint = QuicEndpoint::new(credentials.client(), credentials.server());
        Ok(Self {
            socket: Arc::new(Socket(socket)),
            // The certificates' own settings are those of TLS 1.3, which QUIC takes.
            endpoint: Some(endpoint.map_err(|_: ConnectError| Errno::INVAL)?.with_limits(LIMITS)),
            credentials: credentials.clone(),
            what: what.clone(),
            links: BTreeMap::new(),
            by_key: BTreeMap::new(),
            count: 0,
            stirred: BTreeSet::new(),
            due: BTreeSet::new(),
            listed: BTreeMap::new(),
            unsent: None,
            out: Vec::new(),
            accepting: None,
            wakers: Vec::new(),
            registration: None,
            undrained: None,
            set_for: u64::MAX,
        })
    }

    // --- the port's side ------------------------------------------------------------------------------------------------------

    /// How the engine waits for the socket.
    pub(crate) fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.socket) as Arc<dyn Signal>
    }

    /// Its place in the engine, until it is over.
    pub(crate) fn keep(&mut self, registration: Registration) {
        self.registration = Some(registration);
    }

    /// The engine has something to do for it.
    pub(crate) fn schedule(&self) {
        if let Some(registration) = &self.registration {
            registration.schedule();
        }
    }

    /// Who waits for the end of links that have ended; and the place in the engine, where nobody needs it any more: for a moment behind the last
    /// link peers are told that have not heard of its end.
    pub(crate) fn over(&mut self) -> (Vec<Waker>, Option<Registration>) {
        let is_quiet = self.endpoint.as_ref().is_none_or(QuicEndpoint::is_empty);
        let is_over = self.accepting.is_none() && self.links.is_empty() && is_quiet;
        (mem::take(&mut self.wakers), self.registration.take_if(|_| is_over))
    }

    /// The time of a connection has come, if it has. Not while datagrams may be unread that show that nobody is silent, because the engine was
    /// not turned for long; but they cannot be for longer than a second.
    pub(crate) fn handle_time(&mut self, now: u64, is_drained: bool) {
        let since = *self.undrained.get_or_insert(now);
        if is_drained {
            self.undrained = None;
        }
        let is_time = is_drained || now > since + SECOND;
        if let Some(endpoint) = self.endpoint.as_mut().filter(|endpoint| is_time && endpoint.deadline() <= now) {
            endpoint.handle_time(now);
        }
    }

    /// Accepts no more: links that nobody has accepted are closed.
    pub(crate) fn stop(&mut self, now: u64) {
        let ready = self.accepting.take().map(|accepting| accepting.ready);
        let silent = self.links.iter().filter(|(_, link)| link.state == State::Greeting).map(|(id, _)| *id);
        let unwanted: Vec<Id> = silent.chain(ready.into_iter().flatten()).collect();
        unwanted.into_iter().for_each(|id| self.drop_link(now, id));
    }

    // --- the program's side ---------------------------------------------------------------------------------------------------

    /// Where it is.
    pub(crate) fn at(&self) -> SocketAddr {
        self.socket.0.at()
    }

    /// The bell of a listener.
    pub(crate) fn bell(&self) -> Option<Arc<Bell>> {
        self.accepting.as_ref().map(|accepting| Arc::clone(&accepting.bell))
    }

    pub(crate) fn link(&self, id: Id) -> Option<&Link> {
        self.links.get(&id)
    }

    /// A link with which something is done that may have it send.
    pub(crate) fn stir(&mut self, id: Id) -> Option<&mut Link> {
        self.stirred.insert(id);
        self.links.get_mut(&id)
    }

    /// A link of which only something is read.
    pub(crate) fn link_mut(&mut self, id: Id) -> Option<&mut Link> {
        self.links.get_mut(&id)
    }

    /// The address of the other end.
    pub(crate) fn peer(&mut self, id: Id) -> Option<SocketAddr> {
        let key = self.links.get(&id)?.key?;
        self.endpoint.as_mut()?.connection(key)?.peer()
    }

    /// The next link that nobody has accepted.
    pub(crate) fn accept(&mut self) -> Option<Id> {
        let ready = &mut self.accepting.as_mut()?.ready;
        while let Some(id) = ready.pop_front() {
            if self.links.contains_key(&id) {
                return Some(id);
            }
        }
        None
    }

    pub(crate) fn dial(&mut self, now: u64, to: SocketAddr) -> Result<Id, Errno> {
        let bell = self.new_bell()?;
        let key = self.endpoint.as_mut().ok_or(Errno::IO)?.connect(now, to).map_err(|_| Errno::INVAL)?;
        Ok(self.insert(key, Link::dialled(now, self.what.clone(), key, bell)))
    }

    /// Messages are waited for by the engine itself.
    fn new_bell(&self) -> Result<Option<Arc<Bell>>, Errno> {
        let is_stream = self.what.kind() == Kind::Stream;
        is_stream.then(|| Bell::new().map(Arc::new)).transpose()
    }

    fn insert(&mut self, key: Key, link: Link) -> Id {
        let id = Id(self.count);
        self.count += 1;
        self.links.insert(id, link);
        self.by_key.insert(key, id);
        self.stirred.insert(id);
        id
    }

    // --- what goes ------------------------------------------------------------------------------------------------------------

    /// Passes on what came and what goes, as far as it goes. How much happened.
    pub(crate) fn settle(&mut self, now: u64) -> u32 {
        let mut done = 0;
        self.send_unsent(now);
        while done < MOST_ROUNDS && self.unsent.is_none() {
            let events = self.take_events(now);
            let stirred: Vec<Key> = self.endpoint.iter().flat_map(QuicEndpoint::stirred).collect();
            self.stirred.extend(stirred.iter().filter_map(|key| self.by_key.get(key)));
            while let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
                self.list(id, u64::MAX);
                self.stirred.insert(id);
            }
            let links = mem::take(&mut self.stirred);
            if events == 0 && links.is_empty() && stirred.is_empty() {
                break;
            }
            done += 1;
            links.into_iter().for_each(|id| self.pump(now, id));
            self.transmit(now);
        }
        done
    }

    fn pump(&mut self, now: u64, id: Id) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let was_open = link.is_open();
        if let Some(connection) = link.key.and_then(|key| self.endpoint.as_mut()?.connection(key))
            && let Err((why, text)) = link.pump(now, connection)
        {
            self.close(now, id, (why, &text));
        }
        let Some(link) = self.links.get_mut(&id) else { return };
        let (is_finished, is_nobodys, deadline) = (link.is_finished(now), link.is_nobodys(), link.deadline());
        let opens = !was_open && link.is_open();
        link.wake();
        if opens {
            link.opened();
        }
        self.list(id, deadline);
        if let Some(accepting) = self.accepting.as_mut().filter(|_| opens) {
            accepting.ready.push_back(id);
            accepting.bell.ring();
        }
        if is_finished {
            self.end_link(now, id);
        } else if is_nobodys {
            self.forget(id);
        }
    }

    /// A link is due at that time; never: `u64::MAX`.
    fn list(&mut self, id: Id, at: u64) {
        let before = if at == u64::MAX { self.listed.remove(&id) } else { self.listed.insert(id, at) };
        if let Some(before) = before {
            self.due.remove(&(before, id));
        }
        if at != u64::MAX {
            self.due.insert((at, id));
        }
    }

    /// Sends until nothing is left, or the socket has no room.
    fn transmit(&mut self, now: u64) {
        while self.unsent.is_none() {
            let mut out = mem::take(&mut self.out);
            let outgoing = self.endpoint.as_mut().and_then(|endpoint| endpoint.transmit(now, &mut out));
            let Some(outgoing) = outgoing else { return self.out = out };
            self.unsent = Some((outgoing, out));
            self.send_unsent(now);
        }
    }

    /// Sends what the socket had no room for.
    fn send_unsent(&mut self, now: u64) {
        let Some((outgoing, bytes)) = self.unsent.take() else { return };
        match self.socket.0.send(outgoing.to, outgoing.from, outgoing.segment, &bytes) {
            Err(Errno::AGAIN) => return self.unsent = Some((outgoing, bytes)),
            Err(errno) => self.report(now, errno),
            Ok(()) => {}
        }
        self.out = bytes;
    }

    /// Sets the timer for what comes next. True: it is due already.
    pub(crate) fn set_timer(&mut self, now: u64) -> bool {
        let links = self.due.first().map_or(u64::MAX, |(at, _)| *at);
        // A socket without room is waited for, whatever is due.
        let endpoint = self.endpoint.as_ref();
        let its = endpoint.map_or(u64::MAX, QuicEndpoint::deadline);
        let at = if self.unsent.is_some() { now + RETRY } else { its.min(links) };
        let is_set = self.set_for > now && self.set_for <= at;
        if let Some(registration) = self.registration.as_ref().filter(|_| at < u64::MAX && at > now && !is_set) {
            registration.wake_at(at);
            self.set_for = at;
        }
        let is_left = !self.stirred.is_empty() || endpoint.is_some_and(|endpoint| endpoint.stirred().next().is_some());
        at <= now || (is_left && self.unsent.is_none())
    }

    /// What speaks QUIC has panicked: it is not used any more, and all links are over.
    pub(crate) fn fail(&mut self) {
        // Dropped, it could panic again.
        mem::forget(self.endpoint.take());
        (self.unsent, self.accepting) = (None, None);
        self.by_key.clear();
        let all: Vec<Id> = self.links.keys().copied().collect();
        all.into_iter().for_each(|id| self.lose(id, Why::Gone));
    }

    // --- the end --------------------------------------------------------------------------------------------------------------

    /// The connection of a link has ended.
    fn lose(&mut self, id: Id, why: Why) {
        if let Some(link) = self.links.get_mut(&id) {
            link.lose(why);
            self.stirred.insert(id);
        }
    }

    /// Closes the connection of a link, which the other end is told with that reason.
    fn close(&mut self, now: u64, id: Id, (why, text): (Why, &str)) {
        if let Some(key) = self.links.get(&id).and_then(|link| link.key) {
            if let Some(endpoint) = &mut self.endpoint {
                endpoint.close(now, key, text);
            }
            self.by_key.remove(&key);
        }
        self.lose(id, why);
    }

    /// A link that closes has waited for its end.
    fn end_link(&mut self, now: u64, id: Id) {
        let waker = self.links.get_mut(&id).and_then(Link::waker);
        self.wakers.extend(waker);
        self.drop_link(now, id);
    }

    /// Ends a link at once, and forgets it.
    pub(crate) fn drop_link(&mut self, now: u64, id: Id) {
        self.close(now, id, (Why::Gone, CLOSED));
        self.forget(id);
    }

    fn forget(&mut self, id: Id) {
        self.list(id, u64::MAX);
        self.links.remove(&id);
        self.stirred.remove(&id);
    }
}
