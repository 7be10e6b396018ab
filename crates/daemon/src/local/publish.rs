//! Keeps the hosts file up to date.

use std::net::SocketAddr;

use madrigal_proto::hosts::{self, How};

use crate::daemon::Daemon;
use crate::local::hosts::{across_border, addresses};

/// In the hosts file, in place of a host that was removed: no name.
const NOBODY: &str = "!";

impl Daemon {
    /// Writes the hosts file, if its text changed.
    pub(crate) fn write_hosts(&mut self) {
        let all = self.grid.hosts.iter().enumerate();
        let all = all.map(|(at, host)| {
            // The place of a removed host takes little room.
            let name = if host.is_gone() { NOBODY } else { host.name.as_str() };
            (name, self.method_to(at), addresses(&self.grid, self.own_index, at))
        });
        let text = hosts::write(self.decoys.ports(), all);
        if text == self.hosts_written {
            return;
        }
        match self.runtime.write_hosts(&text) {
            Ok(()) => self.hosts_written = text,
            Err(error) => self.log_line(&format!("programs cannot learn of the hosts: {error}")),
        }
    }

    /// How programs of this host connect to one.
    pub(crate) fn method_to(&self, peer: usize) -> How {
        let (own, Some(host)) = (self.own(), self.grid.hosts.get(peer)) else { return How::Direct };
        let near = own.site == host.site;
        match self.peers.get(peer).and_then(|peer| peer.direct) {
            _ if peer == self.own_index => How::Own,
            _ if !near && !self.grid.is_trusted_between(own, host) => across_border(&self.grid, own, host),
            Some(true) => How::Direct,
            Some(false) => How::Daemon,
            None if near => How::Direct,
            // No daemon runs there.
            None if self.link_to(peer).is_none() && self.is_refused(peer) => How::Direct,
            None => How::Daemon,
        }
    }

    /// Why a program's connection to a host, at the address `asked`, goes through the daemon.
    pub(crate) fn why_daemon(&self, peer: usize, asked: Option<SocketAddr>) -> String {
        let Some(host) = self.grid.hosts.get(peer) else { return String::new() };
        if !self.grid.is_trusted_between(self.own(), host) && self.own().site != host.site {
            let site = self.grid.sites.get(host.site).map_or("?", |site| site.name.as_str());
            return format!("site {site} is another one, and the network between is not trusted");
        }
        match (self.method_to(peer), asked) {
            (How::Direct | How::Own, Some(at)) if hosts::is_alias(at.ip()) => {
                format!("{} is the name of {} here, and no address of its own", at.ip(), host.name)
            }
            _ => format!("the direct way is shut: {}", self.why_no_direct(peer)),
        }
    }
}
