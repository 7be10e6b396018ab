//! Poll sets: which of several queues and counters have something new.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::abi::errno::{EINVAL, EIO};
use crate::abi::flags::{CLASS_CNTR, CLASS_CQ, CLASS_POLL};
use crate::abi::object::{DomainFid, Fid, Ops};
use crate::abi::queue::{PollFid, PollOps};
use crate::domain::{Domain, DomainObject};
use crate::guard::{guard, lock};
use crate::object::{Object, class, fid, ops, store};
use crate::state::State;
use crate::{cntr, cq};

type PollObject = Object<PollFid, Set>;

struct Set {
    domain: Arc<Domain>,
    members: Mutex<Vec<(Member, usize)>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    Cq(usize),
    Cntr(usize),
}

impl Member {
    /// Counts this use of it, or one less.
    fn hold(self, state: &mut State, more: bool) {
        let users = match self {
            Self::Cq(at) => state.queues.cqs.get_mut(at).map(|cq| &mut cq.users),
            Self::Cntr(at) => state.queues.cntrs.get_mut(at).map(|cntr| &mut cntr.users),
        };
        if let Some(users) = users {
            *users = if more { *users + 1 } else { users.saturating_sub(1) };
        }
    }

    fn has_changed(self, state: &State) -> bool {
        match self {
            Self::Cq(at) => state.queues.cqs.get(at).is_some_and(|cq| !cq.entries.is_empty()),
            Self::Cntr(at) => state.queues.cntrs.get(at).is_some_and(|cntr| cntr.value != cntr.seen),
        }
    }
}

static OPS: Ops = ops(close);

static POLL: PollOps = PollOps { size: size_of::<PollOps>(), poll, poll_add: add, poll_del: del };

/// `fi_poll_open`
pub(crate) unsafe extern "C" fn open(domain: *mut DomainFid, _attr: *mut c_void, set: *mut *mut Fid) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live domain of ours.
        let domain = unsafe { DomainObject::of(domain) };
        let inner = Set { domain: Arc::clone(domain), members: Mutex::default() };
        let made = PollObject::give(PollFid { fid: fid(CLASS_POLL, std::ptr::null_mut(), &OPS), ops: &POLL }, inner);
        // SAFETY: a place for the result, by the caller.
        unsafe { store(set, made.cast()) }
    })
}

unsafe extern "C" fn close(set: *mut Fid) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live poll set of ours, given up by the caller.
        let inner = unsafe { PollObject::take(set) };
        let mut state = inner.domain.lock();
        lock(&inner.members).iter().for_each(|(member, _)| member.hold(&mut state, false));
        0
    })
}

/// What an object is to a set.
///
/// # Safety
/// A live object of ours.
unsafe fn member(at: *mut Fid, domain: &Arc<Domain>) -> Option<Member> {
    // SAFETY: by the caller; the class gives its type.
    unsafe {
        match class(at) {
            CLASS_CQ => cq::place(at, domain).map(Member::Cq),
            CLASS_CNTR => cntr::place(at, domain).map(Member::Cntr),
            _ => None,
        }
    }
}

unsafe extern "C" fn add(set: *mut PollFid, other: *mut Fid, _flags: u64) -> c_int {
    guard(-EIO, || {
        // SAFETY: live objects of ours.
        let (inner, found) = unsafe {
            let inner = PollObject::of(set);
            (inner, member(other, &inner.domain))
        };
        let Some(member) = found else { return -EINVAL };
        // SAFETY: a live object, as above.
        let context = unsafe { (*other).context } as usize;
        lock(&inner.members).push((member, context));
        member.hold(&mut inner.domain.lock(), true);
        0
    })
}

unsafe extern "C" fn del(set: *mut PollFid, other: *mut Fid, _flags: u64) -> c_int {
    guard(-EIO, || {
        // SAFETY: live objects of ours.
        let (inner, found) = unsafe {
            let inner = PollObject::of(set);
            (inner, member(other, &inner.domain))
        };
        let mut members = lock(&inner.members);
        let Some(at) = members.iter().position(|(member, _)| Some(*member) == found) else { return -EINVAL };
        let (member, _) = members.remove(at);
        member.hold(&mut inner.domain.lock(), false);
        0
    })
}

unsafe extern "C" fn poll(set: *mut PollFid, contexts: *mut *mut c_void, count: c_int) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live poll set of ours.
        let inner = unsafe { PollObject::of(set) };
        let mut state = inner.domain.lock();
        let worked = state.progress();
        let mut ready = 0;
        for (member, context) in lock(&inner.members).iter() {
            if ready < count && member.has_changed(&state) {
                // SAFETY: room for `count` contexts, by the caller.
                unsafe { contexts.add(ready as usize).write(*context as *mut c_void) };
                ready += 1;
            }
        }
        drop(state);
        if worked == 0 && ready == 0 {
            inner.domain.rest();
        }
        ready
    })
}
