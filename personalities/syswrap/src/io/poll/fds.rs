//! The descriptors of a poll(2), in memory of our own: the program's may be bad, and other threads may use it at the same time.

use libc::{nfds_t, pollfd};
use madrigal_sys::fault;

use super::rings::is_ours;
use crate::state::slab::zeroed_pages;

/// Descriptors handled without asking for memory.
pub(super) const SMALL: usize = 64;
/// More than any process can have open: the kernel refuses them.
const MOST: usize = 1 << 20;

/// Descriptors, events and answers. Plain memory, freed by [`Fds::free`]: a thread that is cancelled leaves it behind.
pub(crate) struct Fds {
    small: [pollfd; SMALL],
    large: *mut pollfd,
    n: usize,
}

const NONE: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

impl Fds {
    /// Room for `n`.
    pub(super) fn new(n: usize) -> Option<Self> {
        Some(Self { small: [NONE; SMALL], large: many(n, NONE)?, n })
    }

    /// A copy of what poll(2) was given, if something of ours is among it. `None`: it is not, or the kernel has to judge it.
    ///
    /// # Safety
    /// What is mapped of `n` entries at `fds` is the program's.
    pub(crate) unsafe fn copy(fds: *const pollfd, n: nfds_t) -> Option<Self> {
        let n = usize::try_from(n).ok().filter(|&n| n > 0 && n <= MOST)?;
        // SAFETY: the caller's contract.
        if !unsafe { some_are_ours(fds, n) } {
            return None;
        }
        let mut copy = Self::new(n)?;
        // SAFETY: the caller's contract; the target is our own.
        let copied = unsafe { fault::copy(copy.of().as_mut_ptr().cast(), fds.cast(), n * size_of::<pollfd>()) };
        if copied == n * size_of::<pollfd>() {
            return Some(copy);
        }
        copy.free();
        None
    }

    pub(crate) fn of(&mut self) -> &mut [pollfd] {
        either(&mut self.small, self.large, self.n)
    }

    /// Writes the answers into the program's array. False: it has no memory there.
    ///
    /// # Safety
    /// What is mapped of as many entries at `fds` is the program's.
    pub(crate) unsafe fn write_answers(&mut self, fds: *mut pollfd) -> bool {
        self.of().iter().enumerate().all(|(i, p)| {
            let revents = fds.wrapping_add(i).wrapping_byte_add(core::mem::offset_of!(pollfd, revents)).cast();
            // SAFETY: the caller's contract.
            unsafe { fault::write(revents, p.revents) }
        })
    }

    pub(crate) fn free(self) {
        free(self.large, self.n);
    }
}

/// # Safety
/// As for [`Fds::copy`].
unsafe fn some_are_ours(fds: *const pollfd, n: usize) -> bool {
    let mut some = [NONE; SMALL];
    (0..n).step_by(SMALL).any(|from| {
        let part = SMALL.min(n - from);
        // SAFETY: the caller's contract; the target is our own.
        let bytes =
            unsafe { fault::copy(some.as_mut_ptr().cast(), fds.wrapping_add(from).cast(), part * size_of::<pollfd>()) };
        some[..bytes / size_of::<pollfd>()].iter().any(|p| is_ours(p.fd))
    })
}

// --- memory -----------------------------------------------------------------------------------------------------------------------

/// A mapping for `n` values, if the small array has no room for them: null then. `None`: there is no memory.
pub(super) fn many<T: Copy>(n: usize, value: T) -> Option<*mut T> {
    if n <= SMALL {
        return Some(core::ptr::null_mut());
    }
    let memory = zeroed_pages(n.checked_mul(size_of::<T>())?)?.cast::<T>();
    for i in 0..n {
        // SAFETY: inside the fresh mapping, which is large enough and page-aligned.
        unsafe { memory.add(i).write(value) };
    }
    Some(memory)
}

/// The values, wherever they are.
pub(super) fn either<T>(small: &mut [T; SMALL], large: *mut T, n: usize) -> &mut [T] {
    if large.is_null() {
        &mut small[..n]
    } else {
        // SAFETY: made by `many` for `n` values, and borrowed as the small ones are.
        unsafe { core::slice::from_raw_parts_mut(large, n) }
    }
}

/// Gives a mapping of [`many`] back.
pub(super) fn free<T>(large: *mut T, n: usize) {
    if !large.is_null() {
        // SAFETY: exactly the mapping made there.
        let _ = unsafe { rustix::mm::munmap(large.cast(), n * size_of::<T>()) };
    }
}

/// Room for `n` values within a call: on the stack, or in a mapping of its own.
pub(super) struct Scratch<'a, T> {
    small: &'a mut [T; SMALL],
    large: *mut T,
    n: usize,
}

impl<'a, T> Scratch<'a, T> {
    /// `make` gives the first values of a mapping; `small` holds its own.
    pub(super) fn new(small: &'a mut [T; SMALL], n: usize, make: impl Fn() -> T) -> Option<Self> {
        let mut large = core::ptr::null_mut();
        if n > SMALL {
            large = zeroed_pages(n.checked_mul(size_of::<T>())?)?.cast::<T>();
            for i in 0..n {
                // SAFETY: inside the fresh mapping, which is large enough and page-aligned.
                unsafe { large.add(i).write(make()) };
            }
        }
        Some(Self { small, large, n })
    }

    pub(super) fn of(&mut self) -> &mut [T] {
        either(self.small, self.large, self.n)
    }
}

impl<T> Drop for Scratch<'_, T> {
    fn drop(&mut self) {
        if self.large.is_null() {
            return;
        }
        for i in 0..self.n {
            // SAFETY: initialised in `new`, dropped once, here.
            unsafe { self.large.add(i).drop_in_place() };
        }
        free(self.large, self.n);
    }
}
