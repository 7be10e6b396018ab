//! Memory regions: what peers may read and write. Nothing needs registration for use by its owner.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::iovec;
use madrigal_message::endpoint::{PostError, Region};
use madrigal_sys::piece::Piece;

use crate::abi::errno::{EINVAL, EIO, ENOKEY, ENOSYS};
use crate::abi::flags::{CLASS_CNTR, CLASS_DOMAIN, CLASS_EP, CLASS_EQ, CLASS_MR, ENABLE, REMOTE_READ, REMOTE_WRITE};
use crate::abi::object::{Fid, MrAttr, MrFid, MrOps, Ops};
use crate::domain::{Domain, DomainObject};
use crate::guard::guard;
use crate::object::{Object, class, fid, ops, store};

type MrObject = Object<MrFid, Mr>;

struct Mr {
    domain: Arc<Domain>,
    /// The key peers use, if they may do anything.
    exposed: Option<u64>,
}

/// Functions of a domain that make regions.
pub(crate) static OPS: MrOps = MrOps { size: size_of::<MrOps>(), reg, regv, regattr };

static MR: Ops = Ops { bind, control, ..ops(close) };

/// The caller's request.
struct Asked {
    at: *const c_void,
    len: usize,
    access: u64,
    key: u64,
    context: *mut c_void,
}

impl Domain {
    /// Lets peers reach memory; its key.
    fn expose(&self, asked: &Asked) -> Result<u64, i32> {
        let mut state = self.lock();
        let key = if self.by_address {
            state.next_key += 1;
            state.next_key
        } else {
            asked.key
        };
        if state.regions.iter().any(|region| region.key == key) {
            return Err(ENOKEY);
        }
        let region = Region {
            key,
            // SAFETY: the caller of the registration vouches for the memory until it closes the region.
            memory: unsafe { Piece::lend(asked.at.cast(), asked.len) },
            origin: if self.by_address { asked.at as u64 } else { 0 },
            read: asked.access & REMOTE_READ != 0,
            write: asked.access & REMOTE_WRITE != 0,
        };
        // One endpoint does it for all; the first that is opened, if there is none yet. Keys differ, as just seen.
        if let Some(ep) = state.eps.iter_mut().next() {
            let _ = ep.link.expose(region);
        }
        state.regions.push(region);
        Ok(key)
    }

    /// Takes it back. Bytes that are just arriving there may do so first.
    fn withdraw(&self, key: u64) {
        let mut state = self.lock();
        state.regions.retain(|region| region.key != key);
        drop(state);
        let end = Instant::now() + PATIENCE;
        loop {
            let done = match self.lock().eps.iter_mut().next() {
                Some(ep) => ep.link.withdraw(key),
                // The endpoint that exposed it is closed, but another one could be opened.
                None => self.withdraw_alone(key),
            };
            match (done, self.worker()) {
                (Err(PostError::Again), Some(worker)) if Instant::now() < end => {
                    self.lock().progress();
                    worker.idle();
                }
                _ => return,
            }
        }
    }

    #[cold]
    fn withdraw_alone(&self, key: u64) -> Result<(), PostError> {
        if self.worker().is_none() {
            return Ok(());
        }
        let link = self.open_worker().ok().and_then(|(worker, space)| worker.endpoint(*space).ok());
        link.map_or(Ok(()), |link| link.withdraw(key))
    }
}

/// How long closing a region waits for bytes that are arriving in it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Makes a region.
///
/// # Safety
/// A live domain of ours; a place for the result or null.
unsafe fn make(domain: *mut Fid, asked: &Asked, mr: *mut *mut MrFid) -> c_int {
    // SAFETY: by the caller.
    let domain = unsafe {
        if class(domain) != CLASS_DOMAIN {
            return -EINVAL;
        }
        DomainObject::of(domain)
    };
    let remote = asked.access & (REMOTE_READ | REMOTE_WRITE) != 0;
    let exposed = match remote.then(|| domain.expose(asked)).transpose() {
        Ok(exposed) => exposed,
        Err(errno) => return -errno,
    };
    let front = MrFid {
        fid: fid(CLASS_MR, asked.context, &MR),
        mem_desc: std::ptr::null_mut(),
        key: exposed.unwrap_or(asked.key),
    };
    // SAFETY: by the caller.
    unsafe { store(mr, MrObject::give(front, Mr { domain: Arc::clone(domain), exposed })) }
}

#[allow(clippy::too_many_arguments, reason = "the call is libfabric's")]
unsafe extern "C" fn reg(
    domain: *mut Fid,
    at: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    mr: *mut *mut MrFid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract is ours.
    guard(-EIO, || unsafe { make(domain, &Asked { at, len, access, key, context }, mr) })
}

#[allow(clippy::too_many_arguments, reason = "the call is libfabric's")]
unsafe extern "C" fn regv(
    domain: *mut Fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    mr: *mut *mut MrFid,
    context: *mut c_void,
) -> c_int {
    guard(-EIO, || {
        if count != 1 || iov.is_null() {
            return -EINVAL;
        }
        // SAFETY: one is there; the rest is the caller's contract.
        unsafe { make(domain, &Asked { at: (*iov).iov_base, len: (*iov).iov_len, access, key, context }, mr) }
    })
}

unsafe extern "C" fn regattr(domain: *mut Fid, attr: *const MrAttr, _flags: u64, mr: *mut *mut MrFid) -> c_int {
    guard(-EIO, || {
        // SAFETY: a structure whose front is whole, or null.
        let Some(attr) = (unsafe { attr.as_ref() }) else { return -EINVAL };
        let (key, context) = (attr.requested_key, attr.context);
        // SAFETY: the caller's contract is ours.
        unsafe { regv(domain, attr.mr_iov, attr.iov_count, attr.access, 0, key, 0, mr, context) }
    })
}

unsafe extern "C" fn close(mr: *mut Fid) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live region of ours, given up by the caller.
        let inner = unsafe { MrObject::take(mr) };
        if let Some(key) = inner.exposed {
            inner.domain.withdraw(key);
        }
        0
    })
}

/// A region serves every endpoint of its domain; being bound to one changes nothing.
unsafe extern "C" fn bind(_mr: *mut Fid, other: *mut Fid, _flags: u64) -> c_int {
    // SAFETY: a live object.
    match unsafe { class(other) } {
        CLASS_EP | CLASS_CNTR | CLASS_EQ => 0,
        _ => -EINVAL,
    }
}

unsafe extern "C" fn control(_mr: *mut Fid, command: c_int, _arg: *mut c_void) -> c_int {
    if command == ENABLE { 0 } else { -ENOSYS }
}
