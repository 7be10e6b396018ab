//! The table under a scheduler (`cargo test -p madrigal-capi --features shuttle --lib table`): threads that open, use, close, close again
//! and use what is closed, with places so few that each is soon another's; and one that closes all there is, as the end of a runtime does,
//! at any step of theirs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as Count, Ordering as Order};

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread;
use shuttle::{MaxSteps, Runner};

use super::*;

/// A handle ever given, what it stands for, and how often it was closed.
#[derive(Clone, Copy)]
struct Given {
    number: u32,
    closed: u32,
}

/// The record of an object, which outlives it.
#[derive(Default)]
struct Fate {
    /// Threads that use it at this moment.
    users: Count,
    dropped: Count,
}

struct Object {
    number: u32,
    fate: Arc<Fate>,
}

impl Drop for Object {
    fn drop(&mut self) {
        assert_eq!(self.fate.users.load(Order::SeqCst), 0, "object {} is dropped while it is used", self.number);
        assert_eq!(self.fate.dropped.fetch_add(1, Order::SeqCst), 0, "object {} is dropped twice", self.number);
        // As an object does that closes others, or takes long.
        thread::yield_now();
    }
}

struct World {
    table: Table<Object>,
    /// Of the model, not of what is explored: no step of the scheduler's.
    given: std::sync::Mutex<HashMap<u64, Given>>,
    fates: std::sync::Mutex<Vec<Arc<Fate>>>,
}

impl World {
    fn new() -> Self {
        Self { table: Table::new(), given: Default::default(), fates: Default::default() }
    }

    fn open(&self) {
        let Ok(room) = self.table.reserve() else { return };
        if thread_rng().gen_range(0..8) == 0 {
            return;
        }
        let fate = Arc::new(Fate::default());
        let number = {
            let mut fates = self.fates.lock().unwrap();
            fates.push(Arc::clone(&fate));
            fates.len() as u32
        };
        let handle = room.fill(3, Object { number, fate });
        // The end of everything may have closed it already.
        let mut given = self.given.lock().unwrap();
        let given = given.entry(handle).or_insert(Given { number: 0, closed: 0 });
        assert_eq!(given.number, 0, "handle {handle:#x} was given twice");
        given.number = number;
    }

    /// A handle that was given at some time, and what it stood for.
    fn some(&self) -> Option<(u64, u32)> {
        // A late one: the others are not used again.
        let back = thread_rng().gen_range(0..3usize);
        let given = self.given.lock().unwrap();
        let mut known: Vec<_> = given.iter().filter(|(_, given)| given.number != 0).collect();
        known.sort_by_key(|(_, given)| core::cmp::Reverse(given.number));
        let (handle, given) = known.get(back.min(known.len().checked_sub(1)?))?;
        Some((**handle, given.number))
    }

    fn use_object(&self, handle: u64, number: u32, lane: Lane) {
        let was_closed = self.given.lock().unwrap().get(&handle).is_some_and(|given| given.closed > 0);
        let Some(object) = self.table.enter(handle, lane) else { return };
        assert!(!was_closed, "handle {handle:#x} is found after it was closed");
        assert_eq!(object.number, number, "handle {handle:#x} finds another object");
        // The record is kept, so that an object that is dropped too early is reported and not dereferenced.
        let fate = Arc::clone(&object.fate);
        fate.users.fetch_add(1, Order::SeqCst);
        (0..thread_rng().gen_range(0..4)).for_each(|_| thread::yield_now());
        assert_eq!(fate.dropped.load(Order::SeqCst), 0, "object {number} was dropped while it is used");
        fate.users.fetch_sub(1, Order::SeqCst);
    }

    /// By a thread outside, or by one inside.
    fn close(&self, handle: u64) {
        let taken = if thread_rng().gen_range(0..2) == 0 {
            self.table.take(handle)
        } else {
            self.table.enter(handle, Lane::Second).is_some_and(|object| {
                let taken = object.take();
                (0..thread_rng().gen_range(0..3)).for_each(|_| thread::yield_now());
                taken
            })
        };
        if !taken {
            return;
        }
        let mut given = self.given.lock().unwrap();
        let given = given.entry(handle).or_insert(Given { number: 0, closed: 0 });
        given.closed += 1;
        assert_eq!(given.closed, 1, "handle {handle:#x} was closed twice");
    }

    fn live(&self, steps: u32) {
        for _ in 0..steps {
            let what = thread_rng().gen_range(0..8);
            let some = self.some();
            match (what, some) {
                (0..3, _) | (_, None) => self.open(),
                (3 | 4, Some((handle, _))) => self.close(handle),
                (5, Some((handle, number))) => self.use_object(handle, number, Lane::Second),
                (_, Some((handle, number))) => self.use_object(handle, number, Lane::Main),
            }
        }
    }

    /// As the end of a runtime: every handle there is, each closed by one.
    fn end(&self) {
        self.table.handles().into_iter().for_each(|handle| self.close(handle));
    }

    /// No thread is inside any more: every closed object is gone, and every place is on its list.
    fn is_whole(&self) {
        let live = self.table.handles();
        let given = self.given.lock().unwrap();
        let fates = self.fates.lock().unwrap();
        for (handle, given) in given.iter() {
            let dropped = fates[given.number as usize - 1].dropped.load(Order::SeqCst);
            assert_eq!(dropped, given.closed, "object {} of handle {handle:#x}", given.number);
            assert_eq!(live.contains(handle), given.closed == 0);
        }
        let free = self.table.free();
        let mut places = free.places.clone();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), free.places.len(), "a place is free twice");
        assert_eq!(places.len() + live.len(), free.next, "a place is lost");
    }
}

/// `EXPLORE=300` has three times as many runs.
fn explore(runs: usize, run: impl Fn() + Send + Sync + Clone + 'static) {
    let percent: usize = std::env::var("EXPLORE").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let runs = (runs * percent / 100).max(1);
    let mut config = shuttle::Config::new();
    config.max_steps = MaxSteps::FailAfter(100_000);
    Runner::new(RandomScheduler::new(runs), config.clone()).run(run.clone());
    Runner::new(PctScheduler::new(4, runs / 2 + 1), config).run(run);
}

#[test]
fn handles_find_their_own_objects_as_long_as_they_are_open() {
    explore(40_000, || {
        let world = Arc::new(World::new());
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let world = Arc::clone(&world);
                thread::spawn(move || match number {
                    0 => {
                        (0..thread_rng().gen_range(0..12)).for_each(|_| thread::yield_now());
                        world.end();
                    }
                    _ => world.live(6),
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        world.is_whole();
    });
}
