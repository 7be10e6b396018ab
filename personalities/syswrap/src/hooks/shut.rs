//! The end of a direction: shutdown(2).

use core::ffi::c_int;

use madrigal_report::Reason;
use madrigal_sys::Errno;

use super::{fail, guarded_or};
use crate::lifecycle::leave::{Back, leave_for_good, unmix};
use crate::outcome::errno;
use crate::state::registration;
use crate::state::session::Shut;
use crate::state::sock;
use crate::state::socket::view;
use crate::{io, real};

/// shutdown(2): what is in the ring stays there for its reader, the rest goes by TCP.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: see `socket`.
    let real = || unsafe { real::shutdown()(fd, how) };
    let legal = matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR);
    if !legal || !super::is_socket(fd) {
        return real();
    }
    let result = core::cell::Cell::new(None);
    guarded_or((), || {
        let Some(s) = sock::enter(fd).filter(|s| s.may_carry()) else { return };
        if let Some(v) = view(&s, fd) {
            if v.has_last_bytes(how) {
                leave_for_good(&s, fd, Reason::HalfClosed, Back::IfPossible);
            }
            if how != libc::SHUT_WR {
                v.be_deaf();
            }
        }
        leave_for_good(&s, fd, Reason::HalfClosed, Back::Lazily);
        match s.session.shutdown_result(how != libc::SHUT_RD) {
            Shut::ByKernel => {}
            found => {
                // The kernel's shutdown(2) wakes the waiters of the socket, even if it finds nothing to shut: an event for edge-triggered
                // registrations. This direction of it is over, so it sends nothing.
                registration::note_wake(&*s);
                // SAFETY: see `socket`.
                let _ = unsafe { real::shutdown()(fd, libc::SHUT_RD) };
                registration::report_wake(&*s);
                return result.set(Some(if found == Shut::Half { 0 } else { fail(Errno::NOTCONN) }));
            }
        }
        let mut mute = false;
        if how != libc::SHUT_RD
            && let Some(v) = view(&s, fd)
        {
            let sending = v.s.wlock.lock();
            if !sending.nested() {
                unmix(&v);
            }
            mute = v.be_mute();
        }
        // The end of the stream comes behind what the peer may just be putting back into its queue.
        let done = io::send::in_order(&s, fd, real);
        // To the kernel both ends are shut, for it has no more than doorbells in front of the peer's.
        let waits = || errno() == libc::ENOTCONN && view(&s, fd).is_some_and(|v| v.end_waits_for_room());
        result.set(Some(if done != 0 && waits() { 0 } else { done }));
        if mute
            && done != 0
            && let Some(v) = view(&s, fd)
        {
            v.was_not_shut();
        }
    });
    result.get().unwrap_or_else(real)
}
