//! The program's sockets and sets, and the kernel, as registrations know them.

use core::ffi::c_int;

use madrigal_base::sync::{AtomicU32, Ordering};
use madrigal_sys::epoll::{self, Entry};
use madrigal_sys::{Errno, raw};

use super::entry::used;
use super::{EventSet, Subject};
use crate::state::lock::Lock;
use crate::state::member::Member;
use crate::state::registry::Registry;
use crate::state::session::phase;
use crate::state::sets::{self, Set, SetRef};
use crate::state::sock::{self, Ref, SOCKS, Sock, flag, mode};
use crate::state::socket::view;

impl Subject for Sock {
    type Set = Set;
    type SetRef = SetRef;

    #[inline]
    fn members(&self) -> &[Member] {
        &self.members
    }

    #[inline]
    fn registering(&self) -> &Lock {
        &self.registering
    }

    fn id(&self, m: usize) -> u32 {
        sets::id(self, m)
    }

    fn key(&self, m: usize) -> u64 {
        sets::key(self, m)
    }

    fn set(&self, index: u32) -> Option<SetRef> {
        sets::by_index(index)
    }

    fn is_hooked(&self) -> bool {
        self.has(flag::HOOKED)
    }

    fn set_hooked(&self, on: bool) {
        self.set_flag(flag::HOOKED, on);
    }

    fn is_in_session(&self) -> bool {
        self.mode() == mode::SESSION
    }

    fn rx(&self) -> u32 {
        self.session.rx()
    }

    fn tx(&self) -> u32 {
        self.session.tx()
    }

    fn is_gone(&self) -> bool {
        self.session.is_gone()
    }

    fn end_events(&self) -> u32 {
        self.session.end_events()
    }

    fn learn_end(&self) {
        if let Some(v) = view(self, self.fd()) {
            v.learn();
        }
    }

    fn watchers(&self) -> &AtomicU32 {
        &self.session.watchers
    }

    fn has_unread(&self) -> bool {
        raw::ioctl_int(self.fd(), libc::FIONREAD).is_ok_and(|n| n > 0)
    }

    fn holds_unread(&self) -> bool {
        let waits = || view(self, self.fd()).is_some_and(|v| v.is_sealed_in() && v.has_ring_bytes());
        self.mode() == mode::SESSION && self.session.rx() != phase::DONE && waits()
    }

    fn has_copies(&self) -> bool {
        self.refs.load(Ordering::Relaxed) > 1
    }
}

impl EventSet for Set {
    type Subject = Sock;
    type At = &'static Sock;
    type Held = Ref;

    fn index(&self) -> u32 {
        Self::index(self)
    }

    #[inline]
    fn registry(&self) -> &Registry {
        &self.registry
    }

    #[inline]
    fn member(&self, id: u32) -> Option<(&'static Sock, &Member)> {
        sets::member_of(id)
    }

    fn subjects(&self) -> impl Iterator<Item = Ref> {
        let index = self.index();
        let inside = move |s: &Sock| !s.is_closed() && used(s).any(|(_, member)| member.is_in(index));
        SOCKS
            .all()
            .filter(move |(_, s)| inside(s))
            .filter_map(|(index, _)| sock::by_index(index))
            .filter(move |s| inside(s))
    }

    fn is_sole(&self) -> bool {
        Self::is_sole(self)
    }

    fn is_closed(&self) -> bool {
        Self::is_closed(self)
    }

    fn descriptor(&self) -> Option<c_int> {
        Self::descriptor(self)
    }

    fn entry(&self, epfd: c_int, fd: c_int) -> Result<Option<Entry>, Errno> {
        epoll::entry(epfd, fd)
    }

    #[inline]
    fn ctl(&self, epfd: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Result<(), Errno> {
        raw::epoll_ctl(epfd, op, fd, events, data)
    }
}
