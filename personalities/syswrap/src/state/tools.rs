//! Tools that trace this process, as far as they limit what this library may do in it.
//!
//! A race detector orders two threads by the calls on sockets that it sees. It sees no bytes that go by a ring, so it would report a race
//! between what one thread wrote before it sent, and another read after it received. So under one the process runs plain: every call is the
//! program's own, and passes the detector. Valgrind lacks the latest system calls, and prints that on standard error.

use core::ffi::CStr;

use madrigal_report::Reason;

use super::process;

/// The entry of ThreadSanitizer's runtime, whether it is a library or part of the program.
const THREAD_SANITIZER: &CStr = c"__tsan_init";
/// What valgrind preloads, whatever its tool; and what those of its tools preload that detect races.
const VALGRIND: &str = "/vgpreload_core";
const RACE_DETECTORS: [&str; 2] = ["/vgpreload_helgrind", "/vgpreload_drd"];

/// Detects such tools; called once, before any hook of this library runs.
pub(crate) fn detect() {
    let preloaded = process::env(c"LD_PRELOAD").unwrap_or("");
    if preloaded.contains(VALGRIND) {
        madrigal_sys::recent::shun();
    }
    if is_defined(THREAD_SANITIZER) || RACE_DETECTORS.iter().any(|tool| preloaded.contains(tool)) {
        process::disable(Reason::RaceDetector);
        process::go_plain();
    }
}

/// Whether the program, or a library it was started with, defines this function.
fn is_defined(function: &CStr) -> bool {
    // SAFETY: a null-terminated name; RTLD_DEFAULT looks in what is loaded.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.as_ptr()) }.is_null()
}
