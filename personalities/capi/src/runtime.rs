//! A runtime: the engine and what runs it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use madrigal::engine::Engine;
use madrigal::mailbox::Mailboxes;
use madrigal::ports::Ports;
use madrigal::time;
use madrigal::wait::Waiter;
use madrigal::{VLink, Worker};

use crate::classes::work_done;
use crate::codes::{MDG_ECLOSED, MDG_EUNUSABLE};
use crate::failure::Failure;
use crate::slot::{Slot, lock};
use crate::sources::Descriptors;
use crate::watcher::Watcher;

/// Passes in a row that one call makes at most.
const PASSES: usize = 64;

/// An operation under way, which ends with its runtime.
pub(crate) trait Pending: Send + Sync {
    /// The runtime is closed: the waiter is notified.
    fn close(&self);
}

/// A runtime. Whatever was opened from it keeps it.
pub(crate) struct Runtime {
    pub(crate) api: madrigal::Runtime,
    waiter: Waiter,
    /// Nothing is opened from it any more.
    closed: AtomicBool,
    /// The number of calls that make threads in [`Runtime::run_once`] return, and how many of these calls a thread has answered.
    calls: AtomicU64,
    answered: AtomicU64,
    descriptors: Mutex<Option<Arc<Descriptors>>>,
    watcher: Mutex<Option<Watcher>>,
    worker: Mutex<Option<Arc<Worker>>>,
    ports: Mutex<Option<Ports>>,
    mailboxes: Mutex<Option<Mailboxes>>,
    /// What may be under way.
    pending: Mutex<Vec<Weak<dyn Pending>>>,
    /// Links without a handle, of which something may still be to be written.
    leaving: Mutex<Vec<VLink>>,
}

impl Runtime {
    pub(crate) fn open() -> Result<Arc<Self>, Failure> {
        let mut api = madrigal::Runtime::new()?;
        api.set_tls(madrigal::grid_tls());
        Ok(Arc::new(Self {
            api,
            waiter: Waiter::default(),
            closed: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            descriptors: Mutex::new(None),
            watcher: Mutex::new(None),
            worker: Mutex::new(None),
            ports: Mutex::new(None),
            mailboxes: Mutex::new(None),
            pending: Mutex::default(),
            leaving: Mutex::default(),
        }))
    }

    /// From now on nothing is opened from it.
    pub(crate) fn shut(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if let Some(ports) = &*lock(&self.ports) {
            ports.close();
        }
        if let Some(mailboxes) = &*lock(&self.mailboxes) {
            mailboxes.close();
        }
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.api.engine()
    }

    /// Turns the engine until a slot is filled or the time has passed. Returns the content of the slot.
    pub(crate) fn wait<T>(&self, slot: &Slot<T>, timeout_ns: i64) -> Option<T> {
        if timeout_ns == 0 && !slot.is_done() {
            self.engine().do_work();
        } else {
            self.engine().wait_until(&slot.waiter, deadline(timeout_ns), || slot.is_done());
        }
        slot.take()
    }

    /// Registers an operation that ends with the runtime.
    pub(crate) fn begins(&self, what: Weak<dyn Pending>) -> Result<(), Failure> {
        let mut pending = lock(&self.pending);
        // Only when the list is full.
        if pending.len() == pending.capacity() {
            pending.retain(|one| one.strong_count() > 0);
        }
        pending.push(what);
        // A thread that closes the runtime sets the flag before it reads the list.
        self.check_open()
    }

    /// Nothing is opened from one that is closed.
    fn check_open(&self) -> Result<(), Failure> {
        if self.is_shut() { Err(Failure::new(MDG_ECLOSED, "the runtime is closed")) } else { Ok(()) }
    }

    /// A link's handle was closed: it ends when what was posted is written, or with the runtime.
    pub(crate) fn leaves(&self, link: &VLink) {
        if link.is_over() {
            return;
        }
        let mut leaving = lock(&self.leaving);
        if leaving.len() == leaving.capacity() {
            leaving.retain(|link| !link.is_over());
        }
        leaving.push(link.clone());
    }

    /// Ends links that are still to be written, and lets posted operations complete.
    #[cold]
    fn settle(&self) {
        let leaving = core::mem::take(&mut *lock(&self.leaving));
        leaving.iter().for_each(VLink::abort);
        drop(leaving);
        for _ in 0..PASSES {
            if self.engine().do_work() == 0 {
                break;
            }
        }
        self.engine().call_all();
    }

    /// Runs the engine until there was work, a call came, the runtime was closed, or the time has passed. Returns how much was done.
    pub(crate) fn run_once(&self, timeout_ns: i64) -> usize {
        // An earlier call that no thread has answered ends this wait, too.
        let answered = self.answered.load(Ordering::SeqCst);
        let mut done = 0;
        for _ in 0..PASSES {
            let now = self.engine().do_work();
            done += now;
            if now == 0 {
                break;
            }
        }
        if done == 0 && timeout_ns != 0 {
            let before = work_done(self.engine());
            let is_called = || self.calls.load(Ordering::SeqCst) != answered;
            let over = || work_done(self.engine()) != before || is_called() || self.is_shut();
            self.engine().wait_until(&self.waiter, deadline(timeout_ns), over);
            done = work_done(self.engine()).wrapping_sub(before) as usize;
        }
        // Each thread that waits has its own `answered`: none consumes a call that is for another thread, too.
        self.answered.fetch_max(self.calls.load(Ordering::SeqCst), Ordering::SeqCst);
        if let Some(watcher) = &*lock(&self.watcher) {
            watcher.watch();
        }
        done
    }

    /// The threads in [`Runtime::run_once`] return; if there is none, the next one does instead of waiting.
    pub(crate) fn call(&self) {
        // SYNC: SeqCst here and in `run_once`: a thread that is about to sleep counts, then checks for calls. We count the call, then check
        // for sleepers.
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.engine().call_all();
        if let Some(watcher) = &*lock(&self.watcher) {
            watcher.notify();
        }
    }

    /// The descriptor that is readable when the engine has to be turned. Its thread begins with the first call.
    pub(crate) fn descriptor(&self) -> Result<c_int, Failure> {
        let mut watcher = lock(&self.watcher);
        if watcher.is_none() {
            *watcher = Some(Watcher::begin(self.engine())?);
        }
        Ok(watcher.as_ref().map_or(-1, Watcher::descriptor))
    }

    /// The caller's own descriptors in this engine.
    pub(crate) fn descriptors(&self) -> Result<Arc<Descriptors>, Failure> {
        let mut descriptors = lock(&self.descriptors);
        match &*descriptors {
            Some(descriptors) => Ok(Arc::clone(descriptors)),
            None => Ok(Arc::clone(descriptors.insert(Descriptors::begin(self.engine())?))),
        }
    }

    /// What carries messages, opened with the first Circuit or port.
    pub(crate) fn worker(&self) -> Result<Arc<Worker>, Failure> {
        let mut worker = lock(&self.worker);
        if let Some(worker) = &*worker {
            return Ok(Arc::clone(worker));
        }
        self.check_open()?;
        let failed = |error| Failure::new(MDG_EUNUSABLE, format!("cannot send messages: {error}"));
        // What is wrong with the environment is known from the runtime.
        let (opened, _) = madrigal::worker().map_err(failed)?;
        Ok(Arc::clone(worker.insert(opened)))
    }

    /// Its ports, opened with the first one.
    pub(crate) fn ports(&self) -> Result<Ports, Failure> {
        let mut ports = lock(&self.ports);
        match &*ports {
            Some(ports) => Ok(ports.clone()),
            None => {
                self.check_open()?;
                let failed = |error| Failure::new(MDG_EUNUSABLE, format!("cannot open a port: {error}"));
                Ok(ports.insert(Ports::open(&self.worker()?).map_err(failed)?).clone())
            }
        }
    }

    /// Its mailboxes, opened with the first one.
    pub(crate) fn mailboxes(&self) -> Result<Mailboxes, Failure> {
        let mut mailboxes = lock(&self.mailboxes);
        match &*mailboxes {
            Some(mailboxes) => Ok(mailboxes.clone()),
            None => {
                self.check_open()?;
                let failed = |error| Failure::new(MDG_EUNUSABLE, format!("cannot open a mailbox: {error}"));
                Ok(mailboxes.insert(Mailboxes::open(&self.worker()?).map_err(failed)?).clone())
            }
        }
    }

    /// Everything that was opened from it is closed: completes what is pending, and ends the thread.
    pub(crate) fn finish(&self) {
        let pending = core::mem::take(&mut *lock(&self.pending));
        pending.iter().filter_map(Weak::upgrade).for_each(|one| one.close());
        *lock(&self.watcher) = None;
        *lock(&self.descriptors) = None;
        self.settle();
        let (ports, mailboxes) = (lock(&self.ports).take(), lock(&self.mailboxes).take());
        // No lock is held while they are dropped: what an upcall has captured may call anything.
        let worker = lock(&self.worker).take();
        drop((ports, mailboxes, worker));
    }
}

impl Drop for Runtime {
    /// The last thread that was in a call leaves: operations that were posted during the close complete, too.
    fn drop(&mut self) {
        self.settle();
    }
}

/// When a time from now has passed; never for a negative one.
#[inline]
pub(crate) fn deadline(timeout_ns: i64) -> Option<u64> {
    u64::try_from(timeout_ns).ok().map(|ns| time::now_ns().saturating_add(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_opened_from_one_that_is_closed() {
        let runtime = Runtime::open().unwrap();
        runtime.shut();
        runtime.finish();
        let codes = [runtime.worker().err(), runtime.ports().err(), runtime.mailboxes().err()];
        assert!(
            codes.iter().all(|failed| failed.as_ref().is_some_and(|failed| failed.code == MDG_ECLOSED)),
            "{codes:?}"
        );
    }
}
