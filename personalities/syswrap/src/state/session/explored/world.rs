//! What the two programs of a model share: the kernel, a slot and its memory, both ends' sessions, and what became of every byte.

use std::sync::atomic::{AtomicU64 as Word, Ordering as Order};

use madrigal_base::sync::Ordering;
use madrigal_shm_ring::arena::{Tag, UNIT};
use madrigal_shm_ring::layout::{Block, SMALL_RING, Slot};
use madrigal_shm_ring::ring::Memory;
use shuttle::thread;

use super::super::{At, Session, View};
use super::kernel::{End, Kernel};

const MEMORY: usize = 7 * UNIT;
/// A byte that another session writes: none of these streams (see [`byte`]).
const OTHERS: u8 = 255;

/// A connection whose session is about to begin.
pub(super) struct World {
    pub(super) kernel: Kernel,
    pub(super) slot: Box<Slot>,
    base: u64,
    sessions: [Session; 2],
    /// Bytes each side has sent in truth, is to send, and has read.
    pub(super) sent: [Word; 2],
    pub(super) total: [Word; 2],
    pub(super) read: [Word; 2],
    idle: Word,
    attempts: Word,
    unwoken: Word,
}

/// The byte of side `side`'s stream at `at`: never a doorbell's.
pub(super) fn byte(side: usize, at: u64) -> u8 {
    (at % 251) as u8 + 1 + side as u8 * 3
}

impl World {
    pub(super) fn new() -> Self {
        let base = Box::leak(vec![0u8; MEMORY].into_boxed_slice()).as_mut_ptr().expose_provenance() as u64;
        let world = Self {
            kernel: Kernel::new(),
            slot: Box::new(Slot::of_model()),
            base,
            sessions: Default::default(),
            sent: Default::default(),
            total: Default::default(),
            read: Default::default(),
            idle: Word::new(0),
            attempts: Word::new(0),
            unwoken: Word::new(0),
        };
        world.slot.dir.iter().for_each(madrigal_shm_ring::layout::Direction::reset);
        let lent = world.slot.life.offer(Tag::fresh(1 << 8));
        for (side, session) in world.sessions.iter().enumerate() {
            let block = Block { offset: side * SMALL_RING, size: SMALL_RING };
            world.slot.side[side].checks.store(1, Ordering::Relaxed);
            session.prepare(At { slot: &world.slot, memory: world.memory(), lent, side, block });
        }
        for session in &world.sessions {
            session.begin(&world.slot);
        }
        world
    }

    fn memory(&self) -> Memory {
        // SAFETY: MEMORY bytes that are freed with the world.
        unsafe { Memory::new(core::ptr::with_exposed_provenance_mut(self.base as usize), MEMORY) }
    }

    /// Another session has this block, and writes there.
    pub(super) fn write_over(&self, block: Block) {
        let place = core::ptr::with_exposed_provenance_mut::<u8>(self.base as usize);
        // SAFETY: a block of the world's memory; the scheduler runs one thread at a time.
        unsafe { place.add(block.offset).write_bytes(OTHERS, block.size) };
    }

    pub(super) fn view(&self, side: usize) -> View<'_, End<'_>> {
        View::of(&self.sessions[side], End { kernel: &self.kernel, side }).unwrap()
    }

    /// A dump of the state, for finding a fault.
    pub(super) fn dump(&self) -> String {
        let of = |side: usize| {
            let (s, dir) = (&self.sessions[side], &self.slot.dir[side]);
            let words =
                [&dir.w.tail, &dir.r.head, &dir.w.n_kernel, &dir.w.bells].map(|word| word.load(Ordering::SeqCst));
            let flags = [
                &dir.w.state,
                &dir.w.ringing,
                &dir.wake.armed,
                &dir.wake.want,
                &dir.wake.gate,
                &dir.wake.last,
                &dir.w.fate,
                &dir.r.drained,
            ];
            let flags = flags.map(|word| word.load(Ordering::SeqCst));
            let counts = [&s.rx_sleepers, &s.tx_sleepers, &s.kernel_events, &s.in_recv, &s.in_send]
                .map(|word| word.load(Ordering::SeqCst));
            format!(
                "side {side}: rx {} tx {} out: tail head n_kernel bells {words:x?} state ringing armed want gate last fate drained {flags:x?}\n  \
                 rx_sleepers tx_sleepers events in_recv in_send {counts:?} sent {:?} of {:?} read {:?}, queue {}\n",
                s.rx(),
                s.tx(),
                self.sent[side],
                self.total[side],
                self.read[side],
                self.kernel.describe(side)
            )
        };
        of(0) + &of(1)
    }

    pub(super) fn end(&self, side: usize, dead: bool) {
        self.kernel.close(side, dead);
        if !dead {
            assert!(self.total[side].load(Order::SeqCst) >= self.sent[side].load(Order::SeqCst));
        }
    }

    /// A try; too many of them are a loop that never ends.
    pub(super) fn count(&self, what: &str) {
        let n = self.attempts.fetch_add(1, Order::SeqCst);
        assert!(n < 5_000, "{what} for ever\n{}", self.dump());
    }

    /// A short sleep; too many of them in a row are a sleep that never ends.
    pub(super) fn idle(&self, side: usize, what: &str) {
        let n = self.idle.fetch_add(1, Order::SeqCst);
        assert!(n < 20_000, "side {side} waits for {what} for ever\n{}", self.dump());
        madrigal_base::sync::explored::mortal::point();
        thread::yield_now();
    }

    pub(super) fn assert_whole(&self) {
        for side in [0, 1] {
            let (sent, read) = (self.sent[side].load(Order::SeqCst), self.read[1 - side].load(Order::SeqCst));
            assert_eq!(
                (sent, read),
                (self.total[side].load(Order::SeqCst), sent),
                "side {side} sent, the other read\n{}",
                self.dump()
            );
        }
    }

    /// A reader slept on through a seal of its direction, until the stream ended.
    pub(super) fn note_unwoken(&self) {
        self.unwoken.fetch_add(1, Order::SeqCst);
    }

    pub(super) fn assert_woken(&self) {
        assert_eq!(self.unwoken.load(Order::SeqCst), 0, "{}", self.dump());
    }

    pub(super) fn assert_no_nonsense(&self) {
        for side in [0, 1] {
            assert!(self.read[1 - side].load(Order::SeqCst) <= self.sent[side].load(Order::SeqCst));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let base = core::ptr::with_exposed_provenance_mut::<u8>(self.base as usize);
        // SAFETY: the box made in `new`, whose address is not used any more.
        drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(base, MEMORY)) });
    }
}
