//! What has to be built for a grid: nodes, cables between them, and the commands for ip(8) and nft(8) in each. Pure: nothing is built here.
//!
//! ```text
//!   a host: eth0 --- port on the bridge `lan` of its site's router `gw-SITE` --- TUN device of a WAN link --- another router
//!   a switch without a router: a bridge in the keeper's own network namespace, where dangling cards end, too
//! ```

mod addresses;
mod routes;
mod rules;

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::file::{Grid, Host};
use crate::net::Net;

pub use addresses::public;
pub(crate) use addresses::whole;

/// Everything to build.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Hosts, then routers.
    pub nodes: Vec<Node>,
    /// Pairs of devices that are connected.
    pub cables: Vec<Cable>,
    /// For ip(8) in the keeper's own namespace, when all cables lie.
    pub keeper: Vec<String>,
    /// The `/etc/hosts` of all.
    pub hosts: String,
}

/// A host or a router.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Its name, and host name.
    pub name: String,
    /// Whether it is a router.
    pub router: bool,
    /// Its addresses, for people.
    pub addresses: Vec<String>,
    /// For ip(8), when all cables and links lie.
    pub ip: Vec<String>,
    /// For nft(8); may be empty.
    pub nft: String,
    /// Kernel settings, as paths below `/proc/sys` and values.
    pub sysctl: Vec<(String, String)>,
    /// Directories it has for itself.
    pub private: Vec<String>,
    /// The size of its `/dev/shm`.
    pub shm: Option<String>,
}

/// Where a cable ends: a device of a node, or (`None`) of the keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plug {
    /// The place of the node in [`Plan::nodes`].
    pub node: Option<usize>,
    /// The name of the device.
    pub device: String,
}

/// Two devices that are connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cable(pub [Plug; 2]);

/// The name of a site's router.
pub fn router_name(site: &str) -> String {
    format!("gw-{site}")
}

/// How many sites there may be.
pub(crate) const MOST_SITES: usize = 250;

/// An address as ip(8) takes it; without the test for duplicates, which would take seconds.
fn assign(net: &Net, device: &str) -> String {
    let quick = if net.is_six() { " nodad" } else { "" };
    format!("addr add {net} dev {device}{quick}")
}

/// The plan for `grid`; an error names a host for which a network has no address left.
pub fn plan(grid: &Grid) -> Result<Plan, String> {
    if grid.sites.len() > MOST_SITES {
        return Err(format!("more than {MOST_SITES} sites"));
    }
    let mut work = Work { grid, plan: Plan::default(), names: String::new(), given: Vec::new() };
    work.nodes();
    for (n, site) in grid.sites.iter().enumerate() {
        let router = grid.hosts.len() + n;
        for (place, host) in site.hosts.iter().enumerate() {
            let node = work.connect(host, Plug { node: Some(router), device: host.clone() });
            let addresses = work.address(node, &site.networks, place)?;
            work.name(node, &addresses, None);
            work.plan.nodes[router].ip.push(format!("link set dev {host} master lan up"));
            work.default_route(node, &site.networks);
        }
        let nft = rules::router(grid, site, &work.given);
        work.plan.nodes[router].nft = nft;
    }
    work.switches()?;
    for (node, host) in grid.hosts.iter().enumerate() {
        work.own_devices(node, host);
        work.plan.nodes[node].nft = rules::host(&host.firewall);
    }
    for (n, site) in grid.sites.iter().enumerate() {
        work.plan.nodes[grid.hosts.len() + n].ip.extend(routes::of(grid, n));
        let [four, six] = public(n);
        let _ = writeln!(work.names, "{four} {0}\n{six} {0}", router_name(&site.name));
    }
    work.plan.hosts = format!("127.0.0.1 localhost\n::1 localhost ip6-localhost\n{}", work.names);
    Ok(work.plan)
}

/// A plan in the making.
struct Work<'g> {
    grid: &'g Grid,
    plan: Plan,
    /// Lines of `/etc/hosts`.
    names: String,
    /// The first addresses of hosts, in the order in which they are given.
    given: Vec<(String, IpAddr)>,
}

impl Work<'_> {
    /// All nodes, with what each has by itself.
    fn nodes(&mut self) {
        let all = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let plain = vec![
            all("net/ipv4/conf/all/rp_filter", "0"),
            all("net/ipv4/conf/default/rp_filter", "0"),
            all("net/ipv6/conf/all/disable_ipv6", "0"),
            all("net/ipv6/conf/default/disable_ipv6", "0"),
            all("net/ipv6/conf/default/accept_dad", "0"),
            all("net/ipv6/conf/default/accept_ra", "0"),
        ];
        let up = vec!["link set dev lo up".to_owned()];
        for host in &self.grid.hosts {
            let mut sysctl = plain.clone();
            sysctl.extend(host.sysctl.iter().map(|(key, value)| (key.replace('.', "/"), value.clone())));
            let (name, private, shm) = (host.name.clone(), host.private.clone(), host.shm.clone());
            self.plan.nodes.push(Node { name, ip: up.clone(), sysctl, private, shm, ..Node::default() });
        }
        for (n, site) in self.grid.sites.iter().enumerate() {
            let mut sysctl = plain.clone();
            sysctl.extend([all("net/ipv4/ip_forward", "1"), all("net/ipv6/conf/all/forwarding", "1")]);
            let mut ip = up.clone();
            ip.push("link add name lan type bridge mcast_snooping 0".to_owned());
            ip.push("link set dev lan up".to_owned());
            let gateways: Vec<Net> = site.networks.iter().filter_map(|net| net.host(1)).collect();
            ip.extend(gateways.iter().map(|gateway| assign(gateway, "lan")));
            let public = public(n);
            ip.extend(public.map(|address| assign(&whole(address), "lo")));
            let addresses =
                gateways.iter().map(Net::to_string).chain(public.map(|address| address.to_string())).collect();
            self.plan.nodes.push(Node {
                name: router_name(&site.name),
                router: true,
                ip,
                sysctl,
                addresses,
                ..Node::default()
            });
        }
    }

    /// Lays a cable from the next card of a host to `other`; returns the host's place.
    fn connect(&mut self, host: &str, other: Plug) -> usize {
        let node = self.grid.hosts.iter().position(|known| known.name == host).unwrap_or_default();
        let card = |cable: &&Cable| cable.0[0].node == Some(node) && cable.0[0].device.starts_with("eth");
        let device = format!("eth{}", self.plan.cables.iter().filter(card).count());
        self.plan.cables.push(Cable([Plug { node: Some(node), device }, other]));
        node
    }

    /// Gives the newest card of a host its addresses in `nets`: its own, or those of the place the host has there.
    fn address(&mut self, node: usize, nets: &[Net], place: usize) -> Result<Vec<Net>, String> {
        let host = &self.grid.hosts[node];
        let device = self.plan.cables.last().map(|cable| cable.0[0].device.clone()).unwrap_or_default();
        let mut addresses = Vec::new();
        for net in nets {
            let own = host.addresses.iter().find(|address| net.contains(**address));
            let own = own.map(|&address| Net { address, prefix: net.prefix });
            let next = own.or_else(|| net.host(place as u32 + 2));
            addresses.push(next.ok_or_else(|| format!("network {net} has no address for host `{}`", host.name))?);
        }
        let node = &mut self.plan.nodes[node];
        node.ip.push(format!("link set dev {device} up"));
        node.ip.extend(addresses.iter().map(|address| assign(address, &device)));
        node.addresses.extend(addresses.iter().map(Net::to_string));
        Ok(addresses)
    }

    /// Writes a host's addresses under its name, where they are its first of their family, and under `NAME-alias`.
    fn name(&mut self, node: usize, addresses: &[Net], alias: Option<&str>) {
        let name = &self.grid.hosts[node].name;
        for net in addresses {
            let first = !self
                .given
                .iter()
                .any(|(known, address)| known == name && crate::net::is_six(*address) == net.is_six());
            let alias = alias.map(|alias| format!("{name}-{alias}"));
            let names: Vec<&str> = first.then_some(name.as_str()).into_iter().chain(alias.as_deref()).collect();
            if !names.is_empty() {
                let _ = writeln!(self.names, "{} {}", net.address, names.join(" "));
            }
            self.given.push((name.clone(), net.address));
        }
    }

    /// The way out, by the router of the first site a host is in.
    fn default_route(&mut self, node: usize, nets: &[Net]) {
        let node = &mut self.plan.nodes[node];
        for gateway in nets.iter().filter_map(|net| net.host(1)) {
            let all = if gateway.is_six() { "::/0" } else { "default" };
            let route = format!("route add {all} via ");
            if !node.ip.iter().any(|known| known.starts_with(&route)) {
                node.ip.push(format!("{route}{}", gateway.address));
            }
        }
    }

    /// A device of the keeper's that a cable can end at.
    fn spare(&self) -> Plug {
        let count = self.plan.cables.iter().filter(|cable| cable.0[1].node.is_none()).count();
        Plug { node: None, device: format!("wire{count}") }
    }

    fn switches(&mut self) -> Result<(), String> {
        for (n, switch) in self.grid.switches.iter().enumerate() {
            self.plan.keeper.push(format!("link add name bridge{n} type bridge mcast_snooping 0"));
            self.plan.keeper.push(format!("link set dev bridge{n} up"));
            for (place, host) in switch.hosts.iter().enumerate() {
                let port = self.spare();
                self.plan.keeper.push(format!("link set dev {} master bridge{n} up", port.device));
                let node = self.connect(host, port);
                let addresses = self.address(node, &switch.networks, place)?;
                self.name(node, &addresses, Some(&switch.name));
            }
        }
        Ok(())
    }

    /// Bridges and cards that lead nowhere; both have a carrier, for only the far end of the cable is alone.
    fn own_devices(&mut self, node: usize, host: &Host) {
        let bridges = host.bridges.iter().map(|(name, net)| (name, net, true));
        for (name, net, bridge) in bridges.chain(host.dangling.iter().map(|(name, net)| (name, net, false))) {
            let far = self.spare();
            self.plan.keeper.push(format!("link set dev {} up", far.device));
            let device = if bridge { format!("veth{}", far.device.trim_start_matches("wire")) } else { name.clone() };
            let ip = &mut self.plan.nodes[node].ip;
            if bridge {
                ip.push(format!("link add name {name} type bridge"));
                ip.push(format!("link set dev {device} master {name}"));
                ip.push(format!("link set dev {device} up"));
            }
            ip.push(format!("link set dev {name} up"));
            ip.push(assign(net, name));
            self.plan.nodes[node].addresses.push(format!("{net} ({name})"));
            self.plan.cables.push(Cable([Plug { node: Some(node), device }, far]));
        }
    }
}

#[cfg(test)]
mod tests;
