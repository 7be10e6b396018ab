//! Buffers of the caller's as pieces of lent memory.

use std::ffi::c_void;

use libc::iovec;
use madrigal_sys::piece::Piece;

use crate::abi::endpoint::Ioc;
use crate::abi::errno::{EINVAL, EMSGSIZE};
use crate::info::PIECES;

/// Up to as many pieces as an operation may have.
pub(super) struct Pieces {
    all: [Piece; PIECES],
    count: usize,
}

impl Pieces {
    pub(super) fn as_slice(&self) -> &[Piece] {
        &self.all[..self.count]
    }

    fn collect(count: usize, piece: impl Fn(usize) -> Piece) -> Result<Self, i32> {
        if count > PIECES {
            return Err(EMSGSIZE);
        }
        let mut all = [Piece::EMPTY; PIECES];
        for (i, place) in all.iter_mut().take(count).enumerate() {
            *place = piece(i);
        }
        Ok(Self { all, count })
    }

    /// Of a vector of buffers.
    ///
    /// # Safety
    /// `iov` has `count` members; what they name is lent as [`Piece::lend`] says.
    pub(super) unsafe fn of_iov(iov: *const iovec, count: usize) -> Result<Self, i32> {
        if iov.is_null() && count > 0 {
            return Err(EINVAL);
        }
        Self::collect(count, |i| {
            // SAFETY: `i` is below `count`; by the caller.
            unsafe {
                let part = &*iov.add(i);
                Piece::lend(part.iov_base.cast(), part.iov_len)
            }
        })
    }

    /// Of a vector of numbers, `size` bytes each.
    ///
    /// # Safety
    /// As for [`Pieces::of_iov`].
    pub(super) unsafe fn of_ioc(ioc: *const Ioc, count: usize, size: usize) -> Result<Self, i32> {
        if ioc.is_null() && count > 0 {
            return Err(EINVAL);
        }
        Self::collect(count, |i| {
            // SAFETY: `i` is below `count`; by the caller.
            unsafe {
                let part = &*ioc.add(i);
                Piece::lend(part.addr.cast(), part.count.saturating_mul(size))
            }
        })
    }
}

/// One buffer.
///
/// # Safety
/// It is lent as [`Piece::lend`] says.
#[inline]
pub(super) unsafe fn one(at: *const c_void, len: usize) -> [Piece; 1] {
    // SAFETY: by the caller.
    [if len == 0 { Piece::EMPTY } else { unsafe { Piece::lend(at.cast(), len) } }]
}
