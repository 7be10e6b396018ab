//! Calls that move bytes between sockets and files or pipes.

use core::ffi::c_void;
use core::ptr;

use madrigal_fuzz_sockets::op::Slot;

use crate::context::{Answer, StepContext, call, count};
use crate::receive::In;
use crate::transmit::Out;
use crate::{c, state};

/// Most bytes a pipe holds.
const PIPE: usize = 65536;

/// dprintf(3) of text.
pub(crate) fn dprintf(out: &Out<'_>) -> Answer {
    // SAFETY: a format for a length and that many bytes.
    call(|| unsafe { c::dprintf(out.fd, c"%.*s".as_ptr(), out.len as i32, out.at) })
}

/// sendfile(2) from a file that holds the bytes.
pub(crate) fn sendfile(out: &Out<'_>) -> Answer {
    // SAFETY: good memory; a descriptor of our own, closed again.
    unsafe {
        let file = c::memfd_create(c"play".as_ptr(), 0);
        c::pwrite(file, out.at.cast::<c_void>(), out.len, 0);
        let mut at = 0;
        let answer = count(|| c::sendfile(out.fd, file, &raw mut at, out.len));
        c::close(file);
        answer
    }
}

fn pipe() -> [i32; 2] {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    unsafe { c::pipe2(ends.as_mut_ptr(), 0) };
    ends
}

fn drop_pipe(ends: [i32; 2]) {
    // SAFETY: our own descriptors.
    unsafe {
        c::close(ends[0]);
        c::close(ends[1]);
    }
}

/// splice(2) from a pipe that holds the bytes, as many as fit.
pub(crate) fn splice_out(out: &Out<'_>) -> Answer {
    let ends = pipe();
    let len = out.len.min(PIPE);
    // SAFETY: good memory; descriptors of our own.
    let answer = unsafe {
        c::write(ends[1], out.at.cast::<c_void>(), len);
        count(|| c::splice(ends[0], ptr::null_mut(), out.fd, ptr::null_mut(), len, 0))
    };
    drop_pipe(ends);
    answer
}

/// splice(2) into a pipe, and out of it into memory.
pub(crate) fn splice_in(room: &In<'_>) -> Answer {
    let ends = pipe();
    let len = room.len.min(PIPE);
    // SAFETY: good memory; descriptors of our own.
    let answer = unsafe {
        let answer = count(|| c::splice(room.fd, ptr::null_mut(), ends[1], ptr::null_mut(), len, 0));
        if answer.ret > 0 {
            c::read(ends[0], room.at.cast::<c_void>(), answer.ret as usize);
        }
        answer
    };
    drop_pipe(ends);
    answer
}

/// What no socket can do.
pub(crate) fn odd(context: &StepContext, slot: Slot) {
    let fd = state::fd(slot);
    let ends = pipe();
    let mut at = 0;
    // SAFETY: descriptors and memory of our own.
    unsafe {
        let file = c::memfd_create(c"play".as_ptr(), 0);
        context.note(count(|| c::tee(fd, ends[1], 10, 0)));
        context.note(count(|| c::tee(ends[0], fd, 10, 0)));
        context.note(count(|| c::sendfile(file, fd, ptr::null_mut(), 10)));
        context.note(count(|| c::copy_file_range(fd, ptr::null_mut(), file, ptr::null_mut(), 10, 0)));
        context.note(count(|| c::pread(fd, (&raw mut at).cast(), 4, 0)));
        context.note(count(|| c::pwrite(fd, (&raw mut at).cast(), 4, 0)));
        context.note(call(|| c::lseek(fd, 0, libc::SEEK_CUR)));
        context.note(count(|| c::splice(fd, &raw mut at, ends[1], ptr::null_mut(), 10, 0)));
        context.note(count(|| c::splice(file, ptr::null_mut(), fd, ptr::null_mut(), 10, 0)));
        c::close(file);
    }
    drop_pipe(ends);
    context.keep(Answer { ret: 0, errno: 0 });
}
