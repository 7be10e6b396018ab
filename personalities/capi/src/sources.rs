//! The caller's own descriptors and timers, in the same engine as the links.
//!
//! Descriptors are in an epoll set made by the C library, which the engine watches as one source. Under `madrigal exec` SysWrap may handle
//! a socket of the program's, and it sees only sets made by the C library. It leaves sockets in a set inside another set alone, so there
//! is an outer set.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use madrigal::engine::{Engine, Next, Registration, Source, Work};
use madrigal::time;
use madrigal_progress::driver::Signal;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::failure::Failure;
use crate::slot::lock;

/// The classes of these sources.
pub(crate) const DESCRIPTORS: &str = "descriptors";
pub(crate) const TIMERS: &str = "timers";

/// Events taken at a time.
const EVENTS: usize = 64;

/// The callback of a source: its argument is the events of a descriptor, or how often a timer ran out.
pub(crate) type Call = Box<dyn Fn(i64) + Send + Sync>;

/// All descriptors of the caller's in an engine.
pub(crate) struct Descriptors {
    inner: Arc<Set>,
    /// The set that holds the set; no thread waits for it.
    _outer: Epoll,
    _registration: Registration,
}

/// One of the caller's descriptors.
pub(crate) struct Watch {
    set: Arc<Set>,
    fd: c_int,
    key: u64,
}

struct Set {
    epoll: Epoll,
    watches: Mutex<Watches>,
    next: AtomicU64,
}

#[derive(Default)]
struct Watches {
    calls: HashMap<u64, Arc<Call>>,
    /// The watch of a descriptor: if the program closed a descriptor before its watch, a later one may have the same number.
    keys: HashMap<c_int, u64>,
}

fn failed(what: &str) -> impl Fn(nix::Error) -> Failure {
    move |errno| Failure::system(errno as c_int, what)
}

impl Descriptors {
    pub(crate) fn begin(engine: &Arc<Engine>) -> Result<Arc<Self>, Failure> {
        let set = || Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("cannot make an epoll set"));
        let (epoll, outer) = (set()?, set()?);
        outer.add(&epoll.0, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(failed("cannot make an epoll set"))?;
        let inner = Arc::new(Set { epoll, watches: Mutex::default(), next: AtomicU64::new(0) });
        let (signal, source) = (Arc::clone(&inner) as Arc<dyn Signal>, Arc::clone(&inner) as Arc<dyn Source>);
        let registered = engine.register(engine.class(DESCRIPTORS), Some(signal), source);
        let registration =
            registered.map_err(|errno| Failure::system(errno.raw_os_error(), "cannot watch an epoll set"))?;
        Ok(Arc::new(Self { inner, _outer: outer, _registration: registration }))
    }

    /// Adds a descriptor: `call` is called as long as it is ready, once a turn of the engine.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, number: c_int, events: u32, call: Call) -> Result<Watch, Failure> {
        let set = &self.inner;
        let key = set.next.fetch_add(1, Ordering::Relaxed);
        // A thread that gets an event finds its callback under the lock.
        let mut watches = lock(&set.watches);
        let added = set.epoll.add(fd, EpollEvent::new(flags(events), key));
        added.map_err(failed(&format!("cannot watch descriptor {number}")))?;
        watches.calls.insert(key, Arc::new(call));
        watches.keys.insert(number, key);
        drop(watches);
        Ok(Watch { set: Arc::clone(set), fd: number, key })
    }
}

impl Watch {
    /// Other events count from now on.
    pub(crate) fn change(&self, fd: BorrowedFd<'_>, events: u32) -> Result<(), Failure> {
        let mut event = EpollEvent::new(flags(events), self.key);
        let watches = lock(&self.set.watches);
        let changed = if watches.keys.get(&self.fd) == Some(&self.key) {
            self.set.epoll.modify(fd, &mut event)
        } else {
            Err(nix::Error::EBADF)
        };
        changed.map_err(failed(&format!("cannot change what is watched of descriptor {}", self.fd)))
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// The descriptor is the caller's alone again.
    pub(crate) fn end(&self, fd: BorrowedFd<'_>) {
        let mut watches = lock(&self.set.watches);
        let call = watches.calls.remove(&self.key);
        if watches.keys.get(&self.fd) == Some(&self.key) {
            watches.keys.remove(&self.fd);
            // An error means that the caller closed it before.
            let _ = self.set.epoll.delete(fd);
        }
        drop(watches);
        drop(call);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let call = lock(&self.set.watches).calls.remove(&self.key);
        drop(call);
    }
}

impl Signal for Set {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn woken(&self) {}
}

impl Source for Set {
    fn work(&self, budget: u32) -> Work {
        let mut events = [EpollEvent::empty(); EVENTS];
        let most = (budget as usize).clamp(1, EVENTS);
        let ready = events.get_mut(..most).map_or(Ok(0), |room| self.epoll.wait(room, EpollTimeout::ZERO));
        let ready = ready.unwrap_or(0);
        if ready == 0 {
            return Work { count: 0, next: Next::Park };
        }
        for event in events.iter().take(ready) {
            let call = lock(&self.watches).calls.get(&event.data()).cloned();
            if let Some(call) = call {
                call(i64::from(event.events().bits()));
            }
        }
        Work { count: ready as u32, next: Next::Again }
    }

    fn arm(&self) -> bool {
        false
    }
}

/// The numbers are those of poll(2) and epoll(7), which are the same.
fn flags(events: u32) -> EpollFlags {
    EpollFlags::from_bits_truncate(events as c_int)
}

/// A timer of the caller's.
pub(crate) struct Timer {
    clock: Arc<Clock>,
}

struct Clock {
    call: Call,
    /// When it runs out, in nanoseconds of [`time::now_ns`].
    at: AtomicU64,
    /// How long after that again; 0: never.
    period: u64,
    /// `None`: it is over.
    registration: Mutex<Option<Arc<Registration>>>,
}

/// The time of a timer that does not run out any more.
const NEVER: u64 = u64::MAX;

impl Timer {
    /// A timer that, once it is started, runs out `delay` nanoseconds from now, and then every `period`, if that is not 0.
    pub(crate) fn begin(engine: &Arc<Engine>, delay: u64, period: u64, call: Call) -> Result<Self, Failure> {
        let at = time::now_ns().saturating_add(delay);
        let clock = Arc::new(Clock { call, at: AtomicU64::new(at), period, registration: Mutex::new(None) });
        let source = Arc::clone(&clock) as Arc<dyn Source>;
        let registered = engine.register(engine.class(TIMERS), None, source);
        let registration = registered.map_err(|errno| Failure::system(errno.raw_os_error(), "cannot set a timer"))?;
        *lock(&clock.registration) = Some(Arc::new(registration));
        Ok(Self { clock })
    }

    /// From now on it runs out.
    pub(crate) fn start(&self) {
        if let Some(registration) = &*lock(&self.clock.registration) {
            registration.wake_at(self.clock.at.load(Ordering::Relaxed));
        }
    }

    /// It does not run out any more.
    pub(crate) fn end(&self) {
        // It keeps the clock, and the clock keeps it.
        let registration = lock(&self.clock.registration).take();
        drop(registration);
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.end();
    }
}

impl Source for Clock {
    fn work(&self, _budget: u32) -> Work {
        let nothing = Work { count: 0, next: Next::Park };
        let (now, at) = (time::now_ns(), self.at.load(Ordering::Relaxed));
        let Some(registration) = lock(&self.registration).clone().filter(|_| now >= at) else { return nothing };
        // Ran out so often since it was looked at last.
        let count = (now - at).checked_div(self.period).map_or(1, |more| more.saturating_add(1));
        let next = if self.period == 0 { NEVER } else { at.saturating_add(count.saturating_mul(self.period)) };
        self.at.store(next, Ordering::Relaxed);
        if next != NEVER {
            registration.wake_at(next);
        }
        (self.call)(i64::try_from(count).unwrap_or(i64::MAX));
        Work { count: 1, next: Next::Park }
    }

    fn arm(&self) -> bool {
        false
    }
}
