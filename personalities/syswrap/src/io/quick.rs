//! The short way of most calls: a receive that finds bytes in its ring, a send that finds room there. It does in one step what
//! [`super::recv::receive`] and [`super::send::send`] do in many. In any other case it does nothing, and they do everything.

use core::ffi::c_int;

use madrigal_shm_ring::ring::{CHUNK, Span};
use madrigal_sys::{Errno, fault};

use super::{plain, send};
use crate::state::process;
use crate::state::session::{Taker, Took};
use crate::state::sock::{self, Ref, Sock, mode};
use crate::state::socket::view;

/// Flags that change nothing of a call that does not wait.
const SIMPLE: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
/// Buffers that end below the program's highest address are no larger.
const MOST: usize = 1 << 30;

/// Bytes received, or `EAGAIN`. `None`: nothing was done.
///
/// # Safety
/// What is mapped of the `n` bytes at `to` may be written.
#[inline]
pub(crate) unsafe fn receive(fd: c_int, to: *mut u8, n: usize, flags: c_int) -> Option<Result<usize, Errno>> {
    let s = in_session(fd, to, n, flags)?;
    let v = view(&s, fd)?;
    let took = {
        let guard = v.s.rlock.lock();
        if guard.nested() || v.s.is_shared() {
            return None;
        }
        v.take_at_once(n, &Copier { s: &s, to, n })?
    };
    match took {
        Took::Bytes(n) => {
            v.pay_space();
            s.alternate(false);
            Some(Ok(n))
        }
        _ => plain::nonblocking(&s, flags).then_some(Err(Errno::AGAIN)),
    }
}

/// Bytes sent. `None`: nothing was done.
///
/// # Safety
/// What is mapped of the `n` bytes at `from` may be read.
#[inline]
pub(crate) unsafe fn send(fd: c_int, from: *const u8, n: usize, flags: c_int) -> Option<usize> {
    let s = in_session(fd, from, n, flags)?;
    let v = view(&s, fd)?;
    if !s.deferred.is_empty() {
        return None;
    }
    let (n, sleeper) = {
        let guard = v.s.wlock.lock();
        if guard.nested() {
            return None;
        }
        // SAFETY: the caller vouches for the bytes; the span is free space under the send lock.
        v.put_at_once(n, |span| unsafe { span.copy_in_by(0, from, n, fault::copy) })?
    };
    s.count_ring(n, true);
    s.alternate(true);
    v.wake(sleeper);
    send::flush_deferred(&s, fd);
    Some(n)
}

/// The socket, where a call of this kind may go the short way.
#[inline(always)]
fn in_session(fd: c_int, buffer: *const u8, n: usize, flags: c_int) -> Option<Ref> {
    let inside = n <= MOST && buffer.addr() <= isize::MAX as usize - MOST;
    let simple = flags & !SIMPLE == 0 && n > 0 && inside;
    if !simple || process::leaves_at_random() {
        return None;
    }
    sock::enter(fd).filter(|s| s.mode() == mode::SESSION)
}

struct Copier<'a> {
    s: &'a Sock,
    to: *mut u8,
    n: usize,
}

impl Taker for Copier<'_> {
    /// Never asked for.
    fn kernel(&self, _: usize, _: u64) -> Result<usize, Errno> {
        Err(Errno::AGAIN)
    }

    #[inline]
    fn copy(&self, _: usize, span: &Span) -> Result<usize, Errno> {
        if span.len() > CHUNK {
            // It may come to fresh pages.
            return Err(Errno::AGAIN);
        }
        // SAFETY: the caller vouches for its buffer; the span is data of a ring under the receive lock.
        match unsafe { span.copy_out_by(0, self.to, self.n, fault::copy) } {
            0 => Err(Errno::FAULT),
            n => {
                self.s.count_ring(n, false);
                Ok(n)
            }
        }
    }
}
