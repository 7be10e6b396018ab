//! How often a port reads its sockets: at every poll while something was going on lately, and ever more rarely when not, so that polling a
//! quiet port costs next to nothing.

use madrigal_sys::time;

/// Polls after something happened each of which reads.
const EAGER: u32 = 512;
/// The first and the longest time between two reads after that, in nanoseconds.
const FIRST_GAP: u64 = 2_000;
const LAST_GAP: u64 = 50_000;
/// Polls between two reads of the clock, while polls follow each other so fast.
const STRIDE: u32 = 8;
const FAST: u64 = 4_000;
/// Of so many reads of the hot link's socket, one is of all sockets.
const SCAN_EVERY: u32 = 32;
/// Reads of the hot link in a row that may find nothing before it is no longer read by itself.
const MISSES: u32 = 256;

/// When to read, and where first.
#[derive(Debug)]
pub(super) struct Pace {
    eager: u32,
    polls: u32,
    stride: u32,
    seen: u64,
    next: u64,
    gap: u64,
    hot: Option<u32>,
    misses: u32,
    reads: u32,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            eager: EAGER,
            polls: 0,
            stride: STRIDE,
            seen: 0,
            next: 0,
            gap: FIRST_GAP,
            hot: None,
            misses: 0,
            reads: 0,
        }
    }

    /// Whether this poll reads the sockets.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
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

    /// Something happened: the next poll reads.
    #[inline]
    pub(super) fn stir(&mut self) {
        self.eager = EAGER;
        self.gap = FIRST_GAP;
    }

    /// The link whose socket alone is read this time; `None`: all are.
    #[inline]
    pub(super) fn hot(&mut self) -> Option<u32> {
        self.misses += 1;
        self.reads += 1;
        if self.misses > MISSES || self.reads >= SCAN_EVERY {
            self.reads = 0;
            return None;
        }
        self.hot
    }

    /// Something came on that link.
    #[inline]
    pub(super) fn found(&mut self, link: u32) {
        self.hot = Some(link);
        self.misses = 0;
        self.stir();
    }

    /// Something was sent on that link: an answer may come.
    #[inline]
    pub(super) fn sent(&mut self, link: u32) {
        if self.hot != Some(link) && self.misses > SCAN_EVERY {
            self.hot = Some(link);
        }
        self.misses = 0;
        self.stir();
    }

    /// Nothing can be sent until the kernel reports room: all sockets are read next.
    #[inline]
    pub(super) fn stuck(&mut self) {
        self.reads = SCAN_EVERY;
        self.stir();
    }

    /// That link has ended.
    pub(super) fn forget(&mut self, link: u32) {
        self.hot = self.hot.filter(|hot| *hot != link);
    }
}
