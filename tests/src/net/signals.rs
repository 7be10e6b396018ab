//! Signals and the threads they go to.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};

use super::done;

/// This thread, for [`signal_thread`].
pub fn this_thread() -> libc::pthread_t {
    // SAFETY: no pointers.
    unsafe { libc::pthread_self() }
}

/// pthread_kill(3)
pub fn signal_thread(thread: libc::pthread_t, signal: c_int) {
    // SAFETY: callers name threads that have not been joined.
    assert_eq!(unsafe { libc::pthread_kill(thread, signal) }, 0, "pthread_kill");
}

/// sigaction(2) with a plain handler; `restart`: `SA_RESTART`.
pub fn on_signal(signal: c_int, handler: extern "C" fn(c_int), restart: bool) {
    // SAFETY: an all-zero action is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
    // SAFETY: a valid action; handlers given here only touch atomics or make async-signal-safe calls.
    done(unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) }).expect("sigaction");
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

/// A handler that counts; see [`signals`].
pub extern "C" fn count_signal(_: c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

/// How often [`count_signal`] ran in this process.
pub fn signals() -> u32 {
    SIGNALS.load(Ordering::SeqCst)
}

/// A set of one signal.
pub fn signal_set(signal: c_int) -> libc::sigset_t {
    // SAFETY: an all-zero set is valid to initialise.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: our own set.
    unsafe { libc::sigemptyset(&raw mut set) };
    // SAFETY: our own set.
    unsafe { libc::sigaddset(&raw mut set, signal) };
    set
}

/// Blocks or unblocks one signal in this thread.
pub fn mask(signal: c_int, block: bool) {
    let how = if block { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    let set = signal_set(signal);
    // SAFETY: our own set.
    unsafe { libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) };
}
