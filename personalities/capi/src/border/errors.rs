//! What is said of errors. These calls, and mdg_version(), may be made in a forked child, too.

use core::ffi::{c_char, c_int};

use crate::codes::meaning;
use crate::failure::{last_errno, last_text};

/// What a code means, in one sentence: for any number, never NULL. The text is static. Does not block; in a forked child, too.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_strerror(code: c_int) -> *const c_char {
    meaning(code).as_ptr()
}

/// Why the last call of this thread that failed did so: one sentence that names the two ends, or the address, and the errno where there
/// is one; empty before any failed. Results of operations that are negative count as failed calls. The text is the library's and is good
/// until the next call of this thread fails, or the thread ends. Does not block; in a forked child, too.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_error_text() -> *const c_char {
    last_text()
}

/// The errno (errno(3)) that belongs to mdg_error_text(); 0 where there is none. Does not block; in a forked child, too.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_error_number() -> c_int {
    last_errno()
}
