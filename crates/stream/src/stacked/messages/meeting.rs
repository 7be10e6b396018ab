//! Links that are not up yet: accepted, dialled, and the actions that the machine of [`madrigal_proto::reach`] requests.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use madrigal_base::error::{ConnectError, ListenError, Os};
use madrigal_base::locator::{Address, Locator};
use madrigal_base::node::NodeId;
use madrigal_progress::driver::{ByteRx as _, ByteTx as _, Driver, Listener as _, Pending as _, Place, Read};
use madrigal_progress::engine::{Class, Engine};
use madrigal_proto::race::{Way, Wish};
use madrigal_proto::reach::{Action, End, Key, Limits, Reach};
use madrigal_proto::talk::LONG;
use madrigal_sys::{process, time};

use super::super::below::Below;
use super::super::dial::{self, Dial};
use super::super::ends::Made;
use super::super::listen::{self, Greeter};
use super::super::made_of::MadeOf;
use super::reports::{Reports, Watch, Whom};

/// How long an accepted peer may take to authenticate.
const INTRODUCTION: u64 = 5_000_000_000;
/// So many may do so at once.
const UNAUTHENTICATED: usize = 256;
/// So many are accepted at a time.
const ACCEPTS: usize = 64;
/// How long no link is accepted when the last try failed, most likely for want of a descriptor.
const SHUT: u64 = 100_000_000;
/// `ECONNREFUSED`, in errors of the driver below that are no number.
const REFUSED: Os = Os(111);

/// A link, and what reports it.
pub(super) struct Line {
    pub(super) made: Made,
    pub(super) watch: Watch,
}

/// The outcome of an attempt.
pub(super) enum Outcome {
    /// The link with that node.
    Up(NodeId, Line),
    /// Nothing worked; whether every address refused.
    Unreachable(NodeId, String, bool),
}

/// Everything about links that are not up.
pub(super) struct Meeting {
    engine: Arc<Engine>,
    class: Class,
    below: &'static dyn Driver,
    made_of: MadeOf,
    place: Place,
    reports: Arc<Reports>,
    listener: listen::Ours,
    _watch: Watch,
    reach: Reach,
    halves: HashMap<Key, Half>,
    /// Those of them that were reported.
    ready: HashSet<Key>,
    /// A link waits at the listener.
    knock: bool,
    shut_until: u64,
    outcomes: VecDeque<Outcome>,
}

enum Half {
    Dialled { dial: dial::Ours, _watch: Watch },
    Standing(Line),
}

impl Meeting {
    pub(super) fn new(
        (me, place): (NodeId, &Place),
        (below, made_of): (&'static dyn Driver, MadeOf),
        engine: &Arc<Engine>,
        reports: &Arc<Reports>,
    ) -> Result<Self, String> {
        let (class, engine) = (engine.class(below.name()), Arc::clone(engine));
        let listener = listen((&engine, below), place, &made_of)?;
        let watch = Watch::new((&engine, class), Some(listener.signal()), Whom::Listener, reports);
        let patience = u64::from(place.network.connect_timeout) * 1_000_000_000;
        let limits = Limits { patience, introduction: INTRODUCTION, unauthenticated: UNAUTHENTICATED };
        Ok(Self {
            class,
            below,
            made_of,
            place: place.clone(),
            reports: Arc::clone(reports),
            listener,
            _watch: watch.map_err(|errno| format!("cannot watch the listener: {errno}"))?,
            reach: Reach::new(me, limits, Box::new(process::random)),
            halves: HashMap::new(),
            ready: HashSet::new(),
            knock: false,
            shut_until: 0,
            outcomes: VecDeque::new(),
            engine,
        })
    }

    /// Where it listens; `None`: not at an internet address, as its driver should.
    pub(super) fn at(&self) -> Option<SocketAddr> {
        match self.listener.locator().address() {
            Address::Inet(at) => Some(*at),
            _ => None,
        }
    }

    /// Begins to dial a node.
    pub(super) fn seek(&mut self, node: NodeId, ways: &[(Way, Wish)], now: u64) {
        self.reach.seek(node, ways, now);
        self.act(now);
    }

    /// An attempt has its whole time again.
    pub(super) fn renew(&mut self, node: NodeId, now: u64) {
        self.reach.renew(node, now);
    }

    /// The listener (`None`) or an attempt was reported.
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
    pub(super) fn progress(&mut self, now: u64) {
        if self.knock && self.shut_until <= now {
            self.let_in(now);
        }
        for key in core::mem::take(&mut self.ready) {
            self.handle(key, now);
        }
        self.reach.tick(now);
        self.act(now);
    }

    /// The outcomes, one by one.
    pub(super) fn outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// The link to that node has ended, or is not wanted any more.
    pub(super) fn gone(&mut self, node: NodeId) {
        self.reach.gone(node);
        self.act(time::now_ns());
    }

    /// The failed attempts for a node.
    pub(super) fn rejected(&self, node: NodeId) -> Vec<(String, String)> {
        self.reach.rejected(node)
    }

    /// Nobody meets any more: the listener listens no more, and attempts end.
    pub(super) fn close(&mut self) {
        self.listener.close();
        self.halves.clear();
        self.outcomes.clear();
    }

    fn let_in(&mut self, now: u64) {
        let (mut is_more, mut shut_until) = (true, 0);
        for _ in 0..ACCEPTS {
            match self.listener.next() {
                Ok(Some(made)) => {
                    let key = self.reach.accepted(!self.is_by_daemon(&made), now);
                    // A link that was dropped in favour of this one is closed before this one is handled.
                    self.act(now);
                    self.stand(key, made, now);
                }
                Ok(None) => {
                    is_more = false;
                    break;
                }
                // Many may have failed alike.
                Err(_) => shut_until = now + SHUT,
            }
        }
        (self.knock, self.shut_until) = (is_more || shut_until > 0, shut_until);
    }

    /// Whether this host's daemon may have let a link in, as it does from this host.
    fn is_by_daemon(&self, made: &Made) -> bool {
        let is_here = matches!(made.rx.0.peer.address(), Address::Inet(at) if at.ip().to_canonical().is_loopback());
        is_here && !self.place.daemons.is_empty()
    }

    /// A link is to be talked on.
    fn stand(&mut self, key: Key, made: Made, now: u64) {
        match Watch::new((&self.engine, self.class), None, Whom::Half(key), &self.reports) {
            Ok(watch) => {
                made.rx.0.report_to(watch.waker());
                self.halves.insert(key, Half::Standing(Line { made, watch }));
                self.handle(key, now);
            }
            Err(errno) => self.end(key, End::System(Os(errno.raw_os_error())), now),
        }
    }

    /// Something happened to an attempt.
    fn handle(&mut self, key: Key, now: u64) {
        if let Some(Half::Dialled { dial, .. }) = self.halves.get(&key) {
            match dial.made() {
                Ok(None) if dial.stands() => return self.reach.stands(key),
                Ok(None) => return,
                Ok(Some(made)) => {
                    self.stand(key, made, now);
                    self.reach.connected(key);
                    self.act(now);
                }
                Err(error) => return self.end(key, end(error), now),
            }
        }
        let mut bytes = [0u8; LONG];
        loop {
            let wants = self.reach.wants(key).min(LONG);
            let Some(Half::Standing(line)) = self.halves.get_mut(&key).filter(|_| wants > 0) else { return };
            match line.made.rx.read(bytes.get_mut(..wants).unwrap_or_default()) {
                Ok(Read::Bytes(n)) => self.reach.bytes(key, bytes.get(..n).unwrap_or_default(), now),
                Ok(Read::WouldBlock) => return,
                Ok(Read::End) | Err(_) => return self.end(key, End::Closed, now),
            }
            self.act(now);
        }
    }

    fn end(&mut self, key: Key, end: End, now: u64) {
        self.halves.remove(&key);
        self.reach.failed(key, end, now);
        self.act(now);
    }

    /// Begins to connect.
    fn begin(&self, key: Key, to: &Way) -> Result<Half, End> {
        let name = self.below.name();
        let (to, place) = match to {
            // Straight there: the daemon is a way of its own.
            Way::At(to) => (Some(Locator::inet(name, *to)), Place { daemons: Vec::new(), ..self.place.clone() }),
            Way::Daemon { host, port } => (Locator::host(name, host, *port), self.place.clone()),
        };
        let to = to.ok_or(End::NoDaemon)?;
        let way = dial::Way { engine: Arc::clone(&self.engine), below: Below::Known(self.below), to, place };
        let dial = Dial::begin(way, self.made_of.clone()).map_err(end)?;
        let watch = Watch::new((&self.engine, self.class), Some(dial.signal()), Whom::Half(key), &self.reports);
        let watch = watch.map_err(|errno| End::System(Os(errno.raw_os_error())))?;
        Ok(Half::Dialled { dial, _watch: watch })
    }

    /// Does what the machine requests.
    fn act(&mut self, now: u64) {
        while let Some(action) = self.reach.action() {
            match action {
                Action::Dial { key, to, .. } => match self.begin(key, &to) {
                    Ok(half) => drop(self.halves.insert(key, half)),
                    Err(end) => self.reach.failed(key, end, now),
                },
                Action::Send { key, bytes } => {
                    // These are the first bytes on a link: there is room, or it is broken, which shows when it is read.
                    if let Some(Half::Standing(line)) = self.halves.get_mut(&key) {
                        let _ = line.made.tx.write(&[IoSlice::new(&bytes)]);
                    }
                }
                Action::Close { key } => drop(self.halves.remove(&key)),
                Action::Up { key, node } => {
                    if let Some(Half::Standing(line)) = self.halves.remove(&key) {
                        self.outcomes.push_back(Outcome::Up(node, line));
                    }
                }
                Action::Unreachable { node, tried, absent } => {
                    self.outcomes.push_back(Outcome::Unreachable(node, tried, absent));
                }
            }
        }
    }
}

/// Listens at every address, of both families where there are both, at a port that the user allows.
fn listen(
    (engine, below): (&Arc<Engine>, &'static dyn Driver),
    place: &Place,
    made_of: &MadeOf,
) -> Result<listen::Ours, String> {
    let all = [IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::UNSPECIFIED)];
    let mut last = None;
    for port in place.network.ports.search(process::random()) {
        for at in all {
            let at = Locator::inet(below.name(), SocketAddr::new(at, port));
            match Greeter::listen(engine, below, (&at, place), made_of.clone()) {
                Ok(listener) => return Ok(listener),
                Err(error @ ListenError::InUse { .. }) => {
                    last = Some(error);
                    break;
                }
                Err(error) => last = Some(error),
            }
        }
    }
    Err(last.map_or_else(|| "there is no port to listen at".to_owned(), |error| error.to_string()))
}

/// Why an attempt ended.
fn end(error: ConnectError) -> End {
    match error {
        ConnectError::Refused { .. } => End::System(REFUSED),
        ConnectError::System { os, .. } => End::System(os),
        ConnectError::NoPath { why, .. } => End::Refused(why),
        error => End::Refused(error.to_string()),
    }
}
