//! The program to run: which file it is, and whether a library can be preloaded into it.

mod elf;
mod script;

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags};
use rustix::io::Errno;

pub(crate) use elf::{Plain, detects_races};

/// Where programs are looked for when `PATH` is not set, as in the C library.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Scripts that are interpreters of scripts, as deep as the kernel goes.
const DEPTH: u32 = 5;

/// Why there is nothing to run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotFound {
    /// No such file: exit status 127.
    Missing(String),
    /// A file that cannot be executed: exit status 126.
    Forbidden(String),
}

/// Finds the file a shell would run for `name`.
pub(crate) fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, NotFound> {
    if name.is_empty() || name.as_bytes().contains(&b'/') {
        let file = PathBuf::from(name);
        return match may_run(&file) {
            Ok(()) => Ok(file),
            Err(Errno::NOENT | Errno::NOTDIR) => {
                Err(NotFound::Missing(format!("{}: no such file: check the path", file.display())))
            }
            Err(errno) => Err(NotFound::Forbidden(refusal(&file, errno))),
        };
    }
    let path = path.filter(|p| !p.is_empty()).unwrap_or(OsStr::new(DEFAULT_PATH));
    let mut refused = None;
    for dir in path.as_bytes().split(|&b| b == b':') {
        let dir = if dir.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(dir) };
        let file = Path::new(dir).join(name);
        match may_run(&file) {
            Ok(()) => return Ok(file),
            Err(Errno::ACCESS) => refused = refused.or(Some(file)),
            Err(_) => {}
        }
    }
    Err(match refused {
        Some(file) => NotFound::Forbidden(refusal(&file, Errno::ACCESS)),
        None => NotFound::Missing(format!(
            "{}: no such program in PATH={}: check the name, or give its path",
            name.display(),
            path.display()
        )),
    })
}

/// What to say of a file that is there and cannot be executed.
pub(crate) fn refusal(file: &Path, errno: Errno) -> String {
    let what = match errno {
        Errno::ISDIR => "it is a directory".to_owned(),
        Errno::ACCESS => format!("permission denied: chmod +x {}", file.display()),
        Errno::NOEXEC => "it is neither a program nor a script for this machine".to_owned(),
        other => std::io::Error::from(other).to_string(),
    };
    format!("cannot execute {}: {what}", file.display())
}

fn may_run(file: &Path) -> Result<(), Errno> {
    let stat = rustix::fs::stat(file)?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Err(Errno::ISDIR);
    }
    rustix::fs::accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS)
}

/// What is known of a program before it runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fitness {
    /// It can be wrapped.
    Fit,
    /// The library is loaded into it, and much of what it does, or all of it, goes past that; what it starts may be fit.
    Partly(Remark),
    /// It cannot be wrapped.
    Unfit(Remark),
}

/// A file, and what is the matter with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    pub(crate) file: PathBuf,
    pub(crate) why: Plain,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.file.display(), self.why)
    }
}

/// Judges a program; of a script the interpreter counts. What cannot be read or understood is taken for fit: the kernel and the
/// loader know better.
pub(crate) fn judge(file: &Path, path: Option<&OsStr>) -> Fitness {
    let mut file = file.to_owned();
    for _ in 0..DEPTH {
        match script::interpreter(&file, path) {
            Some(next) => file = next,
            None => break,
        }
    }
    if let Some(why) = privilege(&file) {
        return Fitness::Unfit(Remark { file, why });
    }
    match elf::judge(&file) {
        None => Fitness::Fit,
        Some(why @ (Plain::DynamicGo | Plain::ThreadSanitizer)) => Fitness::Partly(Remark { file, why }),
        Some(why) => Fitness::Unfit(Remark { file, why }),
    }
}

/// Whether no library can be preloaded into a program that runs, such as `/proc/PID/exe`.
pub(crate) fn cannot_be_wrapped(file: &Path) -> bool {
    !matches!(elf::judge(file), None | Some(Plain::DynamicGo)) || privilege(file).is_some()
}

/// Whether a program that runs makes its system calls itself.
pub(crate) fn makes_raw_calls(file: &Path) -> bool {
    elf::judge(file) == Some(Plain::DynamicGo)
}

/// Whether running it changes privileges, upon which the loader preloads nothing (ld.so(8), "secure-execution mode").
fn privilege(file: &Path) -> Option<Plain> {
    let stat = std::fs::metadata(file).ok()?;
    let ignored = rustix::fs::statvfs(file).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOSUID));
    if ignored || rustix::thread::no_new_privs().unwrap_or(false) {
        return None;
    }
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if stat.mode() & mode::SUID != 0 && stat.uid() != uid {
        return Some(Plain::Suid(stat.uid()));
    }
    if stat.mode() & mode::SGID == mode::SGID && stat.gid() != gid {
        return Some(Plain::Sgid(stat.gid()));
    }
    let has_capabilities = rustix::fs::getxattr(file, "security.capability", &mut [0u8; 64][..]).is_ok();
    (has_capabilities && uid != 0).then_some(Plain::Capabilities)
}

/// Mode bits of stat(2). SGID without group execution means something else.
mod mode {
    pub(super) const SUID: u32 = 0o4000;
    pub(super) const SGID: u32 = 0o2010;
}

#[cfg(test)]
mod tests;
