//! Shared memory between two processes of one user: sealed memfds, found through `/proc/PID/fd/N`, so that nothing is ever left
//! behind and no peer can take pages away.
//!
//! A region has its full size from the start (sparse: only touched pages exist) and is sealed against shrinking and growing, so
//! an offset inside it can never fault for lack of file (memfd_create(2), `F_SEAL_SHRINK`). Pages are reserved before use with
//! [`SharedMap::reserve`], which reports a full machine as an error where a plain store would be `SIGBUS`.

use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use std::os::fd::{AsFd, RawFd};

use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::Errno;
use crate::fd::Fd;

/// A mapped region of shared memory, unmapped on drop. The peer may change any byte of it at any time.
pub struct SharedMap {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory that stays where it is until drop; concurrent access is the business of the atomics and raw
// copies made through it.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps all of `fd` (`len` bytes), shared; `writable` false maps it for reading only.
    pub fn map(fd: impl AsFd, len: usize, writable: bool) -> Result<Self, Errno> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            rustix::mm::mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED | MapFlags::NORESERVE, fd, 0)?
        };
        let map = Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, len };
        // SAFETY: the range is our own mapping. Keeping it out of core dumps is a courtesy; failure changes nothing.
        let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontDump) };
        Ok(map)
    }

    /// Memory shared only with children made by fork(2); zeroed.
    pub fn anonymous(len: usize) -> Result<Self, Errno> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, prot, MapFlags::SHARED | MapFlags::NORESERVE)?
        };
        Ok(Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping is empty (it never is).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of byte `offset`, if `size` bytes from there lie inside.
    pub fn at(&self, offset: usize, size: usize) -> Option<*mut u8> {
        if offset.checked_add(size)? > self.len {
            return None;
        }
        Some(self.base.as_ptr().wrapping_add(offset))
    }

    /// A shared reference to a `T` at `offset`; `None` when it would not fit or not be aligned.
    ///
    /// # Safety
    /// `T` consists of atomics only (any bit pattern valid, concurrent change allowed), and the caller does not use the reference
    /// after this map is dropped.
    pub unsafe fn shared<'a, T>(&self, offset: usize) -> Option<&'a T> {
        let ptr = self.at(offset, size_of::<T>())?.cast::<T>();
        if !ptr.is_aligned() {
            return None;
        }
        // SAFETY: inside the mapping and aligned (checked); the rest is the caller's contract.
        Some(unsafe { &*ptr })
    }

    /// Makes the pages of a range exist, so that later stores cannot fail. `ENOSYS` before Linux 5.14.
    pub fn reserve(&self, offset: usize, size: usize) -> Result<(), Errno> {
        let ptr = self.at(offset, size).ok_or(Errno::INVAL)?;
        // SAFETY: inside our own mapping; populating changes no byte.
        match unsafe { rustix::mm::madvise(ptr.cast(), size, Advice::LinuxPopulateWrite) } {
            Err(Errno::INVAL) => Err(Errno::NOSYS),
            done => done,
        }
    }

    /// Gives the pages of a range back to the system; they read as zero afterwards.
    pub fn give_back(&self, offset: usize, size: usize) {
        if let Some(ptr) = self.at(offset, size) {
            // SAFETY: inside our own mapping, and the caller (the block's owner) no longer uses the bytes. Failure only costs memory.
            let _ = unsafe { rustix::mm::madvise(ptr.cast(), size, Advice::LinuxRemove) };
        }
    }

    /// Keeps the mapping for the life of the process.
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self))
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: base and len are exactly what mmap gave, unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// A new memfd of `len` bytes, sealed for ever at that size. Its descriptor is close-on-exec.
pub fn sealed_memfd(name: &CStr, len: usize) -> Result<Fd, Errno> {
    use rustix::fs::MemfdFlags;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(name, flags))
        .map(Fd::from)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Opens descriptor `fd` of process `pid` and checks that it is a memfd of exactly `len` bytes, sealed at that size.
///
/// `EACCES`: another user's process, or one that is not dumpable. `EINVAL`: something else has that number.
pub fn open_peer_memfd(pid: u32, fd: RawFd, len: usize, writable: bool) -> Result<Fd, Errno> {
    let path = crate::process::proc_path(pid, format_args!("fd/{fd}"));
    let mut target = [0u8; 64];
    let len_read = rustix::fs::readlinkat_raw(rustix::fs::CWD, path.as_c_str(), &mut target[..])?;
    if !target[..len_read].starts_with(b"/memfd:madrigal") {
        return Err(Errno::INVAL);
    }
    let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = Fd::from(rustix::fs::open(path.as_c_str(), flags, Mode::empty())?);
    check_sealed(&file, len)?;
    Ok(file)
}

/// Checks that a descriptor is a file of exactly `len` bytes, sealed at that size. `EINVAL`: it is not, or has no seals.
pub fn check_sealed(fd: impl AsFd, len: usize) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(&fd)?;
    let sealed = rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK | SealFlags::GROW);
    if stat.st_size as u64 == len as u64 && sealed { Ok(()) } else { Err(Errno::INVAL) }
}
