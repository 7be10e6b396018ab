//! The engine: turned, watched from another event loop, tuned; and the program's own descriptors and timers in it.

use core::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use super::arguments::{Call, descriptor, opened, text, time};
use super::guard::{count, status};
use super::links::runtime_of;
use super::types::{mdg_handler, mdg_runtime, mdg_timer, mdg_watch};
use crate::classes::class as class_of;
use crate::codes::{MDG_EINVAL, MDG_OK};
use crate::failure::Failure;
use crate::object::{Object, with};
use crate::sources::{Call as Called, Timer, Watch};
use crate::table::Lane;

/// Turns the engine: posted operations go on, handlers are called. If there is nothing to do, waits until there is, at most `timeout_ns`
/// nanoseconds (MDG_FOREVER: without end; 0: does not block), or until mdg_call().
///
/// Any call that waits turns the engine, too; a program that only waits need not call this.
///
/// Returns how much was done, 0 for nothing; or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_turn(runtime: mdg_runtime, timeout_ns: i64) -> i64 {
    count(|| Ok(runtime_of(runtime)?.run_once(time(timeout_ns)?) as i64))
}

/// Lets the threads that wait in mdg_turn() return, or if there is none the next that is about to; makes the descriptor of mdg_fd()
/// readable. Does not block.
///
/// Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_call(runtime: mdg_runtime) -> c_int {
    status(|| {
        runtime_of(runtime)?.call();
        Ok(MDG_OK)
    })
}

/// A descriptor for an event loop of the program's own (poll(2), epoll(7)): readable when there is something to do for mdg_turn(), which
/// makes it unreadable again; and when another thread has done something, so that operations are worth a test. It is readable at first.
/// It is the library's: the program neither reads nor closes it, and it ends with the runtime.
///
/// The first call starts a thread, which sleeps in place of the program and does no work: handlers run where the engine is turned. A
/// program whose own descriptors are few may give them to the engine instead (mdg_watch_open()), which needs no thread. Does not block.
///
/// Returns the descriptor, the same each time, or MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_fd(runtime: mdg_runtime) -> c_int {
    status(|| runtime_of(runtime)?.descriptor())
}

/// Has the engine watch a descriptor of the program's: `handler` is called with `user`, the watch and the events, once a turn as long
/// as one of the asked events lasts (it is not told once only). Its handle goes into *watch.
///
/// `events` and what is told are those of poll(2): POLLIN, POLLPRI, POLLOUT, POLLRDHUP; POLLERR and POLLHUP are told in any case. The
/// descriptor stays the program's, and must stay open until the watch is closed. One descriptor can be watched once in a runtime.
/// Handlers of the descriptors of one runtime are called one after the other. Does not block.
///
/// Returns 0, or MDG_EINVAL, MDG_ESYSTEM (EPERM: a file that one cannot wait for; EEXIST: it is watched), MDG_EHANDLE, MDG_ETYPE,
/// MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_watch_open(
    runtime: mdg_runtime,
    fd: c_int,
    events: u32,
    handler: mdg_handler,
    user: *mut c_void,
    watch: *mut mdg_watch,
) -> c_int {
    status(|| {
        let (called, own) = called(handler, user)?;
        let make = || {
            let runtime = runtime_of(runtime)?;
            // SAFETY: the program vouches that it is open.
            let at = unsafe { descriptor(fd) }?;
            let watch = runtime.descriptors()?.add(at, fd, events, called)?;
            Ok(Object::Watch(runtime, watch))
        };
        // SAFETY: the program vouches for its pointers.
        let handle = unsafe { opened::<Watch>(watch, "`watch`", make) }?;
        // It is set once; events that come before are reported again.
        let _ = own.set(handle);
        Ok(MDG_OK)
    })
}

/// Other events of a watched descriptor count from now on. Does not block.
///
/// Returns 0, or MDG_ESYSTEM (the descriptor was closed), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_watch_change(watch: mdg_watch, events: u32) -> c_int {
    status(|| {
        with(watch, Lane::Main, |watch: &Watch| {
            // SAFETY: the kernel looks the number up; if the program closed it before, it finds nothing that is in the set.
            watch.change(unsafe { descriptor(watch.fd()) }?, events)?;
            Ok(MDG_OK)
        })
    })
}

/// Sets a timer: `handler` is called with `user`, the timer and how often it ran out since it was last called, `delay_ns` nanoseconds from
/// now and, if `period_ns` is not 0, every so many after that. It runs out while somebody turns the engine, else when that is next done.
/// Its handle goes into *timer; one that has run out for good must be closed, too. Does not block.
///
/// Returns 0, or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_timer_open(
    runtime: mdg_runtime,
    delay_ns: u64,
    period_ns: u64,
    handler: mdg_handler,
    user: *mut c_void,
    timer: *mut mdg_timer,
) -> c_int {
    status(|| {
        let (called, own) = called(handler, user)?;
        let make = || {
            let runtime = runtime_of(runtime)?;
            let timer = Timer::begin(runtime.engine(), delay_ns, period_ns, called)?;
            Ok(Object::Timer(runtime, timer))
        };
        // SAFETY: the program vouches for its pointers.
        let handle = unsafe { opened::<Timer>(timer, "`timer`", make) }?;
        // It is set once, and the timer has not run out yet.
        let _ = own.set(handle);
        with(handle, Lane::Main, |timer: &Timer| {
            timer.start();
            Ok(MDG_OK)
        })
    })
}

/// How much the sources of a class may do each time the engine is turned, at least 1; 16 unless set. Takes effect at once.
///
/// Classes are the drivers ("loopback", "shm", "tcp"), "descriptors" and "timers". Does not block.
///
/// Returns 0, or MDG_EINVAL (no such class; the text names them), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_set_weight(runtime: mdg_runtime, class_name: *const c_char, weight: u32) -> c_int {
    status(|| {
        let runtime = runtime_of(runtime)?;
        // SAFETY: the program vouches for its text.
        let class = class_of(runtime.engine(), unsafe { text(class_name, "`class_name`") }?)?;
        runtime.engine().set_weight(class, weight);
        Ok(MDG_OK)
    })
}

/// How much the sources of a class have done so far: reads, writes, accepts and connects that completed, events of descriptors, timers that
/// ran out. Operations that complete in the thread that waits for them are not counted. Does not block.
///
/// Returns that, or MDG_EINVAL (no such class), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_work_done(runtime: mdg_runtime, class_name: *const c_char) -> i64 {
    count(|| {
        let runtime = runtime_of(runtime)?;
        // SAFETY: the program vouches for its text.
        let class = class_of(runtime.engine(), unsafe { text(class_name, "`class_name`") }?)?;
        Ok(i64::try_from(runtime.engine().work_done(class)).unwrap_or(i64::MAX))
    })
}

/// Looks at the kernel only with every so many turns of the engine (at least 1; 32 unless set) while there are links in memory to look at,
/// which costs a thousandth of that. Takes effect at once. Does not block.
///
/// Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_set_kernel_every(runtime: mdg_runtime, turns: u32) -> c_int {
    status(|| {
        runtime_of(runtime)?.engine().set_kernel_every(turns);
        Ok(MDG_OK)
    })
}

/// The longest time in nanoseconds that a waiting thread looks again and again before it sleeps, a second at most; 0 turns that off (50,000
/// unless set here or by MADRIGAL_SPIN_US). Takes effect at once. Does not block.
///
/// Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_set_spin(runtime: mdg_runtime, ns: u64) -> c_int {
    status(|| {
        runtime_of(runtime)?.engine().policy().set_max_spin_ns(ns.min(MOST_SPIN_NS));
        Ok(MDG_OK)
    })
}

/// The limit of a budget for spinning: a longer one overflows the arithmetic of waiters.
const MOST_SPIN_NS: u64 = 1_000_000_000;

/// Calls a handler with a handle that is not known yet; and the place for that handle.
fn called(handler: mdg_handler, user: *mut c_void) -> Result<(Called, Arc<OnceLock<u64>>), Failure> {
    let call = Call::new(handler, user).ok_or_else(|| Failure::new(MDG_EINVAL, "`handler` is NULL"))?;
    let own = Arc::new(OnceLock::new());
    let its = Arc::clone(&own);
    let called = move |result| {
        if let Some(handle) = its.get() {
            call.call(*handle, Ok(result));
        }
    };
    Ok((Box::new(called), own))
}
