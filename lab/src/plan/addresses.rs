//! Addresses that a plan gives away.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::net::Net;

/// The addresses under which the router of the site number `n` is known to other sites, without prefix.
pub fn public(n: usize) -> [IpAddr; 2] {
    let n = n as u16 + 1;
    // 198.18.0.0/15 is for benchmarks, 2001:db8::/32 for documentation: no real host has such an address.
    let four = Ipv4Addr::new(198, 18 + u8::from(n > 255), n as u8, 1);
    [four.into(), Ipv6Addr::new(0x2001, 0xDB8, 0xFFFF, n, 0, 0, 0, 1).into()]
}

/// An address as a network of itself alone.
pub(crate) fn whole(address: IpAddr) -> Net {
    Net { address, prefix: if crate::net::is_six(address) { 128 } else { 32 } }
}
