//! A process that has the table, as the register and its heirs name it.

use madrigal_sys::fd::{self, Fd};
use madrigal_sys::{mem, process};

/// Bytes of a holder in the register.
pub(crate) const ENTRY: usize = 32;

/// A process that has the table.
#[derive(Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    /// The descriptor of the table in it.
    fd: u32,
    start: u64,
    /// The pid namespace in which `pid` is a number.
    namespace: u32,
}

impl Holder {
    /// A process of this pid namespace, with the table at its descriptor `fd`.
    pub(crate) fn new(pid: u32, start: u64, fd: u32) -> Self {
        Self { pid, fd, start, namespace: namespace() }
    }

    pub(crate) fn read(bytes: &[u8; ENTRY]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let (first, start, rest) = (word(0)?, word(8)?, word(16)?);
        let holder = Self { pid: first as u32, fd: (first >> 32) as u32, start, namespace: rest as u32 };
        (holder.pid != 0).then_some(holder)
    }

    pub(crate) fn bytes(self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        let words = [u64::from(self.fd) << 32 | u64::from(self.pid), self.start, u64::from(self.namespace)];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Whether it lives. True for those of another pid namespace than `here`: their pids mean nothing to us.
    pub(crate) fn lives(self, here: u32) -> bool {
        self.namespace != here || process::alive(self.pid, self.start)
    }

    /// Its descriptor of `bytes` of memory, as one of ours.
    pub(crate) fn open(self, here: u32, bytes: usize) -> Option<Fd> {
        if self.namespace != here || !self.lives(here) {
            return None;
        }
        let fd = mem::open_peer_memfd(self.pid, self.fd as i32, bytes, true).ok()?;
        Some(fd::move_high(fd))
    }

    /// Whether it is process `pid` of pid namespace `here`.
    pub(crate) fn is(self, pid: u32, here: u32) -> bool {
        self.pid == pid && self.namespace == here
    }
}

/// This process's pid namespace: a pid of another one cannot be checked.
pub(crate) fn namespace() -> u32 {
    rustix::fs::stat(c"/proc/self/ns/pid").map_or(0, |s| s.st_ino as u32)
}
