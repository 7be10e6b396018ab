//! What is set on a socket, as the kernel has it: another process may have set it, one that was given the socket before or one that shared it.

use core::ffi::c_int;

use madrigal_base::sync::Ordering;
use madrigal_report::Reason;
use madrigal_sys::{Errno, raw};

use super::{Sock, flag, mode};

/// Options that only the kernel can honour, and that it shows as a number: level, name, and the number where they are not set.
const NUMBERS: &[(c_int, c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 0),
    (libc::SOL_SOCKET, SO_TIMESTAMP_NEW, 0),
    (libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW, 0),
    (libc::SOL_SOCKET, SO_TIMESTAMPING_NEW, 0),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, 0),
    (libc::SOL_SOCKET, libc::SO_SELECT_ERR_QUEUE, 0),
    (libc::SOL_SOCKET, libc::SO_MARK, 0),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1),
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, -1),
    // The first word is the clock, of which one has this number: see below.
    (libc::SOL_SOCKET, libc::SO_TXTIME, 0),
    (libc::IPPROTO_TCP, TCP_INQ, 0),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, 0),
];
/// Those that take a connection from rings whatever the value begins with.
const OTHERS: &[(c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_TXTIME),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
    (libc::IPPROTO_TCP, libc::TCP_ULP),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG),
    (libc::IPPROTO_TCP, TCP_FASTOPEN_CONNECT),
    (libc::IPPROTO_TCP, TCP_AO_ADD_KEY),
];
/// asm-generic/socket.h.
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;
const SO_GET_FILTER: c_int = libc::SO_ATTACH_FILTER;
/// linux/tcp.h.
const TCP_INQ: c_int = 36;
const TCP_FASTOPEN_CONNECT: c_int = 30;
const TCP_AO_ADD_KEY: c_int = 38;

/// Whether only the kernel can honour an option that is set to a value with this first word.
pub(crate) fn is_kernels(level: c_int, name: c_int, first: c_int) -> bool {
    OTHERS.contains(&(level, name))
        || NUMBERS.iter().any(|&(of, number, unset)| (of, number) == (level, name) && first != unset)
}

/// Whether the kernel has such an option.
fn has_kernels(fd: c_int) -> bool {
    let set = |&(level, name, unset): &(c_int, c_int, c_int)| {
        raw::sockopt_int(fd, level, name).is_ok_and(|number| number != unset)
    };
    // How long the filter is; one that is not shown is refused.
    let length = || raw::sockopt(fd, libc::SOL_SOCKET, SO_GET_FILTER, &mut [0u8; 0]);
    let filters = || matches!(length(), Ok(1..) | Err(Errno::ACCESS));
    let passed_on = || raw::sockopt(fd, libc::IPPROTO_TCP, libc::TCP_ULP, &mut [0u8; 16]).is_ok_and(|len| len > 0);
    NUMBERS.iter().any(set) || filters() || passed_on()
}

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
        let corked = raw::sockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_CORK).unwrap_or(0) != 0;
        self.session.corked.store(corked.into(), Ordering::Relaxed);
        let low_water = is_low_water(raw::sockopt_int(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1));
        self.set_flag(flag::LOW_WATER, low_water);
        if low_water {
            self.set_never(Reason::LowWater);
        }
        if has_kernels(fd) {
            self.set_never(Reason::Option);
        }
        self.set_flag(flag::OPTIONS_UNKNOWN, false);
    }
}

/// Whether a receive waits for more than one byte; less than none means as many as can be.
pub(crate) fn is_low_water(value: c_int) -> bool {
    !matches!(value, 0 | 1)
}
