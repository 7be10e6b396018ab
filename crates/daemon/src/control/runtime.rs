//! The runtime directory of a user's daemon and its clients. Its mode is 0700. It has the control socket (mode 0600), a lock that
//! the daemon holds while it runs, the hosts file, the file of known hosts, and the log.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::local::hosts::HostsFile;

/// Why the runtime directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// It cannot be created or read.
    #[error("cannot use {path}: {error}")]
    Io {
        /// The directory, or a file in it.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// Other users could open it.
    #[error("{path} is not a directory of this user's with mode 0700")]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// A daemon runs already.
    #[error("a daemon of yours is up already; `madrigal down` ends it")]
    Up,
}

/// The runtime directory.
#[derive(Clone, Debug)]
pub struct Runtime {
    path: PathBuf,
}

/// The lock of a running daemon.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "held until it is dropped")] OwnedFd);

impl Runtime {
    /// `madrigal` in `XDG_RUNTIME_DIR`, or in `/run/user/UID`, or `madrigal-run-UID` in memory.
    pub fn find() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let own = PathBuf::from(format!("/run/user/{uid}"));
        let is_own = |path: &Path| fs::symlink_metadata(path).is_ok_and(|data| data.is_dir() && data.uid() == uid);
        let path = match given.or_else(|| is_own(&own).then_some(own)) {
            Some(directory) => directory.join("madrigal"),
            None => PathBuf::from(format!("/dev/shm/madrigal-run-{uid}")),
        };
        Self { path }
    }

    /// A directory elsewhere, such as that of a host of a lab.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// The path of the control socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join("daemon.sock")
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a daemon ever ran here since the machine was started.
    pub fn was_used(&self) -> bool {
        self.path.join("daemon.lock").exists()
    }

    /// The path of the hosts file.
    pub(crate) fn hosts(&self) -> PathBuf {
        self.path.join("daemon.hosts")
    }

    /// Writes the hosts file for the time without a daemon, unless one runs. Returns whether connections to some hosts are refused then.
    pub fn describe(&self, grid: &crate::grid::Grid, host: &str) -> Result<bool, RuntimeError> {
        let Some((me, _)) = grid.host(host) else { return Ok(false) };
        match fs::DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(io(&self.path, error)),
            _ => {}
        }
        self.check()?;
        if self.is_up() {
            return Ok(false);
        }
        let text = crate::local::hosts::without_daemon(grid, me);
        self.write_hosts(&text).map_err(|error| io(&self.hosts(), error))?;
        Ok(madrigal_proto::hosts::entries(&text).any(|entry| entry.how == madrigal_proto::hosts::How::Enciphered))
    }

    /// The hosts file; `None` where no daemon runs.
    pub fn hosts_file(&self) -> Option<HostsFile> {
        self.check().ok()?;
        self.is_up().then(|| fs::read_to_string(self.hosts()).ok().map(HostsFile::new)).flatten()
    }

    /// Whether a daemon listens here, even one that hangs.
    fn is_up(&self) -> bool {
        matches!(crate::socket::dial_unix(&self.socket()), Ok(_) | Err(Errno::AGAIN))
    }

    /// Replaces the hosts file in one step.
    pub(crate) fn write_hosts(&self, text: &str) -> Result<(), std::io::Error> {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let next = self.path.join("daemon.hosts.new");
        let _ = fs::remove_file(&next);
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&next)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&next, self.hosts())
    }

    /// The path of the log of a daemon in the background.
    pub fn log(&self) -> PathBuf {
        self.path.join("daemon.log")
    }

    /// The path of the file of known hosts.
    pub fn known(&self) -> PathBuf {
        self.path.join("known.json")
    }

    /// Creates the directory, and takes the lock.
    pub fn claim(&self) -> Result<Lock, RuntimeError> {
        match fs::DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(io(&self.path, error)),
            _ => {}
        }
        self.check()?;
        let path = self.path.join("daemon.lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(|e| io(&path, e.into()))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock(file)),
            Err(Errno::WOULDBLOCK) => Err(RuntimeError::Up),
            Err(errno) => Err(io(&path, errno.into())),
        }
    }

    /// Checks that only this user can open it.
    pub fn check(&self) -> Result<(), RuntimeError> {
        let data = fs::symlink_metadata(&self.path).map_err(|error| io(&self.path, error))?;
        let own = data.is_dir() && data.uid() == rustix::process::geteuid().as_raw() && data.mode() & 0o077 == 0;
        if own { Ok(()) } else { Err(RuntimeError::Foreign { path: self.path.clone() }) }
    }
}

fn io(path: &Path, error: std::io::Error) -> RuntimeError {
    RuntimeError::Io { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_hangs_is_up_and_holds_nobody_up_for_ever() {
        let folder = std::env::temp_dir().join(format!("madrigal-hangs-{}", madrigal_sys::process::own_pid()));
        fs::create_dir(&folder).unwrap();
        let runtime = Runtime::at(folder.clone());
        assert!(!runtime.is_up());
        let daemon = crate::socket::listen_unix(&runtime.socket()).unwrap();
        rustix::net::listen(&daemon, 0).unwrap();
        // It accepts nothing: one connection waits in its queue, which is full then.
        let first = crate::socket::dial_unix(&runtime.socket()).unwrap();
        assert_eq!(crate::socket::dial_unix(&runtime.socket()).unwrap_err(), Errno::AGAIN);
        assert!(runtime.is_up());
        drop((first, daemon));
        assert!(!runtime.is_up());
        fs::remove_dir_all(folder).unwrap();
    }
}
