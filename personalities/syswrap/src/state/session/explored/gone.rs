//! What a side gets from a peer that closed, reset the connection, or was killed at any step. Compared with what TCP reports, which follows
//! from what the peer had left unread.

use std::sync::atomic::Ordering as Order;

use madrigal_base::sync::Ordering;
use madrigal_base::sync::explored::mortal::{self, Process};
use madrigal_shm_ring::layout::POSITION;
use madrigal_shm_ring::ring::Span;
use madrigal_sys::Errno;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::sync::atomic::AtomicU32;
use shuttle::thread;

use super::super::{Piece, Put, Took, View, Wire};
use super::explore;
use super::kernel::End;
use super::program::{Blocks, Reader, advance, note};
use super::world::{World, byte};

const SURVIVOR: usize = 0;
const PEER: usize = 1;

const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ERR: u32 = libc::EPOLLERR as u32;

/// The state a TCP socket would be in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tcp {
    /// The peer's FIN came.
    Ended,
    /// A send was answered with a reset.
    Lost,
    /// The peer's reset came.
    Reset,
    /// The error has been reported.
    Over,
}

impl Tcp {
    fn events(self) -> u32 {
        match self {
            Tcp::Ended => RDHUP,
            Tcp::Lost | Tcp::Reset => RDHUP | HUP | ERR,
            Tcp::Over => RDHUP | HUP,
        }
    }

    fn send(&mut self) -> Result<usize, Errno> {
        let (next, result) = match *self {
            Tcp::Ended => (Tcp::Lost, Ok(1)),
            Tcp::Reset => (Tcp::Over, Err(Errno::CONNRESET)),
            Tcp::Lost | Tcp::Over => (Tcp::Over, Err(Errno::PIPE)),
        };
        *self = next;
        result
    }

    /// Behind the last byte.
    fn receive(&mut self) -> Result<usize, Errno> {
        if *self != Tcp::Reset {
            return Ok(0);
        }
        *self = Tcp::Over;
        Err(Errno::CONNRESET)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Close,
    /// With `SO_LINGER` 0.
    Reset,
    Kill,
}

#[test]
fn a_peer_that_went_is_told_of_as_by_tcp() {
    explore(1_500, 700, || {
        let world = Arc::new(World::new());
        let how = [How::Close, How::Reset, How::Kill][thread_rng().gen_range(0..3usize)];
        let stage = Arc::new(AtomicU32::new(0));
        let peer = {
            let (world, stage) = (Arc::clone(&world), Arc::clone(&stage));
            thread::spawn(move || be_peer(&world, &stage, how))
        };
        talk(&world, SURVIVOR);
        stage.store(1, Order::SeqCst);
        // Polls and receives go on while the peer ends.
        while stage.load(Order::SeqCst) < 2 {
            receive_some(&world, SURVIVOR);
            let _ = events(&world);
            thread::yield_now();
        }
        let was = peer.join().unwrap();
        survive(&world, was, how);
    });
}

/// Sends and receives a little, as far as that goes without waiting.
fn talk(world: &World, side: usize) {
    for _ in 0..thread_rng().gen_range(2..14) {
        if thread_rng().gen_bool(0.6) {
            let _ = send(world, side);
        } else {
            receive_some(world, side);
        }
        thread::yield_now();
    }
}

/// The peer's life; returns the state TCP would be in after its end.
fn be_peer(world: &World, stage: &AtomicU32, how: How) -> Tcp {
    while stage.load(Order::SeqCst) == 0 {
        talk(world, PEER);
    }
    if how == How::Kill {
        let process = Process::killed_after(thread_rng().gen_range(1..60));
        while process.run(|| talk(world, PEER)).is_some() {}
    } else {
        talk(world, PEER);
    }
    let was = if how == How::Reset || leaves_unread(world) { Tcp::Reset } else { Tcp::Ended };
    if how != How::Kill {
        let view = world.view(PEER);
        let _sending = view.s.wlock.lock();
        if view.close(how == How::Reset, true) {
            world.kernel.abort(PEER);
        }
    }
    world.kernel.close(PEER, how == How::Kill);
    stage.store(2, Order::SeqCst);
    was
}

/// Whether bytes of the survivor's are in the ring, or in the kernel's queue.
fn leaves_unread(world: &World) -> bool {
    let line = &world.slot.dir[SURVIVOR];
    let (tail, head) = (line.w.tail.load(Ordering::SeqCst) & POSITION, line.r.head.load(Ordering::SeqCst));
    tail > head || world.kernel.holds_bytes(PEER)
}

fn survive(world: &World, was: Tcp, how: How) {
    let mut tcp = was;
    // An idle peer is assumed alive for a short time only.
    world.view(SURVIVOR).wire.pause();
    for _ in 0..thread_rng().gen_range(1..8) {
        let before = tcp;
        match thread_rng().gen_range(0..3) {
            0 => assert_eq!(send(world, SURVIVOR), tcp.send(), "send, {how:?}, {was:?}, {before:?}\n{}", world.dump()),
            1 => {
                while receive_some(world, SURVIVOR) {}
                let result = receive_end(world);
                assert_eq!(result, tcp.receive(), "receive, {how:?}, {was:?}, {before:?}\n{}", world.dump());
            }
            _ => assert_eq!(events(world), tcp.events(), "poll, {how:?}, {was:?}, {before:?}\n{}", world.dump()),
        }
    }
}

// --- calls, as io makes them --------------------------------------------------------------------------------------------------

/// A send of one byte that does not wait.
fn send(world: &World, side: usize) -> Result<usize, Errno> {
    let v = world.view(side);
    let put = {
        let _lock = v.s.wlock.lock();
        advance(&v);
        let _ = v.switch();
        let next = byte(side, world.sent[side].load(Order::SeqCst));
        // SAFETY: a byte of our own; the span is space under the send lock.
        let copy = |span: &Span, _: usize| Ok(unsafe { span.copy_in(0, &raw const next, 1) });
        let put = v.put(Piece { left: 1, whole: true, more: false }, &Blocks { world, side, grows: false }, copy);
        if put == Put::Over {
            v.learn();
            v.finish_sending();
        }
        put
    };
    let result = match put {
        Put::Bytes(n, sleeper) => {
            world.sent[side].fetch_add(n as u64, Order::SeqCst);
            v.wake(sleeper);
            return Ok(n);
        }
        Put::Full => return Err(Errno::AGAIN),
        _ => send_plain(world, &v, side),
    };
    if result.is_ok() {
        world.sent[side].fetch_add(1, Order::SeqCst);
    }
    result
}

fn send_plain(world: &World, v: &View<'_, End<'_>>, side: usize) -> Result<usize, Errno> {
    if let Some(result) = v.s.send_result(1, false) {
        return result;
    }
    match world.kernel.send(side, &[byte(side, world.sent[side].load(Order::SeqCst))]) {
        Err(Errno::CONNRESET) => {
            v.saw_error(Errno::CONNRESET);
            v.s.send_result(1, false).unwrap_or(Err(Errno::CONNRESET))
        }
        result => result,
    }
}

/// Takes what there is; false: nothing.
fn receive_some(world: &World, side: usize) -> bool {
    let (v, reader) = (world.view(side), Reader { world, side });
    let _lock = v.reading();
    let took = match v.take(thread_rng().gen_range(1..9), &reader, || true) {
        // Only bytes here: `receive_end` reports the end.
        Took::Plain if world.kernel.holds_bytes(side) => receive_plain(world, &reader),
        took => took,
    };
    note(world, side, took);
    drop(_lock);
    if let Took::Bytes(_) = took {
        v.pay_space();
    }
    matches!(took, Took::Bytes(_))
}

fn receive_plain(world: &World, reader: &Reader<'_>) -> Took {
    use super::super::Taker;
    let _ = world;
    reader.kernel(0, 8).map_or(Took::Empty, Took::Bytes)
}

/// A receive where no byte is left.
fn receive_end(world: &World) -> Result<usize, Errno> {
    let (v, reader) = (world.view(SURVIVOR), Reader { world, side: SURVIVOR });
    loop {
        let took = {
            let _lock = v.reading();
            v.take(1, &reader, || true)
        };
        match took {
            Took::End => return v.ending(),
            Took::Plain if v.s.has_pending_error() => return v.ending(),
            Took::Plain => match world.kernel.receive(SURVIVOR, 1, |_| unreachable!("no byte is left")) {
                Err(Errno::CONNRESET) => {
                    v.saw_error(Errno::CONNRESET);
                    return v.ending();
                }
                Ok(0) => {
                    v.saw_end();
                    return v.ending();
                }
                result => panic!("{result:?}\n{}", world.dump()),
            },
            Took::Empty => world.idle(SURVIVOR, "the end"),
            took => panic!("{took:?}\n{}", world.dump()),
        }
        mortal::point();
    }
}

/// What poll(2) shows of the end: the kernel's answer, and then ours.
fn events(world: &World) -> u32 {
    use super::super::Health;
    let v = world.view(SURVIVOR);
    let result = match v.wire.health() {
        Health::Open => 0,
        Health::Ended => RDHUP,
        Health::Closed => RDHUP | HUP,
        Health::Broken => RDHUP | HUP | ERR,
    };
    v.s.kernel_events.fetch_or(result, Ordering::Relaxed);
    v.learn_end();
    v.s.end_events()
}
