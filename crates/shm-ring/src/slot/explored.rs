//! Slots and what their sessions borrow, under a scheduler that tries interleavings and kills either side at any step
//! (`cargo test -p madrigal-shm-ring --features shuttle`).
//!
//! The creator's two threads open and end connections again and again, some of them before they are accepted, whose offer then stands. The
//! accepting process answers offers early, late or not at all. What a side may touch is watched from outside: the run ends if two sessions
//! own a thing at once, or if a side gives back what it does not own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64 as Word, Ordering as Order};

use madrigal_base::sync::explored::mortal::Process;
use shuttle::rand::Rng;
use shuttle::sync::Arc;
use shuttle::thread;

use super::*;
use crate::units::Units;
use crate::units::tests::units;

const SLOTS: usize = 2;

/// An arena reduced to what is shared and lent: slots, units, and a word for each direction's block.
struct Model {
    life: [Life; SLOTS],
    /// The block of each direction plus one, as last stored by the writer.
    block: [[AtomicU64; 2]; SLOTS],
    units: Units<2, 128>,
    /// Slots handed out; the creator's own.
    used: AtomicU64,
    /// What was offered, for the accepting process to take.
    posted: Mutex<Vec<(usize, Lent)>>,
    /// The sockets that the accepting process has closed: of connections that it left; all, once it has ended.
    closed: Mutex<Vec<Lent>>,
    gone: Word,
    /// The true owner of each slot and each unit: written by a side that is sure to own it.
    truth: [Word; SLOTS],
}

impl Model {
    fn new() -> Self {
        Self {
            life: [const { Life { word: AtomicU64::new(0), session: AtomicU64::new(0) } }; SLOTS],
            block: [const { [const { AtomicU64::new(0) }; 2] }; SLOTS],
            units: units(),
            used: AtomicU64::new(0),
            posted: Mutex::default(),
            closed: Mutex::default(),
            gone: Word::new(0),
            truth: [const { Word::new(0) }; SLOTS],
        }
    }

    fn take_slot(&self) -> Option<usize> {
        for index in 0..SLOTS {
            let seen = self.used.load(Ordering::Relaxed);
            let free =
                seen & 1 << index == 0 || self.recycle(index) && self.used.load(Ordering::Relaxed) & 1 << index == 0;
            if free && self.used.fetch_or(1 << index, Ordering::Acquire) & 1 << index == 0 {
                return Some(index);
            }
        }
        None
    }

    fn recycle(&self, index: usize) -> bool {
        let over = self.life[index].recycle();
        if over {
            self.used.fetch_and(!(1 << index), Ordering::Release);
        }
        over
    }

    /// Opens a connection; where it stands.
    fn open(&self, number: u64) -> Option<(usize, Lent)> {
        let index = self.take_slot()?;
        assert_eq!(self.truth[index].swap(number, Order::SeqCst), 0, "a slot with an owner was handed out");
        self.block[index].iter().for_each(|block| block.store(0, Ordering::Relaxed));
        let lent = self.life[index].offer(Tag::fresh(number << 8));
        self.posted.lock().unwrap().push((index, lent));
        Some((index, lent))
    }

    /// A side borrows a block for its direction, or another instead of it.
    fn grow(&self, index: usize, lent: Lent, side: usize) {
        let Some(first) = self.units.take(1, lent.session, side) else { return };
        let old = self.block[index][side].load(Ordering::Relaxed);
        self.block[index][side].store(first as u64 + 1, Ordering::Relaxed);
        if let Some(old) = old.checked_sub(1) {
            assert!(self.units.give(old as usize, 1, lent.session, side), "another session gave our block away");
        }
    }

    fn free(&self, index: usize, lent: Lent) {
        let owner = self.truth[index].swap(0, Order::SeqCst) << 8;
        assert_eq!(owner, lent.session.get(), "the slot is another session's");
        for dir in 0..2 {
            if let Some(first) = self.block[index][dir].load(Ordering::Relaxed).checked_sub(1) {
                assert!(self.units.give(first as usize, 1, lent.session, dir), "not lent to this session");
            }
        }
    }

    fn leave(&self, index: usize, lent: Lent, side: usize) {
        self.life[index].leave(side, lent, || self.free(index, lent)).expect("a session that is ours");
    }

    /// The creator has closed before the other side accepted: once the socket ends it alone uses the slot (the drivers' `shm/early.rs`).
    fn leave_behind(&self, index: usize, lent: Lent) {
        while self.gone.load(Order::SeqCst) == 0 && !self.closed.lock().unwrap().contains(&lent) {
            thread::yield_now();
        }
        let life = &self.life[index];
        if !life.revoke(lent, || self.free(index, lent)) {
            life.abandon(0, lent, || self.free(index, lent)).expect("a session that is ours");
        }
    }

    /// One connection from the creator's side.
    fn connect(&self, number: u64) {
        let Some((index, lent)) = self.open(number) else { return };
        for _ in 0..shuttle::rand::thread_rng().gen_range(0..6) {
            thread::yield_now();
        }
        let life = &self.life[index];
        if shuttle::rand::thread_rng().gen_bool(0.3) {
            self.grow(index, lent, 0);
            self.leave_behind(index, lent);
        } else if life.withdraw(lent) || life.leave_early(lent) {
            self.truth[index].store(0, Order::SeqCst);
        } else if life.is_attached(lent) {
            self.grow(index, lent, 0);
            self.leave(index, lent, 0);
        } else {
            assert!(life.is_off(lent));
            self.truth[index].store(0, Order::SeqCst);
        }
        self.recycle(index);
    }

    /// The accepting process: answers offers, some of them long after they were withdrawn.
    fn accept(&self) {
        for _ in 0..6 {
            let taken = self.posted.lock().unwrap().pop();
            let Some((index, lent)) = taken else {
                thread::yield_now();
                continue;
            };
            if self.life[index].claim(lent) && self.life[index].attach(lent) {
                self.grow(index, lent, 1);
                self.grow(index, lent, 1);
                self.leave(index, lent, 1);
            }
            self.closed.lock().unwrap().push(lent);
        }
    }
}

fn explore(run: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(run.clone(), 6_000);
    shuttle::check_pct(run, 3_000, 4);
}

/// Two threads of the creator and one of the accepting process.
fn life_of_an_arena(creator: &Process, acceptor: &Process) -> Arc<Model> {
    let model = Arc::new(Model::new());
    let connecting = [1, 2].map(|base: u64| {
        let (model, process) = (Arc::clone(&model), creator.clone());
        thread::spawn(move || process.run(|| (0..3).for_each(|i| model.connect(base << 4 | i + 1))))
    });
    let accepting = {
        let (model, process) = (Arc::clone(&model), acceptor.clone());
        thread::spawn(move || {
            process.run(|| model.accept());
            model.gone.store(1, Order::SeqCst);
        })
    };
    connecting.into_iter().for_each(|thread| _ = thread.join().unwrap());
    accepting.join().unwrap();
    model
}

#[test]
fn a_slot_and_a_block_have_one_owner() {
    explore(|| {
        let model = life_of_an_arena(&Process::immortal(), &Process::immortal());
        // No thread waits for those that were answered after the creator had gone.
        for (index, lent) in model.posted.lock().unwrap().drain(..) {
            assert!(!model.life[index].claim(lent) || model.life[index].attach(lent));
        }
        assert_eq!(model.units.lent(), 0, "blocks nobody has");
    });
}

#[test]
fn the_death_of_either_side_harms_nobody_else() {
    explore(|| {
        let at = shuttle::rand::thread_rng().gen_range(1..60);
        let either = shuttle::rand::thread_rng().gen_bool(0.5);
        let (dead, alive) = (Process::killed_after(at), Process::immortal());
        let (creator, acceptor) = if either { (&dead, &alive) } else { (&alive, &dead) };
        life_of_an_arena(creator, acceptor);
    });
}
