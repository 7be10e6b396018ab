//! `madrigal grid check`: what is wrong in a description, and whether the daemons of its hosts answer.

use std::collections::BTreeMap;
use std::path::Path;

use madrigal_daemon::grid::{self, Grid, Host, Site};
use madrigal_daemon::{Runtime, Status, client};
use madrigal_identity::{Authority, DAY, Moment, Name};
use serde::Serialize;

use super::failure::Failure;
use super::place::Place;
use crate::cli::grid::Check as Args;
use crate::doctor::{Check, Mark, describe};
use crate::local_grid::this_host;
use crate::out;

/// Daemons that are queried at the same time.
const AT_ONCE: usize = 32;
/// A certificate that ends sooner is a warning.
const SOON: i64 = 14 * DAY;

/// What is printed as JSON.
#[derive(Serialize)]
struct Answer<'a> {
    file: &'a Path,
    /// The worst of all checks.
    state: Mark,
    checks: Vec<Check>,
}

pub(super) fn run(args: &Args, json: bool) -> Result<i32, Failure> {
    let place = Place::find()?;
    let path = args.file.clone().unwrap_or_else(|| place.file());
    let checks = match read(&path) {
        Ok(grid) => of_grid(&place, &path, &grid),
        Err(wrong) => vec![wrong],
    };
    let state = checks.iter().map(|check| check.state).max().unwrap_or(Mark::Ok);
    if json {
        out::print_json(&Answer { file: &path, state, checks });
    } else {
        out::print(&describe(&checks));
    }
    Ok(state as i32)
}

fn read(path: &Path) -> Result<Grid, Check> {
    let name = path.display().to_string();
    let text = grid::read_text(path).map_err(|error| {
        Check::failed(
            "grid.toml",
            format!("cannot read {name}: {error}"),
            "madrigal grid init NAME, or go to where that was typed",
        )
    })?;
    let fix = "correct that line, and type madrigal grid check; docs/daemon.md has all keys";
    Grid::read(&name, &text).map_err(|error| Check::failed("grid.toml", error.to_string(), fix))
}

fn of_grid(place: &Place, path: &Path, grid: &Grid) -> Vec<Check> {
    let counted = format!("{}: {} hosts in {} sites", path.display(), grid.hosts.len(), grid.sites.len());
    let mut checks = vec![Check::ok("grid.toml", counted)];
    checks.extend(names(grid));
    checks.extend(words(grid));
    checks.extend(addresses(grid));
    checks.push(ways(grid));
    checks.extend(certificates(place, grid));
    checks.extend(daemons(place, grid));
    checks
}

/// Hosts whose names no certificate can have.
fn names(grid: &Grid) -> Vec<Check> {
    let wrong = |host: &Host| {
        let error = Name::parse(&host.name).err()?;
        Some(Check::failed(format!("name {}", host.name), error.to_string(), "give it another name in grid.toml"))
    };
    grid.hosts.iter().filter_map(wrong).collect()
}

/// Words in `from`, `deny` and `carries` that are the name of a site and of a host of another site: such a word means both.
fn words(grid: &Grid) -> Vec<Check> {
    let used = |name: &str| {
        let lists =
            |site: &Site| [&site.from, &site.deny, &site.carries].into_iter().flatten().any(|word| word == name);
        grid.sites.iter().any(lists)
    };
    let both = |site: &&Site| grid.host(&site.name).is_some_and(|(_, host)| grid.sites.get(host.site) != Some(site));
    let told = grid.sites.iter().filter(both).filter(|site| used(&site.name)).map(|site| {
        let text = "it is a site and a host of another site: in from, deny and carries it means both".to_owned();
        Check::warning(format!("name {}", site.name), text, "give one of them another name in grid.toml")
    });
    told.collect()
}

/// Addresses that several hosts of one site have.
fn addresses(grid: &Grid) -> Vec<Check> {
    let mut held: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for host in &grid.hosts {
        for at in &host.addresses {
            held.entry((host.site, *at)).or_default().push(&host.name);
        }
    }
    let twice = held.into_iter().filter(|(_, hosts)| hosts.len() > 1);
    let told = twice.map(|((_, at), hosts)| {
        let text = format!("{at} is that of {}", hosts.join(" and "));
        Check::failed("addresses", text, "write each host's own in grid.toml")
    });
    told.collect()
}

/// Whether hosts of different sites can be connected at all, as far as the file shows.
fn ways(grid: &Grid) -> Check {
    let can_be_called = |host: &Host| !host.addresses.is_empty() || host.via.is_some();
    let relays: Vec<&Host> = grid.hosts.iter().filter(|host| host.relay).collect();
    if let Some(host) = relays.iter().find(|host| !can_be_called(host)) {
        let text = format!("relay {0} has no address: nobody can call it", host.name);
        return Check::warning(
            "ways",
            text,
            &format!("write where others reach it: hosts.{} = \"ADDRESS\"", host.name),
        );
    }
    let pairs = grid
        .hosts
        .iter()
        .enumerate()
        .flat_map(|(at, one)| grid.hosts.iter().skip(at + 1).map(move |other| (one, other)));
    let mut apart = pairs.filter(|(one, other)| one.site != other.site && !can_be_called(one) && !can_be_called(other));
    match apart.next() {
        Some((one, other)) if relays.is_empty() => {
            let text = format!(
                "neither {} nor {} has an address, and there is no relay: nothing connects them",
                one.name, other.name
            );
            let fix = "madrigal grid add HOST --site SITE --address ADDRESS --relay --ssh USER@ADDRESS, for a host that both can reach";
            Check::failed("ways", text, fix)
        }
        Some(_) => {
            let names: Vec<&str> = relays.iter().map(|host| host.name.as_str()).collect();
            Check::ok("ways", format!("by addresses, and through {}", names.join(", ")))
        }
        None => Check::ok("ways", "by addresses".to_owned()),
    }
}

/// Whether each host has a certificate that lasts, by the records of the authority, if the authority is on this machine.
fn certificates(place: &Place, grid: &Grid) -> Vec<Check> {
    if !Authority::exists(&place.dir) || grid.trusted {
        return Vec::new();
    }
    let books = match Authority::open(&place.dir).and_then(|authority| authority.issued()) {
        Ok(books) => books,
        Err(error) => return vec![Check::failed("certificates", error.to_string(), "madrigal ca list")],
    };
    let now = Moment::now();
    let until = |host: &Host| {
        let own =
            books.iter().filter(|entry| entry.kind == "host" && entry.name == host.name && entry.revoked.is_none());
        own.map(|entry| entry.not_after).max()
    };
    let mut checks = Vec::new();
    for host in &grid.hosts {
        let fix = format!("madrigal grid add {} --again", host.name);
        let name = || format!("certificate {}", host.name);
        match until(host) {
            None => checks.push(Check::failed(name(), "the CA has issued none that is good".to_owned(), &fix)),
            Some(at) if at < now => checks.push(Check::failed(name(), format!("ended at {at}"), &fix)),
            Some(at) if at.after(now) < SOON => checks.push(Check::warning(name(), format!("ends at {at}"), &fix)),
            Some(_) => {}
        }
    }
    if checks.is_empty() {
        checks.push(Check::ok("certificates", format!("of all {} hosts", grid.hosts.len())));
    }
    checks
}

/// The checks of the daemons. The daemon of this host queries the others.
fn daemons(place: &Place, grid: &Grid) -> Vec<Check> {
    let runtime = Runtime::find();
    let own = match client::status(&runtime) {
        Ok(own) => own,
        Err(client::ClientError::Down) if grid.host(&this_host(grid, &place.dir)).is_none() => {
            let text = "not asked: this machine is no host of the grid".to_owned();
            return vec![Check::ok("daemons", text)];
        }
        Err(error) => return vec![Check::failed("daemons", error.to_string(), "madrigal up")],
    };
    let others: Vec<&Host> = grid.hosts.iter().filter(|host| host.name != own.host).collect();
    let mut checks = vec![of_daemon(grid, &own.host, Ok(&own), true)];
    // Many at once: one that cannot be reached takes seconds.
    for some in others.chunks(AT_ONCE) {
        checks.extend(
            some.iter()
                .zip(ask(&runtime, some))
                .map(|(host, answer)| of_daemon(grid, &host.name, answer.as_ref().map_err(String::as_str), false)),
        );
    }
    checks
}

/// The status of the daemons of these hosts, each queried by a thread of its own.
fn ask(runtime: &Runtime, hosts: &[&Host]) -> Vec<Result<Status, String>> {
    let one = |host: &Host| client::status_of(runtime, &host.name).map_err(|error| error.to_string());
    std::thread::scope(|scope| {
        let asked: Vec<_> = hosts.iter().map(|host| scope.spawn(move || one(host))).collect();
        asked.into_iter().map(|one| one.join().unwrap_or_else(|_| Err("was not asked".to_owned()))).collect()
    })
}

/// Whether a daemon answers, and knows the hosts of the file and no others.
fn of_daemon(grid: &Grid, host: &str, answer: Result<&Status, &str>, is_own: bool) -> Check {
    let name = format!("daemon {host}");
    let status = match answer {
        Ok(status) => status,
        Err(why) => {
            let fix = format!("on {host}: madrigal status, or madrigal up where none is up");
            return Check::failed(name, why.to_owned(), &fix);
        }
    };
    let knows: Vec<&str> = status.peers.iter().map(|peer| peer.host.as_str()).chain([status.host.as_str()]).collect();
    let missing: Vec<&str> =
        grid.hosts.iter().map(|host| host.name.as_str()).filter(|host| !knows.contains(host)).collect();
    let foreign: Vec<&str> = knows.iter().copied().filter(|host| grid.host(host).is_none()).collect();
    if missing.is_empty() && foreign.is_empty() {
        let linked = status.peers.iter().filter(|peer| !peer.links.is_empty()).count();
        return Check::ok(name, format!("up {} s, links with {linked} of {}", status.up, status.peers.len()));
    }
    let list =
        |what: &str, hosts: &[&str]| if hosts.is_empty() { None } else { Some(format!("{what} {}", hosts.join(", "))) };
    let told = [list("it does not know", &missing), list("it has besides", &foreign)];
    let text = told.into_iter().flatten().collect::<Vec<_>>().join("; ");
    let fix = if is_own { "madrigal grid reload".to_owned() } else { format!("madrigal grid push {host}") };
    Check::warning(name, format!("its grid.toml is another one: {text}"), &fix)
}
