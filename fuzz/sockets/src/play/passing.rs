//! Descriptors passed through Unix sockets.

use core::ptr;
use core::sync::atomic::Ordering;

use libc::{c_int, iovec, sockaddr};
use madrigal_fuzz_sockets::op::{Op, Slot};

use crate::context::{StepContext, call, count};
use crate::transmit::message;
use crate::{c, state};

/// A step about passing.
pub(crate) fn play(context: &StepContext, op: &Op) {
    match *op {
        Op::UnixPair { slot, other } => pair(context, slot, other),
        Op::UnixListen { slot } => {
            let answer = context.call(socket);
            context.open(slot, answer);
            let (name, len) = name(slot);
            // SAFETY: a name of our own.
            unsafe {
                context.note(call(|| c::bind(state::fd(slot), name.as_ptr().cast::<sockaddr>(), len)));
                context.note(call(|| c::listen(state::fd(slot), 8)));
            }
        }
        Op::UnixConnect { slot, to } => {
            let answer = context.call(socket);
            context.open(slot, answer);
            let (name, len) = name(to);
            // SAFETY: a name of our own.
            context.note(call(|| unsafe { c::connect(state::fd(slot), name.as_ptr().cast::<sockaddr>(), len) }));
        }
        Op::UnixAccept { slot, from } => {
            // SAFETY: no name is asked for.
            let answer = context.call(|| unsafe { c::accept(state::fd(from), ptr::null_mut(), ptr::null_mut()) });
            context.open(slot, answer);
        }
        Op::Pass { through, slot } => {
            context.call(|| pass(state::fd(through), state::fd(slot), mark(slot)) as i64);
        }
        Op::Take { through, slot } => {
            let (mut fd, mut byte) = (-1, 0);
            context.call(|| take(state::fd(through), &mut fd, &mut byte) as i64);
            context.record.add(fd as u64);
            if fd >= 0 && byte == mark(slot) {
                state::set_fd(slot, fd);
            } else if fd >= 0 {
                // The one that was meant was never taken, for its step was not made.
                // SAFETY: no memory is passed.
                unsafe { c::close(fd) };
            }
        }
        _ => {}
    }
}

fn socket() -> c_int {
    // SAFETY: no memory is passed.
    unsafe { c::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) }
}

fn pair(context: &StepContext, slot: Slot, other: Slot) {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    let answer = context.call(|| unsafe { c::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()) });
    if answer.ret == 0 {
        context.record.add(ends[0] as u64);
        context.record.add(ends[1] as u64);
        state::set_fd(slot, ends[0]);
        state::set_fd(other, ends[1]);
    }
}

/// A name of this run and slot, in no file system.
fn name(slot: Slot) -> ([u8; 64], u32) {
    let mut bytes = [0u8; 64];
    bytes[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    let text = format!("\0madrigal-fuzz-{}-{slot}", state::state().region.run.load(Ordering::Relaxed));
    let len = 2 + text.len();
    bytes[2..len].copy_from_slice(text.as_bytes());
    (bytes, len as u32)
}

/// A tag for the end of a connection that is passed.
fn mark(slot: Slot) -> u8 {
    state::state().program.end(slot).map_or(0, |(conn, side)| 1 + conn * 2 + side)
}

/// Sends a descriptor with one byte.
pub(crate) fn pass(through: c_int, fd: c_int, mut byte: u8) -> isize {
    let mut piece = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0u64; 8];
    let mut message = message(&raw mut piece, 1);
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: a header and room of our own for one descriptor.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(head).cast::<c_int>().write_unaligned(fd);
        c::sendmsg(through, &raw const message, libc::MSG_NOSIGNAL)
    }
}

/// Receives a byte, and the descriptor that came with it.
pub(crate) fn take(through: c_int, fd: &mut c_int, byte: &mut u8) -> isize {
    let mut piece = iovec { iov_base: core::ptr::from_mut(byte).cast(), iov_len: 1 };
    let mut control = [0u64; 8];
    let mut message = message(&raw mut piece, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: a header and room of our own.
    unsafe {
        let answer = count(|| c::recvmsg(through, &raw mut message, 0));
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        if answer.ret > 0 && !head.is_null() && (*head).cmsg_type == libc::SCM_RIGHTS {
            *fd = libc::CMSG_DATA(head).cast::<c_int>().read_unaligned();
        }
        c::set_errno(answer.errno);
        answer.ret as isize
    }
}
