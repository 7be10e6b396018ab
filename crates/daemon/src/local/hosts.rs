//! The hosts file: for programs of this host it maps addresses and names to hosts, and has whether connections there go through the daemon
//! ([`madrigal_proto::hosts`]).

use std::net::{IpAddr, Ipv4Addr};

use madrigal_proto::hosts::{self, How};

use crate::grid::{Grid, Host};

/// The text of a hosts file.
#[derive(Clone, Debug)]
pub struct HostsFile(String);

impl HostsFile {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// The name of this host.
    pub fn own(&self) -> Option<&str> {
        hosts::entries(&self.0).find(|entry| entry.how == How::Own).map(|entry| entry.name)
    }

    /// The addresses by which programs of this host reach a host whose own addresses are `ips`. An address that leads elsewhere from here is
    /// replaced by one that leads there, or by the host's alias. `is_here` returns whether an address is this host's.
    pub fn found_by(&self, host: &str, ips: &[Ipv4Addr], is_here: impl Fn(Ipv4Addr) -> bool) -> Vec<Ipv4Addr> {
        let mut all = hosts::entries(&self.0);
        let Some(meant) = all.find(|entry| entry.is_called(host.as_bytes()) && entry.how != How::Own) else {
            return ips.to_vec();
        };
        let leads = |ip: Ipv4Addr| match hosts::entries(&self.0).find(|entry| entry.has(ip.into())) {
            _ if is_here(ip) => Some(false),
            Some(found) => Some(found.name == meant.name),
            // Unknown: it may lead there inside the host's own site.
            None => meant.how.is_daemon().then_some(false),
        };
        let good = ips.iter().copied().find(|ip| leads(*ip) == Some(true)).unwrap_or(meant.alias);
        ips.iter().map(|ip| if leads(*ip) == Some(false) { good } else { *ip }).collect()
    }
}

/// The hosts file while no daemon is up: connections that must be encrypted are refused, all others go directly.
pub(crate) fn without_daemon(grid: &Grid, own_index: usize) -> String {
    let how = |at: usize| match (grid.hosts.get(own_index), grid.hosts.get(at)) {
        _ if at == own_index => How::Own,
        (Some(own), Some(host)) if own.site != host.site && !grid.is_trusted_between(own, host) => {
            across_border(grid, own, host)
        }
        _ => How::Direct,
    };
    let all = grid.hosts.iter().enumerate();
    hosts::write([0; 4], all.map(|(at, host)| (host.name.as_str(), how(at), addresses(grid, own_index, at))))
}

/// How programs connect across a border that is not trusted.
pub(crate) fn across_border(grid: &Grid, own: &Host, host: &Host) -> How {
    if grid.is_plain_without_daemon(own, host) { How::Preferred } else { How::Enciphered }
}

/// The addresses that mean host `at` and no other, for programs on host `own_index`.
pub(crate) fn addresses(grid: &Grid, own_index: usize, at: usize) -> Vec<IpAddr> {
    let Some(host) = grid.hosts.get(at) else { return Vec::new() };
    let own_site = grid.hosts.get(own_index).map(|own| own.site);
    // A host of the same site takes precedence over those of other sites, and this host over all.
    let takes = |place: usize, other: &Host| match place {
        place if place == at => false,
        place if place == own_index => true,
        _ if at == own_index => false,
        _ => Some(host.site) != own_site || Some(other.site) == own_site,
    };
    let is_of = |other: &Host, ip: IpAddr| other.addresses.iter().any(|at| at.ip().to_canonical() == ip);
    let is_taken =
        |ip: IpAddr| grid.hosts.iter().enumerate().any(|(place, other)| is_of(other, ip) && takes(place, other));
    let own = host.addresses.iter().map(|at| at.ip().to_canonical());
    own.filter(|ip| !ip.is_loopback() && !is_taken(*ip)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_leads_elsewhere_is_replaced_and_no_other() {
        let text = "madrigal-hosts 1\n: 1 2 3 4\na1 enciphered 127.77.0.1\nb1 own 127.77.0.2 10.0.0.2\nb2 direct 127.77.0.3 10.0.0.3\n\
            c1 enciphered 127.77.0.4 10.3.0.2\nd1 direct 127.77.0.5\n";
        let file = HostsFile::new(text.into());
        assert_eq!(file.own(), Some("b1"));
        let here = Ipv4Addr::new(172, 17, 0, 1);
        let found = |host: &str, ips: &str| {
            let ips: Vec<Ipv4Addr> = ips.split(' ').map(|ip| ip.parse().unwrap()).collect();
            let found = file.found_by(host, &ips, |ip| ip == here);
            found.iter().map(Ipv4Addr::to_string).collect::<Vec<_>>().join(" ")
        };
        // This host's; another host's; an interface's that this host has as well; nobody's.
        for ip in ["10.0.0.2", "10.0.0.3", "172.17.0.1", "10.0.0.9"] {
            assert_eq!(found("a1", ip), "127.77.0.1");
            assert_eq!(found("C1", &format!("{ip} 10.3.0.2 {ip}")), "10.3.0.2 10.3.0.2 10.3.0.2");
        }
        assert_eq!(found("a1", "127.77.0.1"), "127.77.0.1");
        // Hosts that are reached without a daemon may have addresses that are not in the grid.
        assert_eq!(found("b2", "192.168.0.3 10.0.0.3 172.17.0.1"), "192.168.0.3 10.0.0.3 10.0.0.3");
        assert_eq!(found("d1", "192.168.0.5 10.0.0.2"), "192.168.0.5 127.77.0.5");
        // Names that are not in the grid, and this host itself.
        for host in ["e1", "", "b1"] {
            assert_eq!(found(host, "10.0.0.2 172.17.0.1"), "10.0.0.2 172.17.0.1");
        }
        let nothing = HostsFile::new("nothing of the sort".into());
        assert!(nothing.own().is_none() && nothing.found_by("a1", &[here], |_| true) == [here]);
    }

    #[test]
    fn an_address_that_several_have_is_that_of_the_nearest_or_of_nobody() {
        let text = "[site.a]\nhosts = { a1 = '10.0.0.2', a2 = ['10.0.0.3', '127.0.0.1'] }\n[site.b]\n\
            hosts = { b1 = ['10.0.0.2', 'fd00::2'], b2 = '10.0.0.3', b3 = '10.0.0.4' }\n[site.c]\nhosts.c1 = '10.0.0.4'\n";
        let grid = Grid::read("grid.toml", text).unwrap();
        let of = |own_index: usize| -> Vec<Vec<String>> {
            let all = (0..grid.hosts.len()).map(|at| addresses(&grid, own_index, at));
            all.map(|ips| ips.iter().map(IpAddr::to_string).collect()).collect()
        };
        let none: [&str; 0] = [];
        assert_eq!(of(0), [&["10.0.0.2"][..], &["10.0.0.3"], &["fd00::2"], &none, &none, &none]);
        assert_eq!(of(5), [&none[..], &none, &["fd00::2"], &none, &none, &["10.0.0.4"]]);
    }
}
