//! Buffers that several processes map: one writes, seals, and from then on nobody writes, the writer neither.
//!
//! ```text
//!   Draft (mapped for writing, by this process alone) --seal--> Sealed (mapped for reading) --open--> Sealed, of other processes
//! ```
//! Each is a memfd, named by 64 random bits, found through `/proc/PID/fd/N` by processes of the same user (memfd_create(2), proc(5)). The
//! kernel counts who has it: descriptors and mappings. So it is there as long as one process has it, and gone with the last, killed or
//! not. What is sealed cannot be written, cut or grown by anybody (`F_SEAL_WRITE`): so its bytes can be borrowed.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::ffi::CString;
use std::os::fd::{AsRawFd as _, RawFd};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::fd::Fd;
use crate::process::{own_pid, proc_path, random};
use crate::{Errno, process};

/// What each is sealed against.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

/// A buffer that is written, by this process alone.
pub struct Draft {
    map: Mapped,
    fd: Fd,
    id: u64,
}

/// A buffer that nobody writes any more. The memory is there as long as this is.
pub struct Sealed {
    map: Mapped,
    fd: Fd,
    id: u64,
}

/// Where other processes find a sealed buffer, as long as the one that says so has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The process.
    pub pid: u32,
    /// Its descriptor.
    pub fd: RawFd,
    /// The buffer's random number.
    pub id: u64,
}

/// A mapping of ours, unmapped on drop.
struct Mapped {
    base: NonNull<u8>,
    len: usize,
    /// The process that alone has it: in one that was forked from that, anything may lie there.
    only_in: Option<u32>,
}

// SAFETY: the mapping stays where it is until drop, and does not belong to a thread.
unsafe impl Send for Mapped {}
// SAFETY: as above; it is written only through `&mut`.
unsafe impl Sync for Mapped {}

impl Draft {
    /// A new one of `len` bytes, all 0, whose memory is there. `EINVAL`: of no byte. `ENOMEM`: there is not so much memory.
    pub fn new(len: usize) -> Result<Self, Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        // The kernel would take all there is before it says no, and kill somebody for it.
        if available().is_some_and(|available| len >= available) || isize::try_from(len).is_err() {
            return Err(Errno::NOMEM);
        }
        let id = random();
        let name = CString::new(name_of(id)).map_err(|_| Errno::INVAL)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Before Linux 6.3 there is no such flag.
        let fd = rustix::fs::memfd_create(&name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(&name, flags))
            .map(Fd::from)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len as u64)?;
        let mut map = Mapped::of(&fd, len, ProtFlags::READ | ProtFlags::WRITE)?;
        // SAFETY: the range is our own mapping. A child that had it could write, and seals would be refused.
        unsafe { rustix::mm::madvise(map.base.as_ptr().cast(), len, Advice::LinuxDontFork)? };
        map.only_in = Some(own_pid());
        Ok(Self { map, fd, id })
    }

    /// Its bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped for reading and writing, by us alone until it is sealed, and borrowed with the draft.
        unsafe { core::slice::from_raw_parts_mut(self.map.base.as_ptr(), self.map.len) }
    }

    /// Where it lies: the same place before it is sealed and after.
    pub fn at(&self) -> *mut u8 {
        self.map.base.as_ptr()
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.map.len
    }

    /// Whether it has none, which never is.
    pub fn is_empty(&self) -> bool {
        self.map.len == 0
    }

    /// From now on nobody writes: who does so by an address of before gets SIGSEGV. An error: a process that is no party mapped it for
    /// writing (`EBUSY`), or there is no /proc, or this process was forked from the one that made it (`EINVAL`); the buffer is gone with
    /// that.
    pub fn seal(self) -> Result<Sealed, Errno> {
        let Self { mut map, fd, id } = self;
        if !map.is_here() {
            return Err(Errno::INVAL);
        }
        let file = open_own(own_pid(), fd.as_raw_fd(), id)?;
        let (at, len) = (map.base.as_ptr().cast::<c_void>(), map.len);
        // SAFETY: replaces exactly our own mapping by one of the same file at the same place, which is not borrowed here. That the
        // descriptor is for reading only keeps the kernel from counting it as one that writes.
        unsafe { rustix::mm::mmap(at, len, ProtFlags::READ, MapFlags::SHARED | MapFlags::FIXED, &file, 0)? };
        // A child has that one.
        map.only_in = None;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok(Sealed { map, fd: file, id })
    }
}

impl Sealed {
    /// The buffer that a process of this user said it has: of `len` bytes, mapped and not copied, whatever its length. `EINVAL`: that
    /// descriptor is something else. Else there is no such process here, or it is another user's.
    pub fn open(found: Found, len: usize) -> Result<Self, Errno> {
        let fd = open_own(found.pid, found.fd, found.id)?;
        let sealed = rustix::fs::fcntl_get_seals(&fd)?.contains(SEALS);
        let size = rustix::fs::fstat(&fd)?.st_size;
        if !sealed || len == 0 || usize::try_from(size) != Ok(len) || isize::try_from(len).is_err() {
            return Err(Errno::INVAL);
        }
        let map = Mapped::of(&fd, len, ProtFlags::READ)?;
        Ok(Self { map, fd, id: found.id })
    }

    /// Where others find it while this lives.
    pub fn found(&self) -> Found {
        Found { pid: own_pid(), fd: self.fd.as_raw_fd(), id: self.id }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for reading as long as this lives; sealed, so that neither bytes nor length change, whoever has it.
        unsafe { core::slice::from_raw_parts(self.map.base.as_ptr(), self.map.len) }
    }
}

impl Mapped {
    fn of(fd: &Fd, len: usize, prot: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0)? };
        Ok(Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, len, only_in: None })
    }
}

impl Mapped {
    /// Whether this process has it.
    fn is_here(&self) -> bool {
        self.only_in.is_none_or(|pid| pid == own_pid())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        // SAFETY: base and len are exactly what mmap gave in this process, unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Bytes of memory that processes may still have (proc_meminfo(5)).
fn available() -> Option<usize> {
    let mut buf = [0u8; 512];
    let text = process::read_small(c"/proc/meminfo", &mut buf).ok()?;
    let line = core::str::from_utf8(text).ok()?.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<usize>().ok()?.checked_mul(1024)
}

fn name_of(id: u64) -> String {
    format!("madrigal-buffer-{id:016x}")
}

/// Opens the buffer of that number for reading, and nothing else that may be at that place.
fn open_own(pid: u32, fd: RawFd, id: u64) -> Result<Fd, Errno> {
    let path = proc_path(pid, format_args!("fd/{fd}"));
    let mut target = [0u8; 80];
    let len = rustix::fs::readlinkat_raw(rustix::fs::CWD, path.as_c_str(), &mut target[..])?;
    let name = format!("/memfd:{} (deleted)", name_of(id));
    if target.get(..len) != Some(name.as_bytes()) {
        return Err(Errno::INVAL);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = Fd::from(rustix::fs::open(path.as_c_str(), flags, Mode::empty())?);
    // The number may have become another file's meanwhile.
    let own = proc_path(process::own_pid(), format_args!("fd/{}", file.as_raw_fd()));
    let len = rustix::fs::readlinkat_raw(rustix::fs::CWD, own.as_c_str(), &mut target[..])?;
    if target.get(..len) == Some(name.as_bytes()) { Ok(file) } else { Err(Errno::INVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(len: usize) -> Sealed {
        let mut draft = Draft::new(len).unwrap();
        draft.bytes_mut().fill(7);
        draft.seal().unwrap()
    }

    #[test]
    fn what_is_sealed_is_the_same_memory_and_nobody_writes_it() {
        let mut draft = Draft::new(10_000).unwrap();
        let at = draft.at();
        draft.bytes_mut()[9_999] = 3;
        let sealed = draft.seal().unwrap();
        assert_eq!(
            (sealed.bytes().as_ptr(), sealed.bytes().len(), sealed.bytes()[9_999]),
            (at.cast_const(), 10_000, 3)
        );
        let path = format!("/proc/self/fd/{}\0", sealed.fd.as_raw_fd());
        let path = core::ffi::CStr::from_bytes_with_nul(path.as_bytes()).unwrap();
        let writing = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let written = writing.and_then(|fd| rustix::io::write(&fd, b"x"));
        assert_eq!(written, Err(Errno::PERM));
        let other = Sealed::open(sealed.found(), 10_000).unwrap();
        drop(sealed);
        assert_eq!(other.bytes()[9_999], 3);
    }

    #[test]
    fn another_number_length_or_file_is_refused() {
        let sealed = sealed(100);
        let found = sealed.found();
        let open = |found, len| Sealed::open(found, len).err();
        assert_eq!(open(found, 101), Some(Errno::INVAL));
        assert_eq!(open(found, 0), Some(Errno::INVAL));
        assert_eq!(open(Found { id: found.id ^ 1, ..found }, 100), Some(Errno::INVAL));
        assert_eq!(open(Found { fd: -1, ..found }, 100), Some(Errno::NOENT));
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        assert_eq!(open(Found { fd: file.as_raw_fd(), ..found }, 100), Some(Errno::INVAL));
        assert_eq!(open(found, 100), None);
        assert_eq!(Draft::new(0).err(), Some(Errno::INVAL));
        assert_eq!(Draft::new(1 << 50).err(), Some(Errno::NOMEM));
    }

    #[test]
    fn a_forked_child_leaves_alone_what_lies_there() {
        let is_mapped = |name: &str| std::fs::read_to_string("/proc/self/maps").unwrap().contains(name);
        for seals in [false, true] {
            let mut draft = Draft::new(100).unwrap();
            let name = name_of(draft.id);
            draft.map.only_in = Some(own_pid() + 1);
            if seals {
                assert_eq!(draft.seal().err(), Some(Errno::INVAL));
            } else {
                drop(draft);
            }
            assert!(is_mapped(&name));
        }
        let draft = Draft::new(100).unwrap();
        let name = name_of(draft.id);
        drop(draft);
        assert!(!is_mapped(&name));
    }

    #[test]
    fn one_that_is_not_sealed_is_refused() {
        let draft = Draft::new(100).unwrap();
        let found = Found { pid: own_pid(), fd: draft.fd.as_raw_fd(), id: draft.id };
        assert_eq!(Sealed::open(found, 100).err(), Some(Errno::INVAL));
        assert!(draft.seal().is_ok());
    }
}
