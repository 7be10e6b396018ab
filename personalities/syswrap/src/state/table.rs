//! What each descriptor is: one word per descriptor, which every hook reads.
//!
//! A word is 0 for a descriptor that is none of ours; otherwise kind, generation and index of its object. The generation makes a word of a
//! closed descriptor differ from that of a later one, so that a thread that read the old word notices.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use madrigal_sys::{lock, raw, time};

use super::lock::Lock;
use super::number::{self, Closing, Number};
use super::slab::zeroed_pages;

/// Descriptors above this number are never ours.
const LIMIT: usize = 1 << 20;
const INDEX_BITS: u32 = 20;
const GENERATION_BITS: u32 = 9;

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A TCP socket: index into the sockets.
    Socket,
    /// An epoll descriptor: index into the event sets.
    EventSet,
    /// Checked and found to be neither (so that it is not checked again).
    Foreign,
    /// A descriptor of ours, which the program did not open: it neither sees nor closes it.
    Hidden,
    /// The same of a TCP socket whose descriptors the program has closed, while calls of its threads go on ([`super::callers`]).
    Retained,
}

/// A non-zero table word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(u32);

impl Word {
    pub(crate) fn new(kind: Kind, generation: u32, index: u32) -> Self {
        let kind = match kind {
            Kind::Socket => 1,
            Kind::EventSet => 2,
            Kind::Foreign => 3,
            Kind::Hidden => 4,
            Kind::Retained => 5,
        };
        let generation = generation & ((1 << GENERATION_BITS) - 1);
        Self(kind << (INDEX_BITS + GENERATION_BITS) | generation << INDEX_BITS | index)
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        match self.0 >> (INDEX_BITS + GENERATION_BITS) {
            1 => Kind::Socket,
            2 => Kind::EventSet,
            4 => Kind::Hidden,
            5 => Kind::Retained,
            _ => Kind::Foreign,
        }
    }

    /// Whether it is one of a TCP socket.
    #[inline]
    pub(crate) fn is_socket(self) -> bool {
        matches!(self.kind(), Kind::Socket | Kind::Retained)
    }

    /// Whether it is ours and none of the program's.
    #[inline]
    pub(crate) fn is_hidden(self) -> bool {
        matches!(self.kind(), Kind::Hidden | Kind::Retained)
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        self.0 & ((1 << INDEX_BITS) - 1)
    }
}

static TABLE: AtomicPtr<Number> = AtomicPtr::new(core::ptr::null_mut());
static LOCK: Lock = Lock::new();
/// One more than the highest descriptor ever entered.
static TOP: AtomicU32 = AtomicU32::new(0);

/// The cell of a descriptor, once anything of ours was ever entered.
#[inline]
fn cell(fd: c_int) -> Option<&'static Number> {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() || fd as u32 as usize >= LIMIT {
        return None;
    }
    // SAFETY: the table is a mapping of LIMIT words that is never unmapped, and the index is below LIMIT.
    Some(unsafe { &*table.add(fd as usize) })
}

/// What `fd` is; `None` for what is not ours. Waits while another thread closes it.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<Word> {
    match cell(fd)?.word() {
        0 => None,
        word if number::closing(word).is_some() => behind_close(fd),
        word => Some(Word(word)),
    }
}

/// What `fd` is, without waiting; nothing while it is closed.
#[inline]
pub(crate) fn peek(fd: c_int) -> Option<Word> {
    let word = cell(fd)?.word();
    (word != 0 && number::closing(word).is_none()).then_some(Word(word))
}

/// Enters a descriptor; false when it cannot be (number too high, no memory): it stays unknown, which is always safe.
pub(crate) fn set(fd: c_int, word: Word) -> bool {
    if TABLE.load(Ordering::Acquire).is_null() {
        make();
    }
    let Some(cell) = cell(fd) else { return false };
    TOP.fetch_max(fd as u32 + 1, Ordering::Relaxed);
    cell.set(word.0);
    true
}

/// Whether a descriptor is ours and none of the program's.
#[inline]
pub(crate) fn is_hidden(fd: c_int) -> bool {
    peek(fd).is_some_and(Word::is_hidden)
}

/// From now on the program neither sees nor closes `fd`.
pub(crate) fn hide(fd: c_int) {
    set(fd, Word::new(Kind::Hidden, 0, 0));
}

/// It is not ours any more.
pub(crate) fn unhide(fd: c_int) {
    if is_hidden(fd) {
        take(fd);
    }
}

/// Closes a descriptor of ours that was hidden, if it is one.
pub(crate) fn close_hidden(fd: c_int) -> bool {
    if fd >= 0 {
        unhide(fd);
        raw::close(fd);
    }
    fd >= 0
}

/// The program wants the number of a descriptor of ours that was hidden: it is this one from now on, or -1. The old number stays open until
/// the program's own descriptor takes its place.
pub(crate) fn move_hidden(old: c_int) -> c_int {
    unhide(old);
    let new = raw::fcntl(old, libc::F_DUPFD_CLOEXEC, old as usize + 1).unwrap_or(-1);
    if new >= 0 {
        hide(new);
    }
    new
}

/// Forgets a descriptor that the kernel has closed, and returns what it was.
pub(crate) fn take(fd: c_int) -> Option<Word> {
    cell(fd)?.take().map(Word)
}

// --- closes -----------------------------------------------------------------------------------------------------------------------

/// How long threads wait for a close before they go on: longer than any close takes.
const CLOSE_NS: u64 = 3_000_000_000;
/// The same of the kernel's: it takes the number away first, and may linger then.
const IN_KERNEL_NS: u64 = 100_000_000;
/// Between checks of it.
const PAUSE_NS: u64 = 10_000;

/// The calling thread closes `fd`: what it was. Others that call on it wait for [`end`].
pub(crate) fn begin(fd: c_int) -> Option<Word> {
    cell(fd)?.begin(lock::thread_id()).map(Word)
}

/// All that is ours is done; the kernel's close comes next.
pub(crate) fn to_kernel(fd: c_int) {
    if let Some(cell) = cell(fd) {
        cell.to_kernel(lock::thread_id());
    }
}

/// The kernel's close is made, or will not be.
pub(crate) fn end(fd: c_int) {
    if let Some(cell) = cell(fd).filter(|cell| cell.word() != 0) {
        cell.end(lock::thread_id());
    }
}

/// [`end`] of all within `from..=to`.
pub(crate) fn end_range(from: u32, to: u32) {
    (from..top(to)).for_each(|fd| end(fd as c_int));
}

/// Whether the calling thread is just closing it: below this frame, which is a signal handler's.
#[cold]
pub(crate) fn is_closing_here(fd: c_int) -> bool {
    closing(fd).is_some_and(|by| by.thread == lock::thread_id())
}

fn closing(fd: c_int) -> Option<Closing> {
    number::closing(cell(fd)?.word())
}

/// What `fd` is once it is closed: nothing, or what the kernel has given the number to.
#[cold]
fn behind_close(fd: c_int) -> Option<Word> {
    let begun = time::now_ns();
    let mut limit = begun + CLOSE_NS;
    while let Some(by) = closing(fd).filter(|by| by.thread != lock::thread_id()) {
        let now = time::now_ns();
        if by.in_kernel {
            limit = limit.min(now + IN_KERNEL_NS);
        }
        if now > limit {
            break;
        }
        // SAFETY: no descriptors and no mask: only a sleep.
        let _ = unsafe { raw::ppoll(&mut [], Some(time::timespec(PAUSE_NS)), core::ptr::null()) };
    }
    peek(fd)
}

// --- forks ------------------------------------------------------------------------------------------------------------------------

/// Before a fork: the table is not being made.
pub(crate) fn quiesce() {
    super::fork_locks::acquire(&LOCK);
}

/// In the parent: undoes [`quiesce`].
pub(crate) fn resume() {
    super::fork_locks::release(&LOCK);
}

/// The child after fork(2).
pub(crate) fn after_fork() {
    super::fork_locks::reset(&LOCK);
    // No thread is there that would close them.
    (0..top(u32::MAX)).filter_map(|fd| cell(fd as c_int)).for_each(Number::abandon);
}

// --- all --------------------------------------------------------------------------------------------------------------------------

/// One more than the highest descriptor entered that is not above `to`.
fn top(to: u32) -> u32 {
    TOP.load(Ordering::Relaxed).min(to.saturating_add(1))
}

/// Descriptors entered within `from..=to`, but for those that are being closed.
pub(crate) fn range(from: u32, to: u32) -> impl Iterator<Item = (c_int, Word)> {
    (from..top(to)).filter_map(|fd| Some((fd as c_int, peek(fd as c_int)?)))
}

#[cold]
fn make() {
    let _guard = LOCK.lock();
    if TABLE.load(Ordering::Acquire).is_null()
        && let Some(memory) = zeroed_pages(LIMIT * size_of::<Number>())
    {
        TABLE.store(memory.cast(), Ordering::Release);
    }
}
