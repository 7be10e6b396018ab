//! Critical parts of a call, which no signal handler of the program's interrupts.
//!
//! Our handler runs in front of the program's, and calls [`keep`] first. A signal that comes while its thread is in a critical part is
//! deferred, and every signal that could follow is blocked. As the part ends the signal is sent again, to this thread, with the kernel's
//! information. If no signal comes a part costs a count in the thread's own memory, and no system call.
//!
//! ```text
//!   depth 0 --enter--> 1, 2 .. --leave--> 0
//!   kept: none --(a signal at depth > 0)--> one, all blocked --(depth 0)--> none, sent again, the thread's mask as it is to be
//! ```
//! While one is deferred the thread's mask is stored here, and changed here (`block`, `set_mask`).
//!
//! If several signals come at once the kernel stacks their handlers, and the last one runs first. It is deferred. The others find that, and
//! are sent again at once, for they are blocked by then. The mask of the part is the one that the first of them interrupted.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, compiler_fence};

use libc::{siginfo_t, ucontext_t};

use crate::{Errno, raw, signals};

/// `siginfo_t`, in words.
type Info = [u64; 16];

struct Thread {
    depth: AtomicU32,
    keeps: AtomicBool,
    info: UnsafeCell<Info>,
    /// The mask of the thread when no signal is deferred any more.
    mask: AtomicU64,
    /// What was blocked when one was deferred.
    blocked: AtomicU64,
}

std::thread_local! {
    static THREAD: Thread = const {
        Thread {
            depth: AtomicU32::new(0),
            keeps: AtomicBool::new(false),
            info: UnsafeCell::new([0; 16]),
            mask: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
        }
    };
}

/// A critical part, until it is dropped, but for the sleeps in it ([`outside`]).
pub struct Critical(());

impl Critical {
    /// Begins one; they nest.
    #[inline]
    pub fn enter() -> Self {
        THREAD.with(|thread| thread.depth.store(thread.depth.load(Relaxed) + 1, Relaxed));
        // A handler of this thread sees it before anything of the part.
        compiler_fence(SeqCst);
        Self(())
    }

    /// One that was begun in another frame, and forgotten there.
    pub fn resume() -> Self {
        Self(())
    }
}

impl Drop for Critical {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(SeqCst);
        THREAD.with(|thread| {
            // A sleep may have been left for good: by siglongjmp(3), or as the thread was cancelled.
            let depth = thread.depth.load(Relaxed).saturating_sub(1);
            thread.depth.store(depth, Relaxed);
            compiler_fence(SeqCst);
            if depth == 0 && thread.keeps.load(Relaxed) {
                thread.release();
            }
        });
    }
}

impl Thread {
    /// Delivers the deferred signal, or leaves it pending while the program blocks it.
    #[cold]
    fn release(&self) {
        // SAFETY: all signals are blocked, so no handler writes there.
        let info = unsafe { *self.info.get() };
        let mask = self.mask.load(Relaxed);
        self.keeps.store(false, Relaxed);
        raw::send_to_self(&info);
        let _ = raw::signal_mask(mask);
    }
}

/// Runs a sleep of a critical part, in which handlers run as they come; a deferred signal comes first.
pub fn outside<T>(sleep: impl FnOnce() -> T) -> T {
    let depth = THREAD.with(|thread| {
        let depth = thread.depth.load(Relaxed);
        thread.depth.store(0, Relaxed);
        compiler_fence(SeqCst);
        if thread.keeps.load(Relaxed) {
            thread.release();
        }
        depth
    });
    let result = sleep();
    THREAD.with(|thread| thread.depth.store(depth, Relaxed));
    compiler_fence(SeqCst);
    result
}

/// In a handler: true if this signal is deferred; then it must do nothing now.
///
/// # Safety
/// `info` and `context` are what the kernel gave to the handler that calls this.
pub unsafe fn keep(info: *const siginfo_t, context: *mut c_void) -> bool {
    THREAD.with(|thread| {
        if thread.depth.load(Relaxed) == 0 {
            return false;
        }
        // SAFETY: the caller's contract; a signal set is an array of words, of which the kernel uses the first.
        let (info, mask) = unsafe {
            (
                info.cast::<Info>().read_unaligned(),
                &mut *(&raw mut (*context.cast::<ucontext_t>()).uc_sigmask).cast::<u64>(),
            )
        };
        // First of all: a handler on top of this one must see it.
        let is_first = !thread.keeps.swap(true, Relaxed);
        if is_first {
            // SAFETY: a handler that finds one deferred does not write there, nor does `release` before the part ends.
            unsafe { *thread.info.get() = info };
        } else {
            // Blocked in its own handler, and after it by the mask set below.
            raw::send_to_self(&info);
        }
        // The process may have ignored this signal when the first was deferred, and not now. Then it interrupted the part with its mask of
        // then.
        let blocked = thread.blocked.load(Relaxed);
        if is_first || *mask & blocked != blocked {
            thread.mask.store(*mask, Relaxed);
        }
        let all = signals::all_but(&signals::OF_LIBC);
        thread.blocked.store(all, Relaxed);
        *mask |= all;
        true
    })
}

/// In the child of a fork that was a critical part: the deferred signal is the parent's.
pub fn leave_to_parent() {
    THREAD.with(|thread| {
        if thread.keeps.swap(false, Relaxed) {
            let _ = raw::signal_mask(thread.mask.load(Relaxed));
        }
    });
}

/// Whether the calling thread is in a critical part.
#[inline]
pub(crate) fn is_inside() -> bool {
    THREAD.with(|thread| thread.depth.load(Relaxed)) > 0
}

/// Whether a signal is deferred.
pub fn keeps_one() -> bool {
    THREAD.with(|thread| thread.keeps.load(Relaxed))
}

/// Blocks these signals, too; returns those that were blocked before.
pub(crate) fn block(more: u64) -> Result<u64, Errno> {
    THREAD.with(|thread| {
        let mut before = u64::MAX;
        if !thread.keeps.load(Relaxed) {
            before = raw::block_signals(more)?;
            if !thread.keeps.load(Relaxed) {
                return Ok(before);
            }
        }
        // One is deferred, perhaps since just now: then the kernel's result includes the signals blocked by that.
        before &= thread.mask.load(Relaxed);
        thread.mask.store(before | more, Relaxed);
        Ok(before)
    })
}

/// Blocks exactly these.
pub(crate) fn set_mask(mask: u64) {
    THREAD.with(|thread| {
        if thread.keeps.load(Relaxed) {
            thread.mask.store(mask, Relaxed);
        } else {
            let _ = raw::signal_mask(mask);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_int;
    use core::sync::atomic::AtomicI32;

    static RAN: AtomicI32 = AtomicI32::new(0);

    extern "C" fn handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: what the kernel gave.
        if !unsafe { keep(info, context) } {
            // SAFETY: as above.
            assert_eq!(unsafe { (*info).si_code }, libc::SI_TKILL);
            RAN.fetch_add(signal, SeqCst);
        }
    }

    #[test]
    fn a_handler_waits_for_the_end_of_the_part() {
        for signal in [libc::SIGUSR1, libc::SIGUSR2] {
            // SAFETY: all-zero is a valid sigaction.
            let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            // SAFETY: a handler that lives.
            assert_eq!(unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) }, 0);
        }
        let before = raw::block_signals(0).unwrap();
        {
            let _outer = Critical::enter();
            {
                let _inner = Critical::enter();
                raw::raise(libc::SIGUSR1);
                raw::raise(libc::SIGUSR2);
            }
            let mask = raw::block_signals(0).unwrap();
            let handlers = signals::Blocked::handlers();
            assert_eq!(raw::block_signals(0).unwrap(), mask);
            drop(handlers);
            let blocked = signals::Blocked::all();
            drop(blocked);
            assert!(RAN.load(SeqCst) == 0 && keeps_one());
        }
        assert_eq!(RAN.load(SeqCst), libc::SIGUSR1 + libc::SIGUSR2);
        assert!(!keeps_one());
        assert_eq!(raw::block_signals(0).unwrap(), before);
        // Two that come at once: the kernel stacks their handlers.
        {
            let both = 1 << (libc::SIGUSR1 - 1) | 1 << (libc::SIGUSR2 - 1);
            assert_eq!(raw::block_signals(both).unwrap(), before);
            raw::raise(libc::SIGUSR1);
            raw::raise(libc::SIGUSR2);
            let ran = RAN.load(SeqCst);
            {
                let _part = Critical::enter();
                raw::signal_mask(before).unwrap();
                assert!(RAN.load(SeqCst) == ran && keeps_one());
            }
            assert_eq!(RAN.swap(ran, SeqCst), ran + libc::SIGUSR1 + libc::SIGUSR2);
            assert!(!keeps_one() && raw::block_signals(0).unwrap() == before);
        }
        // Outside of one they are blocked.
        let handlers = signals::Blocked::handlers();
        raw::raise(libc::SIGUSR1);
        assert_eq!(RAN.load(SeqCst), libc::SIGUSR1 + libc::SIGUSR2);
        drop(handlers);
        assert_eq!(RAN.swap(libc::SIGUSR1 + libc::SIGUSR2, SeqCst), 2 * libc::SIGUSR1 + libc::SIGUSR2);
        // What the part holds back beyond its end stays held back.
        let held = signals::Held::default();
        {
            let _part = Critical::enter();
            raw::raise(libc::SIGUSR1);
            held.hold();
            assert!(held.has_some() && held.mask() == Some(before));
        }
        assert!(RAN.load(SeqCst) == libc::SIGUSR1 + libc::SIGUSR2 && held.has_some());
        held.release();
        assert_eq!(RAN.load(SeqCst), 2 * libc::SIGUSR1 + libc::SIGUSR2);
        assert_eq!(raw::block_signals(0).unwrap(), before);
    }
}
