//! poll(2), select(2) and their kin over sets that mix ring sockets with anything else.
//!
//! For a ring socket the kernel is queried for doorbells and the end only; the program's answer comes from [`epoll::readiness`]. All other
//! descriptors go to the kernel, in the same call. If no ring is among them the C library waits, where a thread can be cancelled. The
//! sockets count it among their sleepers, and the kernel's answer is computed again if one of them moved meanwhile.

mod asleep;
mod fds;
mod memory;
mod plainly;
mod rings;
pub(crate) mod select;

use core::ffi::c_int;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLPRI, POLLRDHUP, pollfd};
use madrigal_base::sync::Ordering;
use madrigal_progress::wait::Peer;
use madrigal_sys::{Errno, critical, raw, time};

pub(crate) use asleep::{Polled, left};
pub(crate) use fds::Fds;
pub(crate) use plainly::after_sleep;
pub(crate) use select::Sets;

use super::epoll;
use super::limits::Limits;
use super::send;
use crate::lifecycle::leave::relieve;
use crate::state::process::POLICY;
use crate::state::session::{Me, View, phase};
use crate::state::sock::{self, Ref, mode};
use crate::state::socket::{Socket, sleep_ns, view};
use crate::state::table::{self, Kind};
use fds::{SMALL, Scratch};
use memory::{MEMORY, Memory};
use rings::{READABLE, WRITABLE, asks_set, has_ring, is_in_ring};

/// A sleep with rings in it is cut after this long; see [`epoll`].
const CUT_NS: u64 = 1_000_000_000;
/// The kernel is asked this often while spinning on rings.
const KERNEL_NS: u64 = 10_000;
/// Between polls where no doorbell can come.
const SLEEP_NS: u64 = 100_000;
/// The same where only our own sends can make anything new.
const GONE_NS: u64 = 10_000_000;

/// poll(2) with something of ours among the descriptors.
pub(crate) fn poll(fds: &mut [pollfd], limits: Limits<'_>) -> Polled {
    if !has_ring(fds) {
        return MEMORY.with(|memory| plainly::wait(fds, limits, &memory.waiter));
    }
    let mut small = [const { None }; SMALL];
    let Some(mut places) = Scratch::new(&mut small, fds.len(), || None) else { return Polled::Pass };
    MEMORY.with(|memory| Poll { fds, limits, memory }.run(places.of()))
}

/// What stands behind a descriptor of the set, held for the time of the call.
enum Place {
    Sock(Ref),
    Set(epoll::Polled),
}

impl Place {
    fn doze(&self) {
        if let Self::Sock(s) = self {
            s.doze();
        }
    }

    fn wake(&self) {
        if let Self::Sock(s) = self {
            s.wake();
        }
    }
}

struct Poll<'a> {
    fds: &'a mut [pollfd],
    limits: Limits<'a>,
    memory: &'a Memory,
}

impl Poll<'_> {
    fn run(&mut self, places: &mut [Option<Place>]) -> Polled {
        for (p, place) in self.fds.iter().zip(places.iter_mut()) {
            *place = match table::get(p.fd).map(|w| w.kind()) {
                Some(Kind::Socket) => sock::enter(p.fd).map(Place::Sock),
                Some(Kind::EventSet) if asks_set(p) => epoll::polled(p.fd).map(Place::Set),
                _ => None,
            };
        }
        let since = match self.spin(places) {
            Ok((0, since)) if self.limits.left() != Some(0) => since,
            Ok((0, _)) if self.limits.at_once() => return Polled::Done(self.lets_handlers_run()),
            other => return Polled::Done(other.map(|(n, _)| n)),
        };
        let result = self.sleep(places);
        POLICY.slept(&self.memory.waiter, since);
        match result {
            Ok(0) if self.limits.left() != Some(0) => Polled::Again,
            other => Polled::Done(other),
        }
    }

    /// Nothing is ready, in no time: a signal that waited for the mask of the call ends it all the same.
    fn lets_handlers_run(&self) -> Result<usize, Errno> {
        let mask = self.limits.signals.mask();
        if mask.is_null() {
            return Ok(0);
        }
        // SAFETY: no descriptors; the mask is the program's.
        critical::outside(|| unsafe { raw::ppoll(&mut [], Some(time::timespec(0)), mask) })
    }

    /// Polls until something is ready or the policy ends the polling; also returns since when it polled.
    fn spin(&mut self, places: &[Option<Place>]) -> Result<(usize, u64), Errno> {
        let n = self.ask_rings(places);
        let rings_alone = places.iter().all(|place| moves_in_ring(place.as_ref()));
        if n > 0 && rings_alone && !self.memory.kernel_due() {
            return Ok((n, 0));
        }
        // The kernel need not be asked at once in a wait for rings alone; it is asked while spinning.
        if n > 0 || self.limits.at_once() || !rings_alone {
            let n = self.poll_once(places, Some(0))?;
            if n > 0 || self.limits.at_once() {
                return Ok((n, 0));
            }
        }
        let mut wait = POLICY.begin(&self.memory.waiter, true);
        let (mut asked, mut polls) = (0, 0u32);
        while wait.again(|| peer(places)) {
            polls += 1;
            let mut n = self.ask_rings(places);
            if n == 0 && polls.is_multiple_of(8) {
                let now = time::now_ns();
                if asked != 0 && now > asked + KERNEL_NS {
                    n = self.poll_once(places, Some(0))?;
                }
                asked = if asked == 0 || now > asked + KERNEL_NS { now } else { asked };
            }
            if n > 0 || polls.is_multiple_of(64) && self.limits.left() == Some(0) {
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
                Some(Place::Sock(s)) if moves_in_ring(place.as_ref()) => {
                    epoll::readiness(s, p.fd, p.events as u16 as u32) as i16 & (p.events | POLLERR | POLLHUP)
                }
                _ => 0,
            };
            n += usize::from(p.revents != 0);
        }
        n
    }

    /// One answer: the kernel's (asked for up to `timeout`) joined with the rings'.
    fn poll_once(&mut self, places: &[Option<Place>], timeout: Option<u64>) -> Result<usize, Errno> {
        for (p, place) in self.fds.iter().zip(places) {
            if let Some(Place::Sock(s)) = place {
                relieve(s, p.fd);
            }
        }
        let mask = if timeout == Some(0) { core::ptr::null() } else { self.limits.signals.sleep() };
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
            if let Some(Place::Sock(s)) = place
                && p.events & POLLRDHUP != 0
            {
                s.session.note_deaths();
            }
            if timeout != Some(0) && matches!(place, Some(Place::Sock(s)) if s.session.is_gone()) {
                // Broken for ever, which would end every sleep at once.
                p.fd = !p.fd;
            }
        }
        // Whoever closes one of them meanwhile does not wait for us.
        let dozes = || places.iter().flatten().filter(|_| timeout != Some(0));
        dozes().for_each(Place::doze);
        // SAFETY: the mask is the program's.
        let mut ask = || unsafe { raw::ppoll(self.fds, timeout.map(time::timespec), mask) };
        let asked = if timeout == Some(0) { ask() } else { critical::outside(ask) };
        dozes().for_each(Place::wake);
        self.memory.kernel_asked();
        let mut ready = 0;
        for ((p, place), keep) in self.fds.iter_mut().zip(places).zip(wanted.iter()) {
            p.events = *keep;
            if p.fd < 0 && place.is_some() {
                p.fd = !p.fd;
            }
            if asked.is_ok() {
                join(p, place.as_ref());
            }
            ready += usize::from(p.revents != 0);
        }
        asked.map(|_| ready)
    }

    fn sleep(&mut self, places: &mut [Option<Place>]) -> Result<usize, Errno> {
        let stop = begin_sleep(self.fds, places);
        let cut = self.limits.left().unwrap_or(u64::MAX).min(longest_sleep(places).unwrap_or(CUT_NS));
        let before = time::now_ns();
        let result = self.poll_once(places, Some(if stop { 0 } else { cut }));
        end_sleep(self.fds, places);
        if cut == CUT_NS && !stop && time::now_ns() >= before + CUT_NS && self.rings_ready(places) {
            epoll::note_missed();
        }
        result
    }

    /// Whether a ring is among what the last poll found.
    fn rings_ready(&self, places: &[Option<Place>]) -> bool {
        let ring = |s: &Ref| s.session.tx() == phase::RING || s.session.rx() == phase::RING;
        self.fds.iter().zip(places).any(|(p, place)| p.revents != 0 && matches!(place, Some(Place::Sock(s)) if ring(s)))
    }
}

/// The session of a socket of the set.
fn session(s: &Ref, fd: c_int) -> Option<View<'_, Socket<'_>>> {
    view(s, fd).filter(|_| s.mode() == mode::SESSION)
}

/// Where the peer of the first ring among them was last seen.
fn peer(places: &[Option<Place>]) -> Peer {
    let rings = places.iter().find_map(|place| match place {
        Some(Place::Sock(s)) => session(s, s.fd()),
        _ => None,
    });
    rings.map_or(Peer::Unknown, |v| v.writer_is())
}

/// Whether both directions of a socket go by the ring, and its peer has not closed, nor been killed for all this process knows.
fn moves_in_ring(place: Option<&Place>) -> bool {
    let both = |s: &Ref| s.session.rx() == phase::RING && s.session.tx() == phase::RING;
    let open = |s: &Ref| session(s, s.fd()).is_some_and(|v| v.peer_is_open());
    matches!(place, Some(Place::Sock(s)) if both(s) && s.session.knows_deaths() && open(s))
}

/// What the kernel is asked for on behalf of a socket.
fn kernel_events(s: &Ref, wanted: i16) -> i16 {
    if !is_in_ring(s) {
        return wanted;
    }
    let out = if s.session.tx() == phase::RING { 0 } else { wanted & WRITABLE };
    let bells = if wanted & (READABLE | WRITABLE) != 0 { POLLIN | POLLRDHUP } else { 0 };
    // For a peer killed with bytes unread in its ring the kernel reports an end. TCP reports an error, which poll(2) reports unrequested.
    let end_is_new = session(s, s.fd()).is_some_and(|v| !v.ended());
    let killed = if end_is_new { POLLRDHUP } else { 0 };
    match s.session.rx() {
        // Doorbells come for space too.
        phase::RING => bells | killed | out | wanted & (POLLRDHUP | POLLPRI),
        // Unread kernel bytes would wake a caller that did not request them. The end wakes callers that want bytes; as `POLLRDHUP`, for the
        // reader may have come to its ring meanwhile, and then the kernel's bytes are doorbells.
        _ => {
            let end = if wanted & READABLE != 0 { POLLRDHUP } else { 0 };
            wanted & (READABLE | POLLRDHUP | POLLPRI) | killed | end | out
        }
    }
}

/// Turns the kernel's answer for `p` into the program's.
fn join(p: &mut pollfd, place: Option<&Place>) {
    match place {
        None => {}
        Some(Place::Set(set)) => {
            let ready = set.ready();
            p.revents = p.revents & (POLLNVAL | POLLERR) | if ready { p.events & READABLE } else { 0 };
        }
        Some(Place::Sock(s)) => {
            if p.revents & POLLNVAL != 0 || !is_in_ring(s) {
                // Its session has ended meanwhile; the kernel was asked for more than the program asks for.
                p.revents &= p.events | POLLERR | POLLHUP | POLLNVAL;
                return;
            }
            let ended = p.revents & (POLLRDHUP | POLLHUP | POLLERR);
            s.session.kernel_events.fetch_or(ended as u16 as u32, Ordering::Relaxed);
            let ready = epoll::readiness(s, p.fd, p.events as u16 as u32) as i16;
            if ready & READABLE == 0
                && p.revents & READABLE != 0
                && let Some(v) = session(s, p.fd)
            {
                v.check_strays();
            }
            p.revents = (ready | p.revents & POLLPRI) & (p.events | POLLERR | POLLHUP);
        }
    }
}

/// Counts the thread, and arms every ring in the set; true if something is ready already.
fn begin_sleep(fds: &[pollfd], places: &mut [Option<Place>]) -> bool {
    let mut stop = false;
    for (p, place) in fds.iter().zip(places) {
        match place {
            Some(Place::Sock(s)) => {
                s.session.count_sleeper(p.events);
                if let Some(v) = session(s, p.fd).filter(|v| v.s.rx() == phase::RING) {
                    stop |= arm(&v, p.events);
                } else {
                    // It may have moved just now.
                    stop |= is_in_ring(s) && epoll::readiness(s, p.fd, p.events as u16 as u32) as i16 & p.events != 0;
                }
            }
            Some(Place::Set(set)) => stop |= set.begin_sleep(),
            None => {}
        }
    }
    stop
}

/// Takes old doorbells out of one ring and arms it; true if the thread has to poll again.
fn arm(v: &View<'_, Socket<'_>>, events: i16) -> bool {
    let me = match (events & READABLE != 0, events & WRITABLE != 0) {
        (true, true) => Me::Both,
        (true, false) => Me::Reader,
        (false, true) => Me::Writer,
        // Only the end of the connection counts, which the kernel reports.
        (false, false) => return false,
    };
    if let Some(_lock) = v.try_reading()
        && !v.swallow(me)
    {
        // The doorbell is for another thread, which is about to run.
        sleep_ns(SLEEP_NS);
        return true;
    }
    let arrived = View::<Socket<'_>>::CONSUMER.arm(v.inn) && View::<Socket<'_>>::CONSUMER.waiting(v.inn) > 0;
    // Asked for again: the answer may have been among the doorbells just taken out.
    let writable = || epoll::readiness(v.wire.s, v.wire.fd, WRITABLE as u32) & WRITABLE as u32 != 0;
    let stop = events & READABLE != 0 && arrived || events & WRITABLE != 0 && writable();
    v.pay_space();
    stop
}

fn end_sleep(fds: &[pollfd], places: &mut [Option<Place>]) {
    for (p, place) in fds.iter().zip(places) {
        match place {
            Some(Place::Sock(s)) => s.session.uncount_sleeper(p.events),
            Some(Place::Set(set)) => set.end_sleep(),
            None => {}
        }
    }
}

/// How long a sleep may last on behalf of senders that found their ring full, and of bytes that are held back, if there are any.
fn longest_sleep(places: &[Option<Place>]) -> Option<u64> {
    let socks = places.iter().flatten().filter_map(|place| match place {
        Place::Sock(s) => {
            // Another thread's send may end it, and nothing would wake us.
            let gone = s.session.seems_connected().then_some(GONE_NS);
            let held = session(s, s.fd()).and_then(|v| v.held_for());
            gone.into_iter().chain(held).chain(send::longest_sleep(s)).min()
        }
        Place::Set(set) => set.limit(),
    });
    socks.min()
}
