//! Daemons on hosts of a lab: the ways they find between sites, with real programs at the ends.
//!
//! Features (docs/features.md): B18.

use std::process::{Child, Command};

use madrigal_tests::trials::need_all;

use super::bed::{Who, need_lab};
use super::common::bed::until;
use super::grid::Grid;

/// What the tests' programs listen at.
pub(crate) const ALLOW: &str = "allow = '7000,2809,5201,6379,8080,8730'\n";

/// Every port: launchers and ranks of MPIs take any.
pub(crate) const ALLOW_ALL: &str = "allow = '1-65535'\n";

pub(crate) fn nat_left_works_both_ways() {
    need_lab(Who::Me);
    let grid = format!("[site.a]\nhosts.a1 = []\n{ALLOW}[site.b]\nhosts.b1 = '198.51.100.2'\n{ALLOW}");
    let mut grid = Grid::up("nat-left.toml", &grid, &["a1", "b1"]);
    grid.echo("a1", "7000");
    grid.echo("b1", "7000");
    grid.linked("b1", "a1");
    grid.works("a1", "b1");
    // Nobody can call a1: the link that it made serves.
    grid.works("b1", "a1");
    grid.down();
}

pub(crate) fn one_way_firewall_works_both_ways() {
    need_lab(Who::Me);
    let grid = format!("[site.a]\nhosts.a1 = '10.1.0.2'\n{ALLOW}[site.b]\nhosts.b1 = '10.2.0.2'\n{ALLOW}");
    let mut grid = Grid::up("one-way-firewall.toml", &grid, &["b1", "a1"]);
    grid.echo("a1", "7000");
    grid.linked("b1", "a1");
    grid.works("b1", "a1");
    grid.down();
}

/// Two sites behind NAT, and a relay.
pub(crate) fn two_sites() -> String {
    format!(
        "[site.a]\nhosts = {{ a1 = '10.1.0.2', a2 = '10.1.0.3' }}\n{ALLOW}\
         [site.b]\nhosts = {{ b1 = '10.2.0.2', b2 = '10.2.0.3' }}\n{ALLOW}\
         [site.public]\nhosts.r = '203.0.113.2'\nrelay = 'r'\n"
    )
}

pub(crate) fn redis_between_two_sites_behind_nat() {
    need_lab(Who::Me);
    need_all(&["redis-server", "redis-cli"]);
    let mut grid = Grid::up("two-sites.toml", &two_sites(), &["r", "a1", "b1"]);
    grid.linked("a1", "r");
    grid.linked("b1", "r");
    grid.serve("b1", &["redis-server", "--port", "6379", "--save", "", "--bind", "127.0.0.1"]);
    until("redis", || grid.exec("b1", &["redis-cli", "ping"]).1.contains("PONG").then_some(()));
    let port = grid.forward("a1", "b1:6379");
    let ask = |grid: &Grid, args: &[&str]| grid.exec("a1", &[&["redis-cli", "-p", &port], args].concat()).1;
    assert_eq!(ask(&grid, &["set", "key", &"x".repeat(50_000)]), "OK\n");
    assert_eq!(ask(&grid, &["strlen", "key"]), "50000\n");
    // Within a site directly.
    grid.start("a2");
    grid.echo("a2", "7000");
    grid.linked("a1", "a2");
    grid.works("a1", "a2");
    // The relay is killed and comes back: so do connections.
    grid.kill("r");
    until("no link", || (ask(&grid, &["ping"]) != "PONG\n").then_some(()));
    grid.start("r");
    until("a link again", || (ask(&grid, &["ping"]) == "PONG\n").then_some(()));
    grid.down();
}

pub(crate) fn a_short_cut_is_survived_and_a_long_one_is_a_clean_error() {
    need_lab(Who::Me);
    let mut grid = Grid::up("two-sites.toml", &two_sites(), &["r", "a1", "b1"]);
    grid.echo("b1", "7000");
    grid.linked("a1", "r");
    grid.linked("b1", "r");
    let port = grid.forward("a1", "b1:7000");
    // Talks all the while; what comes back must be what was sent, to the end.
    const TALK: &str = "import socket, sys, time\n\
        c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); end = time.monotonic() + float(sys.argv[2]); n = 0\n\
        print('ready', flush=True)\n\
        try:\n    \
            while time.monotonic() < end:\n        \
                b = b'%08d' % n; n += 1; c.sendall(b); got = b''\n        \
                while len(got) < 8:\n            r = c.recv(8 - len(got)); assert r, 'end'; got += r\n        \
                assert got == b, got\n    \
            print('whole')\n\
        except OSError as e: print(type(e).__name__)\n";
    let talk = |grid: &Grid, seconds: &str| {
        use std::io::BufRead as _;
        let mut child = grid.spawn("a1", &["/usr/bin/python3", "-c", TALK, &port, seconds]);
        let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        (child, output)
    };
    let rest = |(mut child, mut output): (Child, std::io::BufReader<std::process::ChildStdout>)| {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut output, &mut text).unwrap();
        child.wait().unwrap();
        text.trim().to_owned()
    };
    let talking = talk(&grid, "9");
    grid.bed.lab(&["cut", "ar"]);
    assert!(Command::new("sleep").arg("5").status().unwrap().success());
    grid.bed.lab(&["heal", "ar"]);
    assert_eq!(rest(talking), "whole");
    let talking = talk(&grid, "1000");
    grid.bed.lab(&["cut", "ar"]);
    assert_eq!(rest(talking), "ConnectionResetError");
    let (status, _, err) = grid.run("a1", &["connect", "b1:7000"]);
    assert!(
        status == 1 && err.contains("no link with b1: 10.2.0.2:7780: ") && err.contains("no link with relay r: "),
        "{err}"
    );
    grid.down();
}
