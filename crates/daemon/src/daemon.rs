//! The daemon: what it holds, and the loop that runs it. One thread; everything is told by one epoll or by the clock.
//!
//! ```text
//!  a socket of a client ---+                                   +--- a socket to a port of this host
//!                          +-- pipe --- stream of a link ... --+
//!  another link's stream --+                                   +--- another link's stream
//! ```
//! Every descriptor has a token; `things` says what it is, and the map of that kind has the rest. Whoever handles one takes it out of its
//! map, and puts it back if it lives.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::Child;

use madrigal_identity::Credentials;
use madrigal_proto::mux::StreamId;
use madrigal_sys::process;
use madrigal_sys::time::now_ns;
use rustix::io::Errno;

use crate::answers::Check;
use crate::calls::Call;
use crate::clients::{Client, Forward};
use crate::egress::Egress;
use crate::grid::{Grid, Host};
use crate::knowledge::Memory;
use crate::links::Link;
use crate::log::Log;
use crate::moves::FailingOver;
use crate::notify::Notifier;
use crate::parked::{Decoys, Parked};
use crate::peers::{Dial, Peer};
use crate::pipes::{PIECE, Pipe};
use crate::poll::{Poll, Token};
use crate::reload::Source;
use crate::routes::Routes;
use crate::runtime::{Lock, Runtime};
use crate::start::StartError;
use crate::streams::Batch;
use crate::unauthenticated::Handshakes;
use crate::ways::Ways;
use crate::{socket, status};

/// Nanoseconds.
pub(crate) const SECOND: u64 = 1_000_000_000;
/// See [`SECOND`].
pub(crate) const MILLISECOND: u64 = 1_000_000;

/// What is read of a link at once.
const SCRATCH: usize = 192 << 10;

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Thing {
    /// Daemons call here.
    Port,
    /// Clients call here.
    Listener,
    /// A connection to a daemon.
    Link,
    /// One that is being made.
    Dial,
    /// A client's.
    Client,
    /// Listens for a client.
    Forward,
    /// Waits for a call to be answered.
    Caller(Token),
    /// Connects to a port of this host.
    Egress,
    /// An end of a pipe.
    Socket(Token),
    /// An address is tried, to answer a question.
    Check(Token),
    /// What the command of a link says.
    Errors(Token),
    /// Connects to a program's socket.
    Parked,
    /// SIGHUP is told of here.
    Hangups,
}

/// Who has a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    /// A call that waits for a verdict.
    Call(Token),
    /// A connection to a port of this host that is being made.
    Egress(Token),
    /// A pipe.
    Pipe(Token),
    /// A pipe whose stream is to move there.
    Move(Token),
    /// A question that is not answered yet.
    Check(Token),
    /// What comes means nothing.
    Probe,
    /// A relay tells where it leads.
    RouteUpdate,
    /// The link: its peer proves that it has another certificate.
    Renewal,
}

/// The daemon of one user on one host.
pub struct Daemon {
    pub(crate) grid: Grid,
    pub(crate) source: Source,
    /// What this host shows on enciphered links, or why it has nothing to show.
    pub(crate) credentials: Result<Credentials, String>,
    /// The place of this host in the grid.
    pub(crate) me: usize,
    pub(crate) instance: u64,
    pub(crate) started: u64,
    pub(crate) now: u64,
    pub(crate) poll: Poll,
    last_token: Token,
    pub(crate) things: HashMap<Token, Thing>,
    pub(crate) ports: HashMap<Token, OwnedFd>,
    pub(crate) links: HashMap<Token, Link>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) dials: HashMap<Token, Dial>,
    pub(crate) clients: HashMap<Token, Client>,
    pub(crate) forwards: HashMap<Token, Forward>,
    pub(crate) calls: HashMap<Token, Call>,
    pub(crate) egresses: HashMap<Token, Egress>,
    pub(crate) parked: HashMap<Token, Parked>,
    pub(crate) decoys: Decoys,
    pub(crate) routes: Routes,
    /// What was written down for programs last.
    pub(crate) hosts_told: String,
    pub(crate) pipes: HashMap<Token, Pipe>,
    /// Those whose streams can be moved by where they begin, by their numbers.
    pub(crate) movable: HashMap<String, Token>,
    /// Those whose streams are to go another way.
    pub(crate) failing_over: BTreeMap<Token, FailingOver>,
    /// What all of them keep for that.
    pub(crate) kept: usize,
    pub(crate) checks: HashMap<Token, Check>,
    pub(crate) ways: Ways,
    pub(crate) memory: Memory,
    pub(crate) handshakes: Handshakes,
    /// Where connections come from that are this daemon's own, to an address of its own.
    pub(crate) own_calls: BTreeSet<(IpAddr, u16)>,
    /// When links are looked at.
    pub(crate) next_look: u64,
    /// Commands that were told to end.
    pub(crate) children: Vec<Child>,
    pub(crate) streams: HashMap<(Token, StreamId), Holder>,
    /// Links that may have something to send or to tell.
    pub(crate) dirty: BTreeSet<Token>,
    /// What has more to do than was done in one pass.
    pub(crate) again: VecDeque<Token>,
    /// For what comes on links, and for what goes through pipes.
    pub(crate) scratch: Vec<u8>,
    pub(crate) batch: Batch,
    pub(crate) piece: Vec<u8>,
    pub(crate) log: Log,
    pub(crate) ending: bool,
    notifier: Notifier,
    listener: OwnedFd,
    pub(crate) runtime: Runtime,
    _lock: Lock,
}

impl Daemon {
    /// A daemon that listens, for its clients and for other daemons, and does nothing yet.
    pub fn new(
        grid: Grid,
        host: &str,
        credentials: Result<Credentials, String>,
        runtime: Runtime,
    ) -> Result<Self, StartError> {
        let unknown = || StartError::Host { host: host.to_owned(), known: status::names(&grid) };
        let me = grid.host(host).ok_or_else(unknown)?.0;
        // Before it listens: who has the port already may be this user's own.
        let (lock, _) = (runtime.claim()?, std::fs::remove_file(runtime.socket()));
        let ports = crate::start::listen(&grid, me, credentials.as_ref().err())?;
        let listener = socket::listen_unix(&runtime.socket()).map_err(|errno| StartError::Local { errno })?;
        let now = now_ns();
        let (memory, complaint) = Memory::new(runtime.known());
        let peers = grid.hosts.iter().map(|_| Peer::new(now)).collect();
        let mut daemon = Self {
            grid,
            source: Source::default(),
            credentials,
            me,
            instance: process::random(),
            started: now,
            now,
            poll: Poll::new().map_err(|errno| StartError::System { errno })?,
            last_token: 0,
            things: HashMap::new(),
            ports: HashMap::new(),
            links: HashMap::new(),
            peers,
            dials: HashMap::new(),
            clients: HashMap::new(),
            forwards: HashMap::new(),
            calls: HashMap::new(),
            egresses: HashMap::new(),
            parked: HashMap::new(),
            decoys: Decoys::open(),
            routes: Routes::default(),
            hosts_told: String::new(),
            pipes: HashMap::new(),
            movable: HashMap::new(),
            failing_over: BTreeMap::new(),
            kept: 0,
            checks: HashMap::new(),
            ways: Ways::new(),
            memory,
            handshakes: Handshakes::default(),
            own_calls: BTreeSet::new(),
            next_look: now,
            children: Vec::new(),
            streams: HashMap::new(),
            dirty: BTreeSet::new(),
            again: VecDeque::new(),
            scratch: vec![0; SCRATCH],
            batch: Batch::default(),
            piece: vec![0; PIECE],
            log: Log::new(now),
            ending: false,
            notifier: Notifier::new(now),
            listener,
            runtime,
            _lock: lock,
        };
        daemon.register(ports).map_err(|errno| StartError::System { errno })?;
        if let Some(complaint) = complaint {
            daemon.note(&complaint);
        }
        daemon.write_hosts();
        Ok(daemon)
    }

    /// Works until a client ends it.
    pub fn run(&mut self) -> Result<(), Errno> {
        let mut changed = Vec::new();
        self.heed_hangups()?;
        self.notifier.begin();
        self.note(&format!("up on {}, process {}", self.own().name, process::own_pid()));
        while !self.ending {
            let until = if self.again.is_empty() { self.next_time() } else { 0 };
            self.poll.wait(until, &mut changed)?;
            self.now = now_ns();
            for token in changed.drain(..) {
                self.handle(token);
            }
            for _ in 0..self.again.len() {
                let Some(token) = self.again.pop_front() else { break };
                if self.pipes.contains_key(&token) { self.pump(token) } else { self.handle(token) }
            }
            self.handle_time();
            while let Some(link) = self.dirty.pop_first() {
                self.tend(link);
            }
        }
        self.notifier.end();
        self.write_known(u64::MAX);
        self.note("down");
        // What must be enciphered is to stay so.
        let _ = self.runtime.write_hosts(&crate::hosts::without_daemon(&self.grid, self.me));
        let _ = std::fs::remove_file(self.runtime.socket());
        Ok(())
    }

    /// This host.
    pub(crate) fn own(&self) -> &Host {
        &self.grid.hosts[self.me]
    }

    /// The name of a host.
    pub(crate) fn name(&self, host: usize) -> &str {
        self.grid.hosts.get(host).map_or("?", |host| host.name.as_str())
    }

    pub(crate) fn token(&mut self) -> Token {
        self.last_token += 1;
        self.last_token
    }

    pub(crate) fn note(&mut self, text: &str) {
        self.log.write(self.now, false, text);
    }

    /// Says something about somebody who has not proved to be of the grid.
    pub(crate) fn note_unauthenticated(&mut self, text: &str) {
        self.log.write(self.now, true, text);
    }

    fn register(&mut self, ports: Vec<OwnedFd>) -> Result<(), Errno> {
        let token = self.token();
        self.poll.add_listener(&self.listener, token)?;
        self.things.insert(token, Thing::Listener);
        self.add_ports(ports)
    }

    /// Other daemons call at these, too.
    pub(crate) fn add_ports(&mut self, ports: Vec<OwnedFd>) -> Result<(), Errno> {
        for port in ports {
            let token = self.token();
            self.poll.add_listener(&port, token)?;
            self.things.insert(token, Thing::Port);
            self.ports.insert(token, port);
        }
        Ok(())
    }

    fn handle(&mut self, token: Token) {
        match self.things.get(&token).copied() {
            Some(Thing::Port) => self.answer_port(token),
            Some(Thing::Listener) => self.accept_clients(),
            Some(Thing::Link) => self.handle_link(token),
            Some(Thing::Dial) => self.poll_dial(token),
            Some(Thing::Client) => self.handle_client(token),
            Some(Thing::Forward) => self.answer_forward(token),
            Some(Thing::Caller(call)) => self.poll_caller(call),
            Some(Thing::Egress) => self.poll_egress(token),
            Some(Thing::Socket(pipe)) => self.pump(pipe),
            Some(Thing::Check(check)) => self.poll_check(check),
            Some(Thing::Errors(link)) => self.handle_errors(link),
            Some(Thing::Parked) => self.poll_parked(token),
            Some(Thing::Hangups) => self.handle_hangups(),
            // It was closed by what happened before it in this pass.
            None => {}
        }
    }

    /// The next client that calls.
    pub(crate) fn accept_client(&mut self) -> Option<OwnedFd> {
        match socket::accept(&self.listener) {
            Ok(socket) => socket,
            Err(errno) => {
                self.note(&format!("cannot take a client: {errno}"));
                None
            }
        }
    }

    /// When something is due.
    fn next_time(&self) -> u64 {
        let links = self.links.values().map(Link::deadline);
        let dials = self.dials.values().map(|dial| dial.deadline);
        let calls = self.calls.values().map(Call::deadline);
        let egresses = self.egresses.values().map(|egress| egress.deadline);
        let clients = self.clients.values().map(|client| client.deadline);
        let parked = self.parked.values().map(|parked| parked.next);
        let peers = self.next_dial();
        let checks = self.checks.values().map(|check| check.deadline);
        let failing_over = self.failing_over.values().map(FailingOver::deadline);
        let own =
            [peers, self.handshakes.next(), self.ways.next, self.next_look, self.memory.due, self.notifier.next()];
        links
            .chain(dials)
            .chain(calls)
            .chain(egresses)
            .chain(clients)
            .chain(checks)
            .chain(parked)
            .chain(failing_over)
            .chain(own)
            .min()
            .unwrap_or(u64::MAX)
    }

    fn handle_time(&mut self) {
        let now = self.now;
        let due: Vec<Token> = self.links.iter().filter(|(_, l)| l.deadline() <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.link_time(token));
        let due: Vec<Token> = self.dials.iter().filter(|(_, d)| d.deadline <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.dial_failed(token, "no answer"));
        let due: Vec<Token> = self.egresses.iter().filter(|(_, l)| l.deadline <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.egress_failed(token, "no answer"));
        let due: Vec<Token> = self.clients.iter().filter(|(_, c)| c.deadline <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.drop_client(token));
        let due: Vec<Token> = self.checks.iter().filter(|(_, c)| c.deadline <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.end_check(token));
        let due: Vec<Token> = self.parked.iter().filter(|(_, b)| b.next <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.poll_parked(token));
        let due: Vec<Token> = self.failing_over.iter().filter(|(_, a)| a.deadline() <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.failover_due(token));
        self.begin_late();
        self.dial_all();
        self.reap();
        self.measure();
        self.tell_routes();
        self.write_known(now);
        self.notifier.progress(now);
        let due: Vec<Token> = self.calls.iter().filter(|(_, c)| c.deadline() <= now).map(|(t, _)| *t).collect();
        due.into_iter().for_each(|token| self.call_time(token));
    }
}
