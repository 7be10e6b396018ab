//! The processes using a table: as long as one of them lives, the register names one that has it.

use madrigal_sys::process;

use crate::holder::{Holder, namespace};
use crate::table::Table;
use crate::user::UNBORN;

impl Table {
    /// Enters this process among the users, with its descriptor of the table; `None` if there is no room. Then the register may be removed
    /// while this process uses it: existing connections go on, later ones stay with TCP.
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
            user.expect(here);
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
            user.free();
        }
    }

    /// Strikes the places of expected children if no child lives: they have ended before they took these, or were never born.
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
