//! Keeps the hosts file up to date.

use std::net::SocketAddr;

use madrigal_proto::hosts;
use madrigal_proto::hosts::How;

use crate::daemon::Daemon;
use crate::local::hosts::{across, addresses};

impl Daemon {
    /// Writes the file anew, if it says something else by now.
    pub(crate) fn write_hosts(&mut self) {
        let all = self.grid.hosts.iter().enumerate();
        let all = all.map(|(at, host)| (host.name.as_str(), self.how(at), addresses(&self.grid, self.me, at)));
        let text = hosts::write(self.decoys.ports(), all);
        if text == self.hosts_told {
            return;
        }
        match self.runtime.write_hosts(&text) {
            Ok(()) => self.hosts_told = text,
            Err(error) => self.note(&format!("programs cannot learn of the hosts: {error}")),
        }
    }

    /// How programs of this host connect to one.
    pub(crate) fn how(&self, peer: usize) -> How {
        let (own, Some(host)) = (self.own(), self.grid.hosts.get(peer)) else { return How::Direct };
        let near = own.site == host.site;
        match self.peers.get(peer).and_then(|peer| peer.direct) {
            _ if peer == self.me => How::Own,
            _ if !near && !self.grid.is_trusted_between(own, host) => across(&self.grid, own, host),
            Some(true) => How::Direct,
            Some(false) => How::Daemon,
            None if near => How::Direct,
            // Nobody is there who could carry anything.
            None if self.link_to(peer).is_none() && self.is_refused(peer) => How::Direct,
            None => How::Daemon,
        }
    }

    /// Why a program that asked for a host at this address comes to the daemon.
    pub(crate) fn why_daemon(&self, peer: usize, asked: Option<SocketAddr>) -> String {
        let Some(host) = self.grid.hosts.get(peer) else { return String::new() };
        if !self.grid.is_trusted_between(self.own(), host) && self.own().site != host.site {
            let site = self.grid.sites.get(host.site).map_or("?", |site| site.name.as_str());
            return format!("site {site} is another one, and the network between is not trusted");
        }
        match (self.how(peer), asked) {
            (How::Direct | How::Own, Some(at)) if hosts::is_alias(at.ip()) => {
                format!("{} is the name of {} here, and no address of its own", at.ip(), host.name)
            }
            _ => format!("the direct way is shut: {}", self.why_no_direct(peer)),
        }
    }
}
