//! One direction of a link and its posted operations. Two parties make them progress: the engine, for all of them; and the thread that
//! polls or waits for the front one, for that one alone, with nothing between it and the driver.
//!
//! The half is guarded by a lock of its own, so the directions do not meet. A thread that leaves unattended operations in the queue wakes
//! the link in the engine.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use madrigal_progress::driver::Watched;
use madrigal_progress::engine::{Engine, Registration};
use madrigal_progress::wait::{Peer, Waiter};
use madrigal_sys::spin_lock::{SpinGuard, SpinLock};
use madrigal_sys::time;

/// A waiting thread runs the engine after this many polls of its own link, so that other sources do not starve meanwhile.
const POLLS_PER_PASS: u32 = 64;
/// The same for waits that end soon: one pass for this many of them.
const WAITS_PER_PASS: u32 = 256;

/// A posted read or write.
pub(crate) struct Posted<B, T> {
    pub(crate) id: u64,
    pub(crate) body: B,
    pub(crate) then: Then<T>,
}

/// A completed read or write, and its outcome.
pub(crate) struct Completed<B, T> {
    pub(crate) op: Posted<B, T>,
    pub(crate) outcome: T,
}

/// How a posted read or write completes.
pub(crate) enum Then<T> {
    /// Its descriptor takes it. `sleeping`: a thread sleeps until then.
    Keep { sleeping: bool },
    /// It is called. What it holds, such as a handle of the link, lives until then.
    Call(Box<dyn FnOnce(T) + Send>),
    /// The outcome is not wanted.
    Drop,
}

/// The posted operations of one direction, and outcomes not taken yet.
pub(crate) struct Queue<B, T> {
    posted: VecDeque<Posted<B, T>>,
    done: Vec<(u64, T)>,
    next: u64,
    waits: u32,
    /// How long the first wait for what is posted holds back, in nanoseconds.
    pub(crate) patience: u64,
    /// The link's place in the engine; `None` once it is closed.
    pub(crate) registration: Option<Arc<Registration>>,
}

impl<B, T> Queue<B, T> {
    pub(crate) fn new() -> Self {
        Self { posted: VecDeque::new(), done: Vec::new(), next: 0, waits: 0, patience: 0, registration: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    #[inline(always)]
    pub(crate) fn front_mut(&mut self) -> Option<&mut Posted<B, T>> {
        self.posted.front_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Posted<B, T>> {
        self.posted.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Posted<B, T>> {
        self.posted.iter_mut()
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<Posted<B, T>> {
        self.posted.pop_front()
    }

    /// Posts an operation and schedules it in the engine.
    pub(crate) fn post(&mut self, body: B, then: Then<T>) -> u64 {
        self.next += 1;
        self.posted.push_back(Posted { id: self.next, body, then });
        if let Some(registration) = &self.registration {
            registration.schedule();
        }
        self.next
    }

    /// Forgets an operation that is no longer waited for. `keep_running`: it has begun, and only its outcome is unwanted.
    pub(crate) fn forget(&mut self, id: u64, keep_running: bool) {
        self.done.retain(|(done, _)| *done != id);
        if keep_running {
            self.posted.iter_mut().filter(|op| op.id == id).for_each(|op| op.then = Then::Drop);
        } else {
            self.posted.retain(|op| op.id != id);
        }
    }

    /// Takes an operation back that is not over.
    pub(crate) fn withdraw(&mut self, id: u64) -> Option<B> {
        let at = self.posted.iter().position(|op| op.id == id)?;
        self.posted.remove(at).map(|op| op.body)
    }

    pub(crate) fn take(&mut self, id: u64) -> Option<T> {
        let at = self.done.iter().position(|(done, _)| *done == id)?;
        Some(self.done.swap_remove(at).1)
    }

    fn is_front(&self, id: u64) -> bool {
        self.posted.front().is_some_and(|op| op.id == id)
    }

    /// Somebody will sleep for this operation. True: it is done, do not sleep.
    fn will_sleep(&mut self, id: u64) -> bool {
        for op in self.posted.iter_mut().filter(|op| op.id == id) {
            op.then = Then::Keep { sleeping: true };
        }
        self.done.iter().any(|(done, _)| *done == id)
    }
}

/// One direction's end and queue.
pub(crate) trait Half: Send + Sized {
    /// What an operation works with.
    type Body;
    /// What it comes to.
    type Outcome;

    fn queue(&mut self) -> &mut Queue<Self::Body, Self::Outcome>;

    /// Tries the operation in front; takes it out of the queue when it completes.
    fn step(&mut self) -> Option<Completed<Self::Body, Self::Outcome>>;

    /// The driver's end, as a thing to wait for; `None` once it is closed.
    fn end(&mut self) -> Option<&mut dyn Watched>;

    /// Whether trying is useless until the signal is reported, which it was not since the last try. Only the engine calls this, for it gets
    /// every report.
    fn is_dry(&mut self) -> bool;

    /// Whether the signal was reported since the last call: then a poll may be due that no other thread will do.
    fn was_reported(&self) -> bool;

    /// Whether our side closes, which waits for what is posted.
    fn is_closing(&self) -> bool;

    /// Whether an operation that has begun must go on when its outcome is not wanted.
    const GOES_ON: bool;
}

/// One direction of a link.
pub(crate) struct Lane<H> {
    half: SpinLock<H>,
    /// A waiting thread polls the operation in front, holding the lock nearly all the time.
    attended: AtomicBool,
    waiter: Waiter,
}

/// What the engine's visit left of a direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rest {
    /// Nothing is posted, or a waiting thread polls it.
    Nothing,
    /// The signal will be reported.
    Parked,
    /// Looking at memory again is worth it.
    Watched,
    /// There is more to do.
    More,
}

impl<H: Half> Lane<H> {
    pub(crate) fn new(half: H) -> Self {
        Self { half: SpinLock::new(half), attended: AtomicBool::new(false), waiter: Waiter::default() }
    }

    #[inline]
    pub(crate) fn lock(&self) -> SpinGuard<'_, H> {
        self.half.lock()
    }

    /// Completes operations for the engine, at most as many as `budget` is left.
    pub(crate) fn work(&self, engine: &Engine, budget: &mut u32) -> Rest {
        if self.attended.load(Ordering::Acquire) {
            return Rest::Nothing;
        }
        loop {
            let mut half = self.lock();
            if half.queue().is_empty() {
                return Rest::Nothing;
            }
            // What came with the last bytes, such as the end behind them, is reported with them.
            if half.is_dry() && !half.end().is_some_and(|end| end.arm()) {
                return Rest::Parked;
            }
            if *budget == 0 {
                return Rest::More;
            }
            let Some(completed) = half.step() else {
                let Some(end) = half.end() else { return Rest::Parked };
                if end.cheap() {
                    return Rest::Watched;
                }
                // Nothing else arms it before it is left alone.
                return if end.arm() { Rest::More } else { Rest::Parked };
            };
            *budget -= 1;
            deliver(half, completed, engine);
        }
    }

    /// Everybody is about to sleep. True: there is something to do.
    pub(crate) fn arm(&self) -> bool {
        // An attending thread arms for itself, or wakes the link when it goes.
        if self.attended.load(Ordering::Acquire) {
            return false;
        }
        let mut half = self.lock();
        !half.queue().is_empty() && half.end().is_none_or(|end| end.arm())
    }

    /// Checks whether operation `id` completed, trying it if it is in front; else runs the engine.
    pub(crate) fn poll(&self, id: u64, engine: &Engine) -> Option<H::Outcome> {
        let mut half = self.lock();
        let queue = half.queue();
        if let Some(outcome) = queue.take(id) {
            return Some(outcome);
        }
        queue.waits = queue.waits.wrapping_add(1);
        let due = queue.waits.is_multiple_of(POLLS_PER_PASS);
        if queue.is_front(id) {
            if let Some(Completed { outcome, .. }) = half.step() {
                self.leave(half);
                return Some(outcome);
            }
            if !due {
                return None;
            }
        }
        drop(half);
        engine.do_work();
        self.lock().queue().take(id)
    }

    /// Waits until operation `id` completed or the deadline passed.
    pub(crate) fn wait(&self, id: u64, engine: &Engine, deadline: Option<u64>) -> Option<H::Outcome> {
        let mut sleep = None;
        loop {
            let since = match self.spin(id, engine, deadline) {
                Ok(outcome) => return Some(outcome),
                Err(since) => since,
            };
            if deadline.is_some_and(|at| time::now_ns() >= at) {
                self.leave(self.lock());
                return None;
            }
            let sleep = sleep.get_or_insert_with(|| engine.sleeper());
            sleep.sleep(deadline, &mut || {
                let mut half = self.lock();
                half.queue().will_sleep(id) || half.was_reported() || half.end().is_none_or(|end| end.arm())
            });
            engine.policy().slept(&self.waiter, since);
            // Whatever woke us may be for others.
            engine.do_work();
        }
    }

    /// Polls as long as the wait policy allows; if nothing came, returns when it began.
    fn spin(&self, id: u64, engine: &Engine, deadline: Option<u64>) -> Result<H::Outcome, u64> {
        let mut half = self.lock();
        if let Some(outcome) = half.queue().take(id) {
            return Ok(outcome);
        }
        if !half.queue().is_front(id) {
            drop(half);
            return self.run_engine(id, engine, deadline);
        }
        self.attended.store(true, Ordering::Relaxed);
        let cheap = half.end().is_some_and(|end| end.cheap());
        let patience = core::mem::take(&mut half.queue().patience);
        if patience > 0 {
            let until = time::now_ns() + patience;
            while time::now_ns() < until {
                core::hint::spin_loop();
            }
        }
        let mut wait = engine.policy().begin(&self.waiter, cheap);
        let mut polls = 0u32;
        loop {
            if let Some(Completed { outcome, .. }) = half.step() {
                wait.paid();
                self.unattend(half, engine);
                return Ok(outcome);
            }
            polls += 1;
            if polls.is_multiple_of(POLLS_PER_PASS) {
                drop(half);
                engine.do_work();
                half = self.lock();
                if let Some(outcome) = half.queue().take(id) {
                    self.unattend(half, engine);
                    return Ok(outcome);
                }
            }
            if !wait.again(|| half.end().map_or(Peer::Unknown, |end| end.peer())) {
                // The caller goes to sleep and arms, for whatever is posted.
                self.attended.store(false, Ordering::Release);
                return Err(wait.since());
            }
        }
    }

    /// As `spin` where the operation is not in front: the engine does it, and may never be idle.
    fn run_engine(&self, id: u64, engine: &Engine, deadline: Option<u64>) -> Result<H::Outcome, u64> {
        let mut wait = engine.policy().begin(&self.waiter, false);
        loop {
            let worked = engine.do_work() > 0;
            if let Some(outcome) = self.lock().queue().take(id) {
                wait.paid();
                return Ok(outcome);
            }
            let late = worked && deadline.is_some_and(|at| time::now_ns() >= at);
            if late || !worked && !wait.again(|| Peer::Unknown) {
                return Err(wait.since());
            }
        }
    }

    #[inline]
    fn unattend(&self, mut half: SpinGuard<'_, H>, engine: &Engine) {
        // SYNC: Release pairs with the Acquire in `work` and `arm`; a thread that saw it set relies on `leave`.
        self.attended.store(false, Ordering::Release);
        let queue = half.queue();
        queue.waits = queue.waits.wrapping_add(1);
        let due = queue.waits.is_multiple_of(WAITS_PER_PASS);
        self.leave(half);
        if due {
            engine.do_work();
        }
    }

    /// What is still posted is the engine's.
    #[inline]
    fn leave(&self, mut half: SpinGuard<'_, H>) {
        // A close that waited for what is done now is the engine's, too.
        if half.queue().is_empty() && !half.is_closing() {
            return;
        }
        let registration = half.queue().registration.clone();
        drop(half);
        if let Some(registration) = registration {
            registration.wake();
        }
    }
}

/// Hands an outcome to its receiver, with the half unlocked.
fn deliver<H: Half>(mut half: SpinGuard<'_, H>, completed: Completed<H::Body, H::Outcome>, engine: &Engine) {
    let Completed { op, outcome } = completed;
    match op.then {
        Then::Keep { sleeping } => {
            half.queue().done.push((op.id, outcome));
            drop(half);
            if sleeping {
                engine.call_all();
            }
        }
        Then::Call(call) => {
            drop(half);
            call(outcome);
        }
        Then::Drop => drop(half),
    }
}
