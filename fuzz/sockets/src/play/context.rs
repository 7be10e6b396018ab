//! The context of a step: the record it fills, and what its bytes must be.

use core::sync::atomic::Ordering;

use madrigal_fuzz_sockets::op::Slot;
use madrigal_fuzz_sockets::pattern::{self, LANES};
use madrigal_fuzz_sockets::share::{Record, Stream};

use crate::{c, signals, state};

/// The context of one step.
#[derive(Clone, Copy)]
pub(crate) struct StepContext {
    /// The actor that makes it.
    pub(crate) actor: u8,
    /// Which it is.
    pub(crate) step: usize,
    /// What it gives.
    pub(crate) record: &'static Record,
}

/// The result of a call, and the errno if it failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    pub(crate) ret: i64,
    pub(crate) errno: i32,
}

/// Makes a call of the C library.
pub(crate) fn call<T: Into<i64>>(f: impl FnOnce() -> T) -> Answer {
    c::set_errno(0);
    let ret = f().into();
    Answer { ret, errno: if ret < 0 { c::errno() } else { 0 } }
}

/// The same for a call that counts in `isize`.
pub(crate) fn count(f: impl FnOnce() -> isize) -> Answer {
    call(|| f() as i64)
}

/// How a loop ended, in the record's further results.
pub(crate) mod ending {
    /// It has all it wanted.
    pub(crate) const FULL: u64 = 0;
    /// The stream ended.
    pub(crate) const END: u64 = 1;
    /// Nothing more is there.
    pub(crate) const EMPTY: u64 = 2;
    /// An error: this plus its errno.
    pub(crate) const ERROR: u64 = 1000;
    /// The step has left signals blocked, or unblocked, that were not.
    pub(crate) const BLOCKED: u64 = 0xb10c;
}

impl StepContext {
    /// The context of this step, made by this actor.
    pub(crate) fn new(actor: u8, step: usize) -> Self {
        Self { actor, step, record: &state::state().region.records[step] }
    }

    /// The same for a call without side results.
    pub(crate) fn aside(&self) -> Self {
        static ASIDE: Record = Record::new();
        Self { record: &ASIDE, ..*self }
    }

    /// Makes the step's call and keeps what it gave.
    pub(crate) fn call<T: Into<i64>>(&self, f: impl FnOnce() -> T) -> Answer {
        let before = signals::count();
        let answer = call(f);
        self.record.signals.store(signals::count() - before, Ordering::Relaxed);
        self.keep(answer);
        answer
    }

    /// Keeps what a call gave.
    pub(crate) fn keep(&self, answer: Answer) {
        self.record.set(answer.ret, answer.errno);
    }

    /// Keeps a side result: the value, or the errno with a mark.
    pub(crate) fn note(&self, answer: Answer) {
        self.record.add(if answer.ret < 0 { ending::ERROR + answer.errno as u64 } else { answer.ret as u64 });
    }

    /// Keeps a new descriptor in a slot.
    pub(crate) fn open(&self, slot: Slot, answer: Answer) {
        if answer.ret >= 0 {
            state::set_fd(slot, answer.ret as i32);
        }
    }

    /// The bytes that the slot's end sends next, in this lane.
    pub(crate) fn prepare(&self, slot: Slot, lane: usize, into: &mut [u8]) {
        let stream = state::state().program.out(slot);
        if let Some(state) = stream_of(stream) {
            pattern::fill(u32::from(stream), lane, state.sent[lane].load(Ordering::SeqCst), into);
        }
    }

    /// So many bytes were sent.
    pub(crate) fn sent(&self, slot: Slot, lane: usize, n: usize) {
        if let Some(stream) = stream_of(state::state().program.out(slot)) {
            stream.sent[lane].fetch_add(n as u64, Ordering::SeqCst);
        }
    }

    /// Keeps what was received, and compares it with what must come. `taken`: it is gone from the socket now.
    pub(crate) fn received(&self, slot: Slot, data: &[u8], taken: bool) {
        self.record.bytes.store(data.len() as u64, Ordering::Relaxed);
        self.record.hash.store(pattern::hash(data), Ordering::Relaxed);
        let mut first = [0; 16];
        let shown = data.len().min(16);
        first[..shown].copy_from_slice(&data[..shown]);
        for (word, bytes) in self.record.first.iter().zip(first.chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().unwrap_or_default()), Ordering::Relaxed);
        }
        self.check(slot, data, taken);
    }

    /// Compares bytes with what must come, and counts them if they are `taken`.
    pub(crate) fn check(&self, slot: Slot, data: &[u8], taken: bool) {
        let number = state::state().program.incoming(slot);
        let Some(stream) = stream_of(number) else { return };
        if stream.blind.load(Ordering::SeqCst) != 0 {
            return;
        }
        let mut positions: [u64; LANES] = core::array::from_fn(|lane| stream.got[lane].load(Ordering::SeqCst));
        if let Some(wrong) = pattern::first_wrong(u32::from(number), &mut positions, data)
            && self.record.wrong.load(Ordering::Relaxed) == 0
        {
            self.record.wrong.store(wrong as u64 + 1, Ordering::Relaxed);
        }
        if taken {
            for (got, position) in stream.got.iter().zip(positions) {
                got.store(position, Ordering::SeqCst);
            }
        }
    }

    /// From now on the bytes from this slot's end are not known.
    pub(crate) fn blind(&self, slot: Slot) {
        if let Some(stream) = stream_of(state::state().program.out(slot)) {
            stream.blind.store(1, Ordering::SeqCst);
        }
    }

    /// So many bytes are gone without a check: of the main lane, or of unknown lanes.
    pub(crate) fn skipped(&self, slot: Slot, n: usize) {
        let program = &state::state().program;
        let number = program.incoming(slot);
        let Some(stream) = stream_of(number) else { return };
        if program.handlers_send_on(number) {
            stream.blind.store(1, Ordering::SeqCst);
        }
        stream.got[0].fetch_add(n as u64, Ordering::SeqCst);
    }
}

/// A stream by its number.
pub(crate) fn stream_of(number: u8) -> Option<&'static Stream> {
    state::state().region.streams.get(number as usize)
}
