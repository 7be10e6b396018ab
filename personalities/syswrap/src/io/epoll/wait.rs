//! epoll_wait(2): check rings and kernel, spin as the wait policy allows, sleep in the kernel.

use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::Ordering;

use libc::{EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, epoll_event};
use madrigal_sys::{Errno, fault, time};

use super::collect::{collect, peer};
use super::nested::{collect_nested, is_meant};
use super::ready::{bytes_came, kernel_readiness, report_of};
use super::sleep::{CUT_NS, Sleepers, kernel_wait, note_missed};
use super::translate::{is_reported, translate_event};
use super::{ENDED, READABLE};
use crate::io::limits::{Limits, Signals};
use crate::state::member::bit;
use crate::state::process::POLICY;
use crate::state::registration;
use crate::state::session::{Me, View, deaths, phase};
use crate::state::sets::{self, ParkedSet, SetRef};
use crate::state::sock::{Ref, Sock, mode};
use crate::state::socket::{Socket, sleep_ns, view};

/// The kernel is asked at least this often while rings keep answering, so that pipes and timers in the set are not starved.
const KERNEL_NS: u64 = 50_000;
const KERNEL_ANSWERS: u32 = 64;
/// The kernel is asked this often while nothing answers.
const KERNEL_IDLE_NS: u64 = 10_000;
/// Doorbells that may lie unread in a socket. Nobody acknowledges small segments at once unless they are read, and a sender with ten
/// of them on their way (its first congestion window; four while BBR probes) waits for the acknowledgement timer: 40 ms.
const BELLS: u64 = 3;
/// Events reported at once, at the most.
const MOST: usize = 128;

/// How far [`wait`] got.
pub(crate) enum Waited {
    /// No set of ours, or no room for events: the call is the C library's.
    Pass,
    Done(Result<usize, Errno>),
    /// A point where a thread can be cancelled; then wait again.
    Again,
    /// The kernel's set reports everything: the C library waits; then [`after_sleep`].
    Sleep(Asleep),
}

/// A thread in the C library's epoll_wait(2).
#[derive(Clone, Copy)]
pub(crate) struct Asleep {
    set: ParkedSet,
    since: u64,
    counted: bool,
}

/// epoll_wait(2) and its kin.
pub(crate) fn wait(epfd: c_int, events: *mut epoll_event, max: c_int, limits: Limits<'_>) -> Waited {
    let Some(set) = sets::enter(epfd).filter(|_| max > 0) else { return Waited::Pass };
    if set.is_plain() && (limits.at_once() || set.registry.tcp.load(Ordering::Relaxed) == 0) {
        return begin_sleep(set, 0, !limits.at_once()).unwrap_or(Waited::Again);
    }
    let mut reported = [epoll_event { events: 0, u64: 0 }; MOST];
    let room = MOST.min(max as usize);
    match Waiting::new(epfd, set, limits).run(&mut reported[..room]) {
        Waited::Done(Ok(n)) => Waited::Done(write_events(&reported[..n], events)),
        other => other,
    }
}

/// Writes events where the program wants them.
fn write_events(reported: &[epoll_event], events: *mut epoll_event) -> Result<usize, Errno> {
    // SAFETY: what is mapped there is the program's, which vouches for it as for epoll_wait(2); the source is our own.
    let n = unsafe { fault::copy(events.cast(), reported.as_ptr().cast(), size_of_val(reported)) };
    match n / size_of::<epoll_event>() {
        0 if !reported.is_empty() => Err(Errno::FAULT),
        n => Ok(n),
    }
}

/// Hands the wait to the C library, while the kernel's set reports everything. `None`: it does no more.
fn begin_sleep(set: SetRef, since: u64, counted: bool) -> Option<Waited> {
    if counted {
        // SYNC: SeqCst with `state::registration`: a thread that makes a registration ours wakes the counted sleepers.
        set.registry.sleepers.fetch_add(1, Ordering::SeqCst);
        if !set.is_plain() {
            set.registry.sleepers.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
    }
    Some(Waited::Sleep(Asleep { set: set.park(), since, counted }))
}

/// After the C library's epoll_wait(2) returned `got` events: those of registrations that became ours meanwhile are translated.
/// `None`: nothing is left of them, wait again.
pub(crate) fn after_sleep(asleep: Asleep, events: *mut epoll_event, got: c_int) -> Option<c_int> {
    let saved = crate::outcome::errno();
    let result = woken(asleep, events, got);
    crate::outcome::restore_errno(saved);
    result
}

/// The thread waits no longer.
pub(crate) fn left(asleep: &Asleep) {
    if let Some(set) = asleep.set.unpark()
        && asleep.counted
    {
        set.registry.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn woken(asleep: Asleep, events: *mut epoll_event, got: c_int) -> Option<c_int> {
    let Some(set) = asleep.set.unpark() else { return Some(got) };
    if asleep.counted {
        set.registry.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
    if asleep.since != 0 {
        POLICY.slept(&set.waiter, asleep.since);
    }
    if got <= 0 || !sets::has_keys() && set.registry.may_report_gone.load(Ordering::Relaxed) == 0 {
        return Some(got);
    }
    // SAFETY: the kernel just filled `got` events there.
    let out = unsafe { core::slice::from_raw_parts_mut(events, got as usize) };
    let signals = Signals::default();
    let waiting = Waiting::new(-1, set, Limits { end: None, signals: &signals });
    let (n, ours) = waiting.translate((0, 0), out, got as usize);
    let n = n + if ours { waiting.collect(&mut out[n..]) } else { 0 };
    waiting.done(Ok(n));
    (n > 0).then_some(n as c_int)
}

struct Waiting<'a> {
    epfd: c_int,
    set: SetRef,
    limits: Limits<'a>,
    round: u32,
    /// Whether it reports something that stays ready.
    stays: Cell<bool>,
}

impl<'a> Waiting<'a> {
    fn new(epfd: c_int, set: SetRef, limits: Limits<'a>) -> Self {
        let round = set.rounds.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        Self { epfd, set, limits, round, stays: Cell::new(false) }
    }

    fn run(self, out: &mut [epoll_event]) -> Waited {
        if !self.set.is_plain() {
            let n = self.collect_first(out);
            if n != Ok(0) || self.limits.at_once() {
                return self.done(n);
            }
        }
        self.spin_then_sleep(out)
    }

    fn collect(&self, out: &mut [epoll_event]) -> usize {
        let found = collect(&self.set, out, self.round);
        if found.stays {
            self.stays.set(true);
        }
        found.n
    }

    /// Behind a wait. The kernel reports what stays ready to the next sleeper at once, whatever the first one does.
    fn done(&self, reported: Result<usize, Errno>) -> Waited {
        if self.stays.get() && self.sleepers() > 0 {
            registration::wake_sleeper(&*self.set);
        }
        Waited::Done(reported)
    }

    /// Collects from the rings, and asks the kernel if that is due. It is due for a wait that may not last, and where the kernel reported
    /// other descriptors the last time. Otherwise spinning comes first.
    fn collect_first(&self, out: &mut [epoll_event]) -> Result<usize, Errno> {
        let crowded = &self.set.crowded;
        let mixed = self.set.mixed.load(Ordering::Relaxed) != 0;
        // A peer that was killed may have been others', too.
        let died = self.set.registry.deaths.load(Ordering::Relaxed) != deaths();
        let at_once = self.limits.at_once();
        if died || crowded.load(Ordering::Relaxed) != 0 && (mixed || at_once || self.kernel_due(0)) {
            // There was no room for what it has to report, or rings do not know of it.
            crowded.store(0, Ordering::Relaxed);
            let n = self.ask_both(0, out)?;
            return Ok(n + self.collect(&mut out[n..]));
        }
        let n = self.collect(out);
        if n == out.len() {
            crowded.store(1, Ordering::Relaxed);
        }
        let asks = mixed || at_once || n > 0 && self.kernel_due(n);
        if !asks || n == out.len() {
            return Ok(n);
        }
        match self.ask_both(n, out) {
            // What was found is found.
            Err(_) if n > 0 => Ok(n),
            more => more,
        }
    }

    /// Adds, behind the first `found` of `out`, the kernel's answer now and that of nested sets, whose rings the kernel does not know.
    /// Returns how many there are then.
    fn ask_both(&self, found: usize, out: &mut [epoll_event]) -> Result<usize, Errno> {
        let n = self.ask_kernel(found, out, Some(0))?;
        let nested = collect_nested(&self.set, &mut out[n..], self.round);
        if nested > 0 {
            // The next wait is not to leave them out, either.
            self.set.mixed.store(1, Ordering::Relaxed);
        }
        Ok(n + nested)
    }

    fn kernel_due(&self, answers: usize) -> bool {
        let seen = self.set.answers.fetch_add(answers as u32, Ordering::Relaxed);
        seen >= KERNEL_ANSWERS || time::now_ns() > self.set.kernel_at.load(Ordering::Relaxed) + KERNEL_NS
    }

    /// Queries the kernel's set, sleeping up to `timeout` (0: not at all), and translates its answer. If reports of our registrations took
    /// the room, it is queried for what is behind them. The first `found` of `out` were found in this wait. Returns how many there are
    /// then.
    fn ask_kernel(&self, found: usize, out: &mut [epoll_event], timeout: Option<u64>) -> Result<usize, Errno> {
        self.set.answers.store(0, Ordering::Relaxed);
        self.set.registry.deaths.store(deaths(), Ordering::Relaxed);
        let (mut n, mut noted) = (found, 0);
        for attempt in 0..=self.set.registry.ours.load(Ordering::Relaxed) {
            let timeout = if attempt == 0 { timeout } else { Some(0) };
            let (filled, full, ours) = match self.ask_behind((found, n), out, timeout) {
                // What was found is found.
                Err(_) if noted > 0 => break,
                answer => answer?,
            };
            n = filled;
            noted += u32::from(ours);
            if full && ours && self.sleepers() > 0 {
                // No other sleeper is woken for what was noted here, but one is for what other descriptors have to report.
                n += self.collect(&mut out[n..]);
            }
            if !(full && ours) || n == out.len() {
                break;
            }
        }
        // Behind what other descriptors have to report: a ring that can always be written to would take their room.
        if noted > 0 && n < out.len() {
            n += self.collect(&mut out[n..]);
        }
        if noted > 1 && n == out.len() && self.sleepers() > 0 {
            registration::wake_sleeper(&*self.set);
        }
        Ok(n)
    }

    /// Threads asleep on the set, this one among them.
    fn sleepers(&self) -> u32 {
        // SYNC: SeqCst, behind the activation of a member: a sleeper counts itself and then scans the list.
        self.set.registry.sleepers.load(Ordering::SeqCst)
    }

    /// Queries once; the answer comes behind the first `n` events of `out`; the first `found` of those are not the kernel's. Returns how
    /// many there are then, whether the kernel filled the room, and whether some reports were of ours.
    fn ask_behind(
        &self,
        (found, n): (usize, usize),
        out: &mut [epoll_event],
        timeout: Option<u64>,
    ) -> Result<(usize, bool, bool), Errno> {
        let mask = if timeout == Some(0) { core::ptr::null() } else { self.limits.signals.sleep() };
        // SAFETY: the slice has room for its length; the mask is the program's.
        let got = unsafe { kernel_wait(self.epfd, &mut out[n..], timeout, mask) }?;
        if !self.set.is_plain() {
            self.set.kernel_at.store(time::now_ns(), Ordering::Relaxed);
        }
        let full = n + got == out.len();
        let (n, ours) = self.translate((found, n), out, got);
        Ok((n, full, ours))
    }

    /// Of the `got` events behind the first `n`, keeps those of other descriptors, and turns those of our registrations into activity of
    /// their members. How many there are then, and whether some were ours.
    fn translate(&self, (found, n): (usize, usize), out: &mut [epoll_event], got: usize) -> (usize, bool) {
        let (mut filled, mut others, mut ours) = (n, false, false);
        for i in n..n + got {
            let (event, named) = translate_event(&self.set, out[i]);
            match named {
                None if is_meant(&self.set, event.u64, self.round) => {
                    others = true;
                    if !is_reported(&mut out[found..n], event) {
                        out[filled] = event;
                        filled += 1;
                    }
                }
                None => {}
                Some(named) => {
                    ours |= named.is_some();
                    // One that has just become ours is known to be active.
                    if let Some((s, m)) = named.filter(|_| sets::by_key(event.u64).is_some()) {
                        self.note(&s, m, event.events);
                        self.amend(&mut out[..found], &s, m);
                    }
                }
            }
        }
        if others || got > 0 && n == found {
            self.set.mixed.store(u32::from(others), Ordering::Relaxed);
        }
        (filled, ours)
    }

    /// The kernel reported something of a member whose registration is ours.
    fn note(&self, s: &Ref, m: usize, events: u32) {
        let member = &s.members[m];
        if !member.is_in(self.set.index()) {
            return;
        }
        // The kernel reports once more what made it ours.
        let edges = if member.has(bit::REPORTED) { 0 } else { events };
        member.set_bit(bit::REPORTED, false);
        let fd = member.fd.load(Ordering::Relaxed);
        let came = bytes_came(s, fd);
        if edges & (EPOLLIN | EPOLLPRI) as u32 != 0 || edges != 0 && came {
            s.kernel_moves.fetch_add(1, Ordering::Relaxed);
        }
        if edges & EPOLLOUT as u32 != 0 {
            s.kernel_room.fetch_add(1, Ordering::Relaxed);
        }
        if events & ENDED != 0 {
            s.session.kernel_events.fetch_or(events & ENDED, Ordering::Relaxed);
        }
        registration::notified(&*self.set, &**s, m);
        let in_ring = s.mode() == mode::SESSION && matches!(s.session.rx(), phase::READY | phase::RING);
        let Some(v) = view(s, fd).filter(|_| in_ring) else { return };
        let shared = self.set.registry.sleepers.load(Ordering::SeqCst) > 0
            || s.session.has_sleepers()
            || s.members.iter().filter(|m| m.is_used()).count() > 1;
        if shared {
            let _ = View::<Socket<'_>>::CONSUMER.arm(v.inn);
        }
        if v.bells_due() >= BELLS
            && let Some(_lock) = v.try_reading()
        {
            v.swallow(Me::Awake);
        }
    }

    /// The kernel has reported something of a member that this wait reports already: the event is added. A member that reports once would
    /// never report it.
    fn amend(&self, found: &mut [epoll_event], s: &Sock, m: usize) {
        let member = &s.members[m];
        if member.round.load(Ordering::Relaxed) != self.round {
            return;
        }
        let guard = self.set.registry.lock.lock();
        // A later wait reports one that was armed meanwhile.
        let armed = member.events.load(Ordering::Relaxed) & EPOLLONESHOT as u32 != 0 && !member.has(bit::SPENT);
        if guard.nested() || armed || member.has(bit::DETACHED) || !member.is_in(self.set.index()) {
            return;
        }
        let data = member.data.load(Ordering::Relaxed);
        if let Some(event) = found.iter_mut().find(|event| event.u64 == data)
            && let Some(more) = report_of(s, member)
        {
            event.events |= more.events;
        }
    }

    fn spin_then_sleep(self, out: &mut [epoll_event]) -> Waited {
        let since = match self.spin(out) {
            Ok(n) => return self.done(n),
            Err(since) => since,
        };
        if self.set.is_plain() {
            return begin_sleep(self.set, since, true).unwrap_or(Waited::Again);
        }
        let result = self.sleep(out);
        POLICY.slept(&self.set.waiter, since);
        match result {
            Ok(0) if self.limits.left() != Some(0) => Waited::Again,
            other => self.done(other),
        }
    }

    /// Polls until the policy ends that (`Err`: since when). Rings are scanned every time; the kernel is queried as often as a system call
    /// is worth.
    fn spin(&self, out: &mut [epoll_event]) -> Result<Result<usize, Errno>, u64> {
        let rings = !self.set.is_plain();
        let mut wait = POLICY.begin(&self.set.waiter, rings);
        let mut asked = 0;
        let mut polls = 0u32;
        while wait.again(|| peer(&self.set)) {
            polls += 1;
            let mut kernel = !rings;
            if rings && polls.is_multiple_of(8) {
                let now = time::now_ns();
                kernel = asked != 0 && now > asked + KERNEL_IDLE_NS;
                asked = if kernel || asked == 0 { now } else { asked };
                if self.limits.end.is_some_and(|end| now >= end) {
                    return Ok(self.ask_both(0, out));
                }
            }
            let n = match self.collect(out) {
                0 if kernel => self.ask_both(0, out),
                n => Ok(n),
            };
            if n != Ok(0) {
                wait.paid();
                return Ok(n);
            }
        }
        Err(wait.since())
    }

    /// Arms every active member (of nested sets too) and sleeps in the kernel, at most until the cut.
    fn sleep(&self, out: &mut [epoll_event]) -> Result<usize, Errno> {
        let left = self.limits.left().unwrap_or(u64::MAX);
        let sleepers = Sleepers::on(&self.set);
        let n = self.collect(out);
        if n > 0 {
            return Ok(n);
        }
        if sleepers.inner_ready {
            return self.ask_both(0, out);
        }
        let cut = left.min(sleepers.limit.unwrap_or(CUT_NS));
        let slept_at = time::now_ns();
        let n = self.ask_kernel(0, out, Some(cut.max(1)))?;
        if n > 0 || time::now_ns() < slept_at + cut {
            return Ok(n);
        }
        let n = self.collect(out);
        if n > 0 && sleepers.limit.is_none() && !self.bell_comes() {
            note_missed();
        }
        Ok(n)
    }

    /// Whether the doorbell of what was found after a sleep that ended by itself is on its way.
    fn bell_comes(&self) -> bool {
        (0..20).any(|_| kernel_readiness(self.epfd, READABLE) != 0 || !sleep_ns(100_000))
    }
}
