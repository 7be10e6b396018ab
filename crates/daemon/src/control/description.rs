//! The daemon's copy of the grid's description (grid.toml): the path of its file, and the changes that a new reading makes.
//!
//! A host keeps its index while the daemon is up, even if its position in the file changes: links, streams and programs refer to it by
//! index. A removed host leaves its place empty. A new host is appended.

use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::grid::{GONE, Grid, Host, MOST_HOSTS};

/// The changes that a new description makes.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Default, Debug)]
pub struct Reloaded {
    /// Hosts.
    pub added: Vec<String>,
    /// Hosts.
    pub removed: Vec<String>,
    /// Hosts whose entry (except `ssh`) or site changed.
    pub changed: Vec<String>,
    /// Sites, rules, or the settings of the whole grid changed.
    pub rules: bool,
}

impl fmt::Display for Reloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |what: &str, hosts: &[String]| (!hosts.is_empty()).then(|| format!("{what} {}", hosts.join(", ")));
        let rules = self.rules.then(|| "sites or rules changed".to_owned());
        let parts = [list("added", &self.added), list("removed", &self.removed), list("changed", &self.changed), rules];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let changes = if parts.is_empty() { "nothing is new".to_owned() } else { parts.join("; ") };
        write!(f, "grid.toml read again: {changes}")
    }
}

/// The most places of hosts, including removed ones, since the daemon was started.
const MOST_PLACES: usize = 2 * MOST_HOSTS;

/// The file of the description, and when it is read again.
pub(crate) struct Source {
    pub(crate) file: Option<PathBuf>,
    /// Readable when SIGHUP has come.
    pub(crate) hangups: Option<UnixStream>,
    /// When it is read again because of a SIGHUP that came; none came: `u64::MAX`.
    pub(crate) due: u64,
    /// The earliest time of the next reading because of SIGHUP.
    pub(crate) not_before: u64,
}

impl Default for Source {
    fn default() -> Self {
        Self { file: None, hangups: None, due: u64::MAX, not_before: 0 }
    }
}

/// The changes from one description to another.
pub(crate) fn compare(old: &Grid, new: &Grid) -> Reloaded {
    let site = |grid: &Grid, host: &Host| grid.sites.get(host.site).cloned();
    let settings = |grid: &Grid, host: &Host| {
        let site = site(grid, host).map(|site| site.name);
        Host { site: 0, name: site.unwrap_or_default(), ssh: None, ..host.clone() }
    };
    let there = |grid: &Grid, host: &Host| grid.host(&host.name).is_some();
    let present = old.hosts.iter().filter(|host| !host.is_gone());
    let changed =
        |host: &&Host| old.host(&host.name).is_some_and(|(_, before)| settings(old, before) != settings(new, host));
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

/// The new description, with every host at the index that it had in the old one. Fails if there are too many places.
pub(crate) fn in_old_places(old: &Grid, new: Grid) -> Result<Grid, String> {
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
    if hosts.len() > MOST_PLACES {
        let what = "more hosts were added and removed since this daemon was started";
        return Err(format!("{what} than it has places for, {MOST_PLACES}: type madrigal down; madrigal up"));
    }
    let mut rules = new.rules;
    for at in rules.iter_mut().flat_map(|rule| &mut rule.hosts) {
        *at = places.get(*at).copied().unwrap_or(*at);
    }
    Ok(Grid { hosts, rules, ..new })
}

/// What is left of a host that is taken out.
fn left(host: &Host) -> Host {
    let name = if host.is_gone() { host.name.clone() } else { format!("{}{GONE}", host.name) };
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
        let changes = compare(&old, &new);
        assert_eq!(
            changes.to_string(),
            "grid.toml read again: added a0; removed a2; changed a1; sites or rules changed"
        );
        let merged = in_old_places(&old, new).unwrap();
        assert_eq!(names(&merged), ["a1", "a2!", "b1", "a0"]);
        assert!(merged.hosts[1].is_gone() && merged.host("a2").is_none());
        assert_eq!(merged.rules[0].hosts, [2, 3]);
        assert_eq!(merged.sites[merged.hosts[2].site].name, "b");
        // A host that is added again gets its old place; the same file changes nothing.
        let back = in_old_places(&merged, grid("[site.a]\nhosts = { a2 = [], a1 = [], c1 = [] }\n")).unwrap();
        assert_eq!(names(&back), ["a1", "a2", "b1!", "a0!", "c1"]);
        assert_eq!(compare(&merged, &grid(text)), Reloaded::default());
        assert_eq!(Reloaded::default().to_string(), "grid.toml read again: nothing is new");
    }

    #[test]
    fn hosts_that_come_and_go_fill_no_memory_for_ever() {
        let mut held = grid("[site.a]\nhosts.a1 = []\n");
        let changes = (0..5000).find_map(|n| {
            let merged = in_old_places(&held, grid(&format!("[site.a]\nhosts = {{ a1 = [], h{n} = [] }}\n")));
            merged.map(|grid| held = grid).err()
        });
        assert!(
            changes.is_some_and(|changes| changes.contains("type madrigal down")) && held.hosts.len() == MOST_PLACES
        );
        // Hosts that have a place already may be added again.
        assert!(in_old_places(&held, grid("[site.a]\nhosts = { a1 = [], h7 = [] }\n")).is_ok());
    }
}
