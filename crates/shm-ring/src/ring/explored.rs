//! The ring and the express line under a scheduler that tries interleavings (`cargo test -p madrigal-shm-ring --features shuttle`).
//!
//! A doorbell is a message in a channel. After a lost wake-up a thread waits for one for ever, which the scheduler reports as a deadlock;
//! so the tests have no clock. Weaker orders than sequential consistency are not explored: those are miri's.

use shuttle::sync::Arc;
use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::thread;

use super::tests::{Ring, SECOND, stream};
use super::*;
use crate::express::Express;
use crate::layout::SMALL_RING;

fn explore(run: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(run.clone(), 3_000);
    shuttle::check_pct(run, 2_000, 3);
}

/// One side's doorbell: the peer rings it, and a sleeper waits for it.
struct Bells {
    mine: Receiver<()>,
    peers: Sender<()>,
}

fn bells() -> [Bells; 2] {
    let ((ring_a, a), (ring_b, b)) = (channel(), channel());
    [Bells { mine: a, peers: ring_b }, Bells { mine: b, peers: ring_a }]
}

impl Bells {
    fn ring(&self, owed: bool) {
        if owed {
            // A peer that is gone needs no bell.
            let _ = self.peers.send(());
        }
    }

    /// Sleeps until rung; false: no thread is left that could ring.
    fn sleep(&self) -> bool {
        self.mine.recv().is_ok()
    }
}

/// Writes all of the stream, sleeping where the ring is full; `grow_at`: moves to a larger block once so much is written. The bells
/// come back: a writer that is gone would wake its reader by that.
fn write_all(ring: &Ring, bells: Bells, total: u64, step: usize, grow_at: u64) -> Bells {
    let (mut at, mut size) = (0, SMALL_RING);
    while at < total {
        let what = if at >= grow_at && size == SMALL_RING { want::ALL } else { want::HALF };
        if what == want::ALL && ring.tx.unread(&ring.dir, &ring.mem) == Ok(0) {
            ring.tx.move_to(&ring.dir, SECOND);
            size = SECOND.size;
            continue;
        }
        let len = step.min((total - at) as usize);
        let n = if what == want::ALL { 0 } else { put(ring, &bells, at, len) };
        at += n as u64;
        if n == 0 && !ring.tx.want(&ring.dir, &ring.mem, what) && !bells.sleep() {
            panic!("the reader left");
        }
    }
    bells
}

fn put(ring: &Ring, bells: &Bells, at: u64, len: usize) -> usize {
    let (n, owed) = ring.write(&stream(at, len)).unwrap();
    bells.ring(owed);
    n
}

/// Reads until there were `total` bytes, or the ring is sealed, or the writer is gone and everything was read; how many bytes.
fn read_all(ring: &Ring, bells: &Bells, total: u64) -> u64 {
    let (mut at, mut buf) = (0, [0; 700]);
    while at < total {
        match ring.read(&mut buf) {
            Ok((0, owed)) => {
                bells.ring(owed);
                if !ring.rx.arm(&ring.dir) && !bells.sleep() && !ring.rx.stirred(&ring.dir) {
                    return at;
                }
            }
            Ok((n, owed)) => {
                assert_eq!(buf[..n], stream(at, n), "from byte {at} on");
                at += n as u64;
                bells.ring(owed);
            }
            Err(Trouble::Sealed) => return at,
            Err(other) => panic!("{other:?}"),
        }
    }
    at
}

#[test]
fn nobody_sleeps_for_ever_for_bytes_or_for_space() {
    explore(|| {
        const TOTAL: u64 = 4 * SMALL_RING as u64;
        let ring = Arc::new(Ring::new());
        let [near, far] = bells();
        let writer = thread::spawn({
            let ring = Arc::clone(&ring);
            move || write_all(&ring, near, TOTAL, 600, u64::MAX)
        });
        assert_eq!(read_all(&ring, &far, TOTAL), TOTAL);
        writer.join().unwrap();
    });
}

/// Held bytes become visible with those behind them, or all at once, and a sleeping reader is woken then.
#[test]
fn what_is_held_is_shown_in_one_moment() {
    explore(|| {
        const TOTAL: u64 = 800;
        let ring = Arc::new(Ring::new());
        let [near, far] = bells();
        let writer = thread::spawn({
            let ring = Arc::clone(&ring);
            move || {
                for at in (0..TOTAL).step_by(200) {
                    ring.hold(&stream(at, 100));
                    if at % 400 == 0 {
                        assert_eq!(put(&ring, &near, at + 100, 100), 100);
                    } else {
                        ring.hold(&stream(at + 100, 100));
                        near.ring(ring.tx.release(&ring.dir) != Sleeper::Nobody);
                    }
                }
                near
            }
        });
        let (mut at, mut buf) = (0, [0; 1024]);
        while at < TOTAL {
            let (n, _) = ring.read(&mut buf).unwrap();
            assert_eq!(n % 200, 0, "a part was shown");
            assert_eq!(buf[..n], stream(at, n));
            at += n as u64;
            if n == 0 && !ring.rx.arm(&ring.dir) {
                far.sleep();
            }
        }
        writer.join().unwrap();
    });
}

#[test]
fn growth_loses_nothing() {
    explore(|| {
        const TOTAL: u64 = 5 * SMALL_RING as u64;
        let ring = Arc::new(Ring::new());
        let [near, far] = bells();
        let writer = thread::spawn({
            let ring = Arc::clone(&ring);
            move || write_all(&ring, near, TOTAL, 900, SMALL_RING as u64)
        });
        assert_eq!(read_all(&ring, &far, TOTAL), TOTAL);
        writer.join().unwrap();
    });
}

#[test]
fn a_seal_cuts_at_one_place_for_both() {
    for by_reader in [false, true] {
        explore(move || {
            let ring = Arc::new(Ring::new());
            let [near, far] = bells();
            let sealer = thread::spawn({
                let ring = Arc::clone(&ring);
                move || if by_reader { ring.rx.seal(&ring.dir) } else { ring.tx.seal(&ring.dir) }
            });
            let writer = thread::spawn({
                let ring = Arc::clone(&ring);
                move || {
                    let mut at = 0;
                    while at < 500 {
                        match ring.write(&stream(at, 100)) {
                            Ok((n, owed)) => {
                                near.ring(owed);
                                at += n as u64;
                            }
                            Err(Trouble::Sealed) => break,
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                    at
                }
            });
            let read = read_all(&ring, &far, u64::MAX);
            sealer.join().unwrap();
            assert_eq!(read, writer.join().unwrap());
            assert!(ring.tx.is_sealed(&ring.dir));
        });
    }
}

#[test]
fn two_readers_of_one_direction_share_its_bytes() {
    explore(|| {
        let ring = Arc::new(Ring::new());
        ring.write(&stream(0, 300)).unwrap();
        ring.tx.seal(&ring.dir);
        let readers = [40, 70].map(|step| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let (mut got, mut buf) = (0, [0; 70]);
                loop {
                    let (span, n) = match ring.peek(&mut buf[..step]) {
                        Ok(seen) => seen,
                        Err(Trouble::Sealed) => return got,
                        Err(other) => panic!("{other:?}"),
                    };
                    if ring.rx.advance(&ring.dir, &span, n) == Ok(()) {
                        assert_eq!(buf[..n], stream(span.at, n));
                        got += n;
                    }
                }
            })
        });
        let got: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert_eq!(got, 300);
    });
}

/// Messages beside the ring and bytes in it are one stream, and a sleeper is woken by either.
#[test]
fn the_express_line_keeps_its_place_in_the_stream() {
    explore(|| {
        const TOTAL: u64 = 4 * 8;
        let ring = Arc::new(Ring::new());
        let express = Arc::new(Express::default());
        let [near, far] = bells();
        let writer = thread::spawn({
            let (ring, express) = (Arc::clone(&ring), Arc::clone(&express));
            move || {
                for at in (0..TOTAL).step_by(8) {
                    let (lane, bytes) = (express.lane(0), stream(at, 8));
                    if lane.is_free() {
                        near.ring(lane.put(ring.tx.position(), &bytes, &ring.dir.wake.armed));
                    } else {
                        assert_eq!(put(&ring, &near, at, 8), 8);
                    }
                }
                near
            }
        });
        let (mut at, lane, mut buf) = (0, express.lane(0), [0; 64]);
        while at < TOTAL {
            let span = ring.rx.data(&ring.dir, &ring.mem).unwrap();
            let message = lane.message();
            let before = message.map(|message| message.behind(ring.dir.r.head.load(Ordering::SeqCst)) as usize);
            let n = if let (Some(message), Some(0)) = (message, before) {
                let n = lane.copy_out(message, 0, &mut buf);
                lane.free();
                n
            } else {
                let limit = before.unwrap_or(usize::MAX).min(span.len());
                let n = ring.peek(&mut buf[..limit.min(64)]).unwrap().1;
                far.ring(ring.rx.consume(&ring.dir, &span, n).unwrap());
                n
            };
            assert_eq!(buf[..n], stream(at, n), "from byte {at} on");
            at += n as u64;
            if n == 0 && !ring.rx.arm(&ring.dir) && !lane.stirred_after_arm() {
                far.sleep();
            }
        }
        writer.join().unwrap();
    });
}

/// A thread asleep on two connections by one word: it is woken whichever of them has bytes.
#[test]
fn an_event_set_is_never_forgotten() {
    explore(|| {
        let rings = [Arc::new(Ring::new()), Arc::new(Ring::new())];
        rings.iter().for_each(|ring| _ = ring.rx.arm_for(&ring.dir, Sleeper::Nobody));
        let word = Arc::new(AtomicU32::new(0));
        let (bell, bells) = channel();
        let writers = rings.each_ref().map(|ring| {
            let (ring, word, bell) = (Arc::clone(ring), Arc::clone(&word), bell.clone());
            thread::spawn(move || {
                let (span, n) = ring.fill(b"x").unwrap();
                let sleeper = ring.tx.publish(&ring.dir, &span, n).unwrap();
                if sleeper == Sleeper::Set(0) && word.swap(0, Ordering::SeqCst) == 1 {
                    bell.send(()).unwrap();
                }
            })
        });
        let mut read = 0;
        while read < 2 {
            read += rings.iter().map(|ring| ring.read(&mut [0; 9]).unwrap().0).sum::<usize>();
            word.store(1, Ordering::SeqCst);
            let stirred = rings.each_ref().map(|ring| ring.rx.arm_for(&ring.dir, Sleeper::Set(0)));
            if read < 2 && stirred == [false; 2] {
                bells.recv().unwrap();
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}

/// The same where one of the writers holds its bytes back: the set knows of them before it sleeps, or is woken, though another bell has
/// taken its word.
#[test]
fn an_event_set_hears_of_what_is_held() {
    explore(|| {
        let rings = [Arc::new(Ring::new()), Arc::new(Ring::new())];
        rings.iter().for_each(|ring| _ = ring.rx.arm_for(&ring.dir, Sleeper::Nobody));
        let word = Arc::new(AtomicU32::new(0));
        let (bell, bells) = channel();
        let writers = [true, false].map(|holds| {
            let (ring, word, bell) = (Arc::clone(&rings[usize::from(holds)]), Arc::clone(&word), bell.clone());
            thread::spawn(move || {
                let rings = if holds {
                    ring.hold(b"x") != Sleeper::Nobody && word.load(Ordering::SeqCst) != 0
                } else {
                    let (span, n) = ring.fill(b"x").unwrap();
                    let sleeper = ring.tx.publish(&ring.dir, &span, n).unwrap();
                    sleeper != Sleeper::Nobody && word.swap(0, Ordering::SeqCst) == 1
                };
                if rings {
                    bell.send(()).unwrap();
                }
            })
        });
        let (mut read, mut sees_held) = (0, false);
        while read < 1 || !sees_held {
            read += rings[0].read(&mut [0; 9]).unwrap().0;
            word.store(1, Ordering::SeqCst);
            let stirred = rings.each_ref().map(|ring| ring.rx.arm_for(&ring.dir, Sleeper::Set(0)));
            let is_held = rings[1].rx.held_for(&rings[1].dir).is_some();
            if stirred == [false; 2] && is_held == sees_held && (read < 1 || !sees_held) {
                bells.recv().unwrap();
            }
            sees_held |= is_held;
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
}
