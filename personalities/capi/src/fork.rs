//! Whether this process was forked from one that uses the library. Locks, threads and connections of the parent's are of no use to it,
//! and may be in any state: nothing of ours may be touched.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::failure::Failure;

/// The page's size is at least this everywhere; the kernel rounds up.
const PAGE: usize = 4096;

/// A word that is 1, in memory that the kernel wipes in a forked child (madvise(2), `MADV_WIPEONFORK`).
static OURS: OnceLock<&'static AtomicU32> = OnceLock::new();

/// From now on forked children are detected.
pub(crate) fn begin() -> Result<(), Failure> {
    if OURS.get().is_some() {
        return Ok(());
    }
    let word = wiped_page().map_err(|errno| Failure::system(errno.raw_os_error(), "cannot map a page"))?;
    word.store(1, Ordering::SeqCst);
    // The page of a second caller is not used.
    let _ = OURS.set(word);
    Ok(())
}

/// Whether the kernel wiped it.
#[inline]
pub(crate) fn is_child() -> bool {
    OURS.get().is_some_and(|word| word.load(Ordering::Relaxed) == 0)
}

fn wiped_page() -> Result<&'static AtomicU32, rustix::io::Errno> {
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
    let page = unsafe {
        rustix::mm::mmap_anonymous(core::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
    };
    // SAFETY: the range is our own mapping, and nothing is in it.
    unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork)? };
    // SAFETY: aligned, zeroed, never unmapped; only ever used as an atomic.
    Ok(unsafe { &*page.cast::<AtomicU32>() })
}
