//! The thread of pools. It is begun when the first program asks for a pool, or the first daemon, and lives as long as the daemon.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use madrigal_sys::time::now_ns;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use super::connections::{Connections, Kind};
use super::etcd::Etcd;
use super::front::Front;
use super::keeper::Keeper;
use super::link::KeeperLink;
use super::store::{Store, Told};
use crate::control::status::PoolStatus;
use crate::grid::PoolSettings;
use crate::poll::Token;
use crate::units::SECOND;

/// The most sockets of programs.
const PROGRAMS: usize = 8192;
/// The most streams of daemons.
const PEERS: usize = 2048;

/// The token of the bell: no socket has it.
const BELL: Token = 0;
/// Sockets that one pass looks at.
const READY: usize = 256;

/// What the thread is handed.
pub(super) enum Handed {
    /// The socket of a program, its process, and what it has sent.
    Program(OwnedFd, Option<OwnedFd>, Vec<u8>),
    /// The stream of a daemon.
    Peer(OwnedFd),
}

/// The thread, seen from the daemon.
#[derive(Default)]
pub(crate) struct Pools(Option<Service>);

struct Service {
    core: Arc<Mutex<Core>>,
    hand: Sender<Handed>,
    bell: Arc<OwnedFd>,
}

/// How the thread is begun.
pub(super) struct Beginning {
    /// The control socket of this daemon.
    pub(super) control: PathBuf,
    /// `host@site` of this daemon.
    pub(super) location: String,
    pub(super) settings: PoolSettings,
}

impl Pools {
    /// Hands something to the thread, which is begun if there is none.
    pub(super) fn hand(&mut self, what: Handed, begin: impl FnOnce() -> Beginning) -> Result<(), String> {
        if self.0.is_none() {
            self.0 = Some(Service::begin(begin()).map_err(|errno| format!("cannot begin a thread: {errno}"))?);
        }
        let Some(service) = &self.0 else { return Ok(()) };
        service.hand.send(what).map_err(|_| "the thread of pools has ended: see the daemon's log".to_owned())?;
        let _ = rustix::io::write(&service.bell, &1u64.to_ne_bytes());
        Ok(())
    }

    /// The pools that this daemon knows.
    pub(crate) fn status(&self) -> Vec<PoolStatus> {
        self.0.as_ref().map_or_else(Vec::new, |service| lock(&service.core).status())
    }
}

impl Service {
    fn begin(beginning: Beginning) -> Result<Self, Errno> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let set = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        epoll::add(&set, &bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let (hand, handed) = channel();
        let core = Arc::new(Mutex::new(Core::new(beginning, Arc::clone(&set), &bell)));
        let (its_core, its_bell) = (Arc::clone(&core), Arc::clone(&bell));
        let run = move || run(&its_core, &set, &its_bell, &handed);
        let begun = std::thread::Builder::new().name("pools".to_owned()).spawn(run);
        begun.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Self { core, hand, bell })
    }
}

/// What the thread works on; the daemon looks at it for its status.
struct Core {
    connections: Connections,
    front: Front,
    keeper: Keeper,
    store: Box<dyn Store>,
}

impl Core {
    fn new(Beginning { control, location, settings }: Beginning, set: Arc<OwnedFd>, bell: &Arc<OwnedFd>) -> Self {
        let store: Box<dyn Store> = match settings.etcd {
            Some(etcd) => Box::new(Etcd::new(etcd, Arc::clone(bell))),
            None => Box::new(KeeperLink::new(control, settings.keeper)),
        };
        Self { connections: Connections::new(set), front: Front::new(location), keeper: Keeper::default(), store }
    }

    /// What there is no room for is closed.
    fn take(&mut self, handed: Handed) {
        let Self { connections, front, keeper, store } = self;
        match handed {
            Handed::Program(socket, process, inbox) if connections.count(Kind::Program) < PROGRAMS => {
                if let Ok(token) = connections.add(Kind::Program, socket, process, inbox) {
                    front.begin(token);
                    front.handle(token, store.as_mut(), connections);
                }
            }
            Handed::Peer(stream) if connections.count(Kind::Peer) < PEERS => {
                if let Ok(token) = connections.add(Kind::Peer, stream, None, Vec::new()) {
                    keeper.begin(token);
                }
            }
            Handed::Program(..) | Handed::Peer(_) => {}
        }
    }

    /// A socket is readable, or has ended.
    fn handle(&mut self, token: Token) {
        let ended = self.connections.read(token);
        let Self { connections, front, keeper, store } = self;
        match connections.kind(token) {
            Some(Kind::Program) => {
                front.handle(token, store.as_mut(), connections);
                if ended {
                    front.end(token, store.as_mut(), connections);
                }
            }
            Some(Kind::Peer) => {
                keeper.handle(token, connections);
                if ended {
                    keeper.end(token, connections);
                }
            }
            Some(Kind::Keeper) => {
                let told = store.take_told(Some((token, ended)), connections);
                told.into_iter().for_each(|told| self.tell(told));
            }
            None => {}
        }
    }

    fn tell(&mut self, told: Told) {
        self.front.handle_told(told, now_ns(), self.store.as_mut(), &mut self.connections);
    }

    /// What is left to do in a pass.
    fn settle(&mut self) {
        let told = self.store.take_told(None, &mut self.connections);
        told.into_iter().for_each(|told| self.tell(told));
        let Self { connections, front, keeper, store } = self;
        connections.flush_all();
        front.handle_timers(now_ns(), store.as_mut(), connections);
        front.settle(store.as_mut(), connections);
        keeper.settle(connections);
        connections.flush_all();
    }

    fn status(&self) -> Vec<PoolStatus> {
        let kept = self.keeper.pools().map(|(name, pool)| PoolStatus::new(name, pool, "this daemon".to_owned()));
        let is_kept = |name: &String| self.keeper.pools().any(|(kept, _)| kept == name);
        let copies = self.front.pools().filter(|(name, _)| !is_kept(name));
        let copies = copies.map(|(name, pool)| PoolStatus::new(name, pool, self.store.place()));
        kept.chain(copies).collect()
    }
}

/// The thread.
fn run(core: &Mutex<Core>, set: &OwnedFd, bell: &OwnedFd, handed: &Receiver<Handed>) {
    let mut ready: Vec<Event> = Vec::with_capacity(READY);
    loop {
        let left = lock(core).front.deadline().map(|at| at.saturating_sub(now_ns()));
        let limit = left.map(|ns| Timespec { tv_sec: (ns / SECOND) as i64, tv_nsec: (ns % SECOND) as i64 });
        ready.clear();
        // An interrupted wait has nothing, and is done again.
        let _ = epoll::wait(set, rustix::buffer::spare_capacity(&mut ready), limit.as_ref());
        let mut core = lock(core);
        for token in ready.iter().map(|event| event.data.u64()) {
            if token == BELL {
                let _ = rustix::io::read(bell, &mut [0; 8]);
            } else {
                core.handle(token);
            }
        }
        while let Ok(what) = handed.try_recv() {
            core.take(what);
        }
        core.settle();
    }
}

fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}
