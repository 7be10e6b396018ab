//! Where connections find each other ([`madrigal_offers`]): this process's table, and when it is opened, tried again and left.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::os::fd::AsRawFd;

use madrigal_offers::{Directory, Opened, Table, port_of};
use madrigal_report::Reason;
use madrigal_sys::{tcp, time};

use super::lock::Lock;
use super::slab::zeroed_pages;
use super::{fork_locks, table as descriptors};

/// The mapped table; null until first use.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());
/// A [`Reason`] why there is none, and when that was found out.
static FAILED: AtomicU32 = AtomicU32::new(0);
static LOCK: Lock = Lock::new();
/// Our entry among the table's users, plus one.
static OWN_ENTRY: AtomicU32 = AtomicU32::new(0);
/// The descriptor by which others find the table; -1 for none.
static FD: AtomicI32 = AtomicI32::new(-1);
/// 1: this process was forked from one that had the table, and does not stand in the register yet.
static UNREGISTERED: AtomicU32 = AtomicU32::new(0);
/// How long a failure to map the table is believed before it is tried again.
static RETRY_AT: AtomicU64 = AtomicU64::new(0);
const RETRY_NS: u64 = 20_000_000;

/// The directory of tables that the user named when the program started, so many bytes; null where none was.
static NAMED: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static NAMED_LEN: AtomicUsize = AtomicUsize::new(0);

/// Reads from the environment where tables are, which the program may clear afterwards. Called once, before any hook of this library runs.
pub(crate) fn configure() {
    let Some(named) = super::process::env(c"MADRIGAL_DIR").filter(|path| !path.is_empty()) else { return };
    let Some(copy) = zeroed_pages(named.len()) else { return };
    // SAFETY: fresh pages that no other code knows, as long as the name at least.
    unsafe { core::ptr::copy_nonoverlapping(named.as_ptr(), copy, named.len()) };
    NAMED_LEN.store(named.len(), Ordering::Relaxed);
    NAMED.store(copy, Ordering::Release);
}

fn directory() -> Directory {
    let (copy, len) = (NAMED.load(Ordering::Acquire), NAMED_LEN.load(Ordering::Relaxed));
    if copy.is_null() {
        return Directory::named(None);
    }
    // SAFETY: `configure` copied so many bytes of a text there, and nothing writes to them again.
    Directory::named(Some(unsafe { core::str::from_utf8_unchecked(core::slice::from_raw_parts(copy, len)) }))
}

/// The table if it is mapped: for hot paths.
#[inline]
pub(crate) fn mapped() -> Option<&'static Table> {
    // SAFETY: published once, never unmapped, atomics only.
    unsafe { TABLE.load(Ordering::Acquire).as_ref() }
}

/// Maps the table of `fd`'s network namespace if that has not been done.
fn table(fd: c_int) -> Result<&'static Table, Reason> {
    if let Some(table) = mapped() {
        return Ok(table);
    }
    let now = time::now_ns();
    if let Some(reason) = Reason::from_code(FAILED.load(Ordering::Relaxed))
        && now < RETRY_AT.load(Ordering::Relaxed)
    {
        return Err(reason);
    }
    let guard = LOCK.lock();
    if guard.nested() {
        return Err(Reason::Unearned);
    }
    if let Some(table) = mapped() {
        return Ok(table);
    }
    let opened = directory().open(tcp::netns_cookie(fd)).inspect_err(|&reason| {
        FAILED.store(reason as u32, Ordering::Relaxed);
        RETRY_AT.store(now + RETRY_NS, Ordering::Relaxed);
    })?;
    Ok(keep(opened))
}

/// Keeps what was opened for the life of the process.
fn keep(opened: Opened) -> &'static Table {
    let fd = opened.fd.as_raw_fd();
    core::mem::forget(opened.fd);
    descriptors::hide(fd);
    FD.store(fd, Ordering::Relaxed);
    keep_entry(opened.entry);
    UNREGISTERED.store(0, Ordering::Relaxed);
    TABLE.store(core::ptr::from_ref(opened.table).cast_mut(), Ordering::Release);
    opened.table
}

/// Why there is no table, if one was wanted.
pub(crate) fn failed() -> Option<Reason> {
    Reason::from_code(FAILED.load(Ordering::Relaxed)).filter(|_| mapped().is_none())
}

fn keep_entry(entry: Option<u32>) {
    OWN_ENTRY.store(entry.map_or(0, |i| i + 1), Ordering::Relaxed);
}

/// Says that a wrapped program listens on the port of `fd`.
pub(crate) fn mark(fd: c_int) -> Result<(), Reason> {
    let table = table(fd)?;
    table.mark(port_of(fd).map_err(|_| Reason::NotOpen)?);
    Ok(())
}

/// Whether a wrapped program listens, or has listened, on `port` in the namespace of `fd`.
pub(crate) fn is_marked(fd: c_int, port: u16) -> Result<bool, Reason> {
    Ok(table(fd)?.is_marked(port))
}

/// Whether a wrapped program listens, or has listened, on the port of `fd` itself.
pub(crate) fn is_from_marked(fd: c_int) -> bool {
    port_of(fd).is_ok_and(|port| mapped().is_some_and(|table| table.is_marked(port)))
}

/// Whether a socket belongs to the namespace of the mapped table.
pub(crate) fn same_netns(fd: c_int) -> bool {
    mapped().is_some_and(|t| t.netns() == tcp::netns_cookie(fd))
}

/// How many offers were ever posted; 0 while no table is mapped.
#[inline]
pub(crate) fn posts() -> u32 {
    mapped().map_or(0, Table::posts)
}

/// The program is out of descriptors: gives up that of the table, by which others find it. True if there was one.
pub(crate) fn give_up_fd() -> bool {
    descriptors::close_hidden(FD.swap(-1, Ordering::Relaxed))
}

/// The program wants that very number, by dup2(2): our descriptor is another one from now on. False: it is not this one.
pub(crate) fn yield_fd(wanted: c_int) -> bool {
    if wanted < 0 || FD.load(Ordering::Relaxed) != wanted {
        return false;
    }
    let new = descriptors::move_hidden(wanted);
    FD.store(new, Ordering::Relaxed);
    if let (Some(table), 0..) = (mapped(), new) {
        OWN_ENTRY.swap(0, Ordering::Relaxed).checked_sub(1).into_iter().for_each(|entry| table.strike(entry));
        keep_entry(table.enlist(new as u32));
        UNREGISTERED.store(1, Ordering::Relaxed);
    }
    true
}

/// Before fork: a place for the child, so that a process has the table when a parent exits at once.
pub(crate) fn before_fork() {
    if let Some(table) = mapped() {
        table.expect_child();
    }
}

/// The table is neither opened nor left until the fork is over.
pub(crate) fn quiesce() {
    fork_locks::acquire(&LOCK);
}

/// In the parent, when the fork is over: undoes [`quiesce`].
pub(crate) fn resume() {
    fork_locks::release(&LOCK);
}

/// The child after fork: takes the place its parent made.
pub(crate) fn after_fork(parent: u32) {
    fork_locks::reset(&LOCK);
    if let Some(table) = mapped() {
        keep_entry(table.enlist_child(parent, FD.load(Ordering::Relaxed) as u32));
        UNREGISTERED.store(1, Ordering::Relaxed);
    }
}

/// Before a forked child accepts: it stands in the register, too, for its parent may be gone. True: by now there is another table, on
/// which its listeners have to be marked.
pub(crate) fn register_child() -> bool {
    if UNREGISTERED.load(Ordering::Relaxed) == 0 || UNREGISTERED.swap(0, Ordering::Relaxed) == 0 {
        return false;
    }
    let guard = LOCK.lock();
    let (Some(table), false, fd @ 0..) = (mapped(), guard.nested(), FD.load(Ordering::Relaxed)) else { return false };
    let Ok(Some(other)) = directory().reenter(table.netns(), table, fd) else { return false };
    give_up_fd();
    keep(other);
    true
}

/// This process ends (or becomes another program): it leaves the list, and the last one removes the register.
pub(crate) fn leave() {
    if let Some(table) = mapped() {
        directory().leave(table, OWN_ENTRY.swap(0, Ordering::Relaxed).checked_sub(1));
    }
}

/// The program goes on after a failed exec: it is a user again.
pub(crate) fn come_back() {
    if let Some(table) = mapped() {
        keep_entry(table.enlist(FD.load(Ordering::Relaxed) as u32));
        UNREGISTERED.store(1, Ordering::Relaxed);
    }
}
