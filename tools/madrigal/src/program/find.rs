//! Which file a shell would run.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;

/// Where programs are looked for when `PATH` is not set, as in the C library.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

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

/// The message for a file that exists and cannot be executed.
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
