//! What is set on a socket, as the kernel has it: another process may have set it, one that was given the socket before or one that shared it.

use core::ffi::c_int;

use madrigal_base::sync::Ordering;
use madrigal_report::Reason;
use madrigal_sys::raw;

use super::{Sock, flag, mode};

/// Options that only the kernel can honour, and that it shows as a number which is 0 unless they are set.
const KERNELS: &[(c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_SELECT_ERR_QUEUE),
    (libc::IPPROTO_TCP, TCP_INQ),
];
/// linux/tcp.h.
pub(crate) const TCP_INQ: c_int = 36;

impl Sock {
    /// Whether calls return at once instead of waiting (`O_NONBLOCK`).
    #[inline]
    pub(crate) fn is_nonblocking(&self) -> bool {
        // Where it is not set the kernel, while it carries the bytes, knows better.
        if self.has(flag::NONBLOCK) || self.mode() == mode::SESSION {
            self.learn_nonblocking();
        }
        self.has(flag::NONBLOCK)
    }

    /// Asks the kernel whether calls wait, where other processes may have changed that.
    #[inline]
    pub(crate) fn learn_nonblocking(&self) {
        if self.holders.was_shared() && !self.is_sole() {
            self.ask_nonblocking();
        }
    }

    #[cold]
    pub(super) fn ask_nonblocking(&self) {
        if let Ok(flags) = raw::fcntl(self.fd(), libc::F_GETFL, 0) {
            self.set_flag(flag::NONBLOCK, flags & libc::O_NONBLOCK != 0);
        }
    }

    /// Asks the kernel. While it carries what is sent: `TCP_CORK` is among it.
    pub(crate) fn learn_options(&self, fd: c_int) {
        let limited = |name| {
            let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
            raw::sockopt(fd, libc::SOL_SOCKET, name, &mut time).is_ok() && (time.tv_sec, time.tv_usec) != (0, 0)
        };
        self.set_flag(flag::RCVTIMEO, limited(libc::SO_RCVTIMEO));
        self.set_flag(flag::SNDTIMEO, limited(libc::SO_SNDTIMEO));
        let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
        let known = raw::sockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger).is_ok();
        self.set_flag(flag::LINGER0, known && linger.l_onoff != 0 && linger.l_linger == 0);
        let number = |(level, name)| raw::sockopt_int(fd, level, name).unwrap_or(0);
        self.session.corked.store(u32::from(number((libc::IPPROTO_TCP, libc::TCP_CORK)) != 0), Ordering::Relaxed);
        let low_water = is_low_water(raw::sockopt_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1));
        self.set_flag(flag::LOW_WATER, low_water);
        if low_water {
            self.set_never(Reason::LowWater);
        }
        if KERNELS.iter().any(|option| number(*option) != 0) {
            self.set_never(Reason::Option);
        }
        self.set_flag(flag::OPTIONS_UNKNOWN, false);
    }
}

/// Whether a receive waits for more than one byte; less than none means as many as can be.
pub(crate) fn is_low_water(value: c_int) -> bool {
    !matches!(value, 0 | 1)
}
