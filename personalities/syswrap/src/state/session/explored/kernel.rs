//! A model of a connected stream socket: two queues of bytes, with the operations that a session needs.

use std::sync::atomic::{AtomicBool, AtomicU64 as Clock, Ordering as Order};

use madrigal_base::sync::explored::mortal;
use madrigal_shm_ring::layout::Block;
use madrigal_sys::Errno;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Condvar, Mutex};

use super::super::handback::{Aside, HandBack, PeerEnd};
use super::super::unmix::Unmix;
use super::super::wire::{Health, Wire};
use super::queue::Queue;

/// Bytes the kernel carries for one direction before a sender has to wait.
const ROOM: usize = 1500;
/// Reading the clock takes one of these, in ns: so a thing with a time limit is done in time, or is not.
const STEPS: [u64; 2] = [4_000, 120_000];
/// A pause takes so long: short enough that a thread preempted a few times meanwhile is not taken for a stopped one.
const PAUSE_NS: u64 = 10_000_000;
/// How many sends a kernel that is short of memory refuses, of a socket with unread bytes, though there is room: longer than a moment, shorter
/// than [`super::super::limit::SHORT_NS`].
const REFUSED: [u64; 4] = [0, 0, 20, 300];
/// After one of so many system calls a thread is preempted, for so many steps of the others.
const PREEMPTED: u32 = 40;
const SLICE: u32 = 100;
/// The value of a doorbell in the queue; no byte of a stream has it.
pub(super) const BELL: u8 = 0;

/// A connection, as the kernel has it.
pub(super) struct Kernel {
    /// The queue each side reads from.
    queues: [Mutex<Queue>; 2],
    changed: [Condvar; 2],
    clock: Clock,
    /// What reading it takes, in ns.
    step: u64,
    /// Sides that were killed, a bit each.
    dead: Clock,
    /// Room in each queue besides [`ROOM`].
    more: [Clock; 2],
    /// How many sends are still refused.
    refused: Clock,
    /// Sides that hold back what is no full segment: recorded, not done.
    corked: [AtomicBool; 2],
}

impl Kernel {
    pub(super) fn new() -> Self {
        Self {
            queues: Default::default(),
            changed: Default::default(),
            clock: Clock::new(1),
            step: STEPS[thread_rng().gen_range(0..STEPS.len())],
            dead: Clock::new(0),
            more: Default::default(),
            refused: Clock::new(REFUSED[thread_rng().gen_range(0..REFUSED.len())]),
            corked: Default::default(),
        }
    }

    pub(super) fn is_corked(&self, side: usize) -> bool {
        self.corked[side].load(Order::SeqCst)
    }

    fn with<T>(&self, queue: usize, part: impl FnOnce(&mut Queue) -> T) -> T {
        mortal::point();
        let result = part(&mut self.queues[queue].lock().unwrap());
        self.changed.iter().for_each(Condvar::notify_all);
        // A thread may be preempted behind a system call, while others do all they can.
        if thread_rng().gen_ratio(1, PREEMPTED) {
            (0..SLICE).for_each(|_| shuttle::thread::yield_now());
        }
        result
    }

    /// What a send returns before it checks for room. `Ok(true)`: no reader is left; the bytes are taken, and lost.
    fn try_send(&self, side: usize) -> Result<bool, Errno> {
        self.with(side, |own| match own.error.take() {
            Some(e) => Err(e),
            None if own.closed => Err(Errno::PIPE),
            None => Ok(()),
        })?;
        if !self.with(1 - side, |queue| queue.deaf && !queue.fin) {
            return Ok(false);
        }
        self.with(side, |own| {
            own.closed = true;
            own.error = Some(if own.fin { Errno::PIPE } else { Errno::CONNRESET });
        });
        Ok(true)
    }

    fn room(&self, queue: usize) -> usize {
        ROOM + self.more[queue].load(Order::SeqCst) as usize
    }

    /// Whether memory is short for one more send.
    fn is_short(&self) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        self.refused.fetch_update(Order::SeqCst, Order::SeqCst, one_less).is_ok()
    }

    /// Sends without waiting.
    pub(super) fn send(&self, side: usize, bytes: &[u8]) -> Result<usize, Errno> {
        if self.try_send(side)? {
            // The kernel counts bytes that had no reader, too.
            self.with(1 - side, |queue| queue.given += bytes.len() as u64);
            return Ok(bytes.len());
        }
        self.with(1 - side, |queue| {
            if queue.fin || queue.deaf {
                return Err(Errno::PIPE);
            }
            if !queue.bytes.is_empty() && self.is_short() {
                return Err(Errno::AGAIN);
            }
            let n = bytes.len().min(self.room(1 - side).saturating_sub(queue.bytes.len()));
            queue.bytes.extend(&bytes[..n]);
            queue.given += n as u64;
            if n == 0 && !bytes.is_empty() { Err(Errno::AGAIN) } else { Ok(n) }
        })
    }

    /// Receives without waiting. `Ok(0)`: the end.
    pub(super) fn receive(&self, side: usize, limit: usize, mut see: impl FnMut(u8)) -> Result<usize, Errno> {
        self.with(side, |queue| {
            let n = limit.min(queue.bytes.len());
            queue.bytes.drain(..n).for_each(&mut see);
            queue.taken += n as u64;
            match n {
                0 => queue.end(),
                n => Ok(n),
            }
        })
    }

    /// Sleeps until there is something to read, or the end of it.
    pub(super) fn await_readable(&self, side: usize) {
        self.sleep(side, |queue| queue.bytes.is_empty() && !queue.fin && !queue.closed);
    }

    /// Sleeps until there is room to send, or no reader is left.
    pub(super) fn await_room(&self, side: usize) {
        self.sleep(1 - side, |queue| queue.bytes.len() >= ROOM && !queue.fin && !queue.deaf);
    }

    fn sleep(&self, queue: usize, mut nothing: impl FnMut(&mut Queue) -> bool) {
        mortal::point();
        if !mortal::may_die() {
            let guard = self.queues[queue].lock().unwrap();
            return drop(self.changed[queue].wait_while(guard, nothing).unwrap());
        }
        while nothing(&mut self.queues[queue].lock().unwrap()) {
            mortal::point();
            shuttle::thread::yield_now();
        }
        mortal::point();
    }

    /// The side sends no more: shutdown(2).
    pub(super) fn close_sending(&self, side: usize) {
        self.with(1 - side, |queue| queue.fin = true);
    }

    /// The side has reset the connection.
    pub(super) fn abort(&self, side: usize) {
        self.with(1 - side, Queue::reset);
        self.with(side, |queue| queue.aborted = true);
    }

    /// Whether it has.
    pub(super) fn is_aborted(&self, side: usize) -> bool {
        self.queues[side].lock().unwrap().aborted
    }

    /// Whether a side sends no more.
    pub(super) fn is_over(&self, side: usize) -> bool {
        let queue = self.queues[1 - side].lock().unwrap();
        queue.fin || queue.closed
    }

    /// Whether a side has read all there is and got the end.
    pub(super) fn is_at_end(&self, side: usize) -> bool {
        let queue = self.queues[side].lock().unwrap();
        queue.bytes.is_empty() && (queue.fin || queue.closed)
    }

    /// Whether bytes of the program's wait in a side's queue.
    pub(super) fn holds_bytes(&self, side: usize) -> bool {
        self.queues[side].lock().unwrap().bytes.iter().any(|&byte| byte != BELL)
    }

    /// What a side's queue holds.
    pub(super) fn describe(&self, side: usize) -> String {
        let queue = self.queues[side].lock().unwrap();
        let bells = queue.bytes.iter().filter(|&&byte| byte == BELL).count();
        format!("{} ({bells} bells) taken {} fin {} closed {}", queue.bytes.len(), queue.taken, queue.fin, queue.closed)
    }

    /// The side has ended: as close(2), by the program or by its death.
    pub(super) fn close(&self, side: usize, dead: bool) {
        self.dead.fetch_or(u64::from(dead) << side, Order::SeqCst);
        let (unread, aborted) = {
            let mut own = self.queues[side].lock().unwrap();
            own.deaf = true;
            (!own.bytes.is_empty(), own.aborted)
        };
        let mut theirs = self.queues[1 - side].lock().unwrap();
        match () {
            // Nothing follows a reset.
            () if aborted => {}
            () if unread => theirs.reset(),
            () => theirs.fin = true,
        }
        drop(theirs);
        self.changed.iter().for_each(Condvar::notify_all);
    }
}

/// More room in a queue, for a while.
pub(super) struct Wide<'a> {
    kernel: &'a Kernel,
    queue: usize,
}

impl<'a> Wide<'a> {
    fn new(end: End<'a>, n: u64) -> Self {
        let (kernel, queue) = (end.kernel, 1 - end.side);
        kernel.more[queue].store(n, Order::SeqCst);
        Self { kernel, queue }
    }
}

impl Drop for Wide<'_> {
    fn drop(&mut self) {
        self.kernel.more[self.queue].store(0, Order::SeqCst);
    }
}

/// One side's end.
#[derive(Clone, Copy)]
pub(super) struct End<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) side: usize,
}

impl<'a> Wire for End<'a> {
    type Wide = Wide<'a>;

    fn queued(self) -> Result<u64, Errno> {
        Ok(self.kernel.with(self.side, |queue| queue.bytes.len() as u64))
    }

    fn taken(self) -> Result<u64, Errno> {
        Ok(self.kernel.with(self.side, |queue| queue.taken))
    }

    fn given(self) -> Result<u64, Errno> {
        Ok(self.kernel.with(1 - self.side, |queue| queue.given))
    }

    fn discard(self, n: u64) -> Result<u64, Errno> {
        let mut strange = None;
        let done =
            self.kernel.receive(self.side, n as usize, |byte| strange = strange.or((byte != BELL).then_some(byte)));
        assert_eq!(strange, None, "a byte of the program was taken for a doorbell");
        done.map(|n| n as u64)
    }

    fn peek(self) -> Result<bool, Errno> {
        self.kernel.with(self.side, |queue| match () {
            () if !queue.bytes.is_empty() => Ok(true),
            () => queue.end().map(|_| false),
        })
    }

    fn health(self) -> Health {
        let shut = self.kernel.with(1 - self.side, |queue| queue.fin);
        self.kernel.with(self.side, |queue| match () {
            () if queue.error.is_some() => Health::Broken,
            () if queue.closed || queue.fin && shut => Health::Closed,
            () if queue.fin => Health::Ended,
            () => Health::Open,
        })
    }

    fn has_fin(self) -> bool {
        self.kernel.with(self.side, |queue| queue.fin || queue.closed)
    }

    fn has_urgent(self) -> bool {
        false
    }

    fn keeps_urgent(self) -> bool {
        false
    }

    fn take_error(self) -> Option<Errno> {
        self.kernel.with(self.side, |queue| queue.error.take())
    }

    fn undisturbed<T>(self, part: impl FnOnce() -> T) -> T {
        part()
    }

    fn bell(self) -> Result<(), Errno> {
        if self.kernel.try_send(self.side)? {
            self.kernel.with(1 - self.side, |queue| queue.given += 1);
            return Ok(());
        }
        self.kernel.with(1 - self.side, |queue| {
            if queue.fin || queue.deaf {
                return Err(Errno::PIPE);
            }
            // Doorbells always find room: they are single bytes.
            queue.bytes.push_back(BELL);
            queue.given += 1;
            Ok(())
        })
    }

    fn send(self, bytes: &[u8]) -> Result<usize, Errno> {
        self.kernel.send(self.side, bytes)
    }

    fn room_for(self, n: u64) -> bool {
        self.kernel.with(1 - self.side, |queue| queue.bytes.len() + (n as usize) < self.kernel.room(1 - self.side))
    }

    fn widen(self, n: u64) -> Wide<'a> {
        Wide::new(self, n)
    }

    fn resets(self) {}

    fn cork(self) {
        self.kernel.corked[self.side].store(true, Order::SeqCst);
    }

    fn hurry(self) {}

    fn bell_late(self) -> Result<(), Errno> {
        // It may come at once, too.
        self.bell()
    }

    fn segment(self) -> u32 {
        536
    }

    fn is_lent(self, _: Block, _: usize) -> bool {
        true
    }

    fn peer_lives(self) -> bool {
        self.kernel.dead.load(Order::SeqCst) & 1 << (1 - self.side) == 0
    }

    fn own_pid(self) -> u32 {
        1
    }

    fn lives(self, _: u32) -> bool {
        true
    }

    fn sleeps(self, _: u32) -> bool {
        true
    }

    fn wakes(self, _: u32) -> bool {
        true
    }

    fn now(self) -> u64 {
        self.kernel.clock.fetch_add(self.kernel.step, Order::Relaxed)
    }

    fn tick(self) -> u64 {
        self.now()
    }

    fn pause(self) {
        self.kernel.clock.fetch_add(PAUSE_NS, Order::Relaxed);
        mortal::point();
        shuttle::thread::yield_now();
    }

    fn cpu(self) -> u32 {
        self.side as u32 + 1
    }

    fn cut_off(self) {
        self.kernel.abort(self.side);
    }

    fn switched(self) {}

    fn spoilt(self) {
        panic!("an honest peer was taken for a liar");
    }
}

impl HandBack for End<'_> {
    type Peer = Self;
    type Aside = Vec<u8>;

    fn peer(&self) -> Result<Self, Errno> {
        let closed = self.kernel.with(1 - self.side, |queue| queue.deaf);
        if closed || self.kernel.with(self.side, |queue| queue.closed) {
            Err(Errno::SRCH)
        } else {
            Ok(Self { side: 1 - self.side, ..*self })
        }
    }

    fn may_ask(&self) -> bool {
        true
    }

    fn aside(&self) -> Result<Vec<u8>, Errno> {
        Ok(Vec::new())
    }

    fn take(&self, aside: &mut Vec<u8>) -> Result<usize, Errno> {
        self.kernel.receive(self.side, usize::MAX, |byte| aside.push(byte))
    }
}

impl Unmix for End<'_> {
    fn take_from(&self, peer: &Self, aside: &mut Vec<u8>) -> Result<usize, Errno> {
        HandBack::take(peer, aside)
    }

    fn taken_of(&self, peer: &Self) -> Result<u64, Errno> {
        Wire::taken(*peer)
    }
}

impl<'a> PeerEnd for End<'a> {
    type Wide = Wide<'a>;

    fn widen(&self, n: u64) -> Wide<'a> {
        Wide::new(*self, n)
    }

    fn room_for(&self, n: u64) -> bool {
        Wire::room_for(*self, n)
    }

    fn is_mute(&self) -> bool {
        self.kernel.with(1 - self.side, |queue| queue.fin)
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.kernel.send(self.side, bytes)
    }

    fn send_urgent(&self, _: u8) -> Result<(), Errno> {
        unreachable!("this kernel has no urgent data")
    }

    fn given(&self) -> Result<u64, Errno> {
        Wire::given(*self)
    }

    fn sent(&self) -> Result<u64, Errno> {
        Wire::given(*self)
    }
}

impl Aside for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn cut(&mut self, at: usize, n: usize) {
        assert!(self.drain(at..at + n).all(|byte| byte == BELL), "a byte of the program was taken for a doorbell");
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.splice(at..at, bytes.iter().copied());
        Ok(())
    }

    fn urgent(&self) -> Option<(usize, u8)> {
        None
    }
}
