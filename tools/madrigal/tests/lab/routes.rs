//! Unmodified programs under `madrigal exec` on hosts of a lab: they reach hosts of other sites through the daemons, by the names and
//! addresses that they always used, and the servers there know nothing of it.
//!
//! Features (docs/features.md): B16, B18, L7.

use madrigal_tests::trials::need;

use super::bed::{Who, need_lab};
use super::common;
use super::common::bed::until;
use super::daemons::two_sites;
use super::grid::Grid;
use super::programs::{redis, seen, try_iperf, try_redis, try_rsync, try_web};

pub(crate) fn programs_between_two_sites_behind_nat() {
    need_lab(Who::Me);
    let mut grid = Grid::up("two-sites.toml", &two_sites(), &["r", "a1", "a2", "b1"]);
    grid.linked("a1", "r");
    grid.linked("b1", "r");
    try_redis(&mut grid, "a1", "b1");
    try_web(&mut grid, "a1", "b1");
    try_rsync(&mut grid, "a1", "b1");
    try_iperf(&mut grid, "a1", "b1");
    // By the address in the other site; and the hops are reported.
    let script = "import socket\ns = socket.create_connection(('10.2.0.2', 6379)); s.sendall(b'PING\\r\\n'); assert s.recv(9) == b'+PONG\\r\\n'\n\
        assert s.getpeername() == ('10.2.0.2', 6379) and s.getsockname()[0] == '10.1.0.2', s\n\
        import os, subprocess, sys\nprint(subprocess.run([sys.argv[1], 'why', str(os.getpid()), '--json'], stdout=-1).stdout.decode())";
    let exe = common::exe().to_str().unwrap();
    let told = grid.wrapped("a1", &["/usr/bin/python3", "-c", script, exe]);
    let answer: serde_json::Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{told}"));
    let connection = &answer["processes"][0]["connections"][0];
    assert_eq!(connection["daemon"]["hops"], serde_json::json!(["a1", "r", "b1"]), "{told}");
    assert!(connection["daemon"]["why"].as_str().unwrap().contains("the network between is not trusted"), "{told}");
    // Within a site nothing goes by daemons.
    redis(&mut grid, "a2", "0.0.0.0");
    assert_eq!(seen(&grid.wrapped("a1", &["redis-cli", "-h", "a2", "client", "list"])), "10.1.0.2");
    assert_eq!(seen(&grid.wrapped("a1", &["redis-cli", "-h", "b1", "client", "list"])), "127.0.0.1");
    grid.down();
}

pub(crate) fn programs_through_a_one_way_firewall() {
    need_lab(Who::Me);
    need("redis-server");
    let allow = "allow = '6379,8080,8730,5201'\n";
    let file =
        format!("trusted = true\n[site.a]\nhosts.a1 = '10.1.0.2'\n{allow}[site.b]\nhosts.b1 = '10.2.0.2'\n{allow}");
    let mut grid = Grid::up("one-way-firewall.toml", &file, &["b1", "a1"]);
    grid.linked("b1", "a1");
    try_redis(&mut grid, "b1", "a1");
    try_rsync(&mut grid, "b1", "a1");
    // The other way is open, and no rule demands more.
    redis(&mut grid, "b1", "0.0.0.0");
    let sees = |grid: &Grid| seen(&grid.wrapped("a1", &["redis-cli", "-h", "b1", "client", "list"]));
    until("a direct connection", || (sees(&grid) == "10.1.0.2").then_some(()));
    grid.down();
}

pub(crate) fn programs_between_networks_with_the_same_addresses() {
    need_lab(Who::Me);
    let allow = "allow = '6379,8080'\n";
    let file = format!(
        "[site.a]\nhosts.a1 = '10.0.0.2'\n{allow}[site.b]\nhosts.b1 = '10.0.0.2'\n{allow}\
         [site.public]\nhosts.r = '203.0.113.2'\nrelay = 'r'\n"
    );
    let mut grid = Grid::up("overlapping.toml", &file, &["r", "a1", "b1"]);
    grid.linked("a1", "r");
    grid.linked("b1", "r");
    // Only the name decides which one is meant, since both have the same address.
    try_redis(&mut grid, "a1", "b1");
    try_web(&mut grid, "b1", "a1");
    grid.down();
}
