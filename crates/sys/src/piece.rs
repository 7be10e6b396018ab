//! Pieces of lent memory: a pointer and a length, kept longer than a borrow can be, until an operation is over.
//!
//! [`Piece::lend`] is the one unsafe step: the lender vouches that the memory stays until the operation it was lent to is over, and may be
//! written if it is received into. Everything done with a piece afterwards is safe and checks its bounds.

use core::ptr;
use std::io::IoSlice;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use crate::{Errno, raw};

/// A piece of lent memory. Copies of it are the same memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    at: *mut u8,
    len: usize,
}

// SAFETY: a piece is an address and a length; its lender vouches for the memory, for use from any thread.
unsafe impl Send for Piece {}
// SAFETY: as above; nothing in a piece changes.
unsafe impl Sync for Piece {}

impl Piece {
    /// No memory at all.
    pub const EMPTY: Self = Self { at: ptr::dangling_mut(), len: 0 };

    /// Lends `len` bytes from `at`.
    ///
    /// # Safety
    /// Until the operation this is lent to is over (completed, cancelled, or never begun), the bytes are readable, writable if the
    /// operation writes to them, and no other code writes to them, or reads them while the operation writes.
    pub unsafe fn lend(at: *const u8, len: usize) -> Self {
        Self { at: at.cast_mut(), len }
    }

    /// Where it begins.
    #[inline]
    pub fn at(self) -> *mut u8 {
        self.at
    }

    /// How many bytes it has.
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The part of `len` bytes from `skip` on, cut to what there is.
    #[inline]
    #[must_use]
    pub fn part(self, skip: usize, len: usize) -> Self {
        let skip = skip.min(self.len);
        Self { at: self.at.wrapping_add(skip), len: len.min(self.len - skip) }
    }

    /// The bytes, to be sent by a vectored call.
    #[inline]
    pub fn slice<'a>(self) -> IoSlice<'a> {
        IoSlice::new(self.bytes())
    }

    /// The bytes, for as long as they are lent.
    #[inline]
    pub fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: readable and unwritten until the operation is over, by the promise of `lend`; the operation drops its pieces then.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }

    /// Copies `bytes` to its front, as many as fit; how many did.
    #[inline]
    pub fn fill(self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.len);
        // SAFETY: `len` bytes are writable and ours by the promise of `lend`. The source may overlap only where a process sends to
        // itself, which `copy` allows.
        unsafe { ptr::copy(bytes.as_ptr(), self.at, len) };
        len
    }

    /// Copies from its front into `bytes`, as many as there are; how many.
    #[inline]
    pub fn take(self, bytes: &mut [u8]) -> usize {
        let len = bytes.len().min(self.len);
        // SAFETY: `len` bytes are readable by the promise of `lend`, and `copy` allows overlap.
        unsafe { ptr::copy(self.at, bytes.as_mut_ptr(), len) };
        len
    }
}

/// Copies `bytes` into memory made of pieces, from byte `skip` of them on; what does not fit is dropped. How many fitted.
pub fn scatter(pieces: &[Piece], mut skip: usize, mut bytes: &[u8]) -> usize {
    let all = bytes.len();
    for piece in pieces {
        if bytes.is_empty() {
            break;
        }
        let done = piece.part(skip, usize::MAX).fill(bytes);
        bytes = &bytes[done..];
        skip = skip.saturating_sub(piece.len);
    }
    all - bytes.len()
}

/// The most pieces received into at once.
const AT_ONCE: usize = 64;

/// Receives from a socket, without blocking, into memory made of pieces, from byte `skip` of them on, at most `limit` bytes; and what
/// comes behind these into `tail`. If all pieces do not fit into one call nothing goes to the tail. `Ok(0)`: the end, or no room.
pub fn receive(
    socket: BorrowedFd<'_>,
    pieces: &[Piece],
    mut skip: usize,
    limit: usize,
    tail: &mut [u8],
) -> Result<usize, Errno> {
    let mut list = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; AT_ONCE + 1];
    let (mut used, mut left) = (0, limit);
    for piece in pieces {
        let part = piece.part(skip, left);
        skip = skip.saturating_sub(piece.len);
        if part.is_empty() || used == AT_ONCE {
            continue;
        }
        list[used] = libc::iovec { iov_base: part.at.cast(), iov_len: part.len };
        (used, left) = (used + 1, left - part.len);
    }
    if left == 0 {
        list[used] = libc::iovec { iov_base: tail.as_mut_ptr().cast(), iov_len: tail.len() };
        used += 1;
    }
    // SAFETY: an all-zero header is valid: no name, no pieces, no control data.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = list.as_mut_ptr();
    header.msg_iovlen = used as _;
    // SAFETY: every piece is writable by the promise of `lend`, and so is the tail; the list lives through the call.
    unsafe { raw::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) }
}

/// The bytes of all pieces together.
pub fn total(pieces: &[Piece]) -> usize {
    pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_inside() {
        let mut memory = [0u8; 10];
        // SAFETY: `memory` outlives every use below and nothing else touches it.
        let piece = unsafe { Piece::lend(memory.as_mut_ptr(), 10) };
        assert_eq!(piece.part(8, 5).len(), 2);
        assert_eq!(piece.part(20, 5).len(), 0);
        assert_eq!(piece.part(8, 5).fill(b"abc"), 2);
        assert_eq!(piece.part(7, 2).bytes(), b"\0a");
        let mut back = [9; 4];
        assert_eq!(piece.part(8, 9).take(&mut back), 2);
        assert_eq!(&back, b"ab\x09\x09");
        assert_eq!(Piece::EMPTY.bytes(), b"");
    }

    #[test]
    fn receives_behind_what_was_skipped_and_the_rest_into_the_tail() {
        use std::io::Write as _;
        use std::os::fd::AsFd as _;
        let (mut from, to) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let (mut one, mut two, mut tail) = ([0u8; 3], [0u8; 4], [0u8; 4]);
        // SAFETY: both pieces are whole arrays of ours, used nowhere else before the assertions.
        let pieces = unsafe { [Piece::lend(one.as_mut_ptr(), 3), Piece::EMPTY, Piece::lend(two.as_mut_ptr(), 4)] };
        assert_eq!(receive(to.as_fd(), &pieces, 2, 3, &mut tail), Err(Errno::AGAIN));
        from.write_all(b"abcdef").expect("writes");
        assert_eq!(receive(to.as_fd(), &pieces, 2, 3, &mut tail), Ok(6));
        assert_eq!((&one, &two, &tail), (b"\0\0a", b"bc\0\0", b"def\0"));
        from.write_all(b"ghi").expect("writes");
        assert_eq!(receive(to.as_fd(), &pieces, 5, 9, &mut tail), Ok(2));
        assert_eq!((&two, &tail), (b"bcgh", b"def\0"));
    }

    #[test]
    fn scatters_from_the_middle_and_drops_the_rest() {
        let (mut one, mut two) = ([0u8; 3], [0u8; 2]);
        // SAFETY: both pieces are whole arrays of ours, used nowhere else before the assertions.
        let to = unsafe { [Piece::lend(one.as_mut_ptr(), 3), Piece::EMPTY, Piece::lend(two.as_mut_ptr(), 2)] };
        assert_eq!(total(&to), 5);
        assert_eq!(scatter(&to, 2, b"xyz!"), 3);
        assert_eq!((&one, &two), (b"\0\0x", b"yz"));
    }
}
