//! The processes using a table: as long as one of them lives, the register names one that has it.

use core::sync::atomic::Ordering;

use madrigal_base::sync::{AtomicU32, AtomicU64};
use madrigal_sys::process;

use crate::register::Holder;
use crate::table::Table;

pub(crate) const USERS: usize = 512;

/// Marks an entry that a parent made for a child about to be born.
const UNBORN: u32 = 1 << 31;

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
    pid: u32,
    namespace: u32,
    start: u64,
    fd: u32,
}

impl Seen {
    /// The process, if it lives, is known by now, and is one of pid namespace `here`.
    fn holder(self, here: u32) -> Option<Holder> {
        let born = self.pid & UNBORN == 0 && self.start != 0 && self.namespace == here;
        (born && self.live(here).is_some()).then(|| Holder::new(self.pid, self.start, self.fd))
    }

    /// The process, if it lives. Those of another pid namespace (`here` is ours) are believed to: their pids mean nothing to us.
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
    fn seen(&self) -> Seen {
        Seen {
            pid: self.pid.load(Ordering::Acquire),
            namespace: self.namespace.load(Ordering::Relaxed),
            start: self.start.load(Ordering::Relaxed),
            fd: self.fd.load(Ordering::Relaxed),
        }
    }

    fn claim(&self, seen: u32, pid: u32) -> bool {
        self.pid.compare_exchange(seen, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn sign(&self, pid: u32, fd: u32) {
        self.fd.store(fd, Ordering::Relaxed);
        self.namespace.store(namespace(), Ordering::Relaxed);
        self.start.store(process::start_time(pid).unwrap_or(0), Ordering::Relaxed);
    }
}

/// Names this process's pid namespace: a pid of another one says nothing about its life.
pub(crate) fn namespace() -> u32 {
    rustix::fs::stat(c"/proc/self/ns/pid").map_or(0, |s| s.st_ino as u32)
}

impl Table {
    /// Enters this process among the users, with the table's descriptor in it; `None` for lack of room. Then the register may be removed
    /// under it: connections set up so far go on, later ones stay with TCP.
    pub fn enlist(&self, fd: u32) -> Option<u32> {
        let (pid, here) = (process::own_pid(), namespace());
        for (i, user) in self.users.iter().enumerate() {
            let seen = user.seen();
            if seen.pid != 0 && seen.pid != pid && seen.live(here).is_some() {
                continue;
            }
            if user.claim(seen.pid, pid) {
                user.sign(pid, fd);
                return Some(i as u32);
            }
        }
        None
    }

    /// Before fork: a place for the child, so that the file outlives a parent that exits at once.
    pub fn expect_child(&self) {
        let (pid, here) = (process::own_pid(), namespace());
        if let Some(user) = self.users.iter().find(|u| u.claim(0, pid | UNBORN)) {
            user.namespace.store(here, Ordering::Relaxed);
        }
    }

    /// The child after fork takes the place its parent made. As [`Table::enlist`].
    pub fn enlist_child(&self, parent: u32, fd: u32) -> Option<u32> {
        let pid = process::own_pid();
        let own = self.users.iter().position(|u| u.claim(parent | UNBORN, pid));
        match own {
            Some(i) => {
                self.users[i].sign(pid, fd);
                Some(i as u32)
            }
            None => self.enlist(fd),
        }
    }

    /// Strikes this process from the list; `entry` is what [`Table::enlist`] gave.
    pub fn strike(&self, entry: u32) {
        if let Some(user) = self.users.get(entry as usize) {
            user.start.store(0, Ordering::Relaxed);
            user.pid.store(0, Ordering::Release);
        }
    }

    /// Where no child lives, those for whom a process made places have ended before they took them, or were never born.
    pub(crate) fn strike_unborn(&self, parent: u32) {
        let own = || self.users.iter().filter(|user| user.seen().pid == parent | UNBORN);
        if own().next().is_some() && !process::has_living_child() {
            own().for_each(|user| {
                user.claim(parent | UNBORN, 0);
            });
        }
    }

    /// The living users. Pids of other pid namespaces among them mean nothing here.
    pub fn living(&self) -> impl Iterator<Item = u32> {
        let here = namespace();
        self.users.iter().filter_map(move |user| user.seen().live(here))
    }

    /// A living user other than `pid`, to stand in the register.
    pub(crate) fn heir(&self, pid: u32) -> Option<Holder> {
        let here = namespace();
        self.users.iter().filter_map(|user| user.seen().holder(here)).find(|holder| holder.pid != pid)
    }
}

#[cfg(test)]
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
