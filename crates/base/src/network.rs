//! The user's settings for the network: ports to listen on, networks to be reached over, and how long a connect tries.

use std::net::IpAddr;

/// The values of `MADRIGAL_PORTS`, `MADRIGAL_NET` and `MADRIGAL_CONNECT_TIMEOUT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Network {
    /// Ports a process may listen on; empty: any that is free.
    pub ports: Ports,
    /// Networks that may be used.
    pub nets: Nets,
    /// Seconds after which an attempt to reach a peer is given up.
    pub connect_timeout: u32,
}

impl Default for Network {
    fn default() -> Self {
        Self { ports: Ports::default(), nets: Nets::default(), connect_timeout: 12 }
    }
}

/// A set of ports; the empty set means all.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Ports(Vec<(u16, u16)>);

impl Ports {
    /// Reads a list such as `80,8000-8010`. `None`: something in it is no port or no rising range.
    pub fn parse(text: &str) -> Option<Self> {
        let range = |part: &str| {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let (low, high) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
            (low <= high).then_some((low, high))
        };
        if text.trim().is_empty() {
            return Some(Self::default());
        }
        text.split(',').map(range).collect::<Option<_>>().map(Self)
    }

    /// The ranges, as they were given; none where all are meant.
    pub fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }

    /// The ports to look for a free one in, each once, from one of them on, which `random` chooses: so processes of one host seek apart. Port
    /// 0, any that is free, where all are meant.
    pub fn search(&self, random: u64) -> impl Iterator<Item = u16> {
        let any = [(0, 0)];
        let ranges = if self.0.is_empty() { any.to_vec() } else { self.0.clone() };
        let all: Vec<u16> = ranges.into_iter().flat_map(|(low, high)| low..=high).collect();
        let from = random as usize % all.len().max(1);
        let (before, behind) = all.split_at(from);
        [behind, before].concat().into_iter()
    }

    /// Whether the port is meant.
    pub fn contains(&self, port: u16) -> bool {
        self.0.is_empty() || self.0.iter().any(|&(low, high)| (low..=high).contains(&port))
    }
}

/// Networks that may be used: by address (`10.0.0.0/8`) and by the name of the interface (`ib*`), each allowed or, with `^`, excluded. If
/// none is allowed explicitly, all are but the excluded ones.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Nets(Vec<(bool, Net)>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Net {
    Range(IpAddr, u8),
    Name(String),
}

impl Nets {
    /// Reads a list such as `10.0.0.0/8,^docker0,ib*`. `None`: something in it is neither an address, a range nor a name.
    pub fn parse(text: &str) -> Option<Self> {
        if text.trim().is_empty() {
            return Some(Self::default());
        }
        let one = |part: &str| {
            let part = part.trim();
            let (wanted, rest) = part.strip_prefix('^').map_or((true, part), |rest| (false, rest));
            Some((wanted, Net::parse(rest)?))
        };
        text.split(',').map(one).collect::<Option<_>>().map(Self)
    }

    /// Whether an address of our own, at the interface of that name, may be used.
    pub fn allows(&self, address: IpAddr, interface: &str) -> bool {
        let matched = |wanted| self.0.iter().any(|(w, net)| *w == wanted && net.holds(address, Some(interface)));
        !matched(false) && (self.0.iter().all(|(wanted, _)| !wanted) || matched(true))
    }

    /// Whether an address of a peer is excluded. The names of the peer's interfaces are not known.
    pub fn refuses(&self, address: IpAddr) -> bool {
        self.0.iter().any(|(wanted, net)| !wanted && net.holds(address, None))
    }
}

impl Net {
    fn parse(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/').unwrap_or((text, ""));
        if let Ok(address) = address.parse::<IpAddr>() {
            let full = if address.is_ipv4() { 32 } else { 128 };
            let length = if length.is_empty() { full } else { length.parse().ok()? };
            return (length <= full).then_some(Self::Range(address, length));
        }
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"*?_.-:@".contains(&b);
        (!text.is_empty() && text.bytes().all(legal)).then(|| Self::Name(text.to_owned()))
    }

    fn holds(&self, address: IpAddr, interface: Option<&str>) -> bool {
        match self {
            Self::Range(net, length) => match (net, address.to_canonical()) {
                (IpAddr::V4(net), IpAddr::V4(address)) => {
                    let drop = 32 - u32::from(*length);
                    net.to_bits().checked_shr(drop) == address.to_bits().checked_shr(drop)
                }
                (IpAddr::V6(net), IpAddr::V6(address)) => {
                    let drop = 128 - u32::from(*length);
                    net.to_bits().checked_shr(drop) == address.to_bits().checked_shr(drop)
                }
                _ => false,
            },
            Self::Name(pattern) => interface.is_some_and(|name| fits(pattern.as_bytes(), name.as_bytes())),
        }
    }
}

/// Whether a name fits a pattern, in which `*` stands for any text and `?` for any letter.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), tail) => fits(rest, name) || tail.is_some_and(|(_, tail)| fits(pattern, tail)),
        (Some((want, rest)), Some((got, tail))) => (want == got || *want == b'?') && fits(rest, tail),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(list: &str, address: &str, interface: &str) -> bool {
        Nets::parse(list).unwrap().allows(address.parse().unwrap(), interface)
    }

    #[test]
    fn ports_are_ranges_or_all() {
        let ports = Ports::parse("80,8000-8010").unwrap();
        assert!(ports.contains(80) && ports.contains(8010) && !ports.contains(81) && !ports.contains(7999));
        assert!(Ports::parse("").unwrap().contains(1) && Ports::parse("80,").is_none());
    }

    #[test]
    fn ports_are_sought_in_turn() {
        let ports = Ports::parse("80,8000-8002").unwrap();
        assert_eq!(ports.search(5).collect::<Vec<_>>(), [8000, 8001, 8002, 80]);
        assert_eq!(Ports::default().search(u64::MAX).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn lists_want_and_refuse_by_address_and_name() {
        assert!(allows("", "192.0.2.1", "eth0"));
        assert!(allows("10.0.0.0/8,^docker0,ib*", "10.1.2.3", "eth0"));
        assert!(allows("10.0.0.0/8,^docker0,ib*", "192.0.2.1", "ib3"));
        assert!(!allows("10.0.0.0/8,^docker0,ib*", "10.1.2.3", "docker0"));
        assert!(!allows("10.0.0.0/8,^docker0,ib*", "192.0.2.1", "eth0"));
        assert!(allows("^docker0,^fd00::/8", "192.0.2.1", "eth0"));
        assert!(!allows("^docker0,^fd00::/8", "fd00::1", "eth0"));
        assert!(allows("192.0.2.1", "192.0.2.1", "x") && !allows("192.0.2.1", "192.0.2.2", "x"));
        assert!(allows("0.0.0.0/0", "192.0.2.1", "x") && !allows("0.0.0.0/0", "fd00::1", "x"));
        assert!(allows("::/0", "fd00::1", "x") && allows("e*?0", "fd00::1", "eth0") && !allows("e*?0", "::1", "e0"));
    }

    #[test]
    fn a_peers_address_is_refused_by_range_only() {
        let nets = Nets::parse("10.0.0.0/8,^172.17.0.0/16,^docker0").unwrap();
        assert!(nets.refuses("172.17.0.1".parse().unwrap()) && !nets.refuses("192.0.2.1".parse().unwrap()));
        assert!(nets.refuses("::ffff:172.17.0.1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["10.0.0.0/33", "::/129", "a,,b", "^", "10.0.0.0/x", "a b"] {
            assert_eq!(Nets::parse(text), None, "{text}");
        }
    }
}
