//! What a file describes: sites, switches, hosts, links.

use std::net::IpAddr;

use crate::net::Net;
use crate::wan::settings::Settings;

/// Everything a file describes; names are unique, and refer to what is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grid {
    /// Sites, in the order of the file.
    pub sites: Vec<Site>,
    /// Switches that no router is connected to.
    pub switches: Vec<Switch>,
    /// Hosts, in the order in which they are first named.
    pub hosts: Vec<Host>,
    /// WAN links between sites.
    pub links: Vec<WanLink>,
}

/// A site: a network of hosts behind a router.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// Its networks, one or two (IPv4, IPv6).
    pub networks: Vec<Net>,
    /// The names of its hosts.
    pub hosts: Vec<String>,
    /// Whether its hosts are seen from outside under the router's address only.
    pub nat: bool,
    /// With NAT: each connection leaves from another port of the router's, so that the next one cannot be predicted from outside.
    pub symmetric: bool,
    /// With NAT: ports of the router that lead to a host's port.
    pub forward: Vec<Forward>,
    /// What its router lets through.
    pub firewall: Firewall,
}

/// A port of a router that leads to a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// Of the router.
    pub port: u16,
    /// Leads to this host.
    pub host: String,
    /// And this port.
    pub to: u16,
}

/// What a firewall lets through, besides answers to what it let through.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Firewall {
    /// Connections from outside are blocked.
    pub inward: bool,
    /// Connections to the outside are blocked.
    pub outward: bool,
    /// But for those to these ports.
    pub open: Vec<u16>,
    /// What is blocked is refused, instead of vanishing.
    pub refuse: bool,
}

/// A switch without a router.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// Its name.
    pub name: String,
    /// Its networks.
    pub networks: Vec<Net>,
    /// The names of its hosts.
    pub hosts: Vec<String>,
}

/// A host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Addresses to be used instead of the next ones of its networks.
    pub addresses: Vec<IpAddr>,
    /// Bridges without other hosts, by the name of the device.
    pub bridges: Vec<(String, Net)>,
    /// Network cards that are connected to nothing, by the name of the device.
    pub dangling: Vec<(String, Net)>,
    /// What it lets through.
    pub firewall: Firewall,
    /// Directories that it does not share with the machine.
    pub private: Vec<String>,
    /// The size of its `/dev/shm`, as mount(8) reads it.
    pub shm: Option<String>,
    /// Kernel settings of its network.
    pub sysctl: Vec<(String, String)>,
}

/// A WAN link between two sites.
#[derive(Clone, Debug, PartialEq)]
pub struct WanLink {
    /// Its name.
    pub name: String,
    /// The places of its sites in [`Grid::sites`].
    pub between: [usize; 2],
    /// What it does to packets.
    pub settings: Settings,
    /// Which packets it loses.
    pub seed: u64,
}
