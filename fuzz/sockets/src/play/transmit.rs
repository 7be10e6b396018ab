//! Sending calls, one for each name.

use core::ffi::c_void;
use core::ptr;

use libc::{c_long, iovec, mmsghdr, msghdr};
use madrigal_fuzz_sockets::op::{Data, Memory, Pieces};
use madrigal_fuzz_sockets::pattern::URGENT;
use madrigal_fuzz_sockets::via::SendVia;

use crate::context::{Answer, StepContext, call, count};
use crate::{aio, c, files, memory, signals, state};

/// Bytes about to be sent.
pub(crate) struct Out<'a> {
    pub(crate) fd: i32,
    pub(crate) at: *const u8,
    pub(crate) len: usize,
    pub(crate) flags: i32,
    pub(crate) pieces: &'a [iovec],
    /// The vector or header itself is bad.
    pub(crate) bad_header: bool,
}

/// One sending call.
pub(crate) fn send(context: &StepContext, data: &Data<SendVia>) {
    let len = data.len as usize;
    let place = memory::place(data.memory, len);
    let urgent = data.flags & libc::MSG_OOB != 0 && place.good > 0;
    let plain = place.good - usize::from(urgent);
    context.prepare(data.slot, 0, &mut place.bytes()[..plain]);
    if urgent {
        // Where the mark stands decides what a reader gets, and with what behind it.
        context.blind(data.slot);
        context.prepare(data.slot, URGENT, &mut place.bytes()[plain..]);
    }
    let pieces = if data.via.has_pieces() { place.cut(len, data.pieces) } else { Vec::new() };
    let out = Out {
        fd: state::fd(data.slot),
        at: place.at,
        len: if data.pieces == Pieces::None && data.via.has_pieces() { 0 } else { len },
        flags: data.flags,
        pieces: &pieces,
        bad_header: data.memory == Memory::Header,
    };
    let before = signals::count();
    let (answer, moved) = transmit(&out, data.via, context);
    context.record.signals.store(signals::count() - before, core::sync::atomic::Ordering::Relaxed);
    context.keep(answer);
    context.record.bytes.store(moved as u64, core::sync::atomic::Ordering::Relaxed);
    let last_is_urgent = urgent && moved == len;
    context.sent(data.slot, 0, moved - usize::from(last_is_urgent));
    if last_is_urgent {
        context.sent(data.slot, URGENT, 1);
    }
}

/// Makes the call; its answer, and how many bytes it took.
pub(crate) fn transmit(out: &Out<'_>, via: SendVia, context: &StepContext) -> (Answer, usize) {
    let answer = match via {
        SendVia::Sendmmsg => return sendmmsg(out, context),
        SendVia::Aio => aio::write(out),
        SendVia::Lio => aio::write_list(out),
        SendVia::Dprintf => files::dprintf(out),
        SendVia::Sendfile => files::sendfile(out),
        SendVia::Splice => files::splice_out(out),
        _ => simple(out, via),
    };
    (answer, answer.ret.max(0) as usize)
}

fn simple(out: &Out<'_>, via: SendVia) -> Answer {
    let (fd, at, len, flags) = (out.fd, out.at.cast::<c_void>(), out.len, out.flags);
    let (vector, pieces) = vector(out);
    let message = message(vector.cast_mut(), pieces);
    let message = if out.bad_header { ptr::without_provenance(8) } else { &raw const message };
    // SAFETY: the memory is as the step requires; if it is bad the kernel, or the library in front of it, must return an error.
    unsafe {
        match via {
            SendVia::Sendto => count(|| c::sendto(fd, at, len, flags, ptr::null(), 0)),
            SendVia::Sendmsg => count(|| c::sendmsg(fd, message, flags)),
            SendVia::Write => count(|| c::write(fd, at, len)),
            SendVia::Writev => count(|| c::writev(fd, vector, pieces as i32)),
            SendVia::Pwritev2 => count(|| c::pwritev2(fd, vector, pieces as i32, -1, 0)),
            SendVia::SysWrite => call(|| c::syscall(libc::SYS_write, fd as c_long, at, len)),
            SendVia::SysSendto => {
                call(|| c::syscall(libc::SYS_sendto, fd as c_long, at, len, flags as c_long, 0 as c_long, 0 as c_long))
            }
            SendVia::SysSendmsg => call(|| c::syscall(libc::SYS_sendmsg, fd as c_long, message, flags as c_long)),
            SendVia::SysWritev => call(|| c::syscall(libc::SYS_writev, fd as c_long, vector, pieces as c_long)),
            _ => count(|| c::send(fd, at, len, flags)),
        }
    }
}

fn vector(out: &Out<'_>) -> (*const iovec, usize) {
    let at = if out.bad_header { ptr::without_provenance(8) } else { out.pieces.as_ptr() };
    (at, out.pieces.len())
}

/// A message of these pieces.
pub(crate) fn message(pieces: *mut iovec, count: usize) -> msghdr {
    // SAFETY: an all-zero header is an empty message.
    let mut message: msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    message
}

/// Pieces dealt out to three messages.
pub(crate) fn messages(pieces: &[iovec]) -> Vec<mmsghdr> {
    let each = pieces.len().div_ceil(3).max(1);
    let of = |pieces: &[iovec]| mmsghdr { msg_hdr: message(pieces.as_ptr().cast_mut(), pieces.len()), msg_len: 0 };
    if pieces.is_empty() { vec![of(pieces)] } else { pieces.chunks(each).map(of).collect() }
}

fn sendmmsg(out: &Out<'_>, context: &StepContext) -> (Answer, usize) {
    let mut messages = messages(out.pieces);
    let at = if out.bad_header { ptr::without_provenance_mut(8) } else { messages.as_mut_ptr() };
    // SAFETY: see `simple`.
    let answer = call(|| unsafe { c::sendmmsg(out.fd, at, messages.len() as u32, out.flags) });
    let sent = &messages[..answer.ret.max(0) as usize];
    sent.iter().for_each(|message| context.record.add(u64::from(message.msg_len)));
    (answer, sent.iter().map(|message| message.msg_len as usize).sum())
}

/// Sends `len` bytes of a lane as well as one call does; for loops. The bytes taken, or the errno.
pub(crate) fn some(context: &StepContext, slot: u8, lane: usize, len: usize, via: SendVia) -> Result<usize, i32> {
    let place = memory::place(Memory::Good, len);
    context.prepare(slot, lane, place.bytes());
    let moved = bytes(context, state::fd(slot), place, via)?;
    context.sent(slot, lane, moved);
    Ok(moved)
}

/// Sends what a place holds as well as one call does. The bytes taken, or the errno.
pub(crate) fn bytes(context: &StepContext, fd: i32, place: memory::Place, via: SendVia) -> Result<usize, i32> {
    let pieces = if via.has_pieces() { place.cut(place.good, Pieces::Few) } else { Vec::new() };
    let flags = libc::MSG_NOSIGNAL;
    let out = Out { fd, at: place.at, len: place.good, flags, pieces: &pieces, bad_header: false };
    let (answer, moved) = transmit(&out, via, &context.aside());
    if answer.ret < 0 { Err(answer.errno) } else { Ok(moved) }
}
