//! The arenas this process has mapped: those it made for servers it connects to, and those of clients it serves.
//!
//! One arena serves one pair of processes. The connecting process makes it, and shows its memfd only while an offer stands; after that it
//! knows the process it is bound to. The accepting process maps it at the first offer. A lease counts the sessions in its arena; without
//! any, and with a dead peer, it ends and the memory with it:
//!
//! ```text
//!   FREE --make--> MADE   --(no session; peer dead, or many such)--> FREE
//!     |             \--(in the child of a fork)--> INHERITED --(no session, peer dead)--> FREE
//!     \---map----> MAPPED --(no session, peer dead)--> FREE
//! ```
//! Only the maker of an arena knows which of its slots are free, in memory of its own: a process that inherits it neither gives slots out
//! nor frees any. All steps are made under one lock.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use madrigal_report::Reason;
use madrigal_shm_ring::arena::Arena;
use madrigal_sys::{Errno, fd, process as proc, raw};

use super::lock::Lock;
use super::slab::{Object, Slab};
use super::{fork_locks, process, table};

/// All arenas.
static LEASES: Slab<Lease> = Slab::new();
static LOCK: Lock = Lock::new();

mod state {
    pub(super) const FREE: u32 = 0;
    /// Made by this process.
    pub(super) const MADE: u32 = 1;
    /// Made by a peer.
    pub(super) const MAPPED: u32 = 2;
    /// Made by the process that this one was forked from.
    pub(super) const INHERITED: u32 = 3;
}

/// So many leases are kept that have no session.
const MOST_IDLE: usize = 32;

/// One mapped arena.
pub(crate) struct Lease {
    next_free: AtomicU32,
    index: AtomicU32,
    state: AtomicU32,
    /// Sessions in it.
    sessions: AtomicU32,
    /// 1: no session begins in it any more. What it holds contradicts what we know, or the peer has not mapped it any more.
    retired: AtomicU32,
    /// The accepting end's port (made arenas).
    port: AtomicU32,
    /// The memfd while an offer may need it (made arenas), -1 afterwards.
    fd: AtomicI32,
    /// That file's number, by which the descriptor is known to be still ours.
    inode: AtomicU64,
    /// The other process.
    peer_pid: AtomicU32,
    peer_start: AtomicU64,
    arena: core::cell::UnsafeCell<MaybeUninit<Arena>>,
}

// SAFETY: integers and atomics; the arena is only read between `open` and `close`, which happen under LOCK with no session left.
unsafe impl Sync for Lease {}
// SAFETY: all-zero is a free lease (the arena is MaybeUninit).
unsafe impl Object for Lease {
    fn next_free(&self) -> &AtomicU32 {
        &self.next_free
    }
}

impl Lease {
    /// The arena. Only on a lease with a session, or under the lock.
    pub(crate) fn arena(&self) -> &Arena {
        // SAFETY: written before the lease became visible, and not dropped while it has a session (the caller's).
        unsafe { (*self.arena.get()).assume_init_ref() }
    }

    /// Its place among the leases.
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    /// The memfd to show in an offer, if the peer may need it.
    pub(crate) fn shown_fd(&self) -> Option<i32> {
        Some(self.fd.load(Ordering::Relaxed)).filter(|&fd| fd >= 0)
    }

    /// The peer has mapped it: no other process needs to find it.
    pub(crate) fn hide(&self) {
        let fd = self.fd.swap(-1, Ordering::Relaxed);
        if fd < 0 {
            return;
        }
        table::unhide(fd);
        // The program may have closed it unseen, and opened something of its own under the number.
        if inode(fd) == self.inode.load(Ordering::Relaxed) {
            raw::close(fd);
        }
    }

    /// The other process.
    pub(crate) fn peer_pid(&self) -> u32 {
        self.peer_pid.load(Ordering::Relaxed)
    }

    /// Records the other process.
    pub(crate) fn set_peer(&self, pid: u32) {
        if self.peer_pid.swap(pid, Ordering::Relaxed) != pid {
            self.peer_start.store(proc::start_time(pid).unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Whether the other process still runs.
    pub(crate) fn peer_alive(&self) -> bool {
        let pid = self.peer_pid();
        pid == 0 || proc::alive(pid, self.peer_start.load(Ordering::Relaxed))
    }

    /// Ends a session whose slot this side has left; `connecting`: the slot is its maker's to give out again.
    pub(crate) fn end_session(&self, slot: u32, connecting: bool) {
        if connecting && self.state.load(Ordering::Relaxed) == state::MADE {
            self.arena().let_go(slot);
        }
        self.sessions.fetch_sub(1, Ordering::AcqRel);
    }

    /// Ends a session whose slot was never offered.
    pub(crate) fn give_up(&self, slot: u32) {
        self.arena().give_slot(slot);
        self.sessions.fetch_sub(1, Ordering::AcqRel);
    }

    /// Ends a session that never began (mapped arenas).
    pub(crate) fn uncount(&self) {
        self.sessions.fetch_sub(1, Ordering::AcqRel);
    }

    /// What it holds contradicts what we know: the peer has written over it, or one of us is wrong.
    #[cold]
    pub(crate) fn mistrust(&self) {
        self.retired.store(1, Ordering::Relaxed);
        process::contradiction();
    }

    /// The process `id` has not mapped it. If it is bound to that one, it was ended there ([`end_idle`]): of no use any more.
    pub(crate) fn unmapped_by(&self, id: u64) {
        if self.arena().bound_to() == id {
            self.retired.store(1, Ordering::Relaxed);
        }
    }

    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed) != 0
    }

    /// Whether it has no use any more.
    fn is_over(&self) -> bool {
        self.sessions.load(Ordering::Acquire) == 0 && !self.peer_alive()
    }
}

/// An arena for a connection to `port`, and a slot in it. `bound`: the id of the accepting process, when it is known to be another
/// than the last one. The session is counted; undo with [`Lease::give_up`].
pub(crate) fn lend(port: u16, bound: Option<u64>) -> Result<(&'static Lease, u32), Reason> {
    let guard = LOCK.lock();
    if guard.nested() {
        return Err(Reason::Unearned);
    }
    let fits = |lease: &Lease| {
        let to = lease.arena().bound_to();
        lease.port.load(Ordering::Relaxed) == u32::from(port) && bound.is_none_or(|id| to == 0 || to == id)
    };
    // A bound arena first: only its peer can use it, and a fresh one may be needed for another.
    let mut fresh = None;
    for lease in living(state::MADE).filter(|lease| !lease.is_retired() && fits(lease)) {
        if lease.arena().bound_to() == 0 {
            fresh = Some(lease);
        } else if let Some(slot) = take_slot(lease) {
            return Ok((lease, slot));
        }
    }
    let lease = match fresh {
        Some(lease) => lease,
        None => make(port)?,
    };
    take_slot(lease).map(|slot| (lease, slot)).ok_or(Reason::NoMemory)
}

fn take_slot(lease: &Lease) -> Option<u32> {
    let slot = lease.arena().take_slot().ok()?;
    lease.sessions.fetch_add(1, Ordering::AcqRel);
    Some(slot)
}

fn make(port: u16) -> Result<&'static Lease, Reason> {
    let (arena, fd) = Arena::create().map_err(|e| match e {
        Errno::NOSYS | Errno::INVAL => Reason::Kernel,
        _ => Reason::NoMemory,
    })?;
    let lease = open(arena, state::MADE).ok_or(Reason::NoMemory)?;
    lease.port.store(u32::from(port), Ordering::Relaxed);
    let fd = fd::move_high(fd).into_number();
    lease.inode.store(inode(fd), Ordering::Relaxed);
    lease.fd.store(fd, Ordering::Relaxed);
    table::hide(fd);
    Ok(lease)
}

fn open(arena: Arena, as_state: u32) -> Option<&'static Lease> {
    end_idle();
    let (index, lease) = LEASES.take()?;
    // SAFETY: a free lease holds no arena, and LOCK makes us the only one at it.
    unsafe { (*lease.arena.get()).write(arena) };
    lease.index.store(index, Ordering::Relaxed);
    lease.fd.store(-1, Ordering::Relaxed);
    for field in [&lease.sessions, &lease.retired, &lease.port, &lease.peer_pid] {
        field.store(0, Ordering::Relaxed);
    }
    lease.state.store(as_state, Ordering::Release);
    Some(lease)
}

/// Ends leases without a session if there are many: a program that connects to ever new ports of another one would keep an arena for each.
/// A peer that offers a slot in an arena no longer mapped gets that answer, and makes another. Under LOCK.
fn end_idle() {
    let idle = || {
        let open = LEASES.all().filter(|(_, lease)| lease.state.load(Ordering::Relaxed) != state::FREE);
        open.filter(|(_, lease)| lease.sessions.load(Ordering::Acquire) == 0)
    };
    if idle().count() >= MOST_IDLE {
        idle().for_each(|(index, lease)| close(index, lease));
    }
}

/// How a peer's arena could not be had.
pub(crate) enum Unmapped {
    /// The peer shows no descriptor and we do not have it.
    Unknown,
    /// It may not be opened.
    Refused,
    /// It could not be had this time.
    NotNow,
}

/// Arena `id` of process `pid`, mapped now if it shows it as descriptor `fd`. A session is counted.
pub(crate) fn of_peer(id: u64, pid: u32, fd: Option<i32>) -> Result<&'static Lease, Unmapped> {
    let guard = LOCK.lock();
    if guard.nested() {
        return Err(Unmapped::NotNow);
    }
    if let Some(lease) = living(state::MAPPED).find(|lease| lease.arena().id() == id) {
        if lease.is_retired() {
            return Err(Unmapped::NotNow);
        }
        lease.sessions.fetch_add(1, Ordering::AcqRel);
        return Ok(lease);
    }
    let fd = fd.ok_or(Unmapped::Unknown)?;
    let arena = Arena::attach_from(pid, fd, id).map_err(|e| match e {
        Errno::ACCESS | Errno::PERM => Unmapped::Refused,
        _ => Unmapped::NotNow,
    })?;
    let lease = open(arena, state::MAPPED).ok_or(Unmapped::NotNow)?;
    lease.set_peer(pid);
    lease.sessions.fetch_add(1, Ordering::AcqRel);
    Ok(lease)
}

/// The leases of one kind. Ends on the way those of either kind that have no use any more. Under LOCK.
fn living(kind: u32) -> impl Iterator<Item = &'static Lease> {
    LEASES.all().filter_map(move |(index, lease)| {
        let state = lease.state.load(Ordering::Relaxed);
        if state != state::FREE && lease.is_over() {
            close(index, lease);
            return None;
        }
        (state == kind).then_some(lease)
    })
}

/// Ends leases without further use: a connection has ended, and its peer with it.
pub(crate) fn tidy() {
    let guard = LOCK.lock();
    if !guard.nested() {
        living(state::FREE).for_each(drop);
    }
}

fn close(index: u32, lease: &Lease) {
    lease.hide();
    lease.state.store(state::FREE, Ordering::Release);
    // SAFETY: the lease was open, so the arena was written; it has no session, so no thread reads it; LOCK keeps others out.
    unsafe { (*lease.arena.get()).assume_init_drop() };
    LEASES.put(index);
}

fn inode(fd: i32) -> u64 {
    // SAFETY: the descriptor is only looked at.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    rustix::fs::fstat(fd).map_or(0, |stat| stat.st_ino)
}

/// The program is out of descriptors: gives up those of arenas that offers stand for. True if there was one.
pub(crate) fn give_up_fds() -> bool {
    let mut any = false;
    for (_, lease) in LEASES.all().filter(|(_, l)| l.state.load(Ordering::Relaxed) == state::MADE) {
        any |= lease.shown_fd().is_some();
        lease.hide();
    }
    any
}

/// The program wants that very number, by dup2(2): no offer shows it from now on. False: it is none of these.
pub(crate) fn yield_fd(wanted: i32) -> bool {
    let made = LEASES.all().filter(|(_, lease)| lease.state.load(Ordering::Relaxed) == state::MADE);
    let shown =
        made.filter_map(|(_, lease)| lease.fd.compare_exchange(wanted, -1, Ordering::Relaxed, Ordering::Relaxed).ok());
    let any = wanted >= 0 && shown.count() > 0;
    if any {
        table::unhide(wanted);
    }
    any
}

/// The lease with this index.
pub(crate) fn by_index(index: u32) -> Option<&'static Lease> {
    LEASES.get(index)
}

/// Before a fork: nothing changes until the fork is over.
pub(crate) fn quiesce() {
    fork_locks::acquire(&LOCK);
    fork_locks::acquire(LEASES.lock());
}

/// In the parent, when the fork is over: undoes [`quiesce`].
pub(crate) fn resume() {
    fork_locks::release(LEASES.lock());
    fork_locks::release(&LOCK);
}

/// The child after fork(2).
pub(crate) fn after_fork() {
    fork_locks::reset(&LOCK);
    fork_locks::reset(LEASES.lock());
    // Descriptors shown in offers are the parent's business; the child's copies only cost numbers.
    for (_, lease) in LEASES.all() {
        if lease.state.load(Ordering::Relaxed) == state::MADE {
            lease.hide();
            // The child makes new arenas for new connections.
            lease.state.store(state::INHERITED, Ordering::Relaxed);
        }
    }
}
