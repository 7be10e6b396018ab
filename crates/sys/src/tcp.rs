//! What the kernel knows of a TCP stream: state and byte positions. Source: tcp(7), linux/tcp.h.

use core::ffi::c_int;

use crate::{Errno, raw};

/// `TCP_ESTABLISHED` of `tcpi_state`.
const ESTABLISHED: u8 = 1;
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// `TCP_SYN_SENT` of `tcpi_state`: it connects.
pub const SYN_SENT: u8 = 2;

/// The part of `struct tcp_info` (linux/tcp.h) up to `tcpi_bytes_retrans`; fields keep the kernel's names.
#[repr(C)]
#[allow(missing_docs)]
#[derive(Clone, Copy, Default)]
pub struct Info {
    pub state: u8,
    _ca_state: u8,
    pub retransmits: u8,
    /// Probes of a closed window first.
    bytes: [u8; 4],
    flags: u8,
    /// The last one: milliseconds since something was acknowledged.
    words: [u32; 13],
    pub pmtu: u32,
    _rcv_ssthresh: u32,
    pub rtt: u32,
    _words2: [u32; 8],
    pub pacing_rate: u64,
    _max_pacing_rate: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    _segs: [u32; 2],
    pub notsent_bytes: u32,
    pub min_rtt: u32,
    _segs2: [u32; 2],
    pub delivery_rate: u64,
    times: [u64; 3],
    _delivered: [u32; 2],
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
}

// SAFETY: a C struct of integers, without padding that is read.
unsafe impl raw::Plain for Info {}

const _: () = assert!(size_of::<Info>() == 216);

impl Info {
    /// Whether `delivery_rate` was measured while the program had nothing more to send: then it is the program's rate, not the path's.
    pub fn rate_is_of_the_program(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Microseconds in which something was on its way; and those of them in which the peer's window, and in which our own buffer, held it back.
    pub fn busy_times(&self) -> [u64; 3] {
        self.times
    }

    /// How often the last segment, or a probe of a closed window, has been sent again; and how many milliseconds ago the last
    /// acknowledgement came.
    pub fn unanswered(&self) -> (u8, u32) {
        let ([probes, ..], [.., since]) = (self.bytes, self.words);
        (self.retransmits.max(probes), since)
    }
}

/// `TCP_INFO` of a connected socket. `ENOSYS` if an older kernel does not report the byte counts.
pub fn info(fd: c_int) -> Result<Info, Errno> {
    // SAFETY: all-zero is a valid `Info` (integers only).
    let mut info: Info = unsafe { core::mem::zeroed() };
    let len = raw::sockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    if len < size_of::<Info>() { Err(Errno::NOSYS) } else { Ok(info) }
}

/// Whether the connection is open in both directions.
pub fn established(fd: c_int) -> bool {
    info(fd).is_ok_and(|i| i.state == ESTABLISHED)
}

/// Whether the peer's FIN has come, or the connection is closed.
pub fn has_fin(fd: c_int) -> bool {
    info(fd).is_ok_and(|i| matches!(i.state, TIME_WAIT | CLOSE_WAIT | LAST_ACK | CLOSING | CLOSE))
}

/// Whether the connection is closed in both directions.
pub fn is_closed(fd: c_int) -> bool {
    info(fd).is_ok_and(|i| i.state == CLOSE)
}

/// Whether its own sending direction is shut, or the connection is closed.
pub fn is_mute(fd: c_int) -> bool {
    info(fd).is_ok_and(|i| !matches!(i.state, ESTABLISHED | CLOSE_WAIT))
}

/// How many bytes have ever been written to this socket, by any process. Exact while no other writer is active.
pub fn bytes_written(fd: c_int) -> Result<u64, Errno> {
    let i = info(fd)?;
    Ok(i.bytes_sent.wrapping_sub(i.bytes_retrans).wrapping_add(u64::from(i.notsent_bytes)))
}

/// How many of them are on their way or have arrived; the others have no room at the peer's.
pub fn bytes_sent(fd: c_int) -> Result<u64, Errno> {
    let i = info(fd)?;
    Ok(i.bytes_sent.wrapping_sub(i.bytes_retrans))
}

/// How many bytes have ever been taken out of this socket's receive queue. Exact while no other reader is active: the two values it is made
/// of are read until the queue did not change between them. `was_cut`: whether a closed connection ended without the peer's FIN, which the
/// kernel reports once, by an error. `urgent`: there may be urgent data among the unread bytes.
pub fn bytes_read(fd: c_int, urgent: bool, was_cut: impl Fn() -> bool) -> Result<u64, Errno> {
    let unread = if urgent { unread_past_mark } else { unread };
    let mut before = unread(fd)?;
    loop {
        let counted = info(fd)?;
        let after = unread(fd)?;
        // The kernel reads the state before it locks the socket for the counts: a FIN between the two is in one only.
        let info = info(fd)?;
        if before == after && counted.bytes_received == info.bytes_received {
            // The peer's FIN counts as a byte that was received, and as none that can be read.
            let fin = match info.state {
                TIME_WAIT | CLOSE_WAIT | LAST_ACK | CLOSING => true,
                CLOSE => !was_cut(),
                _ => false,
            };
            return Ok(info.bytes_received.wrapping_sub(after as u64 + u64::from(fin)));
        }
        before = after;
    }
}

fn unread(fd: c_int) -> Result<c_int, Errno> {
    raw::ioctl_int(fd, libc::FIONREAD)
}

/// `FIONREAD` counts up to the urgent mark, unless urgent data are in line (tcp(7)).
fn unread_past_mark(fd: c_int) -> Result<c_int, Errno> {
    if raw::sockopt_int(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE)? != 0 {
        return unread(fd);
    }
    raw::set_sockopt(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, &1)?;
    let all = unread(fd);
    raw::set_sockopt(fd, libc::SOL_SOCKET, libc::SO_OOBINLINE, &0)?;
    all
}

/// Whether the next byte to be read is behind the urgent one (sockatmark(3)).
pub fn at_mark(fd: c_int) -> bool {
    const SIOCATMARK: libc::c_ulong = 0x8905;
    raw::ioctl_int(fd, SIOCATMARK).is_ok_and(|at| at != 0)
}

/// The urgent byte, if the next one to be read is behind it ([`at_mark`]) and it has not been received.
pub fn urgent_here(fd: c_int) -> Option<u8> {
    if !at_mark(fd) {
        return None;
    }
    let mut byte = 0u8;
    // SAFETY: one byte of our own.
    let got = unsafe { raw::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_OOB | libc::MSG_DONTWAIT) };
    (got == Ok(1)).then_some(byte)
}

/// `TCP_MAXSEG`, before a socket is connected: neither end sends more in one packet.
pub fn set_longest_segment(fd: c_int, bytes: c_int) -> Result<(), Errno> {
    raw::set_sockopt(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, &bytes)
}

/// `TCP_NOTSENT_LOWAT`: the kernel takes no more while so many bytes wait to be sent for the first time.
pub fn set_most_unsent(fd: c_int, bytes: c_int) -> Result<(), Errno> {
    raw::set_sockopt(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &bytes)
}

/// A send buffer that takes more for a while. What the program had set is set again on drop; before that its descriptor must not be
/// closed.
#[derive(Debug)]
pub struct Wide {
    fd: c_int,
    size: c_int,
    locked: Option<c_int>,
    unsent: Option<c_int>,
}

/// What setsockopt(2) gives without privilege: twice `net.core.wmem_max`, if that has its default.
const UNPRIVILEGED: c_int = 2 * 212_992;
/// `SO_BUF_LOCK` (Linux 5.14): which sizes the kernel may not change by itself.
const SO_BUF_LOCK: c_int = 72;

/// Makes room for `n` more bytes in the send buffer (`SO_SNDBUFFORCE`; as far as `SO_SNDBUF` goes without privilege), even if the program
/// limits how much may wait there. The kernel counts memory, up to twice the bytes. `None`: an empty buffer has the room, or nothing can be
/// done.
pub fn widen(fd: c_int, n: u64) -> Option<Wide> {
    let size = raw::sockopt_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).ok()?;
    let unsent = raw::sockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT).ok().filter(|&most| most > 0);
    if unsent.is_none() && n <= size as u64 / 2 {
        return None;
    }
    let locked = raw::sockopt_int(fd, libc::SOL_SOCKET, SO_BUF_LOCK).ok();
    let wide = Wide { fd, size, locked, unsent };
    if unsent.is_some() {
        set_most_unsent(fd, c_int::MAX).ok()?;
    }
    // It is doubled.
    let half = c_int::try_from(n).unwrap_or(c_int::MAX).saturating_add(size / 2);
    (wide.set_half(half) || unsent.is_some()).then_some(wide)
}

/// Whether so many bytes surely have room in the send buffer. What the kernel counts against its size is memory, up to twice the bytes.
pub fn room_for(fd: c_int, n: u64) -> bool {
    let size = raw::sockopt_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0).max(0) as u64;
    let unsent = raw::ioctl_int(fd, libc::TIOCOUTQ).unwrap_or(0).max(0) as u64;
    n + unsent <= size / 2
}

impl Wide {
    /// Sets the buffer's size; false: it stays as it is, for without privilege it might become smaller.
    fn set_half(&self, half: c_int) -> bool {
        let set = |name| raw::set_sockopt(self.fd, libc::SOL_SOCKET, name, &half).is_ok();
        set(libc::SO_SNDBUFFORCE) || self.size < UNPRIVILEGED && set(libc::SO_SNDBUF)
    }
}

impl Drop for Wide {
    fn drop(&mut self) {
        self.set_half(self.size / 2);
        let _ = self.locked.map(|which| raw::set_sockopt(self.fd, libc::SOL_SOCKET, SO_BUF_LOCK, &which));
        let _ = self.unsent.map(|most| set_most_unsent(self.fd, most));
    }
}

/// A receive buffer that is larger for a while.
#[derive(Debug)]
pub struct Deep {
    fd: c_int,
    size: c_int,
    locked: Option<c_int>,
}

/// Makes room for `n` bytes in the receive buffer of a socket that is about to be connected (`SO_RCVBUFFORCE`; as far as `SO_RCVBUF` goes
/// without privilege), so that they arrive unread. `None`: it has it, or nothing can be done.
pub fn deepen(fd: c_int, n: u64) -> Option<Deep> {
    let size = raw::sockopt_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).ok()?;
    if n <= size as u64 / 4 {
        return None;
    }
    let locked = raw::sockopt_int(fd, libc::SOL_SOCKET, SO_BUF_LOCK).ok();
    // It is doubled, and half of it may be what the kernel needs besides.
    let half = c_int::try_from(n.saturating_mul(2)).unwrap_or(c_int::MAX / 2);
    let deep = Deep { fd, size, locked };
    deep.set_half(half).then_some(deep)
}

impl Deep {
    fn set_half(&self, half: c_int) -> bool {
        let set = |name| raw::set_sockopt(self.fd, libc::SOL_SOCKET, name, &half).is_ok();
        set(libc::SO_RCVBUFFORCE) || set(libc::SO_RCVBUF)
    }
}

impl Drop for Deep {
    fn drop(&mut self) {
        self.set_half(self.size / 2);
        let _ = self.locked.map(|which| raw::set_sockopt(self.fd, libc::SOL_SOCKET, SO_BUF_LOCK, &which));
    }
}

/// Small segments of a socket go at once until this is dropped, though others are not acknowledged yet.
#[derive(Debug)]
pub struct Hasty(c_int);

/// Does that; `None`: they go at once anyway.
pub fn hasten(fd: c_int) -> Option<Hasty> {
    let waits = raw::sockopt_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY) == Ok(0);
    let hastens = waits && raw::set_sockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1).is_ok();
    hastens.then(|| Hasty(fd))
}

impl Drop for Hasty {
    fn drop(&mut self) {
        let _ = raw::set_sockopt(self.0, libc::IPPROTO_TCP, libc::TCP_NODELAY, &0);
    }
}

/// `SO_NETNS_COOKIE`: which network namespace the socket lives in; 0 if the kernel does not report it.
pub fn netns_cookie(fd: c_int) -> u64 {
    const SO_NETNS_COOKIE: c_int = 71;
    let mut cookie = 0u64;
    raw::sockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie).map_or(0, |_| cookie)
}

/// `SO_COOKIE`: the same for every descriptor of one socket, different for all others since boot.
pub fn cookie(fd: c_int) -> Result<u64, Errno> {
    let mut cookie = 0u64;
    raw::sockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, &mut cookie)?;
    Ok(cookie)
}

/// `SO_INCOMING_CPU`: the processor that handled the last packet; on loopback that is where the sender ran.
pub fn incoming_cpu(fd: c_int) -> Option<u32> {
    raw::sockopt_int(fd, libc::SOL_SOCKET, libc::SO_INCOMING_CPU).ok().and_then(|c| u32::try_from(c).ok())
}
