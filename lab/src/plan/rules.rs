//! The rules for nft(8): which connections may be opened, and NAT.

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::file::{Firewall, Grid, Site};
use crate::net::is_six;

/// What IPv6 needs to find its neighbours is never blocked.
// Protocols by number: nft(8) knows their names from a file that a minimal system does not have.
const NEIGHBOURS: &str = "    meta l4proto 58 icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept\n";
const KNOWN: &str = "    ct state established,related accept\n";

/// The lines that pass connections to open ports and block the rest; `which` is the match for their origin and destination.
fn block(firewall: &Firewall, which: &str) -> String {
    let open = open(firewall, which);
    if firewall.refuse {
        format!("{open}    {which}meta l4proto 6 reject with tcp reset\n    {which}reject\n")
    } else {
        format!("{open}    {which}drop\n")
    }
}

/// A line for each protocol that passes connections to the open ports; `which` is the match for their origin.
fn open(firewall: &Firewall, which: &str) -> String {
    if firewall.open.is_empty() {
        return String::new();
    }
    let ports: Vec<String> = firewall.open.iter().map(u16::to_string).collect();
    let ports = ports.join(", ");
    format!("    {which}tcp dport {{ {ports} }} accept\n    {which}udp dport {{ {ports} }} accept\n")
}

/// The rules of a host; empty where it has no firewall.
pub(super) fn host(firewall: &Firewall) -> String {
    if !firewall.inward && !firewall.outward {
        return String::new();
    }
    let mut text = "table inet lab {\n".to_owned();
    for (blocked, chain, loopback) in [(firewall.inward, "input", "iifname"), (firewall.outward, "output", "oifname")] {
        if blocked {
            let _ = write!(
                text,
                "  chain {chain} {{ type filter hook {chain} priority filter; policy accept;\n    {loopback} \"lo\" accept\n{KNOWN}{NEIGHBOURS}{}  }}\n",
                block(firewall, ""),
            );
        }
    }
    text + "}\n"
}

/// The rules of a site's router. `given` has the addresses of hosts.
pub(super) fn router(grid: &Grid, site: &Site, given: &[(String, IpAddr)]) -> String {
    let is_end = |between: &[usize; 2]| between.iter().any(|&end| grid.sites[end].name == site.name);
    let links = grid.links.iter().filter(|link| is_end(&link.between));
    let links: Vec<String> = links.map(|link| format!("\"{}\"", link.name)).collect();
    if links.is_empty() || !(site.nat || site.firewall.inward || site.firewall.outward) {
        return String::new();
    }
    let (out, firewall) = (format!("{{ {} }}", links.join(", ")), &site.firewall);
    let mut text = format!(
        "table inet lab {{\n  chain forward {{ type filter hook forward priority filter; policy accept;\n{KNOWN}"
    );
    if site.nat {
        // Packets that did not come by a forwarded port could only come from a host with a route to the inner network.
        let _ = writeln!(text, "    iifname {out} ct status dnat accept\n    iifname {out} oifname \"lan\" drop");
    }
    if firewall.inward {
        text += &block(firewall, &format!("iifname {out} oifname \"lan\" "));
    }
    if firewall.outward {
        text += &block(firewall, &format!("iifname \"lan\" oifname {out} "));
    }
    text += "  }\n";
    if firewall.inward || site.nat {
        // Unsolicited packets to a NAT vanish. If they were refused, the router would track them as a connection of its own, and map a
        // host's connection to the same place to another port.
        let blocked = if firewall.inward {
            block(firewall, &format!("iifname {out} "))
        } else {
            format!("    iifname {out} meta l4proto {{ 6, 17 }} drop\n")
        };
        let _ = write!(
            text,
            "  chain input {{ type filter hook input priority filter; policy accept;\n{KNOWN}{NEIGHBOURS}{blocked}  }}\n",
        );
    }
    if site.nat {
        text += &nat(site, &out, given);
    }
    text + "}\n"
}

fn nat(site: &Site, out: &str, given: &[(String, IpAddr)]) -> String {
    let mut text = "  chain prerouting { type nat hook prerouting priority dstnat; policy accept;\n".to_owned();
    for forward in &site.forward {
        for (_, address) in given.iter().filter(|(name, address)| *name == forward.host && is_of(site, *address)) {
            let to = match address {
                IpAddr::V4(four) => format!("ip to {four}:{}", forward.to),
                IpAddr::V6(six) => format!("ip6 to [{six}]:{}", forward.to),
            };
            for protocol in ["tcp", "udp"] {
                let family = if is_six(*address) { "ipv6" } else { "ipv4" };
                let _ = writeln!(
                    text,
                    "    iifname {out} meta nfproto {family} {protocol} dport {} dnat {to}",
                    forward.port
                );
            }
        }
    }
    text += "  }\n  chain postrouting { type nat hook postrouting priority srcnat; policy accept;\n";
    for net in &site.networks {
        let family = if net.is_six() { "ip6" } else { "ip" };
        let random = if site.symmetric { " fully-random" } else { "" };
        let _ = writeln!(text, "    {family} saddr {net} oifname {out} masquerade{random}");
    }
    text + "  }\n"
}

fn is_of(site: &Site, address: IpAddr) -> bool {
    site.networks.iter().any(|net| net.contains(address))
}
