//! Detects a quiet network: all that was sent has arrived. The kernel is queried from outside (sock_diag(7)) by the connection's two
//! addresses, so that the processes under test are not disturbed and their sockets have no further holder.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::raw;
use crate::share::Ports;

/// Bytes that are not acknowledged for so long will not be: a delayed acknowledgement takes 40 to 200 ms, and may then come late.
const ACK_NS: u64 = 300_000_000;
/// Bytes that have not moved for so long while much is unread are held back by the receiver.
const STILL_NS: u64 = 4_000_000;
/// Much: more than programs leave unread, but for those that fill a connection on purpose.
const MUCH: u32 = 40 << 10;

/// A socket for queries.
pub(crate) struct Quiet {
    socket: OwnedFd,
}

/// A socket, as the kernel sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Info {
    state: u8,
    /// Unread bytes.
    unread: u32,
    /// Bytes and FIN that the peer has not acknowledged.
    queued: u32,
    /// Bytes not sent yet.
    unsent: u32,
    /// Segments under way.
    unacked: u32,
    /// Bytes ever sent.
    sent: u64,
    /// Bytes, and a FIN, ever received.
    received: u64,
}

// Numbers of linux/sock_diag.h and linux/inet_diag.h.
const BY_FAMILY: u16 = 20;
const INFO: u16 = 2;
const REQUEST: usize = 16 + 56;

// States of linux/tcp_states.h.
const FIN_WAIT1: u8 = 4;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;
const CLOSE_WAIT: u8 = 8;
const LISTEN: u8 = 10;

impl Quiet {
    /// Opens it.
    pub(crate) fn open() -> io::Result<Self> {
        const SOCK_DIAG: i32 = 4;
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, SOCK_DIAG) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, owned by nobody else.
        Ok(Self { socket: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Waits until nothing is in flight on a connection. `acked`: and everything is acknowledged, too. False: the kernel holds
    /// something back for an unknown time.
    pub(crate) fn wait(&self, ports: &Ports, acked: bool) -> bool {
        let (mut seen, mut since) = (self.sample(ports), raw::now());
        loop {
            if acked && seen.0.is_none_or(|end| end.queued == 0) && seen.1.is_none_or(|end| end.queued == 0) {
                return true;
            }
            let (quiet, enough, patience) = match seen {
                (None, None) => return true,
                (Some(one), Some(other)) => {
                    let full = one.unread.max(other.unread) > MUCH && !acked;
                    (arrived(one, other) && arrived(other, one), full, if full { STILL_NS } else { ACK_NS })
                }
                // Bytes sent to an end that is gone are in flight until a reset answers them.
                (Some(end), None) | (None, Some(end)) => (end.queued == 0, true, ACK_NS),
            };
            if quiet && !acked {
                return true;
            }
            if raw::now() - since > patience {
                return enough;
            }
            raw::sleep_us(20);
            let now = self.sample(ports);
            if now != seen {
                (seen, since) = (now, raw::now());
            }
        }
    }

    /// Whether an end has something to send that the other one has no room for.
    pub(crate) fn is_held(&self, ports: &Ports) -> bool {
        let (one, other) = self.sample(ports);
        [one, other].iter().flatten().any(|end| end.unsent > 0)
    }

    /// Both ends; neither of a connection that there is not.
    fn sample(&self, ports: &Ports) -> (Option<Info>, Option<Info>) {
        let (client, server) = (ports.client.load(Ordering::SeqCst) as u16, ports.server.load(Ordering::SeqCst) as u16);
        if client == 0 || server == 0 {
            return (None, None);
        }
        let six = ports.family.load(Ordering::SeqCst) == 6;
        (self.ask(six, client, server), self.ask(six, server, client))
    }

    /// The kernel's data of the socket with these ports, if there is one.
    fn ask(&self, six: bool, own: u16, peer: u16) -> Option<Info> {
        let mut request = [0u8; REQUEST];
        request[..4].copy_from_slice(&(REQUEST as u32).to_ne_bytes());
        request[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        request[6] = libc::NLM_F_REQUEST as u8;
        request[16] = if six { libc::AF_INET6 as u8 } else { libc::AF_INET as u8 };
        request[17] = libc::IPPROTO_TCP as u8;
        request[18] = 1 << (INFO - 1);
        request[20..24].fill(0xFF);
        request[24..26].copy_from_slice(&own.to_be_bytes());
        request[26..28].copy_from_slice(&peer.to_be_bytes());
        for at in [28, 44] {
            if six {
                request[at + 15] = 1;
            } else {
                request[at..at + 4].copy_from_slice(&[127, 0, 0, 1]);
            }
        }
        request[64..72].fill(0xFF);
        let mut answer = [0u8; 4096];
        let fd = self.socket.as_raw_fd();
        // SAFETY: memory of our own.
        let got = unsafe {
            libc::send(fd, request.as_ptr().cast(), request.len(), 0);
            libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0)
        };
        let answer = answer.get(..usize::try_from(got).ok()?)?;
        if number::<2>(answer, 4)? as u16 != BY_FAMILY {
            return None;
        }
        // For an end that is gone the kernel returns the listener at its port.
        info(answer).filter(|end| end.state != LISTEN)
    }
}

/// A little-endian number (both architectures are) of `N` bytes.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut word = [0; 8];
    word[..N].copy_from_slice(bytes.get(at..at + N)?);
    Some(u64::from_le_bytes(word))
}

fn info(answer: &[u8]) -> Option<Info> {
    // `struct inet_diag_msg` after the header.
    let state = answer[16 + 1];
    let (unread, queued) = (number::<4>(answer, 16 + 56)? as u32, number::<4>(answer, 16 + 60)? as u32);
    let mut at = 16 + 72;
    while let (Some(len), Some(kind)) = (number::<2>(answer, at), number::<2>(answer, at + 2)) {
        if kind as u16 == INFO {
            // `struct tcp_info`.
            let info = answer.get(at + 4..)?;
            let sent = number::<8>(info, 200)? - number::<8>(info, 208)?;
            return Some(Info {
                state,
                unread,
                queued,
                unacked: number::<4>(info, 24)? as u32,
                received: number::<8>(info, 128)?,
                unsent: number::<4>(info, 144)? as u32,
                sent,
            });
        }
        if len < 4 {
            break;
        }
        at += (len as usize).next_multiple_of(4);
    }
    // A socket in TIME_WAIT has no more data.
    None
}

/// Whether all that one end sent is at the other.
fn arrived(from: Info, to: Info) -> bool {
    let fin_sent = matches!(from.state, FIN_WAIT1 | LAST_ACK | CLOSING);
    let fin_got = matches!(to.state, CLOSE_WAIT | LAST_ACK | CLOSING);
    from.unsent == 0 && to.received >= from.sent && (!fin_sent || fin_got)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn sees_both_ends() {
        let quiet = Quiet::open().expect("sock_diag");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("a name")).expect("a connection");
        let (_server, _) = listener.accept().expect("a connection");
        client.write_all(b"hello").expect("room");
        let (own, peer) = (client.local_addr().expect("a name").port(), client.peer_addr().expect("a name").port());
        let near = quiet.ask(false, own, peer).expect("its own end");
        let far = quiet.ask(false, peer, own).expect("the other end");
        assert_eq!((near.sent, near.unsent, far.received), (5, 0, 5));
        assert!(arrived(near, far) && arrived(far, near));
        assert_eq!(quiet.ask(false, 1, 2), None);
        assert_eq!(quiet.ask(false, peer, 2), None, "only a listener");
    }
}
