//! Requests of aio(7). Before the C library has one, its socket leaves the ring, for good. A read of what is left in the ring of a peer
//! that is gone is made at once, and reported as by the C library: those bytes cannot be put into the kernel's queue.

use core::ffi::{c_int, c_void};
use core::ptr;

use libc::{sigevent, size_t, ssize_t};
use madrigal_report::Reason;
use madrigal_sys::Errno;

use super::super::{await_gate, data, is_gone, kernel_only, kernel_soon, leaves_rest};
use crate::outcome::{errno, restore_errno};
use crate::real;
use crate::state::slab::zeroed_pages;

/// `struct aiocb` of glibc, up to where it keeps the result.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    fd: c_int,
    opcode: c_int,
    priority: c_int,
    buf: *mut c_void,
    n: size_t,
    event: sigevent,
    next: *mut c_void,
    absolute: c_int,
    policy: c_int,
    error: c_int,
    result: ssize_t,
}

/// `AIO_PRIO_DELTA_MAX`.
const PRIORITIES: c_int = 20;
/// More requests than one call takes.
const MOST: usize = 1 << 16;

/// Before aio_read(3) and aio_write(3). True: it is done.
///
/// # Safety
/// What is mapped at `request` is a request of the program's.
pub(super) unsafe fn before(request: *mut c_void, reads: bool) -> bool {
    let at = request.cast::<Request>();
    // SAFETY: the caller's contract.
    let Some(asked) = (unsafe { super::get(at) }) else { return false };
    let ours = if reads { leaves_rest(asked.fd, Reason::AsyncIo) } else { sends_to_nobody(asked.fd) };
    if !ours {
        return false;
    }
    // SAFETY: as above.
    let done = (0..=PRIORITIES).contains(&asked.priority) && unsafe { make(at, &asked, reads) };
    if !done {
        kernel_only(asked.fd, Reason::AsyncIo);
    }
    done
}

/// Before a write: the socket is a plain one. True: its peer has gone, and only we know the result of a send.
fn sends_to_nobody(fd: c_int) -> bool {
    kernel_soon(fd, Reason::AsyncIo);
    await_gate(fd);
    is_gone(fd)
}

/// Receives what there is, or sends to a peer that has gone. False: neither can be done at once.
///
/// # Safety
/// `at` is a request of the program, `asked` its contents.
unsafe fn make(at: *mut Request, asked: &Request, reads: bool) -> bool {
    let saved = errno();
    let Request { fd, buf, n, .. } = *asked;
    // SAFETY: the program vouches for its buffer.
    let result = unsafe {
        match reads {
            true => data::recv(fd, buf, n, libc::MSG_DONTWAIT),
            // The C library's thread takes no signals.
            false => data::send(fd, buf, n, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
        }
    };
    let error = if result < 0 { errno() } else { 0 };
    restore_errno(saved);
    if error == Errno::AGAIN.raw_os_error() {
        return false;
    }
    // SAFETY: the caller's contract; so below. The result first: aio_error(3) may be asked at any time.
    unsafe { (&raw mut (*at).result).write_volatile(result) };
    core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
    // SAFETY: see above.
    unsafe { (&raw mut (*at).error).write_volatile(error) };
    notify(&asked.event);
    true
}

/// Notifies the program that a request is done, in the form it asked for.
fn notify(event: &sigevent) {
    match event.sigev_notify {
        libc::SIGEV_SIGNAL => signal(event),
        libc::SIGEV_THREAD => begin_thread(event),
        _ => {}
    }
}

/// `siginfo_t` of a signal with a value.
#[repr(C)]
struct Info {
    signal: c_int,
    errno: c_int,
    code: c_int,
    _pad: c_int,
    pid: c_int,
    uid: libc::uid_t,
    value: libc::sigval,
    _rest: [u64; 12],
}

fn signal(event: &sigevent) {
    // SAFETY: no pointers.
    let (pid, uid) = unsafe { (libc::getpid(), libc::getuid()) };
    let (signal, value) = (event.sigev_signo, event.sigev_value);
    let info = Info { signal, errno: 0, code: libc::SI_ASYNCIO, _pad: 0, pid, uid, value, _rest: [0; 12] };
    let at = (&raw const info).expose_provenance();
    // SAFETY: a signal's information, of our own memory.
    unsafe { real::syscall()(libc::SYS_rt_sigqueueinfo, pid.into(), signal.into(), at as i64, 0, 0, 0) };
}

/// The fields of `SIGEV_THREAD`, where [`sigevent`] has a thread's number.
#[repr(C)]
struct Notify {
    _head: [u64; 2],
    function: Option<extern "C" fn(*mut c_void) -> *mut c_void>,
    attributes: *const libc::pthread_attr_t,
}

/// Starts the program's function in a thread, as requested. The result of that function is ignored.
fn begin_thread(event: &sigevent) {
    let notify = ptr::from_ref(event).cast::<Notify>();
    // SAFETY: the same structure, by its other half.
    let Notify { function: Some(function), attributes, .. } = (unsafe { notify.read() }) else { return };
    let mut thread = 0;
    // SAFETY: the program's function and attributes; the value is what it takes.
    if unsafe { libc::pthread_create(&raw mut thread, attributes, function, event.sigev_value.sival_ptr) } == 0 {
        // SAFETY: a thread just made, which is never joined.
        unsafe { libc::pthread_detach(thread) };
    }
}

// --- lists --------------------------------------------------------------------------------------------------------------------------

/// A list of requests without those that are done: memory of our own.
pub(super) struct Rest {
    list: *mut *mut c_void,
    bytes: usize,
}

impl Rest {
    /// The list; a null pointer for what is done.
    pub(super) fn list(&self) -> *const *mut c_void {
        self.list
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which is no longer used.
        let _ = unsafe { rustix::mm::munmap(self.list.cast(), self.bytes) };
    }
}

/// Before lio_listio(3). `Some`: this list instead, for others are done.
///
/// # Safety
/// What is mapped of `n` pointers at `list` is the program's, and so are the requests they point to.
pub(super) unsafe fn before_all(list: *const *mut c_void, n: c_int) -> Option<Rest> {
    let n = usize::try_from(n).ok().filter(|&n| n <= MOST)?;
    let mut rest: Option<Rest> = None;
    for i in 0..n {
        // SAFETY: the caller's contract.
        let request = unsafe { super::get(list.wrapping_add(i)) }.unwrap_or(ptr::null_mut());
        // SAFETY: as above.
        let Some(asked) = (unsafe { super::get(request.cast::<Request>()) }) else { continue };
        // SAFETY: as above.
        let done = asked.opcode != libc::LIO_NOP && unsafe { before(request, asked.opcode == libc::LIO_READ) };
        if done {
            // SAFETY: as above.
            let copy = rest.take().or_else(|| unsafe { copy(list, n) })?;
            // SAFETY: one of its `n` places.
            unsafe { copy.list.add(i).write(ptr::null_mut()) };
            rest = Some(copy);
        }
    }
    rest
}

/// # Safety
/// As for [`before_all`].
unsafe fn copy(list: *const *mut c_void, n: usize) -> Option<Rest> {
    let bytes = (n * size_of::<*mut c_void>()).next_multiple_of(4096);
    let copy = Rest { list: zeroed_pages(bytes)?.cast(), bytes };
    for i in 0..n {
        // SAFETY: the caller's contract.
        let request = unsafe { super::get(list.wrapping_add(i)) }.unwrap_or(ptr::null_mut());
        // SAFETY: one of its `n` places.
        unsafe { copy.list.add(i).write(request) };
    }
    Some(copy)
}
