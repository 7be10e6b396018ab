//! `madrigal status`.

use madrigal_daemon::{Compression, DatagramStatus, LinkStatus, PoolStatus, Runtime, Status, client};
use serde::Serialize;

use crate::cli::daemon::Status as Args;
use crate::out;

/// Hosts that are queried at the same time.
const AT_ONCE: usize = 32;

/// A host of the grid: the report of its daemon, or why there is none.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Up(Box<Status>),
    Silent { host: String, site: String, error: String },
}

/// `madrigal status`.
pub(crate) fn run(args: &Args) -> i32 {
    let runtime = Runtime::find();
    let own = match client::status(&runtime) {
        Ok(own) => own,
        Err(error) => return out::fail(&error.to_string()),
    };
    if args.all {
        return whole_grid(&runtime, own, args.json);
    }
    if args.json {
        return out::print_json(&own);
    }
    out::print(&describe(&own));
    out::FOUND
}

/// The reports of the daemons of all hosts, this host's first.
fn whole_grid(runtime: &Runtime, own: Status, json: bool) -> i32 {
    let others: Vec<_> = own.peers.iter().map(|peer| (peer.host.clone(), peer.site.clone())).collect();
    let mut hosts = vec![Answer::Up(Box::new(own))];
    let ask = |(host, site): &(String, String)| match client::status_of(runtime, host) {
        Ok(status) => Answer::Up(Box::new(status)),
        Err(error) => Answer::Silent { host: host.clone(), site: site.clone(), error: error.to_string() },
    };
    // Many at once: a host that cannot be reached takes seconds.
    for some in others.chunks(AT_ONCE) {
        hosts.extend(std::thread::scope(|scope| {
            let asked: Vec<_> = some.iter().map(|other| scope.spawn(move || ask(other))).collect();
            asked.into_iter().filter_map(|one| one.join().ok()).collect::<Vec<_>>()
        }));
    }
    let all_up = hosts.iter().all(|host| matches!(host, Answer::Up(_)));
    if json {
        out::print_json(&hosts);
    } else {
        out::print(&table(&hosts));
    }
    if all_up { out::FOUND } else { out::FAILED }
}

fn table(hosts: &[Answer]) -> String {
    let mut rows =
        vec![["host", "site", "up", "links", "streams", "running", "processors", ""].map(str::to_owned).to_vec()];
    rows.extend(hosts.iter().map(|host| match host {
        Answer::Up(status) => {
            let linked = status.peers.iter().filter(|peer| !peer.links.is_empty()).count();
            let running = status.running.map_or_else(String::new, |running| running.to_string());
            let (streams, processors) = (status.streams.to_string(), status.processors.to_string());
            let links = format!("{linked} of {}", status.peers.len());
            let relay = if status.relay { "relay" } else { "" };
            let up = format!("{} s", status.up);
            [status.host.clone(), status.site.clone(), up, links, streams, running, processors, relay.to_owned()]
                .to_vec()
        }
        Answer::Silent { host, site, error } => {
            let nothing = String::new;
            [host.clone(), site.clone(), "?".to_owned(), nothing(), nothing(), nothing(), nothing(), error.clone()]
                .to_vec()
        }
    }));
    out::table(&rows, &[2, 3, 4, 5, 6])
}

/// How many times shorter what goes by a link becomes, where it does.
fn shorter(link: &LinkStatus) -> String {
    match link.compressed {
        Some(Compression { raw, encoded }) if raw > encoded => {
            format!(", compressed {:.1} x", raw as f64 / encoded.max(1) as f64)
        }
        _ => String::new(),
    }
}

fn describe(status: &Status) -> String {
    let Status { host, site, pid, up, streams, .. } = status;
    let relay = if status.relay { ", relay" } else { "" };
    let mut text = format!("{host} (site {site}{relay}): process {pid}, up {up} s, {streams} streams\n\n");
    let mut rows = vec![["host", "site", "link", "streams", "round trip", ""].map(str::to_owned).to_vec()];
    for peer in &status.peers {
        let row = |cells: [String; 4]| [&[peer.host.clone(), peer.site.clone()], &cells[..]].concat();
        for link in &peer.links {
            let LinkStatus { dialled, address, tls, streams, round_trip_us, connections, .. } = link;
            let way = if *dialled { "to" } else { "from" };
            let kind = if *tls { "tls" } else { "plain" };
            let trip = round_trip_us.map_or_else(String::new, |us| format!("{:.1} ms", us as f64 / 1000.0));
            let address = address.clone().unwrap_or_default();
            let several = if *connections > 1 { format!(", {connections} connections") } else { String::new() };
            let only = if link.urgent { ", for urgent streams" } else { "" };
            rows.push(row([
                kind.to_owned(),
                streams.to_string(),
                trip,
                format!("{way} {address}{several}{}{only}", shorter(link)),
            ]));
        }
        match (&peer.through, &peer.why) {
            (Some(way), _) => rows.push(row([way.clone(), String::new(), String::new(), String::new()])),
            (None, Some(why)) => rows.push(row(["none".to_owned(), String::new(), String::new(), why.clone()])),
            (None, None) => {}
        }
    }
    text += &out::table(&rows, &[3, 4]);
    if !status.datagrams.is_empty() {
        text.push('\n');
        text += &out::table(&datagrams(&status.datagrams), &[3, 4, 5, 6]);
    }
    if !status.pools.is_empty() {
        text.push('\n');
        text += &out::table(&pools(&status.pools), &[2]);
    }
    text
}

fn pools(all: &[PoolStatus]) -> Vec<Vec<String>> {
    let mut rows = vec![["pool", "", "members", "where", "elected", "kept by"].map(str::to_owned).to_vec()];
    rows.extend(all.iter().map(|pool| {
        let state = match (pool.size, pool.closed, pool.terminated) {
            (_, _, true) => "terminated".to_owned(),
            (_, true, _) => "closed".to_owned(),
            (Some(size), ..) => format!("waits for {size}"),
            (None, ..) => "open".to_owned(),
        };
        let mut hosts: Vec<&str> = pool.members.iter().map(|member| member.location.as_str()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let (shown, more) = hosts.split_at(hosts.len().min(3));
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        let winner = |(name, winner): (&String, &Option<u64>)| match winner {
            Some(winner) => format!("{name} {winner}"),
            None => format!("{name} nobody"),
        };
        let elected: Vec<String> = pool.elections.iter().take(3).map(winner).collect();
        let (members, place) = (pool.members.len().to_string(), format!("{}{more}", shown.join(", ")));
        vec![pool.pool.clone(), state, members, place, elected.join(", "), pool.kept_by.clone()]
    }));
    rows
}

fn datagrams(tunnels: &[DatagramStatus]) -> Vec<Vec<String>> {
    let mut rows = vec![["datagrams", "", "by", "sent", "received", "dropped", "lost"].map(str::to_owned).to_vec()];
    rows.extend(tunnels.iter().map(|tunnel| {
        let DatagramStatus { host, port, from, by, sent, received, dropped, lost } = tunnel;
        let ends = match from {
            Some(from) => [format!("127.0.0.1:{from}"), format!("to {host}:{port}")],
            None => [format!("port {port}"), format!("of {host}")],
        };
        let [sent, received, dropped, lost] = [sent, received, dropped, lost].map(u64::to_string);
        [&ends[..], &[by.clone(), sent, received, dropped, lost]].concat()
    }));
    rows
}
