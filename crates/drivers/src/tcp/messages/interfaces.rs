//! Under which addresses others may reach this host: every address of every interface that is up, likeliest first.
//!
//! The order is a guess (hardware before bridges and tunnels, fast before slow, a route to elsewhere before none); it only decides
//! what is tried a moment earlier. Nothing is left out but what the user does not want, and loopback where there is anything else.
//! The kernel is queried by rtnetlink(7).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use madrigal_base::network::Nets;
use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The addresses that may be used. Where the kernel's may not be queried (a sandbox), the likely one must do.
pub(in super::super) fn addresses(nets: &Nets) -> Vec<IpAddr> {
    all(nets).unwrap_or_else(|_| likely_address().into_iter().collect())
}

fn all(nets: &Nets) -> Result<Vec<IpAddr>, Errno> {
    let mut host = Host::default();
    let socket = Fd::from(rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?);
    for question in [GET_LINK, GET_ROUTE, GET_ADDRESS] {
        ask(&socket, question, &mut |kind, message| host.handle(kind, message))?;
    }
    Ok(host.usable(nets))
}

/// The address from which this host would reach others, where the kernel does not list them all.
fn likely_address() -> Option<IpAddr> {
    // Documentation addresses: nothing is sent by connecting a datagram socket.
    let to = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 9));
    let fd = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let fd = Fd::from(fd.ok()?);
    rustix::net::connect(&fd, &to).ok()?;
    let own: SocketAddr = rustix::net::getsockname(&fd).ok()?.try_into().ok()?;
    Some(own.ip())
}

/// What the kernel reported.
#[derive(Default)]
struct Host {
    interfaces: HashMap<u32, Interface>,
    addresses: Vec<(u32, IpAddr, Worth)>,
}

#[derive(Default)]
struct Interface {
    name: String,
    flags: u32,
    /// What made it: empty for hardware.
    kind: String,
    /// A route to elsewhere leads over it.
    routed: bool,
}

/// How likely an address is to work: the less the likelier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Worth {
    no_carrier: bool,
    link_local: bool,
    deprecated: bool,
    class: u8,
    slowness: u32,
    unrouted: bool,
}

impl Host {
    fn handle(&mut self, kind: u16, message: &[u8]) {
        match kind {
            NEW_LINK => self.handle_link(message),
            NEW_ROUTE => self.handle_route(message),
            NEW_ADDRESS => self.handle_address(message),
            _ => {}
        }
    }

    fn handle_link(&mut self, message: &[u8]) {
        let (Some(index), Some(flags)) = (word(message, 4), word(message, 8)) else { return };
        let interface = self.interfaces.entry(index).or_default();
        interface.flags = flags;
        for (attribute, value) in attributes(message.get(16..).unwrap_or_default()) {
            match attribute {
                IFLA_IFNAME => interface.name = text(value),
                IFLA_LINKINFO => {
                    let kind = attributes(value).find(|(attribute, _)| *attribute == IFLA_INFO_KIND);
                    interface.kind = kind.map(|(_, value)| text(value)).unwrap_or_default();
                }
                _ => {}
            }
        }
    }

    fn handle_route(&mut self, message: &[u8]) {
        let (mut over, mut gateway) = (None, false);
        for (attribute, value) in attributes(message.get(12..).unwrap_or_default()) {
            match attribute {
                RTA_OIF => over = word(value, 0),
                RTA_GATEWAY => gateway = true,
                _ => {}
            }
        }
        if let (Some(index), true) = (over, gateway) {
            self.interfaces.entry(index).or_default().routed = true;
        }
    }

    fn handle_address(&mut self, message: &[u8]) {
        let Some(index) = word(message, 4) else { return };
        let (mut local, mut any, mut flags) = (None, None, u32::from(message.get(2).copied().unwrap_or(0)));
        for (attribute, value) in attributes(message.get(8..).unwrap_or_default()) {
            match attribute {
                IFA_LOCAL => local = address(value),
                IFA_ADDRESS => any = address(value),
                IFA_FLAGS => flags = word(value, 0).unwrap_or(flags),
                _ => {}
            }
        }
        let Some(address) = local.or(any).filter(|_| flags & (TENTATIVE | FAILED) == 0) else { return };
        let link_local = match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            // Such an address is of no use to others: they would have to know over which of their interfaces.
            IpAddr::V6(v6) if v6.is_unicast_link_local() => return,
            IpAddr::V6(_) => false,
        };
        let worth = Worth { link_local, deprecated: flags & DEPRECATED != 0, ..Worth::default() };
        self.addresses.push((index, address, worth));
    }

    fn usable(&self, nets: &Nets) -> Vec<IpAddr> {
        let mut found: Vec<(bool, Worth, usize, IpAddr)> = Vec::new();
        for (i, &(index, address, worth)) in self.addresses.iter().enumerate() {
            let Some(interface) = self.interfaces.get(&index).filter(|interface| interface.flags & UP != 0) else {
                continue;
            };
            if nets.allows(address, &interface.name) {
                let loopback = interface.flags & LOOPBACK != 0 || address.is_loopback();
                found.push((loopback, interface.worth(worth), i, address));
            }
        }
        found.sort();
        let only_loopback = found.iter().all(|(loopback, ..)| *loopback);
        found.iter().filter(|(loopback, ..)| only_loopback || !loopback).map(|&(.., address)| address).collect()
    }
}

impl Interface {
    fn worth(&self, worth: Worth) -> Worth {
        let tunnel = self.flags & POINT_TO_POINT != 0 || matches!(&self.kind[..], "tun" | "wireguard" | "sit" | "gre");
        let class = match &self.kind[..] {
            _ if tunnel => 2,
            "" | "bond" | "team" | "vlan" | "ipoib" => 0,
            "bridge" if !self.routed => 3,
            _ => 1,
        };
        let slowness = u32::MAX - speed(&self.name);
        Worth { no_carrier: self.flags & LOWER_UP == 0, class, slowness, unrouted: !self.routed, ..worth }
    }
}

/// Megabits a second, 0 where unknown.
fn speed(name: &str) -> u32 {
    let mut text = [0u8; 16];
    let mut read = || {
        let path = format!("/sys/class/net/{name}/speed");
        let file = Fd::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?);
        let len = rustix::io::read(&file, &mut text).ok()?;
        core::str::from_utf8(text.get(..len)?).ok()?.trim().parse::<i32>().ok()
    };
    read().and_then(|speed| u32::try_from(speed).ok()).unwrap_or(0)
}

/// Requests a list and passes every message of the answer to `handle`: its type, and what follows its header.
fn ask(socket: &Fd, question: u16, handle: &mut dyn FnMut(u16, &[u8])) -> Result<(), Errno> {
    let mut request = [0u8; HEADER + 4];
    request[0] = (HEADER + 4) as u8;
    request[4..6].copy_from_slice(&question.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    rustix::net::send(socket, &request, SendFlags::empty())?;
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        let (len, _) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
        let mut rest = buffer.get(..len).unwrap_or_default();
        while let (Some(length), Some(kind)) = (word(rest, 0), half(rest, 4)) {
            let length = length as usize;
            match kind {
                DONE => return Ok(()),
                ERROR => return Err(Errno::from_raw_os_error(word(rest, HEADER).map_or(0, |e| -(e as i32)))),
                _ => handle(kind, rest.get(HEADER..length).unwrap_or_default()),
            }
            rest = rest.get(length.next_multiple_of(4).max(HEADER)..).unwrap_or_default();
        }
    }
}

/// Attributes one after the other: number and value.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, number) = (usize::from(half(rest, 0)?), half(rest, 2)? & 0x3fff);
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((number, value))
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_ne_bytes(*b))
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|b| *b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(value.get(..end).unwrap_or_default()).into_owned()
}

fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok()
}

// linux/netlink.h
const HEADER: usize = 16;
const REQUEST_DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
// linux/rtnetlink.h
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
// linux/if_link.h
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
// linux/if_addr.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const FAILED: u32 = 0x08;
const DEPRECATED: u32 = 0x20;
const TENTATIVE: u32 = 0x40;
// linux/if.h
const UP: u32 = 0x1;
const LOOPBACK: u32 = 0x8;
const POINT_TO_POINT: u32 = 0x10;
const LOWER_UP: u32 = 0x10000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = [(4 + value.len() as u16).to_ne_bytes(), number.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn link(host: &mut Host, index: u32, name: &str, flags: u32, kind: &str) {
        let mut message = vec![0; 16];
        message[4..8].copy_from_slice(&index.to_ne_bytes());
        message[8..12].copy_from_slice(&flags.to_ne_bytes());
        message.extend(attribute(IFLA_IFNAME, format!("{name}\0").as_bytes()));
        message.extend(attribute(IFLA_LINKINFO, &attribute(IFLA_INFO_KIND, kind.as_bytes())));
        host.handle(NEW_LINK, &message);
    }

    fn owns(host: &mut Host, index: u32, address: &str) {
        let mut message = vec![0; 8];
        message[4..8].copy_from_slice(&index.to_ne_bytes());
        let value = match address.parse().unwrap() {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        message.extend(attribute(IFA_LOCAL, &value));
        host.handle(NEW_ADDRESS, &message);
    }

    /// A host as they are found: loopback, a bridge of containers without carrier, a tunnel, hardware that is routed, and one more.
    fn host() -> Host {
        let mut host = Host::default();
        link(&mut host, 1, "lo", UP | LOOPBACK | LOWER_UP, "");
        link(&mut host, 2, "docker0", UP, "bridge");
        link(&mut host, 3, "tun0", UP | POINT_TO_POINT | LOWER_UP, "tun");
        link(&mut host, 4, "x-dangling", UP | LOWER_UP, "");
        link(&mut host, 5, "x-eth", UP | LOWER_UP, "");
        link(&mut host, 6, "x-down", LOWER_UP, "");
        let addresses = ["127.0.0.1", "172.17.0.1", "10.8.0.1", "10.1.0.1", "192.0.2.1", "192.0.2.99"];
        for (index, address) in (1..).zip(addresses) {
            owns(&mut host, index, address);
        }
        owns(&mut host, 5, "2001:db8::1");
        owns(&mut host, 5, "fe80::1");
        let mut route = vec![0; 12];
        route.extend(attribute(RTA_GATEWAY, &[192, 0, 2, 254]));
        route.extend(attribute(RTA_OIF, &5u32.to_ne_bytes()));
        host.handle(NEW_ROUTE, &route);
        host
    }

    fn usable(host: &Host, nets: &str) -> Vec<String> {
        host.usable(&Nets::parse(nets).unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_likeliest_comes_first_and_nothing_is_left_out() {
        assert_eq!(
            usable(&host(), ""),
            ["192.0.2.1", "2001:db8::1", "10.1.0.1", "10.8.0.1", "172.17.0.1"],
            "loopback is of no use, nor is what is down"
        );
    }

    #[test]
    fn the_user_wishes_by_name_and_address() {
        assert_eq!(usable(&host(), "^docker0,^2001:db8::/32,^tun*"), ["192.0.2.1", "10.1.0.1"]);
        assert_eq!(usable(&host(), "tun0"), ["10.8.0.1"]);
        assert_eq!(usable(&host(), "lo"), ["127.0.0.1"]);
    }

    #[test]
    fn the_kernel_of_this_machine_is_understood() {
        let found = all(&Nets::default()).expect("rtnetlink answers");
        assert!(found.iter().any(IpAddr::is_loopback) || !found.is_empty(), "every machine has an address: {found:?}");
        let loopback = all(&Nets::parse("lo").unwrap()).expect("rtnetlink answers");
        assert!(loopback.iter().all(|address| address.is_loopback() || !address.is_multicast()), "{loopback:?}");
    }

    proptest! {
        #[test]
        fn any_message_is_survived(kind in 14u16..30, message: Vec<u8>) {
            let mut host = host();
            host.handle(kind, &message);
            host.usable(&Nets::default());
        }
    }
}
