//! Where connections find each other ([`madrigal_rendezvous`]): this process's table, and when it is opened, tried again and left.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use madrigal_rendezvous::{Directory, Table, port_of};
use madrigal_report::Reason;
use madrigal_sys::lock::Lock;
use madrigal_sys::{tcp, time};

pub(crate) use madrigal_rendezvous::{Offer, Tuple, stage};

/// The mapped table; null until first use.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());
/// A [`Reason`] why there is none, and when that was found out.
static FAILED: AtomicU32 = AtomicU32::new(0);
static LOCK: Lock = Lock::new();
/// Our entry among the table's users, plus one.
static OWN_ENTRY: AtomicU32 = AtomicU32::new(0);
/// How long a failure to map the table is believed before it is tried again.
static RETRY_AT: AtomicU64 = AtomicU64::new(0);
const RETRY_NS: u64 = 20_000_000;

/// The table if it is mapped: for hot paths.
#[inline]
fn mapped() -> Option<&'static Table> {
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
    let (table, entry) = opened.leak();
    keep_entry(entry);
    TABLE.store(core::ptr::from_ref(table).cast_mut(), Ordering::Release);
    Ok(table)
}

fn directory() -> Directory {
    Directory::named(crate::process::env(c"MADRIGAL_DIR"))
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

/// Posts an offer for `tuple`; `fill` writes what it says. `None`: no free place near its hash.
pub(crate) fn post(tuple: &Tuple, fill: impl FnOnce(&Offer)) -> Option<&'static Offer> {
    mapped()?.post(tuple, fill)
}

/// Takes the offer posted for `tuple`, if there is one. The caller answers by storing another stage.
pub(crate) fn find(tuple: &Tuple) -> Option<&'static Offer> {
    mapped()?.find(tuple)
}

/// The offer with this index in the table.
pub(crate) fn offer_at(index: u32) -> Option<&'static Offer> {
    mapped()?.offer_at(index)
}

/// Where an offer stands.
pub(crate) fn index_of(offer: &Offer) -> u32 {
    mapped().map_or(u32::MAX, |table| table.index_of(offer))
}

/// Before fork: a place for the child, so that the file outlives a parent that exits at once.
pub(crate) fn before_fork() {
    if let Some(table) = mapped() {
        table.expect_child();
    }
}

/// The child after fork: takes the place its parent made.
pub(crate) fn after_fork(parent: u32) {
    LOCK.reset();
    if let Some(table) = mapped() {
        keep_entry(table.enlist_child(parent));
    }
}

/// This process ends (or becomes another program): it leaves the list, and the last one removes the file.
pub(crate) fn leave() {
    if let Some(table) = mapped() {
        directory().leave(table, OWN_ENTRY.swap(0, Ordering::Relaxed).checked_sub(1));
    }
}

/// The program goes on after a failed exec: it is a user again.
pub(crate) fn come_back() {
    if let Some(table) = mapped() {
        keep_entry(table.enlist());
    }
}
