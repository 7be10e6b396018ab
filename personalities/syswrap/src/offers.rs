//! The rendezvous: one small file in the shared directory where connecting ends leave offers and accepting ends find them.
//!
//! The file is named after the network namespace, so that a 4-tuple in it names one connection. It is memory to its users: a
//! bitmap of ports on which a wrapped program listens, a hash table of offers, and a list of the processes using it, so that the
//! last one to leave removes it. Whatever stands in it may have been written by any process of this user: numbers are bounded,
//! and what an offer says is proven by the nonces of [`crate::upgrade`].

use core::ffi::c_int;
use core::fmt::Write as _;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::os::fd::{AsFd, OwnedFd};

use madrigal_report::Reason;
use madrigal_sys::lock::Lock;
use madrigal_sys::mem::SharedMap;
use madrigal_sys::process::StackPath;
use madrigal_sys::{Errno, process, raw, tcp, time};
use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::slab::zeroed_pages;

const MAGIC: u64 = u64::from_le_bytes(*b"mdr-off\x01");
const ENTRIES: usize = 1024;
/// Places an offer may stand, from the one its hash names.
const PROBES: usize = 8;
const USERS: usize = 512;
/// An offer older than this is nobody's.
const STALE_NS: u64 = 10_000_000_000;

/// Both addresses of a connection, connecting end first; IPv4 in its mapped form.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Tuple([AtomicU64; 5]);

impl Tuple {
    pub(crate) fn clear(&self) {
        self.0[4].store(0, Ordering::Relaxed);
    }

    /// Whether it was ever filled.
    pub(crate) fn is_known(&self) -> bool {
        self.0[4].load(Ordering::Relaxed) != 0
    }

    /// Asks the kernel for both names of `fd`; `connecting` says which end it is.
    pub(crate) fn learn(&self, fd: c_int, connecting: bool) -> Result<(), Errno> {
        let own = name(&raw::socket_name(fd, false)?)?;
        let peer = name(&raw::socket_name(fd, true)?)?;
        let (from, to) = if connecting { (own, peer) } else { (peer, own) };
        let halves = |a: [u8; 16]| {
            let (high, low) = a.split_at(8);
            (
                u64::from_be_bytes(high.try_into().unwrap_or_default()),
                u64::from_be_bytes(low.try_into().unwrap_or_default()),
            )
        };
        let ((a, b), (c, d)) = (halves(from.0), halves(to.0));
        for (cell, value) in self.0.iter().zip([a, b, c, d, 1 << 32 | u64::from(from.1) << 16 | u64::from(to.1)]) {
            cell.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The accepting end's port.
    pub(crate) fn port(&self) -> u16 {
        self.0[4].load(Ordering::Relaxed) as u16
    }

    fn copy_to(&self, other: &Tuple) {
        for (from, to) in self.0.iter().zip(&other.0) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn same(&self, other: &Tuple) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a.load(Ordering::Relaxed) == b.load(Ordering::Relaxed))
    }

    fn hash(&self) -> usize {
        let mix =
            |h: u64, c: &AtomicU64| (h ^ c.load(Ordering::Relaxed)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        self.0.iter().fold(0, mix) as usize % ENTRIES
    }
}

/// Address and port of a socket name. `EAFNOSUPPORT` for what is not IP.
fn name(addr: &libc::sockaddr_storage) -> Result<([u8; 16], u16), Errno> {
    match c_int::from(addr.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says so, and a sockaddr_storage is large and aligned enough for any address.
            let v4 = unsafe { &*core::ptr::from_ref(addr).cast::<libc::sockaddr_in>() };
            let mut bytes = [0; 16];
            bytes[10..12].fill(0xff);
            bytes[12..].copy_from_slice(&v4.sin_addr.s_addr.to_ne_bytes());
            Ok((bytes, u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*core::ptr::from_ref(addr).cast::<libc::sockaddr_in6>() };
            Ok((v6.sin6_addr.s6_addr, u16::from_be(v6.sin6_port)))
        }
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// Stages of an offer.
pub(crate) mod stage {
    pub(crate) const FREE: u32 = 0;
    /// Being written.
    pub(crate) const WRITING: u32 = 1;
    /// Waiting for the accepting end.
    pub(crate) const POSTED: u32 = 2;
    /// The accepting end is at it.
    pub(crate) const TAKEN: u32 = 3;
    /// The accepting end attached: see the slot.
    pub(crate) const ACCEPTED: u32 = 4;
    /// It does not have this arena and cannot get it: offer another.
    pub(crate) const OTHER_ARENA: u32 = 5;
    /// It may not look into this process.
    pub(crate) const REFUSED: u32 = 6;
}

/// One offer.
#[repr(C, align(128))]
#[derive(Default)]
pub(crate) struct Offer {
    pub(crate) stage: AtomicU32,
    /// Connecting process, and the descriptor of the arena in it (plus one; 0 when the peer must know the arena already).
    pub(crate) pid: AtomicU32,
    pub(crate) arena_fd: AtomicU32,
    pub(crate) slot: AtomicU32,
    pub(crate) generation: AtomicU64,
    pub(crate) arena: AtomicU64,
    pub(crate) nonce: AtomicU64,
    /// The accepting process's id, with `OTHER_ARENA`; the reason's code with `REFUSED`.
    pub(crate) answer: AtomicU64,
    posted_at: AtomicU64,
    tuple: Tuple,
}

/// A process using the table.
#[repr(C)]
#[derive(Default)]
struct User {
    /// 0 free; high bit set while a fork is under way on behalf of the child.
    pid: AtomicU32,
    namespace: AtomicU32,
    start: AtomicU64,
}

/// Marks a user entry that a parent made for a child about to be born.
const UNBORN: u32 = 1 << 31;

#[repr(C)]
struct Table {
    magic: AtomicU64,
    netns: AtomicU64,
    /// Counts posts: an accepting end that saw this value has nothing new to find.
    posts: AtomicU32,
    _pad: [u32; 11],
    ports: [AtomicU64; 1024],
    users: [User; USERS],
    offers: [Offer; ENTRIES],
}

const BYTES: usize = size_of::<Table>().next_multiple_of(4096);

/// The mapped table; null until first use.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());
/// A [`Reason`] why there is none, and when that was found out.
static FAILED: AtomicU32 = AtomicU32::new(0);
static LOCK: Lock = Lock::new();
static OWN_ENTRY: AtomicU32 = AtomicU32::new(0);
/// How long a failure to map the table is believed before it is tried again.
static RETRY_AT: AtomicU64 = AtomicU64::new(0);
const RETRY_NS: u64 = 1_000_000_000;

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
    open(fd).inspect_err(|&reason| {
        FAILED.store(reason as u32, Ordering::Relaxed);
        RETRY_AT.store(now + RETRY_NS, Ordering::Relaxed);
    })
}

/// Says that a wrapped program listens on the port of `fd`.
pub(crate) fn mark(fd: c_int) -> Result<(), Reason> {
    let table = table(fd)?;
    let (_, port) = raw::socket_name(fd, false).and_then(|a| name(&a)).map_err(|_| Reason::NotOpen)?;
    table.ports[port as usize / 64].fetch_or(1 << (port % 64), Ordering::Relaxed);
    Ok(())
}

/// Whether a wrapped program listens, or has listened, on `port` in the namespace of `fd`.
pub(crate) fn is_marked(fd: c_int, port: u16) -> Result<bool, Reason> {
    let table = table(fd)?;
    Ok(table.ports[port as usize / 64].load(Ordering::Relaxed) >> (port % 64) & 1 != 0)
}

/// Whether a socket belongs to the namespace of the mapped table.
pub(crate) fn same_netns(fd: c_int) -> bool {
    mapped().is_some_and(|t| t.netns.load(Ordering::Relaxed) == tcp::netns_cookie(fd))
}

/// How many offers were ever posted; 0 while no table is mapped.
#[inline]
pub(crate) fn posts() -> u32 {
    mapped().map_or(0, |t| t.posts.load(Ordering::Acquire))
}

/// Posts an offer for `tuple`; `fill` writes what it says. `None`: no free place near its hash.
pub(crate) fn post(tuple: &Tuple, fill: impl FnOnce(&Offer)) -> Option<&'static Offer> {
    let table = mapped()?;
    let now = time::now_ns();
    for offer in places(table, tuple) {
        if !claim(offer, now) {
            continue;
        }
        tuple.copy_to(&offer.tuple);
        offer.posted_at.store(now, Ordering::Relaxed);
        offer.pid.store(process::own_pid(), Ordering::Relaxed);
        fill(offer);
        // SYNC: Release pairs with the Acquire exchange in `find`: what was filled in is seen by who takes the offer.
        offer.stage.store(stage::POSTED, Ordering::Release);
        table.posts.fetch_add(1, Ordering::Release);
        return Some(offer);
    }
    None
}

fn claim(offer: &Offer, now: u64) -> bool {
    let seen = offer.stage.load(Ordering::Acquire);
    let stale = now.saturating_sub(offer.posted_at.load(Ordering::Relaxed)) > STALE_NS;
    (seen == stage::FREE || stale)
        && offer.stage.compare_exchange(seen, stage::WRITING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Takes the offer posted for `tuple`, if there is one. The caller answers by storing another stage.
pub(crate) fn find(tuple: &Tuple) -> Option<&'static Offer> {
    places(mapped()?, tuple).find(|offer| {
        offer.stage.load(Ordering::Acquire) == stage::POSTED
            && offer.tuple.same(tuple)
            && offer.stage.compare_exchange(stage::POSTED, stage::TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    })
}

fn places(table: &'static Table, tuple: &Tuple) -> impl Iterator<Item = &'static Offer> {
    let first = tuple.hash();
    (0..PROBES).map(move |i| &table.offers[(first + i) % ENTRIES])
}

/// The offer with this index in the table.
pub(crate) fn offer_at(index: u32) -> Option<&'static Offer> {
    mapped()?.offers.get(index as usize)
}

/// Where an offer stands.
pub(crate) fn index_of(offer: &Offer) -> u32 {
    let Some(table) = mapped() else { return u32::MAX };
    let distance = core::ptr::from_ref(offer).addr().wrapping_sub(table.offers.as_ptr().addr());
    (distance / size_of::<Offer>()) as u32
}

// --- the file -----------------------------------------------------------------------------------------------------------------

/// A path in the shared directory.
fn path(netns: u64, file: bool) -> StackPath {
    let mut path = StackPath::empty();
    let dir = crate::process::env(c"MADRIGAL_DIR").filter(|d| !d.is_empty());
    let written = match dir {
        Some(dir) => path.write_str(dir),
        None => write!(path, "/dev/shm/madrigal-{}", rustix::process::geteuid().as_raw()),
    };
    let written = written.and_then(|()| if file { write!(path, "/offers-{netns:x}\0") } else { path.write_str("\0") });
    if written.is_err() { StackPath::empty() } else { path }
}

fn open(fd: c_int) -> Result<&'static Table, Reason> {
    let netns = tcp::netns_cookie(fd);
    let dir = path(netns, false);
    match rustix::fs::mkdir(dir.as_c_str(), Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) => return Err(Reason::DirReadOnly),
        Err(Errno::NOSPC | Errno::DQUOT) => return Err(Reason::DirFull),
        Err(_) => return Err(Reason::DirMissing),
    }
    let stat = rustix::fs::lstat(dir.as_c_str()).map_err(|_| Reason::DirMissing)?;
    let private = stat.st_mode & 0o077 == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
    if !private || stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(Reason::DirUnsafe);
    }
    let file = path(netns, true);
    for _ in 0..20 {
        if let Some(table) = open_file(&file, netns)? {
            return Ok(table);
        }
    }
    Err(Reason::DirMissing)
}

/// One try; `None` when another process removed the file in the same moment, or holds it a little longer.
fn open_file(file: &StackPath, netns: u64) -> Result<Option<&'static Table>, Reason> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::open(file.as_c_str(), flags, Mode::RUSR | Mode::WUSR).map_err(dir_reason)?;
    if !lock_briefly(&fd) {
        return Ok(None);
    }
    let stat = rustix::fs::fstat(&fd).map_err(dir_reason)?;
    if stat.st_nlink == 0 {
        return Ok(None);
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
        return Err(Reason::DirUnsafe);
    }
    if stat.st_size != BYTES as i64 || stat.st_blocks * 512 < BYTES as i64 {
        // Every page is made real now: a full file system is an error here, and can never be a SIGBUS later.
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, BYTES as u64).map_err(|e| {
            let _ = rustix::fs::unlink(file.as_c_str());
            dir_reason(e)
        })?;
    }
    let map = SharedMap::map(&fd, BYTES, true).map_err(|_| Reason::NoMemory)?;
    // The mapping keeps the open file, and with it the lock, alive.
    let _ = rustix::fs::flock(&fd, FlockOperation::Unlock);
    let place = zeroed_pages(size_of::<SharedMap>()).ok_or(Reason::NoMemory)?.cast::<SharedMap>();
    // SAFETY: fresh pages nobody else knows, never unmapped: the mapping lives for ever.
    let map = unsafe {
        place.write(map);
        &*place
    };
    // SAFETY: atomics only, inside the map (BYTES), which is never dropped.
    let table = unsafe { map.shared::<Table>(0) }.ok_or(Reason::NoMemory)?;
    table.netns.store(netns, Ordering::Relaxed);
    table.magic.store(MAGIC, Ordering::Relaxed);
    enlist(table);
    TABLE.store(core::ptr::from_ref(table).cast_mut(), Ordering::Release);
    Ok(Some(table))
}

fn dir_reason(e: Errno) -> Reason {
    match e {
        Errno::ROFS | Errno::ACCESS | Errno::PERM => Reason::DirReadOnly,
        Errno::NOSPC | Errno::DQUOT => Reason::DirFull,
        _ => Reason::DirMissing,
    }
}

/// The file's lock, which others hold only for microseconds; a stopped process must not stop us.
fn lock_briefly(fd: &OwnedFd) -> bool {
    for _ in 0..50 {
        match rustix::fs::flock(fd.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return true,
            Err(_) => rustix::thread::sched_yield(),
        }
    }
    false
}

/// Names this process's pid namespace: a pid of another one says nothing about its life.
fn namespace() -> u32 {
    rustix::fs::stat(c"/proc/self/ns/pid").map_or(0, |s| s.st_ino as u32)
}

fn is_live(user: &User, here: u32) -> bool {
    let pid = user.pid.load(Ordering::Relaxed);
    pid != 0
        && (user.namespace.load(Ordering::Relaxed) != here || {
            process::alive(pid & !UNBORN, user.start.load(Ordering::Relaxed))
        })
}

/// Enters this process among the users. With no room it is not entered, and the file may be removed under it: connections set up
/// so far go on, later ones stay with TCP.
fn enlist(table: &Table) {
    let (pid, here) = (process::own_pid(), namespace());
    let start = process::start_time(pid).unwrap_or(0);
    for (i, user) in table.users.iter().enumerate() {
        let seen = user.pid.load(Ordering::Relaxed);
        if seen != 0 && seen != pid && is_live(user, here) {
            continue;
        }
        if user.pid.compare_exchange(seen, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            user.namespace.store(here, Ordering::Relaxed);
            user.start.store(start, Ordering::Relaxed);
            OWN_ENTRY.store(i as u32 + 1, Ordering::Relaxed);
            return;
        }
    }
}

/// Before fork: a place for the child, so that the file outlives a parent that exits at once.
pub(crate) fn before_fork() {
    let Some(table) = mapped() else { return };
    let pid = process::own_pid();
    for user in &table.users {
        if user.pid.load(Ordering::Relaxed) == 0
            && user.pid.compare_exchange(0, pid | UNBORN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            let own = OWN_ENTRY.load(Ordering::Relaxed).checked_sub(1).and_then(|i| table.users.get(i as usize));
            let (here, start) =
                own.map_or((0, 0), |o| (o.namespace.load(Ordering::Relaxed), o.start.load(Ordering::Relaxed)));
            user.namespace.store(here, Ordering::Relaxed);
            user.start.store(start, Ordering::Relaxed);
            return;
        }
    }
}

/// The child after fork: takes the place its parent made.
pub(crate) fn after_fork(parent: u32) {
    LOCK.reset();
    let Some(table) = mapped() else { return };
    OWN_ENTRY.store(0, Ordering::Relaxed);
    let pid = process::own_pid();
    for (i, user) in table.users.iter().enumerate() {
        if user.pid.compare_exchange(parent | UNBORN, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            user.start.store(process::start_time(pid).unwrap_or(0), Ordering::Relaxed);
            OWN_ENTRY.store(i as u32 + 1, Ordering::Relaxed);
            return;
        }
    }
    enlist(table);
}

/// This process ends (or becomes another program): it leaves the list, and the last one removes the file.
pub(crate) fn leave() {
    let Some(table) = mapped() else { return };
    let own = OWN_ENTRY.swap(0, Ordering::Relaxed).checked_sub(1).and_then(|i| table.users.get(i as usize));
    if let Some(own) = own {
        own.pid.store(0, Ordering::Release);
    }
    let here = namespace();
    if table.users.iter().any(|u| is_live(u, here)) {
        return;
    }
    let file = path(table.netns.load(Ordering::Relaxed), true);
    let Ok(fd) = rustix::fs::open(file.as_c_str(), OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
    else {
        return;
    };
    if lock_briefly(&fd) && !table.users.iter().any(|u| is_live(u, here)) {
        let _ = rustix::fs::unlink(file.as_c_str());
    }
}

/// The program goes on after a failed exec: it is a user again.
pub(crate) fn come_back() {
    if let Some(table) = mapped() {
        enlist(table);
    }
}
