//! The program's signal handlers are called by ours, as the kernel would call them, and the program sees its own settings wherever it asks.
//!
//! One that comes while its thread is in a critical part of a hook waits for the end of that ([`madrigal_sys::critical`]). `SIGSEGV` and
//! `SIGBUS` never wait: a copy of ours that meets a bad address of the program's ends as that of a system call does (`EFAULT`,
//! [`madrigal_sys::fault`]), and every other fault is the program's.
//!
//! ```text
//!   the kernel's --arm--> ours in front of the program's --(the program ignores the signal)--> the program's
//!                              ^----------------(it sets something else)-----------------------/
//! ```
//! In front of what a signal does by default ours stands for those two only. A handler that the program installs by a system call of its own
//! is called by the kernel, at any time.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use libc::{SA_RESETHAND, SA_SIGINFO, SIG_DFL, SIG_IGN, sigaction as Action, siginfo_t};
use madrigal_sys::signals::{self, Blocked};
use madrigal_sys::{Errno, critical, fault, raw};

use super::{fail, get, guarded_or};
use crate::io::handlers;
use crate::real;
use crate::state::lock::Lock;
use crate::state::process;

/// What a bad address ends in.
const FAULTS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// The thread's own other faults, and signals that cannot be handled.
const NOT_OURS: [c_int; 6] = [libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS, libc::SIGKILL, libc::SIGSTOP];
const COUNT: usize = 65;

/// What the program has set for a signal; the rest of it the kernel knows.
struct Setting {
    handler: AtomicUsize,
    flags: AtomicI32,
}

static SETTINGS: [Setting; COUNT] =
    [const { Setting { handler: AtomicUsize::new(SIG_DFL), flags: AtomicI32::new(0) } }; COUNT];
static ARMED: AtomicBool = AtomicBool::new(false);
static LOCK: Lock = Lock::new();

impl Setting {
    fn of(signal: c_int) -> Option<&'static Self> {
        let others = NOT_OURS.contains(&signal) || signals::OF_LIBC.contains(&signal);
        SETTINGS.get(usize::try_from(signal).ok()?).filter(|_| signal > 0 && !others)
    }

    fn keep(&self, action: &Action) {
        self.flags.store(action.sa_flags, Ordering::Relaxed);
        self.handler.store(action.sa_sigaction, Ordering::Release);
    }

    /// The program's setting: `now` is what the kernel has.
    fn action(&self, mut now: Action) -> Action {
        if is_ours(now.sa_sigaction) {
            const PROGRAMS: c_int = SA_SIGINFO | SA_RESETHAND;
            now.sa_sigaction = self.handler.load(Ordering::Relaxed);
            now.sa_flags = now.sa_flags & !PROGRAMS | self.flags.load(Ordering::Relaxed) & PROGRAMS;
        }
        now
    }
}

fn is_ours(handler: usize) -> bool {
    handler == on_fault as *const () as usize || handler == on_signal as *const () as usize
}

/// What the kernel has.
fn installed(signal: c_int) -> Option<Action> {
    // SAFETY: all-zero is a valid sigaction.
    let mut now: Action = unsafe { core::mem::zeroed() };
    // SAFETY: memory of our own.
    (unsafe { real::sigaction()(signal, core::ptr::null(), &raw mut now) } == 0).then_some(now)
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
    (1..COUNT as c_int).for_each(take_over);
    signals::check_all();
    ARMED.store(true, Ordering::Release);
}

/// Whether anything may be known: if not, every call is the C library's. Nothing is before a bad address is survived.
#[inline]
pub(super) fn is_awake() -> bool {
    ARMED.load(Ordering::Relaxed) && !process::is_plain()
}

/// Ours in front of what the kernel has.
fn take_over(signal: c_int) {
    if let (Some(setting), Some(now)) = (Setting::of(signal), installed(signal))
        && !is_ours(now.sa_sigaction)
    {
        setting.keep(&now);
        install(signal, &now);
    }
}

/// Makes the kernel call us first, as the program wants to be called; not for a signal that it ignores. Returns as the kernel does.
fn install(signal: c_int, wanted: &Action) -> c_int {
    let ours = match wanted.sa_sigaction {
        SIG_IGN => None,
        _ if FAULTS.contains(&signal) => Some(on_fault as *const () as usize),
        SIG_DFL => None,
        _ => Some(on_signal as *const () as usize),
    };
    let mut action = *wanted;
    if let Some(ours) = ours {
        action.sa_sigaction = ours;
        action.sa_flags = (action.sa_flags | SA_SIGINFO) & !SA_RESETHAND;
    }
    // SAFETY: memory of our own, and a handler that lives as long as the program.
    unsafe { real::sigaction()(signal, &raw const action, core::ptr::null_mut()) }
}

/// The kernel's call, for what is no fault.
unsafe extern "C-unwind" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's own.
    if unsafe { critical::keep(info, context) } {
        return;
    }
    if let Some(setting) = Setting::of(signal) {
        // SAFETY: as above.
        unsafe { setting.call(signal, info, context) };
    }
}

/// The kernel's call.
unsafe extern "C-unwind" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's own context.
    if unsafe { fault::mend(context) } {
        return;
    }
    if let Some(setting) = Setting::of(signal) {
        // SAFETY: the kernel's own.
        unsafe { setting.call(signal, info, context) };
    }
}

impl Setting {
    /// Calls the program's handler.
    ///
    /// # Safety
    /// `info` and `context` are what the kernel gave.
    unsafe fn call(&self, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let (handler, flags) = (self.handler.load(Ordering::Acquire), self.flags.load(Ordering::Relaxed));
        match handler {
            // SAFETY: the caller's contract.
            SIG_DFL => unsafe { by_default(signal, info) },
            SIG_IGN => {}
            handler => {
                if flags & SA_RESETHAND != 0 {
                    self.reset(signal);
                }
                // SAFETY: the program's handler; one that takes the signal alone ignores the rest, in registers.
                let handler = unsafe {
                    core::mem::transmute::<usize, unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void)>(
                        handler,
                    )
                };
                // SAFETY: called as the kernel calls it.
                unsafe { handler(signal, info, context) };
            }
        }
    }

    /// It was for once.
    fn reset(&self, signal: c_int) {
        self.handler.store(SIG_DFL, Ordering::Relaxed);
        if !FAULTS.contains(&signal) {
            let _ = raw::signal_disposition(signal, SIG_DFL);
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
        // Sent by a process: it does not come again by itself.
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
    let result = match Setting::of(signal).filter(|_| ARMED.load(Ordering::Acquire)) {
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
    signals::check(signal);
    handlers::changed();
}

/// # Safety
/// As for sigaction(2), but for addresses that are bad.
unsafe fn change(signal: c_int, setting: &Setting, new: *const Action, old: *mut Action) -> c_int {
    // SAFETY: the caller's contract.
    let wanted = if new.is_null() { Ok(None) } else { unsafe { get(new) }.map(Some).ok_or(()) };
    let Ok(wanted) = wanted else { return fail(Errno::FAULT) };
    let (_blocked, _guard) = (Blocked::all(), LOCK.lock());
    let Some(now) = installed(signal) else { return fail(Errno::INVAL) };
    let before = setting.action(now);
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
    // SAFETY: see `sigaction`.
    old_way(number, || unsafe { real::signal()(number, handler) })
}

/// signal(2) as in System V: once, and not blocked meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sysv_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: see `sigaction`.
    old_way(number, || unsafe { real::sysv_signal()(number, handler) })
}

/// sigset(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigset(number: c_int, handler: usize) -> usize {
    // SAFETY: see `sigaction`.
    old_way(number, || unsafe { real::sigset()(number, handler) })
}

/// sigignore(3)
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sigignore(number: c_int) -> c_int {
    // SAFETY: see `sigaction`.
    set_by(number, || unsafe { real::sigignore()(number) })
}

/// siginterrupt(3): the kernel has the flag with our handler, too.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
    // SAFETY: see `sigaction`.
    set_by(number, || unsafe { real::siginterrupt()(number, interrupts) })
}

/// The C library's `call` sets a handler, with flags that it knows; returns the one that the program had.
fn old_way(number: c_int, call: impl Fn() -> usize) -> usize {
    signals::may_handle(number);
    set_by(number, || {
        let handler = Setting::of(number).map_or(SIG_DFL, |setting| setting.handler.load(Ordering::Relaxed));
        let before = call();
        if is_ours(before) { handler } else { before }
    })
}

/// The C library's `call` sets something, and ours goes in front of it.
fn set_by<T>(number: c_int, call: impl Fn() -> T) -> T {
    let taken_over = || {
        let _guard = LOCK.lock();
        let result = call();
        take_over(number);
        result
    };
    let known = Setting::of(number).is_some() && ARMED.load(Ordering::Acquire);
    let result = if known { guarded_or(None, || Some(taken_over())) } else { None };
    let result = result.unwrap_or_else(call);
    note_set(number);
    result
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
