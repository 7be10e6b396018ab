//! `madrigal lab up --with-daemons`: a CA for the lab, a certificate and a `grid.toml` for each host, and a daemon on each. The CA lies in
//! the lab's directory, all else in directories of the hosts: it is gone when they are.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use madrigal_daemon::grid::PORT;
use madrigal_daemon::{Runtime, Status, client};
use madrigal_identity::{Authority, DAY, Name, Validity};
use madrigal_lab::OWN_DIRECTORY;
use madrigal_lab::file::{Grid, Site};
use madrigal_lab::plan::public;
use madrigal_lab::state::{Node, State};

/// The time limit for the links that are possible.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two polls of them.
const POLL: Duration = Duration::from_millis(50);
/// How long the lab's certificates are good.
const LIFE: i64 = 365 * DAY;

/// Starts the daemons and waits until there is a link wherever there can be one; what there is, in words.
pub(super) fn start(file: &Path, state: &State) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let grid = madrigal_lab::file::read(&file.display().to_string(), &text).map_err(|error| error.to_string())?;
    let config = format!("{OWN_DIRECTORY}/madrigal-config");
    furnish(&grid, state, &config)?;
    madrigal_lab::configure(Some(&state.name), &config).map_err(|error| error.to_string())?;
    launch(state)?;
    Ok(describe(&wait(state)?))
}

fn hosts(state: &State) -> impl Iterator<Item = &Node> {
    state.nodes.iter().filter(|node| !node.router)
}

/// Gives each host its certificate and the description of the grid.
fn furnish(grid: &Grid, state: &State, config: &str) -> Result<(), String> {
    let made = |error: madrigal_identity::IdentityError| format!("cannot make certificates: {error}");
    let lab = Name::parse(&state.name.to_lowercase()).or_else(|_| Name::parse("lab"));
    let home = madrigal_lab::directory(Some(&state.name)).map_err(|error| error.to_string())?.join("config");
    let life = Validity::seconds(LIFE);
    let ca = Authority::create(&home, &lab.map_err(|error| made(error.into()))?, life, true).map_err(made)?;
    let text = grid_file(grid, state);
    for host in hosts(state) {
        let dir = madrigal_lab::from_outside(host, config);
        let name = Name::parse(&host.name).map_err(|error| made(error.into()))?;
        ca.issue_host(&name, life).and_then(|issued| issued.install(&dir, false)).map_err(made)?;
        let file = dir.join("grid.toml");
        std::fs::write(&file, &text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(())
}

/// The grid.toml of the daemons. Hosts of a site without NAT and inward firewall are relays.
fn grid_file(grid: &Grid, state: &State) -> String {
    let mut text = format!("# Of lab {}, from {}.\n", state.name, state.file);
    let mut written: Vec<&str> = Vec::new();
    let sites = grid.sites.iter().enumerate().map(|(n, site)| (site.name.as_str(), &site.hosts, Some((n, site))));
    let switches = grid.switches.iter().map(|switch| (switch.name.as_str(), &switch.hosts, None));
    for (name, all, site) in sites.chain(switches) {
        let new: Vec<&str> = all.iter().map(String::as_str).filter(|host| !written.contains(host)).collect();
        if new.is_empty() {
            continue;
        }
        let entry = |host: &&str| format!("{host} = [{}]", addresses(grid, state, host).join(", "));
        let entries: Vec<String> = new.iter().map(entry).collect();
        let _ = writeln!(text, "[site.{name}]\nhosts = {{ {} }}\nallow = \"1-65535\"", entries.join(", "));
        if site.is_some_and(|(_, site)| !site.nat && !site.firewall.inward) {
            let relays: Vec<String> = new.iter().map(|host| format!("\"{host}\"")).collect();
            let _ = writeln!(text, "relay = [{}]", relays.join(", "));
        }
        written.extend(new);
    }
    text
}

/// Where a host's daemon may be reached: at its addresses in sites and switches, and at its router's where that leads to it.
fn addresses(grid: &Grid, state: &State, host: &str) -> Vec<String> {
    let node = state.nodes.iter().find(|node| node.name == host);
    let own = node.iter().flat_map(|node| &node.addresses);
    // Addresses of bridges and of cards without a network are left out: the device's name follows them.
    let own = own.filter_map(|text| text.split_once('/')?.0.parse::<IpAddr>().ok().filter(|_| !text.contains('(')));
    let mut all: Vec<String> = own.map(|ip| format!("\"{ip}\"")).collect();
    let leads = |site: &Site| {
        let to = site.forward.iter().filter(|forward| forward.host == host && forward.to == PORT);
        to.map(|forward| forward.port).collect::<Vec<_>>()
    };
    for (n, site) in grid.sites.iter().enumerate() {
        all.extend(leads(site).into_iter().map(|port| format!("\"{}:{port}\"", public(n)[0])));
    }
    all
}

/// Starts a daemon on each host, all at once.
fn launch(state: &State) -> Result<(), String> {
    let exe = std::env::current_exe().map_err(|error| format!("cannot find this command: {error}"))?;
    let start = |host: &Node| {
        let mut command = Command::new(&exe);
        command.args(["lab", "exec", "--name", &state.name, &host.name, "--"]).arg(&exe).arg("up");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().map_err(|error| format!("cannot run {}: {error}", exe.display()))
    };
    let started: Vec<_> = hosts(state).map(|host| (host, start(host))).collect();
    let mut failed = None;
    for (host, child) in started {
        let done = child.and_then(|child| child.wait_with_output().map_err(|error| error.to_string()));
        let done = done.and_then(|output| match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("madrigal: ").to_owned()),
        });
        failed = failed.or(done.err().map(|why| format!("no daemon on {}: {why}", host.name)));
    }
    failed.map_or(Ok(()), Err)
}

/// Waits until every pair of hosts has a link, or each has tried what it can.
fn wait(state: &State) -> Result<Vec<Status>, String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let ask = |host: &Node| {
            // The runtime directory as the daemon finds it on its host.
            let own = format!("{OWN_DIRECTORY}/madrigal");
            client::status(&Runtime::at(madrigal_lab::from_outside(host, &own)))
                .map_err(|error| format!("the daemon of {}: {error}", host.name))
        };
        let all = hosts(state).map(ask).collect::<Result<Vec<_>, _>>()?;
        // A refused host usually dialled before the other daemon was up; one without an answer dials again with smaller packets.
        let again = ["Connection refused", "no greeting in time"];
        let hopes = |why: &Option<String>| why.as_ref().is_some_and(|why| again.iter().any(|one| why.contains(one)));
        let mut peers = all.iter().flat_map(|status| &status.peers);
        if peers.all(|peer| !peer.links.is_empty() || (peer.settled && !hopes(&peer.why))) || Instant::now() > end {
            return Ok(all);
        }
        std::thread::sleep(POLL);
    }
}

/// Which hosts are linked.
fn describe(all: &[Status]) -> String {
    let mut text = format!("\ndaemons on {} hosts; links, by TLS:\n", all.len());
    for status in all {
        let linked: Vec<&str> =
            status.peers.iter().filter(|peer| !peer.links.is_empty()).map(|peer| peer.host.as_str()).collect();
        let relay = if status.relay { " (relay)" } else { "" };
        let _ = writeln!(
            text,
            "  {}{relay}: {}",
            status.host,
            if linked.is_empty() { "none".to_owned() } else { linked.join(" ") }
        );
    }
    text
}
