//! What is kept of a lab outside its processes: a directory of mode 0700 with a lock that all of them hold, a description, and the
//! control sockets of links. When the last process has ended the lock is free, however it ended.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use madrigal_sys::process;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::LabError;

/// A process, named for good.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// When it started, in ticks since boot.
    pub start: u64,
}

impl Process {
    /// The process that has this id now.
    pub(crate) fn of(pid: u32) -> Self {
        Self { pid, start: process::start_time(pid).unwrap_or(0) }
    }

    /// Whether it still runs.
    pub fn alive(&self) -> bool {
        process::alive(self.pid, self.start)
    }
}

/// A host or a router of a lab that is up.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether it is a router.
    pub router: bool,
    /// The first process in its namespaces.
    pub process: Process,
    /// Its addresses.
    pub addresses: Vec<String>,
}

/// A WAN link of a lab that is up.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct WanLink {
    /// Its name.
    pub name: String,
    /// Its sites.
    pub between: [String; 2],
    /// The process that carries its packets.
    pub process: Process,
}

/// A lab that is up, or is being built.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// Its name.
    pub name: String,
    /// The file that describes it.
    pub file: String,
    /// The process all others end with.
    pub keeper: Process,
    /// Whether it is in a user namespace.
    pub unprivileged: bool,
    /// Hosts, then routers; empty while it is being built.
    pub nodes: Vec<Node>,
    /// Links.
    pub links: Vec<WanLink>,
    /// What `MADRIGAL_CONFIG_DIR` is on its hosts, where that was set.
    #[serde(default)]
    pub config: Option<String>,
}

/// Where labs of this user are kept: `XDG_RUNTIME_DIR`, or `/run/user/UID`, or memory.
fn home() -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let own = PathBuf::from(format!("/run/user/{uid}"));
    let is_own = |path: &Path| fs::symlink_metadata(path).is_ok_and(|data| data.is_dir() && data.uid() == uid);
    match given.or_else(|| is_own(&own).then_some(own)) {
        Some(directory) => directory.join("madrigal-lab"),
        None => PathBuf::from(format!("/dev/shm/madrigal-lab-{uid}")),
    }
}

/// The names of all labs that have a directory.
pub(crate) fn names() -> Vec<String> {
    let entries = fs::read_dir(home()).into_iter().flatten();
    let mut names: Vec<_> = entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The directory of one lab.
pub(crate) struct Directory {
    /// The name of the lab.
    pub(crate) name: String,
    path: PathBuf,
}

/// Held by every process of a lab.
pub(crate) struct Lock(#[allow(dead_code, reason = "held until it is dropped")] OwnedFd);

impl Directory {
    /// That of the lab `name`, which need not exist.
    pub(crate) fn of(name: &str) -> Result<Self, LabError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 32 || !name.chars().all(plain) {
            return Err(LabError::Name(name.to_owned()));
        }
        Ok(Self { name: name.to_owned(), path: home().join(name) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it, private to this user, and takes the lock; `None` where a lab holds it.
    pub(crate) fn claim(&self) -> Result<Option<Lock>, LabError> {
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        for directory in [parent, &self.path] {
            let failed = || LabError::io(format!("make {}", directory.display()));
            match fs::DirBuilder::new().mode(0o700).create(directory) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed()(error)),
                _ => {}
            }
            let data = fs::symlink_metadata(directory).map_err(failed())?;
            if !data.is_dir() || data.uid() != rustix::process::getuid().as_raw() || data.mode() & 0o077 != 0 {
                let wrong = std::io::Error::other("it is not a directory of this user's with mode 0700");
                return Err(LabError::System(format!("use {}", directory.display()), wrong));
            }
        }
        self.lock(FlockOperation::NonBlockingLockExclusive)
    }

    fn lock(&self, how: FlockOperation) -> Result<Option<Lock>, LabError> {
        let path = self.path.join("lock");
        let failed = || LabError::system(format!("lock {}", path.display()));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(failed())?;
        match rustix::fs::flock(&file, how) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(failed()(errno)),
        }
    }

    /// Whether any process of the lab is alive.
    pub(crate) fn is_held(&self) -> bool {
        self.path.exists() && matches!(self.lock(FlockOperation::NonBlockingLockShared), Ok(None))
    }

    pub(crate) fn write(&self, state: &State) -> Result<(), LabError> {
        let (new, path) = (self.path.join("state.new"), self.path.join("state.json"));
        let text = serde_json::to_string_pretty(state).unwrap_or_default();
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, &path))
            .map_err(LabError::io(format!("write {}", path.display())))
    }

    /// What was written last; `None` where that is nothing that can be read.
    pub(crate) fn read(&self) -> Option<State> {
        serde_json::from_slice(&fs::read(self.path.join("state.json")).ok()?).ok()
    }

    /// Removes it, and the directory around it if that was the last.
    pub(crate) fn remove(&self) -> Result<(), LabError> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(LabError::System(format!("remove {}", self.path.display()), error))
            }
            _ => {
                // Others may be in there.
                let _ = fs::remove_dir(home());
                Ok(())
            }
        }
    }
}

/// Where a host of a lab keeps what is its own alone, and ends with it: its `XDG_RUNTIME_DIR`.
pub const OWN_DIRECTORY: &str = "/run/user/0";
