//! `MSG_PEEK`: kernel bytes, the ring behind them, and kernel bytes again behind doorbells that no program sees. For `MSG_WAITALL` the peek
//! waits for the rest.

use core::ffi::c_int;

use libc::iovec;
use madrigal_sys::{Errno, raw, tcp, time};

use super::call::{PIECES, Receive};
use super::copier::{Copier, filled, keep_error, piecewise};
use super::sleep::PEEK_SLEEP_NS;
use crate::io::buffers::{NOWHERE, message};
use crate::io::epoll::kernel_readiness;
use crate::outcome::Outcome;
use crate::state::session::{Health, Took, View, Wire as _, phase};
use crate::state::slab::zeroed_pages;
use crate::state::sock::{Ref, Sock, mode};
use crate::state::socket::{Socket, view};
use crate::state::{registration, teardown};

/// Peeks at what there is. Under the receive lock.
pub(super) fn peek(v: &View<'_, Socket<'_>>, op: &Receive) -> Took {
    let skip = |done, hidden, limit| peek_behind(op, done, hidden, limit);
    v.peek(op.buffers.total(), &Copier { v: *v, op }, skip, || registration::adopt(v.wire.s))
}

/// Peeks at up to `limit` kernel bytes behind the first `hidden` ones, for what comes behind `done` bytes of the buffers.
fn peek_behind(op: &Receive, done: usize, hidden: u64, limit: u64) -> Result<usize, Errno> {
    // What has got something ends at the urgent mark. Of what is hidden the kernel knows.
    if done > 0 && hidden == 0 && tcp::at_mark(op.fd()) {
        return Err(Errno::AGAIN);
    }
    let flags = op.flags & libc::MSG_TRUNC | libc::MSG_PEEK | libc::MSG_DONTWAIT;
    piecewise(op.fd(), limit, |from, limit| {
        let mut pieces = [NOWHERE; PIECES + 1];
        let hidden = hidden + from as u64;
        let bin = Bin::new(hidden)?;
        pieces[0] = bin.piece();
        let used = op.buffers.rest(done + from, limit, &mut pieces[1..]);
        let first = usize::from(hidden == 0);
        let mut msg = message(&mut pieces[first..=used]);
        // SAFETY: our own memory, and parts of the program's buffers, for which it vouches.
        let n = unsafe { raw::recvmsg(op.fd(), &mut msg, flags) }?;
        let n = n.checked_sub(hidden as usize).filter(|&n| n > 0 || hidden == 0).ok_or(Errno::AGAIN)?;
        Ok((n, filled(&pieces[1..=used], n)))
    })
}

impl Receive {
    /// A peek has seen `n` bytes.
    pub(super) fn peeked(&self, n: usize, s: &Ref) -> Outcome {
        self.seen.set(n);
        let enough = n == 0 || self.wants_no_more() || self.nonblocking(s);
        if enough { Outcome::Done(n) } else { continue_peek(s, self) }
    }
}

/// Goes on from the bytes that were seen to all that the call asked for, or to what is there when a signal handler runs or no more can
/// come; from sleep to sleep (`Again`).
pub(super) fn continue_peek(s: &Ref, op: &Receive) -> Outcome {
    op.progress.note_wait();
    op.progress.signals.hold();
    loop {
        let more = await_more(s, op, unread(s, op.fd()));
        if more == More::Later {
            op.at.pin(s);
            return Outcome::Again;
        }
        if more == More::Never && unread(s, op.fd()).is_some_and(|there| there < op.seen.get()) {
            // A handler has taken what was seen, which is behind this peek.
            return Outcome::Done(op.seen.get());
        }
        let result = view(s, op.fd()).map_or(Took::Plain, |v| {
            let _lock = v.reading();
            peek(&v, op)
        });
        teardown::mark_due(s);
        let n = match result {
            Took::Bytes(n) => Some(n),
            Took::Plain => {
                peek_behind(op, 0, 0, op.buffers.total() as u64).inspect_err(|e| keep_error(op.fd(), *e)).ok()
            }
            _ => None,
        };
        // Another thread may have taken it.
        op.seen.set(n.unwrap_or(op.seen.get()));
        if n.is_none() || more == More::Never || op.wants_no_more() {
            return Outcome::Done(op.seen.get());
        }
    }
}

/// Bytes a receive would find now: `FIONREAD` across kernel and ring. `None`: the kernel knows.
pub(crate) fn readable(s: &Sock, fd: c_int) -> Option<usize> {
    if s.mode() != mode::SESSION || !s.session.receives() {
        return None;
    }
    usize::try_from(view(s, fd)?.inbound()).ok()
}

/// How much there is, by the ring's count or the kernel's.
fn unread(s: &Ref, fd: c_int) -> Option<usize> {
    readable(s, fd).or_else(|| Socket { s, fd }.queued().ok().map(|n| n as usize))
}

/// Whether there is more to peek at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum More {
    Here,
    Later,
    Never,
}

/// Whether there is more than was seen: `Later` behind a sleep, `Never` when a signal handler ran, too.
fn await_more(s: &Ref, op: &Receive, there: Option<usize>) -> More {
    let end = op.progress.deadline(s, op.fd(), true, time::now_ns());
    if reaches_mark(s, op.fd()) {
        return More::Never;
    }
    if there.is_none_or(|there| there > op.seen.get()) {
        return More::Here;
    }
    let over = has_ended(s, op.fd()) || s.is_closed() || time::now_ns() > end;
    if !over && op.progress.signals.sleep(PEEK_SLEEP_NS) { More::Later } else { More::Never }
}

/// Whether no more will come.
fn has_ended(s: &Ref, fd: c_int) -> bool {
    let Some(v) = view(s, fd) else { return Socket { s, fd }.health() != Health::Open };
    if let Some(_lock) = v.try_reading() {
        // With nothing in a sealed ring the kernel knows how it goes on.
        if v.is_sealed_in() && View::<Socket<'_>>::CONSUMER.waiting(v.inn) == 0 {
            v.finish_receiving();
        }
        match v.s.rx() {
            phase::RING => v.check_open(false),
            // Behind unread bytes only the connection's state shows the end.
            _ => v.learn(),
        }
    }
    v.ended()
}

/// Whether an urgent byte lies behind something to peek at: the peek ends there, as every receive that has got something.
fn reaches_mark(s: &Ref, fd: c_int) -> bool {
    let urgent = kernel_readiness(fd, libc::EPOLLPRI as u32) & libc::EPOLLPRI as u32 != 0;
    let in_ring = || view(s, fd).is_some_and(|v| View::<Socket<'_>>::CONSUMER.waiting(v.inn) > 0);
    urgent && (in_ring() || !tcp::at_mark(fd))
}

/// Memory for bytes to be dropped.
struct Bin(Option<(*mut u8, usize)>);

impl Bin {
    fn new(bytes: u64) -> Result<Self, Errno> {
        let size = usize::try_from(bytes).ok().filter(|&size| size <= 64 << 20).ok_or(Errno::NOMEM)?;
        if size == 0 {
            return Ok(Self(None));
        }
        zeroed_pages(size).map(|memory| Self(Some((memory, size)))).ok_or(Errno::NOMEM)
    }

    fn piece(&self) -> iovec {
        self.0.map_or(NOWHERE, |(memory, size)| iovec { iov_base: memory.cast(), iov_len: size })
    }
}

impl Drop for Bin {
    fn drop(&mut self) {
        if let Some((memory, size)) = self.0 {
            // SAFETY: our own mapping, which is no longer used.
            let _ = unsafe { rustix::mm::munmap(memory.cast(), size) };
        }
    }
}
