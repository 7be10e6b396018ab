//! The program's buffers: one or many pieces, as read(2), readv(2) and recvmsg(2) describe them. Any of its addresses may be bad: that is
//! `EFAULT`, as of the kernel.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::iovec;
use madrigal_shm_ring::ring::Span;
use madrigal_sys::{Errno, fault, raw};

/// A copy so large that its target may well be fresh memory.
const LARGE: usize = 128 << 10;
/// What the kernel moves in one call at the most (read(2), NOTES).
const MOST: usize = 0x7fff_f000;

/// Pieces of the program's memory.
///
/// The program vouches for them as for the libc function it called: what is mapped of them may be written (receiving) or read (sending).
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    pieces: Pieces,
    total: usize,
}

#[derive(Clone, Copy)]
enum Pieces {
    One(iovec),
    Many(*const iovec, usize),
}

impl Buffers {
    /// One piece.
    pub(crate) fn one(ptr: *mut c_void, len: usize) -> Self {
        Self { pieces: Pieces::One(iovec { iov_base: ptr, iov_len: len }), total: len.min(MOST) }
    }

    /// The pieces of an iovec array. `None`: the kernel will refuse it, and returns the error.
    ///
    /// # Safety
    /// What is mapped of `count` iovecs at `iov` may be read, and stays as it is as long as this is used.
    pub(crate) unsafe fn many(iov: *const iovec, count: usize) -> Option<Self> {
        if count > libc::UIO_MAXIOV as usize {
            return None;
        }
        let mut buffers = Self { pieces: Pieces::Many(iov, count), total: 0 };
        let mut total = 0usize;
        for i in 0..count {
            let piece = buffers.piece(i)?;
            total = total.saturating_add(isize::try_from(piece.iov_len).ok()? as usize);
        }
        buffers.total = total.min(MOST);
        Some(buffers)
    }

    fn count(&self) -> usize {
        match self.pieces {
            Pieces::One(_) => 1,
            Pieces::Many(_, count) => count,
        }
    }

    fn piece(&self, i: usize) -> Option<iovec> {
        match self.pieces {
            Pieces::One(piece) => Some(piece),
            // SAFETY: the contract of `many`; an iovec is two numbers.
            Pieces::Many(iov, _) => unsafe { fault::read(iov.wrapping_add(i)) },
        }
    }

    /// Bytes in all pieces.
    #[inline]
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Whether a piece lies where no program has memory: the kernel refuses that before any other check.
    pub(crate) fn is_outside(&self) -> bool {
        (0..self.count()).filter_map(|i| self.piece(i)).any(|piece| {
            let end = piece.iov_base.addr().checked_add(piece.iov_len);
            end.is_none_or(|end| end > isize::MAX as usize)
        })
    }

    /// Copies bytes of a ring to `done` bytes into the buffers; how many fitted. `last` remembers where a large copy went.
    pub(crate) fn fill(&self, done: usize, span: &Span, last: &AtomicU64) -> Result<usize, Errno> {
        self.each(done, span.len(), |piece, at, n| {
            let ptr = piece.iov_base.cast::<u8>();
            if n >= LARGE
                && last.swap(ptr.addr() as u64, Ordering::Relaxed) != ptr.addr() as u64
                && !raw::is_real(ptr.wrapping_add(n - 1))
            {
                // Fresh pages: a fault for each costs as much as the copy. Huge ones where there is room, and the others in one go.
                raw::huge(ptr, piece.iov_len);
                raw::populate(ptr, n);
            }
            // SAFETY: the program vouches for its buffers; the span is data of a ring under the receive lock.
            unsafe { span.copy_out_by(at, ptr, n, fault::copy) }
        })
    }

    /// Copies bytes from `done` bytes into the buffers into free ring space; how many.
    pub(crate) fn drain(&self, done: usize, span: &Span) -> Result<usize, Errno> {
        self.each(done, span.len(), |piece, copied, n| {
            // SAFETY: as in `fill`, the other way: the span is free space under the send lock.
            unsafe { span.copy_in_by(copied, piece.iov_base.cast::<u8>(), n, fault::copy) }
        })
    }

    /// Copies from the beginning of the buffers to `to`, at most `limit` bytes; how many.
    pub(crate) fn copy_to(&self, to: *mut u8, limit: usize) -> Result<usize, Errno> {
        self.each(0, limit, |piece, copied, n| {
            // SAFETY: the program vouches for its buffers; `to` is our own memory with room for `limit` bytes.
            unsafe { fault::copy(to.wrapping_add(copied), piece.iov_base.cast::<u8>(), n) }
        })
    }

    /// How many bytes there are from `done` bytes into the buffers on, up to a page that cannot be read.
    pub(crate) fn reach(&self, done: usize) -> Result<usize, Errno> {
        const PAGE: usize = 4096;
        self.each(done, usize::MAX, |piece, _, n| {
            let begin = piece.iov_base.addr();
            let mut at = 0;
            while at < n {
                // SAFETY: a byte that is readable if it is mapped; the copy fails if it is not.
                if unsafe { fault::read(piece.iov_base.cast::<u8>().wrapping_add(at)) }.is_none() {
                    return at;
                }
                at = ((begin + at) / PAGE + 1) * PAGE - begin;
            }
            n
        })
    }

    /// Calls `f(piece, offset so far, length)` for the pieces from `skip` bytes on, until `limit` bytes are through, or it did less than it
    /// should. `EFAULT`: it did nothing of what there was.
    fn each(
        &self,
        mut skip: usize,
        limit: usize,
        mut f: impl FnMut(iovec, usize, usize) -> usize,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        for i in 0..self.count() {
            let Some(piece) = self.piece(i) else { break };
            let start = skip.min(piece.iov_len);
            skip -= start;
            let n = (piece.iov_len - start).min(limit - done);
            if n > 0 {
                let rest = iovec { iov_base: piece.iov_base.wrapping_byte_add(start), iov_len: piece.iov_len - start };
                let copied = f(rest, done, n);
                done += copied;
                if copied < n {
                    return if done > 0 { Ok(done) } else { Err(Errno::FAULT) };
                }
            }
            if done == limit {
                break;
            }
        }
        Ok(done)
    }

    /// All the pieces, as the program has them. `None`: there is one.
    pub(crate) fn array(&self) -> Option<(*const iovec, usize)> {
        match self.pieces {
            Pieces::One(_) => None,
            Pieces::Many(pieces, count) => Some((pieces, count)),
        }
    }

    /// What is left after `skip` bytes, at most `limit` of it, in `room` pieces at most; how many pieces.
    pub(crate) fn rest(&self, mut skip: usize, limit: usize, room: &mut [iovec]) -> usize {
        let (mut used, mut left) = (0, limit);
        for i in 0..self.count() {
            let Some(piece) = self.piece(i) else { break };
            let start = skip.min(piece.iov_len);
            skip -= start;
            let n = (piece.iov_len - start).min(left);
            if n == 0 {
                continue;
            }
            let Some(slot) = room.get_mut(used) else { break };
            *slot = iovec { iov_base: piece.iov_base.wrapping_byte_add(start), iov_len: n };
            used += 1;
            left -= n;
        }
        used
    }
}

/// A message for recvmsg(2) or sendmsg(2) of these pieces, and nothing else.
pub(crate) fn message(pieces: &mut [iovec]) -> libc::msghdr {
    // SAFETY: an all-zero msghdr is valid.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = pieces.as_mut_ptr();
    msg.msg_iovlen = pieces.len();
    msg
}

/// No piece.
pub(crate) const NOWHERE: iovec = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
