//! SysWrap: unmodified socket programs over Madrigal.
//!
//! This library is preloaded into a program and stands in front of the C library's socket calls. Every TCP socket stays the real
//! kernel socket it is; what changes is how long its waits look before they sleep (tier 1, `plain`), and, between two wrapped
//! processes of one user on one host, the way its bytes take (tier 2: a ring in shared memory, `session`).
//!
//! ```text
//!  hooks/*       the exported names: a few lines each, ending in an Outcome
//!    |
//!  recv send     data calls        epoll poll   waits         close fork     ends of descriptors, new processes
//!    |    |                          |
//!  upgrade -> session -> leave     a connection's way into a ring, through it, and back to the kernel
//!  route                           connections to hosts of other sites: through the daemon
//!    |            |
//!  offers arenas holders           rendezvous; shared memory; who else holds a socket
//!  sock table slab real process    the socket behind a descriptor; memory outside malloc; the next library; this process
//! ```
//! Rules: no thread, no I/O in the constructor, no allocation from malloc, no panic, nothing printed; what cannot be done in a ring
//! goes by the kernel as if we were not there, with a named [`madrigal_report::Reason`].
#![allow(unsafe_code)]

mod arenas;
mod buffers;
mod close;
mod defer;
mod epoll;
mod fork;
mod holders;
mod hooks;
mod leave;
mod near;
mod offers;
mod outcome;
mod plain;
mod poll;
mod process;
mod real;
mod recv;
mod route;
mod send;
mod session;
mod slab;
mod sock;
mod table;
mod upgrade;

/// Runs when the library is loaded: looks up the functions behind ours and reads the environment. No I/O.
extern "C" fn start() {
    std::panic::set_hook(Box::new(|_| {}));
    real::find_all();
    process::configure();
}

/// Runs when the program returns from main or calls exit(3).
extern "C" fn finish() {
    fork::before_exit();
}

// SAFETY: .init_array and .fini_array hold addresses of functions the loader calls once each.
#[unsafe(link_section = ".init_array")]
#[used]
static START: extern "C" fn() = start;
// SAFETY: as above.
#[unsafe(link_section = ".fini_array")]
#[used]
static FINISH: extern "C" fn() = finish;
