//! The register: the one file of a network namespace, which records where the table is.
//!
//! The table is a sealed memfd, so it cannot be made shorter. A process that wants it opens `/proc/PID/fd/N` of a process that has it; the
//! register lists some of these. The register is read and written by system calls under the file's lock, and never mapped. A process that
//! truncates it, or writes anything into it, only hides the table from others.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, OwnedFd};

use madrigal_report::Reason;
use madrigal_sys::Errno;
use madrigal_sys::fd::{self, Fd};
use madrigal_sys::mem::{self, SharedMap};
use madrigal_sys::process::{self, StackPath};
use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::holder::{ENTRY, Holder, namespace};
use crate::table::{BYTES, MAGIC, Table};

/// Entries a register holds; others find the table through these.
const ENTRIES: u64 = 128;
const NAME: &core::ffi::CStr = c"madrigal-offers";
const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);

/// A table, mapped, and its descriptor.
pub(crate) struct Shared {
    pub(crate) fd: Fd,
    map: SharedMap,
}

impl Shared {
    fn create(netns: u64) -> Result<Self, Reason> {
        let fd = fd::move_high(mem::sealed_memfd(NAME, BYTES).map_err(|_| Reason::NoMemory)?);
        let map = SharedMap::map(&fd, BYTES, true).map_err(|_| Reason::NoMemory)?;
        // Every page is made real now: a machine without memory is an error here, and can never be a SIGBUS later.
        map.reserve(0, BYTES).map_err(|e| if e == Errno::NOSYS { Reason::Kernel } else { Reason::NoMemory })?;
        let shared = Self { fd, map };
        let table = shared.table().ok_or(Reason::NoMemory)?;
        table.netns.store(netns, Ordering::Relaxed);
        table.id.store(process::random(), Ordering::Relaxed);
        table.magic.store(MAGIC, Ordering::Release);
        Ok(shared)
    }

    /// The table that a process has.
    pub(crate) fn of(holder: Holder, here: u32, netns: u64) -> Option<Self> {
        Self::attach(holder.open(here, BYTES)?, netns)
    }

    fn attach(fd: Fd, netns: u64) -> Option<Self> {
        let map = SharedMap::map(&fd, BYTES, true).ok()?;
        let shared = Self { fd, map };
        let right = |table: &Table| table.magic.load(Ordering::Acquire) == MAGIC && table.netns() == netns;
        shared.table().is_some_and(right).then_some(shared)
    }

    fn table(&self) -> Option<&Table> {
        // SAFETY: atomics only; the reference lives no longer than the map.
        unsafe { self.map.shared::<Table>(0) }
    }

    /// Whether it is the same memory as a table that is mapped already: it has the same random number.
    pub(crate) fn is(&self, other: &Table) -> bool {
        self.table().is_some_and(|table| table.id() == other.id())
    }

    /// Its living users, as `here` sees them.
    pub(crate) fn users(&self) -> Vec<u32> {
        self.table().map_or_else(Vec::new, |table| table.living().collect())
    }

    /// Keeps the mapping for the life of the process; the table, and its descriptor.
    pub(crate) fn leak(self) -> Option<(&'static Table, Fd)> {
        // SAFETY: atomics only, and the map is never undone.
        let table = unsafe { self.map.shared::<Table>(0) }?;
        core::mem::forget(self.map);
        Some((table, self.fd))
    }
}

/// The open file, locked.
pub(crate) struct Register {
    file: Fd,
    /// This process's pid namespace.
    here: u32,
}

impl Register {
    /// Opens and locks the file, making it if there is none. `None`: another process removed it in the same moment, or holds its lock a
    /// little longer.
    pub(crate) fn open(file: &StackPath) -> Result<Option<Self>, Reason> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(file.as_c_str(), flags, OWNER_ONLY).map_err(reason)?;
        let Some(register) = Self::locked(file) else { return Ok(None) };
        let stat = rustix::fs::fstat(&register.file).map_err(reason)?;
        let safe = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o077 == 0;
        if safe { Ok(Some(register)) } else { Err(Reason::DirUnsafe) }
    }

    /// The same for a file that must exist.
    pub(crate) fn existing(file: &StackPath) -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        Self::locked(rustix::fs::open(file.as_c_str(), flags, Mode::empty()).ok()?)
    }

    fn locked(file: OwnedFd) -> Option<Self> {
        let register = Self { file: file.into(), here: namespace() };
        let linked = || rustix::fs::fstat(&register.file).is_ok_and(|stat| stat.st_nlink > 0);
        (lock_briefly(&register.file) && linked()).then_some(register)
    }

    /// The table, opened through a process in the register.
    pub(crate) fn find(&self, netns: u64) -> Option<Shared> {
        self.holders().find_map(|(_, holder)| Shared::of(holder, self.here, netns))
    }

    /// A new table, which no other process has yet.
    pub(crate) fn create(&self, netns: u64) -> Result<Shared, Reason> {
        Shared::create(netns)
    }

    /// Enters a process. If there is no room the other entries must suffice.
    pub(crate) fn add(&self, holder: Holder) -> Result<(), Reason> {
        let empty = |&at: &u64| self.read(at).is_none();
        let dead = |&at: &u64| self.read(at).is_some_and(|known| !known.lives(self.here));
        let Some(at) = (0..ENTRIES).find(empty).or_else(|| (0..ENTRIES).find(dead)) else { return Ok(()) };
        let written = rustix::io::pwrite(&self.file, &holder.bytes(), at * ENTRY as u64).map_err(reason)?;
        if written == ENTRY { Ok(()) } else { Err(Reason::DirFull) }
    }

    /// Strikes a process of this pid namespace from the register.
    pub(crate) fn strike(&self, pid: u32) {
        for (at, _) in self.holders().filter(|(_, holder)| holder.is(pid, self.here)) {
            let _ = rustix::io::pwrite(&self.file, &[0; ENTRY], at * ENTRY as u64);
        }
    }

    /// Those in it that live.
    pub(crate) fn living(&self) -> impl Iterator<Item = Holder> {
        self.holders().map(|(_, holder)| holder).filter(|holder| holder.lives(self.here))
    }

    fn holders(&self) -> impl Iterator<Item = (u64, Holder)> {
        // The file ends with its last entry, and is read no further.
        let entries = (0..ENTRIES).map_while(|at| Some((at, self.entry(at)?)));
        entries.filter_map(|(at, bytes)| Some((at, Holder::read(&bytes)?)))
    }

    fn read(&self, at: u64) -> Option<Holder> {
        Holder::read(&self.entry(at)?)
    }

    fn entry(&self, at: u64) -> Option<[u8; ENTRY]> {
        let mut bytes = [0; ENTRY];
        let n = rustix::io::pread(&self.file, &mut bytes[..], at * ENTRY as u64).ok()?;
        (n == ENTRY).then_some(bytes)
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        // The lock belongs to the open file, which a child forked at this moment has, too.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// What an errno of the directory means.
pub(crate) fn reason(e: Errno) -> Reason {
    match e {
        Errno::ROFS | Errno::ACCESS | Errno::PERM => Reason::DirReadOnly,
        Errno::NOSPC | Errno::DQUOT => Reason::DirFull,
        _ => Reason::DirMissing,
    }
}

/// A file's lock, which others hold only for microseconds; a stopped process must not stop us.
pub(crate) fn lock_briefly(fd: impl AsFd) -> bool {
    let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000 };
    for i in 0..90 {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return true,
            Err(_) if i < 50 => rustix::thread::sched_yield(),
            Err(_) => _ = rustix::thread::nanosleep(&moment),
        }
    }
    false
}
