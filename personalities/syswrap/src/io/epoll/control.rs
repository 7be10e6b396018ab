//! epoll_ctl(2).

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, epoll_event};
use madrigal_report::Reason;
use madrigal_sys::Errno;

use super::nested::{plain_in_watched, watch};
use crate::lifecycle::leave::{Back, leave_for_good};
use crate::state::sock::{self, mode};
use crate::state::{registration, sets};

/// epoll_ctl(2); `call` is the kernel's.
pub(crate) fn control(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: Option<epoll_event>,
    call: impl Fn() -> Result<(), Errno>,
) -> Result<(), Errno> {
    let set = sets::enter(epfd);
    if let (Some(set), Some(event), true) = (&set, event, op != EPOLL_CTL_DEL) {
        set.registry.is_used_again(event.u64);
    }
    if let Some(s) = sock::enter(fd) {
        let watched =
            || op == EPOLL_CTL_ADD && set.as_ref().is_some_and(|set| set.registry.watched.load(Ordering::SeqCst) != 0);
        // First, for a doorbell would make the set look ready.
        if watched() {
            plain_in_watched(&s, fd);
        }
        let follow = || set.as_ref().and_then(|set| registration::control((&**set, epfd), (&*s, fd), op, event, &call));
        let known = follow();
        // SYNC: behind the addition: either it is seen here, or the thread that begins to watch the set sees the member.
        if watched() {
            plain_in_watched(&s, fd);
        }
        if let Some(set) = set.as_ref().filter(|_| s.mode() != mode::SESSION) {
            set.ask_kernel_soon();
        }
        return known.unwrap_or_else(|| {
            // A set that we do not know, or one too many, would show doorbells.
            leave_for_good(&s, fd, Reason::EventSet, Back::Beside);
            // Bytes may be left in the ring.
            follow().unwrap_or_else(&call)
        });
    }
    let inner = sets::enter(fd);
    if let Some(inner) = &inner {
        watch(inner);
    }
    call()?;
    if let Some(set) = &set {
        set.ask_kernel_soon();
    }
    if let (Some(outer), Some(inner)) = (set, inner) {
        outer.nest(inner.index(), event.filter(|_| op != EPOLL_CTL_DEL));
    }
    Ok(())
}
