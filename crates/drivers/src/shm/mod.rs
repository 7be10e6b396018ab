//! The `shm` driver: two processes of one user on one host.
//!
//! * `driver`: connections made of the rings of [`madrigal_shm_ring`], found through a Unix socket; `early`: closed before they are
//!   accepted;
//! * `inbox`: messages between many processes.
#![allow(unsafe_code)]

mod directory;
pub(crate) mod driver;
mod early;
mod ends;
mod hello;
#[cfg(all(test, not(feature = "shuttle")))]
mod hostile;
pub(crate) mod inbox;
mod link;
mod shared;
