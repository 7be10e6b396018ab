//! A sleep in poll(2) on a file, and not on its number.
//!
//! poll(2) looks its numbers up once more when it wakes. If another thread closes a number meanwhile, and the number soon belongs to
//! another file, a sleep in poll(2) would miss its event, while a receive in the kernel holds the file. An event set holds files, as long
//! as one descriptor of them is open: the socket of a call that sleeps has one ([`crate::state::callers`]).

use core::ffi::c_int;
use std::os::fd::AsRawFd;

use libc::epoll_event;
use madrigal_sys::{fd, raw};
use rustix::event::epoll;

use crate::real;
use crate::state::{process, table};

/// An event set of our own with one file; [`super::handlers::close_own`] closes it. `None`: it is not needed, for no other thread could
/// close the number; or it cannot be made; or a sandbox may kill for calls that the program does not make.
pub(crate) fn set_of(fd: c_int, events: i16) -> Option<c_int> {
    if !real::may_have_threads() || process::is_plain() {
        return None;
    }
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).map(fd::Fd::from).ok()?;
    raw::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, u32::from(events as u16), 0).ok()?;
    let set = fd::move_high(set).into_number();
    table::hide(set);
    Some(set)
}

/// The events of the file of such a set, which has woken a sleep for `events`.
pub(crate) fn reported_by(set: c_int, events: i16) -> usize {
    let mut reported = epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event, and no mask.
    let count = unsafe { raw::epoll_pwait(set, &raw mut reported, 1, 0, core::ptr::null()) };
    if count == Ok(1) { reported.events as usize } else { usize::from(events as u16) }
}
