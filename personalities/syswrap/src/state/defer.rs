//! Sends from a signal handler that interrupted a send on the very same socket.
//!
//! The interrupted one may be copying into the ring's free space: nothing may be published there before it is done. What the handler
//! sends is kept here and follows as soon as the interrupted copy is published; the interrupted call then ends with what it has, as a
//! call that a handler interrupted may.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::slab::zeroed_pages;

/// Bytes that can wait.
const ROOM: usize = 4096;

/// Bytes waiting for the end of an interrupted send. All-zero: none.
#[derive(Default)]
pub(crate) struct Deferred {
    page: AtomicPtr<u8>,
    /// Start and end of what waits, as two halves.
    span: AtomicU64,
}

impl Deferred {
    /// Forgets everything (the page stays for the next user of the object).
    pub(crate) fn clear(&self) {
        self.span.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        let (start, end) = halves(self.span.load(Ordering::Relaxed));
        start == end
    }

    /// Keeps what fits: `copy(to, limit)` copies, and returns how many bytes; the errors are its own. Called by the handler: the
    /// interrupted thread does not run.
    pub(crate) fn keep<E>(&self, copy: impl FnOnce(*mut u8, usize) -> Result<usize, E>) -> Result<usize, E> {
        if self.page.load(Ordering::Relaxed).is_null() {
            let Some(page) = zeroed_pages(ROOM) else { return Ok(0) };
            self.page.store(page, Ordering::Relaxed);
        }
        let page = self.page.load(Ordering::Relaxed);
        let (start, end) = match halves(self.span.load(Ordering::Relaxed)) {
            (start, end) if start == end => (0, 0),
            span => span,
        };
        let n = copy(page.wrapping_add(end), ROOM - end)?;
        self.span.store(whole(start, end + n), Ordering::Relaxed);
        Ok(n)
    }

    /// What waits, if anything.
    pub(crate) fn waiting(&self) -> Option<(*mut u8, usize)> {
        let (start, end) = halves(self.span.load(Ordering::Relaxed));
        (start < end).then(|| (self.page.load(Ordering::Relaxed).wrapping_add(start), end - start))
    }

    /// `n` bytes of what waits are sent. A handler may add some in the same moment.
    pub(crate) fn sent(&self, n: usize) {
        let step = |span| {
            let (start, end) = halves(span);
            Some(whole((start + n).min(end), end))
        };
        let _ = self.span.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
    }
}

fn halves(span: u64) -> (usize, usize) {
    ((span >> 32) as usize, (span & u64::from(u32::MAX)) as usize)
}

fn whole(start: usize, end: usize) -> u64 {
    (start as u64) << 32 | end as u64
}
