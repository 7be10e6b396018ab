//! Error numbers. Those below 256 are errno's.

pub use libc::{
    EAGAIN, EBUSY, ECANCELED, EHOSTUNREACH, EINVAL, EIO, EMSGSIZE, ENODATA, ENOMEM, ENOMSG, ENOPROTOOPT, ENOSYS,
    EOPNOTSUPP,
};

/// The space offered is too small; how much is needed is told.
pub const ETOOSMALL: i32 = 257;
/// Not in this state: for instance, not enabled yet.
pub const EOPBADSTATE: i32 = 258;
/// An error waits to be read.
pub const EAVAIL: i32 = 259;
/// A message was longer than the buffer.
pub const ETRUNC: i32 = 265;
/// No memory region has that key.
pub const ENOKEY: i32 = 266;
/// No address vector is bound.
pub const ENOAV: i32 = 267;
