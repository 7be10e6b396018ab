//! The end of a session: the socket is an ordinary one again, and its slot is given back.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use madrigal_drivers::shm::layout::Block;
use madrigal_report::{Path, Reason};
use madrigal_sys::raw;

use super::phase;
use crate::arenas::Lease;
use crate::sock::{Sock, flag, mode};
use crate::{epoll, holders};

/// Ends the session if both directions are over and nobody else is at it: the socket is an ordinary one again.
pub(crate) fn retire(s: &Sock, fd: c_int) {
    let over = s.session.rx() == phase::DONE && s.session.tx() == phase::DONE;
    if s.mode() != mode::SESSION || !over || !s.only_user() {
        return;
    }
    let nodelay: c_int = s.session.nodelay.load(Ordering::Relaxed) as c_int;
    let _ = raw::set_sockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &nodelay);
    if s.has(flag::CORK) {
        let _ = raw::set_sockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, &1);
    }
    epoll::restore(s);
    release(s);
    crate::upgrade::back_off(s);
    s.mode.store(mode::KERNEL, Ordering::Release);
}

/// Leaves the slot, if there is one. Called when nobody uses the session: on retirement, or when the socket is freed.
pub(crate) fn release(s: &Sock) {
    let Some(lease) = s.session.lease() else { return };
    let Some(slot) = s.session.slot() else { return };
    let index = s.session.slot_index();
    s.session.slot.store(core::ptr::null_mut(), Ordering::Release);
    s.session.lease.store(0, Ordering::Relaxed);
    // Another process may still drain this slot (after a fork): the last of them says that our side has left.
    if holders::is_sole(s) && slot.left.fetch_add(1, Ordering::AcqRel) == 1 {
        for dir in &slot.dir {
            if let Some(block) = Block::unpack(dir.w.block.load(Ordering::Relaxed), lease.arena().memory().size()) {
                lease.arena().give_block(block);
            }
        }
    }
    lease.leave(index);
}

/// Goes back to the kernel for good or for a while: tells the report why.
pub(crate) fn tell_back(s: &Sock, reason: Reason) {
    s.tell(Path::Tcp, Some(reason));
}

/// Forgets a slot that was looked at but not attached to.
pub(crate) fn release_unused(s: &Sock, lease: &Lease) {
    lease.uncount();
    s.session.clear();
}
