//! What a worker that finds nothing does next: it polls again at once, gives the processor away where tasks outnumber processors, and
//! sleeps only after a long time in which nothing came, so that an idle process costs next to nothing and a busy one never waits to be
//! woken.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use madrigal_progress::wait::WaitPolicy;
use madrigal_sys::{raw, time};

use super::answers::Answers;
use super::yields::YieldDetector;

/// Polls between two reads of the clock, ...
pub(crate) const POLLS: u32 = 64;
/// ... and the same where every poll ends in a sleep or a yield: the caller sleeps or yields, too, and then polls cost more than sleeps.
const FEW_POLLS: u32 = 8;
/// Those few polls took no longer: the caller does nothing else, so another sleep delays none of its work.
const NOTHING_ELSE_NS: u64 = 200_000;
/// Nothing came for so long: a waiting thread may sleep.
const PATIENCE_NS: u64 = 900_000_000;
/// The first sleep, and the longest. A doorbell ends any of them; what else the caller has to do waits no longer than that.
const SLEEP_NS: u64 = 50_000;
const LONGEST_SLEEP_NS: u64 = 20_000_000;
/// How often a sleeper tries to reach other nodes.
const SEEK_NS: u64 = 250_000_000;
/// Nothing came for so long: also nodes that no receive waits for may be unable to reach us.
const LONG_NS: u64 = 3_000_000_000;
/// A yield that takes so long met tasks that do not yield themselves: each one costs a slice of theirs, ...
const DEAR_NS: u64 = 50_000;
/// ... so a part of that time is better spent polling: one poll for so many nanoseconds away (a poll takes some 50), ...
const AWAY_PER_POLL_NS: u64 = 16 * 50;
/// ... but no more polls than this.
const MOST_POLLS: u64 = 512;
/// Of so many yields one is timed.
const TIMED: u32 = 4;

/// What is remembered between polls that found nothing. A note there needs no lock. Of threads that wait at the same time one may overwrite
/// what another noted. Then one waits a little longer or shorter.
#[derive(Default)]
pub(crate) struct Idle {
    polls: AtomicU32,
    /// When the clock was first read since something came; 0: not yet.
    since: AtomicU64,
    sleep: AtomicU64,
    /// When the last sleep ended, by [`Idle::spent`].
    woke: AtomicU64,
    /// When reaching other nodes was last due.
    sought: AtomicU64,
    /// Tasks outnumbered processors at the last reading.
    crowded: AtomicBool,
    /// How many polls there had been at the last yield.
    yielded: AtomicU32,
    yields: AtomicU32,
    /// How long yields took lately, on the average.
    away: AtomicU64,
    detector: YieldDetector,
    pub(super) answers: Answers,
}

/// What the caller does next.
pub(crate) enum Next {
    Poll,
    Yield,
    /// For so many nanoseconds.
    Sleep(u64),
    /// The same, after trying to reach others; true: all of them.
    Seek(u64, bool),
}

impl Idle {
    /// Something came.
    #[inline]
    pub(crate) fn busy(&self) {
        self.polls.store(0, Ordering::Relaxed);
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

    /// Whether the process that is waited for is likely not to run.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    #[inline]
    /// One more poll found nothing.
    pub(crate) fn next(&self, policy: &WaitPolicy) -> Next {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if polls.is_multiple_of(FEW_POLLS) && (polls.is_multiple_of(POLLS) || self.clock_is_cheap()) {
            return self.timed(policy);
        }
        if policy.was_contended() { self.give_way(polls) } else { Next::Poll }
    }

    /// Whether a read of the clock costs little beside a poll for messages.
    #[inline]
    fn clock_is_cheap(&self) -> bool {
        self.sleep.load(Ordering::Relaxed) != 0 || self.is_crowded()
    }

    /// The clock that measures how long a thread was busy: its own, where others have the processor, too.
    fn spent(&self) -> u64 {
        if self.is_crowded() { time::thread_ns() } else { time::now_ns() }
    }

    /// A sleep has ended.
    pub(crate) fn awake(&self) {
        self.woke.store(self.spent(), Ordering::Relaxed);
    }

    /// Whether the caller does other things between polls, so that more of them come before the next sleep.
    fn does_more(&self) -> bool {
        !self.polls.load(Ordering::Relaxed).is_multiple_of(POLLS)
            && self.sleep.load(Ordering::Relaxed) != 0
            && self.spent().saturating_sub(self.woke.load(Ordering::Relaxed)) > NOTHING_ELSE_NS
    }

    /// Tasks outnumber processors: the next task on the processor may be the one we wait for, or may keep it for long.
    #[inline]
    fn give_way(&self, polls: u32) -> Next {
        let away = self.away.load(Ordering::Relaxed);
        let more = if away < DEAR_NS { 0 } else { (away / AWAY_PER_POLL_NS).min(MOST_POLLS) };
        if u64::from(polls.wrapping_sub(self.yielded.load(Ordering::Relaxed))) < more {
            return Next::Poll;
        }
        self.yielded.store(polls, Ordering::Relaxed);
        Next::Yield
    }

    /// Yields, unless the `caller` to which we return does so itself.
    pub(crate) fn step_aside(&self, caller: bool) {
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
                self.give_way(self.polls.load(Ordering::Relaxed))
            } else {
                Next::Poll
            };
        }
        // Some polls lie between two sleeps. A caller that polls now and then, between other things, is hardly held up.
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

    /// Whether tasks outnumber processors: a few system calls, so a sleeper calls it seldom.
    pub(crate) fn read_load(&self, policy: &WaitPolicy, now: u64) -> bool {
        let contended = policy.contended(now);
        self.crowded.store(contended, Ordering::Relaxed);
        contended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_only_after_a_long_time_and_longer_each_time() {
        let policy = WaitPolicy::new();
        let idle = Idle::default();
        for _ in 0..10 * POLLS {
            assert!(matches!(idle.next(&policy), Next::Poll | Next::Yield));
        }
        idle.since.store(time::now_ns().saturating_sub(2 * PATIENCE_NS).max(1), Ordering::Relaxed);
        let slept: Vec<_> = (0..20 * POLLS)
            .filter_map(|_| if let Next::Sleep(ns) | Next::Seek(ns, _) = idle.next(&policy) { Some(ns) } else { None })
            .collect();
        assert!(slept.len() >= 20 && slept[0] == SLEEP_NS && slept[19] == LONGEST_SLEEP_NS);
        idle.busy();
        assert!(matches!(idle.next(&policy), Next::Poll | Next::Yield));
    }

    #[test]
    fn looks_little_between_sleeps_unless_the_caller_does_other_things() {
        let polls_between_sleeps = |other_things_ns: u64| {
            let (policy, idle) = (WaitPolicy::new(), Idle::default());
            idle.sleep.store(SLEEP_NS, Ordering::Relaxed);
            idle.since.store(time::now_ns().saturating_sub(2 * PATIENCE_NS).max(1), Ordering::Relaxed);
            let mut sleeps = Vec::new();
            for poll in 0..20 * POLLS {
                if matches!(idle.next(&policy), Next::Sleep(_) | Next::Seek(..)) {
                    sleeps.push(poll);
                    idle.awake();
                    let until = idle.spent() + other_things_ns;
                    while idle.spent() < until {}
                }
            }
            sleeps.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap()
        };
        assert_eq!(polls_between_sleeps(0), FEW_POLLS);
        assert_eq!(polls_between_sleeps(2 * NOTHING_ELSE_NS), POLLS);
    }

    #[test]
    fn looks_on_where_yielding_costs_much() {
        let idle = Idle::default();
        let polls_before_yields = |idle: &Idle| {
            let yields: Vec<_> = (1..4_000).filter(|polls| matches!(idle.give_way(*polls), Next::Yield)).collect();
            yields.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
        };
        assert_eq!(polls_before_yields(&idle), 1, "nothing is known");
        (0..40).for_each(|_| idle.was_away(5_000));
        assert_eq!(polls_before_yields(&idle), 1, "others yield too");
        (0..40).for_each(|_| idle.was_away(200_000));
        let some = polls_before_yields(&idle);
        assert!((200..=250).contains(&some), "{some} looks");
        (0..40).for_each(|_| idle.was_away(4_000_000));
        assert_eq!(u64::from(polls_before_yields(&idle)), MOST_POLLS);
        idle.busy();
        assert!(matches!(idle.give_way(1), Next::Poll), "something came");
        (0..40).for_each(|_| idle.was_away(1_000));
        assert_eq!(polls_before_yields(&idle), 1, "those who do not yield are gone");
    }

    #[test]
    fn looks_for_others_again_and_again_and_for_all_after_a_while() {
        let (policy, now) = (WaitPolicy::new(), time::now_ns());
        let sleeping = |waited: u64, sought: u64| {
            let idle = Idle::default();
            idle.polls.store(POLLS - 1, Ordering::Relaxed);
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
