//! Reads the text of a `grid.toml`. The path may lead to anything: reading it ends soon, and takes bounded memory.

use std::fs::OpenOptions;
use std::io::{Error, ErrorKind, Read as _, Result};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// The longest file, in bytes.
const LONGEST: u64 = 1 << 20;
/// The mode bit by which everybody may change a file.
const WRITABLE_BY_ALL: u32 = 0o002;

/// The text of a file, UTF-8 and up to 1 MiB. Only a regular file is read: a FIFO or a device could block for ever. A world-writable file
/// is refused, since it names commands that this user runs. A file system that hangs blocks this, too.
pub fn read_text(path: &Path) -> Result<String> {
    // Without NONBLOCK the open itself waits for the writer of a FIFO.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, format!("it is {}, and no file", kind(facts.file_type()))));
    }
    if facts.mode() & WRITABLE_BY_ALL != 0 {
        let text = format!("everybody may change it, and the commands in it: type chmod o-w {}", path.display());
        return Err(Error::new(ErrorKind::PermissionDenied, text));
    }
    let mut text = String::new();
    file.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it is longer than {} KiB", LONGEST >> 10)));
    }
    Ok(text)
}

fn kind(of: std::fs::FileType) -> &'static str {
    match of {
        _ if of.is_dir() => "a directory",
        _ if of.is_fifo() => "a FIFO",
        _ if of.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_a_short_regular_file_is_read() {
        let folder = std::env::temp_dir().join(format!("madrigal-grid-text-{}", madrigal_sys::process::own_pid()));
        std::fs::create_dir(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        let wrong = |path: &Path| read_text(path).unwrap_err().to_string();
        std::fs::write(at("good"), "[site.a]\n").unwrap();
        assert_eq!(read_text(&at("good")).unwrap(), "[site.a]\n");
        std::os::unix::fs::symlink(at("good"), at("link")).unwrap();
        assert_eq!(read_text(&at("link")).unwrap(), "[site.a]\n");
        assert_eq!(read_text(&at("none")).unwrap_err().kind(), ErrorKind::NotFound);
        // Nobody writes to it.
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(wrong(&at("fifo")), "it is a FIFO, and no file");
        assert_eq!(wrong(Path::new("/dev/zero")), "it is a device, and no file");
        assert_eq!(wrong(&folder), "it is a directory, and no file");
        std::fs::write(at("long"), vec![b'#'; 1 << 20]).unwrap();
        assert!(read_text(&at("long")).is_ok());
        std::fs::write(at("long"), vec![b'#'; (1 << 20) + 1]).unwrap();
        assert_eq!(wrong(&at("long")), "it is longer than 1024 KiB");
        std::fs::write(at("latin"), b"\xe9").unwrap();
        assert!(wrong(&at("latin")).contains("UTF-8"));
        std::fs::set_permissions(at("good"), std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(wrong(&at("good")).contains("type chmod o-w /"), "{}", wrong(&at("good")));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
