//! The program to run: which file it is, and whether a library can be preloaded into it.

mod elf;
mod find;
mod script;

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

pub(crate) use elf::{Plain, detects_races, loader};
pub(crate) use find::{NotFound, find, refusal};

/// Scripts that are interpreters of scripts, as deep as the kernel goes.
const DEPTH: u32 = 5;

/// What is known of a program before it runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fitness {
    /// It can be wrapped.
    Fit,
    /// The library is loaded into it, and many or all of its calls bypass the library; programs that it starts may be fit.
    Partly(Remark),
    /// It cannot be wrapped.
    Unfit(Remark),
}

/// A file, and why it is not fit.
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

/// Judges a program; for a script its interpreter counts. A file that cannot be read or parsed is taken as fit: the kernel and the loader
/// decide.
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
