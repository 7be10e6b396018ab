//! Which way connections between hosts of a lab take and why, what `madrigal doctor` finds, several relays, and links over ssh.
//!
//! Features (docs/features.md): B13, B15, B18.

use std::process::{Child, Command};

use madrigal_tests::trials::{need, need_all, skip};
use serde_json::Value;

use super::bed::{Bed, DAEMON_LOG, Home, Who, need_lab};
use super::common::bed::{is_root, until};
use super::daemons::{ALLOW_ALL, two_sites};
use super::grid::{EXCHANGE, Grid};

/// The check of that name.
fn check<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let found = answer["checks"].as_array().unwrap().iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("no check {name}: {answer:#}"))
}

pub(crate) fn why_and_doctor_between_sites_behind_nat() {
    need_lab(Who::Me);
    let mut grid = Grid::up("two-sites.toml", &two_sites(), &["r", "a1", "b1"]);
    // Asked on either host, a1's daemon answers; the relay carries it.
    for host in ["a1", "b1"] {
        let why = grid.takes(host, "a1", "b1", "through r");
        assert_eq!((&why["from"], &why["to"]), (&"a1".into(), &"b1".into()));
        // Two links of 10 ms, there and back: nothing is quicker than light.
        assert!(why["ways"][0]["figures"]["round_trip_us"].as_u64().unwrap() >= 39_000, "{why:#}");
        let ways = why["ways"].as_array().unwrap();
        let direct = ways.iter().find(|way| way["way"] == "direct").unwrap();
        assert!(direct["usable"] == false && direct["why"].as_str().unwrap().contains("10.2.0.2:7780: "), "{why:#}");
        assert!(ways.iter().skip(1).all(|way| way["why"].is_string()), "{why:#}");
    }
    let (status, text, _) = grid.run("a1", &["why", "a1", "b1"]);
    assert!(status == 0 && text.contains("a1 to b1: through r\n") && text.contains("\n*  through r"), "{text}");
    doctor_is_content_with_a_relay(&grid);
    // What carried bytes has a rate: more than nothing, and not more than lines of 100 Mbit/s can have.
    grid.echo("b1", "7000");
    grid.works("a1", "b1");
    let rate = until("a rate", || grid.json("a1", &["why", "a1", "b1"]).1["ways"][0]["figures"]["rate"].as_u64());
    assert!((100_000..300_000_000).contains(&rate), "{rate}");
    status_shows_the_whole_grid(&grid);
    doctor_and_why_say_who_is_missing(&mut grid);
    grid.down();
}

fn doctor_is_content_with_a_relay(grid: &Grid) {
    // Neither can dial the other, and all works.
    let (status, answer) = grid.json("a1", &["doctor", "a1", "b1"]);
    assert_eq!((status, &answer["state"]), (0, &"ok".into()), "{answer:#}");
    for (name, state) in [
        ("resolve", "ok"),
        ("daemon b1", "ok"),
        ("connect a1 -> b1", "ok"),
        ("connect b1 -> a1", "ok"),
        ("relay", "ok"),
        ("way a1 -> b1", "ok"),
        ("way b1 -> a1", "ok"),
        ("mtu", "ok"),
        ("clock", "ok"),
        ("version", "ok"),
        ("certificate a1", "ok"),
        ("shared memory b1", "ok"),
    ] {
        assert_eq!(check(&answer, name)["state"], state, "{name}: {answer:#}");
    }
    let told = check(&answer, "connect a1 -> b1")["text"].as_str().unwrap();
    assert!(told.contains("10.2.0.2:7780") && told.contains("another way is used"), "{told}");
    // The links of the own host show the same, and so does `status`.
    let (_, answer) = grid.json("a1", &["doctor"]);
    assert_eq!(
        (&check(&answer, "link b1")["state"], &check(&answer, "link b1")["text"]),
        (&"ok".into(), &"through r".into())
    );
    let (status, text, _) = grid.run("a1", &["status"]);
    let line = text.lines().find(|line| line.starts_with("b1 ")).unwrap_or_default();
    assert!(status == 0 && line.split_whitespace().collect::<Vec<_>>() == ["b1", "b", "through", "r"], "{text}");
}

/// Each daemon reports its status, wherever it is; hosts without a daemon are named.
fn status_shows_the_whole_grid(grid: &Grid) {
    let (status, answer) = grid.json("a1", &["status", "--all"]);
    let hosts = answer.as_array().unwrap();
    let of =
        |name: &str| hosts.iter().find(|one| one["host"] == name).unwrap_or_else(|| panic!("no {name}: {answer:#}"));
    for (name, site, relay) in [("a1", "a", false), ("b1", "b", false), ("r", "public", true)] {
        let told = of(name);
        assert_eq!((&told["site"], &told["relay"]), (&site.into(), &relay.into()), "{answer:#}");
        assert!(told["processors"].as_u64() > Some(0) && told["running"].is_u64(), "{answer:#}");
        let links = told["peers"].as_array().unwrap().iter().filter(|peer| peer["links"] != Value::Array(Vec::new()));
        assert_eq!(links.count(), if relay { 2 } else { 1 }, "{answer:#}");
    }
    assert!(status == 1 && of("a2")["error"].as_str().unwrap().contains("a2"), "{answer:#}");
    let (status, text, _) = grid.run("b1", &["status", "--all"]);
    let line = |name: &str| text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_default();
    assert!(status == 1 && line("r").ends_with("relay") && line("a1").contains(" of 4 "), "{text}");
}

fn doctor_and_why_say_who_is_missing(grid: &mut Grid) {
    // A daemon that is down is named, with what to type; and so is one's own.
    grid.kill("b1");
    until("the end of the link", || (grid.run("r", &["why", "r", "b1"]).0 == 1).then_some(()));
    let (status, answer) = grid.json("a1", &["doctor", "a1", "b1"]);
    assert_eq!(status, 2, "{answer:#}");
    assert!(check(&answer, "daemon b1")["fix"].as_str().unwrap().contains("madrigal up"), "{answer:#}");
    assert_eq!(check(&answer, "way a1 -> b1")["state"], "failed");
    let (status, answer) = grid.json("a2", &["doctor"]);
    assert!(status == 2 && check(&answer, "daemon")["fix"].as_str().unwrap().contains("madrigal up"), "{answer:#}");
    let (status, _, err) = grid.run("a2", &["why", "a1", "b1"]);
    assert!(status == 1 && err.contains("madrigal up"), "{err}");
    // No query is made about a host that does not exist.
    let (status, answer) = grid.json("a1", &["doctor", "a1", "c1"]);
    assert!(status == 2 && check(&answer, "resolve")["text"].as_str().unwrap().contains("no host c1"), "{answer:#}");
    // One's own host: links, and the one that is missing.
    let (status, answer) = grid.json("a1", &["doctor"]);
    assert_eq!(
        (status, &check(&answer, "link r")["state"], &check(&answer, "link b1")["state"]),
        (1, &"ok".into(), &"warning".into())
    );
}

/// Three networks in a row, and two relays between them.
const CHAIN: &str = "[switch.one]\nnetwork = '10.1.0.0/24'\nhosts = ['a1', 'r1']\n\
    [switch.two]\nnetwork = '10.2.0.0/24'\nhosts = ['r1', 'r2']\n\
    [switch.three]\nnetwork = '10.3.0.0/24'\nhosts = ['r2', 'b1']\n";

pub(crate) fn several_relays_carry_a_stream_and_rules_forbid_them() {
    need_lab(Who::Me);
    let text = "[site.a]\nhosts.a1 = []\nallow = '7000'\n[site.b]\nhosts.b1 = []\nallow = '7000-7001'\n\
        [site.m]\nhosts = { r1 = ['10.1.0.3', '10.2.0.2'], r2 = ['10.2.0.3', '10.3.0.2'] }\nrelay = ['r1', 'r2']\n\
        [rule.shy]\nports = '7001'\nforbid = 'relay'\n";
    let mut grid = Grid::on(Bed::up_text(CHAIN), text, &["a1", "b1", "r1", "r2"]);
    grid.echo("b1", "7000");
    let why = grid.takes("a1", "a1", "b1", "through r1, r2");
    assert!(why["ways"].as_array().unwrap().iter().any(|way| way["way"] == "through r2"), "{why:#}");
    grid.works("a1", "b1");
    // And back: updates go both ways.
    grid.takes("b1", "b1", "a1", "through r2, r1");
    // What a rule forbids is not done, and the rule is named.
    let (status, answer) = grid.json("a1", &["why", "a1", "b1", "--port", "7001"]);
    assert!(status == 1 && answer["rules"] == serde_json::json!(["shy"]), "{answer:#}");
    assert!(answer["ways"].as_array().unwrap().iter().any(|way| way["why"] == "rule shy forbids it"), "{answer:#}");
    let (status, _, err) = grid.run("a1", &["connect", "b1:7001"]);
    assert!(status == 1 && err.contains("rule shy forbids relay"), "{err}");
    // Without the second relay there is no way, and the first one reports this; with it there is one again.
    grid.kill("r2");
    until("no way", || (grid.run("r1", &["why", "r1", "b1"]).0 == 1).then_some(()));
    grid.start("r2");
    grid.takes("a1", "a1", "b1", "through r1, r2");
    grid.works("a1", "b1");
    grid.down();
}

/// Two sites between which nothing is open but port 22, one way.
const ONLY_SSH: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nfirewall = 'in'\nhosts = ['a1']\n\
    [site.b]\nnetwork = '10.2.0.0/24'\nfirewall = 'in'\nopen = [22]\nhosts = ['b1']\n\
    [link.ab]\nbetween = ['a', 'b']\ndelay = '5ms'\n";

/// Keys and a configuration for a server of ssh in `home`; the command that reaches it at `address`.
pub(crate) fn keys(home: &Home, address: &str) -> String {
    for key in ["host", "user"] {
        let file = home.file(key, "");
        std::fs::remove_file(&file).unwrap();
        assert!(
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &file]).status().unwrap().success()
        );
    }
    let folder = home.folder();
    home.file(
        "sshd_config",
        &format!(
            "HostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\n"
        ),
    );
    format!(
        "ssh -i {folder}/user -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
         -o ControlMaster=auto -o ControlPersist=600 -o ControlPath={folder}/ssh-%C root@{address} XDG_RUNTIME_DIR=/run/user/0 {}",
        home.exe()
    )
}

/// Sends to a local port and reads back until a file is there; prints `whole` if nothing was lost.
const TALK: &str = "import socket, sys, os\n\
    c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); n = 0\n\
    while not os.path.exists(sys.argv[2]):\n    \
        b = b'%08d' % n * 100; n += 1; c.sendall(b); got = b''\n    \
        while len(got) < len(b):\n        r = c.recv(len(b) - len(got)); assert r, 'end'; got += r\n    \
        assert got == b, got\n    \
        if n == 3: print('ready', flush=True)\n\
    print('whole')\n";

/// A test that uses ssh and its server.
pub(crate) fn need_ssh() {
    if !is_root() {
        skip("a server of ssh is root's");
    }
    need_all(&["ssh", "ssh-keygen", "sshd"]);
}

/// That lab, with daemons on a1 and on b1, which a1 reaches by ssh.
pub(crate) fn only_ssh() -> Grid {
    let bed = Bed::up_text(ONLY_SSH);
    let (via, folder) = (keys(&bed.home, "10.2.0.2"), bed.home.folder());
    let text = format!(
        "[site.a]\nhosts.a1 = '10.1.0.2'\n{ALLOW_ALL}[site.b]\nhosts.b1 = '10.2.0.2'\n{ALLOW_ALL}via = '{via} link'\n"
    );
    let mut grid = Grid::on(bed, &text, &["b1"]);
    let sshd = need("sshd");
    let server = format!("mkdir -p /run/sshd; exec {} -D -e -f {folder}/sshd_config", sshd.display());
    grid.serve("b1", &["sh", "-c", &server]);
    grid.start("a1");
    grid
}

pub(crate) fn ssh_is_a_way_until_there_is_a_better_one() {
    need_lab(Who::Me);
    need_ssh();
    let mut grid = only_ssh();
    grid.echo("b1", "7000");
    let why = grid.takes("a1", "a1", "b1", "command");
    assert!(
        why["ways"].as_array().unwrap().iter().any(|way| way["way"] == "direct" && way["usable"] == false),
        "{why:#}"
    );
    grid.takes("b1", "b1", "a1", "command");
    grid.works("a1", "b1");
    // The firewall opens. What went over ssh moves to the better way while it talks, and loses nothing.
    let port = grid.forward("a1", "b1:7000");
    let end = format!("{}/end", grid.bed.home.folder());
    let mut talking = grid.spawn("a1", &["/usr/bin/python3", "-c", TALK, &port, &end]);
    let mut told = std::io::BufReader::new(talking.stdout.take().unwrap());
    let mut line = || {
        let mut text = String::new();
        std::io::BufRead::read_line(&mut told, &mut text).unwrap();
        text
    };
    assert_eq!(line(), "ready\n");
    let (status, _, err) = grid.bed.exec("gw-b", &["nft", "flush", "ruleset"]);
    assert_eq!(status, 0, "{err}");
    grid.takes("a1", "a1", "b1", "direct");
    grid.works("a1", "b1");
    let links = |grid: &Grid| grid.status("a1")["peers"][0]["links"].as_array().unwrap().len();
    until("the end of the link over ssh", || (links(&grid) == 1).then_some(()));
    std::fs::write(&end, "").unwrap();
    assert_eq!(line(), "whole\n");
    wait(talking);
    grid.down();
}

fn wait(mut child: Child) {
    assert!(child.wait().unwrap().success());
}

pub(crate) fn a_command_that_fails_says_why() {
    need_lab(Who::Me);
    let text = "[site.a]\nhosts.a1 = []\n[site.b]\nhosts.b1 = []\nallow = '7000'\nvia = 'echo no such key >&2; false {host}'\n";
    let grid = Grid::up("nat-left.toml", text, &["a1"]);
    until("an attempt", || grid.run("a1", &["status"]).1.contains("(no such key)").then_some(()));
    let (status, _, err) = grid.run("a1", &["connect", "b1:7000"]);
    assert!(status == 1 && err.contains("by a command: ") && err.contains("no such key"), "{err}");
    grid.down();
}

pub(crate) fn long_packets_that_vanish_hold_nobody_up() {
    need_lab(Who::Me);
    let text = "[site.a]\nhosts.a1 = []\nallow = '7000'\n[site.b]\nhosts.b1 = []\nallow = '7000'\n\
        [site.m]\nhosts.r = ['203.0.113.2', '[2001:db8:1::2]:7780']\nrelay = 'r'\n";
    // a1 has IPv6 only, b1 IPv4 only, and on a1's way packets of more than 1280 bytes vanish without a word.
    let mut grid = Grid::up("ipv6-only.toml", text, &["r", "a1", "b1"]);
    grid.echo("b1", "7000");
    grid.echo("a1", "7000");
    until("short packets", || {
        let dropped = grid.bed.status()["links"][0]["now"]["counts"].clone();
        let up = grid.run("a1", &["why", "a1", "b1"]).0 == 0;
        (up && dropped.as_array().unwrap().iter().any(|one| one["long"].as_u64() > Some(0))).then_some(())
    });
    until("a link that carries", || (grid.run("b1", &["why", "a1", "b1"]).0 == 0).then_some(()));
    grid.works("a1", "b1");
    grid.works("b1", "a1");
    grid.down();
}

/// Two sites whose routers keep to one mapping for a port, and a relay that is far from both.
pub(crate) const FAR_RELAY: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nnat = true # one mapping\nhosts = ['a1']\n\
    [site.b]\nnetwork = '10.2.0.0/24'\nnat = true # one mapping\nhosts = ['b1']\n\
    [site.c]\nnetwork = '203.0.113.0/24'\nhosts = ['r']\n\
    [link.ab]\nbetween = ['a', 'b']\nrate = '100M'\ndelay = '10ms'\n\
    [link.ac]\nbetween = ['a', 'c']\nrate = '100M'\ndelay = '20ms'\n\
    [link.bc]\nbetween = ['b', 'c']\nrate = '100M'\ndelay = '20ms'\n";

/// Between two sites behind NAT what begins through the relay goes on without it, by a connection that both ends begin at once. Features
/// B15, B18.
pub(crate) fn both_ends_behind_nat_connect_at_once() {
    need_lab(Who::Me);
    let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(FAR_RELAY, &["--with-daemons"]));
    grid.linked("a1", "r");
    grid.linked("b1", "r");
    grid.echo("b1", "7000");
    let relayed = grid.takes("a1", "a1", "b1", "through r")["ways"][0]["figures"]["round_trip_us"].as_u64().unwrap();
    let port = grid.forward("a1", "b1:7000");
    assert_eq!(grid.bed.python("a1", EXCHANGE, &["127.0.0.1", &port, "3000000"]), "same");
    let why = until("a way without the relay", || {
        let why = grid.json("a1", &["why", "a1", "b1"]).1;
        (why["chosen"] == "direct").then_some(why)
    });
    let direct = why["ways"][0]["figures"]["round_trip_us"].as_u64().unwrap();
    assert!(direct * 10 <= relayed * 6, "{direct} us direct, {relayed} us by the relay");
    // The other end takes it, too, and bytes do.
    let back = grid.json("b1", &["why", "b1", "a1"]).1;
    assert_eq!(back["chosen"], "reverse", "{back:#}");
    assert_eq!(grid.bed.python("a1", EXCHANGE, &["127.0.0.1", &port, "3000000"]), "same");
    let status = grid.status("a1");
    let link = &status["peers"].as_array().unwrap().iter().find(|peer| peer["host"] == "b1").unwrap()["links"][0];
    assert!(link["punched"] == true && link["tls"] == true, "{link:#}");
    grid.down();
}

/// Where a router has another mapping for each connection, the relay stays, and the log has the reason.
pub(crate) fn a_symmetric_nat_keeps_to_the_relay() {
    need_lab(Who::Me);
    let symmetric = FAR_RELAY.replace("nat = true # one mapping", "nat = 'symmetric'");
    let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(&symmetric, &["--with-daemons"]));
    grid.linked("a1", "r");
    grid.linked("b1", "r");
    grid.echo("b1", "7000");
    grid.takes("a1", "a1", "b1", "through r");
    let port = grid.forward("a1", "b1:7000");
    assert_eq!(grid.bed.python("a1", EXCHANGE, &["127.0.0.1", &port, "100000"]), "same");
    until("the log to say why", || {
        let log = grid.exec("a1", &["sh", "-c", DAEMON_LOG]).1;
        log.contains("no direct connection with b1, though both ends tried at once: no answer").then_some(())
    });
    grid.takes("a1", "a1", "b1", "through r");
    assert_eq!(grid.bed.python("a1", EXCHANGE, &["127.0.0.1", &port, "100000"]), "same");
    grid.down();
}
