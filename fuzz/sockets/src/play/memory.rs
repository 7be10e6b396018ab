//! Memory for calls: a large piece for each thread, with a page behind it that may not be touched.

use core::cell::Cell;
use core::ffi::c_void;
use core::ptr;

use libc::iovec;
use madrigal_fuzz_sockets::op::{Memory, Pieces};

/// Bytes a single call may move.
pub(crate) const ROOM: usize = 8 << 20;
const PAGE: usize = 4096;
/// Most pieces a call may have (`UIO_MAXIOV`).
const MOST: usize = 1024;

thread_local! {
    static BASE: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

/// This thread's memory.
pub(crate) fn base() -> *mut u8 {
    BASE.with(|base| {
        if base.get().is_null() {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new mapping at a place the kernel chooses, and its last page taken away again.
            let at = unsafe {
                let at = libc::mmap(ptr::null_mut(), ROOM + PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
                assert!(at != libc::MAP_FAILED, "no memory");
                libc::mprotect(at.byte_add(ROOM), PAGE, libc::PROT_NONE);
                at
            };
            base.set(at.cast());
        }
        base.get()
    })
}

/// The first `len` bytes of this thread's memory.
pub(crate) fn bytes(len: usize) -> &'static mut [u8] {
    // SAFETY: within the mapping, which stays; this thread alone uses it, and never two slices at once for different purposes.
    unsafe { core::slice::from_raw_parts_mut(base(), len.min(ROOM)) }
}

/// The address of memory in a call, and how much of it is really there.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) at: *mut u8,
    pub(crate) good: usize,
}

/// The place for a call of `len` bytes.
pub(crate) fn place(memory: Memory, len: usize) -> Place {
    let guard = base().wrapping_add(ROOM);
    match memory {
        Memory::Good | Memory::Header => Place { at: base(), good: len.min(ROOM) },
        Memory::Null => Place { at: ptr::null_mut(), good: 0 },
        Memory::Low => Place { at: ptr::without_provenance_mut(8), good: 0 },
        Memory::Last => Place { at: ptr::without_provenance_mut(usize::MAX), good: 0 },
        Memory::Guard => Place { at: guard, good: 0 },
        Memory::Half(good) => Place { at: guard.wrapping_sub(good as usize), good: (good as usize).min(len) },
    }
}

impl Place {
    /// The memory that is there.
    pub(crate) fn bytes(&self) -> &'static mut [u8] {
        if self.good == 0 {
            return &mut [];
        }
        // SAFETY: `good` bytes are mapped there; this thread alone uses them.
        unsafe { core::slice::from_raw_parts_mut(self.at, self.good) }
    }

    /// Cuts `len` bytes into pieces.
    pub(crate) fn cut(&self, len: usize, pieces: Pieces) -> Vec<iovec> {
        let piece = |from: usize, n: usize| iovec { iov_base: self.at.wrapping_add(from).cast::<c_void>(), iov_len: n };
        let third = len / 3;
        match pieces {
            Pieces::One => vec![piece(0, len)],
            Pieces::Few => vec![piece(0, third), piece(third, third), piece(2 * third, len - 2 * third)],
            Pieces::Holes => {
                vec![piece(0, 0), piece(0, third), piece(third, 0), piece(third, len - third), piece(len, 0)]
            }
            Pieces::Many => spread(MOST, len, piece),
            Pieces::TooMany => spread(MOST + 1, len, piece),
            Pieces::None => Vec::new(),
        }
    }
}

/// `len` bytes in `count` pieces, the longest last.
fn spread(count: usize, len: usize, piece: impl Fn(usize, usize) -> iovec) -> Vec<iovec> {
    let each = len / count;
    (0..count).map(|at| piece(at * each, if at + 1 == count { len - at * each } else { each })).collect()
}
