//! `madrigal why`: which path each connection of wrapped programs takes, and each node of a parallel job, and why; and the ways between
//! hosts.

mod counted;
mod host;
mod hosts;
mod processes;
mod ranks;
mod reasons;
mod sockets;

use serde::Serialize;

use crate::{cli, out};
use host::Host;
use madrigal_daemon::{ConnectionStatus, Runtime, client};
use processes::{Connection, Process};

/// What is printed as JSON.
#[derive(Serialize)]
struct Answer {
    processes: Vec<Process>,
}

/// Runs the command.
pub(crate) fn run(args: &cli::Why) -> i32 {
    let pid = match args.what.as_slice() {
        [] => None,
        [from, to] => return hosts::run(from, to, args.port, args.json),
        [pid, ..] => match pid.parse() {
            Ok(pid) => Some(pid),
            Err(_) => return out::usage("give a process by its number, or two hosts of the grid"),
        },
    };
    // Without a daemon nothing goes through one.
    let routes = client::connections(&Runtime::find()).unwrap_or_default();
    let host = Host::inspect();
    let mut processes = match pid {
        Some(pid) => match processes::of(&host, pid, &routes) {
            Ok(process) => vec![process],
            Err(text) => return out::fail(&text),
        },
        None => processes::all(&host, &routes),
    };
    name_peers(&host, &mut processes, pid.is_some());
    if args.json {
        return out::print_json(&Answer { processes });
    }
    if processes.is_empty() {
        return out::fail("no process of yours is under madrigal: start one with `madrigal exec -- PROGRAM ARGUMENTS`");
    }
    for (i, process) in processes.iter().enumerate() {
        let gap = if i == 0 { "" } else { "\n" };
        out::print(&format!("{gap}{}", describe(process)));
    }
    out::FOUND
}

/// Adds the process of each node, if there are nodes. `one`: the other processes were not inspected yet.
fn name_peers(host: &Host, processes: &mut [Process], one: bool) {
    if processes.iter().all(|process| process.workers.is_empty()) {
        return;
    }
    let mut known = ranks::Known::new();
    let mut note = |process: &Process| {
        let nodes = process.workers.iter().map(|worker| worker.node.clone());
        known.extend(nodes.map(|node| (node, (process.pid, process.rank))));
    };
    if one {
        processes::all(host, &[]).iter().for_each(&mut note);
    }
    processes.iter().for_each(&mut note);
    processes.iter_mut().for_each(|process| ranks::name_peers(&mut process.workers, &known));
}

fn describe(process: &Process) -> String {
    let mut text = if process.wrapped { connections(process) } else { String::new() };
    let program = out::escaped(&process.program);
    let rank = process.rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
    for worker in &process.workers {
        text += &format!("process {} ({program}): {rank}{}", process.pid, ranks::describe(worker));
    }
    text
}

fn connections(process: &Process) -> String {
    let count = process.connections.len();
    let plural = if count == 1 { "connection" } else { "connections" };
    let missed = process.missed_bells;
    let program = out::escaped(&process.program);
    let mut text = format!("process {} ({program}): {count} {plural}, missed_bells {missed}\n", process.pid);
    let failed = process.not_connected.iter().map(failure).collect::<String>() + &udp(process.udp);
    if count == 0 {
        return text + &failed;
    }
    let heading = ["fd", "local", "peer", "path", "ring in", "ring out", "tcp in", "tcp out", "moves", "bells", "why"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for c in &process.connections {
        let name = |address: &Option<String>| address.clone().unwrap_or_else(|| "?".to_owned());
        rows.push(vec![
            c.fd.to_string(),
            name(&c.local),
            name(&c.peer),
            c.path.to_owned(),
            c.ring_in.to_string(),
            c.ring_out.to_string(),
            c.tcp_in.to_string(),
            c.tcp_out.to_string(),
            c.moves.to_string(),
            c.bells.to_string(),
            why(c),
        ]);
    }
    text += &out::table(&rows, &[0, 4, 5, 6, 7, 8, 9]);
    text + &failed
}

/// Why a connection has its path, and the process at its other end.
fn why(c: &Connection) -> String {
    let reason = match (&c.daemon, &c.reason) {
        (Some(route), _) => way(route),
        (None, reason) => reason.as_ref().map_or(String::new(), |r| format!("{}: {}", r.name, r.text)),
    };
    let stays = madrigal_report::Reason::PeerStays.name();
    match &c.peer_process {
        // The text of the reason names the process already.
        Some(_) if c.reason.as_ref().is_some_and(|r| r.name == stays) => reason,
        Some(peer) => {
            let gap = if reason.is_empty() { "" } else { "; " };
            format!("{reason}{gap}peer: process {} ({})", peer.pid, out::escaped(&peer.program))
        }
        None => reason,
    }
}

/// How a connection goes through daemons, and why.
fn way(route: &ConnectionStatus) -> String {
    let ConnectionStatus { hops, port, tls, why, stays, .. } = route;
    let cipher = if *tls { "tls" } else { "plain" };
    let stays = stays.as_ref().map_or_else(String::new, |stays| format!("; {stays}"));
    format!("{}:{port} ({cipher}): {why}{stays}", hops.join(" > "))
}

/// A line for the sockets that Madrigal does not handle.
fn udp(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => "1 UDP socket: plain, as without madrigal: only TCP is looked after\n".to_owned(),
        _ => format!("{count} UDP sockets: plain, as without madrigal: only TCP is looked after\n"),
    }
}

fn failure(route: &ConnectionStatus) -> String {
    let ConnectionStatus { asked, age, .. } = route;
    let error = route.error.as_deref().unwrap_or("?");
    format!("not connected, {age} s ago, to {asked}: {error}\n")
}
