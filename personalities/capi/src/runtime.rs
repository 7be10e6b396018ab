//! A runtime: the engine and what turns it.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use madrigal::engine::Engine;
use madrigal::time;
use madrigal::wait::Waiter;
use madrigal::{DRIVERS, Worker};

use crate::codes::{MDG_EINVAL, MDG_EUNUSABLE};
use crate::failure::Failure;
use crate::slot::{Slot, lock};
use crate::sources::{DESCRIPTORS, Descriptors, TIMERS};
use crate::watcher::Watcher;

/// Passes in a row that one call makes at most.
const PASSES: usize = 64;

/// A runtime. Whatever was opened from it keeps it.
pub(crate) struct Runtime {
    pub(crate) api: madrigal::Runtime,
    waiter: Waiter,
    /// Nothing is opened from it any more.
    closed: AtomicBool,
    /// Somebody asked that a thread in [`Runtime::turn`] return.
    called: AtomicBool,
    descriptors: Mutex<Option<Arc<Descriptors>>>,
    watcher: Mutex<Option<Watcher>>,
    worker: Mutex<Option<Arc<Worker>>>,
}

impl Runtime {
    pub(crate) fn open() -> Result<Arc<Self>, Failure> {
        let api = madrigal::Runtime::new()?;
        Ok(Arc::new(Self {
            api,
            waiter: Waiter::default(),
            closed: AtomicBool::new(false),
            called: AtomicBool::new(false),
            descriptors: Mutex::new(None),
            watcher: Mutex::new(None),
            worker: Mutex::new(None),
        }))
    }

    /// From now on nothing is opened from it.
    pub(crate) fn shut(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.api.engine()
    }

    /// Turns the engine until a slot is filled or the time has passed; what was in it.
    pub(crate) fn wait<T>(&self, slot: &Slot<T>, timeout_ns: i64) -> Option<T> {
        if timeout_ns == 0 && !slot.is_done() {
            self.engine().do_work();
        } else {
            self.engine().wait_until(&slot.waiter, deadline(timeout_ns), || slot.is_done());
        }
        slot.take()
    }

    /// Turns the engine until something was done, somebody called, the runtime was closed, or the time has passed. How much was done.
    pub(crate) fn turn(&self, timeout_ns: i64) -> usize {
        let mut done = 0;
        for _ in 0..PASSES {
            let now = self.engine().do_work();
            done += now;
            if now == 0 {
                break;
            }
        }
        if done == 0 && timeout_ns != 0 {
            let before = self.work_done();
            let over = || self.work_done() != before || self.called.load(Ordering::SeqCst) || self.is_shut();
            self.engine().wait_until(&self.waiter, deadline(timeout_ns), over);
            done = self.work_done().wrapping_sub(before) as usize;
        }
        self.called.store(false, Ordering::SeqCst);
        if let Some(watcher) = &*lock(&self.watcher) {
            watcher.watch();
        }
        done
    }

    /// A thread in [`Runtime::turn`] returns, now or when it next begins to wait.
    pub(crate) fn call(&self) {
        // SYNC: SeqCst here and in `turn`: who is about to sleep says so, then looks; we note it, then look whether somebody sleeps.
        self.called.store(true, Ordering::SeqCst);
        self.engine().call_all();
        if let Some(watcher) = &*lock(&self.watcher) {
            watcher.tell();
        }
    }

    /// The descriptor that says when to turn the engine. Its thread begins with the first call.
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

    /// What carries messages, opened with the first Circuit.
    pub(crate) fn worker(&self) -> Result<Arc<Worker>, Failure> {
        let mut worker = lock(&self.worker);
        if let Some(worker) = &*worker {
            return Ok(Arc::clone(worker));
        }
        let failed = |error| Failure::new(MDG_EUNUSABLE, format!("cannot send messages: {error}"));
        // What is wrong with the environment is known from the runtime.
        let (opened, _) = madrigal::worker().map_err(failed)?;
        Ok(Arc::clone(worker.insert(opened)))
    }

    /// Everything that was opened from it is closed: tells what is still to be told, and ends the thread.
    pub(crate) fn finish(&self) {
        *lock(&self.watcher) = None;
        *lock(&self.descriptors) = None;
        for _ in 0..PASSES {
            if self.engine().do_work() == 0 {
                break;
            }
        }
        self.engine().call_all();
        let worker = lock(&self.worker).take();
        drop(worker);
    }

    /// How much was done so far by sources of every class.
    fn work_done(&self) -> u64 {
        class_names().map(|name| self.engine().work_done(self.engine().class(name))).fold(0, u64::wrapping_add)
    }

    /// The engine's class of that name.
    pub(crate) fn class(&self, name: &str) -> Result<madrigal::engine::Class, Failure> {
        let known = class_names().find(|known| *known == name).ok_or_else(|| {
            let names: Vec<_> = class_names().collect();
            Failure::new(MDG_EINVAL, format!("there is no class `{name}` of sources: {}", names.join(", ")))
        })?;
        Ok(self.engine().class(known))
    }
}

/// The classes whose weights can be set: the drivers, and what is the caller's own.
fn class_names() -> impl Iterator<Item = &'static str> {
    DRIVERS.iter().map(|driver| driver.name()).chain([DESCRIPTORS, TIMERS])
}

/// When a time from now has passed; never for a negative one.
#[inline]
pub(crate) fn deadline(timeout_ns: i64) -> Option<u64> {
    u64::try_from(timeout_ns).ok().map(|ns| time::now_ns().saturating_add(ns))
}
