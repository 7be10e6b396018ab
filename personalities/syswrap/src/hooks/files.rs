//! Files into sockets: sendfile(2) and splice(2).

use core::ffi::{c_int, c_uint};
use core::ptr;

use libc::{off_t, off64_t, size_t, ssize_t};
use madrigal_report::Reason;
use madrigal_sys::{Errno, fault, file, raw};

use super::{
    cancellable, cancellation_point, checked, data, fail, finish, get, guarded, guarded_or, has_bytes, is_socket,
    leaves_rest, sends_by_kernel,
};
use crate::io::file::{Transfer, transfer};
use crate::io::progress::Progress;
use crate::io::target::Target;
use crate::io::{recv, send};
use crate::outcome::{Outcome, errno};
use crate::real;
use crate::state::sock;

/// What the kernel moves in one call at the most (sendfile(2), NOTES).
const MOST: usize = 0x7fff_f000;
/// What it moves at once behind a session: so long the peer may have to wait.
const PART: usize = 256 << 10;

/// sendfile(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(out: c_int, file: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    let real = |out, n| unsafe { real::sendfile()(out, file, offset, n) };
    // SAFETY: see above.
    unsafe { send_file((out, file), offset, n, real) }
}

/// sendfile(2) with 64-bit offsets.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(out: c_int, file: c_int, offset: *mut off64_t, n: size_t) -> ssize_t {
    // SAFETY: see `sendfile`.
    let real = |out, n| unsafe { real::sendfile64()(out, file, offset, n) };
    // SAFETY: see `sendfile`.
    unsafe { send_file((out, file), offset, n, real) }
}

/// # Safety
/// `offset` is null or, if it is mapped, points to the program's offset.
unsafe fn send_file(
    (out, file): (c_int, c_int),
    offset: *mut off64_t,
    n: usize,
    real: impl Fn(c_int, usize) -> ssize_t,
) -> ssize_t {
    if !is_socket(out) || n == 0 {
        return real(out, n);
    }
    let to = Target::new(out);
    // SAFETY: the caller's contract.
    let sent = unsafe { send_file_to(&to, file, offset, n, real) };
    guarded_or((), || to.leave());
    sent
}

/// # Safety
/// As for [`send_file`].
unsafe fn send_file_to(
    to: &Target,
    file: c_int,
    offset: *mut off64_t,
    n: usize,
    real: impl Fn(c_int, usize) -> ssize_t,
) -> ssize_t {
    let mut done = 0;
    loop {
        // SAFETY: the caller's contract.
        let (outcome, sent) = unsafe { by_ring(to, file, offset, n - done) };
        done += sent;
        match outcome {
            Outcome::Pass => {}
            _ if done > 0 => return done as ssize_t,
            outcome => return finish(to.fd(), outcome, || real(to.fd(), n)),
        }
        if done > 0 && guarded_or(true, || to.enter().is_none_or(|s| send::is_over(&s, to.fd()))) {
            // The kernel would report to this call an error that is the next call's.
            return done as ssize_t;
        }
        if n - done > PART {
            // Between two parts another thread may close the number.
            guarded_or((), || _ = to.enter().inspect(|s| to.pin(s)));
        }
        // `None`: the connection has just moved.
        let Some((sent, asked)) = in_order(to, n - done, &real) else { continue };
        if sent < 0 && done > 0 {
            keep_error(to.fd());
            return done as ssize_t;
        }
        if sent < asked as ssize_t || done + asked == n {
            return done as ssize_t + sent;
        }
        done += asked;
    }
}

/// Sends up to `n` bytes by the kernel, behind bytes that the peer may be putting back into its queue; in that case a part at a time.
/// Returns the kernel's result, and the length requested. `None`: the connection moved into a ring meanwhile, and nothing was sent.
fn in_order(to: &Target, n: usize, real: impl Fn(c_int, usize) -> ssize_t) -> Option<(ssize_t, usize)> {
    let (mut result, mut asked) = (None, n);
    guarded_or((), || {
        if let Some(s) = to.enter() {
            asked = if send::is_bound(&s, to.fd()) { n.min(PART) } else { n };
            let call = || send::unless_moved(&s, || checked(real(to.fd(), asked)));
            result = Some(send::in_order(&s, to.fd(), call));
        }
    });
    let sent = match result {
        Some(Some(Ok(n))) => n as ssize_t,
        Some(Some(Err(e))) => fail(e) as ssize_t,
        Some(None) => return None,
        None => real(to.fd(), n),
    };
    Some((sent, asked))
}

/// Saves the kernel's error of a call that has something else to return.
#[cold]
fn keep_error(fd: c_int) {
    let e = madrigal_sys::errno_from(errno());
    guarded_or((), || recv::keep_error(fd, e));
}

/// Reads the file straight into the ring; how many bytes were sent so. Its offset moves by what was published, never by what was only read.
///
/// # Safety
/// As for [`send_file`].
unsafe fn by_ring(to: &Target, file: c_int, offset: *mut off64_t, n: usize) -> (Outcome, usize) {
    let at = if offset.is_null() {
        raw::seek(file, 0, libc::SEEK_CUR).ok()
    } else {
        // SAFETY: the caller's contract.
        unsafe { get(offset) }
    };
    // Without a place in the file, or with a bad address, the kernel returns the error.
    let Some(at) = at.filter(|&at| at >= 0) else {
        sends_by_kernel(to.fd(), Reason::Splice);
        return (Outcome::Pass, 0);
    };
    let op = Transfer { to, file, at, n: n.min(MOST), progress: Progress::default() };
    let outcome = loop {
        match guarded(|| transfer(&op)) {
            Outcome::Again => cancellable(&op.progress.signals, to, cancellation_point),
            outcome => break outcome,
        }
    };
    op.progress.signals.release();
    let sent = match outcome {
        Outcome::Done(sent) => sent,
        _ => op.progress.done(),
    };
    if sent > 0 {
        // SAFETY: the caller's contract.
        unsafe { move_offset(file, offset, at + sent as off64_t) };
    }
    (outcome, sent)
}

/// # Safety
/// As for [`send_file`].
unsafe fn move_offset(file: c_int, offset: *mut off64_t, at: off64_t) {
    if offset.is_null() {
        let _ = raw::seek(file, at, libc::SEEK_SET);
    } else {
        // SAFETY: the caller's contract.
        unsafe { fault::write(offset, at) };
    }
}

/// Whether it is open for reading: one that is not never has anything.
fn is_readable(fd: c_int) -> bool {
    raw::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_ACCMODE != libc::O_WRONLY)
}

/// Moves what is left in the ring of a peer that is gone: at most what there is, and what the pipe takes.
fn splice_rest(from: c_int, to: c_int, n: usize, flags: c_uint) -> ssize_t {
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0
        && raw::fcntl(to, libc::F_GETFL, 0).is_ok_and(|f| f & libc::O_NONBLOCK == 0);
    let (mut done, mut bytes) = (0, [0u8; libc::PIPE_BUF]);
    while done == 0 || done < n && has_bytes(from) {
        match await_room(to, waits && done == 0) {
            1.. => {}
            _ if done > 0 => break,
            0 => return fail(Errno::AGAIN) as ssize_t,
            _ => return fail(Errno::INTR) as ssize_t,
        }
        let (at, len) = (bytes.as_mut_ptr().cast(), bytes.len().min(n - done));
        // Not taken before the pipe has it.
        // SAFETY: memory of our own; so below.
        let there = unsafe { data::recv(from, at, len, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        if there <= 0 {
            return if done == 0 { there } else { done as ssize_t };
        }
        // SAFETY: see above.
        let moved = unsafe { real::write()(to, at, there as usize) };
        if moved <= 0 {
            return if done == 0 { moved } else { done as ssize_t };
        }
        // SAFETY: see above.
        unsafe { data::recv(from, at, moved as usize, libc::MSG_DONTWAIT) };
        done += moved as usize;
    }
    done as ssize_t
}

/// Above 0: a pipe takes `PIPE_BUF` bytes at once, or has no reader; below: a signal handler ran.
fn await_room(pipe: c_int, waits: bool) -> c_int {
    let mut poll = libc::pollfd { fd: pipe, events: libc::POLLOUT, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one entry of our own, and no mask.
    unsafe { real::ppoll()(&raw mut poll, 1, if waits { ptr::null() } else { &raw const now }, ptr::null()) }
}

/// splice(2): a socket in it is a plain one from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut off64_t,
    to: c_int,
    to_at: *mut off64_t,
    n: size_t,
    flags: c_uint,
) -> ssize_t {
    let plain_pipe = from_at.is_null() && to_at.is_null() && file::pipe_holds(to).is_some();
    if leaves_rest(from, Reason::Splice) && n > 0 && plain_pipe {
        return splice_rest(from, to, n.min(MOST), flags);
    }
    sends_by_kernel(to, Reason::Splice);
    // SAFETY: see `sendfile`.
    let real = |to, n| unsafe { real::splice()(from, from_at, to, to_at, n, flags) };
    if !is_socket(to) {
        return real(to, n);
    }
    let bound = sock::enter(to).is_some_and(|s| send::is_bound(&s, to));
    if bound && flags & libc::SPLICE_F_NONBLOCK == 0 && is_readable(from) {
        // Outside the gate: what comes into the pipe may depend on the peer.
        let mut poll = libc::pollfd { fd: from, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry of our own, no time, no mask.
        unsafe { real::ppoll()(&raw mut poll, 1, ptr::null(), ptr::null()) };
    }
    let there = || file::pipe_holds(from).map(|there| there.min(n));
    let result = guarded_or(None, || send::result_elsewhere(&*sock::enter(to)?, to, there, |n| file::drain(from, n)));
    match result {
        Some(outcome) => finish(to, outcome, || real(to, n)),
        // It left for good above: it cannot have moved.
        None => in_order(&Target::new(to), n, real).map_or_else(|| fail(Errno::AGAIN) as ssize_t, |(sent, _)| sent),
    }
}
