//! SysWrap: unmodified socket programs over Madrigal.
//!
//! This library is preloaded into a program and stands in front of the C library's socket calls. Every TCP socket stays the real
//! kernel socket it is; what changes is how long its waits poll before they sleep (tier 1, `io::plain`), and, between two wrapped
//! processes of one user on one host, the way its bytes take (tier 2: a ring in shared memory, `state::session`).
//!
//! ```text
//!  hooks       the exported names: a few lines each
//!    |
//!   io         what data calls and waits do
//!    |
//!  lifecycle   how sessions begin and end; close, fork, exec, exit
//!    |
//!  remote      connections to hosts of other sites: through the daemon
//!    |
//!  outcome     how a hook ends
//!    |
//!  state       who owns what: one module for each thing, with its states
//!    |
//!  real        the next library in line
//! ```
//! Each imports only what is below it. Rules: no thread, no I/O in the constructor, no allocation from malloc, no panic, nothing
//! printed; what cannot be done in a ring goes by the kernel as if we were not there, with a named [`madrigal_report::Reason`].
#![allow(unsafe_code)]

mod state;
// Under `shuttle` only `state` is explored: the rest needs the C library, and a process to live in.
#[cfg(not(feature = "shuttle"))]
mod hooks;
#[cfg(not(feature = "shuttle"))]
mod io;
#[cfg(not(feature = "shuttle"))]
mod lifecycle;
#[cfg(not(feature = "shuttle"))]
mod outcome;
#[cfg(not(feature = "shuttle"))]
mod real;
#[cfg(not(feature = "shuttle"))]
mod remote;

#[cfg(not(feature = "shuttle"))]
mod loaded {
    use core::ffi::{c_int, c_void};

    /// Runs when the library is loaded: looks up the functions behind ours and reads the environment. No I/O.
    extern "C" fn start() {
        // SAFETY: a function that lives as long as the program.
        unsafe { __cxa_at_quick_exit(finish_quickly, core::ptr::null_mut()) };
        std::panic::set_hook(Box::new(|_| {}));
        // The clock and the processor's number are looked up at their first use, which may not be in a signal handler.
        let _ = (madrigal_sys::time::now_ns(), madrigal_sys::cpu::current());
        crate::real::find_all();
        crate::state::process::configure();
        crate::state::offers::configure();
        crate::state::tools::detect();
        crate::remote::configure();
    }

    unsafe extern "C" {
        /// What at_quick_exit(3) calls. Whoever registers first is called last.
        fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
    }

    /// Runs when the program calls quick_exit(3).
    extern "C" fn finish_quickly(_: *mut c_void) {
        finish();
    }

    /// Runs when the program returns from main or calls exit(3).
    extern "C" fn finish() {
        crate::lifecycle::fork::before_exit();
    }

    // SAFETY: .init_array and .fini_array hold addresses of functions the loader calls once each.
    #[unsafe(link_section = ".init_array")]
    #[used]
    static START: extern "C" fn() = start;
    // SAFETY: as above.
    #[unsafe(link_section = ".fini_array")]
    #[used]
    static FINISH: extern "C" fn() = finish;
}
