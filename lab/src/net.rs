//! Addresses and networks, as numbers: the n-th host of a network, whether two overlap.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address and the length of its network's prefix, such as `10.1.0.0/24` or `172.17.0.1/16`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Net {
    /// The address.
    pub address: IpAddr,
    /// Bits of the prefix.
    pub prefix: u8,
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Whether an address is IPv6.
pub fn is_six(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(_))
}

impl Net {
    /// Reads `ADDRESS/PREFIX`.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
        let net = Self { address, prefix };
        (prefix > 0 && prefix <= net.bits()).then_some(net)
    }

    /// Whether it is IPv6.
    pub fn is_six(&self) -> bool {
        is_six(self.address)
    }

    fn bits(&self) -> u8 {
        if self.is_six() { 128 } else { 32 }
    }

    fn number(&self) -> u128 {
        match self.address {
            IpAddr::V4(v4) => u128::from(u32::from(v4)),
            IpAddr::V6(v6) => u128::from(v6),
        }
    }

    /// The bits of an address that distinguish hosts of this network.
    fn host_mask(&self) -> u128 {
        u128::MAX.checked_shr(128 - u32::from(self.bits() - self.prefix)).unwrap_or(0)
    }

    /// Whether the address is that of the network itself, with no bit of a host's.
    pub fn is_network(&self) -> bool {
        self.number() & self.host_mask() == 0
    }

    /// The address number `n` of this network; `None` where the network has no such host.
    pub fn host(&self, n: u32) -> Option<Self> {
        let mask = self.host_mask();
        // The last address of an IPv4 network reaches all of its hosts.
        (n > 0 && u128::from(n) < mask).then_some(())?;
        let number = self.number() & !mask | u128::from(n);
        let address =
            if self.is_six() { IpAddr::V6(Ipv6Addr::from(number)) } else { IpAddr::V4(Ipv4Addr::from(number as u32)) };
        Some(Self { address, prefix: self.prefix })
    }

    /// Whether an address lies in this network.
    pub fn contains(&self, address: IpAddr) -> bool {
        let other = Self { address, prefix: self.prefix };
        is_six(address) == self.is_six() && self.number() & !self.host_mask() == other.number() & !self.host_mask()
    }

    /// Whether some address lies in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_number_their_hosts() {
        let net = Net::parse("10.1.0.0/24").unwrap();
        assert!(net.is_network());
        assert_eq!(net.host(2).unwrap().to_string(), "10.1.0.2/24");
        assert_eq!((net.host(0), net.host(255)), (None, None));
        assert_eq!(Net::parse("fd00:a::/64").unwrap().host(0x12).unwrap().to_string(), "fd00:a::12/64");
        assert!(!Net::parse("172.17.0.1/16").unwrap().is_network());
        for bad in ["10.0.0.0", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "/8", "10.0.0.0/0"] {
            assert_eq!(Net::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn overlaps_are_seen() {
        let net = |text| Net::parse(text).unwrap();
        assert!(net("10.0.0.0/8").overlaps(&net("10.200.0.0/16")));
        assert!(net("10.200.0.0/16").overlaps(&net("10.0.0.0/8")));
        assert!(!net("10.1.0.0/24").overlaps(&net("10.2.0.0/24")));
        assert!(!net("10.1.0.0/24").overlaps(&net("fd00::/8")));
    }
}
