//! Receiving calls, one for each name.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::Ordering;

use libc::{c_long, iovec, msghdr};
use madrigal_fuzz_sockets::op::{Data, Memory, Pieces};
use madrigal_fuzz_sockets::via::RecvVia;

use crate::context::{Answer, StepContext, call, count};
use crate::transmit::{message, messages};
use crate::{aio, c, files, memory, signals, state};

/// What memory holds before it is received into.
const BLANK: u8 = 1;

/// Room about to be received into.
pub(crate) struct In<'a> {
    pub(crate) fd: i32,
    pub(crate) at: *mut u8,
    pub(crate) len: usize,
    pub(crate) flags: i32,
    pub(crate) pieces: &'a [iovec],
    /// The vector or header itself is bad.
    pub(crate) bad_header: bool,
}

/// One receiving call.
pub(crate) fn receive(context: &StepContext, data: &Data<RecvVia>) {
    let len = data.len as usize;
    let place = memory::place(data.memory, len);
    place.bytes().fill(BLANK);
    let pieces = if data.via.has_pieces() { place.cut(len, data.pieces) } else { Vec::new() };
    let room = In {
        fd: state::fd(data.slot),
        at: place.at,
        len,
        flags: data.flags,
        pieces: &pieces,
        bad_header: data.memory == Memory::Header,
    };
    let before = signals::count();
    let (answer, moved) = take(&room, data.via, context);
    context.record.signals.store(signals::count() - before, Ordering::Relaxed);
    context.keep(answer);
    keep(context, data, &place.bytes()[..moved.min(place.good)], moved);
}

/// Keeps what a call with these flags brought.
fn keep(context: &StepContext, data: &Data<RecvVia>, bytes: &[u8], moved: usize) {
    let taken = data.flags & libc::MSG_PEEK == 0;
    if data.flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return;
    }
    if data.flags & libc::MSG_TRUNC != 0 || data.via == RecvVia::Recvmmsg && !taken {
        // Nothing was written, or the same bytes for each message; the hash says so.
        context.record.hash.store(madrigal_fuzz_sockets::pattern::hash(bytes), Ordering::Relaxed);
        context.record.bytes.store(moved as u64, Ordering::Relaxed);
        if taken {
            context.skipped(data.slot, moved);
        }
        return;
    }
    context.received(data.slot, bytes, taken);
}

/// A call that slept may have brought only the first of what is there by now.
pub(crate) fn top_up(context: &StepContext, data: &Data<RecvVia>) {
    let unfit = libc::MSG_OOB | libc::MSG_ERRQUEUE;
    let got = context.record.bytes.load(Ordering::Relaxed) as usize;
    let want = data.len as usize;
    if got == 0 || got >= want || data.flags & unfit != 0 || data.memory != Memory::Good {
        return;
    }
    let peek = data.flags & libc::MSG_PEEK;
    let all = memory::bytes(want);
    let from = if peek == 0 { got } else { 0 };
    let room = &mut all[from..];
    let trunc = data.flags & libc::MSG_TRUNC;
    let flags = libc::MSG_DONTWAIT | peek | trunc;
    // SAFETY: memory of our own.
    let more = count(|| unsafe { c::recv(state::fd(data.slot), room.as_mut_ptr().cast(), room.len(), flags) });
    let more = more.ret.max(0) as usize;
    let there = (from + more).max(got);
    context.record.ret.store(there as i64, Ordering::Relaxed);
    if trunc != 0 {
        // Nothing was written.
        context.record.bytes.store(there as u64, Ordering::Relaxed);
        context.record.hash.store(madrigal_fuzz_sockets::pattern::hash(&all[..there]), Ordering::Relaxed);
        context.skipped(data.slot, if peek == 0 { more } else { 0 });
    } else if peek == 0 {
        context.check(data.slot, &all[got..got + more], true);
        context.record.bytes.store((got + more) as u64, Ordering::Relaxed);
        context.record.hash.store(madrigal_fuzz_sockets::pattern::hash(&all[..got + more]), Ordering::Relaxed);
    } else if more > got {
        context.received(data.slot, &all[..more], false);
    }
}

/// Makes the call; its answer, and how many bytes it brought.
pub(crate) fn take(room: &In<'_>, via: RecvVia, context: &StepContext) -> (Answer, usize) {
    let answer = match via {
        RecvVia::Recvmmsg => return recvmmsg(room, context),
        RecvVia::Recvmsg | RecvVia::SysRecvmsg => recvmsg(room, via, context),
        RecvVia::Recvfrom | RecvVia::RecvfromChk => recvfrom(room, via, context),
        RecvVia::Aio => aio::read(room),
        RecvVia::Splice => files::splice_in(room),
        _ => simple(room, via),
    };
    (answer, answer.ret.max(0) as usize)
}

fn simple(room: &In<'_>, via: RecvVia) -> Answer {
    let (fd, at, len, flags) = (room.fd, room.at.cast::<c_void>(), room.len, room.flags);
    let vector: *const iovec = if room.bad_header { ptr::without_provenance(8) } else { room.pieces.as_ptr() };
    let pieces = room.pieces.len();
    let none = 0 as c_long;
    // SAFETY: the memory is as the step requires; if it is bad the kernel, or the library in front of it, must return an error.
    unsafe {
        match via {
            RecvVia::Read => count(|| c::read(fd, at, len)),
            RecvVia::Readv => count(|| c::readv(fd, vector, pieces as i32)),
            RecvVia::Preadv2 => count(|| c::preadv2(fd, vector, pieces as i32, -1, 0)),
            RecvVia::RecvChk => count(|| c::__recv_chk(fd, at, len, len, flags)),
            RecvVia::ReadChk => count(|| c::__read_chk(fd, at, len, len)),
            RecvVia::SysRead => call(|| c::syscall(libc::SYS_read, fd as c_long, at, len)),
            RecvVia::SysRecvfrom => {
                call(|| c::syscall(libc::SYS_recvfrom, fd as c_long, at, len, flags as c_long, none, none))
            }
            RecvVia::SysReadv => call(|| c::syscall(libc::SYS_readv, fd as c_long, vector, pieces as c_long)),
            _ => count(|| c::recv(fd, at, len, flags)),
        }
    }
}

fn recvfrom(room: &In<'_>, via: RecvVia, context: &StepContext) -> Answer {
    let mut name = [0u64; 16];
    let mut len = size_of_val(&name) as u32;
    let (from, len_at) = (name.as_mut_ptr().cast(), &raw mut len);
    // SAFETY: see `simple`; the name is our own.
    let answer = count(|| unsafe {
        if via == RecvVia::Recvfrom {
            c::recvfrom(room.fd, room.at.cast(), room.len, room.flags, from, len_at)
        } else {
            c::__recvfrom_chk(room.fd, room.at.cast(), room.len, room.len, room.flags, from, len_at)
        }
    });
    if answer.ret >= 0 {
        context.record.add(u64::from(len));
    }
    answer
}

fn recvmsg(room: &In<'_>, via: RecvVia, context: &StepContext) -> Answer {
    let (mut name, mut control) = ([0u64; 16], [0u64; 16]);
    let mut message = message(room.pieces.as_ptr().cast_mut(), room.pieces.len());
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = size_of_val(&name) as u32;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let at: *mut msghdr = if room.bad_header { ptr::without_provenance_mut(8) } else { &raw mut message };
    // SAFETY: see `simple`.
    let answer = unsafe {
        if via == RecvVia::Recvmsg {
            count(|| c::recvmsg(room.fd, at, room.flags))
        } else {
            call(|| c::syscall(libc::SYS_recvmsg, room.fd as c_long, at, room.flags as c_long))
        }
    };
    if answer.ret >= 0 {
        context.record.add(message.msg_flags as u64);
        context.record.add(u64::from(message.msg_namelen));
        context.record.add(message.msg_controllen as u64);
    }
    answer
}

fn recvmmsg(room: &In<'_>, context: &StepContext) -> (Answer, usize) {
    let mut messages = messages(room.pieces);
    let at = if room.bad_header { ptr::without_provenance_mut(8) } else { messages.as_mut_ptr() };
    // SAFETY: see `simple`.
    let answer = call(|| unsafe { c::recvmmsg(room.fd, at, messages.len() as u32, room.flags, ptr::null_mut()) });
    let mut sum = 0;
    for message in &messages[..answer.ret.max(0) as usize] {
        context.record.add(u64::from(message.msg_len));
        context.record.add(message.msg_hdr.msg_flags as u64);
        if !room.bad_header && message.msg_hdr.msg_iovlen > 0 {
            // A message may be short: what came is moved together. Its pieces lie one behind the other.
            // SAFETY: the message has a piece, and what it received lies in the memory from there on.
            unsafe {
                let from = (*message.msg_hdr.msg_iov).iov_base.cast::<u8>();
                ptr::copy(from, room.at.add(sum), message.msg_len as usize);
            }
        }
        sum += message.msg_len as usize;
    }
    (answer, sum)
}

/// Receives up to `len` bytes as one call does; for loops. What came, or the errno.
pub(crate) fn some(context: &StepContext, fd: i32, len: usize, via: RecvVia, flags: i32) -> Result<&'static [u8], i32> {
    let place = memory::place(Memory::Good, len);
    // One piece: what comes must lie together.
    let pieces = if via.has_pieces() { place.cut(len, Pieces::One) } else { Vec::new() };
    let flags = if via.has_flags() { flags } else { 0 };
    let room = In { fd, at: place.at, len: place.good, flags, pieces: &pieces, bad_header: false };
    let (answer, moved) = take(&room, via, &context.aside());
    if answer.ret < 0 { Err(answer.errno) } else { Ok(&place.bytes()[..moved]) }
}
