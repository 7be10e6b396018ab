//! Links that several connections carry, where the kernels slow each one down for packets that are lost, and links that are compressed; what
//! they are made of is agreed on. Features A14, B7, B8, I5, I8.

use madrigal_tests::trials::skip;

use super::bed::{Bed, DAEMON_LOG, Who, need_lab};
use super::common::bed::until;
use super::grid::{EXCHANGE, Grid};

/// A long line that loses one packet of 500: CUBIC carries some 10 Mbit/s of 100.
pub(crate) const LAB: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1']\n[site.b]\nnetwork = '10.2.0.0/24'\nhosts = ['b1']\n\
    [link.ab]\nbetween = ['a', 'b']\nrate = '100M'\ndelay = '25ms'\nloss = '0.2%'\n";

/// How many connections the link of a host has.
fn connections(grid: &Grid, host: &str) -> u64 {
    grid.status(host)["peers"][0]["links"]
        .as_array()
        .unwrap()
        .iter()
        .map(|link| link["connections"].as_u64().unwrap())
        .max()
        .unwrap_or(0)
}

/// The hosts' kernels slow down where packets are lost, and do nothing else.
fn slow_down_for_losses(grid: &mut Grid) {
    use_congestion(grid, "lock cubic");
}

/// The hosts' kernels begin with a congestion control; with `lock`, they keep to it.
pub(crate) fn use_congestion(grid: &mut Grid, which: &str) {
    for host in ["a1", "b1"] {
        let change = format!("ip route change $(ip route | grep '^default') congctl {which}");
        let (status, _, err) = grid.exec(host, &["sh", "-c", &change]);
        if status != 0 {
            skip(format!("a route with CUBIC is refused: {}", err.trim()));
        }
        grid.stop(host);
        grid.start(host);
    }
    grid.linked("a1", "b1");
}

pub(crate) fn losses_are_met_by_more_connections() {
    need_lab(Who::Me);
    let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(LAB, &["--with-daemons"]));
    slow_down_for_losses(&mut grid);
    grid.echo("b1", "7000");
    let port = grid.forward("a1", "b1:7000");
    // Both directions are full until there are more.
    let rounds = (1..=20).find(|_| {
        assert_eq!(grid.bed.python("a1", NOISE, &["127.0.0.1", &port, "8000000"]), "same");
        connections(&grid, "a1") > 1
    });
    assert!(rounds.is_some(), "still one connection");
    until("the other end to know of them", || (connections(&grid, "b1") > 1).then_some(()));
    a_connection_is_cut(&grid, &port);
    // Who is started again begins with as many, once there is something to carry.
    let log = grid.exec("a1", &["sh", "-c", DAEMON_LOG]).1;
    assert!(log.contains("link with b1: 2 connections: one more"), "{log}");
    grid.down();
}

/// One of them is reset while bytes go by all of them: none is lost.
fn a_connection_is_cut(grid: &Grid, port: &str) {
    let reset = "p=$(ss -Htn state established dport = :7780 | awk '{print $3}' | sed 's/.*://' | tail -n 1); nft add table ip cut; \
        nft 'add chain ip cut out { type filter hook output priority 0; }'; nft add rule ip cut out tcp sport $p reject with tcp reset; echo $p";
    let bytes = ["127.0.0.1", port, "8000000"];
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_secs(1));
            grid.exec("a1", &["sh", "-c", reset])
        });
        let (status, told, err) = grid.bed.exec("a1", &[&["/usr/bin/python3", "-c", NOISE][..], &bytes].concat());
        let log = || ["a1", "b1"].map(|host| grid.exec(host, &["sh", "-c", DAEMON_LOG]).1);
        assert!((status, told.trim()) == (0, "same"), "{err}{:#?}", log());
        let (status, out, err) = cut.join().unwrap();
        assert!(status == 0 && out.trim().parse::<u16>().is_ok(), "{out}{err}");
    });
}

pub(crate) fn one_connection_is_enough_for_bbr() {
    need_lab(Who::Me);
    if std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap().trim() != "bbr" {
        skip("the kernel sends by CUBIC or another, not by BBR");
    }
    let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(LAB, &["--with-daemons"]));
    exchange(&mut grid);
    assert_eq!(connections(&grid, "a1"), 1);
    grid.down();
}

pub(crate) fn a_rule_may_want_one_connection() {
    need_lab(Who::Me);
    let rule = "[site.a]\nhosts.a1 = '10.1.0.2'\n[site.b]\nhosts.b1 = '10.2.0.2'\nallow = '7000'\n[rule.one]\nconnections = 1\n";
    let mut grid = Grid::on(Bed::up_text(LAB), rule, &["a1", "b1"]);
    slow_down_for_losses(&mut grid);
    exchange(&mut grid);
    assert_eq!(connections(&grid, "a1"), 1);
    grid.down();
}

/// Kernels that slow down for losses, and have BBR all the same, use that on a long way, unless a rule names another.
pub(crate) fn a_long_way_is_sent_by_rate_where_the_kernel_lets_it() {
    need_lab(Who::Me);
    let rule = "[site.a]\nhosts.a1 = '10.1.0.2'\n[site.b]\nhosts.b1 = '10.2.0.2'\nallow = '7000'\n";
    let kept = format!("{rule}[rule.kept]\ncongestion = 'reno'\n");
    for (rule, used) in [(rule, "bbr"), (&kept, "reno")] {
        let mut grid = Grid::on(Bed::up_text(LAB), rule, &["a1", "b1"]);
        if !grid.exec("a1", &["cat", "/proc/sys/net/ipv4/tcp_available_congestion_control"]).1.contains("bbr") {
            skip("the kernel has no BBR".to_owned());
        }
        use_congestion(&mut grid, "cubic");
        exchange(&mut grid);
        for host in ["a1", "b1"] {
            assert_eq!(grid.status(host)["peers"][0]["links"][0]["congestion"], used, "{host}");
        }
        if used == "bbr" {
            assert_eq!(connections(&grid, "a1"), 1);
            let (_, told, _) = grid.run("a1", &["why", "a1", "b1"]);
            assert!(told.contains(", bbr, 10.2.0.2:7780"), "{told}");
        }
        grid.down();
    }
}

/// Bytes enough that there would be more connections.
fn exchange(grid: &mut Grid) {
    grid.linked("a1", "b1");
    grid.echo("b1", "7000");
    let port = grid.forward("a1", "b1:7000");
    assert_eq!(grid.bed.python("a1", NOISE, &["127.0.0.1", &port, "12000000"]), "same");
}

/// Sends as much as goes to echo servers at several ports at once; how many bytes came back from each in the second half of the time.
const FLOOD: &str = "import os, socket, sys, threading, time\n\
    end, counts = time.monotonic() + float(sys.argv[1]), {}\n\
    def send(c, b):\n    while time.monotonic() < end: c.sendall(b)\n    c.shutdown(1)\n\
    def flood(port):\n    c, n = socket.create_connection(('127.0.0.1', port)), 0\n    \
    threading.Thread(target=send, args=(c, os.urandom(65536)), daemon=True).start()\n    \
    while r := c.recv(65536):\n        t = end - time.monotonic()\n        n += len(r) if 0 < t < float(sys.argv[1]) / 2 else 0\n        \
    if t < 0: break\n    counts[port] = n\n\
    ports = [int(port) for port in sys.argv[2:]]\n\
    threads = [threading.Thread(target=flood, args=(port,)) for port in ports]\n\
    [t.start() for t in threads]; [t.join() for t in threads]\n\
    print(*(counts[port] for port in ports)); sys.stdout.flush(); os._exit(0)\n";

/// A port of a1 that leads to an echo server at that port of b1.
fn echoed(grid: &mut Grid, port: &str) -> String {
    grid.echo("b1", port);
    grid.forward("a1", &format!("b1:{port}"))
}

/// A connection whose rule says `bulk` has the line alone, and leaves it to another one. Feature A14.
pub(crate) fn bulk_leaves_a_full_line_to_others() {
    need_lab(Who::Me);
    let rule = "[site.a]\nhosts.a1 = '10.1.0.2'\n[site.b]\nhosts.b1 = '10.2.0.2'\nallow = '7000-7001'\n\
        [rule.night]\nports = '7001'\nclass = 'bulk'\n";
    let mut grid = Grid::on(Bed::up_text(THIN), rule, &["a1", "b1"]);
    grid.linked("a1", "b1");
    let (_, told, _) = grid.run("a1", &["why", "a1", "b1", "--port", "7001"]);
    assert!(told.contains("class: bulk"), "{told}");
    let ports = ["7000", "7001"].map(|port| echoed(&mut grid, port));
    let flood = |ports: &[&str]| -> Vec<u64> {
        let counts = grid.bed.python("a1", FLOOD, &[&["8"], ports].concat());
        counts.split(' ').map(|count| count.parse().unwrap()).collect()
    };
    let alone = flood(&[&ports[1]])[0];
    let together = flood(&[&ports[0], &ports[1]]);
    assert!(together[0] > 2 * together[1] && together[1] > 0 && 2 * together[0] > alone, "{alone}, {together:?}");
    grid.down();
}

/// Connections of a rule with a cap carry that much together, each way, and others what is left. Features A14, G15.
pub(crate) fn a_cap_is_what_all_connections_of_a_rule_carry_together() {
    need_lab(Who::Me);
    let rule = "[site.a]\nhosts.a1 = '10.1.0.2'\n[site.b]\nhosts.b1 = '10.2.0.2'\nallow = '7000-7002'\n\
        [rule.night]\nports = '7001-7002'\ncap = '4M'\n";
    let mut grid = Grid::on(Bed::up_text(THIN), rule, &["a1", "b1"]);
    grid.linked("a1", "b1");
    let (_, told, _) = grid.run("a1", &["why", "a1", "b1", "--port", "7001"]);
    assert!(told.contains("cap: 4.0 Mbit/s"), "{told}");
    let ports = ["7000", "7001", "7002"].map(|port| echoed(&mut grid, port));
    let counts = grid.bed.python("a1", FLOOD, &["8", &ports[0], &ports[1], &ports[2]]);
    let counts: Vec<u64> = counts.split(' ').map(|count| count.parse().unwrap()).collect();
    // In four seconds; noise of which the line carries ten megabytes.
    let capped = counts[1] + counts[2];
    assert!((1_000_000..2_500_000).contains(&capped) && counts[0] > 2 * capped, "{counts:?}");
    assert!(counts[1] > capped / 4 && counts[2] > capped / 4, "{counts:?}");
    grid.down();
}

/// `madrigal perf A B` reports what each stack carries, from either side, and leaves nothing behind.
pub(crate) fn what_each_stack_carries_is_measured_beside_the_link() {
    need_lab(Who::Me);
    let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(THIN, &["--with-daemons"]));
    slow_down_for_losses(&mut grid);
    for (from, to) in [("a1", "b1"), ("b1", "a1")] {
        let (status, out, err) = grid.run("a1", &["perf", from, to, "--seconds", "3", "--json"]);
        assert_eq!(status, 0, "{out}{err}");
        let told: serde_json::Value = serde_json::from_str(&out).unwrap();
        let trials = told["trials"].as_array().unwrap();
        let stacks: Vec<_> = trials.iter().map(|trial| trial["stack"].as_str().unwrap()).collect();
        assert_eq!(stacks, ["tls/tcp", "stripe(32)/tls/tcp", "adoc/tls/tcp", "adoc/stripe(32)/tls/tcp"], "{out}");
        assert_eq!(told["stack"], stacks[3]);
        let rates: Vec<_> = trials.iter().map(|trial| trial["rate"].as_u64().unwrap()).collect();
        // The line carries 20 Mbit/s, of text more.
        assert!((2_000_000..21_000_000).contains(&rates[0]) && 5 * rates[0] < 4 * rates[2], "{out}");
        assert!(
            trials.iter().all(|trial| trial["congestion"] == "cubic" && trial["connections"].as_u64() > Some(0)),
            "{out}"
        );
    }
    let (status, out, err) =
        grid.run("a1", &["perf", "a1", "b1", "--seconds", "2", "--stack", "stripe(2)/tls/tcp", "--stack", "tcp"]);
    // The link is enciphered, so that one of these is refused.
    assert!(
        status == 1 && out.contains("stripe(2)/tls/tcp") && out.contains("`tls` is in `tls/tcp`"),
        "{status}: {out}{err}"
    );
    assert_eq!(grid.run("a1", &["perf", "a1", "b1", "--stack", "tls/adoc/tcp"]).0, 2);
    for host in ["a1", "b1"] {
        until("one link to be left", || {
            (grid.status(host)["peers"][0]["links"].as_array().unwrap().len() == 1).then_some(())
        });
    }
    grid.down();
}

/// A line on which bytes take so long that they are worth compressing.
const THIN: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1']\n[site.b]\nnetwork = '10.2.0.0/24'\nhosts = ['b1']\n\
    [link.ab]\nbetween = ['a', 'b']\nrate = '20M'\ndelay = '10ms'\n";

/// Sends random bytes, and reads them back.
const NOISE: &str = "import os, socket, sys, threading\n\
    c = socket.create_connection((sys.argv[1], int(sys.argv[2]))); b = os.urandom(int(sys.argv[3]))\n\
    threading.Thread(target=lambda: (c.sendall(b), c.shutdown(1))).start()\n\
    got = bytearray()\n\
    while r := c.recv(65536): got += r\n\
    print('same' if got == b else 'other')\n";

pub(crate) fn text_goes_compressed_where_no_rule_says_otherwise() {
    need_lab(Who::Me);
    let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(THIN, &["--with-daemons"]));
    grid.linked("a1", "b1");
    grid.echo("b1", "7000");
    let port = grid.forward("a1", "b1:7000");
    let went = |script: &str, bytes: &str| {
        let before = compressed(&grid);
        assert_eq!(grid.bed.python("a1", script, &["127.0.0.1", &port, bytes]), "same");
        let after = compressed(&grid);
        [after[0] - before[0], after[1] - before[1]]
    };
    let [raw, encoded] = went(EXCHANGE, "6000000");
    assert!(raw >= 6_000_000 && encoded < raw / 3, "{raw} bytes of text went as {encoded}");
    let [raw, encoded] = went(NOISE, "2000000");
    assert!(raw >= 2_000_000 && encoded < raw + raw / 50, "{raw} bytes of noise went as {encoded}");
    let printed = grid.run("a1", &["status"]).1;
    assert!(printed.contains("compressed "), "{printed}");
    grid.down();
    let rule = "[site.a]\nhosts.a1 = '10.1.0.2'\n[site.b]\nhosts.b1 = '10.2.0.2'\nallow = '7000'\n\
        [rule.made]\nhosts = ['b1']\nstack = 'stripe(2)/tls/tcp'\n";
    let mut grid = Grid::on(Bed::up_text(THIN), rule, &["a1", "b1"]);
    exchange(&mut grid);
    for host in ["a1", "b1"] {
        let link = &grid.status(host)["peers"][0]["links"][0];
        assert_eq!(
            (&link["stack"], &link["compressed"]),
            (&"stripe(2)/tls/tcp".into(), &serde_json::Value::Null),
            "{link}"
        );
    }
    grid.down();
}

/// The bytes that a1 has sent by its links, before compression and behind it.
fn compressed(grid: &Grid) -> [u64; 2] {
    let status = grid.status("a1");
    let links = status["peers"][0]["links"].as_array().unwrap();
    assert!(links.iter().all(|link| link["stack"].as_str().unwrap().starts_with("adoc/")), "{links:?}");
    ["raw", "encoded"].map(|key| links.iter().map(|link| link["compressed"][key].as_u64().unwrap()).sum())
}
