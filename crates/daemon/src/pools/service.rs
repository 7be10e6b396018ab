//! The thread of pools. It is begun when the first program asks for a pool, or the first daemon, and lives as long as the daemon.

use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use madrigal_pools::wire::{self, Reply};
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
use crate::socket;
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
pub(crate) struct Pools {
    /// As they were when the daemon was started.
    settings: PoolSettings,
    service: Option<Service>,
}

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
}

impl Pools {
    pub(crate) fn new(settings: PoolSettings) -> Self {
        Self { settings, service: None }
    }

    /// The settings that count.
    pub(crate) fn settings(&self) -> &PoolSettings {
        &self.settings
    }

    /// Hands something to the thread, which is begun if there is none.
    pub(super) fn hand(&mut self, what: Handed, begin: impl FnOnce() -> Beginning) -> Result<(), String> {
        let what = match &self.service {
            Some(service) => match service.take(what) {
                Ok(()) => return Ok(()),
                // It has ended.
                Err(SendError(what)) => what,
            },
            None => what,
        };
        let begun = Service::begin(|set, bell| Core::new(begin(), self.settings.clone(), set, bell));
        let service = self.service.insert(begun.map_err(|errno| format!("cannot begin a thread: {errno}"))?);
        service.take(what).map_err(|_| "the thread of pools has ended: see the daemon's log".to_owned())
    }

    /// The pools that this daemon knows.
    pub(crate) fn status(&self) -> Vec<PoolStatus> {
        self.service.as_ref().map_or_else(Vec::new, |service| lock(&service.core).status())
    }
}

impl Service {
    fn begin(core: impl FnOnce(Arc<OwnedFd>, &Arc<OwnedFd>) -> Core) -> Result<Self, Errno> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let set = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        epoll::add(&set, &bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let (hand, handed) = channel();
        let core = Arc::new(Mutex::new(core(Arc::clone(&set), &bell)));
        let (its_core, its_bell) = (Arc::clone(&core), Arc::clone(&bell));
        let run = move || {
            let ended = panic::catch_unwind(AssertUnwindSafe(|| run(&its_core, &set, &its_bell, &handed)));
            // A panic, which is in the log. Programs and daemons are told by the ends of their sockets.
            if ended.is_err() {
                lock(&its_core).end(set);
            }
        };
        let begun = std::thread::Builder::new().name("pools".to_owned()).spawn(run);
        begun.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Self { core, hand, bell })
    }

    fn take(&self, what: Handed) -> Result<(), SendError<Handed>> {
        self.hand.send(what)?;
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        Ok(())
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
    fn new(
        Beginning { control, location }: Beginning,
        settings: PoolSettings,
        set: Arc<OwnedFd>,
        bell: &Arc<OwnedFd>,
    ) -> Self {
        let store: Box<dyn Store> = match settings.etcd {
            Some(etcd) => Box::new(Etcd::new(etcd, Arc::clone(bell))),
            None => Box::new(KeeperLink::new(control, settings.keeper)),
        };
        Self { connections: Connections::new(set), front: Front::new(location), keeper: Keeper::default(), store }
    }

    /// Closes all sockets, and gives the store up.
    fn end(&mut self, set: Arc<OwnedFd>) {
        let store = Box::new(KeeperLink::new(PathBuf::new(), String::new()));
        let (front, keeper) = (Front::new(String::new()), Keeper::default());
        *self = Self { connections: Connections::new(set), front, keeper, store };
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
            Handed::Program(socket, ..) => {
                let why = format!("{PROGRAMS} programs of this host are in pools: there is no room for more");
                let _ = socket::send(&socket, &wire::encode(&Reply::Dead { why }));
            }
            Handed::Peer(_) => {}
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;

    use madrigal_pools::record::{Entry, Record};
    use madrigal_pools::wire::{Request, encode};

    use super::*;

    /// A store with a fault.
    struct Faulty;

    impl Store for Faulty {
        fn watch(&mut self, _: u64, _: &str, _: &mut Connections) -> Result<(), String> {
            panic!("a fault, for a test");
        }
        fn forget(&mut self, _: &str, _: &mut Connections) {}
        fn append(&mut self, _: &str, _: Record, _: &mut Connections) {}
        fn take_told(&mut self, _: Option<(Token, bool)>, _: &mut Connections) -> Vec<Told> {
            Vec::new()
        }
        fn place(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn a_fault_ends_the_sockets_and_a_new_thread_begins() {
        let faulty = |set, _: &Arc<OwnedFd>| Core {
            connections: Connections::new(set),
            front: Front::new(String::new()),
            keeper: Keeper::default(),
            store: Box::new(Faulty),
        };
        let mut pools = Pools::new(PoolSettings::default());
        pools.service = Some(Service::begin(faulty).unwrap());
        let mut program = |bytes: Vec<u8>| {
            let (ours, its) = UnixStream::pair().unwrap();
            let begin = || Beginning { control: PathBuf::new(), location: String::new() };
            pools.hand(Handed::Program(ours.into(), None, bytes), begin).unwrap();
            its
        };
        let mut idle = program(Vec::new());
        let entry = Entry::Join { size: None, rank: None, location: String::new(), blob: Vec::new() };
        let mut joins = program(encode(&Request { number: 1, pool: "p".to_owned(), entry }));
        for socket in [&mut idle, &mut joins] {
            assert_eq!(socket.read_to_end(&mut Vec::new()).unwrap(), 0);
        }
        // The thread may take a moment to end; what it is handed until then ends with it.
        let nonsense = encode(&Request { number: 1, pool: String::new(), entry: Entry::Alive });
        let mut answer = Vec::new();
        while answer.is_empty() {
            program(nonsense.clone()).read_to_end(&mut answer).unwrap();
        }
        assert!(String::from_utf8_lossy(&answer).contains("only daemons write that"));
    }
}
