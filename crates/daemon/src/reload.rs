//! grid.toml is read again while the daemon runs: at SIGHUP, and when a client says so. What is wrong in it is told, and everything stays
//! as it was. A host keeps its place as long as the daemon is up, whatever stands before it in the file by now: links, streams and programs
//! know it by its place. One that was taken out leaves its place empty; one that is new comes behind all others.

use std::fmt;
use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::daemon::{Daemon, Thing};
use crate::grid::{Grid, Host};
use crate::peers::Peer;
use crate::poll::Token;
use crate::{socket, start};

/// Stands behind the name of a host that was taken out; no name in a file ends so.
const GONE: char = '!';
/// Why a link ends.
const TAKEN_OUT: &str = "it is no host of the grid any more";
/// Why another one does.
const MUST_BE_ENCIPHERED: &str = "links with it must be enciphered by now";

/// What is new in a description.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Default, Debug)]
pub struct Reloaded {
    /// Hosts.
    pub added: Vec<String>,
    /// Hosts.
    pub removed: Vec<String>,
    /// Hosts of which something else is said.
    pub changed: Vec<String>,
    /// Something else is said of sites, or by rules.
    pub rules: bool,
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |what: &str, hosts: &[String]| (!hosts.is_empty()).then(|| format!("{what} {}", hosts.join(", ")));
        let rules = self.rules.then(|| "sites or rules changed".to_owned());
        let parts = [list("added", &self.added), list("removed", &self.removed), list("changed", &self.changed), rules];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let told = if parts.is_empty() { "nothing is new".to_owned() } else { parts.join("; ") };
        write!(f, "grid.toml read again: {told}")
    }
}

/// Where the description is, and what says that it is to be read again.
#[derive(Default)]
pub(crate) struct Source {
    file: Option<PathBuf>,
    hangups: Option<UnixStream>,
}

/// Whether a host was taken out.
pub(crate) fn is_gone(host: &Host) -> bool {
    host.name.ends_with(GONE)
}

impl Daemon {
    /// From where the description came.
    pub fn reads(&mut self, file: &Path) {
        self.source.file = std::path::absolute(file).ok();
    }

    /// From now on SIGHUP has the description read again. A socket, so that none is missed between two sleeps.
    pub(crate) fn heed_hangups(&mut self) -> Result<(), Errno> {
        let of = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let (ours, handlers) = UnixStream::pair().map_err(of)?;
        ours.set_nonblocking(true).map_err(of)?;
        signal_hook::low_level::pipe::register(Signal::HUP.as_raw(), handlers).map_err(of)?;
        let token = self.token();
        self.poll.add(&ours, token)?;
        self.things.insert(token, Thing::Hangups);
        self.source.hangups = Some(ours);
        Ok(())
    }

    /// SIGHUP came.
    pub(crate) fn handle_hangups(&mut self) {
        let mut hangups = self.source.hangups.as_ref();
        let came = hangups.as_mut().is_some_and(|hangups| matches!(hangups.read(&mut [0; 64]), Ok(1..)));
        if came {
            // What is wrong stands in the log.
            let _ = self.reload();
        }
    }

    /// Reads the description again; what is new in it, as JSON.
    pub(crate) fn reload(&mut self) -> Result<Vec<u8>, String> {
        match self.read_again() {
            Ok(told) => {
                self.note(&told.to_string());
                Ok(serde_json::to_vec(&told).unwrap_or_default())
            }
            Err(why) => {
                let why = format!("{why}; the daemon keeps the hosts that it has");
                self.note(&why);
                Err(why)
            }
        }
    }

    fn read_again(&mut self) -> Result<Reloaded, String> {
        let file = self.source.file.clone().ok_or("the daemon was started without a file")?;
        let name = file.display().to_string();
        let text = std::fs::read_to_string(&file).map_err(|error| format!("cannot read {name}: {error}"))?;
        let new = Grid::read(&name, &text).map_err(|error| error.to_string())?;
        let own = &self.own().name;
        if new.host(own).is_none() {
            return Err(format!("{name} has no host `{own}`, which this one is"));
        }
        let told = compare(&self.grid, &new);
        let new = in_old_places(&self.grid, new);
        self.listen_as(&new)?;
        self.end_links(&new);
        let old = std::mem::replace(&mut self.grid, new);
        let now = self.now;
        self.peers.resize_with(self.grid.hosts.len(), || Peer::new(now));
        self.follow(&old);
        self.write_hosts();
        self.wake_calls();
        self.tell_soon();
        Ok(told)
    }

    /// Listens where the new description says, if that is elsewhere.
    fn listen_as(&mut self, new: &Grid) -> Result<(), String> {
        let lack = self.credentials.as_ref().err();
        let places = |grid: &Grid| start::places(grid, self.me, lack).map_err(|error| error.to_string());
        let (before, after) = (places(&self.grid)?, places(new)?);
        let goes = |at: &SocketAddr| !after.contains(at);
        let ports: Vec<Token> = self
            .ports
            .iter()
            .filter(|(_, port)| is_at(socket::own(port), &before, goes))
            .map(|(token, _)| *token)
            .collect();
        for token in ports {
            self.things.remove(&token);
            self.ports.remove(&token);
        }
        let fresh = after.iter().filter(|at| !before.contains(at)).copied();
        let listeners = fresh.map(start::listen_at).collect::<Result<Vec<_>, _>>();
        let failed = match listeners {
            Ok(listeners) => return self.add_ports(listeners).map_err(|errno| errno.to_string()),
            Err(error) => error.to_string(),
        };
        // As it was: nobody but this daemon had these addresses.
        let old = before.into_iter().filter(goes).filter_map(|at| start::listen_at(at).ok()).collect();
        self.add_ports(old).map_err(|errno| errno.to_string())?;
        Err(failed)
    }

    /// Looks again for ways to hosts of which something else is said by now.
    fn follow(&mut self, old: &Grid) {
        for (at, host) in self.grid.hosts.iter().enumerate() {
            let before = old.hosts.get(at);
            if before.is_none_or(|before| before.addresses != host.addresses || before.via != host.via) {
                let known = &mut self.peers[at];
                known.told.retain(|address, _| host.addresses.contains(address));
                known.direct = None;
            }
        }
        for at in 0..self.peers.len() {
            self.hurry(at);
        }
        let wrong = |peer: usize, address: SocketAddr| !self.grid.hosts[peer].addresses.contains(&address);
        let dials: Vec<Token> =
            self.dials.iter().filter(|(_, dial)| wrong(dial.peer, dial.address)).map(|(token, _)| *token).collect();
        for token in dials {
            self.things.remove(&token);
            self.dials.remove(&token);
        }
    }

    /// Ends the links that a new description does not allow.
    fn end_links(&mut self, new: &Grid) {
        let links: Vec<(Token, &str)> =
            self.links.keys().filter_map(|token| Some((*token, self.must_end(new, *token)?))).collect();
        for (token, why) in links {
            self.part(token, why);
        }
    }

    /// Why a link must end, if it must.
    fn must_end(&self, new: &Grid, token: Token) -> Option<&'static str> {
        let link = self.links.get(&token)?;
        let peer = link.up().map(|up| up.peer).or(link.dialled.map(|(peer, _)| peer))?;
        let (own, host) = (new.hosts.get(self.me)?, new.hosts.get(peer)?);
        let plain = !link.channel.is_enciphered() && link.method() != "command";
        match () {
            () if is_gone(host) => Some(TAKEN_OUT),
            () if plain && !new.is_trusted_between(own, host) => Some(MUST_BE_ENCIPHERED),
            () => None,
        }
    }
}

/// Whether a listener is at one of those places that `goes` is true of. One at all addresses may be so for IPv4 alone.
fn is_at(own: Option<SocketAddr>, places: &[SocketAddr], goes: impl Fn(&SocketAddr) -> bool) -> bool {
    let Some(own) = own else { return false };
    let same = |at: &&SocketAddr| {
        **at == own || (at.port() == own.port() && at.ip().is_unspecified() && own.ip().is_unspecified())
    };
    places.iter().find(same).is_some_and(goes)
}

/// What another description says anew.
fn compare(old: &Grid, new: &Grid) -> Reloaded {
    let site = |grid: &Grid, host: &Host| grid.sites.get(host.site).cloned();
    let said = |grid: &Grid, host: &Host| {
        let site = site(grid, host).map(|site| site.name);
        Host { site: 0, name: site.unwrap_or_default(), ssh: None, ..host.clone() }
    };
    let there = |grid: &Grid, host: &Host| grid.host(&host.name).is_some();
    let present = old.hosts.iter().filter(|host| !is_gone(host));
    let changed = |host: &&Host| old.host(&host.name).is_some_and(|(_, before)| said(old, before) != said(new, host));
    let names = |hosts: Vec<&Host>| hosts.into_iter().map(|host| host.name.clone()).collect();
    let named = |grid: &Grid| {
        let name = |at: &usize| grid.hosts.get(*at).map(|host| host.name.clone());
        let rules = grid
            .rules
            .iter()
            .map(|rule| (rule.ports.clone(), rule.hosts.iter().map(name).collect::<Vec<_>>(), rule.rule.clone()));
        (grid.trusted, grid.plain, grid.sites.clone(), rules.collect::<Vec<_>>())
    };
    Reloaded {
        added: names(new.hosts.iter().filter(|host| !there(old, host)).collect()),
        removed: names(present.filter(|host| !there(new, host)).collect()),
        changed: names(new.hosts.iter().filter(changed).collect()),
        rules: named(old) != named(new),
    }
}

/// The new description with every host in the place that it had in the old one.
fn in_old_places(old: &Grid, new: Grid) -> Grid {
    let gone = |name: &str| format!("{name}{GONE}");
    let mut hosts: Vec<Host> = old.hosts.iter().map(left).collect();
    let mut places = Vec::new();
    for host in new.hosts {
        let had = old.hosts.iter().position(|before| before.name == host.name || before.name == gone(&host.name));
        places.push(had.unwrap_or(hosts.len()));
        match had.and_then(|at| hosts.get_mut(at)) {
            Some(place) => *place = host,
            None => hosts.push(host),
        }
    }
    let mut rules = new.rules;
    for at in rules.iter_mut().flat_map(|rule| &mut rule.hosts) {
        *at = places.get(*at).copied().unwrap_or(*at);
    }
    Grid { hosts, rules, ..new }
}

/// What is left of a host that is taken out.
fn left(host: &Host) -> Host {
    let name = if is_gone(host) { host.name.clone() } else { format!("{}{GONE}", host.name) };
    Host {
        name,
        site: usize::MAX,
        port: host.port,
        addresses: Vec::new(),
        relay: false,
        allow: None,
        via: None,
        ssh: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(text: &str) -> Grid {
        Grid::read("grid.toml", text).unwrap()
    }

    fn names(grid: &Grid) -> Vec<&str> {
        grid.hosts.iter().map(|host| host.name.as_str()).collect()
    }

    #[test]
    fn hosts_keep_their_places_and_rules_follow_them() {
        let old = grid("[site.a]\nhosts = { a1 = '10.1.0.2', a2 = [] }\n[site.b]\nhosts.b1 = []\n");
        let text = "[site.a]\nhosts = { a0 = [], a1 = '10.1.0.3' }\n[site.b]\nhosts.b1 = []\n[rule.x]\nhosts = ['b1', 'a0']\nforbid = 'relay'\n";
        let new = grid(text);
        let told = compare(&old, &new);
        assert_eq!(told.to_string(), "grid.toml read again: added a0; removed a2; changed a1; sites or rules changed");
        let merged = in_old_places(&old, new);
        assert_eq!(names(&merged), ["a1", "a2!", "b1", "a0"]);
        assert!(is_gone(&merged.hosts[1]) && merged.host("a2").is_none());
        assert_eq!(merged.rules[0].hosts, [2, 3]);
        assert_eq!(merged.sites[merged.hosts[2].site].name, "b");
        // Who comes back has its place again; nothing is new in the same file.
        let back = in_old_places(&merged, grid("[site.a]\nhosts = { a2 = [], a1 = [], c1 = [] }\n"));
        assert_eq!(names(&back), ["a1", "a2", "b1!", "a0!", "c1"]);
        assert_eq!(compare(&merged, &grid(text)), Reloaded::default());
        assert_eq!(Reloaded::default().to_string(), "grid.toml read again: nothing is new");
    }
}
