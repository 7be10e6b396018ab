//! Both directions of a link, notices and sleep, under a scheduler that tries interleavings (`cargo test -p madrigal-drivers
//! --features shuttle`).
//!
//! A doorbell is a message in a channel. After a lost wake-up a thread waits for one for ever, which the scheduler reports as a deadlock;
//! so the tests have no clock. Weaker orders than sequential consistency are not explored: those are miri's.

use std::io::IoSlice;

use madrigal_base::node::NodeId;
use madrigal_progress::message::{LinkError, LinkIndex, Placement, Sent, Sink};
use madrigal_sys::piece::Piece;
use shuttle::sync::Arc;
use shuttle::sync::mpsc::{Receiver, Sender, channel};
use shuttle::thread;

use super::layout::NotificationPage;
use super::notice::{listen, owes};
use super::pair::Pair;
use super::reader::Reader;
use super::writer::Writer;

fn explore(run: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(run.clone(), 3_000);
    shuttle::check_pct(run, 2_000, 3);
}

/// Frames each side sends.
const FRAMES: usize = 14;
/// Bodies: one cell, several, a part of the bulk ring, and several parts.
const SIZES: [usize; 7] = [8, 8, 70, 0, 8, 200, 20_000];

/// A port with one link.
struct Side {
    pair: Arc<Pair>,
    side: usize,
    pages: [Arc<NotificationPage>; 2],
    bells: Receiver<()>,
    peers: Sender<()>,
    writer: Writer,
    reader: Reader,
    has_line: bool,
    recorder: Recorder,
}

#[derive(Default)]
struct Recorder {
    frames: usize,
    memory: Vec<u8>,
}

impl Recorder {
    fn check(&mut self, head: &[u8], body: &[u8]) {
        assert_eq!(head, [self.frames as u8]);
        assert!(body.len() == SIZES[self.frames % SIZES.len()] && body.iter().all(|b| *b == self.frames as u8));
        self.frames += 1;
    }
}

impl Sink for Recorder {
    fn up(&mut self, _: LinkIndex, _: NodeId) {}
    fn down(&mut self, _: LinkIndex, _: LinkError) {}
    fn frame(&mut self, _: LinkIndex, head: &[u8], body: &[u8]) {
        self.check(head, body);
    }
    fn place(&mut self, _: LinkIndex, _: &[u8], len: usize, placement: &mut Placement) {
        self.memory = vec![0; len];
        // SAFETY: no other code touches it until `arrived`.
        placement.push(unsafe { Piece::lend(self.memory.as_mut_ptr(), len) });
    }
    fn arrived(&mut self, _: LinkIndex, head: &[u8]) {
        let body = core::mem::take(&mut self.memory);
        self.check(head, &body);
    }
}

impl Side {
    fn notify(&self, owed: bool) {
        if owed && self.pages[1 - self.side].post(0) {
            // A peer that is done needs no bell.
            let _ = self.peers.send(());
        }
    }

    /// Sends and receives everything; sleeps where nothing can be done. `watches`: whether it polls meanwhile, or acts on notices only.
    fn run(mut self, watches: bool) {
        let (mut sent, mut skip, mut notified) = (0, 0, true);
        while sent < FRAMES || self.recorder.frames < FRAMES {
            let (before, blocked) = ((sent, skip, self.recorder.frames), self.send(&mut sent, &mut skip));
            if watches || notified {
                self.visit();
            }
            if before == (sent, skip, self.recorder.frames) {
                notified = self.sleep(blocked);
            }
        }
    }

    /// Sends what it can of the next frame; true: there is no room.
    fn send(&mut self, sent: &mut usize, skip: &mut usize) -> bool {
        if *sent == FRAMES {
            return false;
        }
        let body = vec![*sent as u8; SIZES[*sent % SIZES.len()]];
        let pieces = [IoSlice::new(&body)];
        let result = self.writer.send(&self.pair, &mut self.has_line, &[*sent as u8], &pieces, *skip).unwrap();
        self.notify(owes(&self.pair.direction(self.side).wake.notice));
        match result {
            Sent::All => (*sent, *skip) = (*sent + 1, 0),
            Sent::Part(n) => *skip += n,
        }
        result == Sent::Part(0)
    }

    fn visit(&mut self) {
        while let Some(found) = self.reader.peek(&self.pair, self.has_line) {
            self.reader.take(&self.pair, &found, &mut self.has_line, LinkIndex(0), &mut self.recorder).unwrap();
        }
        if core::mem::take(&mut self.reader.gave_room) {
            self.notify(owes(&self.pair.direction(1 - self.side).want.want));
        }
    }

    /// Sleeps until something may be there; whether that is known.
    fn sleep(&mut self, blocked: bool) -> bool {
        let (mine, theirs) = (self.side, 1 - self.side);
        let (pair, reader, has_line) = (&self.pair, &self.reader, self.has_line);
        if listen(&pair.direction(theirs).wake.notice, || reader.peek(pair, has_line).is_some()) {
            return true;
        }
        if blocked && listen(&pair.direction(mine).want.want, || self.writer.has_room(pair)) {
            return false;
        }
        let page = &self.pages[mine];
        if !page.sleep() {
            self.bells.recv().expect("the peer rings before it ends, if it owes a bell");
        }
        page.wake();
        let mut notified = false;
        page.take(|_| notified = true);
        notified
    }
}

fn sides() -> [Side; 2] {
    let pair = Arc::new(Pair::local());
    let pages = [Arc::new(NotificationPage::default()), Arc::new(NotificationPage::default())];
    let ((ring_a, a), (ring_b, b)) = (channel(), channel());
    let side = |side: usize, bells, peers| Side {
        pair: Arc::clone(&pair),
        side,
        pages: pages.clone(),
        bells,
        peers,
        writer: Writer::new(side),
        reader: Reader::new(1 - side),
        has_line: side == 0,
        recorder: Recorder::default(),
    };
    [side(0, a, ring_b), side(1, b, ring_a)]
}

#[test]
fn nobody_sleeps_for_ever_for_frames_or_for_room() {
    for watches in [true, false] {
        explore(move || {
            let [near, far] = sides();
            let there = thread::spawn(move || near.run(watches));
            far.run(watches);
            there.join().unwrap();
        });
    }
}
