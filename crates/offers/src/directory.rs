//! The shared directory, and the life of the files in it.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::fmt::Write as _;
use core::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use madrigal_report::Reason;
use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use madrigal_sys::process::{self, StackPath};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RawDir};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::holder::Holder;
use crate::register::{Register, lock_briefly, reason};
use crate::table::Table;

/// Every register's name begins with this; the network namespace follows.
const PREFIX: &str = "offers-";
/// A name on which the `shm` driver listens ends with this.
const LISTENER: &str = ".sock";
/// How often a file that others remove in the same moment is made again.
const TRIES: u32 = 20;

/// The directory through which the processes of one user find each other. Only its owner may enter it.
pub struct Directory {
    path: StackPath,
}

/// A table, mapped for the life of the process, and this process's part in it.
pub struct Opened {
    /// The table.
    pub table: &'static Table,
    /// The descriptor by which others find it; while it is open this process may stand in the register.
    pub fd: Fd,
    /// This process's entry in the table's list of users. `None`: the list was full.
    pub entry: Option<u32>,
}

/// A table, as [`Directory::tables`] finds it.
#[derive(Clone, Debug)]
pub struct TableFile {
    /// The register's name in the directory.
    pub name: String,
    /// The living processes using it. Pids of other pid namespaces among them mean nothing here.
    pub users: Vec<u32>,
}

impl Directory {
    /// The directory called `path`, in which `UID` stands for the effective user; `None`, or no path from `/`: the default. A path too
    /// long to be built on the stack names nothing.
    pub fn named(path: Option<&str>) -> Self {
        let own = rustix::process::geteuid().as_raw();
        let mut built = StackPath::empty();
        let mut written = Ok(());
        for (i, part) in path.filter(|p| p.starts_with('/')).unwrap_or("/dev/shm/madrigal-UID").split("UID").enumerate()
        {
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
        let register = self.register(netns)?;
        let shared = match register.find(netns) {
            Some(shared) => shared,
            None => register.create(netns)?,
        };
        let fd = shared.fd.as_raw_fd() as u32;
        register.add(own(fd))?;
        let (table, fd) = shared.leak().ok_or(Reason::NoMemory)?;
        let entry = table.enlist(fd.as_raw_fd() as u32);
        Ok(Opened { table, fd, entry })
    }

    /// A child made by fork(2), which has its parent's table by descriptor `fd`, enters the register, too. `Some`: the register knows
    /// another table by now, and this is it.
    pub fn reenter(&self, netns: u64, table: &Table, fd: i32) -> Result<Option<Opened>, Reason> {
        let register = self.register(netns)?;
        let other = register.find(netns).is_some_and(|shared| !shared.is(table));
        if !other {
            register.add(own(fd as u32))?;
            return Ok(None);
        }
        drop(register);
        self.open(netns).map(Some)
    }

    fn register(&self, netns: u64) -> Result<Register, Reason> {
        self.make()?;
        self.judge()?;
        let file = self.file(format_args!("{PREFIX}{netns:x}"));
        for _ in 0..TRIES {
            if let Some(register) = Register::open(&file)? {
                return Ok(register);
            }
        }
        Err(Reason::DirMissing)
    }

    /// This process stops using `table`; another user stands in the register from now on, and the last one removes it. `entry` is its
    /// entry, if it has one.
    pub fn leave(&self, table: &Table, entry: Option<u32>) {
        if let Some(entry) = entry {
            table.strike(entry);
        }
        table.strike_unborn(process::own_pid());
        let file = self.file(format_args!("{PREFIX}{:x}", table.netns()));
        let Some(register) = Register::existing(&file) else { return };
        register.strike(process::own_pid());
        if register.living().next().is_some() {
            return;
        }
        let kept = table.heir(process::own_pid()).is_some_and(|heir| register.add(heir).is_ok());
        if !kept && !table.living().any(|_| true) {
            let _ = rustix::fs::unlink(file.as_c_str());
        }
    }

    /// Whether connections of network namespace `netns` could meet here; tries it, and leaves nothing behind.
    pub fn check(&self, netns: u64) -> Result<(), Reason> {
        let made = self.make()?;
        let checked = self.judge().and_then(|()| self.try_room(netns));
        if made {
            let _ = rustix::fs::rmdir(self.path());
        }
        checked
    }

    /// Removes what dead processes left: tables without a living user, and names of listeners that are gone; returns how many.
    pub fn tidy(&self) -> usize {
        let mut removed = 0;
        self.each(|dir, name| {
            let file = self.file(format_args!("{name}"));
            removed += usize::from(match () {
                () if name.starts_with(PREFIX) => remove_unused(&file),
                () => name.ends_with(LISTENER) && remove_deaf(dir, &file),
            });
        });
        removed
    }

    /// The tables there are, with their living users.
    pub fn tables(&self) -> Vec<TableFile> {
        let mut tables = Vec::new();
        self.each(|_, name| {
            let netns = name.strip_prefix(PREFIX).and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let Some(register) = netns.and_then(|_| Register::existing(&self.file(format_args!("{name}")))) else {
                return;
            };
            let mut users: Vec<u32> = register.living().map(|holder| holder.pid).collect();
            if let Some(shared) = register.find(netns.unwrap_or(0)) {
                users.extend(shared.users());
            }
            users.sort_unstable();
            users.dedup();
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

    /// Whether the register exists, or there is room for it.
    fn try_room(&self, netns: u64) -> Result<(), Reason> {
        let file = self.file(format_args!("{PREFIX}{netns:x}"));
        if rustix::fs::access(file.as_c_str(), rustix::fs::Access::WRITE_OK).is_ok() {
            return Ok(());
        }
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::open(self.path(), flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => rustix::io::pwrite(Fd::from(fd), &[0; 32], 0).map(drop).map_err(reason),
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

    /// Calls `see` with every name in it.
    fn each(&self, mut see: impl FnMut(&Fd, &str)) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if self.judge().is_err() {
            return;
        }
        let Ok(dir) = rustix::fs::open(self.path(), flags, Mode::empty()).map(Fd::from) else { return };
        let mut buf = [MaybeUninit::uninit(); 2048];
        let mut entries = RawDir::new(&dir, &mut buf);
        while let Some(Ok(entry)) = entries.next() {
            if let Ok(name) = entry.file_name().to_str() {
                see(&dir, name);
            }
        }
    }
}

fn own(fd: u32) -> Holder {
    let pid = process::own_pid();
    Holder::new(pid, process::start_time(pid).unwrap_or(0), fd)
}

/// Removes a register if no process in it lives; a fresh one without entries counts as such.
fn remove_unused(file: &StackPath) -> bool {
    let Some(register) = Register::existing(file) else { return false };
    let used = register.living().next().is_some();
    !used && rustix::fs::unlink(file.as_c_str()).is_ok()
}

/// Removes the name of a listener that is gone. Listeners are made under the directory's lock, so no new one is taken for dead.
fn remove_deaf(dir: &Fd, file: &StackPath) -> bool {
    if !lock_briefly(dir) {
        return false;
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let nobody = SocketAddrUnix::new(file.as_c_str()).is_ok_and(|address| {
        let asked = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        asked.map(Fd::from).is_ok_and(|socket| rustix::net::connect(&socket, &address) == Err(Errno::CONNREFUSED))
    });
    let removed = nobody && rustix::fs::unlink(file.as_c_str()).is_ok();
    let _ = rustix::fs::flock(dir, FlockOperation::Unlock);
    removed
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
