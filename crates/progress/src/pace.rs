//! How often a port of messages looks for what has come where that costs a system call: at every poll while something was going on lately,
//! and ever more rarely when not, so that polling a quiet port costs next to nothing.

use madrigal_sys::time;

/// Polls after something happened each of which looks.
const EAGER: u32 = 512;
/// The first and the longest time between two looks after that, in nanoseconds.
const FIRST_GAP: u64 = 2_000;
const LAST_GAP: u64 = 50_000;
/// Polls between two reads of the clock, while polls follow each other so fast.
const STRIDE: u32 = 8;
const FAST: u64 = 4_000;

/// When to look.
#[derive(Debug)]
pub struct Pace {
    eager: u32,
    polls: u32,
    stride: u32,
    seen: u64,
    next: u64,
    gap: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { eager: EAGER, polls: 0, stride: STRIDE, seen: 0, next: 0, gap: FIRST_GAP }
    }
}

impl Pace {
    /// Whether this poll looks.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        if self.eager > 0 {
            self.eager -= 1;
            return true;
        }
        self.polls += 1;
        self.polls >= self.stride && self.is_time()
    }

    fn is_time(&mut self) -> bool {
        let now = time::now_ns();
        self.polls = 0;
        self.stride = if now.saturating_sub(self.seen) < FAST { STRIDE } else { 1 };
        self.seen = now;
        if now < self.next {
            return false;
        }
        self.gap = (self.gap * 2).min(LAST_GAP);
        self.next = now + self.gap;
        true
    }

    /// Something happened: the next poll looks.
    #[inline]
    pub fn stir(&mut self) {
        self.eager = EAGER;
        self.gap = FIRST_GAP;
    }
}
