//! How the threads of an engine sleep: one in the kernel's epoll, the others behind it on a futex.
//!
//! The thread in the epoll (the *leader*) first arms and parks every source, so that every event rings. Before it handles what woke it, it
//! gives its place to one of the *followers*, so that one thread is always in the epoll while any sleeps.
//!
//! Lost wake-ups are excluded in four places, each a store and a load on both sides:
//! * leader: `asleep` = 1, then reads the queues and timers, under their locks; a waker queues under the lock, then reads `asleep`.
//!   The critical section that comes second sees what the other side did before it;
//! * what a sleeper waits for: it counts itself (`asleep` or `followers`), then checks, under the lock that guards it; a completer
//!   completes under that lock, then reads the counts ([`Engine::call_all`]);
//! * followers sleep on `calls`, read before the last check and changed by every call;
//! * leader leaving: `leader` = 0, then reads `followers`; a follower counts itself, then reads `leader`.

use core::sync::atomic::Ordering;

use madrigal_sys::time;
use rustix::thread::futex;

use super::{Engine, timespec};

/// One thread's wait, which may sleep several times. Dropping it passes on what this thread may have been called for.
pub struct Sleep<'a> {
    engine: &'a Engine,
    followed: bool,
}

impl Sleep<'_> {
    /// Sleeps until something happened or the deadline passed (nanoseconds of [`time::now_ns`]); may return early. `is_ready` is called
    /// last: it arms what the caller waits for, and returns true when there is something, so that the thread does not sleep. What it waits
    /// for must be completed under a lock that `is_ready` takes too, and [`Engine::call_all`] called after.
    pub fn sleep(&mut self, deadline: Option<u64>, is_ready: &mut dyn FnMut() -> bool) {
        let s = &self.engine.sleepers;
        // SYNC: SeqCst on `leader` here, in the store below and in `follow`: a leaving leader sees a follower, or it sees no leader.
        if s.leader.swap(true, Ordering::SeqCst) {
            self.followed = true;
            return self.engine.follow(deadline, is_ready);
        }
        self.engine.lead(deadline, is_ready);
        s.leader.store(false, Ordering::SeqCst);
        if s.followers.load(Ordering::SeqCst) != 0 {
            s.call(1);
        }
    }

    /// As [`Sleep::sleep`], woken by any work done on any thread too: `is_ready` compares [`Engine::work_done`] with what it was.
    pub fn sleep_for_any(&mut self, deadline: Option<u64>, is_ready: &mut dyn FnMut() -> bool) {
        let for_any = &self.engine.sleepers.for_any;
        // SYNC: AcqRel here and in `after_pass`: either the work done before that check is visible to `is_ready`, or the count is to it.
        for_any.fetch_add(1, Ordering::AcqRel);
        self.sleep(deadline, is_ready);
        for_any.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        let s = &self.engine.sleepers;
        // Called to lead, it may have found what it waited for instead.
        if self.followed && !s.leader.load(Ordering::SeqCst) && s.followers.load(Ordering::SeqCst) != 0 {
            s.call(1);
        }
    }
}

impl Engine {
    /// Begins a wait of the calling thread that may have to sleep.
    pub fn sleeper(&self) -> Sleep<'_> {
        Sleep { engine: self, followed: false }
    }

    /// For an engine that one thread runs, and whose [`Engine::descriptor`] it polls by means of its own: arms and parks everything. True:
    /// something is runnable, do not sleep. False: sleep until the descriptor is readable, at most until [`Engine::first_timer`], and then
    /// call [`Engine::end_sleep`]. What other threads wake meanwhile makes the descriptor readable.
    pub fn begin_sleep(&self) -> bool {
        // SYNC: SeqCst on `asleep` here and in `lead`: whoever queues later sees it, or `park_all` sees what was queued.
        self.sleepers.asleep.store(true, Ordering::SeqCst);
        let is_quiet = self.classes.park_all();
        if !is_quiet {
            self.sleepers.asleep.store(false, Ordering::SeqCst);
        }
        !is_quiet
    }

    /// Ends that, whatever woke the thread; takes out what made the descriptor readable. Does not block.
    pub fn end_sleep(&self) {
        self.sleepers.asleep.store(false, Ordering::SeqCst);
        self.poll_kernel(Some(0), true);
    }

    /// When the engine must be run even if nothing comes (nanoseconds of [`time::now_ns`]).
    pub fn first_timer(&self) -> Option<u64> {
        self.timers.first()
    }

    fn lead(&self, deadline: Option<u64>, is_ready: &mut dyn FnMut() -> bool) {
        let asleep = &self.sleepers.asleep;
        asleep.store(true, Ordering::SeqCst);
        if self.classes.park_all() && !is_ready() {
            let until = [deadline, self.timers.first()].into_iter().flatten().min();
            self.poll_kernel(until.map(|at| at.saturating_sub(time::now_ns())), true);
        }
        asleep.store(false, Ordering::SeqCst);
    }

    fn follow(&self, deadline: Option<u64>, is_ready: &mut dyn FnMut() -> bool) {
        let s = &self.sleepers;
        s.followers.fetch_add(1, Ordering::SeqCst);
        let calls = s.calls.load(Ordering::SeqCst);
        if s.leader.load(Ordering::SeqCst) && !is_ready() {
            let limit = deadline.map(|at| timespec(at.saturating_sub(time::now_ns())));
            let _ = futex::wait(&s.calls, futex::Flags::PRIVATE, calls, limit.as_ref());
        }
        s.followers.fetch_sub(1, Ordering::SeqCst);
    }

    /// After a pass: threads that wait for any work check again, and a sleeping leader handles what is left in the queues.
    pub(super) fn after_pass(&self, worked: bool) {
        if worked && self.sleepers.for_any.fetch_add(0, Ordering::AcqRel) != 0 {
            self.call_all();
        } else if self.sleepers.asleep.load(Ordering::SeqCst) && self.classes.any_waiting() {
            self.ring();
        }
    }

    /// Wakes the leader if it sleeps. To be called after something was queued or set under the lock the leader checks under.
    pub(super) fn ring(&self) {
        if self.sleepers.asleep.load(Ordering::SeqCst) {
            // Full means that it rings already.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// The leader was rung: takes the doorbell out.
    pub(super) fn answer(&self) {
        // Empty means that it was taken out before.
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }

    /// Makes every sleeper check again: what one of them waits for may be complete.
    pub fn call_all(&self) {
        self.ring();
        if self.sleepers.followers.load(Ordering::SeqCst) != 0 {
            self.sleepers.call(i32::MAX as u32);
        }
    }
}
