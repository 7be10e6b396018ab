//! C objects: the structure that libfabric knows, and our own data behind it.
//!
//! An object is made by [`Object::give`], from then on only shared, and freed by [`Object::take`] when it is closed. Calling a function
//! with a closed object is the caller's fault, as with any other provider.

use std::ffi::{c_char, c_int, c_void};

use crate::abi::errno::{EINVAL, ENOSYS};
use crate::abi::object::{Fid, Ops};

/// `front` begins with a [`Fid`].
#[repr(C)]
pub(crate) struct Object<F, T> {
    front: F,
    inner: T,
}

impl<F, T: Sync> Object<F, T> {
    /// Makes it and gives its address to C.
    pub(crate) fn give(front: F, inner: T) -> *mut F {
        Box::into_raw(Box::new(Self { front, inner })).cast()
    }

    /// What is ours behind an object.
    ///
    /// # Safety
    /// `at` came from [`Object::give`] of the same type and is not closed while the result is used.
    #[inline]
    pub(crate) unsafe fn of<'a, P>(at: *const P) -> &'a T {
        // SAFETY: by the caller; after `give` it is only ever shared.
        unsafe { &(*at.cast::<Self>()).inner }
    }

    /// Ends it.
    ///
    /// # Safety
    /// As for [`Object::of`], and `at` is not used again.
    pub(crate) unsafe fn take<P>(at: *mut P) -> T {
        // SAFETY: it was made by `give`, which boxed it, and the caller gives it back once.
        unsafe { Box::from_raw(at.cast::<Self>()) }.inner
    }
}

/// The class of an object, which gives its type.
///
/// # Safety
/// Null or a live object.
pub(crate) unsafe fn class(at: *const Fid) -> usize {
    // SAFETY: by the caller.
    unsafe { at.as_ref() }.map_or(0, |fid| fid.class)
}

/// Writes a result to the caller's place; an error if there is none.
///
/// # Safety
/// Null or a place to write to.
pub(crate) unsafe fn store<T>(at: *mut T, value: T) -> c_int {
    if at.is_null() {
        return -EINVAL;
    }
    // SAFETY: by the caller, not null.
    unsafe { at.write(value) };
    0
}

/// The front of an object.
pub(crate) fn fid(class: usize, context: *mut c_void, ops: &'static Ops) -> Fid {
    Fid { class, context, ops }
}

/// The common functions of an object that does nothing but close.
pub(crate) const fn ops(close: unsafe extern "C" fn(*mut Fid) -> c_int) -> Ops {
    Ops {
        size: size_of::<Ops>(),
        close,
        bind: no_bind,
        control: no_control,
        ops_open: no_ops,
        tostr: no_text,
        ops_set: no_ops,
    }
}

unsafe extern "C" fn no_bind(_fid: *mut Fid, _other: *mut Fid, _flags: u64) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_control(_fid: *mut Fid, _command: c_int, _arg: *mut c_void) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_ops<A>(
    _fid: *mut Fid,
    _name: *const c_char,
    _flags: u64,
    _ops: A,
    _context: *mut c_void,
) -> c_int {
    -ENOSYS
}

unsafe extern "C" fn no_text(_fid: *const Fid, _text: *mut c_char, _len: usize) -> c_int {
    -ENOSYS
}

/// Puts text into a C buffer, cut to fit, and ends it.
///
/// # Safety
/// `at` is null or `len` bytes that may be written.
pub(crate) unsafe fn put_text(text: &str, at: *mut c_char, len: usize) {
    let Some(room) = len.checked_sub(1).filter(|_| !at.is_null()) else { return };
    let count = text.len().min(room);
    // SAFETY: `count` and the zero fit into `len` bytes; by the caller they may be written.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), at.cast(), count);
        at.add(count).write(0);
    }
}
