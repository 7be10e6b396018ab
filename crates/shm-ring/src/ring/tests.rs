//! The ring against what it promises: examples, a model, a peer that writes whatever it likes, and two threads.
//!
//! All of it runs under miri too (`cargo +nightly miri test -p madrigal-shm-ring --lib ring::`), with fewer cases; how the two sides
//! interleave is explored in [`explored`](super::explored).

use core::alloc::Layout;

use super::*;
use crate::layout::SMALL_RING;

/// Bytes of the memory blocks lie in.
const LEN: usize = 16 << 10;
const FIRST: Block = Block { offset: 2048, size: SMALL_RING };
pub(super) const SECOND: Block = Block { offset: 4096, size: 4096 };

#[cfg(not(feature = "shuttle"))]
fn config(cases: u32) -> proptest::prelude::ProptestConfig {
    let cases = if cfg!(miri) { 6 } else { cases };
    proptest::prelude::ProptestConfig { failure_persistence: None, cases, ..Default::default() }
}

/// A direction, memory of its own, and both ends.
pub(super) struct Ring {
    base: *mut u8,
    pub(super) mem: Memory,
    pub(super) dir: Direction,
    pub(super) tx: Producer,
    pub(super) rx: Consumer,
}

// SAFETY: `base` is only used to free the memory; everything else is `Sync` by itself.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    pub(super) fn new() -> Self {
        let layout = Layout::from_size_align(LEN, 64).unwrap();
        // SAFETY: the layout has a size.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!base.is_null());
        // SAFETY: just allocated, and freed when the ring is dropped.
        let mem = unsafe { Memory::new(base, LEN) };
        let ring = Self { base, mem, dir: Direction::default(), tx: Producer::default(), rx: Consumer };
        ring.dir.reset();
        ring.tx.open(&ring.dir, FIRST);
        ring
    }

    /// Copies into free space without publishing; how many bytes fitted.
    pub(super) fn fill(&self, bytes: &[u8]) -> Result<(Span, usize), Trouble> {
        let span = self.tx.space(&self.dir, &self.mem, 1)?;
        self.assert_inside(&span);
        // SAFETY: `bytes` is readable for its length; the span was just given.
        let n = unsafe { span.copy_in(0, bytes.as_ptr(), bytes.len()) };
        Ok((span, n))
    }

    /// Writes what fits; how many bytes, and whether a doorbell is owed.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(usize, bool), Trouble> {
        let (span, n) = self.fill(bytes)?;
        Ok((n, self.tx.publish(&self.dir, &span, n)? != Sleeper::Nobody))
    }

    /// Writes all of this, held back.
    pub(super) fn hold(&self, bytes: &[u8]) -> Sleeper {
        let (span, n) = self.fill(bytes).unwrap();
        assert_eq!(n, bytes.len());
        self.tx.hold(&self.dir, &span, n).unwrap()
    }

    /// Copies out without consuming.
    pub(super) fn peek(&self, buf: &mut [u8]) -> Result<(Span, usize), Trouble> {
        let span = self.rx.data(&self.dir, &self.mem)?;
        self.assert_inside(&span);
        // SAFETY: `buf` is writable for its length; the span was just given.
        let n = unsafe { span.copy_out(0, buf.as_mut_ptr(), buf.len()) };
        Ok((span, n))
    }

    /// Reads what there is; how many bytes, and whether a doorbell is owed.
    pub(super) fn read(&self, buf: &mut [u8]) -> Result<(usize, bool), Trouble> {
        let (span, n) = self.peek(buf)?;
        Ok((n, self.rx.consume(&self.dir, &span, n)?))
    }

    fn assert_inside(&self, span: &Span) {
        let (from, to) = (self.base as usize, self.base as usize + LEN);
        for (at, len) in span.pieces().map(|(at, len)| (at as usize, len)).into_iter().filter(|(_, len)| *len > 0) {
            assert!(from <= at && at.checked_add(len).is_some_and(|end| end <= to), "outside the memory");
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; no span is left.
        unsafe { std::alloc::dealloc(self.base, Layout::from_size_align(LEN, 64).unwrap()) };
    }
}

/// The `len` bytes of the test stream from `at` on.
pub(super) fn stream(at: u64, len: usize) -> Vec<u8> {
    (at..).take(len).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

#[cfg(not(feature = "shuttle"))]
mod examples {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in_round_and_round() {
        let ring = Ring::new();
        let (mut at, mut buf) = (0, [0; 700]);
        while at < 10 * SMALL_RING as u64 {
            assert_eq!(ring.write(&stream(at, 700)).unwrap().0, 700);
            assert_eq!(ring.read(&mut buf).unwrap().0, 700);
            assert_eq!(buf[..], stream(at, 700));
            at += 700;
        }
        assert_eq!(ring.read(&mut buf).unwrap().0, 0);
    }

    #[test]
    fn a_full_ring_gives_space_again_when_half_is_free() {
        let ring = Ring::new();
        assert_eq!(ring.write(&[1; 2000]).unwrap().0, SMALL_RING);
        assert_eq!(ring.write(&[2; 1]).unwrap().0, 0);
        assert_eq!(ring.read(&mut [0; SMALL_RING / 2 - 1]).unwrap().0, SMALL_RING / 2 - 1);
        assert_eq!(ring.write(&[2; 1]).unwrap().0, 0);
        assert_eq!(ring.read(&mut [0; 1]).unwrap().0, 1);
        assert_eq!(ring.write(&[2; 2000]).unwrap().0, SMALL_RING / 2);
    }

    #[test]
    fn held_bytes_are_shown_with_what_follows() {
        let (ring, mut buf) = (Ring::new(), [0; 700]);
        ring.write(&stream(0, 10)).unwrap();
        assert!(!ring.rx.arm(&ring.dir) || ring.read(&mut buf).unwrap().0 == 10);
        ring.rx.arm(&ring.dir);
        assert!(ring.hold(&stream(10, 20)) != Sleeper::Nobody, "somebody sleeps");
        assert!(ring.hold(&stream(30, 20)) == Sleeper::Nobody, "and knows");
        assert_eq!((ring.read(&mut buf).unwrap().0, ring.rx.waiting(&ring.dir), ring.tx.held(&ring.dir)), (0, 0, 40));
        assert!(!ring.rx.stirred(&ring.dir) && ring.rx.held_for(&ring.dir).is_some());
        assert_eq!(ring.write(&stream(50, 30)).unwrap(), (30, true));
        assert_eq!((ring.read(&mut buf).unwrap().0, ring.tx.held(&ring.dir)), (70, 0));
        assert_eq!(buf[..70], stream(10, 70));
        assert_eq!(ring.rx.held_for(&ring.dir), None);
    }

    #[test]
    fn held_bytes_are_shown_by_a_release_a_seal_or_the_reader() {
        let shown: [fn(&Ring); 5] = [
            |ring| assert_eq!(ring.tx.release(&ring.dir), Sleeper::Own),
            |ring| ring.tx.seal(&ring.dir),
            |ring| ring.rx.seal(&ring.dir),
            |ring| ring.rx.show_all(&ring.dir),
            |ring| ring.dir.wake.held_since.store(0, Ordering::SeqCst),
        ];
        for show in shown {
            let (ring, mut buf) = (Ring::new(), [0; 700]);
            ring.hold(&stream(0, 20));
            assert_eq!(ring.read(&mut buf).unwrap().0, 0);
            show(&ring);
            assert_eq!(ring.read(&mut buf).unwrap().0, 20);
            if !ring.tx.is_sealed(&ring.dir) {
                // The writer goes on, whichever side has shown them.
                ring.hold(&stream(20, 20));
                assert_eq!(ring.read(&mut buf).unwrap().0, 0);
                assert_eq!(ring.write(&stream(40, 5)).unwrap().0, 5);
                assert_eq!(ring.read(&mut buf).unwrap().0, 25);
            }
        }
    }

    #[test]
    fn a_part_of_what_is_held_can_be_shown() {
        let (ring, mut buf) = (Ring::new(), [0; 700]);
        ring.hold(&stream(0, 100));
        assert_eq!(ring.tx.show(&ring.dir, 60), Sleeper::Own);
        assert_eq!((ring.read(&mut buf).unwrap().0, ring.tx.held(&ring.dir)), (60, 40));
        // A peer that writes nonsense there hides nothing that was read, and shows nothing that is not there.
        ring.dir.wake.held_from.store(0, Ordering::SeqCst);
        assert_eq!(ring.read(&mut buf).unwrap().0, 0);
        ring.dir.wake.held_from.store(u64::MAX, Ordering::SeqCst);
        assert_eq!(ring.read(&mut buf).unwrap().0, 40);
    }

    #[test]
    fn a_copy_somebody_overtook_is_refused() {
        let ring = Ring::new();
        let (span, n) = ring.fill(b"abcd").unwrap();
        assert_eq!(ring.tx.publish(&ring.dir, &span, n), Ok(Sleeper::Own));
        assert_eq!(ring.tx.publish(&ring.dir, &span, n), Err(Trouble::Raced));
        let mut buf = [0; 4];
        let (span, n) = ring.peek(&mut buf).unwrap();
        assert_eq!(ring.rx.advance(&ring.dir, &span, n), Ok(()));
        assert_eq!(ring.rx.advance(&ring.dir, &span, n), Err(Trouble::Raced));
        assert_eq!((&buf, ring.rx.waiting(&ring.dir)), (b"abcd", 0));
    }

    #[test]
    fn a_seal_keeps_what_was_published_and_nothing_else() {
        for by_reader in [false, true] {
            let ring = Ring::new();
            ring.write(b"before").unwrap();
            let (span, n) = ring.fill(b"too late").unwrap();
            if by_reader {
                ring.rx.seal(&ring.dir)
            } else {
                ring.tx.seal(&ring.dir)
            }
            assert_eq!(ring.tx.publish(&ring.dir, &span, n), Err(Trouble::Sealed));
            assert!(ring.tx.is_sealed(&ring.dir) && ring.rx.stirred(&ring.dir));
            let mut buf = [0; 20];
            assert_eq!(ring.read(&mut buf).unwrap().0, 6);
            assert_eq!(ring.read(&mut buf), Err(Trouble::Sealed));
        }
    }

    /// A reader that has sealed moves its position first and copies then, to give the bytes to another one.
    #[test]
    fn a_sealed_ring_has_no_space() {
        let ring = Ring::new();
        ring.write(&stream(0, 60)).unwrap();
        ring.rx.seal(&ring.dir);
        let span = ring.rx.data(&ring.dir, &ring.mem).unwrap();
        ring.rx.advance(&ring.dir, &span, span.len()).unwrap();
        assert_eq!(ring.tx.unread(&ring.dir, &ring.mem), Ok(0));
        assert_eq!(ring.fill(&[0; 1000]).err(), Some(Trouble::Sealed));
    }

    #[test]
    fn who_arms_is_owed_one_bell() {
        let ring = Ring::new();
        // A fresh direction is armed.
        assert!(ring.write(b"1").unwrap().1 && !ring.write(b"2").unwrap().1);
        assert!(ring.rx.arm(&ring.dir), "there is something to look at");
        assert_eq!(ring.read(&mut [0; 9]), Ok((2, false)));
        assert!(!ring.rx.arm(&ring.dir));
        assert!(ring.write(b"3").unwrap().1 && !ring.rx.is_armed(&ring.dir));
    }

    #[test]
    fn a_bell_is_for_who_armed_last() {
        let ring = Ring::new();
        for sleeper in [Sleeper::Set(0), Sleeper::Own, Sleeper::Set(63), Sleeper::Nobody] {
            ring.rx.arm_for(&ring.dir, sleeper);
            let (span, n) = ring.fill(b"x").unwrap();
            assert_eq!(ring.tx.publish(&ring.dir, &span, n), Ok(sleeper));
        }
    }

    #[test]
    fn who_wants_space_is_owed_one_bell_when_there_is() {
        for (what, rest) in [(want::HALF, SMALL_RING / 2), (want::ALL, 0)] {
            let ring = Ring::new();
            assert_eq!(ring.write(&[0; SMALL_RING]).unwrap().0, SMALL_RING);
            assert_eq!(ring.write(&[0; 1]).unwrap().0, 0);
            assert!(!ring.tx.want(&ring.dir, &ring.mem, what));
            assert_eq!(ring.read(&mut vec![0; SMALL_RING - rest - 1]).unwrap(), (SMALL_RING - rest - 1, false));
            assert_eq!(ring.read(&mut [0; 1]), Ok((1, true)));
            assert!(ring.tx.has_room(&ring.dir, &ring.mem, what));
            assert!(!ring.rx.owes_space(&ring.dir));
        }
    }

    #[test]
    fn the_stream_goes_on_in_another_block() {
        let ring = Ring::new();
        ring.write(b"in the first").unwrap();
        ring.read(&mut [0; 12]).unwrap();
        ring.tx.move_to(&ring.dir, SECOND);
        let (n, _) = ring.write(&stream(0, 5000)).unwrap();
        // It loads the reader's position only when it must.
        assert_eq!(n, SECOND.size - 12);
        let mut buf = [0; 5000];
        assert_eq!(ring.read(&mut buf).unwrap().0, n);
        assert_eq!(buf[..n], stream(0, n));
    }

    #[test]
    fn two_threads_pass_a_stream_through_both_blocks() {
        const TOTAL: u64 = if cfg!(miri) { 6_000 } else { 3_000_000 };
        let ring = Ring::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut at, mut moved) = (0, false);
                while at < TOTAL {
                    if !moved && at > TOTAL / 2 && ring.tx.unread(&ring.dir, &ring.mem) == Ok(0) {
                        ring.tx.move_to(&ring.dir, SECOND);
                        moved = true;
                    }
                    let len = (TOTAL - at).min(1 + at % 601) as usize;
                    at += ring.write(&stream(at, len)).unwrap().0 as u64;
                    std::thread::yield_now();
                }
                ring.tx.seal(&ring.dir);
            });
            let (mut at, mut buf) = (0, [0; 997]);
            while let Ok((n, _)) = ring.read(&mut buf) {
                assert_eq!(buf[..n], stream(at, n), "from byte {at} on");
                at += n as u64;
                std::thread::yield_now();
            }
            assert_eq!(at, TOTAL);
        });
    }
}

#[cfg(not(feature = "shuttle"))]
mod model {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// What either side may do next.
    #[derive(Clone, Debug)]
    enum Step {
        Write(usize),
        Read(usize),
        Arm,
        Want(u32),
        Grow,
        Seal(bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..3000usize).prop_map(Step::Write),
            8 => (0..3000usize).prop_map(Step::Read),
            3 => Just(Step::Arm),
            3 => (1..3u32).prop_map(Step::Want),
            1 => Just(Step::Grow),
            1 => any::<bool>().prop_map(Step::Seal),
        ]
    }

    /// What should be so.
    #[derive(Default)]
    struct Model {
        bytes: VecDeque<u8>,
        written: u64,
        size: usize,
        full: bool,
        sealed: bool,
        armed: bool,
        want: u32,
    }

    impl Model {
        fn take(&mut self, ring: &Ring, len: usize) {
            if self.sealed && self.bytes.is_empty() {
                assert_eq!(ring.read(&mut vec![0; len]), Err(Trouble::Sealed));
                return;
            }
            let mut buf = vec![0; len];
            let (n, bell) = ring.read(&mut buf).unwrap();
            assert_eq!(n, len.min(self.bytes.len()));
            assert!(self.bytes.drain(..n).eq(buf[..n].iter().copied()));
            let due = match self.want {
                want::NOTHING => false,
                want::ALL => self.bytes.is_empty(),
                _ => self.bytes.len() <= self.size / 2,
            };
            assert_eq!(bell, due);
            self.want = if due { want::NOTHING } else { self.want };
        }

        fn put(&mut self, ring: &Ring, len: usize) {
            let bytes = stream(self.written, len);
            if self.sealed {
                assert!(matches!(ring.write(&bytes), Err(Trouble::Sealed)));
                return;
            }
            let limit = if self.full { self.size / 2 + 1 } else { self.size };
            self.full = self.bytes.len() >= limit;
            let (n, bell) = ring.write(&bytes).unwrap();
            let room = if self.full { 0 } else { self.size - self.bytes.len() };
            // It need not load `head` while it knows of room, so it may know of less than there is.
            assert!(n <= room.min(len) && (n > 0 || len == 0 || room == 0), "{n} of {len} into {room}");
            self.bytes.extend(&bytes[..n]);
            self.written += n as u64;
            assert_eq!(bell, self.armed);
            self.armed = false;
        }

        fn step(&mut self, ring: &Ring, step: &Step) {
            match *step {
                Step::Write(len) => self.put(ring, len),
                Step::Read(len) => self.take(ring, len),
                Step::Arm => {
                    assert_eq!(ring.rx.arm(&ring.dir), self.sealed || !self.bytes.is_empty());
                    self.armed = true;
                }
                Step::Want(what) => {
                    let limit = if self.full { self.size / 2 + 1 } else { self.size };
                    let room = if what == want::ALL { self.bytes.is_empty() } else { self.bytes.len() < limit };
                    assert_eq!(ring.tx.want(&ring.dir, &ring.mem, what), room);
                    self.want = what;
                }
                Step::Grow if self.bytes.is_empty() => {
                    ring.tx.move_to(&ring.dir, SECOND);
                    (self.size, self.full) = (SECOND.size, false);
                }
                Step::Grow => {}
                Step::Seal(by_reader) => {
                    if by_reader {
                        ring.rx.seal(&ring.dir)
                    } else {
                        ring.tx.seal(&ring.dir)
                    }
                    self.sealed = true;
                }
            }
            assert_eq!(ring.rx.waiting(&ring.dir), self.bytes.len() as u64);
        }
    }

    proptest! {
        #![proptest_config(config(2_000))]

        #[test]
        #[cfg_attr(miri, ignore = "slow, and touches no memory the others do not")]
        fn any_sequence_of_calls_does_what_the_model_does(steps in prop::collection::vec(step(), 1..60)) {
            let ring = Ring::new();
            let mut model = Model { size: FIRST.size, armed: true, ..Model::default() };
            for step in &steps {
                model.step(&ring, step);
            }
        }
    }
}

#[cfg(not(feature = "shuttle"))]
mod hostile {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::LARGEST_LOG;

    /// Values more likely to do harm than any others.
    fn garbage() -> impl Strategy<Value = u64> {
        let block = |offset: usize, log: u64| (offset as u64 >> 10) << 8 | log;
        prop_oneof![
            3 => any::<u64>(),
            3 => 0..4 * LEN as u64,
            1 => (0..64u64).prop_map(|shift| 1 << shift),
            1 => (0..5000u64).prop_map(|less| u64::MAX - less),
            1 => (0..5000u64).prop_map(|less| POSITION - less),
            2 => (0..2 * LEN, 0..70u64).prop_map(move |(offset, log)| block(offset, log)),
        ]
    }

    fn scribble(dir: &Direction, at: usize, value: u64) {
        let words = [&dir.w.tail, &dir.w.block, &dir.w.n_kernel, &dir.w.bells, &dir.r.head, &dir.r.ready];
        let halves = [&dir.w.state, &dir.w.ringing, &dir.w.fate, &dir.wake.armed, &dir.wake.want, &dir.wake.gate];
        match at % 12 {
            at @ 0..6 => words[at].store(value, Ordering::SeqCst),
            at => halves[at - 6].store(value as u32, Ordering::SeqCst),
        }
    }

    proptest! {
        #![proptest_config(config(5_000))]

        /// A peer that writes anything anywhere, between any two steps: no panic, and every span lies inside the memory
        /// (`fill` and `peek` see to that; under miri every byte touched does).
        #[test]
        fn no_word_of_the_peer_leads_outside(
            steps in prop::collection::vec((0..12usize, garbage(), 0..8u8, 0..3000usize), 1..40)
        ) {
            let ring = Ring::new();
            for (at, value, call, len) in steps {
                scribble(&ring.dir, at, value);
                match call {
                    0 | 1 => drop(ring.write(&vec![7; len])),
                    2 | 3 => drop(ring.read(&mut vec![0; len])),
                    4 => _ = ring.rx.arm(&ring.dir) | ring.rx.stirred(&ring.dir) | ring.rx.owes_space(&ring.dir),
                    5 => _ = ring.tx.want(&ring.dir, &ring.mem, value as u32) | ring.tx.behind(&ring.dir) | ring.tx.is_read(&ring.dir, value as u32),
                    6 => _ = (ring.tx.unread(&ring.dir, &ring.mem), ring.rx.waiting(&ring.dir)),
                    _ => ring.tx.move_to(&ring.dir, SECOND),
                }
            }
        }

        #[test]
        fn a_reader_has_caught_up_where_it_says_so(
            position in 0..POSITION, unread in 0..=1u64 << LARGEST_LOG, cpu in 0..1u32 << 12
        ) {
            let word = Progress { cpu, read: position.saturating_sub(unread) }.pack();
            prop_assert_eq!(Progress::is_read(word, position), unread.min(position) == 0);
            prop_assert!([0, cpu].contains(&Progress::cpu_in(word)) && (cpu > 2000 || Progress::cpu_in(word) == cpu));
        }

        #[test]
        fn a_block_that_unpacks_lies_inside(word in garbage(), len in 0..4 * LEN) {
            if let Some(block) = Block::unpack(word, len) {
                prop_assert!(block.size.is_power_of_two() && block.offset + block.size <= len);
                prop_assert_eq!(Block::unpack(block.pack(), len), Some(block));
            }
        }
    }
}
