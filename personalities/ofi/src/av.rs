//! Address vectors: peers by small numbers. A map and a table are the same here.
#![allow(clippy::too_many_arguments, reason = "the calls are libfabric's")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::abi::errno::{EBUSY, EINVAL, EIO, ENOSYS};
use crate::abi::flags::{AV_EVENT, AV_TABLE, AV_UNSPEC, CLASS_AV, CLASS_EQ, EVENT_AV_COMPLETE, SYNC_ERR};
use crate::abi::object::{AvFid, AvOps, DomainFid, Fid, Ops};
use crate::abi::queue::{AvAttr, EqEntry};
use crate::abi::{ADDR_UNSPEC, Addr};
use crate::domain::{Domain, DomainObject};
use crate::eq::{self, Events};
use crate::guard::{guard, lock};
use crate::info::place::{resolve, sockaddr, text};
use crate::names::Name;
use crate::object::{Object, class, fid, ops, put_text, store};
use crate::state::AvState;

type AvObject = Object<AvFid, Av>;

struct Av {
    domain: Arc<Domain>,
    at: usize,
    /// Insertions are reported by the event queue.
    tells: bool,
    events: Mutex<Option<Arc<Events>>>,
}

static OPS: Ops = Ops { bind, ..ops(close) };

static AV: AvOps = AvOps {
    size: size_of::<AvOps>(),
    insert,
    insertsvc,
    insertsym,
    remove,
    lookup,
    straddr,
    av_set: no_set,
    insert_auth_key: no_key,
    lookup_auth_key: no_key_lookup,
    set_user_id: no_user_id,
};

/// `fi_av_open`
pub(crate) unsafe extern "C" fn open(
    domain: *mut DomainFid,
    attr: *mut AvAttr,
    av: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live domain of ours, and a whole structure or null.
        let (domain, attr) = unsafe { (DomainObject::of(domain), attr.as_mut()) };
        let Some(attr) = attr else { return -EINVAL };
        if !attr.name.is_null() || attr.rx_ctx_bits != 0 {
            return -ENOSYS;
        }
        if attr.kind > AV_TABLE || attr.flags & !AV_EVENT != 0 {
            return -EINVAL;
        }
        if attr.kind == AV_UNSPEC {
            attr.kind = AV_TABLE;
        }
        let at = domain.lock().avs.insert(AvState::default());
        let inner = Av { domain: Arc::clone(domain), at, tells: attr.flags & AV_EVENT != 0, events: Mutex::default() };
        let made = AvObject::give(AvFid { fid: fid(CLASS_AV, context, &OPS), ops: &AV }, inner);
        // SAFETY: a place for the result, by the caller.
        unsafe { store(av, made.cast()) }
    })
}

/// The number of an address vector in its domain, if it is one of that domain.
///
/// # Safety
/// A live address vector of ours.
pub(crate) unsafe fn place(av: *mut Fid, domain: &Arc<Domain>) -> Option<usize> {
    // SAFETY: by the caller.
    let av = unsafe { AvObject::of(av) };
    Arc::ptr_eq(&av.domain, domain).then_some(av.at)
}

unsafe extern "C" fn close(av: *mut Fid) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live address vector of ours.
        let inner = unsafe { AvObject::of(av) };
        let mut state = inner.domain.lock();
        if state.avs.get(inner.at).is_some_and(|av| av.users > 0) {
            return -EBUSY;
        }
        state.avs.remove(inner.at);
        drop(state);
        // SAFETY: as above; the caller gives it up.
        drop(unsafe { AvObject::take(av) });
        0
    })
}

unsafe extern "C" fn bind(av: *mut Fid, other: *mut Fid, _flags: u64) -> c_int {
    guard(-EIO, || {
        // SAFETY: live objects of ours; the class gives the type of `other`.
        unsafe {
            if class(other) != CLASS_EQ {
                return -EINVAL;
            }
            *lock(&AvObject::of(av).events) = Some(eq::events(other));
        }
        0
    })
}

impl Av {
    /// Inserts these addresses, `None` for an invalid one. Reports as the caller of `fi_av_insert` expects. If `numbers` is not null it
    /// gets each number, or that there is none.
    fn add(&self, fid: *mut Fid, found: Vec<Option<Name>>, call: &Call) -> c_int {
        let mut good: usize = 0;
        let events = lock(&self.events).clone().or_else(|| self.domain.events()).filter(|_| self.tells);
        for (i, name) in found.into_iter().enumerate() {
            let failed = name.is_none();
            let number = name.map_or(ADDR_UNSPEC, |name| {
                let mut state = self.domain.lock();
                state.asking |= matches!(name, Name::Place(_));
                state.avs.get_mut(self.at).map_or(ADDR_UNSPEC, |av| av.insert(name))
            });
            good += usize::from(!failed);
            if !call.numbers.is_null() {
                // SAFETY: room for as many numbers as addresses, by the caller of `fi_av_insert`.
                unsafe { call.numbers.add(i).write(number) };
            }
            if call.flags & SYNC_ERR != 0 && !call.context.is_null() {
                let errno = if failed { EINVAL } else { 0 };
                // SAFETY: with FI_SYNC_ERR the context is room for as many numbers as addresses.
                unsafe { call.context.cast::<c_int>().add(i).write(errno) };
            }
            if let Some(events) = events.as_ref().filter(|_| failed) {
                events.fail(fid, call.context, i as u64, EINVAL);
            }
        }
        let Some(events) = events else { return c_int::try_from(good).unwrap_or(c_int::MAX) };
        events.add(EVENT_AV_COMPLETE, &EqEntry { fid, context: call.context, data: good as u64 });
        0
    }
}

/// What comes with every insertion.
struct Call {
    numbers: *mut Addr,
    flags: u64,
    context: *mut c_void,
}

unsafe extern "C" fn insert(
    av: *mut AvFid,
    addr: *const c_void,
    count: usize,
    numbers: *mut Addr,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live address vector of ours.
        let inner = unsafe { AvObject::of(av) };
        let len = inner.domain.addr_len;
        if addr.is_null() && count > 0 {
            return -EINVAL;
        }
        let one = |i: usize| {
            // SAFETY: `count` addresses of the length that this domain reports, by the caller.
            let bytes = unsafe { std::slice::from_raw_parts(addr.cast::<u8>().add(i * len), len) };
            Name::decode(bytes)
        };
        inner.add(av.cast(), (0..count).map(one).collect(), &Call { numbers, flags, context })
    })
}

unsafe extern "C" fn insertsvc(
    av: *mut AvFid,
    node: *const c_char,
    service: *const c_char,
    numbers: *mut Addr,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the same contract, for one node and one service.
    unsafe { insertsym(av, node, 1, service, 1, numbers, flags, context) }
}

unsafe extern "C" fn insertsym(
    av: *mut AvFid,
    node: *const c_char,
    nodes: usize,
    service: *const c_char,
    services: usize,
    numbers: *mut Addr,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live address vector of ours, and strings that end, or null.
        let (inner, node, service) = unsafe { (AvObject::of(av), text(node), text(service)) };
        let (Some(node), Some(service)) = (node, service) else { return -EINVAL };
        let Ok(first) = resolve(Some(node), Some(service), false) else { return -EINVAL };
        let mut found = Vec::new();
        for n in 0..nodes {
            for s in 0..services {
                let ip = u32::from(*first.ip()).wrapping_add(n as u32);
                let place = std::net::SocketAddrV4::new(ip.into(), first.port().wrapping_add(s as u16));
                found.push(Name::decode(&sockaddr(place)));
            }
        }
        inner.add(av.cast(), found, &Call { numbers, flags, context })
    })
}

unsafe extern "C" fn remove(av: *mut AvFid, numbers: *mut Addr, count: usize, _flags: u64) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live address vector of ours.
        let inner = unsafe { AvObject::of(av) };
        let mut state = inner.domain.lock();
        let Some(av) = state.avs.get_mut(inner.at) else { return -EINVAL };
        let mut all = true;
        for i in 0..count {
            // SAFETY: `count` numbers, by the caller.
            all &= av.remove(unsafe { *numbers.add(i) });
        }
        if all { 0 } else { -EINVAL }
    })
}

unsafe extern "C" fn lookup(av: *mut AvFid, number: Addr, addr: *mut c_void, len: *mut usize) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live address vector of ours, and a length or null.
        let (inner, len) = unsafe { (AvObject::of(av), len.as_mut()) };
        let Some(len) = len else { return -EINVAL };
        let state = inner.domain.lock();
        let Some(name) = state.avs.get(inner.at).and_then(|av| av.get(number)) else { return -EINVAL };
        let bytes = name.encode(inner.domain.addr_len);
        // SAFETY: `len` bytes may be written, by the caller.
        unsafe { put_bytes(&bytes, addr, *len) };
        *len = bytes.len();
        0
    })
}

/// Copies what fits.
///
/// # Safety
/// `room` bytes may be written from `at`, or it is null.
pub(crate) unsafe fn put_bytes(bytes: &[u8], at: *mut c_void, room: usize) {
    if !at.is_null() {
        // SAFETY: by the caller, no more than `room`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.cast(), bytes.len().min(room)) };
    }
}

unsafe extern "C" fn straddr(av: *mut AvFid, addr: *const c_void, buf: *mut c_char, len: *mut usize) -> *const c_char {
    guard(std::ptr::null(), || {
        // SAFETY: a live address vector of ours, an address of its length, and a length or null.
        let (inner, len) = unsafe { (AvObject::of(av), len.as_mut()) };
        let Some(len) = len.filter(|_| !addr.is_null()) else { return std::ptr::null() };
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), inner.domain.addr_len) };
        let shown = Name::decode(bytes).map_or_else(|| "fi_madrigal://?".into(), |name| name.to_string());
        // SAFETY: `len` bytes may be written, by the caller.
        unsafe { put_text(&shown, buf, *len) };
        *len = shown.len() + 1;
        buf
    })
}

unsafe extern "C" fn no_set(_: *mut AvFid, _: *mut c_void, _: *mut *mut Fid, _: *mut c_void) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_key(_: *mut AvFid, _: *const c_void, _: usize, _: *mut Addr, _: u64) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_key_lookup(_: *mut AvFid, _: Addr, _: *mut c_void, _: *mut usize) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_user_id(_: *mut AvFid, _: Addr, _: Addr, _: u64) -> c_int {
    -ENOSYS
}
