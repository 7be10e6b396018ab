//! The hosts of a grid, written by a daemon for the programs of its host: the addresses and the name of each, and whether connections there
//! go through the daemon. Text, one line per host, so that it can be read without allocation.
//!
//! ```text
//!  madrigal-hosts 1
//!  : 40001 40002 40003 40004
//!  a1 own 127.77.0.1 10.1.0.2
//!  b1 enciphered 127.77.0.3 10.2.0.2 fd00:b::2
//! ```
//! The second line has the ports at which the daemon lets programs' sockets wait, by IPv4 and by IPv6, and those where they are refused.
//! The first address of a host is its *alias*: no network card has it, and it means this host everywhere in the grid. The others are the
//! host's own, unless another host of the grid has them, too.

use core::net::{IpAddr, Ipv4Addr};

/// What every file begins with.
const HEAD: &str = "madrigal-hosts 1";
/// The longest text that is read.
pub const LONGEST: usize = 128 << 10;
/// The longest name of a host.
pub const LONGEST_NAME: usize = 64;
/// Hosts of a network of aliases: numbers 1 to 254 in each of 256.
const ALIASES: usize = 254 * 256;

/// How a program connects to a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// It is this host.
    Own,
    /// By itself.
    Direct,
    /// Through the daemon.
    Daemon,
    /// Through the daemon, because what goes there has to be enciphered: where no daemon is up, not at all.
    Enciphered,
    /// Through the daemon, which enciphers; by itself where no daemon is up.
    Preferred,
}

/// A host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Its name.
    pub name: &'a str,
    /// How to connect to it, where it is called by an address of its own.
    pub how: How,
    /// The address that no other host has.
    pub alias: Ipv4Addr,
    addresses: &'a str,
}

/// The alias of the host at this place in the grid; `None` where there are too many.
pub fn alias(place: usize) -> Option<Ipv4Addr> {
    let (high, low) = (place / 254, place % 254 + 1);
    (place < ALIASES).then(|| Ipv4Addr::new(127, 77, high as u8, low as u8))
}

/// Whether an address is of those that aliases are taken from.
pub fn is_alias(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(four) if four.octets()[..2] == [127, 77])
}

/// Ports of the loopback addresses: where sockets wait, by IPv4 and by IPv6, and where they are refused; 0 for none.
pub type Ports = [u16; 4];

/// Reads ports as a daemon writes them.
pub fn read_ports(text: &str) -> Option<Ports> {
    let mut all = text.split(' ').map(str::parse::<u16>);
    let mut next = || all.next()?.ok();
    Some([next()?, next()?, next()?, next()?])
}

/// The ports in a file.
pub fn ports(text: &str) -> Option<Ports> {
    let mut lines = text.lines();
    let line = lines.next().filter(|line| *line == HEAD).and_then(|_| lines.next())?;
    read_ports(line.strip_prefix(": ")?)
}

/// A file's text.
pub fn write<'a>(ports: Ports, hosts: impl Iterator<Item = (&'a str, How, Vec<IpAddr>)>) -> String {
    let [a, b, c, d] = ports;
    let mut text = format!("{HEAD}\n: {a} {b} {c} {d}\n");
    for (place, (name, how, addresses)) in hosts.enumerate() {
        let Some(alias) = alias(place) else { break };
        let how = match how {
            How::Own => "own",
            How::Direct => "direct",
            How::Daemon => "daemon",
            How::Enciphered => "enciphered",
            How::Preferred => "preferred",
        };
        let addresses: String = addresses.iter().map(|ip| format!(" {ip}")).collect();
        let line = format!("{name} {how} {alias}{addresses}\n");
        if text.len() + line.len() > LONGEST {
            break;
        }
        text += &line;
    }
    text
}

/// All hosts of a file, in its order; none, if it is something else.
pub fn entries(text: &str) -> impl Iterator<Item = Entry<'_>> {
    let mut lines = text.lines();
    let good = lines.next() == Some(HEAD);
    lines.take_while(move |_| good).filter_map(entry)
}

fn entry(line: &str) -> Option<Entry<'_>> {
    let (name, rest) = line.split_once(' ')?;
    let (how, rest) = rest.split_once(' ')?;
    let (alias, addresses) = rest.split_once(' ').unwrap_or((rest, ""));
    let how = match how {
        "own" => How::Own,
        "direct" => How::Direct,
        "daemon" => How::Daemon,
        "enciphered" => How::Enciphered,
        "preferred" => How::Preferred,
        _ => return None,
    };
    let good = !name.is_empty() && name.len() <= LONGEST_NAME && name.bytes().all(is_plain);
    good.then_some(Entry { name, how, alias: alias.parse().ok()?, addresses })
}

/// Whether a byte may stand in a name: nothing that would have to be quoted anywhere.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

impl How {
    /// Whether it is by the daemon.
    pub fn is_daemon(self) -> bool {
        matches!(self, Self::Daemon | Self::Enciphered | Self::Preferred)
    }
}

impl<'a> Entry<'a> {
    /// Its own addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<'a> {
        self.addresses.split(' ').filter_map(|ip| ip.parse().ok())
    }

    /// Whether this is an address of it, or its alias.
    pub fn has(&self, ip: IpAddr) -> bool {
        ip == IpAddr::V4(self.alias) || self.addresses().any(|own| own == ip)
    }

    /// Whether this is its name, as host names are compared.
    pub fn is_called(&self, name: &[u8]) -> bool {
        self.name.as_bytes().eq_ignore_ascii_case(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let ips = |all: &[&str]| all.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        let hosts = [
            ("a1", How::Own, ips(&["10.1.0.2"])),
            ("b1", How::Enciphered, ips(&["10.2.0.2", "fd00::2"])),
            ("c.x_y-z", How::Direct, vec![]),
            ("d1", How::Daemon, vec![]),
            ("e1", How::Preferred, ips(&["10.3.0.2"])),
        ];
        let text = write([7, 0, 65535, 9], hosts.iter().cloned());
        assert_eq!(ports(&text), Some([7, 0, 65535, 9]));
        assert_eq!(
            text,
            "madrigal-hosts 1\n: 7 0 65535 9\na1 own 127.77.0.1 10.1.0.2\nb1 enciphered 127.77.0.2 10.2.0.2 fd00::2\nc.x_y-z direct 127.77.0.3\n\
             d1 daemon 127.77.0.4\ne1 preferred 127.77.0.5 10.3.0.2\n"
        );
        let read: Vec<_> = entries(&text).map(|e| (e.name, e.how, e.addresses().collect::<Vec<_>>())).collect();
        assert_eq!(read, hosts);
        let find = |ip: &str| entries(&text).find(|entry| entry.has(ip.parse().unwrap())).map(|entry| entry.name);
        assert_eq!((find("fd00::2"), find("127.77.0.3"), find("10.2.0.3")), (Some("b1"), Some("c.x_y-z"), None));
        assert!(entries(&text).nth(1).unwrap().is_called(b"B1"));
    }

    #[test]
    fn aliases_are_different_and_known_as_such() {
        let all: Vec<_> = (0..ALIASES).map(|place| alias(place).unwrap()).collect();
        assert!(all.windows(2).all(|two| two[0] < two[1]) && all.iter().all(|ip| is_alias((*ip).into())));
        assert!(alias(ALIASES).is_none() && !is_alias(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }

    #[test]
    fn what_is_no_such_file_has_no_hosts() {
        for text in ["", "madrigal-hosts 2\na1 own 127.77.0.1\n", "a1 own 127.77.0.1\n"] {
            assert_eq!(entries(text).count(), 0, "{text}");
        }
        let text = "madrigal-hosts 1\n\na1\na1 own\na1 mine 127.77.0.1\na\"1 own 127.77.0.1\na1 own 127.77.0.x\n";
        assert_eq!(entries(text).count(), 0);
        for text in [
            "madrigal-hosts 1",
            "madrigal-hosts 1\na1 own 127.77.0.1\n",
            "madrigal-hosts 1\n: 1 2 3\n",
            "x\n: 1 2 3 4\n",
        ] {
            assert_eq!(ports(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(text: String) {
            let _ = ports(&format!("{HEAD}\n: {text}"));
            for text in [text.clone(), format!("{HEAD}\n{text}"), format!("{HEAD}\na1 own 127.77.0.1 {text}")] {
                for entry in entries(&text) {
                    prop_assert!(entry.name.len() <= LONGEST_NAME);
                    entry.addresses().for_each(drop);
                }
            }
        }
    }
}
