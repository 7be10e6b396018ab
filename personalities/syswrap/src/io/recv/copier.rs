//! How a receive copies: out of the kernel's queue, up to the urgent mark, and out of the ring.

use core::ffi::c_int;

use libc::iovec;
use madrigal_shm_ring::ring::Span;
use madrigal_sys::{Errno, raw, tcp};

use super::call::{PIECES, Receive};
use crate::io::buffers::message;
use crate::state::session::{Taker, View};
use crate::state::sock::{self, mode};
use crate::state::socket::{Socket, view};

/// How a receive copies.
pub(super) struct Copier<'a> {
    pub(super) v: View<'a, Socket<'a>>,
    pub(super) op: &'a Receive,
}

impl Taker for Copier<'_> {
    fn kernel(&self, done: usize, limit: u64) -> Result<usize, Errno> {
        let has_part = self.op.done() + done > 0;
        let limit = if has_part { limit.min(before_mark(self.op.fd())? as u64) } else { limit };
        let flags = self.op.flags & libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        let n = piecewise(self.op.fd(), limit, |from, limit| {
            let mut pieces = Receive::pieces();
            let used = self.op.buffers.rest(self.op.done() + done + from, limit, &mut pieces);
            let mut msg = message(&mut pieces[..used]);
            // SAFETY: parts of the program's buffers, for which it vouches.
            let n = unsafe { raw::recvmsg(self.op.fd(), &mut msg, flags) }?;
            Ok((n, filled(&pieces[..used], n)))
        })?;
        self.v.wire.s.count_kernel(n, false);
        Ok(n)
    }

    fn copy(&self, done: usize, span: &Span) -> Result<usize, Errno> {
        let n = if self.op.flags & libc::MSG_TRUNC != 0 {
            span.len()
        } else {
            self.op.buffers.fill(self.op.done() + done, span, &self.v.wire.s.large_at)?
        };
        if !self.op.is_peek() {
            self.v.wire.s.count_ring(n, false);
        }
        Ok(n)
    }
}

/// Takes up to `limit` bytes, by calls with as many pieces as fit; each returns how many bytes, and whether there may be more.
pub(super) fn piecewise(
    fd: c_int,
    limit: u64,
    call: impl Fn(usize, usize) -> Result<(usize, bool), Errno>,
) -> Result<usize, Errno> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut done = 0;
    loop {
        match call(done, limit - done) {
            Ok((n, more)) => {
                done += n;
                if !more || done >= limit {
                    return Ok(done);
                }
            }
            Err(e) if done > 0 => {
                keep_error(fd, e);
                return Ok(done);
            }
            Err(e) => return Err(e),
        }
    }
}

/// Whether a call got all it had pieces for, and could have had no more of these.
pub(super) fn filled(pieces: &[iovec], n: usize) -> bool {
    pieces.len() == PIECES && n > 0 && n == pieces.iter().map(|piece| piece.iov_len).sum::<usize>()
}

/// How much a receive may take that has got a part: what has come, for it ends at an urgent mark, which the kernel would pass over, and one
/// may come at any time. `EAGAIN`: nothing, or the mark.
pub(super) fn before_mark(fd: c_int) -> Result<usize, Errno> {
    // Up to the mark; 0 at it, unless urgent bytes stay in the stream.
    let come = raw::ioctl_int(fd, libc::FIONREAD)?;
    if tcp::at_mark(fd) {
        return Err(Errno::AGAIN);
    }
    if come > 0 {
        return Ok(come as usize);
    }
    let mut byte = 0u8;
    // SAFETY: a byte of our own.
    match unsafe { raw::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) }? {
        // The end.
        0 => Ok(1),
        // It has come by now, or the mark.
        _ => Err(Errno::AGAIN),
    }
}

/// The kernel reports an error once, and the call that got it has bytes to return. A reset may be another than the peer meant.
#[cold]
pub(crate) fn keep_error(fd: c_int, e: Errno) {
    if matches!(e, Errno::AGAIN | Errno::INTR | Errno::FAULT | Errno::NOMEM) {
        return;
    }
    let Some(s) = sock::enter(fd) else { return };
    match view(&s, fd).filter(|_| s.mode() == mode::SESSION && e == Errno::CONNRESET) {
        Some(v) => v.saw_error(e),
        None => s.session.set_pending_error(e),
    }
}
