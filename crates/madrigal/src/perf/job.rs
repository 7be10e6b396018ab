//! What both sides of a ping-pong do, and the bare line that it is held against.

use core::sync::atomic::{AtomicU64, Ordering};
use std::process::{Child, Command};

use madrigal_base::error::Os;
use madrigal_shm_ring::arena::Arena;
use madrigal_stream::VLink;
use madrigal_sys::time;

use super::report::PerfError;

/// How often the whole is repeated; the report gives medians.
pub const ROUNDS: usize = 25;

/// The argument for a started copy.
pub(super) const ASKED: &str = "_MADRIGAL_PERF_PEER";
/// The most memory it may use.
pub(super) const LONGEST: usize = 1 << 30;
/// How long the copy may take to start and connect.
pub(super) const START_NS: u64 = 15_000_000_000;
/// A round ends after this time even if not all its exchanges were done, ...
pub(super) const ROUND_NS: u64 = 200_000_000;
/// ... checked once in so many exchanges.
pub(super) const LATE_EVERY: u32 = 64;
/// Polls of the bare line before the processor is given away; the square of it lies between two checks whether the peer lives.
pub(super) const POLLS: u32 = 1 << 11;
/// Set on the bare line with the last question.
pub(super) const LAST: u64 = 1 << 63;

/// The bare line of a round.
pub(super) fn line(arena: &Arena, round: usize) -> Result<&AtomicU64, PerfError> {
    Ok(&arena.slot(round as u32).ok_or(PerfError::Gone)?.side[0].cookie)
}

/// What both sides do in a round. The asking side ends it, early on a machine that is too busy.
#[derive(Clone, Copy)]
pub(super) struct Job {
    pub(super) size: usize,
    pub(super) iterations: u32,
}

impl Job {
    /// Nanoseconds one way of a round of `exchange`s behind the first; each gets whether it is the last.
    pub(super) fn timed(self, mut exchange: impl FnMut(bool) -> Result<(), PerfError>) -> Result<f64, PerfError> {
        // The other end may not have come to this round yet.
        exchange(false)?;
        let begun = time::now_ns();
        let mut done = 0;
        loop {
            done += 1;
            let late = done % LATE_EVERY == 0 && time::now_ns() > begun + ROUND_NS;
            let last = late || done >= self.iterations;
            exchange(last)?;
            if last {
                return Ok((time::now_ns() - begun) as f64 / (2.0 * f64::from(done)));
            }
        }
    }

    pub(super) fn ask_bare(self, line: &AtomicU64, mut alive: impl FnMut() -> bool) -> Result<f64, PerfError> {
        let mut count = 0;
        self.timed(|last| {
            count += 2;
            line.store((count - 1) | if last { LAST } else { 0 }, Ordering::Release);
            wait_for(line, count, &mut alive).map(drop)
        })
    }

    pub(super) fn answer_bare(self, line: &AtomicU64, mut alive: impl FnMut() -> bool) -> Result<(), PerfError> {
        let mut count = 0;
        loop {
            count += 2;
            let asked = wait_for(line, count - 1, &mut alive)?;
            line.store(count, Ordering::Release);
            if asked & LAST != 0 {
                return Ok(());
            }
        }
    }

    pub(super) fn ask(self, link: &VLink) -> Result<f64, PerfError> {
        let (mut out, mut back) = (vec![0; self.size], vec![0; self.size]);
        self.timed(|last| {
            out[0] = u8::from(last);
            out = link.write(core::mem::take(&mut out)).wait()?;
            back = self.read(link, core::mem::take(&mut back))?.0;
            Ok(())
        })
    }

    pub(super) fn answer(self, link: &VLink) -> Result<(), PerfError> {
        let (mut out, mut back) = (vec![0; self.size], vec![0; self.size]);
        loop {
            let last;
            (back, last) = self.read(link, back)?;
            out = link.write(out).wait()?;
            if last {
                return Ok(());
            }
        }
    }

    /// Reads one message; returns the buffer, and whether the message is marked as the last.
    #[inline]
    pub(super) fn read(self, link: &VLink, buf: Vec<u8>) -> Result<(Vec<u8>, bool), PerfError> {
        let mut filled = link.read(buf).wait()?;
        let last = filled.buf[0] != 0;
        let mut done = filled.len;
        while done < self.size {
            if filled.len == 0 {
                return Err(PerfError::Gone);
            }
            filled.buf.truncate(self.size - done);
            filled = link.read(filled.buf).wait()?;
            done += filled.len;
        }
        filled.buf.resize(self.size, 0);
        Ok((filled.buf, last))
    }
}

/// Polls the bare line until it holds `count`; what it holds besides.
pub(super) fn wait_for(line: &AtomicU64, count: u64, alive: &mut impl FnMut() -> bool) -> Result<u64, PerfError> {
    let mut polls = 0u32;
    loop {
        let seen = line.load(Ordering::Acquire);
        if seen & !LAST == count {
            return Ok(seen);
        }
        core::hint::spin_loop();
        polls += 1;
        if polls.is_multiple_of(POLLS) {
            // On a busy machine both may share a processor.
            std::thread::yield_now();
            if polls.is_multiple_of(POLLS * POLLS) && !alive() {
                return Err(PerfError::Gone);
            }
        }
    }
}

/// The started copy; killed on drop if it did not end by itself.
pub(super) struct Peer(Child);

impl Peer {
    pub(super) fn start(asked: &str) -> Result<Self, PerfError> {
        let started = Command::new("/proc/self/exe").env(ASKED, asked).spawn();
        started.map(Self).map_err(|error| PerfError::Peer(Os(error.raw_os_error().unwrap_or(0))))
    }

    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It is dead already, or dies now; nothing else is wanted of it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
