//! The wait policy: how long a waiter polls before it sleeps. Decided here and nowhere else.
//!
//! Being woken costs a sleeper 5 to 50 us, a spinning reader sees a byte after 0.1 us; but a spinner takes the processor from the
//! one it waits for as soon as processors are scarce. So:
//!
//! * each waiter has a budget that grows while waits end soon and shrinks to nothing while they are long (the scheme of KVM's halt
//!   polling), never more than [`WaitPolicy::max_spin_ns`];
//! * where tasks outnumber processors (`/proc/loadavg`, read once every few milliseconds), or only one processor may be used, nobody spins
//!   longer than [`BLIND_NS`], and not even that unless such short spins have paid lately;
//! * a peer that last ran on our own processor cannot be running now: no spinning for it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use madrigal_sys::{cpu, time};

/// The spin nobody needs a reason for: less than going to sleep and coming back costs.
pub const BLIND_NS: u64 = 2_000;
/// The longest spin unless configured: about one wake-up across processors.
pub const DEFAULT_MAX_NS: u64 = 50_000;
/// How often the machine's load is read while somebody wants to spin.
const SAMPLE_NS: u64 = 4_000_000;
/// Two samples in a row must agree before the machine counts as contended.
const AGREE: u32 = 2;

/// What a waiter knows of the one it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Nothing.
    Unknown,
    /// It was seen on another processor.
    Elsewhere,
    /// It was last seen on the waiter's own processor.
    Here,
}

/// One per process (or runtime): the limits, and what is known of the machine's load.
pub struct WaitPolicy {
    max_ns: AtomicU64,
    cpus: AtomicU32,
    over: AtomicU32,
    next_sample: AtomicU64,
}

impl WaitPolicy {
    /// A policy with default limits; nothing is asked of the system before the first wait.
    pub const fn new() -> Self {
        Self {
            max_ns: AtomicU64::new(DEFAULT_MAX_NS),
            cpus: AtomicU32::new(0),
            // The first sample decides alone: whoever spins on a busy machine at first stays where it pushed its peer away.
            over: AtomicU32::new(AGREE - 1),
            next_sample: AtomicU64::new(0),
        }
    }

    /// Sets the longest spin; 0 disables spinning.
    pub fn set_max_spin_ns(&self, ns: u64) {
        self.max_ns.store(ns, Ordering::Relaxed);
    }

    /// The longest spin in nanoseconds.
    pub fn max_spin_ns(&self) -> u64 {
        self.max_ns.load(Ordering::Relaxed)
    }

    /// Begins a wait. `cheap` polls are memory reads, others are system calls, which a waiter must have earned.
    #[inline]
    pub fn begin<'a>(&'a self, waiter: &'a Waiter, cheap: bool) -> Wait<'a> {
        Wait { policy: self, waiter, start: 0, limit: 0, polls: 0, cheap, short: false }
    }

    /// Lets a waiter learn from a sleep that began at `since` and is over now.
    pub fn slept(&self, waiter: &Waiter, since: u64) {
        let max = self.max_spin_ns();
        let budget = waiter.budget(max);
        let now = time::now_ns();
        // A waiter that does not spin asks nowhere else.
        self.contended(now);
        if now - since < 3 * max {
            waiter.set((2 * budget).clamp(max / 4, max));
        } else {
            waiter.set(budget / 2);
        }
    }

    /// Whether tasks outnumber the processors they may use.
    pub fn contended(&self, now: u64) -> bool {
        if now >= self.next_sample.load(Ordering::Relaxed) {
            self.sample(now);
        }
        self.was_contended()
    }

    /// The same, as of the last read of the machine's load.
    #[inline]
    pub fn was_contended(&self) -> bool {
        self.over.load(Ordering::Relaxed) >= AGREE
    }

    #[cold]
    fn sample(&self, now: u64) {
        self.next_sample.store(now + SAMPLE_NS, Ordering::Relaxed);
        let mut cpus = self.cpus.load(Ordering::Relaxed);
        if cpus == 0 {
            cpus = cpu::usable();
            self.cpus.store(cpus, Ordering::Relaxed);
        }
        let over = self.over.load(Ordering::Relaxed);
        let next = match cpu::runnable() {
            _ if cpus < 2 => AGREE + 1,
            Some(tasks) if tasks > cpus => (over + 1).min(AGREE + 1),
            Some(_) => over.saturating_sub(1),
            None => over,
        };
        self.over.store(next, Ordering::Relaxed);
    }
}

impl Default for WaitPolicy {
    fn default() -> Self {
        Self::new()
    }
}

/// What one waiter (a connection, an event set, a thread) remembers between waits. Zeroed memory is a fresh waiter.
#[derive(Default)]
pub struct Waiter {
    /// Nanoseconds of spinning that recent waits have earned, plus one; 0 for a waiter that never waited.
    budget: AtomicU32,
    /// How well short spins did while tasks outnumbered processors: failures less successes, bounded.
    missed: AtomicU32,
}

/// Failures in a row that end short spins, but for one try in [`RETRY`] further ones.
const MISSES: u32 = 8;
const RETRY: u32 = 16;

impl Waiter {
    /// A waiter that never waited.
    pub const fn new() -> Self {
        Self { budget: AtomicU32::new(0), missed: AtomicU32::new(0) }
    }

    /// Becomes a fresh waiter again.
    pub fn forget(&self) {
        self.budget.store(0, Ordering::Relaxed);
        self.missed.store(0, Ordering::Relaxed);
    }

    /// Whether a short spin is worth trying where tasks outnumber processors.
    fn tries_short(&self) -> bool {
        let missed = self.missed.load(Ordering::Relaxed);
        if missed < MISSES {
            return true;
        }
        self.missed.store(if missed >= MISSES + RETRY { MISSES } else { missed + 1 }, Ordering::Relaxed);
        missed >= MISSES + RETRY
    }

    fn short_spin(&self, paid: bool) {
        let missed = self.missed.load(Ordering::Relaxed).min(MISSES);
        self.missed.store(if paid { missed.saturating_sub(2) } else { missed + 1 }, Ordering::Relaxed);
    }

    fn budget(&self, max: u64) -> u64 {
        match self.budget.load(Ordering::Relaxed) {
            0 => max,
            b => u64::from(b - 1).min(max),
        }
    }

    fn set(&self, ns: u64) {
        self.budget.store(ns.min(u64::from(u32::MAX - 1)) as u32 + 1, Ordering::Relaxed);
    }
}

/// One wait in progress.
pub struct Wait<'a> {
    policy: &'a WaitPolicy,
    waiter: &'a Waiter,
    start: u64,
    limit: u64,
    polls: u32,
    cheap: bool,
    /// Tasks outnumber processors, and this is a try all the same.
    short: bool,
}

impl Wait<'_> {
    /// Call after a poll that found nothing: true to poll again, false to sleep. Only every eighth cheap poll is timed. `peer` is asked
    /// once, when timing begins.
    #[inline]
    pub fn again(&mut self, peer: impl FnOnce() -> Peer) -> bool {
        self.polls += 1;
        if self.polls == 1 && self.policy.was_contended() {
            self.short = self.cheap && self.waiter.tries_short() && peer() != Peer::Here;
            return self.short;
        }
        if self.cheap && !self.polls.is_multiple_of(8) {
            core::hint::spin_loop();
            return true;
        }
        self.timed(peer)
    }

    fn timed(&mut self, peer: impl FnOnce() -> Peer) -> bool {
        let now = time::now_ns();
        let max = self.policy.max_spin_ns();
        if self.start == 0 {
            self.start = now;
            self.limit = now + BLIND_NS.min(max);
            let earned = self.cheap || self.waiter.budget(max) > BLIND_NS && !self.policy.contended(now);
            return earned && self.limit > now && peer() != Peer::Here;
        }
        if now < self.limit {
            return true;
        }
        if self.short {
            self.waiter.short_spin(false);
            return false;
        }
        if self.limit > self.start + BLIND_NS {
            return false;
        }
        let budget = self.waiter.budget(max);
        if budget <= BLIND_NS || self.policy.contended(now) {
            return false;
        }
        self.limit = self.start + budget.max(BLIND_NS + 1);
        now < self.limit
    }

    /// When the wait began; now, if it was too short to be timed so far.
    pub fn since(&self) -> u64 {
        if self.start == 0 { time::now_ns() } else { self.start }
    }

    /// Ends a wait that needed no sleep: it paid, so the waiter keeps what it needed twice over and lets the rest fade. A wait
    /// that slept ends with [`WaitPolicy::slept`].
    pub fn paid(self) {
        if self.short {
            self.waiter.short_spin(true);
        }
        if self.start == 0 {
            return;
        }
        let max = self.policy.max_spin_ns();
        let budget = self.waiter.budget(max);
        let needed = 2 * (time::now_ns() - self.start);
        self.waiter.set((budget - budget / 64).max(needed.min(max)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_that_never_succeeds_stops_spinning() {
        let policy = WaitPolicy::new();
        let waiter = Waiter::default();
        for _ in 0..40 {
            policy.slept(&waiter, time::now_ns() - 10 * DEFAULT_MAX_NS);
        }
        assert!(waiter.budget(DEFAULT_MAX_NS) <= BLIND_NS);
        assert!(!policy.begin(&waiter, false).again(|| Peer::Unknown));
    }

    #[test]
    fn short_sleeps_bring_spinning_back() {
        let policy = WaitPolicy::new();
        let waiter = Waiter::default();
        waiter.set(0);
        policy.slept(&waiter, time::now_ns());
        assert!(waiter.budget(DEFAULT_MAX_NS) >= DEFAULT_MAX_NS / 4);
    }

    #[test]
    fn zero_turns_spinning_off() {
        let policy = WaitPolicy::new();
        policy.set_max_spin_ns(0);
        let waiter = Waiter::default();
        assert!(!policy.begin(&waiter, false).again(|| Peer::Unknown));
        let mut cheap = policy.begin(&waiter, true);
        assert!((0..8).any(|_| !cheap.again(|| Peer::Unknown)));
    }

    #[test]
    fn nobody_spins_for_a_peer_on_the_same_processor() {
        let policy = WaitPolicy::new();
        let waiter = Waiter::default();
        let mut wait = policy.begin(&waiter, true);
        while wait.again(|| Peer::Here) {}
        assert!(wait.limit <= wait.start + BLIND_NS);
    }
}
