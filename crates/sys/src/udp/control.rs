//! What stands beside the bytes of a datagram in sendmsg(2) and recvmsg(2): an address, and control messages (cmsg(3)). Laid out here as the
//! kernel has them on 64-bit machines: a length of 8 bytes, level and type of 4, the data, up to a multiple of 8.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use rustix::io::Errno;

use crate::raw;

const HEAD: usize = 16;
/// Room for all that is asked for, and an error's report with the address of who sent it.
const ROOM: usize = 256;
/// ICMP's words that no socket has the port: RFC 792 (destination unreachable, port), RFC 4443.
const ICMP: u8 = libc::SO_EE_ORIGIN_ICMP;
const ICMP6: u8 = libc::SO_EE_ORIGIN_ICMP6;

/// A socket's address as the kernel has it (sockaddr_in, sockaddr_in6), and how many bytes of it there are.
pub(super) struct Name {
    bytes: Aligned<28>,
    len: usize,
}

#[repr(C, align(8))]
struct Aligned<const N: usize>([u8; N]);

impl Name {
    /// No address.
    pub(super) fn none() -> Self {
        Self { bytes: Aligned([0; 28]), len: 0 }
    }

    /// Room for one.
    pub(super) fn room() -> Self {
        Self { len: 28, ..Self::none() }
    }

    /// That address; as IPv6 has it, where the socket is one of IPv6.
    pub(super) fn of(address: SocketAddr, is_v6: bool) -> Self {
        let mut name = Self::none();
        let bytes = &mut name.bytes.0;
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address.ip() {
            IpAddr::V4(ip) if !is_v6 => {
                bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&ip.octets());
                name.len = 16;
            }
            ip => {
                bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                bytes[8..24].copy_from_slice(&mapped(ip).octets());
                if let SocketAddr::V6(address) = address {
                    bytes[24..].copy_from_slice(&address.scope_id().to_ne_bytes());
                }
                name.len = 28;
            }
        }
        name
    }

    /// The address that it is; one of IPv4 as that.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        let bytes = &self.bytes.0;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        match c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET if self.len >= 16 => {
                let ip: [u8; 4] = bytes[4..8].try_into().ok()?;
                Some(SocketAddr::new(Ipv4Addr::from(ip).into(), port))
            }
            libc::AF_INET6 if self.len >= 28 => {
                let ip: [u8; 16] = bytes[8..24].try_into().ok()?;
                let scope = u32::from_ne_bytes(bytes[24..].try_into().ok()?);
                match IpAddr::V6(Ipv6Addr::from(ip)).to_canonical() {
                    IpAddr::V6(ip) => Some(SocketAddrV6::new(ip, port, 0, scope).into()),
                    ip => Some(SocketAddr::new(ip, port)),
                }
            }
            _ => None,
        }
    }
}

/// Control messages, one behind the other.
pub(super) struct Control {
    bytes: Aligned<ROOM>,
    len: usize,
}

/// What a control message says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Note {
    /// The kernel has put datagrams of so many bytes together.
    Segment(usize),
    /// They came to that address of this host.
    To(IpAddr),
    /// Nobody is where a datagram was sent.
    Unreachable,
}

impl Default for Control {
    fn default() -> Self {
        Self { bytes: Aligned([0; ROOM]), len: 0 }
    }
}

impl Control {
    /// The kernel is to cut the bytes into datagrams of that length.
    pub(super) fn add_segment(&mut self, length: u16) {
        self.add(libc::IPPROTO_UDP, libc::UDP_SEGMENT, &length.to_ne_bytes());
    }

    /// They are to leave from that address of this host.
    pub(super) fn add_source(&mut self, from: IpAddr, is_v6: bool) {
        match from {
            // in_pktinfo: the number of an interface, the source, an address of no meaning here.
            IpAddr::V4(ip) if !is_v6 => {
                let mut data = [0; 12];
                data[4..8].copy_from_slice(&ip.octets());
                self.add(libc::IPPROTO_IP, libc::IP_PKTINFO, &data);
            }
            // in6_pktinfo: the address, the number of an interface.
            ip => {
                let mut data = [0; 20];
                data[..16].copy_from_slice(&mapped(ip).octets());
                self.add(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data);
            }
        }
    }

    fn add(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let (at, end) = (self.len, self.len + HEAD + data.len());
        let Some(place) = self.bytes.0.get_mut(at..end) else { return };
        place[..8].copy_from_slice(&(HEAD + data.len()).to_ne_bytes());
        place[8..12].copy_from_slice(&level.to_ne_bytes());
        place[12..HEAD].copy_from_slice(&kind.to_ne_bytes());
        place[HEAD..].copy_from_slice(data);
        self.len = end.next_multiple_of(8).min(ROOM);
    }

    /// What they say, as far as it is known here.
    pub(super) fn notes(&self) -> impl Iterator<Item = Note> + '_ {
        let mut rest = self.bytes.0.get(..self.len).unwrap_or_default();
        core::iter::from_fn(move || {
            loop {
                let (length, data) = (rest.first_chunk::<8>()?, rest.get(8..HEAD)?);
                let length = usize::from_ne_bytes(*length).clamp(HEAD, rest.len());
                let note = note(four(data)?, four(data.get(4..)?)?, rest.get(HEAD..length)?);
                rest = rest.get(length.next_multiple_of(8)..).unwrap_or_default();
                if note.is_some() {
                    return note;
                }
            }
        })
    }
}

fn note(level: c_int, kind: c_int, data: &[u8]) -> Option<Note> {
    match (level, kind) {
        (libc::IPPROTO_UDP, libc::UDP_GRO) => Some(Note::Segment(usize::try_from(four(data)?).ok()?)),
        (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
            let ip: [u8; 4] = data.get(4..8)?.try_into().ok()?;
            Some(Note::To(Ipv4Addr::from(ip).into()))
        }
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
            Some(Note::To(IpAddr::from(*data.first_chunk::<16>()?).to_canonical()))
        }
        // sock_extended_err: an error number, 4, then origin, type and code, 1 each.
        (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
            let is_refused = four(data)? == libc::ECONNREFUSED && matches!(*data.get(4)?, ICMP | ICMP6);
            is_refused.then_some(Note::Unreachable)
        }
        _ => None,
    }
}

fn four(bytes: &[u8]) -> Option<c_int> {
    bytes.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes))
}

fn mapped(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// recvmsg(2): how many bytes came.
pub(super) fn receive(
    fd: c_int,
    buffer: &mut [u8],
    (name, control): (&mut Name, &mut Control),
    flags: c_int,
) -> Result<usize, Errno> {
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = message((&raw mut piece, &raw mut name.bytes.0, name.len), (&raw mut control.bytes.0, ROOM));
    // SAFETY: buffer, address and control messages are borrowed for the call alone, as long as the header says.
    let count = unsafe { raw::recvmsg(fd, &raw mut message, flags) }?;
    name.len = usize::try_from(message.msg_namelen).unwrap_or(0).min(name.bytes.0.len());
    control.len = message.msg_controllen.min(ROOM);
    Ok(count.min(buffer.len()))
}

/// sendmsg(2).
pub(super) fn send(fd: c_int, bytes: &[u8], (name, control): (&Name, &Control)) -> Result<(), Errno> {
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let name = (&raw mut piece, (&raw const name.bytes.0).cast_mut(), name.len);
    let message = message(name, ((&raw const control.bytes.0).cast_mut(), control.len));
    // SAFETY: as in `receive`; the kernel only reads them.
    unsafe { raw::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) }.map(drop)
}

fn message(
    (piece, name, name_len): (*mut libc::iovec, *mut [u8; 28], usize),
    (control, control_len): (*mut [u8; ROOM], usize),
) -> libc::msghdr {
    // SAFETY: all of it may be zero.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (piece, 1);
    if name_len > 0 {
        (message.msg_name, message.msg_namelen) = (name.cast(), name_len as u32);
    }
    if control_len > 0 {
        (message.msg_control, message.msg_controllen) = (control.cast(), control_len);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_gives_is_read_whatever_it_is() {
        let mut control = Control::default();
        control.add(libc::IPPROTO_UDP, libc::UDP_GRO, &1200_u32.to_ne_bytes());
        control.add_source(IpAddr::from([127, 0, 0, 1]), true);
        let both = [Note::Segment(1200), Note::To(IpAddr::from([127, 0, 0, 1]))];
        assert_eq!(control.notes().collect::<Vec<_>>(), both);
        let whole = control.len;
        for len in 0..whole {
            control.len = len;
            assert!(control.notes().count() <= 1 + usize::from(len >= 24 + HEAD + 16));
        }
        for at in 0..whole {
            let mut noise = Control { len: whole, ..Control::default() };
            noise.bytes.0[..whole].copy_from_slice(&control.bytes.0[..whole]);
            noise.bytes.0[at] ^= 0xff;
            assert!(noise.notes().count() <= 2);
        }
    }
}
