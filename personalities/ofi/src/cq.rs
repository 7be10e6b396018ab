//! Completion queues.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use madrigal_sys::time;

use crate::abi::Addr;
use crate::abi::errno::{EAGAIN, EAVAIL, EBUSY, EINVAL, EIO, ENOSYS};
use crate::abi::flags::{
    CLASS_CQ, CQ_FORMAT_CONTEXT, CQ_FORMAT_DATA, CQ_FORMAT_MSG, CQ_FORMAT_TAGGED, CQ_FORMAT_UNSPEC, GETWAIT,
    GETWAITOBJ, WAIT_FD, WAIT_NONE, WAIT_UNSPEC, WAIT_YIELD,
};
use crate::abi::object::{DomainFid, Fid, Ops};
use crate::abi::queue::{CqAttr, CqEntry, CqErrEntry, CqFid, CqOps};
use crate::bell::Bell;
use crate::domain::{Domain, DomainObject};
use crate::eq::error_text;
use crate::guard::guard;
use crate::object::{Object, fid, ops, store};
use crate::state::{CqState, State};

type CqObject = Object<CqFid, Cq>;

struct Cq {
    domain: Arc<Domain>,
    at: usize,
    /// Bytes of an entry as the caller reads it.
    size: usize,
    wait: u32,
    bell: Option<Arc<Bell>>,
}

static OPS: Ops = Ops { control, ..ops(close) };

static CQ: CqOps = CqOps { size: size_of::<CqOps>(), read, readfrom, readerr, sread, sreadfrom, signal, strerror };

/// `fi_cq_open`
pub(crate) unsafe extern "C" fn open(
    domain: *mut DomainFid,
    attr: *mut CqAttr,
    cq: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live domain of ours, and a whole structure or null.
        let (domain, attr) = unsafe { (DomainObject::of(domain), attr.as_mut()) };
        let Some(attr) = attr else { return -EINVAL };
        if attr.format == CQ_FORMAT_UNSPEC {
            attr.format = CQ_FORMAT_CONTEXT;
        }
        let size = match attr.format {
            CQ_FORMAT_CONTEXT => 8,
            CQ_FORMAT_MSG => 24,
            CQ_FORMAT_DATA => 40,
            CQ_FORMAT_TAGGED => 48,
            _ => return -ENOSYS,
        };
        let bell = match attr.wait_obj {
            WAIT_NONE | WAIT_UNSPEC | WAIT_YIELD => None,
            WAIT_FD => match Bell::new() {
                Ok(bell) => Some(Arc::new(bell)),
                Err(errno) => return -errno.raw_os_error(),
            },
            _ => return -ENOSYS,
        };
        let entries = VecDeque::with_capacity(attr.size.min(FIRST));
        let state = CqState { entries, users: 0, signaled: false, bell: bell.clone(), sleeping: false };
        let at = domain.lock().queues.cqs.insert(state);
        let inner = Cq { domain: Arc::clone(domain), at, size, wait: attr.wait_obj, bell };
        let made = CqObject::give(CqFid { fid: fid(CLASS_CQ, context, &OPS), ops: &CQ }, inner);
        // SAFETY: a place for the result, by the caller.
        unsafe { store(cq, made.cast()) }
    })
}

/// The longest sleep of a program whose endpoint is found by host and port.
const CLOCK_NS: u64 = 20_000_000;
/// Entries for which there is room from the start; it grows as needed.
const FIRST: usize = 64;

/// The number of a queue in its domain, if it is one of that domain.
///
/// # Safety
/// A live completion queue of ours.
pub(crate) unsafe fn place(cq: *mut Fid, domain: &Arc<Domain>) -> Option<usize> {
    // SAFETY: by the caller.
    let cq = unsafe { CqObject::of(cq) };
    Arc::ptr_eq(&cq.domain, domain).then_some(cq.at)
}

/// Whether there is something to read; if not, the queue's descriptor will be ready once there is.
///
/// # Safety
/// A live completion queue of ours.
pub(crate) unsafe fn ready(cq: *mut Fid) -> bool {
    // SAFETY: by the caller.
    let cq = unsafe { CqObject::of(cq) };
    let mut state = cq.domain.lock();
    let found = state.progress() > 0;
    // Listeners and requests are polled by the clock.
    let polls = state.asking || state.eps.iter().any(|(_, ep)| ep.server.is_some());
    let end = if polls { time::now_ns() + CLOCK_NS } else { u64::MAX };
    let State { queues, armed, .. } = &mut *state;
    let Some(queue) = queues.cqs.get_mut(cq.at) else { return true };
    if found || !queue.entries.is_empty() || std::mem::take(&mut queue.signaled) {
        return true;
    }
    let Some(bell) = &cq.bell else { return false };
    bell.quiet();
    queue.sleeping = true;
    let Some(worker) = cq.domain.worker() else { return false };
    *armed = true;
    !bell.set(worker, end)
}

unsafe extern "C" fn close(cq: *mut Fid) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live completion queue of ours.
        let inner = unsafe { CqObject::of(cq) };
        let mut state = inner.domain.lock();
        if state.queues.cqs.get(inner.at).is_some_and(|cq| cq.users > 0) {
            return -EBUSY;
        }
        state.queues.cqs.remove(inner.at);
        drop(state);
        // SAFETY: as above; the caller gives it up.
        drop(unsafe { CqObject::take(cq) });
        0
    })
}

unsafe extern "C" fn control(cq: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live completion queue of ours.
        let inner = unsafe { CqObject::of(cq) };
        match command {
            // SAFETY: the caller offers a place for the kind.
            GETWAITOBJ => unsafe { store(arg.cast::<u32>(), inner.wait) },
            GETWAIT => match &inner.bell {
                // SAFETY: the caller offers a place for a descriptor.
                Some(bell) => unsafe { store(arg.cast::<c_int>(), bell.descriptor()) },
                None => -ENOSYS,
            },
            _ => -ENOSYS,
        }
    })
}

/// The places that a caller gives for completions.
#[derive(Clone, Copy)]
struct Reader {
    buf: *mut c_void,
    count: usize,
    from: *mut Addr,
}

impl Cq {
    /// Takes completions out, as many as there are up to the first failure.
    ///
    /// # Safety
    /// There is room for `count` entries of this queue's format, and for as many addresses where they are wanted.
    #[inline]
    unsafe fn take(&self, state: &mut State, to: Reader) -> isize {
        let Some(queue) = state.queues.cqs.get_mut(self.at) else { return -(EINVAL as isize) };
        let mut done = 0;
        while done < to.count {
            let Some(entry) = queue.entries.front() else { break };
            if entry.failure.is_some() {
                break;
            }
            // SAFETY: room for `count` entries, by the caller; an entry has at least `size` bytes.
            unsafe {
                let place = to.buf.cast::<u8>().add(done * self.size);
                std::ptr::copy_nonoverlapping(
                    std::ptr::from_ref::<CqEntry>(&entry.completion).cast::<u8>(),
                    place,
                    self.size,
                );
                if !to.from.is_null() {
                    to.from.add(done).write(entry.from);
                }
            }
            queue.entries.pop_front();
            done += 1;
        }
        match (done, queue.entries.front()) {
            (0, Some(entry)) if entry.failure.is_some() => -(EAVAIL as isize),
            (0, Some(_)) => 0,
            (0, None) => -(EAGAIN as isize),
            _ => done as isize,
        }
    }

    /// Checks the queue once, and polls the peers if it is empty.
    ///
    /// # Safety
    /// As for [`Cq::take`].
    #[inline]
    unsafe fn read(&self, to: Reader) -> isize {
        let mut state = self.domain.lock();
        // SAFETY: by the caller.
        let first = unsafe { self.take(&mut state, to) };
        if first != -(EAGAIN as isize) {
            return first;
        }
        let worked = state.progress();
        // SAFETY: by the caller.
        let second = unsafe { self.take(&mut state, to) };
        drop(state);
        if worked > 0 || second != -(EAGAIN as isize) {
            return second;
        }
        // SAFETY: by the caller.
        unsafe { self.keep_polling(to) }
    }

    /// Nothing is there: keeps polling where an answer may be near, else lets others run.
    ///
    /// # Safety
    /// As for [`Cq::take`].
    unsafe fn keep_polling(&self, to: Reader) -> isize {
        if let Some(mut polls) = self.domain.worker().and_then(|worker| worker.expects()) {
            while polls.more() {
                let mut state = self.domain.lock();
                let worked = state.progress();
                // SAFETY: by the caller.
                let found = unsafe { self.take(&mut state, to) };
                if worked > 0 || found != -(EAGAIN as isize) {
                    polls.end(true);
                    return found;
                }
            }
            polls.end(false);
        }
        self.domain.rest();
        -(EAGAIN as isize)
    }

    /// Polls until there is something, the time is over, or the queue is signaled.
    ///
    /// # Safety
    /// As for [`Cq::take`].
    unsafe fn wait(&self, to: Reader, timeout: c_int) -> isize {
        let end = u64::try_from(timeout).ok().map(|ms| Instant::now() + Duration::from_millis(ms));
        loop {
            // SAFETY: by the caller.
            let found = unsafe { self.read(to) };
            if found != -(EAGAIN as isize) {
                return found;
            }
            let signaled =
                self.domain.lock().queues.cqs.get_mut(self.at).is_none_or(|cq| std::mem::take(&mut cq.signaled));
            if signaled || end.is_some_and(|end| Instant::now() >= end) {
                return found;
            }
            self.domain.sleep(end);
        }
    }
}

unsafe extern "C" fn read(cq: *mut CqFid, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: a live queue of ours, and room for `count` entries.
    guard(-(EIO as isize), || unsafe { CqObject::of(cq).read(Reader { buf, count, from: std::ptr::null_mut() }) })
}

unsafe extern "C" fn readfrom(cq: *mut CqFid, buf: *mut c_void, count: usize, from: *mut Addr) -> isize {
    // SAFETY: a live queue of ours, and room for `count` entries and addresses.
    guard(-(EIO as isize), || unsafe { CqObject::of(cq).read(Reader { buf, count, from }) })
}

unsafe extern "C" fn sread(
    cq: *mut CqFid,
    buf: *mut c_void,
    count: usize,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the same contract.
    unsafe { sreadfrom(cq, buf, count, std::ptr::null_mut(), std::ptr::null(), timeout) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut CqFid,
    buf: *mut c_void,
    count: usize,
    from: *mut Addr,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    guard(-(EIO as isize), || {
        // SAFETY: a live queue of ours.
        let inner = unsafe { CqObject::of(cq) };
        if inner.wait == WAIT_NONE {
            return -(EINVAL as isize);
        }
        // SAFETY: room for `count` entries and addresses.
        unsafe { inner.wait(Reader { buf, count, from }, timeout) }
    })
}

unsafe extern "C" fn readerr(cq: *mut CqFid, out: *mut CqErrEntry, _flags: u64) -> isize {
    guard(-(EIO as isize), || {
        // SAFETY: a live queue of ours, and a whole entry of the caller's or null.
        let (inner, out) = unsafe { (CqObject::of(cq), out.as_mut()) };
        let Some(out) = out else { return -(EINVAL as isize) };
        let mut state = inner.domain.lock();
        let Some(queue) = state.queues.cqs.get_mut(inner.at) else { return -(EINVAL as isize) };
        let Some(failure) = queue.entries.front().and_then(|entry| entry.failure) else { return -(EAGAIN as isize) };
        let Some(entry) = queue.entries.pop_front() else { return -(EAGAIN as isize) };
        out.entry = entry.completion;
        out.olen = failure.overflow;
        out.err = failure.errno;
        out.prov_errno = failure.detail;
        // The caller's buffer for details, of which there are none.
        out.err_data_size = 0;
        1
    })
}

unsafe extern "C" fn signal(cq: *mut CqFid) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live queue of ours.
        let inner = unsafe { CqObject::of(cq) };
        if inner.wait == WAIT_NONE {
            return -EINVAL;
        }
        if let Some(queue) = inner.domain.lock().queues.cqs.get_mut(inner.at) {
            queue.signaled = true;
            queue.wake();
        }
        0
    })
}

unsafe extern "C" fn strerror(
    _cq: *mut CqFid,
    errno: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the caller's buffer.
    unsafe { error_text(errno, buf, len) }
}
