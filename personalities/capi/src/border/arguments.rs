//! Arguments that come as pointers.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use madrigal_sys::piece::Piece;

use super::types::{MDG_FOREVER, mdg_handler};
use crate::codes::MDG_EINVAL;
use crate::failure::{Failure, note};
use crate::object::{Kind, Object, Room};
use crate::op::{Op, Posted};
use crate::runtime::Runtime;

/// A handler of C's, and its argument.
#[derive(Clone, Copy)]
pub(super) struct Call {
    function: unsafe extern "C" fn(*mut c_void, u64, i64),
    user: *mut c_void,
}

// SAFETY: the pointer is only handed back to the program's function, which the program lets be called from any thread.
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

impl Call {
    /// The handler, if one was given.
    pub(super) fn new(function: mdg_handler, user: *mut c_void) -> Option<Self> {
        function.map(|function| Self { function, user })
    }

    /// Calls it with a result, or with the code of a failure, whose text becomes the last one of this thread.
    pub(super) fn call(self, handle: u64, result: Result<i64, Failure>) {
        let result = result.unwrap_or_else(|failure| i64::from(note(failure)));
        // SAFETY: the program gave us the function and vouches that it may be called with what it gave beside it.
        unsafe { (self.function)(self.user, handle, result) };
    }
}

/// A text that ends with a nul.
///
/// # Safety
/// Null, or a text that stays as it is meanwhile.
pub(super) unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if at.is_null() {
        return Err(Failure::new(MDG_EINVAL, format!("{what} is NULL")));
    }
    // SAFETY: the caller's contract.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| Failure::new(MDG_EINVAL, format!("{what} is not UTF-8")))
}

/// Memory of the program's, lent until the operation is over.
///
/// # Safety
/// As [`Piece::lend`], unless it is null.
#[inline]
pub(super) unsafe fn memory(at: *const c_void, len: usize) -> Result<Piece, Failure> {
    if len == 0 {
        return Ok(Piece::EMPTY);
    }
    if at.is_null() || isize::try_from(len).is_err() {
        return Err(no_memory(len));
    }
    // SAFETY: the caller's contract.
    Ok(unsafe { Piece::lend(at.cast(), len) })
}

#[cold]
fn no_memory(len: usize) -> Failure {
    Failure::new(MDG_EINVAL, format!("the buffer is NULL, or cannot have {len} bytes"))
}

/// The place for a result.
pub(super) struct Place<T>(*mut T);

impl<T> Place<T> {
    /// The place, which must not be null.
    pub(super) fn new(at: *mut T, what: &str) -> Result<Self, Failure> {
        if at.is_null() { Err(Failure::new(MDG_EINVAL, format!("{what} is NULL"))) } else { Ok(Self(at)) }
    }

    /// Puts the result there.
    ///
    /// # Safety
    /// A `T` may be written there.
    pub(super) unsafe fn put(self, value: T) {
        // SAFETY: not null, and the caller's contract.
        unsafe { self.0.write(value) };
    }
}

/// Copies a text and a nul to `len` bytes at `at`, as much as fits; how long the text is.
///
/// # Safety
/// So many bytes may be written there, unless it is null.
pub(super) unsafe fn give_text(at: *mut c_char, len: usize, text: &str) -> Result<i64, Failure> {
    if at.is_null() && len > 0 {
        return Err(Failure::new(MDG_EINVAL, "the buffer is NULL"));
    }
    if let Some(room) = len.checked_sub(1) {
        let mut fits = room.min(text.len());
        while !text.is_char_boundary(fits) {
            fits -= 1;
        }
        // SAFETY: `fits` is less than `len`, and the caller's contract.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), at.cast(), fits) };
        // SAFETY: as above.
        unsafe { at.add(fits).write(0) };
    }
    Ok(text.len() as i64)
}

/// A descriptor of the program's.
///
/// # Safety
/// Open as long as the result is used, unless it is negative.
pub(super) unsafe fn descriptor<'a>(fd: c_int) -> Result<BorrowedFd<'a>, Failure> {
    if fd < 0 {
        return Err(Failure::new(MDG_EINVAL, format!("{fd} is no descriptor")));
    }
    // SAFETY: the caller's contract, and it is not -1.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// How long to wait: a negative time that was computed from a deadline in the past is not taken as a time without end.
#[inline]
pub(super) fn time(ns: i64) -> Result<i64, Failure> {
    if ns < MDG_FOREVER { Err(no_time(ns)) } else { Ok(ns) }
}

#[cold]
fn no_time(ns: i64) -> Failure {
    Failure::new(MDG_EINVAL, format!("{ns} ns is less than no time, and not MDG_FOREVER"))
}

/// Opens something for the program. Its handle goes to `at`. Room for the handle is reserved first, so that nothing is made, or taken from
/// a peer, without a handle.
///
/// # Safety
/// A handle may be written to `at`, unless it is null.
pub(super) unsafe fn opened<K: Kind>(
    at: *mut u64,
    what: &str,
    make: impl FnOnce() -> Result<Object, Failure>,
) -> Result<u64, Failure> {
    let place = Place::new(at, what)?;
    let room = Room::take()?;
    let handle = room.fill::<K>(make()?)?;
    // SAFETY: the caller's contract.
    unsafe { place.put(handle) };
    Ok(handle)
}

/// Exactly one of a handler and a place for the operation's handle is given.
pub(super) fn one_of(handler: Option<Call>, op: *mut u64) -> Result<How, Failure> {
    match (handler, op.is_null()) {
        (Some(call), true) => Ok(How::Call(call)),
        (None, false) => Ok(How::Keep(Kept { place: Place(op), room: Room::take()? })),
        (Some(_), false) => Err(Failure::new(MDG_EINVAL, "both a handler and a place for the operation are given")),
        (None, true) => Err(Failure::new(MDG_EINVAL, "neither a handler nor a place for the operation is given")),
    }
}

/// How a posted operation completes.
pub(super) enum How {
    /// The handler is called.
    Call(Call),
    /// It has a handle.
    Keep(Kept),
}

/// The place for the handle of an operation, and room for it.
pub(super) struct Kept {
    place: Place<u64>,
    room: Room,
}

impl Kept {
    /// Gives the program the handle of an operation that was posted. On an error it is taken back.
    ///
    /// # Safety
    /// A handle may be written to the place.
    pub(super) unsafe fn give(self, runtime: &Arc<Runtime>, posted: Posted) -> Result<(), Failure> {
        let handle = self.room.fill::<Op>(Object::Op(Box::new(Op::new(runtime, posted))))?;
        // SAFETY: the caller's contract.
        unsafe { self.place.put(handle) };
        Ok(())
    }
}
