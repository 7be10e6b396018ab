//! The shared directory: where listeners of one user are found by name. Only its owner may enter it.

use madrigal_sys::fd::Fd;

use madrigal_sys::{Errno, process};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connections the kernel keeps waiting for us (listen(2) lowers it to the system's limit).
const BACKLOG: i32 = 4096;
/// How often a directory is tried again that another process has locked; a lock lasts a few system calls.
const TRIES: u32 = 1_000;

/// What names of listeners end with.
const SUFFIX: &str = ".sock";
/// Why a name could not be taken.
pub(super) enum BindError {
    /// Somebody listens by that name.
    InUse,
    /// The directory is not fit, for this reason.
    Unfit(String),
    /// The kernel refused.
    Os(Errno),
}

impl From<Errno> for BindError {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

/// A listening socket and its name, which is removed on drop.
pub(super) struct Bound {
    pub(super) socket: Fd,
    path: String,
    file: (u64, u64),
    pid: u32,
}

/// Whether the directory is fit for use, or could be made.
pub(super) fn check(directory: &str) -> Result<(), String> {
    match open(directory) {
        Ok(_) => Ok(()),
        Err(BindError::Os(Errno::NOENT)) => {
            let parent = directory.trim_end_matches('/').rsplit_once('/').map_or("/", |(parent, _)| parent);
            let parent = if parent.is_empty() { "/" } else { parent };
            rustix::fs::access(parent, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
                .map_err(|errno| format!("{directory} cannot be made: {}", sentence(errno)))
        }
        Err(BindError::Unfit(why)) => Err(why),
        Err(BindError::Os(errno)) => Err(format!("{directory}: {}", sentence(errno))),
        Err(BindError::InUse) => Ok(()),
    }
}

/// Listens as `name`. The directory is made if there is none.
pub(super) fn bind(directory: &str, name: &str) -> Result<Bound, BindError> {
    match rustix::fs::mkdir(directory, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(BindError::Unfit(format!("{directory} cannot be made: {}", sentence(errno)))),
    }
    let lock = open(directory)?;
    lock_exclusively(&lock)?;
    let path = path_of(directory, name);
    let address = SocketAddrUnix::new(path.as_str())?;
    let socket = socket()?;
    // The mode the name will have (unix(7) leaves it open; Linux takes the socket's own).
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            if rustix::net::connect(&self::socket()?, &address) != Err(Errno::CONNREFUSED) {
                return Err(BindError::InUse);
            }
            // Whoever listened there is dead; the lock keeps others from finding the same out now.
            rustix::fs::unlink(path.as_str())?;
            rustix::net::bind(&socket, &address)?;
        }
        bound => bound?,
    }
    rustix::net::listen(&socket, BACKLOG)?;
    let stat = rustix::fs::lstat(path.as_str())?;
    Ok(Bound { socket, path, file: (stat.st_dev, stat.st_ino), pid: process::own_pid() })
}

/// Connects to the listener `name`. `ENOENT`, `ECONNREFUSED`: there is none. `EAGAIN`: its queue is full.
pub(super) fn connect(directory: &str, name: &str) -> Result<Fd, Errno> {
    let address = SocketAddrUnix::new(path_of(directory, name).as_str())?;
    let socket = socket()?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket)
}

impl Drop for Bound {
    fn drop(&mut self) {
        let ours = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino) == self.file;
        if self.pid == process::own_pid() && rustix::fs::lstat(self.path.as_str()).is_ok_and(ours) {
            // If this fails, the next process that binds the name removes it.
            let _ = rustix::fs::unlink(self.path.as_str());
        }
    }
}

fn open(directory: &str) -> Result<Fd, BindError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = Fd::from(rustix::fs::open(directory, flags, Mode::empty())?);
    let stat = rustix::fs::statat(&fd, "", AtFlags::EMPTY_PATH)?;
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != own {
        return Err(BindError::Unfit(format!("{directory} belongs to user {}, not to {own}", stat.st_uid)));
    }
    if stat.st_mode & 0o077 != 0 {
        let mode = stat.st_mode & 0o777;
        return Err(BindError::Unfit(format!(
            "{directory} has mode {mode:o}: others may enter it (chmod 700 {directory})"
        )));
    }
    Ok(fd)
}

fn lock_exclusively(directory: &Fd) -> Result<(), Errno> {
    for _ in 0..TRIES {
        match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => rustix::thread::sched_yield(),
            locked => return locked,
        }
    }
    Err(Errno::AGAIN)
}

fn socket() -> Result<Fd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map(Fd::from)
}

fn path_of(directory: &str, name: &str) -> String {
    format!("{}/{name}{SUFFIX}", directory.trim_end_matches('/'))
}

fn sentence(errno: Errno) -> madrigal_base::error::Os {
    madrigal_base::error::Os(errno.raw_os_error())
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_dead_listeners_name_is_taken_over_and_a_live_ones_is_not() {
        let directory = format!("/dev/shm/madrigal-test-{}", process::own_pid());
        let first = bind(&directory, "a").unwrap_or_else(|_| panic!("cannot bind"));
        assert!(matches!(bind(&directory, "a"), Err(BindError::InUse)));
        let path = first.path.clone();
        assert_eq!(rustix::fs::lstat(path.as_str()).unwrap().st_mode & 0o777, 0o600);
        // Its process dies: the socket is closed, the name stays.
        let dead = core::mem::ManuallyDrop::new(first);
        madrigal_sys::raw::close(dead.socket.as_raw_fd());
        let again = bind(&directory, "a").unwrap_or_else(|_| panic!("cannot bind again"));
        drop(again);
        assert!(rustix::fs::lstat(path.as_str()).is_err());
        rustix::fs::chmod(directory.as_str(), Mode::from_raw_mode(0o755)).unwrap();
        assert!(check(&directory).unwrap_err().contains("mode 755"));
        rustix::fs::rmdir(directory.as_str()).unwrap();
    }
}
