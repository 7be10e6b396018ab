//! An entry in the table's list of users.

use core::sync::atomic::Ordering;

use madrigal_base::sync::{AtomicU32, AtomicU64};
use madrigal_sys::process;

use crate::holder::{Holder, namespace};

pub(crate) const USERS: usize = 512;

/// Marks an entry that a parent made for a child about to be born.
pub(crate) const UNBORN: u32 = 1 << 31;

/// A process using the table.
#[repr(C)]
#[derive(Default)]
pub(crate) struct User {
    /// 0 free; [`UNBORN`] set while a fork is under way on behalf of the child.
    pid: AtomicU32,
    namespace: AtomicU32,
    /// When it started; 0 while the entry is being written.
    start: AtomicU64,
    /// The descriptor of the table in it.
    fd: AtomicU32,
    _pad: u32,
}

/// An entry, read at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) pid: u32,
    namespace: u32,
    start: u64,
    fd: u32,
}

impl Seen {
    /// The process, if it lives, has taken its entry, and is one of pid namespace `here`.
    pub(crate) fn holder(self, here: u32) -> Option<Holder> {
        let born = self.pid & UNBORN == 0 && self.start != 0 && self.namespace == here;
        (born && self.live(here).is_some()).then(|| Holder::new(self.pid, self.start, self.fd))
    }

    /// The process, if it lives. One of another pid namespace than ours, `here`, counts as alive: its pid means nothing to us.
    pub(crate) fn live(self, here: u32) -> Option<u32> {
        let pid = self.pid & !UNBORN;
        let lives = pid != 0
            && match self.start {
                _ if self.namespace != 0 && self.namespace != here => true,
                0 => process::start_time(pid).is_some(),
                start => process::alive(pid, start),
            };
        lives.then_some(pid)
    }
}

impl User {
    pub(crate) fn seen(&self) -> Seen {
        Seen {
            pid: self.pid.load(Ordering::Acquire),
            namespace: self.namespace.load(Ordering::Relaxed),
            start: self.start.load(Ordering::Relaxed),
            fd: self.fd.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn claim(&self, seen: u32, pid: u32) -> bool {
        self.pid.compare_exchange(seen, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Notes the pid namespace of a child that is still to be born.
    pub(crate) fn expect(&self, here: u32) {
        self.namespace.store(here, Ordering::Relaxed);
    }

    pub(crate) fn free(&self) {
        self.start.store(0, Ordering::Relaxed);
        self.pid.store(0, Ordering::Release);
    }

    pub(crate) fn sign(&self, pid: u32, fd: u32) {
        self.fd.store(fd, Ordering::Relaxed);
        self.namespace.store(namespace(), Ordering::Relaxed);
        self.start.store(process::start_time(pid).unwrap_or(0), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
impl User {
    /// Makes the entry that of another process.
    pub(crate) fn become_of(&self, pid: u32, fd: u32) {
        self.pid.store(pid, Ordering::Relaxed);
        self.sign(pid, fd);
    }

    pub(crate) fn is_free(&self) -> bool {
        self.pid.load(Ordering::Relaxed) == 0
    }
}
