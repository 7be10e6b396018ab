//! Event queues: events of objects, and entries that programs write themselves.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::abi::errno::{EAGAIN, EAVAIL, EINVAL, EIO, ENOMEM, ENOSYS, ETOOSMALL};
use crate::abi::flags::{CLASS_EQ, GETWAIT, PEEK, WAIT_FD, WAIT_NONE, WAIT_UNSPEC, WRITE};
use crate::abi::object::{FabricFid, Fid, Ops};
use crate::abi::queue::{EqAttr, EqEntry, EqErrEntry, EqFid, EqOps};
use crate::guard::{guard, lock};
use crate::object::{Object, fid, ops, put_text, store};

type EqObject = Object<EqFid, Arc<Events>>;

/// What waits in an event queue.
pub(crate) struct Events {
    queue: Mutex<VecDeque<Event>>,
    more: Condvar,
    bell: Option<OwnedFd>,
    writable: bool,
    waits: bool,
}

enum Event {
    /// A number of `enum fi_eq_event`, and the bytes that go with it.
    Plain(u32, Vec<u8>),
    /// The object, its context, the data, and the errno.
    Failed { fid: usize, context: usize, data: u64, errno: i32 },
}

impl Events {
    /// Adds an event of an object.
    pub(crate) fn add(&self, event: u32, entry: &EqEntry) {
        // SAFETY: a structure of three words without padding.
        let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(entry).cast::<u8>(), size_of::<EqEntry>()) };
        self.push(Event::Plain(event, bytes.to_vec()));
    }

    /// Adds an error of an object.
    pub(crate) fn fail(&self, fid: *mut Fid, context: *mut c_void, data: u64, errno: i32) {
        self.push(Event::Failed { fid: fid as usize, context: context as usize, data, errno });
    }

    fn push(&self, event: Event) {
        lock(&self.queue).push_back(event);
        self.more.notify_all();
        if let Some(bell) = &self.bell {
            // It is ready already if it cannot count further.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// Takes out the first event, or only shows it.
    fn read(&self, keep: bool, room: usize) -> Result<(u32, Vec<u8>), i32> {
        let mut queue = lock(&self.queue);
        match queue.front() {
            None => return Err(EAGAIN),
            Some(Event::Failed { .. }) => return Err(EAVAIL),
            Some(Event::Plain(_, bytes)) if bytes.len() > room => return Err(ETOOSMALL),
            Some(Event::Plain(event, bytes)) if keep => return Ok((*event, bytes.clone())),
            Some(Event::Plain(..)) => {}
        }
        let first = queue.pop_front();
        self.quiet(&queue);
        match first {
            Some(Event::Plain(event, bytes)) => Ok((event, bytes)),
            _ => Err(EAGAIN),
        }
    }

    /// Silences the bell once nothing is left.
    fn quiet(&self, queue: &VecDeque<Event>) {
        if let Some(bell) = self.bell.as_ref().filter(|_| queue.is_empty()) {
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
    }

    /// Waits until there is something; `None`: for ever.
    fn wait(&self, limit: Option<Duration>) {
        let queue = lock(&self.queue);
        let Some(limit) = limit else {
            drop(self.more.wait_while(queue, |queue| queue.is_empty()));
            return;
        };
        let end = Instant::now() + limit;
        let left = end.saturating_duration_since(Instant::now());
        drop(self.more.wait_timeout_while(queue, left, |queue| queue.is_empty()));
    }
}

static OPS: Ops = Ops { control, ..ops(close) };

static EQ: EqOps = EqOps { size: size_of::<EqOps>(), read, readerr, write, sread, strerror };

/// `fi_eq_open`
pub(crate) unsafe extern "C" fn open(
    _fabric: *mut FabricFid,
    attr: *mut EqAttr,
    eq: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    guard(-ENOMEM, || {
        // SAFETY: null or a whole structure.
        let (flags, wait) = unsafe { attr.as_ref() }.map_or((0, WAIT_NONE), |attr| (attr.flags, attr.wait_obj));
        let bell = match wait {
            WAIT_NONE => None,
            WAIT_UNSPEC | WAIT_FD => match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
                Ok(bell) => Some(bell),
                Err(errno) => return -errno.raw_os_error(),
            },
            _ => return -ENOSYS,
        };
        let events = Events {
            queue: Mutex::default(),
            more: Condvar::new(),
            bell,
            writable: flags & WRITE != 0,
            waits: wait != WAIT_NONE,
        };
        let front = EqFid { fid: fid(CLASS_EQ, context, &OPS), ops: &EQ };
        let made = EqObject::give(front, Arc::new(events));
        // SAFETY: a place for the result, by the caller.
        unsafe { store(eq, made.cast()) }
    })
}

/// The events behind a queue's C object, for objects that add to it.
///
/// # Safety
/// A live event queue of ours.
pub(crate) unsafe fn events(eq: *mut Fid) -> Arc<Events> {
    // SAFETY: by the caller.
    Arc::clone(unsafe { EqObject::of(eq) })
}

/// Whether there is something to read.
///
/// # Safety
/// A live event queue of ours.
pub(crate) unsafe fn ready(eq: *mut Fid) -> bool {
    // SAFETY: by the caller.
    !lock(&unsafe { EqObject::of(eq) }.queue).is_empty()
}

unsafe extern "C" fn close(eq: *mut Fid) -> c_int {
    // SAFETY: a live event queue of ours, given up by the caller.
    let taken = guard(None, || Some(unsafe { EqObject::take(eq) }));
    if taken.is_some() { 0 } else { -EIO }
}

unsafe extern "C" fn control(eq: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live event queue of ours.
        let events = unsafe { EqObject::of(eq) };
        match (command, &events.bell) {
            // SAFETY: the caller offers a place for a descriptor.
            (GETWAIT, Some(bell)) => unsafe { store(arg.cast::<c_int>(), bell.as_fd().as_raw_fd()) },
            _ => -ENOSYS,
        }
    })
}

/// Reads into the caller's memory.
///
/// # Safety
/// `event` may be written, and `len` bytes from `buf`.
unsafe fn read_into(events: &Events, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
    match events.read(flags & PEEK != 0, len) {
        Err(errno) => -(errno as isize),
        Ok((number, bytes)) => {
            // SAFETY: by the caller; the bytes fit, `read` compared them with `len`.
            unsafe {
                store(event, number);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), bytes.len());
            }
            bytes.len() as isize
        }
    }
}

unsafe extern "C" fn read(eq: *mut EqFid, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
    guard(-(EIO as isize), || {
        // SAFETY: a live event queue of ours, and places to write to.
        unsafe { read_into(EqObject::of(eq), event, buf, len, flags) }
    })
}

unsafe extern "C" fn sread(
    eq: *mut EqFid,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    guard(-(EIO as isize), || {
        // SAFETY: a live event queue of ours.
        let events = unsafe { EqObject::of(eq) };
        if !events.waits {
            return -(EINVAL as isize);
        }
        events.wait(u64::try_from(timeout).ok().map(Duration::from_millis));
        // SAFETY: places to write to, by the caller.
        unsafe { read_into(events, event, buf, len, flags) }
    })
}

unsafe extern "C" fn readerr(eq: *mut EqFid, entry: *mut EqErrEntry, flags: u64) -> isize {
    guard(-(EIO as isize), || {
        // SAFETY: a live event queue of ours.
        let events = unsafe { EqObject::of(eq) };
        let mut queue = lock(&events.queue);
        let Some(&Event::Failed { fid, context, data, errno }) = queue.front() else { return -(EAGAIN as isize) };
        if flags & PEEK == 0 {
            queue.pop_front();
            events.quiet(&queue);
        }
        // SAFETY: null or a whole entry of the caller's.
        let Some(entry) = (unsafe { entry.as_mut() }) else { return -(EINVAL as isize) };
        entry.fid = fid as *mut Fid;
        entry.context = context as *mut c_void;
        entry.data = data;
        entry.err = errno;
        entry.prov_errno = errno;
        entry.err_data = std::ptr::null_mut();
        entry.err_data_size = 0;
        size_of::<EqErrEntry>() as isize
    })
}

unsafe extern "C" fn write(eq: *mut EqFid, event: u32, buf: *const c_void, len: usize, _flags: u64) -> isize {
    guard(-(EIO as isize), || {
        // SAFETY: a live event queue of ours.
        let events = unsafe { EqObject::of(eq) };
        if !events.writable || buf.is_null() {
            return -(EINVAL as isize);
        }
        // SAFETY: `len` bytes of the caller's.
        let bytes = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) };
        events.push(Event::Plain(event, bytes.to_vec()));
        len as isize
    })
}

unsafe extern "C" fn strerror(
    _eq: *mut EqFid,
    errno: c_int,
    _data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: the caller's buffer.
    unsafe { error_text(errno, buf, len) }
}

/// The text of an error number of ours, also copied to the caller's buffer, if there is one.
///
/// # Safety
/// `buf` is null or `len` bytes that may be written.
pub(crate) unsafe fn error_text(errno: c_int, buf: *mut c_char, len: usize) -> *const c_char {
    use crate::abi::errno::{ECANCELED, EHOSTUNREACH, ENOKEY, ENOMSG, ETRUNC};
    let text: &'static CStr = crate::worker::text_of(errno).unwrap_or(match errno {
        ECANCELED => c"cancelled",
        ENOMSG => c"no such message",
        ETRUNC => c"the message was longer than the buffer",
        EHOSTUNREACH => c"the peer cannot be reached",
        ENOKEY => c"no memory region has that key, or it is too small, or does not allow this",
        _ => c"see fi_strerror",
    });
    // SAFETY: by the caller.
    unsafe { put_text(&text.to_string_lossy(), buf, len) };
    text.as_ptr()
}
