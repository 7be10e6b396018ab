//! The `shm` driver: streams of bytes between processes of one user on one host, through shared memory.
//!
//! A listener is a Unix socket in the shared directory. The connecting side makes an arena (one for each peer process and name, used
//! by all connections to it), takes a slot of it, and passes the arena's descriptor and the slot's number over the socket; from then
//! on the socket carries nothing but doorbells, and its end is the end of the connection.

use madrigal_sys::fd::Fd;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use madrigal_base::error::{AcceptError, ConnectError, ListenError, Os};
use madrigal_base::ids::Reach;
use madrigal_base::locator::{Address, Locator};
use madrigal_progress::driver::{Connecting, Connection, Driver, Facts, Listener, Place, Signal};
use madrigal_sys::{Errno, process, raw};
use rustix::event::epoll;
use rustix::net::SocketFlags;

use super::directory::{self, BindError, Bound};
use super::early::{self, Sweep};
use super::ends::ends;
use super::hello::{self, Hello, Received};
use super::link::Side;
use super::shared::Shared;

/// The driver.
pub(crate) struct Shm;

const NAME: &str = "shm";
const TAKES: &str = "shm://NAME";
/// Connections whose hello has not come yet; beyond them the oldest is dropped.
const HALFWAY: usize = 64;

impl Driver for Shm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn facts(&self) -> Facts {
        Facts { reach: Reach::Host, one_user: true, takes: TAKES }
    }

    fn usable(&self, place: &Place) -> Result<(), String> {
        directory::check(&place.directory)?;
        let made = madrigal_sys::mem::sealed_memfd(c"madrigal-probe", 4096);
        made.map(drop).map_err(|errno| format!("no shared memory can be made: {}", os(errno)))
    }

    fn address_for(&self, name: &str) -> Option<Locator> {
        Locator::name(NAME, name).ok()
    }

    fn listen(&self, at: &Locator, place: &Place) -> Result<Box<dyn Listener>, ListenError> {
        let Address::Name(name) = at.address() else {
            return Err(ListenError::BadAddress { at: at.clone(), takes: TAKES });
        };
        let failed = |errno| ListenError::System { at: at.clone(), os: os(errno) };
        let bound = directory::bind(&place.directory, name).map_err(|error| match error {
            BindError::InUse => ListenError::InUse { at: at.clone() },
            BindError::Unfit(why) => ListenError::Unusable { at: at.clone(), why },
            BindError::Os(errno) => failed(errno),
        })?;
        let arrivals = Arrivals::new(&bound.socket).map_err(failed)?;
        Ok(Box::new(ShmListener {
            bound,
            arrivals: Arc::new(arrivals),
            halfway: Vec::new(),
            at: at.clone(),
            _sweep: Sweep,
        }))
    }

    fn connect(&self, to: &Locator, place: &Place) -> Result<Connecting, ConnectError> {
        let Address::Name(name) = to.address() else {
            return Err(ConnectError::BadAddress { to: to.clone(), takes: TAKES });
        };
        let failed = |errno| match errno {
            Errno::NOENT | Errno::CONNREFUSED => ConnectError::Refused { to: to.clone() },
            Errno::AGAIN => ConnectError::Busy { to: to.clone() },
            errno => ConnectError::System { to: to.clone(), os: os(errno) },
        };
        let socket = directory::connect(&place.directory, name).map_err(failed)?;
        let (peer, owner) = raw::peer_credentials(socket.as_raw_fd()).map_err(failed)?;
        if owner != own_uid() {
            return Err(ConnectError::OtherUser { to: to.clone(), owner });
        }
        introduce(socket, peer, name, to).map(Connecting::Done).map_err(failed)
    }
}

/// Makes our side of a connection over a fresh socket, and sends the peer a hello.
fn introduce(socket: Fd, peer: u32, name: &str, to: &Locator) -> Result<Connection, Errno> {
    early::sweep();
    let shared = Known::arena_for(peer, name)?;
    let slot = shared.take_slot()?;
    let arena = Arc::clone(&shared);
    let side = Arc::new(Side::new(shared, slot, 0, socket, to.clone()).ok_or(Errno::NOSPC)?);
    let ends = ends(&side);
    let fd = arena.fd.as_ref().ok_or(Errno::BADF)?;
    match hello::send(side.descriptor(), Hello { arena: arena.arena.id(), slot }, fd) {
        // Accepted and closed at once: the endpoint will report it.
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(errno),
    }
    Ok(Connection { ends, signal: side, local: to.clone(), peer: to.clone() })
}

/// What a listener sleeps on: its socket, and connections whose hello has not come.
struct Arrivals(Fd);

impl Arrivals {
    fn new(socket: &Fd) -> Result<Self, Errno> {
        let arrivals = Self(epoll::create(epoll::CreateFlags::CLOEXEC)?.into());
        arrivals.watch(socket)?;
        Ok(arrivals)
    }

    fn watch(&self, socket: &Fd) -> Result<(), Errno> {
        epoll::add(&self.0, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
    }
}

impl Signal for Arrivals {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn woken(&self) {}
}

struct ShmListener {
    bound: Bound,
    arrivals: Arc<Arrivals>,
    halfway: Vec<Fd>,
    at: Locator,
    _sweep: Sweep,
}

impl Listener for ShmListener {
    fn accept(&mut self) -> Result<Option<Connection>, AcceptError> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            match rustix::net::accept_with(&self.bound.socket, flags).map(Fd::from) {
                Ok(socket) if !same_user(&socket) => {}
                Ok(socket) => match self.greet(socket) {
                    Some(endpoint) => return Ok(Some(endpoint)),
                    None => continue,
                },
                Err(Errno::AGAIN) => break,
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(errno) => return Err(AcceptError::System { at: self.at.clone(), os: os(errno) }),
            }
        }
        for _ in 0..self.halfway.len() {
            let socket = self.halfway.remove(0);
            let _ = epoll::delete(&self.arrivals.0, &socket);
            if let Some(endpoint) = self.greet(socket) {
                return Ok(Some(endpoint));
            }
        }
        Ok(None)
    }

    fn locator(&self) -> &Locator {
        &self.at
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.arrivals) as Arc<dyn Signal>
    }
}

impl ShmListener {
    /// Reads the hello of a connection; without one the connection waits among the halfway ones.
    fn greet(&mut self, socket: Fd) -> Option<Connection> {
        match hello::receive(&socket) {
            Received::Whole(hello, arena) => accepted(socket, hello, arena, &self.at),
            Received::Bad => None,
            Received::NotYet => {
                if self.halfway.len() >= HALFWAY {
                    self.halfway.remove(0);
                }
                if self.arrivals.watch(&socket).is_ok() {
                    self.halfway.push(socket);
                }
                None
            }
        }
    }
}

/// Makes the accepting side of a connection. `None`: the arena is not what it should be; the peer sees us close.
fn accepted(socket: Fd, hello: Hello, arena: Fd, at: &Locator) -> Option<Connection> {
    let (pid, _) = raw::peer_credentials(socket.as_raw_fd()).ok()?;
    let peer = Locator::name(NAME, &format!("pid-{pid}")).unwrap_or_else(|_| at.clone());
    let shared = Known::attached(hello.arena, arena)?;
    let side = Arc::new(Side::new(shared, hello.slot, 1, socket, peer.clone())?);
    Some(Connection { ends: ends(&side), signal: side, local: at.clone(), peer })
}

/// The arenas of this process, so that connections between the same two processes share one.
#[derive(Default)]
struct Known {
    /// Made by us: by own process, peer process, listener's name.
    made: HashMap<(u32, u32, String), Weak<Shared>>,
    /// Made by peers: by the arena's random number.
    attached: HashMap<u64, Weak<Shared>>,
}

impl Known {
    fn lock() -> MutexGuard<'static, Self> {
        static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
        KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arena_for(peer: u32, name: &str) -> Result<Arc<Shared>, Errno> {
        let key = (process::own_pid(), peer, name.to_owned());
        let mut known = Self::lock();
        if let Some(shared) = known.made.get(&key).and_then(Weak::upgrade) {
            return Ok(shared);
        }
        let shared = Arc::new(Shared::create()?);
        known.made.retain(|_, shared| shared.strong_count() > 0);
        known.made.insert(key, Arc::downgrade(&shared));
        Ok(shared)
    }

    fn attached(id: u64, fd: Fd) -> Option<Arc<Shared>> {
        let mut known = Self::lock();
        if let Some(shared) = known.attached.get(&id).and_then(Weak::upgrade) {
            return Some(shared);
        }
        let shared = Arc::new(Shared::attach(fd, id).ok()?);
        known.attached.retain(|_, shared| shared.strong_count() > 0);
        known.attached.insert(id, Arc::downgrade(&shared));
        Some(shared)
    }
}

fn same_user(socket: &Fd) -> bool {
    raw::peer_credentials(socket.as_raw_fd()).is_ok_and(|(_, uid)| uid == own_uid())
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn os(errno: Errno) -> Os {
    Os(errno.raw_os_error())
}
