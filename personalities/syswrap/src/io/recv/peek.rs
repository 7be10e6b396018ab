//! A look at bytes that stay (`MSG_PEEK`): kernel bytes, the ring behind them, kernel bytes again behind doorbells that nobody is to see;
//! and, for `MSG_WAITALL`, a wait for the rest.

use libc::iovec;
use madrigal_sys::{Errno, raw, tcp, time};

use super::{Hands, PEEK_NAP_NS, PIECES, Receive, filled, piecewise, readable};
use crate::io::buffers::{NOWHERE, message};
use crate::io::epoll::kernel_readiness;
use crate::outcome::Outcome;
use crate::state::session::{Took, View, phase};
use crate::state::slab::zeroed_pages;
use crate::state::socket::Socket;
use crate::state::{registration, settle};

/// Looks at what there is, and leaves it. Under the receive lock.
pub(super) fn look(v: &View<'_, Socket<'_>>, op: &Receive) -> Took {
    let flags = op.flags & libc::MSG_TRUNC | libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let skip = |done: usize, hidden: u64, limit: u64| {
        piecewise(limit, |from, limit| {
            let mut pieces = [NOWHERE; PIECES + 1];
            let hidden = hidden + from as u64;
            let bin = Bin::new(hidden)?;
            pieces[0] = bin.piece();
            let used = op.buffers.rest(done + from, limit, &mut pieces[1..]);
            let first = usize::from(hidden == 0);
            let mut msg = message(&mut pieces[first..=used]);
            // SAFETY: our own memory, and parts of the program's buffers, for which it vouches.
            let n = unsafe { raw::recvmsg(op.fd, &mut msg, flags) }?;
            let n = n.checked_sub(hidden as usize).filter(|&n| n > 0 || hidden == 0).ok_or(Errno::AGAIN)?;
            Ok((n, filled(&pieces[1..=used], n)))
        })
    };
    v.look(op.buffers.total(), &Hands { v: *v, op }, skip, || registration::adopt(v.wire.s))
}

/// Goes on from `n` bytes that were peeked at to all that the call asked for, or to what is there when a signal handler runs or no more can
/// come; from nap to nap (`Again`). `None`: the kernel carries everything.
pub(super) fn look_on(v: &View<'_, Socket<'_>>, op: &Receive, mut n: usize) -> Option<Outcome> {
    op.progress.signals.hold();
    loop {
        let more = await_more(v, op, n);
        if more == More::Later {
            op.seen.set(n);
            return Some(Outcome::Again);
        }
        let looked = {
            let _lock = v.reading();
            look(v, op)
        };
        settle::note(v.wire.s);
        match looked {
            Took::Bytes(there) => n = there,
            Took::Plain if more == More::Here => return None,
            Took::Plain => {
                let mut pieces = Receive::pieces();
                let flags = op.flags & libc::MSG_TRUNC | libc::MSG_PEEK | libc::MSG_DONTWAIT;
                // SAFETY: parts of the program's buffers, for which it vouches.
                let there = unsafe { raw::recvmsg(op.fd, &mut op.rest(&mut pieces), flags) };
                return Some(Outcome::Done(there.unwrap_or(n)));
            }
            // Another thread has taken it.
            _ => return Some(Outcome::Done(n)),
        }
        if more == More::Never || n >= op.buffers.total() {
            return Some(Outcome::Done(n));
        }
    }
}

/// Whether there is more to look at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum More {
    Here,
    Later,
    Never,
}

/// Whether more than `n` bytes can be peeked at: `Later` behind a nap, `Never` when a signal handler ran, too.
fn await_more(v: &View<'_, Socket<'_>>, op: &Receive, n: usize) -> More {
    let s = v.wire.s;
    let end = op.progress.deadline(s, op.fd, true, time::now_ns());
    if reaches_mark(v) {
        return More::Never;
    }
    if readable(s, op.fd).is_none_or(|there| there > n) {
        return More::Here;
    }
    if let Some(_lock) = v.try_reading() {
        // With nothing in a sealed ring the kernel knows how it goes on.
        if v.is_sealed_in() && View::<Socket<'_>>::CONSUMER.waiting(v.inn) == 0 {
            v.finish_receiving();
        }
        match v.s.rx() {
            phase::RING => v.check_open(false),
            // Behind bytes that are unread only the connection's state tells of the end.
            _ => v.learn(),
        }
    }
    let over = v.ended() || s.is_closed() || time::now_ns() > end;
    if !over && op.progress.signals.nap(PEEK_NAP_NS) { More::Later } else { More::Never }
}

/// Whether an urgent byte lies behind something to look at: there the look ends, as every receive that has got something.
fn reaches_mark(v: &View<'_, Socket<'_>>) -> bool {
    let urgent = kernel_readiness(v.wire.fd, libc::EPOLLPRI as u32) & libc::EPOLLPRI as u32 != 0;
    urgent && (View::<Socket<'_>>::CONSUMER.waiting(v.inn) > 0 || !tcp::at_mark(v.wire.fd))
}

/// Memory for bytes that nobody wants to see.
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
            // SAFETY: our own mapping, which nobody uses any more.
            let _ = unsafe { rustix::mm::munmap(memory.cast(), size) };
        }
    }
}
