//! Sources and their queues: which are runnable, in which order, and what happens to one after a visit.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::driver::Signal;

/// Classes an engine can tell apart; further names share the last.
const CLASSES: usize = 16;
/// Work a class may do per pass unless configured.
const WEIGHT: u32 = 16;
/// How many sources may be watched in memory per class: more would cost the busy ones too much.
const WATCHED: usize = 64;
/// Idle visits after which a watched source is parked.
const IDLE_VISITS: u32 = 2_000;

/// Something the engine works on. Its callbacks run inside [`Source::work`], on the thread that runs the engine.
pub trait Source: Send + Sync {
    /// Does at most `budget` units of work (at least 1 is allowed). Must not block. Never called again before it returned.
    fn work(&self, budget: u32) -> Work;

    /// Everybody is about to sleep: arm whatever this source waits for. True: there is something to do instead. Must not block,
    /// must not call back.
    fn arm(&self) -> bool;
}

/// What a visit did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// Units of work done.
    pub count: u32,
    /// What to do with the source.
    pub next: Next,
}

/// What to do with a source after a visit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// There is more to do: visit it again.
    Again,
    /// Nothing now, but a read of memory is worth it: visit it every pass for a while.
    Watch,
    /// Nothing, until its signal is reported or it is woken.
    Park,
}

/// A group of sources that share a weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class(u8);

/// States of an entry. The thread that moves it to QUEUED puts it into its class's queue; only the one that took it from there works on it.
mod state {
    pub(super) const PARKED: u32 = 0;
    pub(super) const QUEUED: u32 = 1;
    pub(super) const WORKING: u32 = 2;
    /// At work, and reported meanwhile.
    pub(super) const REPORTED: u32 = 3;
    pub(super) const RETIRED: u32 = 4;
}

/// A registered source.
pub(super) struct Entry {
    key: u64,
    class: Class,
    state: AtomicU32,
    /// Visits in a row that found nothing; 0 for an entry that must be visited.
    idle: AtomicU32,
    /// Taken out when the source is removed, even while it is at work: a connection closes with its last signal.
    signal: Mutex<Option<Arc<dyn Signal>>>,
    source: Arc<dyn Source>,
}

impl Entry {
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    pub(super) fn class(&self) -> Class {
        self.class
    }

    pub(super) fn signal(&self) -> Option<Arc<dyn Signal>> {
        lock(&self.signal).clone()
    }

    pub(super) fn source(&self) -> &dyn Source {
        &*self.source
    }

    /// Whether a visit begins later in any case.
    pub(super) fn will_be_visited(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), state::QUEUED | state::REPORTED)
    }

    /// Its signal, which is no longer the engine's.
    pub(super) fn take_signal(&self) -> Option<Arc<dyn Signal>> {
        lock(&self.signal).take()
    }

    /// Never visited again. True: it may lie in its class's queue.
    pub(super) fn retire(&self) -> bool {
        // SYNC: AcqRel: an earlier queuer has put it into the queue, or is about to in a pass that takes it out again.
        self.state.swap(state::RETIRED, Ordering::AcqRel) == state::QUEUED
    }

    /// Makes sure of a visit that begins later. True: the caller must queue it.
    fn report(&self) -> bool {
        self.idle.store(0, Ordering::Relaxed);
        let mut seen = self.state.load(Ordering::Relaxed);
        loop {
            let next = match seen {
                state::PARKED | state::QUEUED => state::QUEUED,
                state::WORKING | state::REPORTED => state::REPORTED,
                _ => return false,
            };
            // SYNC: AcqRel even where nothing changes, so that what was done before the report is seen by the visit that follows;
            // pairs with `begin`.
            match self.state.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return seen == state::PARKED,
                Err(now) => seen = now,
            }
        }
    }

    fn begin(&self) -> bool {
        // SYNC: Acquire pairs with `report` and with the Release of the visit before.
        self.state.compare_exchange(state::QUEUED, state::WORKING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Leaves WORKING for QUEUED or PARKED; a report meanwhile makes it QUEUED. Returns whether the caller must queue it.
    fn end(&self, stay: bool) -> bool {
        let to = if stay { state::QUEUED } else { state::PARKED };
        // SYNC: Release pairs with `begin` of the next visit.
        if self.state.compare_exchange(state::WORKING, to, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return stay;
        }
        self.idle.store(0, Ordering::Relaxed);
        let (from, to) = (state::REPORTED, state::QUEUED);
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// One class's queue of runnable and watched entries.
#[derive(Default)]
pub(super) struct Lane {
    name: OnceLock<&'static str>,
    weight: AtomicU32,
    done: AtomicU64,
    waiting: AtomicUsize,
    queue: Mutex<VecDeque<Arc<Entry>>>,
}

impl Lane {
    pub(super) fn weight(&self) -> u32 {
        match self.weight.load(Ordering::Relaxed) {
            0 => WEIGHT,
            weight => weight,
        }
    }

    pub(super) fn set_weight(&self, weight: u32) {
        self.weight.store(weight.max(1), Ordering::Relaxed);
    }

    pub(super) fn work_done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Takes the next entry to visit.
    pub(super) fn pop(&self) -> Option<Arc<Entry>> {
        loop {
            let mut queue = lock(&self.queue);
            let entry = queue.pop_front()?;
            self.waiting.store(queue.len(), Ordering::Release);
            drop(queue);
            if entry.begin() {
                return Some(entry);
            }
        }
    }

    fn push(&self, entry: Arc<Entry>) {
        let mut queue = lock(&self.queue);
        queue.push_back(entry);
        self.waiting.store(queue.len(), Ordering::Release);
    }

    /// Takes a retired entry out: a source may hold its engine, and would hold it for ever once no thread runs it.
    #[must_use]
    pub(super) fn forget(&self, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
        let mut queue = lock(&self.queue);
        let at = queue.iter().position(|queued| Arc::ptr_eq(queued, entry))?;
        let forgotten = queue.remove(at);
        self.waiting.store(queue.len(), Ordering::Release);
        forgotten
    }

    /// Makes an entry runnable.
    pub(super) fn wake(&self, entry: &Arc<Entry>) {
        if entry.report() {
            self.push(Arc::clone(entry));
        }
    }

    /// Puts an entry where it belongs after a visit.
    pub(super) fn settle(&self, entry: Arc<Entry>, work: &Work) {
        if work.count > 0 {
            self.done.fetch_add(u64::from(work.count), Ordering::Relaxed);
        }
        let stay = match work.next {
            Next::Again => {
                entry.idle.store(0, Ordering::Relaxed);
                true
            }
            Next::Watch => {
                let idle = if work.count > 0 { 0 } else { entry.idle.load(Ordering::Relaxed) };
                entry.idle.store(idle + 1, Ordering::Relaxed);
                (idle < IDLE_VISITS && self.waiting() < WATCHED) || entry.source.arm()
            }
            Next::Park => false,
        };
        if entry.end(stay) {
            self.push(entry);
        }
    }

    /// Arms and parks what is only watched. False: something is runnable.
    fn park_all(&self) -> bool {
        for _ in 0..self.waiting() {
            let Some(entry) = self.pop() else { break };
            let stay = entry.idle.load(Ordering::Relaxed) == 0 || entry.source.arm();
            if entry.end(stay) {
                self.push(entry);
                return false;
            }
        }
        true
    }
}

/// All classes of an engine.
#[derive(Default)]
pub(super) struct Classes {
    lanes: [Lane; CLASSES],
}

impl Classes {
    pub(super) fn named(&self, name: &'static str) -> Class {
        let find = |lane: &Lane| *lane.name.get_or_init(|| name) == name;
        Class(self.lanes.iter().position(find).unwrap_or(CLASSES - 1) as u8)
    }

    pub(super) fn of(&self, class: Class) -> &Lane {
        &self.lanes[usize::from(class.0) % CLASSES]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().filter(|lane| lane.waiting() > 0)
    }

    pub(super) fn any_waiting(&self) -> bool {
        self.iter().next().is_some()
    }

    /// Arms and parks everything. False: something is runnable. Reads the queues under their locks, so that a later queuer sees what the
    /// caller did before.
    pub(super) fn park_all(&self) -> bool {
        let mut named = self.lanes.iter().filter(|lane| lane.name.get().is_some());
        named.all(|lane| lane.park_all() && lock(&lane.queue).is_empty())
    }
}

/// Every registered entry, by key. A key is a place and how often the place was used.
#[derive(Default)]
pub(super) struct Table {
    places: Vec<(u32, Option<Arc<Entry>>)>,
    free: Vec<u32>,
}

impl Table {
    pub(super) fn add(&mut self, class: Class, signal: Option<Arc<dyn Signal>>, source: Arc<dyn Source>) -> Arc<Entry> {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            (self.places.len() - 1) as u32
        });
        let (uses, slot) = &mut self.places[place as usize];
        *uses = (*uses + 1) & (u32::MAX >> 1);
        let key = u64::from(*uses) << 32 | u64::from(place);
        let entry = Entry {
            key,
            class,
            state: AtomicU32::default(),
            idle: AtomicU32::default(),
            signal: Mutex::new(signal),
            source,
        };
        let entry = Arc::new(entry);
        *slot = Some(Arc::clone(&entry));
        entry
    }

    pub(super) fn find(&self, key: u64) -> Option<Arc<Entry>> {
        let (uses, slot) = self.places.get(key as u32 as usize)?;
        slot.clone().filter(|_| u64::from(*uses) == key >> 32)
    }

    #[must_use]
    pub(super) fn remove(&mut self, key: u64) -> Option<Arc<Entry>> {
        let (uses, slot) = self.places.get_mut(key as u32 as usize)?;
        if u64::from(*uses) != key >> 32 {
            return None;
        }
        self.free.push(key as u32);
        slot.take()
    }
}

/// Locks; a thread that panicked inside left the data whole, for nothing inside calls out.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
