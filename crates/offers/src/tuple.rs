//! The two addresses that name a connection.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use madrigal_base::sync::AtomicU64;
use madrigal_sys::{Errno, raw};

/// Both addresses of a connection, connecting end first; IPv4 in its mapped form. All zeros: not known yet.
#[derive(Default)]
#[repr(C)]
pub struct Tuple([AtomicU64; 5]);

impl Tuple {
    /// Forgets it.
    pub fn clear(&self) {
        self.0[4].store(0, Ordering::Relaxed);
    }

    /// Whether it was ever filled.
    pub fn is_known(&self) -> bool {
        self.0[4].load(Ordering::Relaxed) != 0
    }

    /// Queries the kernel for both names of `fd`; `connecting`: it is the connecting end.
    pub fn learn(&self, fd: c_int, connecting: bool) -> Result<(), Errno> {
        let own = name(&raw::socket_name(fd, false)?)?;
        let peer = name(&raw::socket_name(fd, true)?)?;
        self.set(if connecting { (own, peer) } else { (peer, own) });
        Ok(())
    }

    /// The name of the peer of a socket whose own name is `own`, in the same form; `connecting`: that socket is the connecting end.
    pub fn peer_of(&self, mut own: libc::sockaddr_storage, connecting: bool) -> libc::sockaddr_storage {
        let [a, b, c, d, ports] = self.words();
        let (high, low, port) = if connecting { (c, d, ports as u16) } else { (a, b, (ports >> 16) as u16) };
        let (high, low) = (high.to_be_bytes(), low.to_be_bytes());
        if c_int::from(own.ss_family) == libc::AF_INET {
            // SAFETY: its family is AF_INET, and a sockaddr_storage is large and aligned enough for any address.
            let v4 = unsafe { &mut *core::ptr::from_mut(&mut own).cast::<libc::sockaddr_in>() };
            v4.sin_port = port.to_be();
            v4.sin_addr.s_addr = u32::from_ne_bytes([low[4], low[5], low[6], low[7]]);
        } else {
            // SAFETY: as above: no other family has a tuple.
            let v6 = unsafe { &mut *core::ptr::from_mut(&mut own).cast::<libc::sockaddr_in6>() };
            v6.sin6_port = port.to_be();
            v6.sin6_addr.s6_addr[..8].copy_from_slice(&high);
            v6.sin6_addr.s6_addr[8..].copy_from_slice(&low);
        }
        own
    }

    /// Its words, to be compared with another's.
    pub fn words(&self) -> [u64; 5] {
        self.0.each_ref().map(|cell| cell.load(Ordering::Relaxed))
    }

    /// The accepting end's port.
    pub fn port(&self) -> u16 {
        self.0[4].load(Ordering::Relaxed) as u16
    }

    fn set(&self, (from, to): (Name, Name)) {
        let halves = |a: [u8; 16]| {
            let (high, low) = a.split_at(8);
            (
                u64::from_be_bytes(high.try_into().unwrap_or_default()),
                u64::from_be_bytes(low.try_into().unwrap_or_default()),
            )
        };
        let ((a, b), (c, d)) = (halves(from.0), halves(to.0));
        for (cell, value) in self.0.iter().zip([a, b, c, d, 1 << 32 | u64::from(from.1) << 16 | u64::from(to.1)]) {
            cell.store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn copy_to(&self, other: &Tuple) {
        for (from, to) in self.0.iter().zip(&other.0) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    pub(crate) fn same(&self, other: &Tuple) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a.load(Ordering::Relaxed) == b.load(Ordering::Relaxed))
    }

    pub(crate) fn hash(&self) -> usize {
        let mix =
            |h: u64, c: &AtomicU64| (h ^ c.load(Ordering::Relaxed)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        self.0.iter().fold(0, mix) as usize
    }
}

/// The port `fd` is bound to. `EAFNOSUPPORT` for what is not IP.
pub fn port_of(fd: c_int) -> Result<u16, Errno> {
    name(&raw::socket_name(fd, false)?).map(|(_, port)| port)
}

#[cfg(test)]
impl Tuple {
    /// Some connection to this port.
    pub(crate) fn set_for_test(&self, port: u16) {
        self.set((([1; 16], 1), ([2; 16], port)));
    }
}

type Name = ([u8; 16], u16);

/// Address and port of a socket name. `EAFNOSUPPORT` for what is not IP.
fn name(addr: &libc::sockaddr_storage) -> Result<Name, Errno> {
    match c_int::from(addr.ss_family) {
        libc::AF_INET => {
            // SAFETY: its family is AF_INET, and a sockaddr_storage is large and aligned enough for any address.
            let v4 = unsafe { &*core::ptr::from_ref(addr).cast::<libc::sockaddr_in>() };
            let mut bytes = [0; 16];
            bytes[10..12].fill(0xff);
            bytes[12..].copy_from_slice(&v4.sin_addr.s_addr.to_ne_bytes());
            Ok((bytes, u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { &*core::ptr::from_ref(addr).cast::<libc::sockaddr_in6>() };
            Ok((v6.sin6_addr.s6_addr, u16::from_be(v6.sin6_port)))
        }
        _ => Err(Errno::AFNOSUPPORT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn both_ends_of_a_connection_learn_the_same_tuple() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let (a, b) = (Tuple::default(), Tuple::default());
        assert!(!a.is_known());
        a.learn(client.as_raw_fd(), true).unwrap();
        b.learn(server.as_raw_fd(), false).unwrap();
        assert!(a.is_known() && a.same(&b) && a.hash() == b.hash());
        assert_eq!(a.port(), listener.local_addr().unwrap().port());
        b.learn(server.as_raw_fd(), true).unwrap();
        assert!(!a.same(&b));
    }
}
