//! Daemons on hosts of a lab: the ways they find between sites, with real programs at the ends.
//!
//! Features (docs/features.md): B18.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::bed::{Bed, Who, possible, until};

/// Sends back what comes, and says so on its output when it is ready.
const ECHO: &str = "import socket, sys, threading\n\
    s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\nprint('ready', flush=True)\n\
    def serve(c):\n    \
        try:\n        \
            while b := c.recv(65536): c.sendall(b)\n        c.shutdown(1)\n    \
        except OSError: pass\n\
    while True: threading.Thread(target=serve, args=(s.accept()[0],)).start()\n";

/// Sends bytes to a local port while it reads; what became of them.
pub(crate) const EXCHANGE: &str = "import socket, sys, threading, hashlib\n\
    c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); n = int(sys.argv[2])\n\
    b = bytes(i * 7 % 251 for i in range(n))\n\
    threading.Thread(target=lambda: (c.sendall(b), c.shutdown(1))).start()\n\
    got = bytearray()\n\
    while r := c.recv(65536): got += r\n\
    print('same' if got == b else 'other: %d of %d' % (len(got), n))\n";

/// A lab with a daemon on each of some hosts.
pub(crate) struct Grid {
    pub(crate) bed: Bed,
    file: String,
    pub(crate) running: Vec<(String, Child)>,
}

impl Grid {
    pub(crate) fn up(lab: &str, grid: &str, hosts: &[&str]) -> Self {
        Self::on(Bed::up(lab), grid, hosts)
    }

    /// On a lab that is up.
    pub(crate) fn on(bed: Bed, grid: &str, hosts: &[&str]) -> Self {
        let file = bed.home.file("grid.toml", grid);
        let mut all = Self { bed, file, running: Vec::new() };
        hosts.iter().for_each(|host| all.start(host));
        all
    }

    pub(crate) fn start(&mut self, host: &str) {
        let args = ["up", "--foreground", "--grid", &self.file, "--host", host];
        let child = self.spawn(host, &[&[self.bed.home.exe().as_str()], &args[..]].concat());
        self.running.push((host.to_owned(), child));
        until("a daemon", || (self.run(host, &["status"]).0 == 0).then_some(()));
    }

    pub(crate) fn spawn(&self, host: &str, command: &[&str]) -> Child {
        let mut lab = self.bed.home.lab(&[&["exec", host, "--"], command].concat());
        lab.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Starts something that says a line when it is ready; the line.
    pub(crate) fn ready(&mut self, host: &str, command: &[&str]) -> String {
        use std::io::BufRead as _;
        let mut child = self.spawn(host, command);
        let mut line = String::new();
        std::io::BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        self.running.push((String::new(), child));
        line
    }

    /// Starts something that runs until the grid is down.
    pub(crate) fn serve(&mut self, host: &str, command: &[&str]) {
        let child = self.spawn(host, command);
        self.running.push((String::new(), child));
    }

    pub(crate) fn echo(&mut self, host: &str, port: &str) {
        assert_eq!(self.ready(host, &["/usr/bin/python3", "-c", ECHO, port]), "ready\n");
    }

    /// The local port of `host` that leads to another one's.
    pub(crate) fn forward(&mut self, host: &str, to: &str) -> String {
        let exe = self.bed.home.exe();
        let line = self.ready(host, &[&exe, "forward", "0", to]);
        line.split([':', ' ']).nth(1).unwrap_or_else(|| panic!("{host} to {to}: {line}")).to_owned()
    }

    /// `madrigal` on a host.
    pub(crate) fn run(&self, host: &str, args: &[&str]) -> (i32, String, String) {
        self.bed.exec(host, &[&[self.bed.home.exe().as_str()], args].concat())
    }

    pub(crate) fn status(&self, host: &str) -> serde_json::Value {
        serde_json::from_str(&self.run(host, &["status", "--json"]).1).unwrap()
    }

    pub(crate) fn linked(&self, host: &str, peer: &str) {
        let is_up =
            |one: &serde_json::Value| one["host"] == peer && one["links"].as_array().is_some_and(|l| !l.is_empty());
        until("a link", || self.status(host)["peers"].as_array().unwrap().iter().any(is_up).then_some(()));
    }

    /// A port of `to` works from `from`, through its daemon.
    #[track_caller]
    pub(crate) fn works(&mut self, from: &str, to: &str) {
        let port = self.forward(from, &format!("{to}:7000"));
        assert_eq!(self.bed.python(from, EXCHANGE, &[&port, "1000000"]), "same", "{from} to {to}");
    }

    pub(crate) fn kill(&mut self, host: &str) {
        // The daemon itself is a child of the command that entered the host, and is killed with it.
        let place = self.running.iter().position(|(name, _)| name == host).unwrap();
        let (_, mut child) = self.running.remove(place);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn down(mut self) {
        for (_, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.running.clear();
        self.bed.down();
    }
}

pub(crate) fn has(program: &str) -> bool {
    let found = ["/usr/bin", "/usr/local/bin"].iter().any(|dir| Path::new(dir).join(program).exists());
    if !found {
        println!("skipped: no {program} here");
    }
    found
}

pub(crate) const ALLOW: &str = "allow = '7000,6379,8080,8730,5201'\n";

#[test]
fn nat_left_works_both_ways() {
    if !possible(Who::Me) {
        return;
    }
    let grid = format!("trusted = true\n[site.a]\nhosts.a1 = []\n{ALLOW}[site.b]\nhosts.b1 = '198.51.100.2'\n{ALLOW}");
    let mut grid = Grid::up("nat-left.toml", &grid, &["a1", "b1"]);
    grid.echo("a1", "7000");
    grid.echo("b1", "7000");
    grid.linked("b1", "a1");
    grid.works("a1", "b1");
    // Nobody can call a1: the link that it made serves.
    grid.works("b1", "a1");
    grid.down();
}

#[test]
fn one_way_firewall_works_both_ways() {
    if !possible(Who::Me) {
        return;
    }
    let grid =
        format!("trusted = true\n[site.a]\nhosts.a1 = '10.1.0.2'\n{ALLOW}[site.b]\nhosts.b1 = '10.2.0.2'\n{ALLOW}");
    let mut grid = Grid::up("one-way-firewall.toml", &grid, &["b1", "a1"]);
    grid.echo("a1", "7000");
    grid.linked("b1", "a1");
    grid.works("b1", "a1");
    grid.down();
}

/// Two sites behind NAT, and a relay.
pub(crate) fn two_sites() -> String {
    format!(
        "trusted = true\n[site.a]\nhosts = {{ a1 = '10.1.0.2', a2 = '10.1.0.3' }}\n{ALLOW}\
         [site.b]\nhosts = {{ b1 = '10.2.0.2', b2 = '10.2.0.3' }}\n{ALLOW}\
         [site.public]\nhosts.r = '203.0.113.2'\nrelay = 'r'\n"
    )
}

#[test]
fn redis_between_two_sites_behind_nat() {
    if !possible(Who::Me) || !has("redis-server") || !has("redis-cli") {
        return;
    }
    let mut grid = Grid::up("two-sites.toml", &two_sites(), &["r", "a1", "b1"]);
    grid.linked("a1", "r");
    grid.linked("b1", "r");
    grid.serve("b1", &["redis-server", "--port", "6379", "--save", "", "--bind", "127.0.0.1"]);
    until("redis", || grid.bed.exec("b1", &["redis-cli", "ping"]).1.contains("PONG").then_some(()));
    let port = grid.forward("a1", "b1:6379");
    let ask = |grid: &Grid, args: &[&str]| grid.bed.exec("a1", &[&["redis-cli", "-p", &port], args].concat()).1;
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

#[test]
fn a_short_cut_is_survived_and_a_long_one_is_a_clean_error() {
    if !possible(Who::Me) {
        return;
    }
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
