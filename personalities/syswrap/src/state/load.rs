//! `/proc/loadavg`, kept open. Waiting threads read it often. Opening a descriptor for each read would take, for a moment, the least free
//! number, which another thread of the program may rely on.

use core::ffi::c_int;
use std::os::fd::AsRawFd as _;

use madrigal_sys::{cpu, fd};

use super::table;

/// Opens it, if it is not open, beyond the program's sight.
pub(crate) fn keep() {
    if cpu::load_fd() >= 0 {
        return;
    }
    let Ok(file) = cpu::open_load().map(fd::move_high) else { return };
    table::hide(file.as_raw_fd());
    cpu::read_load_from(file.into_number());
}

/// The program is out of descriptors: gives up this one. True if there was one.
pub(crate) fn give_up_fd() -> bool {
    table::close_hidden(cpu::read_load_from(-1))
}

/// The program wants that very number, by dup2(2): our descriptor is another one from now on. False: it is not this one.
pub(crate) fn yield_fd(wanted: c_int) -> bool {
    let ours = wanted >= 0 && cpu::load_fd() == wanted;
    if ours {
        cpu::read_load_from(table::move_hidden(wanted));
    }
    ours
}
