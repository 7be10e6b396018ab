//! The two programs of a model: what their threads do, by the calls that SysWrap's hooks make.

use std::sync::atomic::Ordering as Order;

use madrigal_base::sync::Ordering;
use madrigal_base::sync::explored::mortal::Process;
use madrigal_shm_ring::arena::UNIT;
use madrigal_shm_ring::layout::Block;
use madrigal_shm_ring::ring::Span;
use madrigal_sys::Errno;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::thread::{self, JoinHandle};

use super::super::leave::Passage;
use super::super::put::{Piece, Put, Room};
use super::super::source::{Taker, Took};
use super::super::{HandBack, Me, View, phase};
use super::kernel::End;
use super::world::{World, byte};

/// Larger blocks for side 0 and for side 1.
const LARGE: [[Block; 2]; 2] = [of_units(1), of_units(4)];

/// A unit at this one, and two behind it.
const fn of_units(at: usize) -> [Block; 2] {
    [Block { offset: at * UNIT, size: UNIT }, Block { offset: (at + 1) * UNIT, size: 2 * UNIT }]
}

/// What the program of one side does.
#[derive(Clone, Copy, Default)]
pub(super) struct Plan {
    /// Bytes it sends, and how many at a time.
    pub(super) sends: u64,
    pub(super) step: usize,
    /// Bytes it reads at least; it takes more if more are there.
    pub(super) reads: u64,
    /// A third thread ends the session at some time.
    pub(super) leaves: bool,
    /// It does so for a reader that knows no rings, by a copy of the peer's socket.
    pub(super) hands_back: bool,
    /// It does so by a request to the peer.
    pub(super) asks_back: bool,
    /// Not before the peer writes to a ring larger than that of the slot.
    pub(super) late: bool,
    /// Not before the peer has left; no thread reads before.
    pub(super) last: bool,
    /// Nor before the peer has shut its sending direction.
    pub(super) behind_end: bool,
    /// Larger rings are available.
    pub(super) grows: bool,
    /// It closes behind what it has sent.
    pub(super) closes: bool,
    /// It corks its socket once the ring carries what it sends; the kernel is not notified then.
    pub(super) corks: bool,
    /// So many bytes more, behind those, are sent one at a time by code that knows nothing of rings.
    pub(super) unhooked: u64,
}

impl Plan {
    pub(super) fn talk(sends: u64, step: usize) -> Self {
        Self { sends, step, reads: u64::MAX, ..Self::default() }
    }

    pub(super) fn receive_all(_: u64) -> Self {
        Self { step: 1, reads: u64::MAX, ..Self::default() }
    }
}

/// The threads of one side: a sender, a reader, and one that ends the session early if the plan says so.
pub(super) fn threads(world: &Arc<World>, process: &Process, side: usize, plan: Plan) -> Vec<JoinHandle<()>> {
    world.total[side].store(plan.sends + plan.unhooked, Order::SeqCst);
    let run = |work: fn(&World, usize, Plan)| {
        let (world, process) = (Arc::clone(world), process.clone());
        thread::spawn(move || _ = process.run(|| work(&world, side, plan)))
    };
    let mut threads = vec![run(send_all), run(read_all)];
    if plan.leaves || plan.hands_back || plan.asks_back {
        threads.push(run(end_session));
    }
    threads
}

// --- sending ------------------------------------------------------------------------------------------------------------------

fn send_all(world: &World, side: usize, plan: Plan) {
    let mut at = 0;
    while at < plan.sends {
        let n = thread_rng().gen_range(1..=plan.step).min((plan.sends - at) as usize);
        let bytes: Vec<u8> = (at..at + n as u64).map(|at| byte(side, at)).collect();
        // What is published may be read before the call returns.
        world.sent[side].fetch_add(n as u64, Order::SeqCst);
        if !send(world, side, plan, &bytes) {
            return;
        }
        at += n as u64;
    }
    let view = world.view(side);
    if plan.closes {
        let _sending = view.s.wlock.lock();
        if !view.close(false, true) {
            view.unmix(&view.wire);
        }
    } else {
        leave(world, side, |_| Ok(()));
        if plan.unhooked > 0 {
            // It begins behind the gate, which does not hold it up.
            at_gate(world, side, || ());
        }
        for at in at..at + plan.unhooked {
            world.sent[side].fetch_add(1, Order::SeqCst);
            while world.kernel.send(side, &[byte(side, at)]) == Err(Errno::AGAIN) {
                world.kernel.await_room(side);
            }
        }
        // shutdown(2).
        let _sending = view.s.wlock.lock();
        view.unmix(&view.wire);
        view.be_mute();
    }
    // Not while the peer puts bytes back through a copy of this socket.
    at_gate(world, side, || world.kernel.close_sending(side));
}

fn at_gate(world: &World, side: usize, call: impl FnOnce()) {
    let v = world.view(side);
    loop {
        if let Passage::Open(_sender) = v.pass() {
            return call();
        }
        world.idle(side, "the gate");
    }
}

/// As `io::send`; false: the peer is gone.
fn send(world: &World, side: usize, plan: Plan, bytes: &[u8]) -> bool {
    let v = world.view(side);
    let mut done = 0;
    while done < bytes.len() {
        world.count("a sender's tries");
        let step = {
            let _lock = v.s.wlock.lock();
            advance(&v);
            if v.s.tx() == phase::KERNEL && v.switch() {
                v.pay_space();
            }
            if plan.corks && v.s.tx() == phase::RING {
                v.s.corked.store(1, Ordering::Relaxed);
            }
            let copy = |span: &Span, from: usize| -> Result<usize, Errno> {
                let rest = &bytes[done + from..];
                let n = rest.len().min(span.len());
                // SAFETY: the slice is readable; the span is space under the send lock.
                Ok(unsafe { span.copy_in(0, rest.as_ptr(), n) })
            };
            if thread_rng().gen_bool(0.5)
                && let Some((n, sleeper)) = v.put_at_once(bytes.len() - done, |span| copy(span, 0).unwrap_or(0))
            {
                drop(_lock);
                v.wake(sleeper);
                done += n;
                continue;
            }
            match v.put(
                Piece { left: bytes.len() - done, whole: done == 0, more: false },
                &Blocks { world, side, grows: plan.grows },
                copy,
            ) {
                Put::Over => {
                    v.finish_sending();
                    Put::Plain
                }
                step => step,
            }
        };
        match step {
            Put::Bytes(n, sleeper) => {
                v.wake(sleeper);
                done += n;
            }
            Put::Full => sleep_for_space(world, &v, side),
            Put::Plain => match send_plain(world, &v, side, &bytes[done..]) {
                Some(n) => done += n,
                None => return false,
            },
            other => panic!("{other:?}"),
        }
    }
    true
}

pub(super) fn advance(v: &View<'_, End<'_>>) {
    if let Some(_lock) = v.try_reading() {
        if v.s.rx() == phase::KERNEL {
            v.ready(|| true);
        }
        v.reach_ring();
    }
}

fn sleep_for_space(world: &World, v: &View<'_, End<'_>>, side: usize) {
    v.s.tx_sleepers.fetch_add(1, Ordering::SeqCst);
    let wakeable = v.s.rx() == phase::RING && v.try_reading().is_some_and(|_lock| v.swallow(Me::Writer));
    if !v.want() && !v.s.producer.is_sealed(v.out) && !v.ended() {
        if wakeable {
            world.kernel.await_readable(side);
            let _lock = v.reading();
            if v.s.rx() == phase::RING {
                v.check_open(true);
            }
        } else {
            // Kernel bytes that are not read yet would end every sleep: a short one, as with a time-out.
            world.idle(side, "space");
        }
    }
    v.s.tx_sleepers.fetch_sub(1, Ordering::SeqCst);
}

/// As `io::plain`; how many bytes went, `None`: the peer is gone.
fn send_plain(world: &World, v: &View<'_, End<'_>>, side: usize, bytes: &[u8]) -> Option<usize> {
    v.s.in_send.fetch_add(1, Ordering::SeqCst);
    if v.s.sends() {
        v.s.in_send.fetch_sub(1, Ordering::SeqCst);
        return Some(0);
    }
    let sent = if v.s.tx() == phase::DONE {
        assert!(v.s.corked.load(Ordering::Relaxed) == 0 || world.kernel.is_corked(side), "the cork comes behind bytes");
        match v.pass() {
            Passage::Open(_sender) => world.kernel.send(side, bytes),
            Passage::Closed => Err(Errno::BUSY),
        }
    } else {
        world.kernel.send(side, bytes)
    };
    v.s.in_send.fetch_sub(1, Ordering::SeqCst);
    match sent {
        Ok(n) => Some(n),
        Err(Errno::BUSY) => {
            world.idle(side, "the gate");
            Some(0)
        }
        Err(Errno::AGAIN) => {
            world.kernel.await_room(side);
            Some(0)
        }
        Err(_) => None,
    }
}

pub(super) struct Blocks<'a> {
    pub(super) world: &'a World,
    pub(super) side: usize,
    pub(super) grows: bool,
}

impl Room for Blocks<'_> {
    fn take(&self, _: usize) -> Option<Block> {
        let v = self.world.view(self.side);
        let now = v.s.producer.block(&v.mem)?;
        LARGE[self.side].into_iter().find(|block| self.grows && block.size > now.size)
    }

    /// Another session gets it at once, and writes there.
    fn give(&self, block: Block) -> bool {
        if block.size >= UNIT {
            self.world.write_over(block);
        }
        true
    }
}

// --- reading ------------------------------------------------------------------------------------------------------------------

/// Compares what it takes.
pub(super) struct Reader<'a> {
    pub(super) world: &'a World,
    pub(super) side: usize,
}

impl Reader<'_> {
    fn expect(&self, bytes: &[u8], done: usize) {
        let at = self.world.read[self.side].load(Order::SeqCst) + done as u64;
        for (i, &found) in bytes.iter().enumerate() {
            let (at, side) = (at + i as u64, self.side);
            assert_eq!(
                found,
                byte(1 - side, at),
                "side {side}, byte {at} (+{done}, {i} of {})\n{}",
                bytes.len(),
                self.world.dump()
            );
        }
    }
}

impl Taker for Reader<'_> {
    fn kernel(&self, done: usize, limit: u64) -> Result<usize, Errno> {
        let mut bytes = Vec::new();
        let n = self.world.kernel.receive(self.side, usize::try_from(limit).unwrap(), |byte| bytes.push(byte))?;
        self.expect(&bytes, done);
        Ok(n)
    }

    fn copy(&self, done: usize, span: &Span) -> Result<usize, Errno> {
        let mut bytes = vec![0; span.len()];
        // SAFETY: the slice is writable; the span is data under the receive lock.
        let n = unsafe { span.copy_out(0, bytes.as_mut_ptr(), bytes.len()) };
        self.expect(&bytes, done);
        Ok(n)
    }
}

fn read_all(world: &World, side: usize, plan: Plan) {
    let (v, reader) = (world.view(side), Reader { world, side });
    while plan.last && v.s.rx() != phase::DONE && (plan.behind_end || !world.kernel.is_over(1 - side)) {
        world.idle(side, "bytes that have gone back");
    }
    while world.read[side].load(Order::SeqCst) < plan.reads {
        world.count("a reader's looks");
        let room = thread_rng().gen_range(1..900);
        let took = {
            let _lock = v.reading();
            let at_once = if thread_rng().gen_bool(0.5) { v.take_at_once(room, &reader) } else { None };
            let took = at_once.unwrap_or_else(|| v.take(room, &reader, || true));
            note(world, side, took);
            took
        };
        match took {
            Took::Bytes(_) => v.pay_space(),
            Took::Plain => match read_plain(world, &v, &reader, room) {
                Some(true) => {}
                Some(false) => continue,
                None => return,
            },
            Took::Empty => sleep_for_bytes(world, &v, side),
            Took::End => {
                let _ = v.ending();
                return;
            }
            Took::Failed(e) => panic!("{e:?}"),
        }
    }
}

pub(super) fn note(world: &World, side: usize, took: Took) {
    if let Took::Bytes(n) = took {
        world.read[side].fetch_add(n as u64, Order::SeqCst);
    }
}

/// As `io::plain`: a receive by the kernel, which sleeps there. `None`: the end.
fn read_plain(world: &World, v: &View<'_, End<'_>>, reader: &Reader<'_>, room: usize) -> Option<bool> {
    v.s.in_recv.fetch_add(1, Ordering::SeqCst);
    if v.s.receives() {
        v.s.in_recv.fetch_sub(1, Ordering::SeqCst);
        return Some(false);
    }
    if world.kernel.is_aborted(reader.side) {
        return None;
    }
    let took = {
        // The scheduler's threads are not interrupted between the two.
        let got = reader.kernel(0, room as u64);
        note(world, reader.side, got.map_or(Took::Empty, Took::Bytes));
        got
    };
    if took == Err(Errno::AGAIN) {
        world.kernel.await_readable(reader.side);
    }
    v.s.in_recv.fetch_sub(1, Ordering::SeqCst);
    match took {
        Ok(0) => None,
        Ok(_) => Some(true),
        Err(Errno::AGAIN) => Some(false),
        Err(_) => None,
    }
}

fn sleep_for_bytes(world: &World, v: &View<'_, End<'_>>, side: usize) {
    v.s.rx_sleepers.fetch_add(1, Ordering::SeqCst);
    let arrived = match v.s.rx() {
        phase::RING => {
            let mine = v.try_reading().is_none_or(|_lock| v.swallow(Me::Reader));
            let _ = v.s.rx();
            !mine
                || View::<End<'_>>::CONSUMER.arm(v.inn)
                    && !(v.is_sealed_in() && View::<End<'_>>::CONSUMER.waiting(v.inn) == 0)
        }
        phase::READY => false,
        _ => true,
    };
    if !arrived {
        // In any other phase the sleep also ends for an urgent byte.
        let slept_open = v.s.rx() == phase::RING && !v.is_sealed_in();
        v.pay_space();
        world.kernel.await_readable(side);
        // A byte must end such a sleep: a doorbell, or what came behind it.
        if slept_open && v.is_sealed_in() && world.kernel.is_at_end(side) {
            world.note_unwoken();
        }
    } else {
        world.idle(side, "bytes");
    }
    v.s.rx_sleepers.fetch_sub(1, Ordering::SeqCst);
    let end = v.try_reading().is_some_and(|_lock| v.s.rx() == phase::RING);
    if end {
        let _lock = v.reading();
        v.check_open(true);
    }
}

// --- leaving ------------------------------------------------------------------------------------------------------------------

fn end_session(world: &World, side: usize, plan: Plan) {
    let v = world.view(side);
    let small = || {
        let peer = world.view(1 - side);
        peer.s.tx() != phase::DONE && peer.s.producer.block(&peer.mem).is_none_or(|block| block.size < UNIT)
    };
    let peer_goes_on =
        || world.view(1 - side).s.tx() != phase::DONE || plan.behind_end && !world.kernel.is_over(1 - side);
    while plan.last && peer_goes_on() {
        world.idle(side, "the peer's end");
    }
    while plan.late && small() && v.s.rx() != phase::DONE {
        world.idle(side, "a larger ring");
    }
    for _ in 0..thread_rng().gen_range(0..40) {
        thread::yield_now();
    }
    let by = |copies| Either { end: End { kernel: &world.kernel, side }, copies };
    leave(world, side, |v| match () {
        () if plan.behind_end => {
            let done = v.hand_back(&v.wire);
            assert_eq!(done, Ok(()), "{}", world.dump());
            done
        }
        () if plan.hands_back && thread_rng().gen_bool(0.5) => v.hand_back(&v.wire),
        () if plan.hands_back => v.hand_back(&by(true)),
        () if plan.asks_back => v.hand_back(&by(false)),
        () => Ok(()),
    });
}

fn leave(world: &World, side: usize, hand_back: impl FnOnce(&View<'_, End<'_>>) -> Result<(), Errno>) {
    let v = world.view(side);
    let _sending = v.s.wlock.lock();
    let _receiving = v.reading();
    v.seal();
    if v.s.rx_sleepers.load(Ordering::SeqCst) == 0 {
        v.finish_receiving();
    }
    if let Err(e) = hand_back(&v) {
        // It fails only if the peer has sent its last or is dead; or if we may not copy its socket, or may not wait, or it has no room:
        // then the peer goes on by itself.
        let gone = world.kernel.is_over(1 - side);
        assert!(
            gone || matches!(e, Errno::TIMEDOUT | Errno::PERM | Errno::AGAIN | Errno::NOBUFS),
            "{e:?}\n{}",
            world.dump()
        );
        if e == Errno::IO {
            world.kernel.abort(side);
        }
    }
    v.finish_sending();
}

/// A process that may copy its peer's descriptors, or may ask the peer.
struct Either<'a> {
    end: End<'a>,
    copies: bool,
}

impl<'a> HandBack for Either<'a> {
    type Peer = End<'a>;
    type Aside = Vec<u8>;

    fn peer(&self) -> Result<End<'a>, Errno> {
        if self.copies { self.end.peer() } else { Err(Errno::PERM) }
    }

    fn may_ask(&self) -> bool {
        !self.copies
    }

    fn aside(&self) -> Result<Vec<u8>, Errno> {
        Ok(Vec::new())
    }

    fn take(&self, aside: &mut Vec<u8>) -> Result<usize, Errno> {
        self.end.take(aside)
    }
}
