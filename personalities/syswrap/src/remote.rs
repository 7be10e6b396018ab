//! Connections to hosts of other sites: through this host's daemon, where it says that they are to go there.
//!
//! The program's socket is connected by the kernel, and may move to shared memory as any other then. Its connect(2) goes to a port of the
//! loopback address where the daemon lets sockets wait, and a copy of the descriptor goes to the daemon, which completes the connection, or
//! makes it fail, when it knows (`daemon/src/local/park.rs`). So blocking or not, by poll, epoll or signals, the program sees its own
//! connect end. Only names are corrected here: getpeername(2) returns what the program asked for, and an error is the one of the far end.
//!
//! `madrigal exec` says where the daemon is; without it, nothing here costs more than one branch in connect(2).

mod ask;
mod hosts;

use core::ffi::{CStr, c_char, c_int};
use core::fmt::Write as _;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use madrigal_proto::hosts::How;
use madrigal_report::Reason;
use madrigal_sys::process::StackPath;
use madrigal_sys::{Errno, raw, tcp};

use crate::outcome::{errno, set_errno};
use crate::state::routed::{Asked, Routed, stage};
use crate::state::sock::{self, Sock, flag, role};
use crate::state::{process, table};

pub(crate) use hosts::{after_fork, configure, is_on, quiesce, resume};

/// `TCP_CLOSE` of `tcpi_state` (linux/tcp.h): it is no connection any more.
const CLOSED: u8 = 7;
/// The daemon's ports that refuse, as it reported them last, of IPv4 and of IPv6.
static REFUSING: AtomicU64 = AtomicU64::new(0);

impl Routed {
    /// What was asked for, as the program wrote it.
    fn name(&self) -> Name {
        let asked = self.asked();
        Name::new(asked.family, Ipv6Addr::from(u128_of(asked.address)), asked.port, asked.scope)
    }
}

fn words(ip: Ipv6Addr) -> [u32; 4] {
    let all = u128::from(ip);
    [(all >> 96) as u32, (all >> 64) as u32, (all >> 32) as u32, all as u32]
}

fn u128_of([a, b, c, d]: [u32; 4]) -> u128 {
    u128::from(a) << 96 | u128::from(b) << 64 | u128::from(c) << 32 | u128::from(d)
}

/// An address and a port, as the kernel reads and writes them.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Name {
    four: sockaddr_in,
    six: sockaddr_in6,
}

impl Name {
    /// IPv4 addresses are given in their mapped form.
    fn new(family: c_int, ip: Ipv6Addr, port: u16, scope: u32) -> Self {
        if family == libc::AF_INET {
            let octets = ip.to_ipv4_mapped().unwrap_or(Ipv4Addr::LOCALHOST).octets();
            let sin_addr = libc::in_addr { s_addr: u32::from_ne_bytes(octets) };
            let four =
                sockaddr_in { sin_family: libc::AF_INET as u16, sin_port: port.to_be(), sin_addr, sin_zero: [0; 8] };
            return Self { four };
        }
        let six = sockaddr_in6 {
            sin6_family: libc::AF_INET6 as u16,
            sin6_port: port.to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
            sin6_scope_id: scope,
        };
        Self { six }
    }

    /// For a system call.
    pub(crate) fn pointer(&self) -> (*const sockaddr, socklen_t) {
        // SAFETY: the family lies at the same place in both, and both were made whole.
        let is_four = c_int::from(unsafe { self.four.sin_family }) == libc::AF_INET;
        let len = if is_four { size_of::<sockaddr_in>() } else { size_of::<sockaddr_in6>() };
        (core::ptr::from_ref(self).cast(), len as socklen_t)
    }

    /// Writes it where getpeername(2) would.
    ///
    /// # Safety
    /// As for getpeername(2): `addr` has room for `*len` bytes.
    unsafe fn write(&self, addr: *mut sockaddr, len: *mut socklen_t) {
        let (from, whole) = self.pointer();
        // SAFETY: the caller's contract.
        let room = unsafe { *len }.min(whole);
        // SAFETY: as above; `self` is at least `whole` bytes.
        unsafe { core::ptr::copy_nonoverlapping(from.cast::<u8>(), addr.cast::<u8>(), room as usize) };
        // SAFETY: as above.
        unsafe { *len = whole };
    }
}

/// What a program wants to connect to.
struct Target {
    family: c_int,
    raw: Ipv6Addr,
    scope: u32,
    /// IPv4 as such.
    at: SocketAddr,
}

impl Target {
    /// # Safety
    /// `addr` is readable for `len` bytes, as for connect(2).
    unsafe fn read(addr: *const sockaddr, len: socklen_t) -> Option<Self> {
        if addr.is_null() || (len as usize) < size_of::<sockaddr_in>() {
            return None;
        }
        // SAFETY: the caller's contract; it may be unaligned.
        let four = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
        if c_int::from(four.sin_family) == libc::AF_INET {
            let ip = Ipv4Addr::from(four.sin_addr.s_addr.to_ne_bytes());
            let at = SocketAddr::new(ip.into(), u16::from_be(four.sin_port));
            return Some(Self { family: libc::AF_INET, raw: ip.to_ipv6_mapped(), scope: 0, at });
        }
        if c_int::from(four.sin_family) != libc::AF_INET6 || (len as usize) < size_of::<sockaddr_in6>() {
            return None;
        }
        // SAFETY: as above.
        let six = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
        let raw = Ipv6Addr::from(six.sin6_addr.s6_addr);
        let at = SocketAddr::new(IpAddr::V6(raw).to_canonical(), u16::from_be(six.sin6_port));
        Some(Self { family: libc::AF_INET6, raw, scope: six.sin6_scope_id, at })
    }
}

/// The port that an address of connect(2) names.
///
/// # Safety
/// `addr` is readable for `len` bytes, as for connect(2).
pub(crate) unsafe fn port_of(addr: *const sockaddr, len: socklen_t) -> Option<u16> {
    // SAFETY: the caller's contract.
    unsafe { Target::read(addr, len) }.map(|target| target.at.port())
}

/// What connect(2) does instead of what the program asks for.
pub(crate) enum Redirect {
    /// It goes there; then [`after`].
    To(Name),
    /// It fails.
    Fail(Errno),
}

/// Whether connect(2) of a socket does something else. `None`: what the program asks for.
///
/// # Safety
/// `addr` is readable for `len` bytes, as for connect(2).
#[cold]
pub(crate) unsafe fn redirect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Option<Redirect> {
    if process::is_plain() {
        return None;
    }
    let s = sock::enter(fd)?;
    // SAFETY: the caller's contract.
    let Some(to) = (unsafe { Target::read(addr, len) }) else {
        s.routed.clear();
        return None;
    };
    if s.routed.stage() != stage::NONE {
        if s.routed.stage() == stage::PENDING
            && tcp::info(fd).is_ok_and(|info| info.state == CLOSED)
            && let Some(verdict) = ask::verdict(fd, blocks(&s))
        {
            let _ = failed(&s, fd, libc::ECONNREFUSED);
            return Some(Redirect::Fail(verdict));
        }
        // The kernel reports what became of the first connect, whatever it is asked for now. If that was reported already, it refuses.
        let refusing = REFUSING.load(Ordering::Relaxed);
        return Some(Redirect::To(loopback(to.family, is_four(&s), refusing as u16, (refusing >> 16) as u16)));
    }
    if s.role() != role::FRESH || (to.at.ip().is_loopback() && !madrigal_proto::hosts::is_alias(to.at.ip())) {
        return None;
    }
    let host = hosts::by_address(to.at.ip())?;
    let alias = to.at.ip() == IpAddr::V4(host.alias);
    if !alias && !host.how.is_daemon() {
        return None;
    }
    if !process::port_wanted(to.at.port()) {
        return alias.then_some(Redirect::Fail(Errno::HOSTUNREACH));
    }
    // An alias leads nowhere by itself: or rather to this host, which nobody meant. And what has to be enciphered does not go plainly.
    let strict = host.how == How::Enciphered;
    let manner = ask::Manner { blocks: blocks(&s), must: alias || strict };
    match ask::route(fd, host.name(), to.at, manner) {
        Ok(ports) => {
            REFUSING.store(u64::from(ports.refusing[0]) | u64::from(ports.refusing[1]) << 16, Ordering::Relaxed);
            let Target { family, scope, raw, at } = to;
            s.routed.begin(Asked { family, port: at.port(), scope, address: words(raw) });
            s.set_way(Reason::Daemon);
            Some(Redirect::To(loopback(to.family, to.at.is_ipv4(), ports.decoys[0], ports.decoys[1])))
        }
        Err(why) => {
            let hangs = why == Errno::TIMEDOUT;
            let reason = match (manner.must, hangs, strict) {
                (false, ..) => Reason::NoDaemon,
                (_, true, _) => Reason::DaemonHangs,
                (.., true) => Reason::Refused,
                (.., false) => Reason::NoAlias,
            };
            if !manner.must {
                s.set_way(reason);
            }
            manner.must.then(|| {
                if let Some(report) = process::report() {
                    report.refuse(to.raw, to.at.port(), reason, madrigal_sys::time::now_ns());
                }
                Redirect::Fail(if hangs { Errno::TIMEDOUT } else { Errno::HOSTUNREACH })
            })
        }
    }
}

/// Whether the program waits in its calls on a socket.
fn blocks(s: &Sock) -> bool {
    !s.has(flag::NONBLOCK)
}

/// Whether a socket was to be connected to an IPv4 address.
fn is_four(s: &Sock) -> bool {
    Ipv6Addr::from(u128_of(s.routed.asked().address)).to_ipv4_mapped().is_some()
}

/// A port of the loopback address, for a socket of this family.
fn loopback(family: c_int, four: bool, port_four: u16, port_six: u16) -> Name {
    // Without IPv6 here, by IPv4 in its mapped form.
    if four || port_six == 0 {
        Name::new(family, Ipv4Addr::LOCALHOST.to_ipv6_mapped(), port_four, 0)
    } else {
        Name::new(family, Ipv6Addr::LOCALHOST, port_six, 0)
    }
}

/// After a connect(2) that went elsewhere returned `result`; puts the error right.
pub(crate) fn after(fd: c_int, result: c_int) -> c_int {
    let Some(s) = sock::enter(fd) else { return result };
    let reported = errno();
    match (result, reported) {
        (-1, libc::EISCONN) => s.routed.set_done(),
        (-1, libc::EALREADY) => {}
        (0, _) | (-1, libc::EINPROGRESS | libc::EINTR) => {
            if s.role() == role::FRESH {
                s.connected(fd, role::CLIENT);
            }
            if result == 0 {
                s.routed.set_done();
            }
        }
        _ => {
            let code = failed(&s, fd, reported);
            set_errno(code);
            return -1;
        }
    }
    crate::outcome::restore_errno(reported);
    result
}

/// The connect of a socket failed. Returns the error to report now.
fn failed(s: &Sock, fd: c_int, reported: c_int) -> Errno {
    s.routed.clear();
    if s.role() == role::CLIENT {
        s.set_role(role::FRESH);
    }
    // What a blocking connect was woken by; the program gets it once.
    let _ = raw::sockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    let ended = matches!(reported, libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED | libc::ECONNREFUSED);
    let plain = if ended { Errno::CONNREFUSED } else { madrigal_sys::errno_from(reported) };
    if ended && !process::is_plain() { ask::verdict(fd, blocks(s)).unwrap_or(plain) } else { plain }
}

/// The value of `SO_ERROR` where the kernel has an error.
#[cold]
pub(crate) fn error(fd: c_int) -> Option<c_int> {
    let s = sock::enter(fd).filter(|s| s.routed.stage() == stage::PENDING && !process::is_plain())?;
    let verdict = ask::verdict(fd, blocks(&s))?;
    s.routed.clear();
    s.set_role(role::FRESH);
    Some(verdict.raw_os_error())
}

/// Corrects what getpeername(2) (`peer`) or getsockname(2) has returned.
///
/// # Safety
/// `addr` and `len` are as the kernel has just filled them, and `room` is what `*len` was before.
#[cold]
pub(crate) unsafe fn rename(fd: c_int, peer: bool, addr: *mut sockaddr, len: *mut socklen_t, room: socklen_t) {
    let Some(s) = sock::enter(fd).filter(|s| s.routed.stage() != stage::NONE) else { return };
    let name = if peer {
        s.routed.name()
    } else if process::is_plain() {
        // What this host is called would have to be read.
        return;
    } else {
        // SAFETY: the caller's contract: the kernel has filled it.
        let Some(at) = (unsafe { Target::read(addr, room.min(*len)) }).filter(|at| at.at.ip().is_loopback()) else {
            return;
        };
        let Some(own) = hosts::own(is_four(&s)) else { return };
        let own = match own {
            IpAddr::V4(four) => four.to_ipv6_mapped(),
            IpAddr::V6(six) => six,
        };
        Name::new(at.family, own, at.at.port(), 0)
    };
    // SAFETY: the caller's contract.
    unsafe { *len = room };
    // SAFETY: as above.
    unsafe { name.write(addr, len) };
}

/// Whether this library returns a descriptor's names.
#[inline]
pub(crate) fn is_routed(fd: c_int) -> bool {
    is_on() && table::get(fd).is_some()
}

/// The addresses of a host of the grid, as texts.
pub(crate) struct Addresses {
    /// IPv4: where it has none of its own, its alias.
    pub(crate) four: StackPath,
    /// IPv6; empty for none.
    pub(crate) six: StackPath,
    /// It has addresses of its own: the system may know better.
    pub(crate) own: bool,
    /// The first one is only for those who take nothing but IPv4.
    pub(crate) six_only: bool,
}

/// Where a host of the grid is, if that is what a name means; not for this host itself.
///
/// # Safety
/// `name` is null or a text that ends with a null byte.
#[cold]
pub(crate) unsafe fn addresses(name: *const c_char) -> Option<Addresses> {
    if name.is_null() || process::is_plain() {
        return None;
    }
    // SAFETY: the caller's contract.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    // An address is no name: nothing has to be read.
    if name.iter().all(|b| b.is_ascii_digit() || *b == b'.') || name.contains(&b':') {
        return None;
    }
    let (four, six, alias) = hosts::by_name(name)?;
    let text = |ip: Option<IpAddr>| {
        let mut text = StackPath::empty();
        // What does not fit is no address either way.
        let _ = ip.map_or(Ok(()), |ip| write!(text, "{ip}"));
        text
    };
    let (own, six_only) = (four.is_some() || six.is_some(), four.is_none() && six.is_some());
    Some(Addresses { four: text(four.or(Some(IpAddr::V4(alias)))), six: text(six), own, six_only })
}
