//! How a worker waits: it looks again at once, gives the processor away where tasks outnumber processors, and sleeps only after a
//! long time in which nothing came, so that an idle process costs next to nothing and a busy one never waits to be woken.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsRawFd, RawFd};

use madrigal_netaccess::wait::WaitPolicy;
use madrigal_sys::{raw, time};

use super::answers::{Answers, Looks};
use super::state::{Node, Route};
use super::yields::YieldDetector;
use super::{Core, Worker};
use crate::endpoint::state::Awaited;

/// Looks between two looks at the clock, ...
const LOOKS: u32 = 64;
/// ... and of who sleeps, or gives the processor away at every look: the caller does so too, and then looks cost more than sleeps.
const FEW_LOOKS: u32 = 8;
/// Those few looks took no longer: the caller does nothing else, so nothing of his is held up by another sleep.
const NOTHING_ELSE_NS: u64 = 200_000;
/// Nothing came for so long: whoever waits may sleep.
const PATIENCE_NS: u64 = 900_000_000;
/// The first sleep, and the longest. A doorbell ends any of them; what else the caller has to do waits no longer than that.
const SLEEP_NS: u64 = 50_000;
const LONGEST_SLEEP_NS: u64 = 20_000_000;
/// How often who sleeps looks for a way to others.
const SEEK_NS: u64 = 250_000_000;
/// Nothing came for so long: not only those whom a receive waits for may be unable to reach us, ...
const LONG_NS: u64 = 3_000_000_000;
/// ... but no more links than this come about by that.
const FEW: usize = 64;
/// Ports whose descriptors are polled; more are looked at after each sleep.
const MAX_PORTS: usize = 8;
/// Who yields and is away for so long met tasks that do not yield themselves: each time costs a slice of theirs, ...
const DEAR_NS: u64 = 50_000;
/// ... and so it is worth a part of that to look on instead: one look for so many nanoseconds away (a look takes some 50), ...
const AWAY_PER_LOOK_NS: u64 = 16 * 50;
/// ... but no more looks than this.
const MOST_LOOKS: u64 = 512;
/// Of so many yields one is timed.
const TIMED: u32 = 4;

/// What is remembered between looks that found nothing. Who notes something there needs no lock: of threads that wait at the same
/// time one may overwrite what another noted, and then waits a little longer or shorter.
#[derive(Default)]
pub(crate) struct Idle {
    looks: AtomicU32,
    /// When the clock was first looked at since something came; 0: not yet.
    since: AtomicU64,
    sleep: AtomicU64,
    /// When the last sleep ended, by [`Idle::spent`].
    woke: AtomicU64,
    /// When it was last time to look for a way to others.
    sought: AtomicU64,
    /// Tasks outnumbered processors when that was looked at last.
    crowded: AtomicBool,
    /// How many looks there had been at the last yield.
    yielded: AtomicU32,
    yields: AtomicU32,
    /// How long who yielded was away lately, on the average.
    away: AtomicU64,
    detector: YieldDetector,
    answers: Answers,
}

enum Next {
    Poll,
    Yield,
    /// For so many nanoseconds.
    Sleep(u64),
    /// The same, after a look for a way to others; true: to all.
    Seek(u64, bool),
}

impl Idle {
    /// Something came.
    #[inline]
    pub(crate) fn busy(&self) {
        self.looks.store(0, Ordering::Relaxed);
        self.yielded.store(0, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
        self.sleep.store(0, Ordering::Relaxed);
        self.sought.store(0, Ordering::Relaxed);
        self.answers.forget();
        self.detector.forget_last();
    }

    /// Something is sent.
    #[inline]
    pub(crate) fn asks(&self) {
        self.busy();
        self.answers.expect();
    }

    /// Whether whoever is waited for is likely not to run.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    #[inline]
    fn next(&self, policy: &WaitPolicy) -> Next {
        let looks = self.looks.load(Ordering::Relaxed).wrapping_add(1);
        self.looks.store(looks, Ordering::Relaxed);
        if looks.is_multiple_of(FEW_LOOKS) && (looks.is_multiple_of(LOOKS) || self.clock_is_cheap()) {
            return self.timed(policy);
        }
        if policy.was_contended() { self.give_way(looks) } else { Next::Poll }
    }

    /// Whether looking at the clock is little beside what looking for messages costs now.
    #[inline]
    fn clock_is_cheap(&self) -> bool {
        self.sleep.load(Ordering::Relaxed) != 0 || self.is_crowded()
    }

    /// A clock to tell by how long somebody was busy: his own, where others have the processor too.
    fn spent(&self) -> u64 {
        if self.is_crowded() { time::thread_ns() } else { time::now_ns() }
    }

    /// A sleep is over.
    fn awake(&self) {
        self.woke.store(self.spent(), Ordering::Relaxed);
    }

    /// Whether the caller does other things between looks, so that he must have had more of them before he sleeps again.
    fn does_more(&self) -> bool {
        !self.looks.load(Ordering::Relaxed).is_multiple_of(LOOKS)
            && self.sleep.load(Ordering::Relaxed) != 0
            && self.spent().saturating_sub(self.woke.load(Ordering::Relaxed)) > NOTHING_ELSE_NS
    }

    /// Tasks outnumber processors: those who have the processor next may be whom we wait for, or may keep it for long.
    #[inline]
    fn give_way(&self, looks: u32) -> Next {
        let away = self.away.load(Ordering::Relaxed);
        let more = if away < DEAR_NS { 0 } else { (away / AWAY_PER_LOOK_NS).min(MOST_LOOKS) };
        if u64::from(looks.wrapping_sub(self.yielded.load(Ordering::Relaxed))) < more {
            return Next::Poll;
        }
        self.yielded.store(looks, Ordering::Relaxed);
        Next::Yield
    }

    /// Yields, unless the `caller` to whom we return does so himself.
    fn step_aside(&self, caller: bool) {
        if !caller {
            return self.give_away();
        }
        self.detector.back();
        if !self.detector.yields() {
            self.give_away();
        }
        self.detector.leave();
    }

    fn give_away(&self) {
        let yields = self.yields.load(Ordering::Relaxed).wrapping_add(1);
        self.yields.store(yields, Ordering::Relaxed);
        if !yields.is_multiple_of(TIMED) {
            raw::sched_yield();
            return;
        }
        let before = time::now_ns();
        raw::sched_yield();
        self.was_away(time::now_ns().saturating_sub(before));
    }

    fn was_away(&self, ns: u64) {
        let away = self.away.load(Ordering::Relaxed);
        self.away.store(away - away / 4 + ns / 4, Ordering::Relaxed);
    }

    #[cold]
    fn timed(&self, policy: &WaitPolicy) -> Next {
        let now = time::now_ns();
        let mut since = self.since.load(Ordering::Relaxed);
        if since == 0 {
            since = now;
            self.since.store(now, Ordering::Relaxed);
        }
        if now.saturating_sub(since) < PATIENCE_NS {
            return if self.read_load(policy, now) {
                self.give_way(self.looks.load(Ordering::Relaxed))
            } else {
                Next::Poll
            };
        }
        // Some looks lie between two sleeps: who only looks now and then, between other things, is hardly held up.
        if self.does_more() {
            return Next::Poll;
        }
        let sleep = (self.sleep.load(Ordering::Relaxed) * 2).clamp(SLEEP_NS, LONGEST_SLEEP_NS);
        self.sleep.store(sleep, Ordering::Relaxed);
        if now.saturating_sub(self.sought.load(Ordering::Relaxed)) < SEEK_NS {
            return Next::Sleep(sleep);
        }
        self.sought.store(now, Ordering::Relaxed);
        self.read_load(policy, now);
        Next::Seek(sleep, now.saturating_sub(since) >= LONG_NS)
    }

    /// Whether tasks outnumber processors: a few system calls, so who sleeps asks seldom.
    fn read_load(&self, policy: &WaitPolicy, now: u64) -> bool {
        let contended = policy.contended(now);
        self.crowded.store(contended, Ordering::Relaxed);
        contended
    }
}

impl Worker {
    /// To be called by whoever looked and found nothing, and will look again: spins, yields or sleeps as is best for everybody. True:
    /// [`Worker::lost`] has something to tell.
    #[inline]
    pub fn idle(&self) -> bool {
        self.wait_once(false)
    }

    /// The same for who returns to a program that will look again, and may give the processor away itself.
    #[inline]
    pub fn rest(&self) -> bool {
        self.wait_once(true)
    }

    /// For who looked and found nothing, before he returns to a caller that may do much before he looks again: whether an answer to what
    /// was just sent is likely to come so soon that looking on is worth it.
    #[inline]
    pub fn expects(&self) -> Option<Looks<'_>> {
        if !self.idle.answers.are_expected() {
            return None;
        }
        if self.policy.was_contended() || self.idle.is_crowded() {
            // Who never waits for long would never notice that the others are gone.
            if self.idle.answers.is_time_to_ask() {
                self.idle.read_load(&self.policy, time::now_ns());
            }
            return None;
        }
        if self.policy.max_spin_ns() > 0 { self.idle.answers.looks() } else { None }
    }

    #[inline]
    fn wait_once(&self, caller: bool) -> bool {
        match self.idle.next(&self.policy) {
            Next::Poll => {
                core::hint::spin_loop();
                return false;
            }
            Next::Yield => {
                self.idle.step_aside(caller);
                return false;
            }
            Next::Sleep(ns) => self.sleep(ns),
            Next::Seek(ns, all) => {
                self.core().seek(all);
                self.sleep(ns);
            }
        }
        !self.core().state.lost.is_empty()
    }

    /// Makes progress until something came or `deadline` (nanoseconds of the monotonic clock) passed. True: something came.
    pub fn wait(&self, deadline: Option<u64>) -> bool {
        let mut looks = 0u32;
        loop {
            if self.progress() > 0 {
                return true;
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) && deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
                return false;
            }
            self.idle();
        }
    }

    /// Makes progress until everything that was to be sent was taken by a port, or `deadline` passed. True: it was.
    pub fn flush(&self, deadline: Option<u64>) -> bool {
        loop {
            self.progress();
            if self.core().state.nodes.iter().all(|node| node.out.is_clear()) {
                return true;
            }
            if deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
                return false;
            }
            self.idle();
        }
    }

    /// The descriptors of the ports, the same ones while the worker lives, for who sleeps by means of his own.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.core().ports.iter().filter_map(|slot| slot.port.descriptor().map(|fd| fd.as_raw_fd())).collect()
    }

    /// Has them ring from now on. `None`: there is something to do first. Else one may sleep until one of them is ready to be read, at
    /// most until the time that is told (nanoseconds of the monotonic clock), and must then call [`Worker::woken`].
    pub fn arm(&self) -> Option<u64> {
        let mut core = self.core();
        core.seek(false);
        core.arm(&mut [])
    }

    /// Ends that.
    pub fn woken(&self) {
        self.core().ports.iter_mut().for_each(|slot| slot.port.woken());
    }

    /// Sleeps until a port rings, at most `ns` nanoseconds.
    #[cold]
    fn sleep(&self, ns: u64) {
        let mut fds = [-1; MAX_PORTS];
        let until = time::now_ns() + ns;
        let until = {
            let mut core = self.core();
            match core.arm(&mut fds) {
                Some(deadline) => deadline.min(until),
                None => return,
            }
        };
        raw::wait_readable(&fds, until.saturating_sub(time::now_ns()));
        self.idle.awake();
        self.woken();
    }
}

impl Core {
    /// Nothing came for long. Those whom a receive waits for may be unable to reach us, so a way to them is looked for from here too;
    /// only who sends needs one, so it is no failure if none is found; but where no driver takes a node, nothing comes from there either,
    /// and who waits for that node alone hears of it. After a long time others are looked for as well (`all`): who waits for one that is
    /// up may in truth wait for another, who waits for us.
    #[cold]
    fn seek(&mut self, all: bool) {
        let (nodes, me) = (&self.state.nodes, self.id);
        // Nobody looks for himself: it would only keep him awake.
        let open = |node: &Node| node.route == Route::None && node.address.is_some() && node.id != me;
        if !nodes.iter().any(open) {
            return;
        }
        let mut wanted = vec![Awaited::No; nodes.len()];
        for endpoint in self.state.endpoints.iter().flatten() {
            endpoint.awaited(&mut |node, how| wanted[node as usize] = how.max(wanted[node as usize]));
        }
        let mut linked = nodes.iter().filter(|node| node.route != Route::None).count();
        for (node, wanted) in wanted.into_iter().enumerate() {
            let few = all && linked < FEW;
            let to = &self.state.nodes[node];
            if wanted == Awaited::No && !few || !open(to) || !to.out.is_clear() {
                continue;
            }
            linked += 1;
            let untried = to.tried == 0;
            let tried = self.link(node as u32);
            let to = &mut self.state.nodes[node];
            match tried {
                Ok(()) => to.sought = matches!(to.route, Route::Linking { .. }),
                Err(why) if untried && wanted == Awaited::Itself => self.state.fail(node as u32, why),
                Err(_) => to.try_anew(),
            }
        }
    }

    /// Has every port ring. `None`: there is something to do; else the earliest time one of them must be looked at.
    fn arm(&mut self, fds: &mut [i32]) -> Option<u64> {
        // What was asked for may have to be copied soon.
        if !(self.state.pulls.is_empty() && self.state.asked.is_empty() && self.state.pending.is_empty()) {
            return None;
        }
        let mut deadline = u64::MAX;
        for (i, slot) in self.ports.iter_mut().enumerate() {
            if slot.port.arm() {
                return None;
            }
            deadline = deadline.min(slot.port.deadline().unwrap_or(u64::MAX));
            if let (Some(fd), Some(place)) = (slot.port.descriptor(), fds.get_mut(i)) {
                *place = fd.as_raw_fd();
            }
        }
        Some(deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_only_after_a_long_time_and_longer_each_time() {
        let policy = WaitPolicy::new();
        let idle = Idle::default();
        for _ in 0..10 * LOOKS {
            assert!(matches!(idle.next(&policy), Next::Poll | Next::Yield));
        }
        idle.since.store(time::now_ns().saturating_sub(2 * PATIENCE_NS).max(1), Ordering::Relaxed);
        let slept: Vec<_> = (0..20 * LOOKS)
            .filter_map(|_| if let Next::Sleep(ns) | Next::Seek(ns, _) = idle.next(&policy) { Some(ns) } else { None })
            .collect();
        assert!(slept.len() >= 20 && slept[0] == SLEEP_NS && slept[19] == LONGEST_SLEEP_NS);
        idle.busy();
        assert!(matches!(idle.next(&policy), Next::Poll | Next::Yield));
    }

    #[test]
    fn looks_little_between_sleeps_unless_the_caller_does_other_things() {
        let looks_between_sleeps = |other_things_ns: u64| {
            let (policy, idle) = (WaitPolicy::new(), Idle::default());
            idle.sleep.store(SLEEP_NS, Ordering::Relaxed);
            idle.since.store(time::now_ns().saturating_sub(2 * PATIENCE_NS).max(1), Ordering::Relaxed);
            let mut sleeps = Vec::new();
            for look in 0..20 * LOOKS {
                if matches!(idle.next(&policy), Next::Sleep(_) | Next::Seek(..)) {
                    sleeps.push(look);
                    idle.awake();
                    let until = idle.spent() + other_things_ns;
                    while idle.spent() < until {}
                }
            }
            sleeps.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap()
        };
        assert_eq!(looks_between_sleeps(0), FEW_LOOKS);
        assert_eq!(looks_between_sleeps(2 * NOTHING_ELSE_NS), LOOKS);
    }

    #[test]
    fn looks_on_where_yielding_costs_much() {
        let idle = Idle::default();
        let looks_before_yields = |idle: &Idle| {
            let yields: Vec<_> = (1..4_000).filter(|looks| matches!(idle.give_way(*looks), Next::Yield)).collect();
            yields.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
        };
        assert_eq!(looks_before_yields(&idle), 1, "nothing is known");
        (0..40).for_each(|_| idle.was_away(5_000));
        assert_eq!(looks_before_yields(&idle), 1, "others yield too");
        (0..40).for_each(|_| idle.was_away(200_000));
        let some = looks_before_yields(&idle);
        assert!((200..=250).contains(&some), "{some} looks");
        (0..40).for_each(|_| idle.was_away(4_000_000));
        assert_eq!(u64::from(looks_before_yields(&idle)), MOST_LOOKS);
        idle.busy();
        assert!(matches!(idle.give_way(1), Next::Poll), "something came");
        (0..40).for_each(|_| idle.was_away(1_000));
        assert_eq!(looks_before_yields(&idle), 1, "those who do not yield are gone");
    }

    #[test]
    fn looks_for_others_again_and_again_and_for_all_after_a_while() {
        let (policy, now) = (WaitPolicy::new(), time::now_ns());
        let sleeping = |waited: u64, sought: u64| {
            let idle = Idle::default();
            idle.looks.store(LOOKS - 1, Ordering::Relaxed);
            idle.since.store(now.saturating_sub(waited).max(1), Ordering::Relaxed);
            idle.sought.store(sought, Ordering::Relaxed);
            idle
        };
        assert!(matches!(sleeping(PATIENCE_NS, 0).next(&policy), Next::Seek(_, false)));
        assert!(matches!(sleeping(PATIENCE_NS, now).next(&policy), Next::Sleep(_)));
        assert!(matches!(sleeping(2 * PATIENCE_NS, now - SEEK_NS).next(&policy), Next::Seek(_, false)));
        assert!(matches!(sleeping(2 * LONG_NS, now - SEEK_NS).next(&policy), Next::Seek(_, true)));
    }
}
