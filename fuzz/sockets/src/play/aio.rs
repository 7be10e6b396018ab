//! POSIX asynchronous calls, each waited for: the C library's own threads make them.

use core::ptr;

use libc::{aiocb, c_int};

use crate::c;
use crate::context::{Answer, call};
use crate::receive::In;
use crate::transmit::Out;

fn request(fd: c_int, at: *mut u8, len: usize) -> aiocb {
    // SAFETY: an all-zero request notifies no thread when it is done.
    let mut request: aiocb = unsafe { core::mem::zeroed() };
    request.aio_fildes = fd;
    request.aio_buf = at.cast();
    request.aio_nbytes = len;
    request.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
    request
}

/// Waits for the end of a request.
fn wait(request: &mut aiocb) -> Answer {
    let at: *mut aiocb = request;
    let list = [at.cast_const()];
    // SAFETY: the request lives until it is done, for we wait for that.
    unsafe {
        while c::aio_error(at) == libc::EINPROGRESS {
            c::aio_suspend(list.as_ptr(), 1, ptr::null());
        }
        let error = c::aio_error(at);
        Answer { ret: c::aio_return(at) as i64, errno: error }
    }
}

/// aio_read and its end; nothing where it would wait, since the C library's threads could not be interrupted.
pub(crate) fn read(room: &In<'_>) -> Answer {
    let mut entry = libc::pollfd { fd: room.fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry of our own.
    if call(|| unsafe { c::poll(&raw mut entry, 1, 0) }).ret == 0 {
        return Answer { ret: -1, errno: libc::EAGAIN };
    }
    let mut request = request(room.fd, room.at, room.len);
    // SAFETY: good memory, which lives as long as we wait.
    let begun = call(|| unsafe { c::aio_read(&raw mut request) });
    if begun.ret < 0 { begun } else { wait(&mut request) }
}

/// aio_write and its end.
pub(crate) fn write(out: &Out<'_>) -> Answer {
    let mut request = request(out.fd, out.at.cast_mut(), out.len);
    // SAFETY: see `read`.
    let begun = call(|| unsafe { c::aio_write(&raw mut request) });
    if begun.ret < 0 { begun } else { wait(&mut request) }
}

/// lio_listio of two halves, waited for; the sum.
pub(crate) fn write_list(out: &Out<'_>) -> Answer {
    let half = out.len / 2;
    let mut first = request(out.fd, out.at.cast_mut(), half);
    let mut second = request(out.fd, out.at.cast_mut().wrapping_add(half), out.len - half);
    first.aio_lio_opcode = libc::LIO_WRITE;
    second.aio_lio_opcode = libc::LIO_WRITE;
    let list = [&raw mut first, &raw mut second];
    // SAFETY: see `read`.
    let begun = call(|| unsafe { c::lio_listio(libc::LIO_WAIT, list.as_ptr(), 2, ptr::null_mut()) });
    let (first, second) = (wait(&mut first), wait(&mut second));
    match (first.ret, second.ret) {
        (-1, _) => first,
        (sent, -1) => Answer { ret: sent, errno: 0 },
        (one, other) if begun.ret == 0 => Answer { ret: one + other, errno: 0 },
        _ => begun,
    }
}
