//! The program's buffers: one or many pieces, as read(2), readv(2) and recvmsg(2) describe them.

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::iovec;
use madrigal_drivers::shm::ring::Span;
use madrigal_sys::raw;

/// A copy so large that its target may well be fresh memory.
const LARGE: usize = 128 << 10;

/// Pieces of the program's memory.
///
/// The program vouches for them as for the libc function it called: writable (receiving) or readable (sending) for their lengths.
#[derive(Clone, Copy)]
pub(crate) struct Buffers<'a>(&'a [iovec]);

impl<'a> Buffers<'a> {
    /// The pieces of an iovec array. `None`: more than `IOV_MAX`, which the kernel refuses.
    ///
    /// # Safety
    /// `iov` points to `count` iovecs that stay as they are during `'a`.
    pub(crate) unsafe fn from_raw(iov: *const iovec, count: usize) -> Option<Self> {
        match count {
            0 => Some(Self(&[])),
            // SAFETY: the caller's contract.
            1..=1024 if !iov.is_null() => Some(Self(unsafe { core::slice::from_raw_parts(iov, count) })),
            _ => None,
        }
    }

    /// The pieces of a slice.
    pub(crate) fn of(pieces: &'a [iovec]) -> Self {
        Self(pieces)
    }

    /// Bytes in all pieces.
    #[inline]
    pub(crate) fn total(&self) -> usize {
        self.0.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.iov_len))
    }

    /// Copies bytes of a ring to `done` bytes into the buffers; returns how many fitted.
    /// `last` remembers where a large copy went.
    pub(crate) fn fill(&self, done: usize, span: &Span, last: &AtomicUsize) -> usize {
        self.each(done, span.len(), |ptr, at, n| {
            if n >= LARGE
                && last.swap(ptr.addr(), Ordering::Relaxed) != ptr.addr()
                && !raw::is_real(ptr.wrapping_add(n - 1))
            {
                // Fresh pages: a fault for each costs as much as the copy. Huge ones where there is room, and the others in one go.
                raw::huge(ptr, self.left_at(ptr));
                raw::populate(ptr, n);
            }
            // SAFETY: the program vouches for its buffers; the span is data of a ring under the receive lock.
            unsafe { span.copy_out(at, ptr, n) }
        })
    }

    /// Bytes of the piece `ptr` points into, from there on.
    fn left_at(&self, ptr: *const u8) -> usize {
        let behind = |piece: &iovec| piece.iov_base.addr().checked_add(piece.iov_len)?.checked_sub(ptr.addr());
        let inside = self.0.iter().filter(|piece| piece.iov_base.addr() <= ptr.addr());
        inside.filter_map(behind).find(|&left| left > 0).unwrap_or(0)
    }

    /// Copies bytes from `done` bytes into the buffers into free ring space, at most `limit`; returns how many.
    pub(crate) fn drain(&self, done: usize, span: &Span, limit: usize) -> usize {
        self.each(done, limit.min(span.len()), |ptr, copied, n| {
            // SAFETY: as in `fill`, the other way: the span is free space under the send lock.
            unsafe { span.copy_in(copied, ptr, n) }
        })
    }

    /// Copies from the beginning of the buffers to `to`, at most `limit` bytes; returns how many.
    pub(crate) fn copy_to(&self, to: *mut u8, limit: usize) -> usize {
        self.each(0, limit, |ptr, copied, n| {
            // SAFETY: the program vouches for its buffers; `to` is our own memory with room for `limit` bytes.
            unsafe { core::ptr::copy_nonoverlapping(ptr, to.wrapping_add(copied), n) };
            n
        })
    }

    /// Calls `f(address, offset so far, length)` for the pieces from `skip` bytes on, until `limit` bytes are through.
    fn each(&self, mut skip: usize, limit: usize, mut f: impl FnMut(*mut u8, usize, usize) -> usize) -> usize {
        let mut done = 0;
        for piece in self.0 {
            let start = skip.min(piece.iov_len);
            skip -= start;
            let n = (piece.iov_len - start).min(limit - done);
            if n > 0 {
                done += f(piece.iov_base.cast::<u8>().wrapping_add(start), done, n);
            }
            if done == limit {
                break;
            }
        }
        done
    }

    /// What is left after `skip` bytes, in `room` pieces at most.
    pub(crate) fn rest(&self, mut skip: usize, limit: usize, room: &mut [iovec]) -> usize {
        let (mut used, mut left) = (0, limit);
        for piece in self.0 {
            let start = skip.min(piece.iov_len);
            skip -= start;
            let n = (piece.iov_len - start).min(left);
            if n == 0 {
                continue;
            }
            let Some(slot) = room.get_mut(used) else { break };
            *slot = iovec { iov_base: piece.iov_base.cast::<u8>().wrapping_add(start).cast::<c_void>(), iov_len: n };
            used += 1;
            left -= n;
        }
        used
    }
}
