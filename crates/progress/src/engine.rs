//! The progress engine: the one loop that polls everything a process waits for.
//!
//! To wait for something, register a [`Source`]. [`Engine::do_work`] runs the engine once: it visits runnable sources, class by class, each
//! class up to its weight, and polls the kernel through one epoll. A source is
//!
//! * *parked* while only its descriptor can make it runnable: it costs nothing, however many there are;
//! * *watched* while a read of memory may find something: it is visited every pass, until it stayed idle for long;
//! * *runnable* when it was reported, woken, or had more to do than its share.
//!
//! The engine has no thread: it runs on the threads that wait or call it. No lock is held while a source works, so its callbacks
//! may register, wake, wait and run the engine again. One source is never worked on by two threads, nor below itself.
//!
//! When no thread finds anything, one sleeps in the epoll and the others behind it ([`Sleep`]).

mod queue;
mod sleep;
mod sleepers;
mod timers;

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use madrigal_sys::fd::Fd;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex};

use madrigal_sys::{Errno, time};
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::driver::Signal;
use crate::wait::{Peer, WaitPolicy, Waiter};
use queue::{Classes, Entry, Table};
use sleepers::Sleepers;
use timers::Timers;

pub use queue::{Class, Next, Source, Work};
pub use sleep::Sleep;

/// Events taken from the kernel at a time.
const EVENTS: usize = 64;
/// The data of the engine's own doorbell; entries' keys begin at 0 and never get here.
const BELL: u64 = u64::MAX;
/// How many passes apart the kernel is polled while sources in memory are watched, unless configured.
const KERNEL_EVERY: u32 = 32;

/// The engine of a process or runtime.
pub struct Engine {
    epoll: Fd,
    bell: Fd,
    classes: Classes,
    table: Mutex<Table>,
    timers: Timers,
    sleepers: Sleepers,
    passes: AtomicU32,
    kernel_every: AtomicU32,
    policy: WaitPolicy,
    lingering: AtomicUsize,
}

impl Engine {
    /// A new engine: an epoll, a doorbell, and nothing to do.
    pub fn new() -> Result<Arc<Self>, Errno> {
        let epoll = Fd::from(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let bell = Fd::from(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Arc::new(Self {
            epoll,
            bell,
            classes: Classes::default(),
            table: Mutex::default(),
            timers: Timers::default(),
            sleepers: Sleepers::default(),
            passes: AtomicU32::new(0),
            kernel_every: AtomicU32::new(KERNEL_EVERY),
            policy: WaitPolicy::new(),
            lingering: AtomicUsize::new(0),
        }))
    }

    /// How long waiters spin.
    pub fn policy(&self) -> &WaitPolicy {
        &self.policy
    }

    /// The class of that name, made if there is none. Sources of one class share its weight.
    pub fn class(&self, name: &'static str) -> Class {
        self.classes.named(name)
    }

    /// How much work a class may do per pass (at least 1); takes effect at once.
    pub fn set_weight(&self, class: Class, weight: u32) {
        self.classes.of(class).set_weight(weight);
    }

    /// How much work a class has done so far.
    pub fn work_done(&self, class: Class) -> u64 {
        self.classes.of(class).work_done()
    }

    /// Polls the kernel only every `passes` passes while sources in memory are watched; takes effect at once.
    pub fn set_kernel_every(&self, passes: u32) {
        self.kernel_every.store(passes.max(1), Ordering::Relaxed);
    }

    /// Adds a source, parked. From now on its signal makes it runnable. `ENOSPC`, `ENOMEM`: the kernel watches no more descriptors.
    pub fn register(
        self: &Arc<Self>,
        class: Class,
        signal: Option<Arc<dyn Signal>>,
        source: Arc<dyn Source>,
    ) -> Result<Registration, Errno> {
        let entry = queue::lock(&self.table).add(class, signal, source);
        if let Some(signal) = entry.signal() {
            use epoll::EventFlags as E;
            let data = epoll::EventData::new_u64(entry.key());
            let output = if signal.by_output() { E::OUT } else { E::empty() };
            let added = epoll::add(&self.epoll, signal.descriptor(), data, E::IN | E::RDHUP | E::ET | output);
            added.inspect_err(|_| drop(queue::lock(&self.table).remove(entry.key())))?;
        }
        Ok(Registration { engine: Arc::clone(self), entry })
    }

    /// How many things end only by this engine's work, soon, and are not to be cut off by the end of whoever runs it. Who begins to linger
    /// adds one, and takes it off at its end.
    pub fn lingering(&self) -> &AtomicUsize {
        &self.lingering
    }

    /// Turns the engine once: bounded work, never blocks; returns how much was done. Handlers of completed operations run inside.
    pub fn do_work(&self) -> usize {
        if self.kernel_is_due() {
            self.timers.due(|key| self.wake_key(key));
            self.poll_kernel(Some(0), false);
        }
        let mut done = 0;
        for class in self.classes.iter() {
            let mut left = class.weight();
            let mut visits = class.waiting();
            while left > 0 && visits > 0 {
                visits -= 1;
                let Some(entry) = class.pop() else { break };
                let visit = Visit { class, entry: Some(entry) };
                let work = visit.work(left);
                left = left.saturating_sub(work.count);
                done += work.count as usize;
                visit.settle(&work);
            }
        }
        self.after_pass(done > 0);
        done
    }

    /// Readable when something has come that [`Engine::begin_sleep`] armed; the same one for the life of the engine.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Runs the engine until `done` returns true or the deadline (in nanoseconds of [`time::now_ns`]) passes; returns the last result of
    /// `done`. Spins as the policy allows, then sleeps. `done` is called again after every pass that did something, on whatever thread.
    pub fn wait_until(&self, waiter: &Waiter, deadline: Option<u64>, mut done: impl FnMut() -> bool) -> bool {
        let mut sleep = self.sleeper();
        loop {
            let mut wait = self.policy.begin(waiter, self.classes.any_waiting());
            loop {
                if done() {
                    wait.paid();
                    return true;
                }
                let worked = self.do_work() > 0;
                if deadline.is_some_and(|at| time::now_ns() >= at) {
                    return done();
                }
                if !worked && !wait.again(|| Peer::Unknown) {
                    break;
                }
            }
            let since = wait.since();
            sleep.sleep_for_any(deadline, &mut done);
            self.policy.slept(waiter, since);
        }
    }

    fn kernel_is_due(&self) -> bool {
        // Two threads may count two passes as one: then the kernel is polled a pass later.
        let pass = self.passes.load(Ordering::Relaxed).wrapping_add(1);
        self.passes.store(pass, Ordering::Relaxed);
        pass.is_multiple_of(self.kernel_every.load(Ordering::Relaxed)) || !self.classes.any_waiting()
    }

    /// Takes events from the kernel, waiting for them up to `timeout` nanoseconds (`None`: for ever), and makes sources runnable. Only the
    /// `leader` takes the doorbell out, which is for it alone.
    fn poll_kernel(&self, timeout: Option<u64>, leader: bool) {
        let mut events = [const { core::mem::MaybeUninit::uninit() }; EVENTS];
        let limit = timeout.map(timespec);
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, limit.as_ref()) else { return };
        for event in events {
            match event.data.u64() {
                BELL if leader => self.answer(),
                BELL => {}
                key => self.report(key, event.flags),
            }
        }
    }

    fn report(&self, key: u64, events: epoll::EventFlags) {
        let entry = queue::lock(&self.table).find(key);
        if let Some(entry) = entry {
            if let Some(signal) = entry.signal() {
                if events.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    signal.ended();
                }
                signal.woken();
            }
            self.classes.of(entry.class()).wake(&entry);
        }
    }

    fn wake_key(&self, key: u64) {
        let entry = queue::lock(&self.table).find(key);
        if let Some(entry) = entry {
            self.classes.of(entry.class()).wake(&entry);
        }
    }
}

/// A source's place in the engine; dropping it removes the source, which may still be at work once more on another thread.
pub struct Registration {
    engine: Arc<Engine>,
    entry: Arc<Entry>,
}

impl Registration {
    /// Makes the source runnable, and wakes a thread that sleeps for the engine.
    pub fn wake(&self) {
        self.engine.classes.of(self.entry.class()).wake(&self.entry);
        self.engine.ring();
    }

    /// As [`Registration::wake`] for a source that was given something to wait for. What it was given must be guarded by a lock that
    /// its `work` and `arm` take too, and the caller must hold that lock: then a source already queued need not be woken.
    #[inline]
    pub fn schedule(&self) {
        if !self.entry.will_be_visited() {
            self.wake();
        }
    }

    /// Takes the source's signal out of the engine and drops it. The source can still be woken.
    pub fn silence(&self) {
        self.drop_signal(self.entry.take_signal());
    }

    /// Makes the source runnable once that time has come (nanoseconds of [`time::now_ns`]), if a thread runs the engine.
    pub fn wake_at(&self, at: u64) {
        self.engine.timers.add(at, self.entry.key());
        self.engine.ring();
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn drop_signal(&self, signal: Option<Arc<dyn Signal>>) {
        if let Some(signal) = signal {
            // An error means it is not there any more, which is what we want.
            let _ = epoll::delete(&self.engine.epoll, signal.descriptor());
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let is_queued = self.entry.retire();
        self.drop_signal(self.entry.take_signal());
        // The source may be dropped here, and drop registrations of its own: not under the locks.
        let queued = if is_queued { self.engine.classes.of(self.entry.class()).forget(&self.entry) } else { None };
        let removed = queue::lock(&self.engine.table).remove(self.entry.key());
        drop((queued, removed));
    }
}

fn timespec(ns: u64) -> rustix::time::Timespec {
    rustix::time::Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// A source that is worked on. One that panics is left alone until it is reported again.
struct Visit<'a> {
    class: &'a queue::Lane,
    entry: Option<Arc<queue::Entry>>,
}

impl Visit<'_> {
    fn work(&self, budget: u32) -> Work {
        let idle = Work { count: 0, next: Next::Park };
        self.entry.as_ref().map_or(idle, |entry| entry.source().work(budget))
    }

    fn settle(mut self, work: &Work) {
        if let Some(entry) = self.entry.take() {
            self.class.settle(entry, work);
        }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.class.settle(entry, &Work { count: 0, next: Next::Park });
        }
    }
}

#[cfg(test)]
mod tests;
