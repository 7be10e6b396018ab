//! How often a port reads its sockets, and where first.

use madrigal_progress::pace;

/// Of so many reads of the hot link's socket, one is of all sockets.
const SCAN_EVERY: u32 = 32;
/// Reads of the hot link in a row that may find nothing before it is no longer read by itself.
const MISSES: u32 = 256;

/// When to read, and where first.
#[derive(Debug)]
pub(super) struct Pace {
    pace: pace::Pace,
    hot: Option<u32>,
    misses: u32,
    reads: u32,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { pace: pace::Pace::default(), hot: None, misses: 0, reads: 0 }
    }

    /// Whether this poll reads the sockets.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.pace.is_due()
    }

    /// Something happened: the next poll reads.
    #[inline]
    pub(super) fn stir(&mut self) {
        self.pace.stir();
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
