//! `SIGSEGV` and `SIGBUS`: a copy of ours that meets a bad address of the program's ends as that of a system call does (`EFAULT`,
//! [`madrigal_sys::fault`]). Every other fault is the program's: its handler is called as the kernel would call it, and it sees its own
//! settings wherever it asks for them.
//!
//! ```text
//!   the kernel's --arm--> ours in front of the program's --(the program ignores the signal)--> the program's
//!                              ^----------------(it sets something else)-----------------------/
//! ```

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use libc::{
    SA_NODEFER, SA_RESETHAND, SA_RESTART, SA_SIGINFO, SIG_DFL, SIG_ERR, SIG_IGN, sigaction as Action, siginfo_t,
};
use madrigal_sys::signals::{self, Blocked};
use madrigal_sys::{Errno, fault, raw};

use super::{fail, get, guarded_or};
use crate::io::handlers;
use crate::real;
use crate::state::lock::Lock;
use crate::state::process;

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// What the program has set for a signal.
struct Setting {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicUsize,
}

static SETTINGS: [Setting; 2] =
    [const { Setting { handler: AtomicUsize::new(SIG_DFL), flags: AtomicI32::new(0), mask: AtomicUsize::new(0) } }; 2];
static ARMED: AtomicBool = AtomicBool::new(false);
static LOCK: Lock = Lock::new();

impl Setting {
    fn of(signal: c_int) -> Option<&'static Self> {
        SIGNALS.iter().position(|&s| s == signal).map(|i| &SETTINGS[i])
    }

    fn keep(&self, action: &Action) {
        self.handler.store(action.sa_sigaction, Ordering::Relaxed);
        self.flags.store(action.sa_flags, Ordering::Relaxed);
        // SAFETY: a signal set is an array of words, of which the kernel uses the first.
        self.mask.store(unsafe { (&raw const action.sa_mask).cast::<usize>().read() }, Ordering::Release);
    }

    fn action(&self) -> Action {
        // SAFETY: all-zero is a valid sigaction.
        let mut action: Action = unsafe { core::mem::zeroed() };
        action.sa_sigaction = self.handler.load(Ordering::Relaxed);
        action.sa_flags = self.flags.load(Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { (&raw mut action.sa_mask).cast::<usize>().write(self.mask.load(Ordering::Acquire)) };
        action
    }
}

/// Puts our handler in front of the program's, once. Before the first socket is known.
pub(super) fn arm() {
    if ARMED.load(Ordering::Acquire) {
        return;
    }
    let (_blocked, guard) = (Blocked::all(), LOCK.lock());
    if guard.nested() || ARMED.load(Ordering::Relaxed) {
        return;
    }
    for signal in SIGNALS {
        // SAFETY: all-zero is a valid sigaction.
        let mut now: Action = unsafe { core::mem::zeroed() };
        // SAFETY: memory of our own.
        if unsafe { real::sigaction()(signal, core::ptr::null(), &raw mut now) } == 0
            && let Some(setting) = Setting::of(signal)
        {
            setting.keep(&now);
            install(signal, &now);
        }
    }
    signals::look_at_all();
    ARMED.store(true, Ordering::Release);
}

/// Whether a bad address is survived. Before, nothing is known, and every call is the C library's.
#[inline]
pub(super) fn is_armed() -> bool {
    ARMED.load(Ordering::Relaxed)
}

/// Makes the kernel call us first, as the program wants to be called; not for a signal that it ignores. Said as the kernel says it.
fn install(signal: c_int, wanted: &Action) -> c_int {
    let mut action = *wanted;
    if action.sa_sigaction != SIG_IGN {
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = (action.sa_flags | SA_SIGINFO) & !SA_RESETHAND;
    }
    // SAFETY: memory of our own, and a handler that lives as long as the program.
    unsafe { real::sigaction()(signal, &raw const action, core::ptr::null_mut()) }
}

/// The kernel's call.
unsafe extern "C-unwind" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's own context.
    if unsafe { fault::mend(context) } {
        return;
    }
    let Some(setting) = Setting::of(signal) else { return };
    let (handler, flags) = (setting.handler.load(Ordering::Acquire), setting.flags.load(Ordering::Relaxed));
    match handler {
        // SAFETY: the kernel's own.
        SIG_DFL => unsafe { by_default(signal, info) },
        SIG_IGN => {}
        handler => {
            if flags & SA_RESETHAND != 0 {
                setting.handler.store(SIG_DFL, Ordering::Relaxed);
            }
            // SAFETY: the program's handler; one that takes the signal alone ignores the rest, in registers.
            let handler = unsafe {
                core::mem::transmute::<usize, unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void)>(handler)
            };
            // SAFETY: called as the kernel calls it.
            unsafe { handler(signal, info, context) };
        }
    }
}

/// The program ends by the signal, as it would have: at the very place of a fault, which comes again.
///
/// # Safety
/// `info` is what the kernel gave.
#[cold]
unsafe fn by_default(signal: c_int, info: *mut siginfo_t) {
    // SAFETY: all-zero is a valid sigaction, and means the default.
    let default: Action = unsafe { core::mem::zeroed() };
    // SAFETY: memory of our own.
    unsafe { real::sigaction()(signal, &raw const default, core::ptr::null_mut()) };
    // SAFETY: the caller's contract.
    if unsafe { (*info).si_code } <= 0 {
        // Sent by somebody: it does not come again by itself.
        raw::raise(signal);
    }
}

/// sigaction(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the program's arguments, passed on unchanged; so in every hook below.
    let real = || unsafe { real::sigaction()(signal, new, old) };
    if !new.is_null() {
        signals::may_handle(signal);
    }
    let result = match Setting::of(signal).filter(|_| ARMED.load(Ordering::Acquire) && !process::is_plain()) {
        // SAFETY: see above.
        Some(setting) => guarded_or(None, || Some(unsafe { change(signal, setting, new, old) })).unwrap_or_else(real),
        None => real(),
    };
    if !new.is_null() {
        note_set(signal);
    }
    result
}

/// The program has set something for a signal.
fn note_set(signal: c_int) {
    signals::look(signal);
    handlers::changed();
}

/// # Safety
/// As for sigaction(2), but for addresses that are bad.
unsafe fn change(signal: c_int, setting: &Setting, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller's contract.
    let wanted = if new.is_null() { Ok(None) } else { unsafe { get(new) }.map(Some).ok_or(()) };
    let Ok(wanted) = wanted else { return fail(Errno::FAULT) };
    let (_blocked, _guard) = (Blocked::all(), LOCK.lock());
    let before = setting.action();
    if let Some(wanted) = wanted {
        setting.keep(&wanted);
        let result = install(signal, &wanted);
        if result != 0 {
            setting.keep(&before);
            return result;
        }
    }
    // SAFETY: the caller's contract.
    if old.is_null() || unsafe { fault::write(old, before) } { 0 } else { fail(Errno::FAULT) }
}

/// sigaction(2) by its other name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __sigaction(signal: c_int, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: see `sigaction`.
    unsafe { sigaction(signal, new, old) }
}

/// signal(2)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn signal(number: c_int, handler: usize) -> usize {
    if Setting::of(number).is_none() {
        signals::may_handle(number);
        // SAFETY: see `sigaction`.
        let before = unsafe { real::signal()(number, handler) };
        note_set(number);
        return before;
    }
    // SAFETY: all-zero is an empty set.
    let mut mask: libc::sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: memory of our own.
    unsafe { libc::sigaddset(&raw mut mask, number) };
    set(number, handler, SA_RESTART, mask)
}

/// signal(2) as in System V: once, and not blocked meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sysv_signal(number: c_int, handler: usize) -> usize {
    if Setting::of(number).is_none() {
        signals::may_handle(number);
        // SAFETY: see `sigaction`.
        let before = unsafe { real::sysv_signal()(number, handler) };
        note_set(number);
        return before;
    }
    // SAFETY: all-zero is an empty set.
    set(number, handler, SA_RESETHAND | SA_NODEFER, unsafe { core::mem::zeroed() })
}

/// sysv_signal(3) by its other name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __sysv_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: see `sigaction`.
    unsafe { sysv_signal(number, handler) }
}

/// signal(2) by its other names.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bsd_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: see `sigaction`.
    unsafe { signal(number, handler) }
}

/// signal(2) by its other names.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ssignal(number: c_int, handler: usize) -> usize {
    // SAFETY: see `sigaction`.
    unsafe { signal(number, handler) }
}

fn set(number: c_int, handler: usize, flags: c_int, mask: libc::sigset_t) -> usize {
    let new = Action { sa_sigaction: handler, sa_mask: mask, sa_flags: flags, sa_restorer: None };
    // SAFETY: all-zero is a valid sigaction.
    let mut old: Action = unsafe { core::mem::zeroed() };
    // SAFETY: memory of our own.
    if unsafe { sigaction(number, &raw const new, &raw mut old) } == 0 { old.sa_sigaction } else { SIG_ERR }
}
