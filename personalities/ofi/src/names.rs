//! Addresses as they travel through an MPI: bytes of one length for all processes of a job.
//!
//! Our own format has room for every address of a host. A program that demands a `sockaddr_in` gets 16 bytes with the first address only.

use madrigal_base::node::NodeAddress;

use crate::abi::flags::SOCKADDR_IN;

/// Bytes of a `sockaddr_in`.
pub(crate) const SHORT: usize = NodeAddress::SHORT;
/// Bytes of an address in our own format.
pub(crate) const LONG: usize = NodeAddress::LONG;

/// The length of addresses of that format, unless a length is forced.
pub(crate) fn length(format: u32, forced: Option<usize>) -> usize {
    forced.unwrap_or(if format == SOCKADDR_IN { SHORT } else { LONG })
}

/// An address in an address vector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    /// A process of ours.
    Node(NodeAddress),
    /// A host and a port whose node is not known yet.
    Place([u8; SHORT]),
}

impl Name {
    /// Reads it; `None`: no address.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if let Ok(node) = NodeAddress::decode(bytes) {
            return Some(Self::Node(node));
        }
        let front: [u8; SHORT] = bytes.get(..SHORT)?.try_into().ok()?;
        let family = u16::from_ne_bytes([front[0], front[1]]);
        (i32::from(family) == libc::AF_INET).then_some(Self::Place(front))
    }

    /// The bytes it came as.
    pub(crate) fn encode(&self, len: usize) -> Vec<u8> {
        match self {
            Self::Node(node) => node.encode(len),
            Self::Place(front) => {
                let mut bytes = front.to_vec();
                bytes.resize(len, 0);
                bytes
            }
        }
    }
}

impl std::fmt::Display for Name {
    /// As `fi_av_straddr` shows it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(node) => {
                let place = node.addresses.first().map_or_else(|| "local".into(), ToString::to_string);
                write!(f, "fi_madrigal://{place}:{}/{}/{}", node.port, node.id, node.channel)
            }
            Self::Place(b) => {
                let port = u16::from_be_bytes([b[2], b[3]]);
                write!(f, "fi_sockaddr_in://{}.{}.{}.{}:{port}", b[4], b[5], b[6], b[7])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use madrigal_base::node::NodeId;

    use super::*;

    #[test]
    fn both_forms_come_back() {
        let addresses = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let node = NodeAddress { channel: 3, port: 4711, addresses, ..NodeAddress::bare(NodeId::new(77).unwrap()) };
        let name = Name::Node(node.clone());
        assert_eq!(Name::decode(&name.encode(LONG)), Some(name.clone()));
        let short = NodeAddress { addresses: vec!["10.0.0.1".parse().unwrap()], ..node };
        assert_eq!(Name::decode(&name.encode(SHORT)), Some(Name::Node(short)));
        assert_eq!(name.to_string(), "fi_madrigal://10.0.0.1:4711/00000000004d/3");
    }

    #[test]
    fn a_place_is_kept_but_other_bytes_are_no_address() {
        let bytes = crate::info::place::sockaddr("127.0.0.1:80".parse().unwrap());
        let place = Name::decode(&bytes).unwrap();
        assert_eq!(place.to_string(), "fi_sockaddr_in://127.0.0.1:80");
        assert_eq!(place.encode(SHORT), bytes);
        assert_eq!(Name::decode(&[0; LONG]), None);
        assert_eq!(Name::decode(&bytes[..15]), None);
    }
}
