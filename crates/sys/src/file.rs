//! The file or pipe behind a descriptor that the program sends from.

use core::ffi::c_int;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Errno;

/// The size of a regular file. `None`: it is none.
pub fn size(fd: c_int) -> Option<i64> {
    let stat = stat(fd)?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(stat.st_size)
}

/// How many bytes a pipe holds. `None`: it is none.
pub fn pipe_holds(fd: c_int) -> Option<usize> {
    let pipe = FileType::from_raw_mode(stat(fd)?.st_mode) == FileType::Fifo;
    if pipe { usize::try_from(crate::raw::ioctl_int(fd, libc::FIONREAD).ok()?).ok() } else { None }
}

/// Takes up to `n` bytes that a pipe holds out of it, and forgets them; how many.
pub fn drain(fd: c_int, n: usize) -> Result<usize, Errno> {
    let (mut done, mut bin) = (0, [0u8; 4096]);
    while done < n {
        let part = bin.len().min(n - done);
        match rustix::io::read(borrow(fd), &mut bin[..part])? {
            0 => break,
            got => done += got,
        }
    }
    Ok(done)
}

fn stat(fd: c_int) -> Option<Stat> {
    if fd < 0 { None } else { fstat(borrow(fd)).ok() }
}

fn borrow<'a>(fd: c_int) -> BorrowedFd<'a> {
    // SAFETY: a number that is not -1, of the program's, used for one call; the kernel returns an error if nothing is open there.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
