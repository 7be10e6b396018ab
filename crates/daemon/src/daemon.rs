//! The daemon's state: every table, by token. One thread owns it; `event_loop.rs` runs it.
//!
//! ```text
//!  a socket of a client ---+                                   +--- a socket to a port of this host
//!                          +-- pipe --- stream of a link ... --+
//!  another link's stream --+                                   +--- another link's stream
//! ```
//! Every descriptor has a token. `descriptors` says what it is; the table of that kind has the rest. A handler takes its entry out of the
//! table and puts it back if it lives on. The types are in the folders, and take nothing from here; the methods beside them do.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::Child;

use madrigal_identity::Credentials;
use madrigal_proto::mux::StreamId;
use madrigal_sys::process;
use madrigal_sys::time::now_ns;
use rustix::io::Errno;

use crate::control::check::Check;
use crate::control::connection::Client;
use crate::control::notify::Notifier;
use crate::control::runtime::{Lock, Runtime};
use crate::descriptor::Thing;
use crate::grid::{Grid, Host};
use crate::link::Link;
use crate::link::handshakes::Handshakes;
use crate::link::peer::{Dial, Peer};
use crate::local::connection::Routes;
use crate::local::decoy::Decoys;
use crate::local::forward::Forward;
use crate::local::parked::Parked;
use crate::log::Log;
use crate::poll::{Poll, Token};
use crate::routing::known::Memory;
use crate::routing::ways::Ways;
use crate::socket;
use crate::start::{self, StartError};
use crate::streams::batch::Batch;
use crate::streams::call::Call;
use crate::streams::egress::Egress;
use crate::streams::migration::FailingOver;
use crate::streams::pipe::{PIECE, Pipe};
use crate::streams::stream::Holder;

/// What is read of a link at once.
const SCRATCH: usize = 192 << 10;

/// The daemon of one user on one host.
pub struct Daemon {
    pub(crate) grid: Grid,
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
    pub(crate) notifier: Notifier,
    pub(crate) listener: OwnedFd,
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
        let unknown = || StartError::Host { host: host.to_owned(), known: grid.names() };
        let me = grid.host(host).ok_or_else(unknown)?.0;
        let ports = start::listen(&grid, me, credentials.as_ref().err())?;
        let (lock, _) = (runtime.claim()?, std::fs::remove_file(runtime.socket()));
        let listener = socket::listen_unix(&runtime.socket()).map_err(|errno| StartError::Local { errno })?;
        let now = now_ns();
        let (memory, complaint) = Memory::new(runtime.known());
        let peers = grid.hosts.iter().map(|_| Peer::new(now)).collect();
        let mut daemon = Self {
            grid,
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
        for port in ports {
            let token = self.token();
            self.poll.add_listener(&port, token)?;
            self.things.insert(token, Thing::Port);
            self.ports.insert(token, port);
        }
        Ok(())
    }
}
