//! Copying bodies into and out of shared memory.
//!
//! The system's memcpy copies more than 2 KiB by one instruction of microcode where the processor recommends it. Measured on Zen 3: 2 GB/s
//! where source and destination lie a few bytes apart modulo a page, as a bulk ring and a large buffer do; a plain loop that prefetches its
//! lines: 20 GB/s.
//!
//! Where two processors share no cache, a line the reader had must be taken from it before it can be written again, and that is
//! slower than the way through main memory: 190 us for 1 MiB against 62. Where they do, it is the other way round: 46 against 70. So
//! a writer times both ways ([`Pace`]).

use madrigal_sys::time;

/// How far ahead lines are prefetched.
const AHEAD: usize = 16 * LINE;
const LINE: usize = 64;
/// Below this nothing is gained.
const LOOP: usize = 512;

/// Copies out of shared memory.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
pub(super) unsafe fn copy_out(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's contract.
    unsafe { lines(from, to, len, false) };
}

/// How a writer's copies went lately, and which way the next one goes.
#[derive(Default)]
pub(super) struct Pace {
    /// Picoseconds a byte, through the cache and past it; 0: never tried.
    ps: [u64; 2],
    count: u32,
}

/// Copies of at least so many bytes are timed, ...
const LEARN: usize = 1 << 10;
/// ... the first few, and then one in so many; of these every other one goes the other way.
const SELDOM: u32 = 16;
/// Main memory must be so much faster, in eighths: the reader has to fetch it from there.
const BETTER: u64 = 11;

impl Pace {
    /// Copies into shared memory.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
    pub(super) unsafe fn copy_in(&mut self, from: *const u8, to: *mut u8, len: usize) {
        if len < LEARN {
            // SAFETY: the caller's contract.
            return unsafe { lines(from, to, len, false) };
        }
        let past = self.ps[1] != 0 && self.ps[0] * 8 > self.ps[1] * BETTER;
        self.count = self.count.wrapping_add(1);
        let timed = self.count < 8 || self.count.is_multiple_of(SELDOM);
        let odd = self.count < 8 && self.count.is_multiple_of(2) || self.count.is_multiple_of(4 * SELDOM);
        if !timed {
            // SAFETY: the caller's contract.
            return unsafe { lines(from, to, len, past) };
        }
        let begun = time::now_ns();
        // SAFETY: the caller's contract.
        unsafe { lines(from, to, len, past != odd) };
        self.learn(past != odd, (time::now_ns() - begun) * 1_000 / len as u64);
    }

    /// A byte took so long. An interrupted copy shows nothing, so longer times count for little.
    fn learn(&mut self, past: bool, ps: u64) {
        let known = &mut self.ps[usize::from(past)];
        *known = if *known == 0 || ps < *known { ps } else { *known + (ps.min(2 * *known) - *known) / 4 }.max(1);
    }
}

/// Copies line by line; `past` the writer's cache, where that is possible.
///
/// # Safety
/// As [`copy_out`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn lines(from: *const u8, to: *mut u8, len: usize, past: bool) {
    use core::arch::x86_64::{
        __m128i, _MM_HINT_T0, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_storeu_si128, _mm_stream_si128,
    };
    let whole = if len < LOOP { 0 } else { len & !(LINE - 1) };
    let past = past && to.addr().is_multiple_of(16);
    for at in (0..whole).step_by(LINE) {
        let (source, target) = (from.wrapping_add(at).cast::<__m128i>(), to.wrapping_add(at).cast::<__m128i>());
        // SAFETY: a prefetch touches nothing as far as a program can see, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + AHEAD).cast()) };
        // SAFETY: the whole line is inside both ranges (caller's contract); stores past the cache are to aligned places.
        unsafe {
            let line = [0, 1, 2, 3].map(|i| _mm_loadu_si128(source.add(i)));
            for (i, part) in line.into_iter().enumerate() {
                if past {
                    _mm_stream_si128(target.add(i), part);
                } else {
                    _mm_storeu_si128(target.add(i), part);
                }
            }
        }
    }
    if past {
        // Stores past the cache are not ordered with what follows by themselves.
        // SAFETY: a fence.
        unsafe { _mm_sfence() };
    }
    // SAFETY: the caller's contract.
    unsafe { core::ptr::copy_nonoverlapping(from.add(whole), to.add(whole), len - whole) };
}

/// See above.
///
/// # Safety
/// As [`copy_out`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn lines(from: *const u8, to: *mut u8, len: usize, _past: bool) {
    // SAFETY: the caller's contract.
    unsafe { core::ptr::copy_nonoverlapping(from, to, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_place_is_copied_exactly() {
        let from: Vec<u8> = (0..70_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        let mut pace = Pace::default();
        for (i, len) in
            [0, 1, 63, 64, 511, 512, 513, 4_095, 4_096, 8_192, 9_000, 20_001, 65_536].into_iter().enumerate()
        {
            for (skip, at) in [(0, 0), (1, 0), (0, 1), (16, 32), (7, 48)] {
                let mut to = vec![0xEE; len + 100];
                let out = i % 2 == 0;
                // SAFETY: both vectors are longer than what is copied.
                unsafe {
                    let (source, target) = (from.as_ptr().add(skip), to.as_mut_ptr().add(at));
                    if out { copy_out(source, target, len) } else { pace.copy_in(source, target, len) }
                }
                assert!(to[at..at + len] == from[skip..skip + len], "{len} bytes from {skip} to {at}");
                assert!(to[..at].iter().chain(&to[at + len..]).all(|b| *b == 0xEE), "and nothing else");
            }
        }
    }

    #[test]
    fn the_faster_way_is_taken_and_an_interruption_shows_nothing() {
        let mut pace = Pace { ps: [1_000, 500], count: 8 };
        pace.learn(true, 50_000);
        assert!(pace.ps[1] < 800);
        pace.learn(true, 400);
        assert_eq!(pace.ps, [1_000, 400]);
    }
}
