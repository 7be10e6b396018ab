//! The only place with system calls and unsafe memory.
//!
//! Everything here goes to the kernel directly: through [`rustix`] (whose `linux_raw` backend makes the call itself) or, for
//! the few calls rustix lacks or that take the host program's own pointers, through [`raw`]. Nothing passes through libc, so
//! the engine can live inside a preloaded library without ever meeting its own hooks.
#![allow(unsafe_code)]

pub mod cpu;
pub mod fault;
pub mod fd;
pub mod file;
pub mod lock;
pub mod mem;
pub mod namespace;
pub mod piece;
pub mod process;
pub mod raw;
pub mod recent;
pub mod signals;
pub mod tcp;
pub mod time;
pub mod turn;

pub use rustix::io::Errno;
