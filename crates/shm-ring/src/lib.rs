//! Memory that two processes of one user share, and how bytes pass through it.
//!
//! * [`layout`], [`arena`], [`slot`]: what lies where, and which side may use it;
//! * [`ring`], [`express`]: how bytes pass, many or few.
//!
//! The `shm` driver makes connections of these, and SysWrap uses them under the TCP connections of unmodified programs. Nothing that the
//! other process wrote is trusted.
#![allow(unsafe_code)]

pub mod arena;
pub mod express;
pub mod layout;
pub mod ring;
pub mod slot;
mod units;
