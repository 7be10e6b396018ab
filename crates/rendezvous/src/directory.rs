//! The shared directory, and the life of the files in it.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::fmt::Write as _;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use std::os::fd::OwnedFd;

use madrigal_report::Reason;
use madrigal_sys::Errno;
use madrigal_sys::mem::SharedMap;
use madrigal_sys::process::StackPath;
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, RawDir};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::table::{BYTES, MAGIC, Table};
use crate::users::{Seen, USER_BYTES, USERS, namespace};

/// Every table's name begins with this; the network namespace follows.
const PREFIX: &str = "offers-";
/// A name on which the `shm` driver listens ends with this.
const LISTENER: &str = ".sock";
const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);
/// How often a file that others remove in the same moment is made again.
const TRIES: u32 = 20;

/// The directory through which the processes of one user find each other. Only its owner may enter it.
pub struct Directory {
    path: StackPath,
}

/// A table, mapped, and this process's entry in its list of users.
pub struct Opened {
    /// Lies in `map`; given out for no longer than that lives.
    table: &'static Table,
    map: SharedMap,
    /// `None`: the list was full.
    pub entry: Option<u32>,
}

impl Opened {
    /// The table.
    pub fn table(&self) -> &Table {
        self.table
    }

    /// Keeps the mapping for the life of the process.
    pub fn leak(self) -> (&'static Table, Option<u32>) {
        core::mem::forget(self.map);
        (self.table, self.entry)
    }
}

/// A table's file, as [`Directory::tables`] finds it.
#[derive(Clone, Debug)]
pub struct TableFile {
    /// Its name in the directory.
    pub name: String,
    /// The living processes using it. Pids of other pid namespaces among them mean nothing here.
    pub users: Vec<u32>,
}

impl Directory {
    /// The directory called `path`, in which `UID` stands for the effective user; `None` or empty: the default. A path too long to
    /// be built on the stack names nothing.
    pub fn named(path: Option<&str>) -> Self {
        let own = rustix::process::geteuid().as_raw();
        let mut built = StackPath::empty();
        let mut written = Ok(());
        for (i, part) in path.filter(|p| !p.is_empty()).unwrap_or("/dev/shm/madrigal-UID").split("UID").enumerate() {
            let uid = if i == 0 { Ok(()) } else { write!(built, "{own}") };
            written = written.and(uid).and_then(|()| built.write_str(part));
        }
        let written = written.and_then(|()| built.write_str("\0"));
        Self { path: if written.is_err() { StackPath::empty() } else { built } }
    }

    /// Its path.
    pub fn path(&self) -> &CStr {
        self.path.as_c_str()
    }

    /// The table of network namespace `netns`, made if there is none, with this process among its users.
    pub fn open(&self, netns: u64) -> Result<Opened, Reason> {
        self.make()?;
        self.judge()?;
        let file = self.file(format_args!("{PREFIX}{netns:x}"));
        for _ in 0..TRIES {
            if let Some(opened) = open_file(&file, netns)? {
                return Ok(opened);
            }
        }
        Err(Reason::DirMissing)
    }

    /// This process stops using `table`; the last one to do so removes the file. `entry` is its entry, if it has one.
    pub fn leave(&self, table: &Table, entry: Option<u32>) {
        if let Some(entry) = entry {
            table.strike(entry);
        }
        if !table.in_use() {
            remove_unused(&self.file(format_args!("{PREFIX}{:x}", table.netns())), namespace());
        }
    }

    /// Whether connections of network namespace `netns` could meet here; tried, leaving nothing behind.
    pub fn check(&self, netns: u64) -> Result<(), Reason> {
        let made = self.make()?;
        let checked = self.judge().and_then(|()| self.try_room(netns));
        if made {
            let _ = rustix::fs::rmdir(self.path());
        }
        checked
    }

    /// Removes what dead processes left: tables none of whose users lives, and names of listeners that are gone; returns how many.
    pub fn tidy(&self) -> usize {
        let (mut removed, here) = (0, namespace());
        self.each(|dir, name| {
            let file = self.file(format_args!("{name}"));
            removed += usize::from(match () {
                () if name.starts_with(PREFIX) => remove_unused(&file, here),
                () => name.ends_with(LISTENER) && remove_deaf(dir, &file),
            });
        });
        removed
    }

    /// The tables there are, with their living users.
    pub fn tables(&self) -> Vec<TableFile> {
        let (mut tables, here) = (Vec::new(), namespace());
        self.each(|_, name| {
            if !name.starts_with(PREFIX) {
                return;
            }
            let Ok(fd) = open_existing(&self.file(format_args!("{name}"))) else { return };
            let mut users = Vec::new();
            each_user(&fd, |user| {
                users.extend(user.live(here));
                true
            });
            tables.push(TableFile { name: name.to_owned(), users });
        });
        tables
    }

    /// Makes the directory; true: it was not there.
    fn make(&self) -> Result<bool, Reason> {
        match rustix::fs::mkdir(self.path(), Mode::RWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(e) => Err(reason(e)),
        }
    }

    /// Whether it is a directory of ours that others cannot enter.
    fn judge(&self) -> Result<(), Reason> {
        let stat = rustix::fs::lstat(self.path()).map_err(|_| Reason::DirMissing)?;
        let private = stat.st_mode & 0o077 == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let own = stat.st_uid == rustix::process::geteuid().as_raw();
        if private && own { Ok(()) } else { Err(Reason::DirUnsafe) }
    }

    /// Whether the table exists, or there is room for it.
    fn try_room(&self, netns: u64) -> Result<(), Reason> {
        let file = self.file(format_args!("{PREFIX}{netns:x}"));
        if open_existing(&file).and_then(|fd| rustix::fs::fstat(&fd)).is_ok_and(|stat| is_whole(&stat)) {
            return Ok(());
        }
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::open(self.path(), flags, OWNER_ONLY) {
            Ok(fd) => rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, BYTES as u64).map_err(reason),
            // A file system without nameless files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
                rustix::fs::accessat(rustix::fs::CWD, self.path(), access, AtFlags::EACCESS).map_err(reason)
            }
            Err(e) => Err(reason(e)),
        }
    }

    fn file(&self, name: core::fmt::Arguments<'_>) -> StackPath {
        let mut path = StackPath::empty();
        let written = match self.path().to_str() {
            Ok(dir) => write!(path, "{dir}/{name}\0"),
            Err(_) => Err(core::fmt::Error),
        };
        if written.is_err() { StackPath::empty() } else { path }
    }

    /// Shows every name in it.
    fn each(&self, mut see: impl FnMut(&OwnedFd, &str)) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if self.judge().is_err() {
            return;
        }
        let Ok(dir) = rustix::fs::open(self.path(), flags, Mode::empty()) else { return };
        let mut buf = [MaybeUninit::uninit(); 2048];
        let mut entries = RawDir::new(&dir, &mut buf);
        while let Some(Ok(entry)) = entries.next() {
            if let Ok(name) = entry.file_name().to_str() {
                see(&dir, name);
            }
        }
    }
}

/// One try; `None` when another process removed the file in the same moment, or holds it a little longer.
fn open_file(file: &StackPath, netns: u64) -> Result<Option<Opened>, Reason> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::open(file.as_c_str(), flags, OWNER_ONLY).map_err(reason)?;
    if !lock_briefly(&fd) {
        return Ok(None);
    }
    let stat = rustix::fs::fstat(&fd).map_err(reason)?;
    if stat.st_nlink == 0 {
        return Ok(None);
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
        return Err(Reason::DirUnsafe);
    }
    if !is_whole(&stat) {
        // Every page is made real now: a full file system is an error here, and can never be a SIGBUS later.
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, BYTES as u64).map_err(|e| {
            let _ = rustix::fs::unlink(file.as_c_str());
            reason(e)
        })?;
    }
    let map = SharedMap::map(&fd, BYTES, true).map_err(|_| Reason::NoMemory)?;
    // SAFETY: atomics only; `Opened` keeps the reference beside its map and gives it out for no longer.
    let table = unsafe { map.shared::<Table>(0) }.ok_or(Reason::NoMemory)?;
    table.netns.store(netns, Ordering::Relaxed);
    table.magic.store(MAGIC, Ordering::Relaxed);
    let entry = table.enlist();
    // The mapping keeps the open file, and with it the lock, alive. Opened only now: nobody takes the file for an unused one.
    let _ = rustix::fs::flock(&fd, FlockOperation::Unlock);
    Ok(Some(Opened { table, map, entry }))
}

fn open_existing(file: &StackPath) -> Result<OwnedFd, Errno> {
    rustix::fs::open(
        file.as_c_str(),
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK,
        Mode::empty(),
    )
}

fn is_whole(stat: &rustix::fs::Stat) -> bool {
    stat.st_size == BYTES as i64 && stat.st_blocks * 512 >= BYTES as i64
}

/// Removes a table's file if no user of it lives; a fresh file that nobody finished making counts as such.
fn remove_unused(file: &StackPath, here: u32) -> bool {
    let Ok(fd) = open_existing(file) else { return false };
    if !lock_briefly(&fd) || !rustix::fs::fstat(&fd).is_ok_and(|s| s.st_nlink > 0) {
        return false;
    }
    let mut used = false;
    each_user(&fd, |user| {
        used = user.live(here).is_some();
        !used
    });
    !used && rustix::fs::unlink(file.as_c_str()).is_ok()
}

/// Removes the name of a listener that is gone. Listeners come into being under the directory's lock, so none is taken for dead.
fn remove_deaf(dir: &OwnedFd, file: &StackPath) -> bool {
    if !lock_briefly(dir) {
        return false;
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let nobody = SocketAddrUnix::new(file.as_c_str()).is_ok_and(|address| {
        let asked = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        asked.is_ok_and(|socket| rustix::net::connect(&socket, &address) == Err(Errno::CONNREFUSED))
    });
    let removed = nobody && rustix::fs::unlink(file.as_c_str()).is_ok();
    let _ = rustix::fs::flock(dir, FlockOperation::Unlock);
    removed
}

/// Shows every user that stands in a table's file, until `see` has seen enough. Read in small pieces: the stack may be that of a
/// signal handler.
fn each_user(fd: &OwnedFd, mut see: impl FnMut(Seen) -> bool) {
    let mut at = core::mem::offset_of!(Table, users);
    let end = at + USERS * USER_BYTES;
    let mut buf = [0u8; 32 * USER_BYTES];
    while at < end {
        let Ok(n @ 1..) = rustix::io::pread(fd, &mut buf[..], at as u64) else { return };
        let (users, _) = buf[..n.min(end - at)].as_chunks::<USER_BYTES>();
        if !users.iter().filter_map(|u| Seen::read(u)).all(&mut see) {
            return;
        }
        at += n;
    }
}

fn reason(e: Errno) -> Reason {
    match e {
        Errno::ROFS | Errno::ACCESS | Errno::PERM => Reason::DirReadOnly,
        Errno::NOSPC | Errno::DQUOT => Reason::DirFull,
        _ => Reason::DirMissing,
    }
}

/// The file's lock, which others hold only for microseconds; a stopped process must not stop us.
fn lock_briefly(fd: &OwnedFd) -> bool {
    let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 100_000 };
    for i in 0..90 {
        match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return true,
            Err(_) if i < 50 => rustix::thread::sched_yield(),
            Err(_) => _ = rustix::thread::nanosleep(&moment),
        }
    }
    false
}

#[cfg(test)]
mod tests;
