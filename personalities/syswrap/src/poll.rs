//! poll(2), select(2) and their kin over sets that mix ring sockets with anything else.
//!
//! For a ring socket the kernel is asked for doorbells and the end only; what the program is told comes from [`epoll::readiness`].
//! All other descriptors are the kernel's business, in the same call.

use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::Ordering;

use libc::{
    POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, POLLWRNORM, fd_set, pollfd, timeval,
};
use madrigal_netaccess::wait::{Peer, Waiter};
use madrigal_sys::{Errno, raw, time};

use crate::epoll::{self, Limits};
use crate::process::POLICY;
use crate::session::{self, Me, View, phase};
use crate::sock::{self, Ref, mode};
use crate::table::{self, Kind};
use crate::{plain, send, slab};

/// A sleep with rings in it is cut after this long; see [`epoll`].
const CUT_NS: u64 = 1_000_000_000;
/// The kernel is asked this often while spinning on rings.
const KERNEL_NS: u64 = 10_000;
/// Descriptors handled without asking for memory.
const SMALL: usize = 64;

/// Ring answers after which the kernel is asked all the same, and after how long.
const KERNEL_ANSWERS: u32 = 64;
const KERNEL_LATE_NS: u64 = 50_000;

/// What a thread's polls remember.
struct Memory {
    waiter: Waiter,
    answers: Cell<u32>,
    kernel_at: Cell<u64>,
}

impl Memory {
    /// Whether the kernel has to be asked, though rings alone could answer.
    fn kernel_due(&self) -> bool {
        self.answers.set(self.answers.get() + 1);
        self.answers.get() > KERNEL_ANSWERS || time::now_ns() > self.kernel_at.get() + KERNEL_LATE_NS
    }

    fn kernel_asked(&self) {
        self.answers.set(0);
        self.kernel_at.set(time::now_ns());
    }
}

std::thread_local! {
    static MEMORY: Memory =
        const { Memory { waiter: Waiter::new(), answers: Cell::new(0), kernel_at: Cell::new(0) } };
}

/// How a poll(2) ended.
pub(crate) enum Polled {
    /// Nothing of ours among the descriptors, or no ring and no reason to spin: call the C library.
    Pass,
    Done(Result<usize, Errno>),
    /// A point where a thread can be cancelled; then poll again.
    Again,
}

/// The two names of each wish (poll(2)); some programs use only the second.
const READABLE: i16 = POLLIN | POLLRDNORM;
const WRITABLE: i16 = POLLOUT | POLLWRNORM;

/// Whether `fd` is something whose waits are ours.
#[inline]
pub(crate) fn is_ours(fd: c_int) -> bool {
    table::get(fd).is_some_and(|w| w.kind() != Kind::Foreign)
}

/// poll(2) with something of ours among the descriptors.
pub(crate) fn poll(fds: &mut [pollfd], limits: Limits) -> Polled {
    if !fds.iter().any(|p| has_ring(p.fd)) {
        return MEMORY.with(|memory| spin_plain(fds, limits, &memory.waiter)).map_or(Polled::Pass, Polled::Done);
    }
    let mut small = [const { None }; SMALL];
    let Some(mut places) = Scratch::new(&mut small, fds.len(), || None) else { return Polled::Pass };
    MEMORY.with(|memory| Poll { fds, limits, memory }.run(places.of()))
}

fn has_ring(fd: c_int) -> bool {
    match table::get(fd).map(|w| w.kind()) {
        Some(Kind::Socket) => sock::enter(fd).is_some_and(|s| plain::session_receives(&s) || plain::session_sends(&s)),
        Some(Kind::EventSet) => epoll::polled(fd).is_some(),
        _ => false,
    }
}

/// Looks again by system call, as the policy allows; `None`: let the C library sleep.
fn spin_plain(fds: &mut [pollfd], limits: Limits, waiter: &Waiter) -> Option<Result<usize, Errno>> {
    if limits.end == Some(0) || !limits.mask.is_null() {
        return None;
    }
    let mut wait = POLICY.begin(waiter, false);
    while wait.again(|| first_sender(fds)) {
        // SAFETY: no mask.
        match unsafe { raw::ppoll(fds, Some(time::timespec(0)), core::ptr::null()) } {
            Ok(0) if limits.left() == Some(0) => return Some(Ok(0)),
            Ok(0) => {}
            done => {
                wait.paid();
                return Some(done);
            }
        }
    }
    None
}

fn first_sender(fds: &[pollfd]) -> Peer {
    let tcp = fds.iter().find(|p| table::get(p.fd).is_some_and(|w| w.kind() == Kind::Socket));
    tcp.map_or(Peer::Unknown, |p| plain::sender_of(p.fd))
}

/// The C library slept since `since`: what this thread learns from it.
pub(crate) fn after_sleep(since: u64) {
    MEMORY.with(|memory| POLICY.slept(&memory.waiter, since));
}

/// What stands behind a descriptor of the set, held for the time of the call.
enum Place {
    Sock(Ref),
    Set(epoll::Polled),
}

/// Room for `n` values: on the stack, or in a mapping of its own.
struct Scratch<'a, T> {
    small: &'a mut [T],
    large: Option<*mut T>,
    n: usize,
}

impl<'a, T> Scratch<'a, T> {
    /// `make` gives the first values of a mapping; `small` holds its own.
    fn new(small: &'a mut [T; SMALL], n: usize, make: impl Fn() -> T) -> Option<Self> {
        let large = if n <= SMALL {
            None
        } else {
            let memory = slab::zeroed_pages(n.checked_mul(size_of::<T>())?)?.cast::<T>();
            for i in 0..n {
                // SAFETY: inside the fresh mapping, which is large enough and page-aligned.
                unsafe { memory.add(i).write(make()) };
            }
            Some(memory)
        };
        Some(Self { small, large, n })
    }

    fn of(&mut self) -> &mut [T] {
        match self.large {
            // SAFETY: our own mapping of `n` initialised values, borrowed through `self`.
            Some(memory) => unsafe { core::slice::from_raw_parts_mut(memory, self.n) },
            None => &mut self.small[..self.n],
        }
    }
}

impl<T> Drop for Scratch<'_, T> {
    fn drop(&mut self) {
        let Some(memory) = self.large else { return };
        for i in 0..self.n {
            // SAFETY: initialised in `new`, dropped once, here.
            unsafe { memory.add(i).drop_in_place() };
        }
        // SAFETY: exactly the mapping made in `new`.
        let _ = unsafe { rustix::mm::munmap(memory.cast(), self.n * size_of::<T>()) };
    }
}

struct Poll<'a> {
    fds: &'a mut [pollfd],
    limits: Limits,
    memory: &'a Memory,
}

impl Poll<'_> {
    fn run(&mut self, places: &mut [Option<Place>]) -> Polled {
        for (p, place) in self.fds.iter().zip(places.iter_mut()) {
            *place = match table::get(p.fd).map(|w| w.kind()) {
                Some(Kind::Socket) => sock::enter(p.fd).filter(|s| s.mode() == mode::SESSION).map(Place::Sock),
                Some(Kind::EventSet) => epoll::polled(p.fd).map(Place::Set),
                _ => None,
            };
        }
        let since = match self.spin(places) {
            Ok((0, since)) if self.limits.left() != Some(0) => since,
            other => return Polled::Done(other.map(|(n, _)| n)),
        };
        let result = self.sleep(places);
        POLICY.slept(&self.memory.waiter, since);
        match result {
            Ok(0) if self.limits.left() != Some(0) => Polled::Again,
            other => Polled::Done(other),
        }
    }

    /// Looks until something is ready or the policy says to sleep; also says since when it looked.
    fn spin(&mut self, places: &[Option<Place>]) -> Result<(usize, u64), Errno> {
        let n = self.ask_rings(places);
        if n > 0 && !self.memory.kernel_due() {
            return Ok((n, 0));
        }
        // The kernel has nothing to say at once of a wait for rings alone; it is asked while spinning.
        if self.limits.end == Some(0) || !places.iter().all(is_in_ring) {
            let n = self.look(places, Some(0))?;
            if n > 0 || self.limits.end == Some(0) {
                return Ok((n, 0));
            }
        }
        let mut wait = POLICY.begin(&self.memory.waiter, true);
        let (mut asked, mut looks) = (0, 0u32);
        while wait.again(|| peer(places)) {
            looks += 1;
            let mut n = self.ask_rings(places);
            if n == 0 && looks.is_multiple_of(8) {
                let now = time::now_ns();
                if asked != 0 && now > asked + KERNEL_NS {
                    n = self.look(places, Some(0))?;
                }
                asked = if asked == 0 || now > asked + KERNEL_NS { now } else { asked };
            }
            if n > 0 || looks.is_multiple_of(64) && self.limits.left() == Some(0) {
                wait.paid();
                return Ok((n, 0));
            }
        }
        Ok((0, wait.since()))
    }

    /// What the rings alone answer, without a system call.
    fn ask_rings(&mut self, places: &[Option<Place>]) -> usize {
        let mut n = 0;
        for (p, place) in self.fds.iter_mut().zip(places) {
            p.revents = match place {
                Some(Place::Sock(s)) if s.session.rx() == phase::RING && s.session.tx() == phase::RING => {
                    epoll::readiness(s, p.fd, p.events as u16 as u32) as i16 & (p.events | POLLERR | POLLHUP)
                }
                _ => 0,
            };
            n += usize::from(p.revents != 0);
        }
        n
    }

    /// One answer: the kernel's (asked for up to `timeout`) joined with the rings'.
    fn look(&mut self, places: &[Option<Place>], timeout: Option<u64>) -> Result<usize, Errno> {
        for (p, place) in self.fds.iter().zip(places) {
            if let Some(Place::Sock(s)) = place {
                epoll::relieve(s, p.fd);
            }
        }
        let mask = if timeout == Some(0) { core::ptr::null() } else { self.limits.mask };
        let mut small = [0; SMALL];
        let mut scratch = Scratch::new(&mut small, self.fds.len(), || 0).ok_or(Errno::NOMEM)?;
        let wanted = scratch.of();
        for ((p, place), keep) in self.fds.iter_mut().zip(places).zip(wanted.iter_mut()) {
            *keep = p.events;
            p.revents = 0;
            p.events = match place {
                Some(Place::Sock(s)) => kernel_events(s, p.events),
                _ => p.events,
            };
        }
        // SAFETY: the mask is the program's.
        let asked = unsafe { raw::ppoll(self.fds, timeout.map(time::timespec), mask) };
        self.memory.kernel_asked();
        let mut ready = 0;
        for ((p, place), keep) in self.fds.iter_mut().zip(places).zip(wanted.iter()) {
            p.events = *keep;
            if asked.is_ok() {
                join(p, place.as_ref());
            }
            ready += usize::from(p.revents != 0);
        }
        asked.map(|_| ready)
    }

    fn sleep(&mut self, places: &[Option<Place>]) -> Result<usize, Errno> {
        let stop = begin_sleep(self.fds, places);
        let cut = self.limits.left().unwrap_or(u64::MAX).min(longest_sleep(places).unwrap_or(CUT_NS));
        let before = time::now_ns();
        let result = self.look(places, Some(if stop { 0 } else { cut }));
        end_sleep(places);
        if cut == CUT_NS && !stop && time::now_ns() >= before + CUT_NS && self.rings_ready(places) {
            epoll::note_missed();
        }
        result
    }

    /// Whether a ring is among what the last look found.
    fn rings_ready(&self, places: &[Option<Place>]) -> bool {
        let ring = |s: &Ref| s.session.tx() == phase::RING || s.session.rx() == phase::RING;
        self.fds.iter().zip(places).any(|(p, place)| p.revents != 0 && matches!(place, Some(Place::Sock(s)) if ring(s)))
    }
}

/// Where the peer of the first ring among them was last seen.
fn peer(places: &[Option<Place>]) -> Peer {
    let rings = places.iter().find_map(|place| match place {
        Some(Place::Sock(s)) => session::view(s),
        _ => None,
    });
    rings.map_or(Peer::Unknown, |v| v.writer_is())
}

fn is_in_ring(place: &Option<Place>) -> bool {
    matches!(place, Some(Place::Sock(s)) if s.session.rx() == phase::RING && s.session.tx() == phase::RING)
}

/// What the kernel is asked for on behalf of a ring socket.
fn kernel_events(s: &Ref, wanted: i16) -> i16 {
    let out = if s.session.tx() == phase::RING { 0 } else { wanted & WRITABLE };
    match s.session.rx() {
        // Doorbells come for space too.
        phase::RING => POLLIN | POLLRDHUP | wanted & POLLPRI | out,
        // Kernel bytes not read yet would wake a caller that did not ask for them.
        _ => wanted & (READABLE | POLLRDHUP | POLLPRI) | out,
    }
}

/// Turns the kernel's answer for `p` into the program's.
fn join(p: &mut pollfd, place: Option<&Place>) {
    match place {
        None => {}
        Some(Place::Set(set)) => {
            let ready = p.events & READABLE != 0 && set.ready();
            p.revents = p.revents & (POLLNVAL | POLLERR) | if ready { p.events & READABLE } else { 0 };
        }
        Some(Place::Sock(s)) => {
            if p.revents & POLLNVAL != 0 {
                return;
            }
            let ended = p.revents & (POLLRDHUP | POLLHUP | POLLERR);
            s.kernel_events.fetch_or(ended as u16 as u32, Ordering::Relaxed);
            let ready = epoll::readiness(s, p.fd, p.events as u16 as u32) as i16;
            if ready & READABLE == 0
                && p.revents & READABLE != 0
                && let Some(v) = session::view(s)
            {
                v.check_strays(p.fd);
            }
            p.revents = (ready | p.revents & POLLPRI) & (p.events | POLLERR | POLLHUP);
        }
    }
}

/// Arms every ring in the set; true if something is ready already.
fn begin_sleep(fds: &[pollfd], places: &[Option<Place>]) -> bool {
    let mut stop = false;
    for (p, place) in fds.iter().zip(places) {
        match place {
            Some(Place::Sock(s)) => {
                s.sleepers.fetch_add(1, Ordering::SeqCst);
                if s.session.rx() == phase::RING
                    && let Some(v) = session::view(s)
                {
                    if let Some(_lock) = s.rlock.try_lock() {
                        v.swallow(p.fd, Me::Reader);
                    }
                    let stirred = View::CONSUMER.arm(v.inn) && View::CONSUMER.waiting(v.inn) > 0;
                    stop |= stirred && p.events & READABLE != 0;
                    // Asked for again: the answer may have been among the doorbells just taken out.
                    let writable = |s| epoll::readiness(s, p.fd, WRITABLE as u32) & WRITABLE as u32 != 0;
                    stop |= p.events & WRITABLE != 0 && writable(s);
                    v.pay_space(p.fd);
                }
            }
            Some(Place::Set(set)) => stop |= set.begin_sleep(),
            None => {}
        }
    }
    stop
}

fn end_sleep(places: &[Option<Place>]) {
    for place in places.iter().flatten() {
        match place {
            Place::Sock(s) => {
                s.sleepers.fetch_sub(1, Ordering::SeqCst);
            }
            Place::Set(set) => set.end_sleep(),
        }
    }
}

/// How long a sleep may last on behalf of senders that found their ring full, if there are any.
fn longest_sleep(places: &[Option<Place>]) -> Option<u64> {
    let socks = places.iter().flatten().filter_map(|place| match place {
        Place::Sock(s) => send::longest_sleep(s),
        Place::Set(_) => None,
    });
    socks.min()
}

// --- select -----------------------------------------------------------------------------------------------------------------------

/// The three sets of a select(2); any may be null.
#[derive(Clone, Copy)]
pub(crate) struct Sets {
    pub(crate) read: *mut fd_set,
    pub(crate) write: *mut fd_set,
    pub(crate) except: *mut fd_set,
}

const WORD: usize = usize::BITS as usize;

/// Whether `fd` is in a set.
///
/// # Safety
/// `set` is null or has room for `fd` bits (programs may pass larger sets than `FD_SETSIZE`).
unsafe fn holds(set: *mut fd_set, fd: usize) -> bool {
    if set.is_null() {
        return false;
    }
    // SAFETY: the caller's contract; an fd_set is an array of words.
    let word = unsafe { set.cast::<usize>().add(fd / WORD).read() };
    word >> (fd % WORD) & 1 != 0
}

/// Puts `fd` into a set or takes it out.
///
/// # Safety
/// As for [`holds`].
unsafe fn put(set: *mut fd_set, fd: usize, on: bool) {
    if set.is_null() {
        return;
    }
    // SAFETY: the caller's contract.
    let word = unsafe { &mut *set.cast::<usize>().add(fd / WORD) };
    *word = *word & !(1 << (fd % WORD)) | usize::from(on) << (fd % WORD);
}

/// select(2).
///
/// # Safety
/// The sets are null or have room for `n` bits, as select(2) asks.
pub(crate) unsafe fn select(n: usize, sets: Sets, limits: Limits) -> Polled {
    // SAFETY: `fd` is below `n`.
    let wanted = |fd: usize| unsafe {
        let bit = |set, event| if holds(set, fd) { event } else { 0 };
        bit(sets.read, POLLIN) | bit(sets.write, POLLOUT) | bit(sets.except, POLLPRI)
    };
    if !(0..n).any(|fd| is_ours(fd as c_int) && wanted(fd) != 0) {
        return Polled::Pass;
    }
    let count = (0..n).filter(|&fd| wanted(fd) != 0).count();
    let none = pollfd { fd: -1, events: 0, revents: 0 };
    let mut small = [none; SMALL];
    let Some(mut scratch) = Scratch::new(&mut small, count, || none) else { return Polled::Pass };
    let flat = scratch.of();
    for (p, fd) in flat.iter_mut().zip((0..n).filter(|&fd| wanted(fd) != 0)) {
        *p = pollfd { fd: fd as c_int, events: wanted(fd), revents: 0 };
    }
    match poll(flat, limits) {
        Polled::Done(Ok(_)) if flat.iter().any(|p| p.revents & POLLNVAL != 0) => Polled::Done(Err(Errno::BADF)),
        // SAFETY: every descriptor is below `n`.
        Polled::Done(Ok(_)) => Polled::Done(Ok(flat.iter().map(|p| unsafe { write_back(sets, p) }).sum())),
        other => other,
    }
}

/// Writes the answer for one descriptor into the sets; returns how many bits it has there.
///
/// # Safety
/// The descriptor's bit lies inside every set that is not null.
unsafe fn write_back(sets: Sets, p: &pollfd) -> usize {
    let answers = [
        (sets.read, POLLIN, POLLIN | POLLHUP | POLLERR),
        (sets.write, POLLOUT, POLLOUT | POLLERR),
        (sets.except, POLLPRI, POLLPRI),
    ];
    let mut bits = 0;
    for (set, asked, means) in answers {
        let on = p.events & asked != 0 && p.revents & means != 0;
        if p.events & asked != 0 {
            // SAFETY: the caller's contract.
            unsafe { put(set, p.fd as usize, on) };
        }
        bits += usize::from(on);
    }
    bits
}

/// What is left of a select(2)'s time, as Linux writes it back.
pub(crate) fn left_of(limits: Limits) -> timeval {
    let left = limits.left().unwrap_or(0);
    timeval { tv_sec: (left / 1_000_000_000) as i64, tv_usec: (left % 1_000_000_000 / 1000) as i64 }
}
