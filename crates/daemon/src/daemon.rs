//! The daemon's state: every table, by token. One thread owns it; `event_loop.rs` runs it.
//!
//! ```text
//!  a socket of a client ---+                                   +--- a socket to a port of this host
//!                          +-- pipe --- stream of a link ... --+
//!  another link's stream --+                                   +--- another link's stream
//! ```
//! Every descriptor has a token. `descriptors` has its kind; the table of that kind has the rest. A handler takes its entry out of the
//! table and puts it back if it lives on. The types are in the folders, and take nothing from here; the methods beside them do.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::Child;

use madrigal_adapters::stack::Stack;
use madrigal_identity::Credentials;
use madrigal_sys::process;
use madrigal_sys::time::now_ns;
use rustix::io::Errno;

use crate::control::check::Check;
use crate::control::connection::ControlConnection;
use crate::control::description::Source;
use crate::control::notify::Notifier;
use crate::control::runtime::{Lock, Runtime};
use crate::datagrams::Datagrams;
use crate::descriptor::Descriptor;
use crate::grid::{Grid, Host};
use crate::link::Link;
use crate::link::handshakes::HandshakeLimiter;
use crate::link::own_addresses::OwnAddresses;
use crate::link::peer::{Dial, Peer};
use crate::link::punch::Punch;
use crate::link::trial::Trial;
use crate::local::connection::Connections;
use crate::local::decoy::Decoys;
use crate::local::forward::Forward;
use crate::local::parked::Parked;
use crate::log::Log;
use crate::poll::{Poll, Token};
use crate::pools::Pools;
use crate::routing::advertisements::Advertisements;
use crate::routing::known::KnownFile;
use crate::socket;
use crate::start::{self, StartError};
use crate::streams::batch::Batch;
use crate::streams::call::Call;
use crate::streams::cap::Caps;
use crate::streams::egress::Egress;
use crate::streams::migration::Migration;
use crate::streams::pipe::{PIPE_READ, Pipe};
use crate::streams::stream::{Stream, StreamOwner};

/// The largest read of a link.
const LINK_READ: usize = 192 << 10;

/// The daemon of one user on one host.
pub struct Daemon {
    pub(crate) grid: Grid,
    pub(crate) source: Source,
    /// The stack of links without a rule about it.
    pub(crate) stack: Option<Stack>,
    /// The certificate and key of this host, or why it has none.
    pub(crate) credentials: Result<Credentials, String>,
    /// The index of this host in the grid.
    pub(crate) own_index: usize,
    /// A random number of this process.
    pub(crate) instance: u64,
    pub(crate) started: u64,
    /// The time of this pass, in nanoseconds.
    pub(crate) now: u64,
    pub(crate) poll: Poll,
    last_token: Token,
    pub(crate) descriptors: HashMap<Token, Descriptor>,
    /// The listeners for other daemons.
    pub(crate) ports: HashMap<Token, OwnedFd>,
    pub(crate) links: HashMap<Token, Link>,
    /// The hosts of the grid, by their indices.
    pub(crate) peers: Vec<Peer>,
    pub(crate) dials: HashMap<Token, Dial>,
    pub(crate) punches: HashMap<Token, Punch>,
    pub(crate) trials: HashMap<Token, Trial>,
    /// The connections to the control socket.
    pub(crate) clients: HashMap<Token, ControlConnection>,
    pub(crate) forwards: HashMap<Token, Forward>,
    pub(crate) datagrams: Datagrams,
    pub(crate) calls: HashMap<Token, Call>,
    pub(crate) egresses: HashMap<Token, Egress>,
    pub(crate) parked: HashMap<Token, Parked>,
    pub(crate) decoys: Decoys,
    /// The connections of programs.
    pub(crate) connections: Connections,
    /// The text of the hosts file.
    pub(crate) hosts_written: String,
    pub(crate) pipes: HashMap<Token, Pipe>,
    /// What rules allow streams to carry.
    pub(crate) caps: Caps,
    /// The pipes whose streams end here and can be resumed, by the streams' ids.
    pub(crate) resumable_pipes: HashMap<String, Token>,
    /// The pipes whose streams migrate.
    pub(crate) migrations: BTreeMap<Token, Migration>,
    /// Bytes that all resumable streams retain.
    pub(crate) retained: usize,
    pub(crate) checks: HashMap<Token, Check>,
    pub(crate) advertisements: Advertisements,
    pub(crate) known_file: KnownFile,
    pub(crate) handshakes: HandshakeLimiter,
    /// The sources of this daemon's connections to itself, by an address that other hosts have, too.
    pub(crate) self_connections: BTreeSet<(IpAddr, u16)>,
    pub(crate) own_addresses: OwnAddresses,
    /// When the links are measured.
    pub(crate) next_measurement: u64,
    /// Commands that got SIGTERM, and are not reaped yet.
    pub(crate) children: Vec<Child>,
    pub(crate) streams: HashMap<Stream, StreamOwner>,
    /// Links that may have output or events.
    pub(crate) unflushed: BTreeSet<Token>,
    /// Descriptors and pipes that have more to do than one pass allows.
    pub(crate) runnable: VecDeque<Token>,
    /// The buffer for reads of links.
    pub(crate) link_buffer: Vec<u8>,
    pub(crate) batch: Batch,
    /// The buffer for reads of pipes.
    pub(crate) pipe_buffer: Vec<u8>,
    pub(crate) log: Log,
    pub(crate) stopping: bool,
    pub(crate) notifier: Notifier,
    /// The control socket.
    pub(crate) listener: OwnedFd,
    pub(crate) runtime: Runtime,
    pub(crate) pools: Pools,
    _lock: Lock,
}

impl Daemon {
    /// A daemon that listens at its port and its control socket. [`Daemon::run`] makes it work.
    pub fn new(
        grid: Grid,
        host: &str,
        credentials: Result<Credentials, String>,
        runtime: Runtime,
    ) -> Result<Self, StartError> {
        let own_index = start::own_index(&grid, host)?;
        // Before it listens: the port may be taken by another daemon of this user.
        let (lock, _) = (runtime.claim()?, std::fs::remove_file(runtime.socket()));
        let ports = start::listen(&grid, own_index, credentials.as_ref().err())?;
        let listener = socket::listen_unix(&runtime.socket()).map_err(|errno| StartError::Local { errno })?;
        let (now, (known_file, problem)) = (now_ns(), KnownFile::new(runtime.known()));
        let daemon = Self {
            peers: grid.hosts.iter().map(|_| Peer::new(now)).collect(),
            pools: Pools::new(grid.pools.clone()),
            grid,
            source: Source::default(),
            stack: None,
            credentials,
            own_index,
            instance: process::random(),
            started: now,
            now,
            poll: Poll::new().map_err(|errno| StartError::System { errno })?,
            last_token: 0,
            descriptors: HashMap::new(),
            ports: HashMap::new(),
            links: HashMap::new(),
            dials: HashMap::new(),
            punches: HashMap::new(),
            trials: HashMap::new(),
            clients: HashMap::new(),
            forwards: HashMap::new(),
            datagrams: Datagrams::default(),
            calls: HashMap::new(),
            egresses: HashMap::new(),
            parked: HashMap::new(),
            decoys: Decoys::open(),
            connections: Connections::default(),
            hosts_written: String::new(),
            pipes: HashMap::new(),
            caps: Caps::default(),
            resumable_pipes: HashMap::new(),
            migrations: BTreeMap::new(),
            retained: 0,
            checks: HashMap::new(),
            advertisements: Advertisements::new(),
            known_file,
            handshakes: HandshakeLimiter::default(),
            self_connections: BTreeSet::new(),
            own_addresses: OwnAddresses::new(),
            next_measurement: now,
            children: Vec::new(),
            streams: HashMap::new(),
            unflushed: BTreeSet::new(),
            runnable: VecDeque::new(),
            link_buffer: vec![0; LINK_READ],
            batch: Batch::default(),
            pipe_buffer: vec![0; PIPE_READ],
            log: Log::new(now),
            stopping: false,
            notifier: Notifier::new(now),
            listener,
            runtime,
            _lock: lock,
        };
        daemon.begin(ports, problem.as_deref()).map_err(|errno| StartError::System { errno })
    }

    /// Listens, logs what is wrong with its files, and writes the hosts file for programs.
    fn begin(mut self, ports: Vec<OwnedFd>, problem: Option<&str>) -> Result<Self, Errno> {
        self.register(ports)?;
        problem.iter().for_each(|problem| self.log_line(problem));
        self.write_hosts();
        self.open_relay_quic();
        Ok(self)
    }

    /// This host.
    pub(crate) fn own(&self) -> &Host {
        &self.grid.hosts[self.own_index]
    }

    /// The name of a host.
    pub(crate) fn name(&self, host: usize) -> &str {
        self.grid.hosts.get(host).map_or("?", |host| host.name.as_str())
    }

    /// A token that was never used.
    pub(crate) fn new_token(&mut self) -> Token {
        self.last_token += 1;
        self.last_token
    }

    /// Writes a line to the log.
    pub(crate) fn log_line(&mut self, text: &str) {
        self.log.write(self.now, false, text);
    }

    /// Writes a line about a peer that has not authenticated.
    pub(crate) fn log_unauthenticated(&mut self, text: &str) {
        self.log.write(self.now, true, text);
    }

    fn register(&mut self, ports: Vec<OwnedFd>) -> Result<(), Errno> {
        let token = self.new_token();
        self.poll.add_listener(&self.listener, token)?;
        self.descriptors.insert(token, Descriptor::Listener);
        // Before the daemon is reported as up: a SIGHUP after that does not end it.
        self.heed_hangups()?;
        self.heed_addresses()?;
        self.add_ports(ports)
    }

    /// Adds listeners for other daemons.
    pub(crate) fn add_ports(&mut self, ports: Vec<OwnedFd>) -> Result<(), Errno> {
        for port in ports {
            let token = self.new_token();
            self.poll.add_listener(&port, token)?;
            self.descriptors.insert(token, Descriptor::Port);
            self.ports.insert(token, port);
        }
        Ok(())
    }
}
