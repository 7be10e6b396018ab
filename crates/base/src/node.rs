//! Nodes: the processes of a parallel job, and the addresses by which they reach each other.

use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A process in a parallel job: 48 random bits, never 0. A node that answers at an address must know this number, so an address that
/// several hosts have (the same bridge on each) is never taken for the peer's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(u64);

impl NodeId {
    /// Bits that count.
    const MASK: u64 = (1 << 48) - 1;

    /// Made of random bits; `None` if the low 48 are all 0.
    pub fn new(random: u64) -> Option<Self> {
        (random & Self::MASK != 0).then_some(Self(random & Self::MASK))
    }

    /// The number, below 2^48.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012x}", self.0)
    }
}

/// How to reach a node: its id, and every address at which it may be found. All addresses share one port.
///
/// It travels as bytes through any channel that connects a job's processes, for instance an MPI launcher, so its form is fixed: the first
/// 16 bytes look like a `sockaddr_in`, for channels that carry no more; further addresses follow.
///
/// ```text
///   0 family (AF_INET, host order)   2 port (network order)   4 first IPv4 address or 0
///   8 node id, 48 bits, little end first   14 channel, little end first
///   16 addresses of other kinds: 7, length, kind (2 bytes, little end first), bytes
///      further addresses: 4 and 4 bytes, or 6 and 16 bytes; 0 ends the list
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeAddress {
    /// The node that must answer.
    pub id: NodeId,
    /// Which of its endpoints is meant.
    pub channel: u16,
    /// The port of all addresses; 0 where it cannot be reached over a network.
    pub port: u16,
    /// Where it may be found, likeliest first.
    pub addresses: Vec<IpAddr>,
    /// Where it may be found by drivers whose addresses are of another kind.
    pub foreign: Vec<Foreign>,
}

/// An address that only one driver understands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Foreign {
    /// Which: made of a name ([`Foreign::kind_of`]).
    pub kind: u16,
    /// The address, at most [`Foreign::LONGEST`] bytes of it travel.
    pub bytes: Vec<u8>,
}

impl Foreign {
    /// Longer addresses find no room.
    pub const LONGEST: usize = NodeAddress::LONG - NodeAddress::SHORT - Self::HEAD;
    /// Bytes in front of one: tag, length, kind.
    const HEAD: usize = 4;

    /// The kind of that name (FNV-1a, folded).
    pub fn kind_of(name: &str) -> u16 {
        let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        (hash >> 16) as u16 ^ hash as u16
    }
}

/// Why bytes are no address of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} bytes that are no address of a node")]
pub struct NotAnAddress {
    /// How many there were.
    pub len: usize,
}

impl NodeAddress {
    /// Bytes of the short form.
    pub const SHORT: usize = 16;
    /// Bytes of the long form.
    pub const LONG: usize = 64;

    /// The id alone, without addresses.
    pub fn bare(id: NodeId) -> Self {
        Self { id, channel: 0, port: 0, addresses: Vec::new(), foreign: Vec::new() }
    }

    /// The stack that its links have, as text; `None`: none that is known. Addresses of the short form do not tell.
    pub fn stack(&self) -> Option<&str> {
        let kind = Foreign::kind_of(STACK);
        let stack = self.foreign.iter().find(|foreign| foreign.kind == kind)?;
        // Of a text that is none nothing is like it; and it is shown to people.
        let text =
            core::str::from_utf8(&stack.bytes).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
        Some(text.unwrap_or("?"))
    }

    /// From now on its links have that stack. It comes first of all that is of another kind, for who does not see it cannot connect.
    pub fn set_stack(&mut self, stack: &str) {
        let kind = Foreign::kind_of(STACK);
        self.foreign.retain(|foreign| foreign.kind != kind);
        self.foreign.insert(0, Foreign { kind, bytes: stack.as_bytes().to_vec() });
    }

    /// The bytes, as many addresses as fit; `len` is [`Self::SHORT`] or [`Self::LONG`].
    pub fn encode(&self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        bytes.extend(AF_INET.to_ne_bytes());
        bytes.extend(self.port.to_be_bytes());
        let first = self.addresses.iter().position(IpAddr::is_ipv4);
        let v4 = first.map_or(Ipv4Addr::UNSPECIFIED, |i| match self.addresses[i] {
            IpAddr::V4(a) => a,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        });
        bytes.extend(v4.octets());
        bytes.extend(&self.id.0.to_le_bytes()[..6]);
        bytes.extend(self.channel.to_le_bytes());
        for foreign in &self.foreign {
            let Ok(length @ ..=MOST) = u8::try_from(foreign.bytes.len()) else { continue };
            if bytes.len() + Foreign::HEAD + foreign.bytes.len() <= len {
                bytes.extend([FOREIGN, length]);
                bytes.extend(foreign.kind.to_le_bytes());
                bytes.extend(&foreign.bytes);
            }
        }
        let rest = self.addresses.iter().enumerate().filter(|&(i, _)| Some(i) != first);
        for (_, address) in rest {
            let (tag, octets) = match address {
                IpAddr::V4(a) => (4, a.octets().to_vec()),
                IpAddr::V6(a) => (6, a.octets().to_vec()),
            };
            if bytes.len() + 1 + octets.len() > len {
                continue;
            }
            bytes.push(tag);
            bytes.extend(octets);
        }
        bytes.resize(len, 0);
        bytes
    }

    /// Reads either form. Bytes behind the end of the list are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, NotAnAddress> {
        let bad = NotAnAddress { len: bytes.len() };
        let (head, mut rest) = bytes.split_at_checked(Self::SHORT).ok_or(bad)?;
        let mut id = [0; 8];
        id[..6].copy_from_slice(&head[8..14]);
        let (mut addresses, mut foreign) = (Vec::new(), Vec::new());
        let first = Ipv4Addr::new(head[4], head[5], head[6], head[7]);
        if !first.is_unspecified() {
            addresses.push(IpAddr::V4(first));
        }
        while let Some((&tag @ (4 | 6 | FOREIGN), behind)) = rest.split_first() {
            if tag == FOREIGN {
                let (&[length, low, high], behind) = behind.split_first_chunk().ok_or(bad)?;
                let (bytes, behind) = behind.split_at_checked(usize::from(length)).ok_or(bad)?;
                foreign.push(Foreign { kind: u16::from_le_bytes([low, high]), bytes: bytes.to_vec() });
                rest = behind;
                continue;
            }
            let len = if tag == 4 { 4 } else { 16 };
            let (octets, behind) = behind.split_at_checked(len).ok_or(bad)?;
            addresses.push(match <[u8; 4]>::try_from(octets) {
                Ok(v4) => IpAddr::V4(v4.into()),
                Err(_) => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(octets).map_err(|_| bad)?)),
            });
            rest = behind;
        }
        if u16::from_ne_bytes([head[0], head[1]]) != AF_INET {
            return Err(bad);
        }
        Ok(Self {
            id: NodeId::new(u64::from_le_bytes(id)).ok_or(bad)?,
            channel: u16::from_le_bytes([head[14], head[15]]),
            port: u16::from_be_bytes([head[2], head[3]]),
            addresses,
            foreign,
        })
    }
}

const AF_INET: u16 = 2;
/// The kind under which a node publishes the stack of its links.
const STACK: &str = "stack";
/// Before an address of another kind.
const FOREIGN: u8 = 7;
const MOST: u8 = Foreign::LONGEST as u8;

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> NodeAddress {
        NodeAddress {
            id: NodeId::new(0x0102_0304_0506).unwrap(),
            channel: 7,
            port: 4711,
            addresses: ["fd00::1", "10.0.0.1", "172.17.0.1", "192.168.0.9"].map(|a| a.parse().unwrap()).to_vec(),
            foreign: Vec::new(),
        }
    }

    #[test]
    fn an_address_survives_its_bytes() {
        let long = NodeAddress::decode(&address().encode(NodeAddress::LONG)).unwrap();
        let order = ["10.0.0.1", "fd00::1", "172.17.0.1", "192.168.0.9"].map(|a| a.parse::<IpAddr>().unwrap());
        assert_eq!(long, NodeAddress { addresses: order.to_vec(), ..address() });
    }

    #[test]
    fn addresses_of_other_kinds_come_first() {
        let foreign = |len| Foreign { kind: Foreign::kind_of("efa"), bytes: vec![9; len] };
        let sent = NodeAddress { foreign: vec![foreign(32)], ..address() };
        let seen = NodeAddress::decode(&sent.encode(NodeAddress::LONG)).unwrap();
        assert_eq!((&seen.foreign, seen.addresses.len()), (&sent.foreign, 3), "what there is room for");
        let long = NodeAddress { foreign: vec![foreign(Foreign::LONGEST + 1), foreign(Foreign::LONGEST)], ..address() };
        let seen = NodeAddress::decode(&long.encode(NodeAddress::LONG)).unwrap();
        assert_eq!(seen.foreign, [foreign(Foreign::LONGEST)]);
        assert!(NodeAddress::decode(&sent.encode(NodeAddress::SHORT)).unwrap().foreign.is_empty());
        assert!(NodeAddress::decode(&sent.encode(NodeAddress::LONG)[..40]).is_err());
        assert_ne!(Foreign::kind_of("tcp;ofi_rxm"), Foreign::kind_of("verbs;ofi_rxm"));
    }

    #[test]
    fn the_stack_of_a_nodes_links_goes_first() {
        let foreign = Foreign { kind: Foreign::kind_of("efa"), bytes: vec![9; 32] };
        let mut sent = NodeAddress { foreign: vec![foreign.clone()], ..address() };
        assert_eq!(sent.stack(), None);
        sent.set_stack("stripe(2)/tcp");
        sent.set_stack("adoc/tls/stripe(32)/tcp");
        let seen = NodeAddress::decode(&sent.encode(NodeAddress::LONG)).unwrap();
        assert_eq!((seen.stack(), seen.foreign.len()), (Some("adoc/tls/stripe(32)/tcp"), 1));
        assert_eq!(NodeAddress::decode(&sent.encode(NodeAddress::SHORT)).unwrap().stack(), None);
        sent.foreign[0].bytes = vec![0xff];
        assert_eq!(sent.stack(), Some("?"));
    }

    #[test]
    fn the_short_form_is_a_socket_address() {
        let bytes = address().encode(NodeAddress::SHORT);
        assert_eq!(bytes, [2, 0, 0x12, 0x67, 10, 0, 0, 1, 6, 5, 4, 3, 2, 1, 7, 0]);
        let short = NodeAddress::decode(&bytes).unwrap();
        assert_eq!(short, NodeAddress { addresses: vec!["10.0.0.1".parse().unwrap()], ..address() });
    }

    #[test]
    fn other_bytes_are_refused() {
        let bytes = address().encode(NodeAddress::LONG);
        for len in 0..NodeAddress::SHORT {
            assert!(NodeAddress::decode(&bytes[..len]).is_err());
        }
        assert!(NodeAddress::decode(&bytes[..20]).is_err());
        assert!(NodeAddress::decode(&[0; 64]).is_err());
    }
}
