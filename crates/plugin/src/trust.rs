//! Whose a file is: what others may write is never loaded.

use std::path::{Path, PathBuf};

use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

/// Whether the program has more rights than who started it: set-user-id and the like (ld.so(8), "secure-execution mode").
pub(crate) fn has_more_rights() -> bool {
    // SAFETY: it reads what the kernel handed to this process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The path without links. Refused unless it and each directory above it belongs to root or the user, and nobody else may write to it;
/// a directory above in which nobody renames what belongs to others (/tmp) may be everybody's.
pub(crate) fn real(path: &Path) -> Result<PathBuf, String> {
    let path = std::fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let own = rustix::process::geteuid().as_raw();
    for part in path.ancestors() {
        let stat = rustix::fs::lstat(part).map_err(|errno| said(part, errno))?;
        safe(part, &stat, own, part == path)?;
    }
    Ok(path)
}

/// Opens a regular file that [`real`] has found, for reading.
pub(crate) fn open(path: &Path) -> Result<Fd, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = Fd::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| said(path, errno))?);
    let stat = rustix::fs::statat(&fd, "", AtFlags::EMPTY_PATH).map_err(|errno| said(path, errno))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(fd),
        _ => Err(format!("{} is no regular file", path.display())),
    }
}

/// The text of such a file, of at most so many bytes.
pub(crate) fn text(path: &Path, most: usize) -> Result<String, String> {
    let fd = open(path)?;
    let mut bytes = vec![0; most + 1];
    let mut len = 0;
    while let Some(room) = bytes.get_mut(len..).filter(|room| !room.is_empty()) {
        match rustix::io::read(&fd, room) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(said(path, errno)),
        }
    }
    if len > most {
        return Err(format!("{} is longer than {most} bytes", path.display()));
    }
    bytes.truncate(len);
    String::from_utf8(bytes).map_err(|_| format!("{} is no text", path.display()))
}

fn safe(part: &Path, stat: &Stat, own: u32, last: bool) -> Result<(), String> {
    let path = part.display();
    if stat.st_uid != 0 && stat.st_uid != own {
        return Err(format!("{path} belongs to user {}, not to {own} or root", stat.st_uid));
    }
    let shared = stat.st_mode & 0o022 != 0;
    let sticky = FileType::from_raw_mode(stat.st_mode) == FileType::Directory && stat.st_mode & 0o1000 != 0;
    if shared && (last || !sticky) {
        return Err(format!("others may write to {path} (chmod go-w {path})"));
    }
    Ok(())
}

fn said(path: &Path, errno: Errno) -> String {
    format!("{}: {}", path.display(), std::io::Error::from(errno))
}
