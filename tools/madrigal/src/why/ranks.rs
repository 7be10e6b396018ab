//! Processes of parallel jobs: their workers, and the nodes each talks to.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;

use madrigal_report::ranks::{Rank, Seen};
use madrigal_sys::Errno;
use serde::Serialize;

use crate::{mpi, out};

/// A worker of a process.
#[derive(Serialize, Default)]
pub(super) struct Worker {
    /// Its id.
    pub(super) node: String,
    /// The drivers of messages it opened.
    drivers: Vec<String>,
    /// Where it can be reached over a network.
    addresses: Vec<String>,
    /// Drivers it did not open, and why.
    refused: Vec<Rejected>,
    pub(super) peers: Vec<Peer>,
}

/// A node it knows. Frames, bytes of their bodies, and bytes that went from memory to memory by single copies.
#[derive(Serialize, Default)]
pub(super) struct Peer {
    node: String,
    /// Its process and rank, where it is on this host and we may know.
    pid: Option<u32>,
    rank: Option<u32>,
    /// `up`, `down`, `linking`, or `known` where nothing was sent to it yet.
    state: &'static str,
    /// The driver that carries what is sent; only while it is up.
    path: Option<String>,
    how: Option<String>,
    /// How long messages go, and why so.
    long: Option<String>,
    /// Why it is down.
    why: Option<String>,
    addresses: Vec<String>,
    /// What was tried or checked, and rejected.
    rejected: Vec<Rejected>,
    frames_out: u64,
    frames_in: u64,
    bytes_out: u64,
    bytes_in: u64,
    copied_out: u64,
    copied_in: u64,
}

/// Something that was not taken, and why.
#[derive(Serialize)]
struct Rejected {
    what: String,
    why: String,
}

/// The process and rank of each node.
pub(super) type Known = HashMap<String, (u32, Option<u32>)>;

/// The workers of a process.
pub(super) fn of(pid: u32) -> Result<Vec<Worker>, Errno> {
    Ok(Seen::of(pid)?.iter().filter_map(worker).collect())
}

/// The rank an MPI launcher gave a process.
pub(super) fn rank(pid: u32) -> Option<u32> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let variables: Vec<&str> = environment.split(|&b| b == 0).filter_map(|v| core::str::from_utf8(v).ok()).collect();
    let value = |name: &&str| variables.iter().find_map(|v| v.strip_prefix(*name)?.strip_prefix('='));
    mpi::RANKS.iter().find_map(value)?.parse().ok()
}

/// Adds what is known of the peers that are on this host.
pub(super) fn name_peers(workers: &mut [Worker], known: &Known) {
    for peer in workers.iter_mut().flat_map(|worker| &mut worker.peers) {
        if let Some((pid, rank)) = known.get(&peer.node) {
            (peer.pid, peer.rank) = (Some(*pid), *rank);
        }
    }
}

fn worker(seen: &Seen) -> Option<Worker> {
    let mut records = seen.records();
    let mut worker = Worker::default();
    for (key, value) in lines(&records.next()?.text()?) {
        match key {
            "node" => worker.node = value.to_owned(),
            "driver" => worker.drivers.push(value.to_owned()),
            "address" => worker.addresses.push(value.to_owned()),
            "rejected" => worker.refused.push(rejected(value)),
            _ => {}
        }
    }
    // It lists itself, too, which is shown only if it sends to itself.
    let worth = |peer: &Peer| peer.node != worker.node || peer.state != "known";
    worker.peers = records.filter_map(peer).filter(worth).collect();
    Some(worker)
}

fn peer(record: &Rank) -> Option<Peer> {
    let text = record.text()?;
    let counters = record.counters();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut peer = Peer {
        state: "known",
        frames_out: count(&counters.sent),
        frames_in: count(&counters.received),
        bytes_out: count(&counters.sent_bytes),
        bytes_in: count(&counters.received_bytes),
        copied_out: count(&counters.copied_out),
        copied_in: count(&counters.copied_in),
        ..Peer::default()
    };
    for (key, value) in lines(&text) {
        let value = || value.to_owned();
        match key {
            "node" => peer.node = value(),
            "path" => (peer.state, peer.path) = ("up", Some(value())),
            "how" => peer.how = Some(value()),
            "long" => peer.long = Some(value()),
            "down" => (peer.state, peer.why) = ("down", Some(value())),
            "linking" => (peer.state, peer.how) = ("linking", Some(format!("by {}", value()))),
            "address" => peer.addresses.push(value()),
            "rejected" => peer.rejected.push(rejected(&value())),
            _ => {}
        }
    }
    Some(peer)
}

/// The lines of a text, without characters that control a terminal: another process wrote it.
fn lines(text: &str) -> Vec<(&str, &str)> {
    let clean = |line: &&str| !line.chars().any(|c| c.is_control() && c != '\t');
    text.lines().filter(clean).filter_map(|line| line.split_once(' ')).collect()
}

fn rejected(value: &str) -> Rejected {
    let (what, why) = value.split_once('\t').unwrap_or((value, ""));
    Rejected { what: what.to_owned(), why: why.replace('\t', " ") }
}

/// A worker for people.
pub(super) fn describe(worker: &Worker) -> String {
    let count = worker.peers.len();
    let plural = if count == 1 { "node" } else { "nodes" };
    let at = if worker.addresses.is_empty() { String::new() } else { format!(" at {}", worker.addresses.join(", ")) };
    let mut text = format!("node {}{at}, by {}: knows {count} {plural}\n", worker.node, worker.drivers.join(", "));
    for Rejected { what, why } in &worker.refused {
        text += &format!("  not by {what}: {why}\n");
    }
    if count == 0 {
        return text;
    }
    let heading =
        ["node", "pid", "rank", "state", "path", "frames out", "in", "bytes out", "in", "copied out", "in", "how"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let number = |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    for peer in &worker.peers {
        let mut row = vec![peer.node.clone(), number(peer.pid), number(peer.rank), peer.state.to_owned()];
        row.push(peer.path.clone().unwrap_or_else(|| "-".to_owned()));
        let counts = [peer.frames_out, peer.frames_in, peer.bytes_out, peer.bytes_in, peer.copied_out, peer.copied_in];
        row.extend(counts.map(|count| count.to_string()));
        row.push(peer.how.clone().or_else(|| peer.why.clone()).unwrap_or_default());
        rows.push(row);
    }
    text += &out::table(&rows, &[1, 2, 5, 6, 7, 8, 9, 10]);
    text + &details(&worker.peers)
}

/// What does not fit into the table: the same remark of several nodes once.
fn details(peers: &[Peer]) -> String {
    let mut remarks: Vec<(String, Vec<&str>)> = Vec::new();
    let mut remark = |text: String, node| match remarks.iter_mut().find(|(known, _)| *known == text) {
        Some((_, nodes)) => nodes.push(node),
        None => remarks.push((text, vec![node])),
    };
    for peer in peers {
        let node = peer.node.as_str();
        if let (Some(path), Some(long)) = (&peer.path, &peer.long) {
            remark(format!("long messages by {path}: {long}"), node);
        }
        peer.rejected.iter().for_each(|r| remark(format!("not by {}: {}", r.what, r.why), node));
        if peer.path.as_deref() != Some("loopback") && !peer.addresses.is_empty() {
            remark(format!("published {}", peer.addresses.join(", ")), node);
        }
    }
    let line = |(text, nodes): &(String, Vec<&str>)| match nodes.len() {
        1..=4 => format!("  {}: {text}\n", nodes.join(", ")),
        many => format!("  {many} nodes: {text}\n"),
    };
    remarks.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_others_are_read_with_care() {
        let text = "node 1\npath shm\x1b[2J\nnonsense\nrejected shm\tno\tway\n";
        assert_eq!(lines(text), [("node", "1"), ("rejected", "shm\tno\tway")]);
        let told = rejected("shm\tno\tway");
        assert_eq!((told.what.as_str(), told.why.as_str()), ("shm", "no way"));
    }

    #[test]
    fn remarks_that_are_the_same_are_made_once() {
        let peer = |node: &str| Peer {
            node: node.to_owned(),
            rejected: vec![Rejected { what: "shm".to_owned(), why: "other host".to_owned() }],
            ..Peer::default()
        };
        assert_eq!(details(&[peer("a"), peer("b")]), "  a, b: not by shm: other host\n");
        let many: Vec<_> = ["a", "b", "c", "d", "e"].map(peer).into();
        assert_eq!(details(&many), "  5 nodes: not by shm: other host\n");
    }
}
