//! What a shared object holds, looked at before any of its code runs: whether it is whole, and has the variable of a driver.

use std::io::{Error, ErrorKind, Read, Result as IoResult, Seek, SeekFrom};
use std::path::Path;

use madrigal_sys::fd::Fd;
use object::read::{ReadCache, ReadRef};
use object::{Object, ObjectSegment, ObjectSymbol};

use crate::abi::{self, Driver, Head, SYMBOL};
use crate::trust;

/// Looks at the file. `Err`: why it is no driver called `name`.
pub(crate) fn check(path: &Path, name: &str) -> Result<(), String> {
    let fd = trust::open(path)?;
    let len = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0));
    let len = len.map_err(|errno| format!("{}: {}", path.display(), Error::from(errno)))?;
    let cache = ReadCache::new(Source { fd, at: 0, len });
    head(&cache).and_then(|head| fits(&head, name)).map_err(|why| format!("{}: {why}", path.display()))
}

/// Whether that is the beginning of a driver called `name`.
pub(crate) fn fits(head: &Head, name: &str) -> Result<(), String> {
    if head.abi != abi::VERSION {
        return Err(format!("a driver of version {}; this Madrigal loads version {}", head.abi, abi::VERSION));
    }
    let least = size_of::<Driver>();
    if (head.size as usize) < least {
        return Err(format!("its `{SYMBOL}` says that it has {} bytes; version 1 has {least}", head.size));
    }
    let end = head.name.iter().position(|&byte| byte == 0).ok_or("its name does not end")?;
    let called = head.name.get(..end).unwrap_or_default();
    if called != name.as_bytes() {
        return Err(format!("its driver is called `{}`, not `{name}`", String::from_utf8_lossy(called).escape_debug()));
    }
    Ok(())
}

fn head(cache: &ReadCache<Source>) -> Result<Head, String> {
    let file = object::File::parse(cache).map_err(|error| format!("no shared object: {error}"))?;
    if file.is_little_endian() != cfg!(target_endian = "little") {
        return Err("it is for another processor".into());
    }
    let len = ReadRef::len(cache).unwrap_or(0);
    for (at, size) in file.segments().map(|segment| segment.file_range()) {
        if at.checked_add(size).is_none_or(|end| end > len) {
            return Err(format!("cut off: it has {len} bytes, and a part of it begins at {at} and has {size}"));
        }
    }
    let symbol = file.dynamic_symbols().find(|symbol| symbol.is_definition() && symbol.name() == Ok(SYMBOL));
    let symbol = symbol.ok_or_else(|| format!("it defines no `{SYMBOL}` that others see"))?;
    let least = size_of::<Driver>() as u64;
    if symbol.size() < least {
        return Err(format!("its `{SYMBOL}` has {} bytes; version 1 has {least}", symbol.size()));
    }
    let wanted = size_of::<Head>() as u64;
    let mut found = file.segments().filter_map(|segment| segment.data_range(symbol.address(), wanted).ok().flatten());
    let bytes = found.next().unwrap_or_default();
    let number = |at: usize| bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map(u32::from_ne_bytes);
    let name = bytes.get(8..).and_then(|name| name.try_into().ok());
    match (number(0), number(4), name) {
        (Some(abi), Some(size), Some(name)) => Ok(Head { abi, size, name }),
        _ => Err(format!("its `{SYMBOL}` is not in the file: is it a constant?")),
    }
}

/// A file that is read by system calls of our own.
struct Source {
    fd: Fd,
    at: u64,
    len: u64,
}

impl Read for Source {
    fn read(&mut self, buf: &mut [u8]) -> IoResult<usize> {
        let n = rustix::io::pread(&self.fd, buf, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Seek for Source {
    fn seek(&mut self, to: SeekFrom) -> IoResult<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(Error::from(ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A shared object as the linker makes it, small.
    fn sample() -> Vec<u8> {
        let out = std::env::temp_dir().join(format!("madrigal-object-{}.so", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/drivers/unixstream.c");
        let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
        let mut cc = std::process::Command::new("cc");
        cc.args(["-std=gnu11", "-shared", "-fPIC", include, "-o"]).arg(&out).arg(source);
        assert!(cc.status().expect("cc").success());
        let bytes = std::fs::read(&out).expect("it is there");
        std::fs::remove_file(out).expect("it is there");
        bytes
    }

    /// What a file with these bytes is said to be.
    fn said(bytes: &[u8]) -> Result<(), String> {
        let fd = rustix::fs::memfd_create("object", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        assert_eq!(rustix::io::write(&fd, bytes), Ok(bytes.len()));
        let source = Source { fd: Fd::from(fd), at: 0, len: bytes.len() as u64 };
        head(&ReadCache::new(source)).and_then(|head| fits(&head, "unixstream"))
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let whole = sample();
        assert_eq!(said(&whole), Ok(()));
        let changes = proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8);
        // The tables are at the two ends of the file.
        let parts = vec![0..256, 0..4096, whole.len() - 2048..whole.len(), 0..whole.len()];
        let parts = proptest::sample::select(parts);
        proptest!(|(changes in changes, part in parts)| {
            let mut bytes = whole.clone();
            for (at, byte) in changes {
                bytes[part.start + at.index(part.len())] = byte;
            }
            let _ = said(&bytes);
        });
    }
}
