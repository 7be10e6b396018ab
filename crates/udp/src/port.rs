//! A socket of UDP with the links that go by it, as one source of the engine.
//!
//! Everything is done by [`Port::run`], under one lock: by the engine, when datagrams came or a time has come; and by whoever sends, reads or
//! closes. A listener's port has all links that it accepted, a connecting end's has one. The engine knows the port as long as anybody uses it,
//! or a link of it still closes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use madrigal_identity::{Credentials, Refusal, peer};
use madrigal_progress::bell::Bell;
use madrigal_progress::driver::{Signal, Waker};
use madrigal_progress::engine::{Class, Engine, Next, Registration, Source, Work};
use madrigal_quic::{Admission, ConnectError, Ended, Event, Key, Limits, Outgoing, QuicEndpoint};
use madrigal_sys::udp::UdpSocket;
use madrigal_sys::{Errno, time};
use rustls::pki_types::CertificateDer;

use crate::link::{Link, State, Why};
use crate::what::{Kind, What};

/// The scheme of addresses, and the class of the engine.
pub(crate) const NAME: &str = "udp";
/// Turns of passing on and sending of one call.
const MOST_ROUNDS: u32 = 64;
/// Room for what one call of the kernel's gives.
const BUFFER: usize = 64 << 10;
/// A socket without room is tried again after this time, in nanoseconds.
const RETRY: u64 = 1_000_000;
/// The most connections whose ends are not known, and whose ends have not said what they want: where there are more, the oldest one ends.
const MOST_UNKNOWN: usize = 64;
/// The most links that nobody has accepted: then no connection begins.
const MOST_READY: usize = 128;
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
/// What a peer is told that belongs to another user.
const OTHER_USER: &str = "it belongs to another user, and lets in its own";

/// A link of a port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Id(u64);

/// See above.
pub(crate) struct Port {
    pub(crate) engine: Arc<Engine>,
    inner: Mutex<Inner>,
}

/// What is guarded.
pub(crate) struct Inner {
    socket: Arc<Socket>,
    endpoint: QuicEndpoint,
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

thread_local! {
    /// Where datagrams are read: of one thread's ports, one after the other.
    static CAME: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Port {
    /// A port at which connections arrive.
    pub(crate) fn listen(
        (engine, class): (&Arc<Engine>, Class),
        credentials: &Credentials,
        what: &What,
        at: SocketAddr,
    ) -> Result<Arc<Self>, Errno> {
        let socket = UdpSocket::bind(at)?;
        socket.watch_errors();
        let accepting = Accepting { bell: Arc::new(Bell::new()?), ready: VecDeque::new() };
        Self::new((engine, class), (credentials, what), socket, Some(accepting))
    }

    /// A port of one link, to that address, which begins to connect.
    pub(crate) fn dial(
        (engine, class): (&Arc<Engine>, Class),
        credentials: &Credentials,
        what: &What,
        to: SocketAddr,
    ) -> Result<(Arc<Self>, Id), Errno> {
        let port = Self::new((engine, class), (credentials, what), UdpSocket::connect(to)?, None)?;
        let begun = port.run(|inner, now| inner.dial(now, to));
        begun.map(|id| (Arc::clone(&port), id)).inspect_err(|_| port.end())
    }

    fn new(
        (engine, class): (&Arc<Engine>, Class),
        (credentials, what): (&Credentials, &What),
        socket: UdpSocket,
        accepting: Option<Accepting>,
    ) -> Result<Arc<Self>, Errno> {
        let endpoint = QuicEndpoint::new(credentials.client(), credentials.server());
        // The certificates' own settings are those of TLS 1.3, which QUIC takes.
        let endpoint = endpoint.map_err(|_: ConnectError| Errno::INVAL)?.with_limits(LIMITS);
        let socket = Arc::new(Socket(socket));
        let inner = Inner {
            socket: Arc::clone(&socket),
            endpoint,
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
            accepting,
            wakers: Vec::new(),
            registration: None,
            set_for: u64::MAX,
        };
        let port = Arc::new(Self { engine: Arc::clone(engine), inner: Mutex::new(inner) });
        let source = Arc::clone(&port) as Arc<dyn Source>;
        port.lock().registration = Some(engine.register(class, Some(socket as Arc<dyn Signal>), source)?);
        Ok(port)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with what is guarded, and passes on what comes of it.
    pub(crate) fn run<R>(&self, run: impl FnOnce(&mut Inner, u64) -> R) -> R {
        let mut inner = self.lock();
        let now = time::now_ns();
        let result = run(&mut inner, now);
        inner.settle(now);
        let due = inner.set_timer(now);
        if let Some(registration) = inner.registration.as_ref().filter(|_| due) {
            registration.schedule();
        }
        self.leave(inner);
        result
    }

    /// Wakes whoever waits for the end of a link, and leaves the engine, where nobody needs the port any more. Without the lock.
    fn leave(&self, mut inner: MutexGuard<'_, Inner>) {
        let wakers = mem::take(&mut inner.wakers);
        let is_over = inner.accepting.is_none() && inner.links.is_empty();
        let registration = inner.registration.take_if(|_| is_over);
        drop(inner);
        drop(registration);
        wakers.iter().for_each(|then| then());
    }

    /// Ends a link at once: its end is not waited for.
    pub(crate) fn abort(&self, id: Id) {
        self.run(|inner, now| inner.drop_link(now, id));
    }

    /// Accepts no more: links that nobody has accepted are closed.
    pub(crate) fn stop(&self) {
        self.run(|inner, now| {
            let ready = inner.accepting.take().map(|accepting| accepting.ready);
            let silent = inner.links.iter().filter(|(_, link)| link.state == State::Greeting).map(|(id, _)| *id);
            let unwanted: Vec<Id> = silent.chain(ready.into_iter().flatten()).collect();
            unwanted.into_iter().for_each(|id| inner.drop_link(now, id));
        });
    }

    /// Nobody uses the port.
    fn end(&self) {
        self.leave(self.lock());
    }
}

impl Source for Port {
    fn work(&self, budget: u32) -> Work {
        let mut inner = self.lock();
        let now = time::now_ns();
        let (count, is_drained) = inner.receive(now, budget);
        // What a busy program has not read yet may show that nobody is silent.
        if is_drained && inner.endpoint.deadline() <= now {
            inner.endpoint.handle_time(now);
        }
        let done = count + inner.settle(now);
        let due = inner.set_timer(now);
        self.leave(inner);
        Work { count: done, next: if due || !is_drained { Next::Again } else { Next::Park } }
    }

    fn arm(&self) -> bool {
        false
    }
}

impl Inner {
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
        self.endpoint.connection(key)?.peer()
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

    fn dial(&mut self, now: u64, to: SocketAddr) -> Result<Id, Errno> {
        let bell = self.new_bell()?;
        let key = self.endpoint.connect(now, to).map_err(|_| Errno::INVAL)?;
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

    // --- what comes -----------------------------------------------------------------------------------------------------------

    /// Reads datagrams, as many calls as the budget has. How many gave some, and whether nothing is left.
    fn receive(&mut self, now: u64, budget: u32) -> (u32, bool) {
        let mut came = CAME.try_with(Cell::take).unwrap_or_default();
        came.resize(BUFFER, 0);
        let (mut count, mut is_drained) = (0, false);
        while count < budget && !is_drained {
            count += 1;
            match self.socket.0.receive(&mut came) {
                Ok(got) => {
                    let bytes = came.get(..got.len).unwrap_or_default();
                    for datagram in bytes.chunks(got.segment) {
                        self.take(now, (got.from, got.to), datagram);
                    }
                }
                Err(Errno::AGAIN) => (count, is_drained) = (count - 1, true),
                Err(errno) => self.report(now, errno),
            }
        }
        // A thread that is ending keeps nothing.
        let _ = CAME.try_with(|kept| kept.set(came));
        (count, is_drained)
    }

    fn take(&mut self, now: u64, from: (SocketAddr, Option<std::net::IpAddr>), datagram: &[u8]) {
        let Self { endpoint, accepting, .. } = self;
        endpoint.receive(now, from, datagram, |_| match accepting {
            None => Admission::Refuse,
            Some(accepting) if accepting.ready.len() >= MOST_READY => Admission::Drop,
            Some(_) => Admission::Take,
        });
        // At once: the reason why a certificate is refused is known until the next one is looked at.
        self.take_events(now);
    }

    /// The kernel reports of an earlier send that nobody is there.
    fn report(&mut self, now: u64, errno: Errno) {
        if self.accepting.is_none() && errno == Errno::CONNREFUSED {
            let shaking = self.links.iter().filter(|(_, link)| link.state == State::Shaking).map(|(id, _)| *id);
            for id in shaking.collect::<Vec<_>>() {
                self.close(now, id, (Why::Refused, ""));
            }
            let peers: Vec<Id> = self.links.keys().copied().collect();
            for at in peers.into_iter().filter_map(|id| self.peer(id)).collect::<Vec<_>>() {
                self.endpoint.doubt(now, at);
            }
        }
        while let Some(at) = self.socket.0.unreachable() {
            self.endpoint.doubt(now, at);
        }
    }

    fn take_events(&mut self, now: u64) -> u32 {
        let mut count = 0;
        while let Some(event) = self.endpoint.event() {
            count += 1;
            match event {
                Event::Connected { key, dialled, chain } => self.connected(now, (key, dialled), &chain),
                Event::Closed { key, why } => {
                    if let Some(id) = self.by_key.remove(&key) {
                        self.lose(id, ended(&why));
                    }
                }
                Event::Seen { .. } => {}
            }
        }
        count
    }

    fn connected(&mut self, now: u64, (key, dialled): (Key, bool), chain: &[CertificateDer<'static>]) {
        let admitted = peer(chain).and_then(|peer| self.credentials.admits(&peer));
        let id = match self.by_key.get(&key) {
            Some(id) => *id,
            None => match self.new_bell() {
                Ok(bell) if !dialled && self.accepting.is_some() => {
                    self.end_oldest(now);
                    self.insert(key, Link::accepted(now, self.what.clone(), key, bell))
                }
                _ => return self.endpoint.close(now, key, "it takes no more links"),
            },
        };
        match admitted {
            Ok(()) if dialled => {
                if let Some(link) = self.stir(id) {
                    link.greet();
                }
            }
            Ok(()) => {}
            Err(refusal) => {
                let why = match refusal {
                    // The peer is the one that is told.
                    Refusal::OtherUser { .. } => OTHER_USER.to_owned(),
                    ref other => other.to_string(),
                };
                self.close(now, id, (Why::Forbidden(refusal.to_string()), &why));
            }
        }
    }

    /// Where too many links wait for a peer to say what it wants, the oldest one ends.
    fn end_oldest(&mut self, now: u64) {
        let greeting = self.links.iter().filter(|(_, link)| link.state == State::Greeting);
        let oldest = greeting.clone().next().map(|(id, _)| *id);
        if let Some(id) = oldest.filter(|_| greeting.count() >= MOST_UNKNOWN) {
            self.drop_link(now, id);
        }
    }

    // --- what goes ------------------------------------------------------------------------------------------------------------

    /// Passes on what came and what goes, as far as it goes. How much happened.
    fn settle(&mut self, now: u64) -> u32 {
        let mut done = 0;
        self.send_unsent(now);
        while done < MOST_ROUNDS && self.unsent.is_none() {
            let events = self.take_events(now);
            let stirred: Vec<Key> = self.endpoint.stirred().collect();
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
        if let Some(connection) = link.key.and_then(|key| self.endpoint.connection(key))
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
            let Some(outgoing) = self.endpoint.transmit(now, &mut out) else { return self.out = out };
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
    fn set_timer(&mut self, now: u64) -> bool {
        let links = self.due.first().map_or(u64::MAX, |(at, _)| *at);
        // A socket without room is waited for, whatever is due.
        let at = if self.unsent.is_some() { now + RETRY } else { self.endpoint.deadline().min(links) };
        let is_set = self.set_for > now && self.set_for <= at;
        if let Some(registration) = self.registration.as_ref().filter(|_| at < u64::MAX && at > now && !is_set) {
            registration.wake_at(at);
            self.set_for = at;
        }
        let is_left = !self.stirred.is_empty() || self.endpoint.stirred().next().is_some();
        at <= now || (is_left && self.unsent.is_none())
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
            self.endpoint.close(now, key, text);
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
    fn drop_link(&mut self, now: u64, id: Id) {
        self.close(now, id, (Why::Gone, CLOSED));
        self.forget(id);
    }

    fn forget(&mut self, id: Id) {
        self.list(id, u64::MAX);
        self.links.remove(&id);
        self.stirred.remove(&id);
    }
}

/// Why a link is over whose connection ended so.
fn ended(why: &Ended) -> Why {
    match why {
        Ended::Refused => Why::Refused,
        Ended::ByPeer(text) if text == CLOSED => Why::Gone,
        Ended::ByPeer(text) => Why::Forbidden(format!("the other end refuses: {text}")),
        Ended::Tls(error) => Why::Forbidden(Refusal::of(error).to_string()),
        Ended::Silent | Ended::Gone => Why::Gone,
        other => Why::Forbidden(other.to_string()),
    }
}
