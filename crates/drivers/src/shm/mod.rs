//! The `shm` driver, and the shared-memory rings it is made of: two processes of one user on one host.
//!
//! * [`layout`], [`arena`], [`slot`]: what lies where in shared memory, and who may use it;
//! * [`ring`], [`express`]: how bytes pass, many or few;
//! * `driver`: connections made of these, found through a Unix socket;
//! * `inbox`: messages between many processes.
//!
//! SysWrap uses layout, arena and ring under the TCP connections of unmodified programs.
#![allow(unsafe_code)]

pub mod arena;
mod directory;
pub(crate) mod driver;
mod ends;
pub mod express;
mod hello;
#[cfg(all(test, not(feature = "shuttle")))]
mod hostile;
pub(crate) mod inbox;
pub mod layout;
mod link;
pub mod ring;
pub mod slot;
mod units;
