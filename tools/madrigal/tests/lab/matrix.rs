//! The matrix: what can lie between two hosts, and unmodified programs at them, MPIs among these. In each scene every program brings what
//! was sent, links are TLS between sites, nothing else passes the border, and how long the first connection took is told: with nothing
//! known, and by what a daemon remembers.
//!
//! Features (docs/features.md): B16, B18, D3.

use serde_json::Value;

use super::bed::{Bed, Who, need_lab, run};
use super::common::bed::{WATCHDOG, until};
use super::daemons::{ALLOW, ALLOW_ALL};
use super::grid::{Capture, Grid, Seen};
use super::jobs::Site;
use super::programs::PROGRAMS;
use super::ways::{need_ssh, only_ssh};

/// What lies between two hosts.
struct Scene {
    name: &'static str,
    /// Builds it, with daemons.
    up: fn() -> Grid,
    rows: &'static [Row],
    /// Where everything passes that leaves the first site: a host or router, and its device there.
    border: (&'static str, &'static str),
    /// What passes there.
    passes: Passes,
}

/// Programs on one host call another.
struct Row {
    from: &'static str,
    to: &'static str,
    /// The way that connections take.
    way: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Passes {
    Tls,
    /// What is enciphered by ssh.
    Ssh,
}

const fn row(from: &'static str, to: &'static str, way: &'static str) -> Row {
    Row { from, to, way }
}

const SCENES: &[Scene] = &[
    Scene {
        name: "open",
        up: || text(OPEN),
        rows: &[row("a1", "b1", "direct")],
        border: ("gw-a", "ab"),
        passes: Passes::Tls,
    },
    Scene {
        name: "NAT left, NAT right",
        up: || example("nat-left.toml"),
        rows: &[row("a1", "b1", "direct"), row("b1", "a1", "reverse")],
        border: ("gw-a", "ab"),
        passes: Passes::Tls,
    },
    Scene {
        name: "NAT both, a relay",
        up: || example("two-sites.toml"),
        rows: &[row("a1", "b1", "through r")],
        border: ("gw-a", "ar"),
        passes: Passes::Tls,
    },
    Scene {
        name: "firewall, left to right only",
        up: || example("one-way-firewall.toml"),
        rows: &[row("a1", "b1", "direct"), row("b1", "a1", "reverse")],
        border: ("gw-a", "ab"),
        passes: Passes::Tls,
    },
    Scene {
        name: "only ssh",
        up: || {
            need_ssh();
            only_ssh()
        },
        rows: &[row("a1", "b1", "command")],
        border: ("gw-a", "ab"),
        passes: Passes::Ssh,
    },
    Scene {
        name: "overlapping networks",
        up: || example("overlapping.toml"),
        rows: &[row("a1", "b1", "through r"), row("b1", "a1", "through r")],
        border: ("gw-a", "ar"),
        passes: Passes::Tls,
    },
    Scene {
        name: "IPv6 only",
        up: || example("ipv6-only.toml"),
        rows: &[row("a1", "b1", "through r")],
        border: ("gw-a", "ar"),
        passes: Passes::Tls,
    },
    Scene {
        name: "docker0 twins",
        up: || twins("docker0-twins.toml", ["172.17.0.1", "172.17.0.1"]),
        rows: &[row("a1", "a2", "direct")],
        border: ("a1", "eth0"),
        passes: Passes::Tls,
    },
    Scene {
        name: "dangling NIC",
        up: || twins("dangling-nic.toml", ["192.168.7.1", "192.168.7.2"]),
        rows: &[row("a1", "a2", "direct")],
        border: ("a1", "eth0"),
        passes: Passes::Tls,
    },
];

/// Two sites that reach each other.
const OPEN: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1']\n[site.b]\nnetwork = '10.2.0.0/24'\nhosts = ['b1']\n\
    [link.ab]\nbetween = ['a', 'b']\nrate = '200M'\ndelay = '10ms'\n";

/// An example, with daemons.
fn example(file: &str) -> Grid {
    Grid::with_daemons(Who::Me, file).0
}

/// A lab of this text, with daemons.
fn text(text: &str) -> Grid {
    Grid::on_lab_of_daemons(Bed::up_text_with(text, &["--with-daemons"])).0
}

/// Two hosts on one network that are of different sites, each listed with all its addresses, the useless one first.
fn twins(file: &str, more: [&str; 2]) -> Grid {
    let [one, two] = more;
    let grid = format!(
        "[site.a]\nhosts.a1 = ['{one}', '10.1.0.2']\n{ALLOW_ALL}[site.b]\nhosts.a2 = ['{two}', '10.1.0.3']\n{ALLOW_ALL}"
    );
    Grid::up(file, &grid, &["a1", "a2"])
}

/// Starts the daemon (by `argv` after the third), without its file of known hosts if requested, and connects a program at once.
const FIRST: &str = "exe=$1 to=$2 known=$3; shift 3\n\
    \"$exe\" down >/dev/null\n\
    [ $known = forget ] && rm -f ${XDG_RUNTIME_DIR:-/nonexistent}/madrigal/known.json /dev/shm/madrigal-run-*/known.json $KEPT\n\
    \"$@\" >/dev/null && begin=$(date +%s%N) && exec \"$WRAP\" exec -- /usr/bin/python3 -c \"$TIMED\" $to $begin\n";

/// Connects to port 7000 of a host and has a word there; microseconds in connect, and from a moment on until then.
const TIMED: &str = "import socket, sys, time\n\
    b = time.monotonic(); c = socket.create_connection((sys.argv[1], 7000)); e = time.monotonic()\n\
    whole = time.time_ns() - int(sys.argv[2])\n\
    c.sendall(b'MADRIGAL-PLAIN-TEXT.'); got = b''\n\
    while len(got) < 20: got += c.recv(20)\n\
    assert got == b'MADRIGAL-PLAIN-TEXT.'\n\
    print(int((e - b) * 1e6), whole // 1000)\n";

/// How long the first connection takes after the daemon was started: milliseconds in connect(2), and since its start.
fn first(grid: &Grid, row: &Row, known: &str) -> (f64, f64) {
    let (exe, up) = (grid.bed.home.exe(), grid.up_words(row.from));
    let mut words = vec!["sh", "-c", FIRST, "sh", &exe, row.to, known];
    words.extend(up.iter().map(String::as_str));
    let _ = super::common::madrigal();
    let mut command = grid.command(row.from, &words);
    // Nor does ssh know of an earlier connection.
    command.env("KEPT", format!("{}/ssh-*", grid.bed.home.folder()));
    command.env("WRAP", super::common::exe()).env("TIMED", TIMED);
    let (status, out, err) = run(&mut command);
    assert_eq!(status, 0, "{} to {}, {known}: {out}{err}", row.from, row.to);
    let mut figures = out.split_whitespace().map(|figure| figure.parse::<f64>().unwrap() / 1000.0);
    (figures.next().unwrap(), figures.next().unwrap())
}

/// How long one takes when the links are there, in milliseconds.
fn again(grid: &Grid, row: &Row) -> f64 {
    let told = grid.wrapped(row.from, &["/usr/bin/python3", "-c", TIMED, row.to, "0"]);
    told.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1000.0
}

/// All programs in one scene.
fn play(name: &str) {
    need_lab(Who::Me);
    let scene = SCENES.iter().find(|scene| scene.name == name).unwrap();
    let mut grid = (scene.up)();
    let capture = Capture::start(&grid.bed, scene.border.0, scene.border.1);
    let first_row = scene.rows.first().unwrap();
    let site = Site::new(&grid.bed, &[first_row.from, first_row.to]);
    for row in scene.rows {
        grid.echo(row.to, "7000");
        let inside = [row.from, row.to].map(|host| Capture::start(&grid.bed, host, "lo"));
        let [fresh, remembered] = ["forget", "keep"].map(|known| first(&grid, row, known));
        grid.takes(row.from, row.from, row.to, row.way);
        println!(
            "{name}: {} to {}, {}: connected in {:.0} ms ({:.0} ms after the daemon began), remembered {:.0} ms ({:.0} ms), \
             linked {:.0} ms",
            row.from,
            row.to,
            row.way,
            fresh.0,
            fresh.1,
            remembered.0,
            remembered.1,
            again(&grid, row)
        );
        // Between programs and their daemon, and it and servers: nothing is enciphered.
        let inside = inside.map(Capture::end);
        assert!(inside.iter().all(|seen| seen.plain && seen.enciphered() == 0), "{name}: {inside:?}");
        for program in PROGRAMS {
            program(&mut grid, row.from, row.to);
        }
        site.try_all(&grid.bed, &[row.from, row.to]);
    }
    judge(scene, &capture.end());
    site.end();
    grid.down();
}

/// What passed the border.
fn judge(scene: &Scene, seen: &Seen) {
    assert!(!seen.plain, "{}: {seen:?}", scene.name);
    match scene.passes {
        Passes::Tls => assert!(seen.enciphered() >= 2 && seen.others().is_empty(), "{}: {seen:?}", scene.name),
        Passes::Ssh => {
            let others = seen.others();
            assert!(seen.enciphered() == 0 && others.len() >= 2, "{seen:?}");
            assert!(others.iter().all(|flow| flow.split(' ').any(|port| port == "22")), "{seen:?}");
        }
    }
}

pub(crate) fn open() {
    play("open");
}

pub(crate) fn nat_left_and_right() {
    play("NAT left, NAT right");
}

pub(crate) fn nat_both_and_a_relay() {
    play("NAT both, a relay");
}

pub(crate) fn a_firewall_from_left_to_right_only() {
    play("firewall, left to right only");
}

pub(crate) fn nothing_but_ssh() {
    play("only ssh");
}

pub(crate) fn overlapping_networks() {
    play("overlapping networks");
}

pub(crate) fn ipv6_only() {
    play("IPv6 only");
}

pub(crate) fn docker0_twins() {
    play("docker0 twins");
}

pub(crate) fn a_dangling_nic() {
    play("dangling NIC");
}

/// No host can dial another one, the relay included.
const SHUT: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nnat = true\nhosts = ['a1']\n\
    [site.b]\nnetwork = '10.2.0.0/24'\nnat = true\nhosts = ['b1']\n\
    [site.public]\nnetwork = '203.0.113.0/24'\nfirewall = 'in'\nhosts = ['r']\n\
    [link.ar]\nbetween = ['a', 'public']\ndelay = '10ms'\n[link.br]\nbetween = ['b', 'public']\ndelay = '10ms'\n";

/// Tries to connect, and prints the result, the time it took, and the report of `madrigal why` about this process.
const TRY: &str = "import errno, json, os, socket, subprocess, sys, time\n\
    b = time.monotonic()\n\
    try: socket.create_connection((sys.argv[2], 7000)); told = 'connected'\n\
    except OSError as e: told = errno.errorcode[e.errno]\n\
    e = time.monotonic()\n\
    env = {k: v for k, v in os.environ.items() if k != 'LD_PRELOAD'}\n\
    why = subprocess.run([sys.argv[1], 'why', str(os.getpid())], stdout=-1, env=env).stdout.decode()\n\
    print(json.dumps({'told': told, 'seconds': e - b, 'why': why}))\n";

pub(crate) fn where_nothing_is_possible_an_error_names_every_attempt() {
    need_lab(Who::Me);
    let text = format!(
        "[site.a]\nhosts.a1 = '10.1.0.2'\n{ALLOW}[site.b]\nhosts.b1 = '10.2.0.2'\n{ALLOW}\
         via = 'echo the command says no >&2; false'\n[site.public]\nhosts.r = '203.0.113.2'\nrelay = 'r'\n"
    );
    let grid = Grid::on(Bed::up_text(SHUT), &text, &["a1", "b1", "r"]);
    let _ = super::common::madrigal();
    let exe = super::common::exe().to_str().unwrap();
    let told = grid.wrapped("a1", &["/usr/bin/python3", "-c", TRY, exe, "b1"]);
    let told: Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{told}"));
    println!("nothing possible: {} after {:.1} s", told["told"], told["seconds"]);
    assert!(["EHOSTUNREACH", "ETIMEDOUT"].iter().any(|errno| told["told"] == *errno), "{told:#}");
    // Twelve seconds it may take; a machine that is busy may take more.
    assert!(told["seconds"].as_f64().unwrap() < WATCHDOG.as_secs_f64(), "{told:#}");
    let why = told["why"].as_str().unwrap();
    for part in [
        "cannot connect to b1:7000: no link with b1: 10.2.0.2:7780: no answer",
        "by a command: ",
        "the command says no",
        "it has not called either",
        "no link with relay r: 203.0.113.2:7780: no answer",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    // A query to the daemon gives the same reason.
    until("the same of `connect`", || {
        let (status, _, err) = grid.run("a1", &["connect", "b1:7000"]);
        (status == 1 && err.contains("the command says no") && err.contains("no link with relay r: ")).then_some(())
    });
    grid.down();
}
