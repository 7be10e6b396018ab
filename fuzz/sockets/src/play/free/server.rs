//! A server that accepts connections and sends back what comes, in threads, children, or one after the other.

use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use madrigal_fuzz_sockets::op::Slot;
use madrigal_fuzz_sockets::raw;
use madrigal_fuzz_sockets::via::{RecvVia, SendVia, Serve};

use super::wire::echo;
use crate::context::{Answer, StepContext, call, ending};
use crate::{c, connections, passing, state};

type Via = (SendVia, RecvVia);

/// Accepts `conns` connections and serves them all to their end.
pub(super) fn serve(context: &StepContext, from: Slot, conns: u16, serve: Serve, via: Via) {
    let listener = state::fd(from);
    let worker = if serve == Serve::Spread { Some(Worker::start(context, listener, via)) } else { None };
    let mut children = Vec::new();
    let mut served = 0;
    while served < conns {
        // SAFETY: no name is asked for.
        let got = call(|| unsafe { c::accept(listener, ptr::null_mut(), ptr::null_mut()) });
        if got.ret < 0 {
            if state::state().region.killed.load(Ordering::SeqCst) != 0 {
                break;
            }
            if matches!(got.errno, libc::EINTR | libc::EAGAIN | libc::ECONNABORTED) {
                continue;
            }
            context.record.add(ending::ERROR + got.errno as u64);
            break;
        }
        served += 1;
        let fd = got.ret as c_int;
        connections::nodelay(fd);
        match (serve, &worker) {
            (Serve::Thread, _) => in_thread(context, fd, via),
            (Serve::Fork, _) => children.push(in_child(context, listener, fd, via)),
            (_, Some(worker)) => worker.give(fd),
            _ => finish(context, fd, via),
        }
    }
    while BUSY.load(Ordering::SeqCst) > 0 {
        raw::sleep_us(200);
    }
    drop(worker);
    children.into_iter().for_each(wait);
    context.keep(Answer { ret: i64::from(served), errno: 0 });
}

fn wait(child: c_int) {
    let mut status = 0;
    // SAFETY: a status of our own.
    while unsafe { c::waitpid(child, &raw mut status, 0) } < 0 && c::errno() == libc::EINTR {}
}

/// Serves one connection to its end.
fn finish(context: &StepContext, fd: c_int, via: Via) {
    let end = echo(context, fd, via);
    if end != ending::END {
        context.record.add(end);
    }
    // SAFETY: no memory is passed.
    unsafe { c::close(fd) };
}

/// Threads that serve.
static BUSY: AtomicU64 = AtomicU64::new(0);

struct Task {
    context: StepContext,
    fd: c_int,
    via: Via,
}

extern "C-unwind" fn run(task: *mut c_void) -> *mut c_void {
    // SAFETY: made by `in_thread`, and given to this thread alone.
    let task = unsafe { Box::from_raw(task.cast::<Task>()) };
    finish(&task.context, task.fd, task.via);
    BUSY.fetch_sub(1, Ordering::SeqCst);
    ptr::null_mut()
}

fn in_thread(context: &StepContext, fd: c_int, via: Via) {
    let task = Box::into_raw(Box::new(Task { context: *context, fd, via }));
    let mut thread = 0;
    BUSY.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the thread takes its task over.
    unsafe {
        if c::pthread_create(&raw mut thread, ptr::null(), run, task.cast()) == 0 {
            c::pthread_detach(thread);
        }
    }
}

fn in_child(context: &StepContext, listener: c_int, fd: c_int, via: Via) -> c_int {
    // SAFETY: the child serves and ends; the parent lets go of what the child serves.
    unsafe {
        let child = c::fork();
        if child == 0 {
            c::close(listener);
            finish(context, fd, via);
            c::_exit(0);
        }
        c::close(fd);
        child
    }
}

/// A child to which connections are passed.
struct Worker {
    fd: c_int,
    child: c_int,
}

impl Worker {
    fn start(context: &StepContext, listener: c_int, via: Via) -> Self {
        let mut ends = [-1; 2];
        // SAFETY: room for two descriptors; the child serves what it is given and ends.
        unsafe {
            c::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr());
            let child = c::fork();
            if child == 0 {
                c::close(ends[0]);
                c::close(listener);
                let (mut fd, mut byte) = (-1, 0);
                while passing::take(ends[1], &mut fd, &mut byte) > 0 {
                    finish(context, fd, via);
                }
                c::_exit(0);
            }
            c::close(ends[1]);
            Self { fd: ends[0], child }
        }
    }

    fn give(&self, fd: c_int) {
        passing::pass(self.fd, fd, b'p');
        // SAFETY: no memory is passed.
        unsafe { c::close(fd) };
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: no memory is passed.
        unsafe { c::close(self.fd) };
        wait(self.child);
    }
}
