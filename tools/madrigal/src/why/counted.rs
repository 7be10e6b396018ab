//! How many bytes the kernel has carried for a connection, for all processes that used it: sock_diag(7).

use std::collections::HashMap;

use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, process, raw, tcp};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// Bytes that were read out of a socket, and bytes that were written to it, since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Bytes {
    pub(super) read: u64,
    pub(super) written: u64,
}

/// Those of every TCP socket of this process's own network namespace, by inode.
pub(super) fn here() -> HashMap<u64, Bytes> {
    let mut all = HashMap::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        // Without sock_diag in the kernel there are no counters to show.
        let _ = ask(family as u8, &mut |message| all.extend(parse(message)));
    }
    all
}

/// Those of one socket of another process, by a copy of its descriptor.
pub(super) fn there(pid: u32, fd: i32) -> Option<Bytes> {
    use std::os::fd::AsRawFd as _;
    let copy = process::steal_fd(pid, fd).ok()?;
    let info = tcp::info(copy.as_raw_fd()).ok()?;
    let unread = raw::ioctl_int(copy.as_raw_fd(), libc::FIONREAD).ok()?.max(0) as u64;
    let written = tcp::bytes_written(copy.as_raw_fd()).ok()?;
    Some(Bytes { read: read(info.state, info.bytes_received, unread), written })
}

/// The peer's FIN counts as a byte that was received.
fn read(state: u8, received: u64, unread: u64) -> u64 {
    // TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING (linux/tcp_states.h).
    let fin = matches!(state, 6 | 8 | 9 | 11);
    received.saturating_sub(unread + u64::from(fin))
}

fn ask(family: u8, take: &mut dyn FnMut(&[u8])) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        Fd::from(rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?);
    let mut request = [0u8; HEADER + REQUEST];
    request[0] = request.len() as u8;
    request[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    let [of, protocol, wanted, ..] = &mut request[HEADER..] else { return Err(Errno::INVAL) };
    (*of, *protocol, *wanted) = (family, libc::IPPROTO_TCP as u8, 1 << (INFO - 1));
    // Of every state.
    request[HEADER + 4..HEADER + 8].fill(0xff);
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        let (len, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
        let mut rest = buffer.get(..len).unwrap_or_default();
        while let (Some(length), Some(kind)) = (number::<4>(rest, 0), number::<2>(rest, 4)) {
            match kind {
                DONE => return Ok(()),
                ERROR => return Err(Errno::INVAL),
                _ => take(rest.get(HEADER..length as usize).unwrap_or_default()),
            }
            rest = rest.get((length as usize).next_multiple_of(4).max(HEADER)..).unwrap_or_default();
        }
    }
}

/// `struct inet_diag_msg`, and the `struct tcp_info` behind it.
fn parse(message: &[u8]) -> Option<(u64, Bytes)> {
    let state = *message.get(1)?;
    let (unread, inode) = (number::<4>(message, 56)?, number::<4>(message, 68)?);
    let mut rest = message.get(MESSAGE..)?;
    loop {
        let (length, attribute) = (number::<2>(rest, 0)? as usize, number::<2>(rest, 2)?);
        if attribute == u64::from(INFO) {
            let info = rest.get(4..length)?;
            let [received, notsent, sent, retransmitted] = [128, 144, 200, 208].map(|at| match at {
                144 => number::<4>(info, at),
                _ => number::<8>(info, at),
            });
            let written = sent?.wrapping_sub(retransmitted?).wrapping_add(notsent?);
            return Some((inode, Bytes { read: read(state, received?, unread), written }));
        }
        rest = rest.get(length.next_multiple_of(4).max(4)..)?;
    }
}

/// A number of `N` bytes in the machine's order.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let part: &[u8; N] = bytes.get(at..)?.first_chunk()?;
    let mut whole = [0u8; 8];
    if cfg!(target_endian = "big") { &mut whole[8 - N..] } else { &mut whole[..N] }.copy_from_slice(part);
    Some(u64::from_ne_bytes(whole))
}

// linux/netlink.h
const HEADER: usize = 16;
const REQUEST_DUMP: u16 = 0x301;
const ERROR: u64 = 2;
const DONE: u64 = 3;
// linux/sock_diag.h, linux/inet_diag.h
const BY_FAMILY: u16 = 20;
const REQUEST: usize = 56;
const MESSAGE: usize = 72;
const INFO: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn what_was_written_and_read_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[1; 70_000]).unwrap();
        server.read_exact(&mut [0; 70_000]).unwrap();
        server.write_all(&[2; 300]).unwrap();
        client.read_exact(&mut [0; 100]).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
        let (c, s) = (Bytes { read: 100, written: 70_000 }, Bytes { read: 70_000, written: 300 });
        let own = std::process::id();
        assert_eq!((there(own, client.as_raw_fd()), there(own, server.as_raw_fd())), (Some(c), Some(s)));
        let all = here();
        let inode = |fd: i32| std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap().ino();
        assert_eq!((all.get(&inode(client.as_raw_fd())), all.get(&inode(server.as_raw_fd()))), (Some(&c), Some(&s)));
    }
}
