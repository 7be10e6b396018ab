//! What is urgent on a link that carries all it can: it stands behind no more than a bound of bytes.
//!
//! Features (docs/features.md): B18.

use std::time::Instant;

use madrigal_tests::trials::need;

use super::bed::{Who, need_lab};
use super::common::bed::until;
use super::daemons::ALLOW;
use super::grid::Grid;

/// Takes whatever comes.
const SINK: &str = "import socket\n\
    s = socket.create_server(('127.0.0.1', 7000)); print('ready', flush=True)\n\
    c, _ = s.accept()\n\
    while c.recv(1 << 20): pass\n";
/// Sends without end what cannot be compressed.
const FLOOD: &str = "import os, socket, sys\n\
    c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('ready', flush=True)\n\
    b = os.urandom(1 << 20)\n\
    while True: c.sendall(b)\n";
/// What the kernel counts of the links of a daemon, again and again: bytes sent and bytes that were not.
const SAMPLES: usize = 40;
/// What may wait in the kernel, and some more that it takes in one piece.
const MOST_UNSENT: u64 = 384 << 10;

/// A number behind a word in the output of ss(8).
fn number(text: &str, word: &str) -> Option<u64> {
    let rest = text.split_once(word)?.1;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

pub(crate) fn what_is_urgent_stands_behind_little() {
    need_lab(Who::Me);
    need("ss");
    let grid = format!("trusted = true\n[site.a]\nhosts.a1 = []\n{ALLOW}[site.b]\nhosts.b1 = '198.51.100.2'\n{ALLOW}");
    let mut grid = Grid::up("nat-left.toml", &grid, &["b1", "a1"]);
    grid.linked("a1", "b1");
    let calm = question(&grid);
    assert_eq!(grid.ready("b1", &["/usr/bin/python3", "-c", SINK]), "ready\n");
    let port = grid.forward("a1", "b1:7000");
    assert_eq!(grid.ready("a1", &["/usr/bin/python3", "-c", FLOOD, &port]), "ready\n");
    let link = |grid: &Grid| grid.bed.exec("a1", &["ss", "-tin", "dport", "=", "7780"]).1;
    until("a full link", || number(&link(&grid), "bytes_acked:").filter(|acked| *acked > 10 << 20));
    let unsent: Vec<u64> = (0..SAMPLES).filter_map(|_| number(&link(&grid), "notsent:")).collect();
    let most = unsent.iter().copied().max().unwrap_or(0);
    let busy = question(&grid);
    let text = link(&grid);
    let trip = text.split_once(" rtt:").and_then(|(_, rest)| rest.split('/').next()).unwrap_or("?").to_owned();
    println!(
        "at most {} KiB unsent; a question takes {calm} ms on the idle link, {busy} ms on the full one, round trip {trip} ms",
        most >> 10
    );
    // The link carries all it can, or nothing was measured.
    assert!(unsent.len() > SAMPLES / 2, "of {SAMPLES} looks only {} found something unsent: {text}", unsent.len());
    assert!(most < MOST_UNSENT, "{most} bytes wait: {text}");
    grid.down();
}

/// How long the far daemon takes to answer, in milliseconds: the shortest of some.
fn question(grid: &Grid) -> u128 {
    let ask = || {
        let began = Instant::now();
        assert_eq!(grid.run("a1", &["why", "b1", "a1", "--json"]).0, 0);
        began.elapsed().as_millis()
    };
    (0..7).map(|_| ask()).min().unwrap_or(0)
}
