//! Options, flags and requests.

use core::ffi::c_void;
use core::ptr;

use libc::{IPPROTO_TCP, SOL_SOCKET, c_int, timeval};
use madrigal_fuzz_sockets::op::{Op, Opt, Request, Slot};
use madrigal_fuzz_sockets::raw;

use crate::context::{Answer, StepContext, call};
use crate::{c, state};

/// A step about options.
pub(crate) fn play(context: &StepContext, op: &Op) {
    match *op {
        Op::SetOption { slot, option, value } => set(context, slot, option, value),
        Op::GetOption { slot, option } => tell(context, slot, option),
        Op::Ioctl { slot, request } => ioctl(context, slot, request),
        // SAFETY: no memory is passed.
        Op::AtMark { slot } => drop(context.call(|| unsafe { c::sockatmark(state::fd(slot)) })),
        Op::NonBlocking { slot, on } => nonblocking(context, slot, on),
        Op::Flags { slot } => flags(context, slot),
        Op::Own { slot } => {
            // SAFETY: no memory is passed.
            context.call(|| unsafe { c::fcntl(state::fd(slot), libc::F_SETOWN, libc::getpid()) });
        }
        _ => {}
    }
}

/// Level and name of an option.
fn number(option: Opt) -> (c_int, c_int) {
    match option {
        Opt::NoDelay => (IPPROTO_TCP, libc::TCP_NODELAY),
        Opt::Cork => (IPPROTO_TCP, libc::TCP_CORK),
        Opt::QuickAck => (IPPROTO_TCP, libc::TCP_QUICKACK),
        Opt::Info => (IPPROTO_TCP, libc::TCP_INFO),
        Opt::MaxSeg => (IPPROTO_TCP, libc::TCP_MAXSEG),
        Opt::Unknown => (IPPROTO_TCP, 999),
        Opt::KeepAlive => (SOL_SOCKET, libc::SO_KEEPALIVE),
        Opt::SndBuf => (SOL_SOCKET, libc::SO_SNDBUF),
        Opt::RcvBuf => (SOL_SOCKET, libc::SO_RCVBUF),
        Opt::OobInline => (SOL_SOCKET, libc::SO_OOBINLINE),
        Opt::RcvLowat => (SOL_SOCKET, libc::SO_RCVLOWAT),
        Opt::RcvTimeo => (SOL_SOCKET, libc::SO_RCVTIMEO),
        Opt::SndTimeo => (SOL_SOCKET, libc::SO_SNDTIMEO),
        Opt::Linger => (SOL_SOCKET, libc::SO_LINGER),
        Opt::ReuseAddr => (SOL_SOCKET, libc::SO_REUSEADDR),
        Opt::ReusePort => (SOL_SOCKET, libc::SO_REUSEPORT),
        Opt::Error => (SOL_SOCKET, libc::SO_ERROR),
        Opt::Type => (SOL_SOCKET, libc::SO_TYPE),
        Opt::BusyPoll => (SOL_SOCKET, libc::SO_BUSY_POLL),
        Opt::Priority => (SOL_SOCKET, libc::SO_PRIORITY),
        Opt::AcceptConn => (SOL_SOCKET, libc::SO_ACCEPTCONN),
        Opt::Protocol => (SOL_SOCKET, libc::SO_PROTOCOL),
    }
}

fn set(context: &StepContext, slot: Slot, option: Opt, value: i32) {
    let (level, name) = number(option);
    let time = timeval { tv_sec: i64::from(value) / 1000, tv_usec: i64::from(value) % 1000 * 1000 };
    let linger = libc::linger { l_onoff: c_int::from(value >= 0), l_linger: value.max(0) };
    let (at, len): (*const c_void, usize) = match option {
        Opt::RcvTimeo | Opt::SndTimeo => ((&raw const time).cast(), size_of::<timeval>()),
        Opt::Linger => ((&raw const linger).cast(), size_of::<libc::linger>()),
        _ => ((&raw const value).cast(), size_of::<c_int>()),
    };
    // SAFETY: a value of our own.
    context.call(|| unsafe { c::setsockopt(state::fd(slot), level, name, at, len as u32) });
}

fn tell(context: &StepContext, slot: Slot, option: Opt) {
    let (level, name) = number(option);
    let mut value = [0u32; 64];
    let room = match option {
        Opt::Info => size_of_val(&value),
        Opt::RcvTimeo | Opt::SndTimeo => size_of::<timeval>(),
        Opt::Linger => size_of::<libc::linger>(),
        _ => size_of::<c_int>(),
    };
    let mut len = room as u32;
    // SAFETY: a value of our own.
    let answer = context
        .call(|| unsafe { c::getsockopt(state::fd(slot), level, name, value.as_mut_ptr().cast(), &raw mut len) });
    if answer.ret < 0 {
        return;
    }
    if option == Opt::Info {
        // The state; what follows are counters.
        context.record.add(u64::from(value[0] & 0xFF));
    } else {
        context.record.add(u64::from(len));
        value[..len as usize / 4].iter().for_each(|word| context.record.add(u64::from(*word)));
    }
}

fn ioctl(context: &StepContext, slot: Slot, request: Request) {
    let mut value: c_int = -77;
    let number = match request {
        Request::FionRead => libc::FIONREAD,
        Request::SiocOutq => libc::TIOCOUTQ,
        Request::AtMark => 0x8905,
        Request::Fionbio(on) => {
            value = c_int::from(on);
            libc::FIONBIO
        }
        Request::FioAsync(on) => {
            value = c_int::from(on);
            libc::FIOASYNC
        }
    };
    // SAFETY: an int of our own.
    context.call(|| unsafe { c::ioctl(state::fd(slot), number, &raw mut value) });
    if request == Request::SiocOutq && !raw::is_established(state::fd(slot)) {
        // What was not acknowledged when the connection ended is left to chance.
        value = 0;
    }
    context.record.add(value as u32 as u64);
}

fn nonblocking(context: &StepContext, slot: Slot, on: bool) {
    let fd = state::fd(slot);
    // SAFETY: no memory is passed.
    unsafe {
        let now = call(|| c::fcntl(fd, libc::F_GETFL));
        context.note(now);
        let rest = now.ret as c_int & !libc::O_NONBLOCK;
        context.call(|| c::fcntl(fd, libc::F_SETFL, rest | if on { libc::O_NONBLOCK } else { 0 }));
    }
}

fn flags(context: &StepContext, slot: Slot) {
    let fd = state::fd(slot);
    // SAFETY: no memory is passed.
    unsafe {
        context.note(call(|| c::fcntl(fd, libc::F_GETFL, ptr::null::<c_void>())));
        context.note(call(|| c::fcntl(fd, libc::F_GETFD, ptr::null::<c_void>())));
    }
    context.keep(Answer { ret: 0, errno: 0 });
}
