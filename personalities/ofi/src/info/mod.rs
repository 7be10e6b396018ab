//! What we can do: the answer to `fi_getinfo`.

mod build;
mod eager;
mod hints;
mod offered;
pub(crate) mod place;

use std::ffi::{c_char, c_int};

use crate::abi::errno::{EINVAL, ENODATA};
use crate::abi::info::Info;
use crate::guard::guard;

pub(crate) use build::NAME;
pub(crate) use hints::bytes;
pub(crate) use offered::{INJECT, MAX_MESSAGE, PIECES, QUEUE};

/// `fi_getinfo`. libfabric calls it with the program's request, and again for its utility providers, which request kinds of endpoints that
/// we do not have: these requests are refused without a log line.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    info: *mut *mut Info,
) -> c_int {
    guard(-ENODATA, || {
        if info.is_null() {
            return -EINVAL;
        }
        if madrigal::fabric::is_asking() {
            // Our own driver requests providers below us.
            return -ENODATA;
        }
        // SAFETY: libfabric passes null or structures that live during the call, linked as its manual says.
        let wanted = unsafe { hints::read(version, hints.as_ref()) };
        let Some(mut wanted) = wanted else { return -ENODATA };
        // SAFETY: libfabric passes null or strings that end and live during the call.
        let names = unsafe { (place::text(node), place::text(service)) };
        if let Err(error) = place::find(&mut wanted, names, flags) {
            return -error;
        }
        match build::info(&wanted) {
            Some(found) => {
                // SAFETY: not null, as checked; libfabric offers it to be written.
                unsafe { info.write(found) };
                0
            }
            None => -crate::abi::errno::ENOMEM,
        }
    })
}
