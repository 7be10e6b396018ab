//! What a registration needs from the socket, from the set it is in, and from the kernel. The program's are one implementation, a model's
//! are another, so that the same steps run under a scheduler.

use core::ffi::c_int;
use core::ops::Deref;

use madrigal_base::sync::AtomicU32;
use madrigal_sys::Errno;
use madrigal_sys::epoll::Entry;

use crate::state::lock::{Blocked, Guard, Lock};
use crate::state::member::Member;
use crate::state::registry::Registry;

/// A socket, as its registrations know it.
pub(crate) trait Subject: Sized {
    type Set: EventSet<Subject = Self>;
    /// A reference to a set, which is not freed meanwhile.
    type SetRef: Deref<Target = Self::Set>;

    fn members(&self) -> &[Member];
    /// The lock of its registrations; see [`Subject::lock_members`].
    fn registering(&self) -> &Lock;
    /// The number of a member among all.
    fn id(&self, m: usize) -> u32;
    /// What our registration of a member has as data in the kernel.
    fn key(&self, m: usize) -> u64;
    /// The set with this index.
    fn set(&self, index: u32) -> Option<Self::SetRef>;
    /// Whether all of its registrations are ours, and those that are added from now on.
    fn is_hooked(&self) -> bool;
    fn set_hooked(&self, on: bool);
    /// Whether both ends hold a slot.
    fn is_in_session(&self) -> bool;
    /// The session's phases.
    fn rx(&self) -> u32;
    fn tx(&self) -> u32;
    /// Whether its peer has gone otherwise than the kernel reports; and the events that the program gets for that.
    fn is_gone(&self) -> bool;
    fn end_events(&self) -> u32;
    /// Learns whether it has, if that is not known yet.
    fn learn_end(&self);
    /// How many sets it is in, as seen by threads that take its doorbells.
    fn watchers(&self) -> &AtomicU32;
    /// Whether the kernel holds bytes that are not read.
    fn has_unread(&self) -> bool;
    /// Whether a ring holds unread bytes and its session is over but for them.
    fn holds_unread(&self) -> bool;
    /// Whether this process has more than one descriptor of it.
    fn has_copies(&self) -> bool;

    /// Begins a part in which no signal handler of this thread gets at its registrations, nor another thread.
    fn lock_members(&self) -> Registering<'_> {
        let _blocked = Blocked::handlers();
        Registering { _lock: self.registering().lock(), _blocked }
    }

    /// The set that a member is in.
    fn set_of(&self, member: &Member) -> Option<Self::SetRef> {
        member.set().and_then(|index| self.set(index))
    }
}

/// A part in which no signal handler of this thread gets at the registrations of a socket, nor another thread.
pub(crate) struct Registering<'a> {
    _lock: Guard<'a>,
    _blocked: Blocked,
}

/// An event set, as its members know it.
pub(crate) trait EventSet: Sized {
    type Subject: Subject<Set = Self>;
    /// A member's socket, as long as the set's lock is held and the member is ours in that set.
    type At: Copy + Deref<Target = Self::Subject>;
    /// A reference to a socket, which is not freed meanwhile.
    type Held: Deref<Target = Self::Subject>;

    fn index(&self) -> u32;
    fn registry(&self) -> &Registry;
    /// The member with this id. Its socket's session stays as long as the set's lock is held and the member is ours in that set: it is
    /// taken off the list, under the lock, before a session is released.
    fn member(&self, id: u32) -> Option<(Self::At, &Member)>;
    /// The sockets that are in it.
    fn subjects(&self) -> impl Iterator<Item = Self::Held>;
    /// Whether no other process has it.
    fn is_sole(&self) -> bool;
    /// Whether its last descriptor is closed.
    fn is_closed(&self) -> bool;
    /// A descriptor of it.
    fn descriptor(&self) -> Option<c_int>;
    /// What the kernel has of a socket in it.
    fn entry(&self, epfd: c_int, fd: c_int) -> Result<Option<Entry>, Errno>;
    /// epoll_ctl(2) by one of its descriptors.
    fn ctl(&self, epfd: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Result<(), Errno>;

    /// Puts a member on the active list.
    fn activate(&self, id: u32, member: &Member) {
        self.activate_with(id, member, || true);
    }

    /// The same behind a change of the member, with no scan in between. If the change returns false, the member is not put there.
    #[inline]
    fn activate_with(&self, id: u32, member: &Member, change: impl FnOnce() -> bool) {
        self.registry().activate((id, member), |id| self.member(id), change);
    }

    /// The same under the lock.
    fn activate_locked(&self, id: u32, member: &Member) {
        self.registry().activate_locked((id, member), |id| self.member(id));
    }

    /// Takes a member off the active list, if it is on it. Under the lock.
    fn deactivate(&self, member: &Member) {
        self.registry().deactivate(member, |id| self.member(id));
    }

    /// The active members, first to last. Under the lock; the current one may be taken off meanwhile.
    fn active(&self) -> impl Iterator<Item = (u32, Self::At, &Member)> {
        self.registry().active(|id| self.member(id))
    }
}
