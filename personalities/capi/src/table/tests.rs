//! Handles one thread at a time, and many that come and go.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::*;

impl<T> Table<T> {
    fn add(&self, kind: u8, object: T) -> Result<u64, Full> {
        Ok(self.reserve()?.fill(kind, object))
    }
}

static NUMBERS: Table<u32> = Table::new();

#[test]
fn old_and_made_up_handles_find_nothing() {
    let a = NUMBERS.add(3, 7).unwrap();
    assert_eq!((kind_of(a), NUMBERS.enter(a, Lane::Main).map(|n| *n)), (3, Some(7)));
    assert!(a as i64 > 0 && NUMBERS.handles().contains(&a));
    assert!(NUMBERS.take(a) && !NUMBERS.take(a));
    assert!([a, 0, 1, u64::MAX, a + 1].into_iter().all(|handle| NUMBERS.enter(handle, Lane::Main).is_none()));
    let b = NUMBERS.add(3, 8).unwrap();
    assert!(a != b && NUMBERS.take(b));
}

/// Records its drop, and whether it was dropped before.
struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        assert!(!self.0.swap(true, Ordering::SeqCst), "dropped twice");
    }
}

#[test]
fn an_object_stays_while_somebody_is_inside() {
    let (table, gone) = (Table::new(), Arc::new(AtomicBool::new(false)));
    let handle = table.add(1, DropFlag(Arc::clone(&gone))).unwrap();
    let first = table.enter(handle, Lane::Main).unwrap();
    let second = table.enter(handle, Lane::Main).unwrap();
    let third = table.enter(handle, Lane::Second).unwrap();
    assert!(table.take(handle) && table.enter(handle, Lane::Second).is_none());
    drop((first, third));
    assert!(!gone.load(Ordering::SeqCst));
    drop(second);
    assert!(gone.load(Ordering::SeqCst));
}

/// A thread inside with an old handle delays the reaping of a later one, and reaps it when it leaves.
#[test]
fn who_leaves_reaps_what_he_kept_from_being_reaped() {
    let (table, gone) = (Table::new(), Arc::new(AtomicBool::new(false)));
    let old = table.add(1, DropFlag(Arc::default())).unwrap();
    assert!(table.take(old));
    let handle = table.add(1, DropFlag(Arc::clone(&gone))).unwrap();
    let place = table.place(handle).unwrap();
    place.inside[0].store(1, Ordering::SeqCst);
    let stale = Entry { table: &table, place, handle: old, way: Some(Lane::Main), is_closer: Cell::new(false) };
    assert!(table.take(handle) && !gone.load(Ordering::SeqCst));
    drop(stale);
    assert!(gone.load(Ordering::SeqCst));
}

#[test]
fn a_place_whose_ages_are_used_up_is_not_used_again() {
    let table = Table::new();
    let first = table.add(1, 1).unwrap();
    table.place(first).unwrap().age.store(LAST_AGE - 1, Ordering::SeqCst);
    assert!(table.take(first));
    let last = table.add(1, 2).unwrap();
    assert_eq!((last >> PLACE_BITS & LAST_AGE, last as i64 > 0), (LAST_AGE, true));
    assert!(table.take(last) && table.enter(last, Lane::Main).is_none());
    let next = table.add(1, 3).unwrap();
    assert_ne!(next & ((1 << PLACE_BITS) - 1), last & ((1 << PLACE_BITS) - 1));
}

#[test]
fn a_place_that_was_reserved_in_vain_is_free_again() {
    let table: Table<u32> = Table::new();
    drop(table.reserve().unwrap());
    let free = table.free();
    assert_eq!((free.next, free.places.as_slice()), (1, &[0][..]));
}

#[test]
fn a_table_that_is_full_says_so_and_loses_nothing() {
    let table = Table::new();
    let handles: Vec<_> = (0..CHUNK * CHUNKS).map(|number| table.add(5, number).unwrap()).collect();
    assert!(table.add(5, 0).is_err());
    assert!(handles.iter().enumerate().all(|(number, handle)| *table.enter(*handle, Lane::Main).unwrap() == number));
    assert!(table.take(handles[77]));
    let next = table.add(5, 1).unwrap();
    assert!(next != handles[77] && table.add(5, 0).is_err());
}

/// A number that is wrong once it is dropped.
struct Checked(AtomicU64);

impl Drop for Checked {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

#[test]
fn threads_that_enter_and_close_at_random_never_meet_a_dropped_object() {
    static TABLE: Table<Checked> = Table::new();
    static CURRENT: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    let work = |seed: u64| {
        let mut random = seed;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let current = &CURRENT[(random >> 33) as usize % CURRENT.len()];
            let handle = current.load(Ordering::SeqCst);
            match (random >> 40) % 4 {
                0 if TABLE.take(handle) => {
                    current.store(TABLE.add(2, Checked(AtomicU64::new(99))).unwrap(), Ordering::SeqCst);
                }
                lane => {
                    let lane = if lane == 1 { Lane::Main } else { Lane::Second };
                    if let Some(checked) = TABLE.enter(handle, lane) {
                        std::thread::yield_now();
                        assert_eq!(checked.0.load(Ordering::SeqCst), 99);
                    }
                }
            }
        }
    };
    for current in &CURRENT {
        current.store(TABLE.add(2, Checked(AtomicU64::new(99))).unwrap(), Ordering::SeqCst);
    }
    std::thread::scope(|scope| (1..5).for_each(|seed| drop(scope.spawn(move || work(seed)))));
    // Nothing is left behind but what lives.
    TABLE.sweep();
    let free = TABLE.free();
    assert_eq!((free.lingering.len(), free.next - free.places.len()), (0, CURRENT.len()));
}
