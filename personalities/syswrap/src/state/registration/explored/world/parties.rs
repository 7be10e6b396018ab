//! Sockets and sets of a model, as registrations know them.

use core::ffi::c_int;

use madrigal_base::sync::{AtomicU32, Ordering};
use madrigal_sys::Errno;
use madrigal_sys::epoll::Entry;

use super::super::super::{EventSet, Subject, used};
use super::{Held, MEMBERS, Pinned, SECRET, SOCKS, SetOf, SockOf};
use crate::state::key;
use crate::state::lock::Lock;
use crate::state::member::{Member, READABLE};
use crate::state::registry::Registry;
use crate::state::session::phase;

impl<'a> Subject for SockOf<'a> {
    type Set = SetOf<'a>;
    type SetRef = Pinned<SetOf<'a>>;

    fn members(&self) -> &[Member] {
        &self.state().members
    }

    fn registering(&self) -> &Lock {
        &self.state().registering
    }

    fn id(&self, m: usize) -> u32 {
        (self.index * MEMBERS + m) as u32
    }

    fn key(&self, m: usize) -> u64 {
        key::make(SECRET, self.state().generation.load(Ordering::SeqCst), self.id(m))
    }

    fn set(&self, index: u32) -> Option<Pinned<SetOf<'a>>> {
        Some(Pinned(self.world.set(index as usize)))
    }

    fn is_hooked(&self) -> bool {
        self.state().hooked.load(Ordering::SeqCst) != 0
    }

    fn set_hooked(&self, on: bool) {
        self.state().hooked.store(u32::from(on), Ordering::SeqCst);
    }

    fn is_in_session(&self) -> bool {
        self.state().session.load(Ordering::SeqCst) != 0
    }

    fn rx(&self) -> u32 {
        self.state().rx.load(Ordering::SeqCst)
    }

    fn tx(&self) -> u32 {
        phase::KERNEL
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn end_events(&self) -> u32 {
        0
    }

    fn learn_end(&self) {}

    fn watchers(&self) -> &AtomicU32 {
        &self.state().watchers
    }

    fn has_unread(&self) -> bool {
        self.world.kernel.poll(self.fd()) & READABLE != 0
    }

    fn holds_unread(&self) -> bool {
        false
    }

    fn has_copies(&self) -> bool {
        false
    }
}

impl<'a> EventSet for SetOf<'a> {
    type Subject = SockOf<'a>;
    type At = Pinned<SockOf<'a>>;
    type Held = Held<'a>;

    fn index(&self) -> u32 {
        self.index as u32
    }

    fn registry(&self) -> &Registry {
        &self.world.sets[self.index].registry
    }

    fn member(&self, id: u32) -> Option<(Pinned<SockOf<'a>>, &Member)> {
        let (sock, m) = (id as usize / MEMBERS, id as usize % MEMBERS);
        Some((Pinned(self.world.sock(sock)), &self.world.socks.get(sock)?.members[m]))
    }

    fn subjects(&self) -> impl Iterator<Item = Held<'a>> {
        let (world, index) = (self.world, self.index());
        (0..SOCKS)
            .map(|sock| world.sock(sock).held())
            .filter(move |s| used(&**s).any(|(_, member)| member.is_in(index)))
    }

    fn is_sole(&self) -> bool {
        true
    }

    fn is_closed(&self) -> bool {
        self.world.sets[self.index].closed.load(Ordering::SeqCst) != 0
    }

    fn descriptor(&self) -> Option<c_int> {
        (!self.is_closed()).then_some(self.index as c_int)
    }

    fn entry(&self, _: c_int, _: c_int) -> Result<Option<Entry>, Errno> {
        unreachable!("nothing is lent")
    }

    fn ctl(&self, epfd: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Result<(), Errno> {
        self.world.kernel.ctl(epfd as usize, op, fd, events, data)
    }
}
