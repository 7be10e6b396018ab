//! Daemons on this machine, each with a runtime directory of its own: real processes, real sockets, killed and started again.
//!
//! Features (docs/features.md): B18, L7.

mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use common::bed::{Bed, WATCHDOG, bytes, echo, exchange, free_port, until};
use common::run;
use madrigal_daemon::LINK_VERSION;

/// Two hosts that can call each other, `a` and `b`; everything may be connected to.
fn two(allow: &str) -> String {
    let (a, b) = (free_port(), free_port());
    format!(
        "[site.a]\nhosts.a1 = '127.0.0.1:{a}'\nallow = '{allow}'\n[site.b]\nhosts.b1 = '127.0.0.1:{b}'\nallow = '{allow}'\n"
    )
}

#[test]
fn bytes_go_there_and_come_back() {
    let mut bed = Bed::new("bytes", &two("1-65535"));
    bed.up("a1");
    bed.up("b1");
    bed.linked("a1", "b1");
    let port = echo();
    let sent = bytes(5_000_000);
    // As nc: what is typed, and the end, there and back.
    let mut child = bed.on("a1", &["connect", &format!("b1:{port}")]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut got = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            input.write_all(&sent).unwrap();
            drop(input);
        });
        output.read_to_end(&mut got).unwrap();
    });
    assert!(child.wait().unwrap().success());
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    // Through a local port, both ways, and to this host itself.
    for (host, to) in [("a1", "b1"), ("b1", "a1"), ("b1", "b1")] {
        let (_forward, local) = bed.forward(host, &format!("{to}:{port}"));
        let stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
        assert!(exchange(&stream, &sent) == sent, "{host} to {to}");
    }
    // The log has the bytes each way, on both hosts.
    let carried = format!(": {0} B there, {0} B back, ", sent.len());
    bed.expect_log("a1", &[&format!("ended: connected: to b1:{port}"), &carried]);
    bed.expect_log("b1", &[&format!("ended: let in: a1 to 127.0.0.1:{port}"), &carried]);
    // Both dialled; one link stays, and no stream is left.
    until("one link", || (bed.links("a1", "b1").len() == 1 && bed.links("b1", "a1").len() == 1).then_some(()));
    until("no stream", || (bed.status("a1")["streams"] == 0 && bed.status("b1")["streams"] == 0).then_some(()));
}

#[test]
fn who_cannot_be_called_calls_and_who_cannot_either_is_reached_by_a_relay() {
    let port = free_port();
    let grid = format!(
        "[site.a]\nhosts = {{ a1 = [] }}\nallow = '1-65535'\n[site.b]\nhosts = {{ b1 = [] }}\nallow = '1-65535'\n\
         [site.public]\nhosts.r = '127.0.0.1:{port}'\nrelay = 'r'\nallow = '1-65535'\n"
    );
    // Hosts without addresses are no loopback hosts: the grid declares everything trusted.
    let mut bed = Bed::new("relay", &format!("trusted = true\n{grid}"));
    for host in ["a1", "b1", "r"] {
        bed.up(host);
    }
    bed.linked("r", "a1");
    bed.linked("r", "b1");
    let (port, sent) = (echo(), bytes(1_000_000));
    for (host, to) in [("r", "a1"), ("a1", "b1"), ("b1", "a1")] {
        let (_forward, local) = bed.forward(host, &format!("{to}:{port}"));
        let stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
        assert!(exchange(&stream, &sent) == sent, "{host} to {to}");
    }
    // The relay ends: so do connections through it, with a reset; and then there is no way.
    let (_forward, local) = bed.forward("a1", &format!("b1:{port}"));
    let mut stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    bed.kill("r");
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    bed.expect_log("a1", &["ended: connected: to b1:", ": 1 B there, 1 B back, ", ", reset"]);
    bed.expect_log("r", &["ended: relayed: from a1 to b1:"]);
    let (status, _, err) = run(&mut bed.on("a1", &["connect", &format!("b1:{port}")]));
    assert_eq!(status, Some(1));
    for part in ["cannot connect to b1:", "the grid has no address of it", "no link with relay r: 127.0.0.1:"] {
        assert!(err.contains(part), "{err}");
    }
    bed.up("r");
    bed.linked("r", "b1");
    let mut stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

#[test]
fn what_is_refused_is_refused_with_the_reason() {
    let (open, shut) = (free_port(), echo());
    let mut bed = Bed::new("refused", &two(&open.to_string()));
    bed.up("a1");
    bed.up("b1");
    bed.linked("a1", "b1");
    let cases = [
        (
            format!("b1:{shut}"),
            format!("cannot connect to b1:{shut}: b1 lets nobody connect to port {shut}: see `allow`"),
        ),
        (format!("b1:{open}"), format!("cannot connect to b1:{open}: 127.0.0.1:{open}: Connection refused")),
        ("c1:1".to_owned(), "the grid has no host `c1`; there are a1, b1".to_owned()),
    ];
    for (to, why) in cases {
        let (status, _, err) = run(&mut bed.on("a1", &["connect", &to]));
        assert!(status == Some(1) && err.contains(&why), "{err}");
    }
    let (status, _, err) = run(&mut bed.on("a1", &["connect", "b1"]));
    assert!(status == Some(2) && err.contains("such as b1:6379"), "{err}");
    // A program at a forwarded port sees a reset.
    let (_forward, local) = bed.forward("a1", &format!("b1:{open}"));
    let mut stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn a_daemon_is_up_once_for_its_user_only_and_leaves_no_socket() {
    let mut bed = Bed::new("once", &two("1"));
    let grid = bed.folder.path("grid.toml");
    let (status, _, err) = run(&mut bed.on("a1", &["status"]));
    assert!(status == Some(1) && err.contains("no daemon of yours is up"), "{err}");
    let (status, out, err) = run(&mut bed.on("a1", &["up", "--grid", &grid, "--host", "a1"]));
    assert!(status == Some(0) && out.starts_with("up on a1, process "), "{out}{err}");
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(bed.runtime("a1", "")), mode(bed.runtime("a1", "daemon.sock"))), (0o700, 0o600));
    assert_eq!(bed.status("a1")["host"], "a1");
    // Whatever it is to do: the one that is up has the port of the same file.
    bed.folder.file("other.toml", 0o600, &two("1"));
    for file in ["grid.toml", "other.toml"] {
        let (status, _, err) = run(&mut bed.on("a1", &["up", "--grid", &bed.folder.path(file), "--host", "a1"]));
        assert!(status == Some(1) && err.contains("a daemon of yours is up already"), "{file}: {err}");
    }
    assert_eq!(run(&mut bed.on("a1", &["down"])).1, "down\n");
    assert!(!bed.runtime("a1", "daemon.sock").exists());
    assert_eq!(run(&mut bed.on("a1", &["down"])).1, "no daemon was up\n");
    // A socket that a killed daemon left is no obstacle.
    bed.up("a1");
    bed.kill("a1");
    assert!(bed.runtime("a1", "daemon.sock").exists());
    bed.up("a1");
}

/// A third host, `c1`, behind two.
fn and_a_third(grid: &str) -> String {
    format!("[site.c]\nhosts.c1 = '127.0.0.1:{}'\nallow = '1-65535'\n{grid}", free_port())
}

/// By the command line or by the environment, at one end; what makes no sense is refused before anything begins.
#[test]
fn what_links_are_made_of_is_said_at_one_end() {
    let mut bed = Bed::new("stack", &two("1-65535"));
    let grid = bed.folder.path("grid.toml");
    for (typed, variable, why) in [
        (Some("tls/adoc/tcp"), "", "`adoc` below `tls`"),
        (None, "gzip/tcp", "MADRIGAL_STACK=gzip/tcp: there is no `gzip`"),
    ] {
        let mut arguments = vec!["up", "--grid", &grid, "--host", "a1"];
        arguments.extend(typed.iter().flat_map(|stack| ["--stack", stack]));
        let (status, _, err) = run(bed.on("a1", &arguments).env("MADRIGAL_STACK", variable));
        assert!(status == Some(2) && err.contains(why), "{err}");
    }
    bed.up_with("a1", "a1", "grid.toml", &["--stack", "adoc/stripe(2)/tcp"]);
    bed.up("b1");
    bed.linked("a1", "b1");
    for (host, peer) in [("a1", "b1"), ("b1", "a1")] {
        let link = &bed.peer(host, peer)["links"][0];
        assert!(link["stack"].as_str().unwrap().starts_with("adoc/stripe(2)/"), "{link:#}");
    }
    let port = echo();
    let (_forward, local) = bed.forward("a1", &format!("b1:{port}"));
    let mut stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    stream.write_all(&bytes(100_000)).unwrap();
    let mut got = vec![0; 100_000];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, bytes(100_000));
}

#[test]
fn a_file_is_read_again_and_nothing_else_is_interrupted() {
    let before = two("1-65535");
    let mut bed = Bed::new("reload", &before);
    let port = echo();
    bed.up("a1");
    bed.up("b1");
    bed.linked("a1", "b1");
    let (_forward, local) = bed.forward("a1", &format!("b1:{port}"));
    let mut stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    let mut talk = move || {
        stream.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
    };
    talk();
    let reload = |bed: &Bed, host: &str| run(&mut bed.on(host, &["grid", "reload"]));
    assert_eq!(reload(&bed, "a1").1, "grid.toml read again: nothing is new\n");
    // An error is reported, by line and key, and changes nothing.
    for (text, why) in [
        ("[site.a]\nhost = 1\n", "grid.toml:2: site.a.host: there is no such key; did you mean `hosts`?"),
        ("[site.b]\nhosts.b1 = []\n", "has no host `a1`, which this one is"),
    ] {
        bed.folder.file("grid.toml", 0o600, text);
        let (status, _, err) = reload(&bed, "a1");
        assert!(status == Some(1) && err.contains(why) && err.contains("keeps the hosts that it has"), "{err}");
        bed.expect_log("a1", &[why, "keeps"]);
    }
    assert!(!bed.links("a1", "b1").is_empty());
    talk();
    // A host more, before all others: a1 learns of it by the command, b1 by a signal.
    let with = and_a_third(&before);
    bed.folder.file("grid.toml", 0o600, &with);
    assert_eq!(reload(&bed, "a1").1, "grid.toml read again: added c1; sites or rules changed\n");
    let pid = bed.pid("b1").to_string();
    assert!(std::process::Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    bed.expect_log("b1", &["grid.toml read again: added c1"]);
    bed.up("c1");
    bed.linked("a1", "c1");
    bed.linked("c1", "b1");
    let (_forward, to_new) = bed.forward("c1", &format!("b1:{port}"));
    let sent = bytes(100_000);
    assert!(exchange(&TcpStream::connect(("127.0.0.1", to_new)).unwrap(), &sent) == sent);
    talk();
    // And taken out again: its link ends, and it is not let in any more.
    bed.folder.file("grid.toml", 0o600, &before);
    assert_eq!(reload(&bed, "a1").1, "grid.toml read again: removed c1; sites or rules changed\n");
    bed.expect_log("a1", &["no link with c1,", "it is no host of the grid any more"]);
    assert_eq!(bed.status("a1")["peers"].as_array().unwrap().len(), 1);
    let (status, _, err) = run(&mut bed.on("a1", &["connect", "c1:1"]));
    assert!(status == Some(1) && err.contains("the grid has no host `c1`; there are a1, b1"), "{err}");
    until("a refusal", || bed.peer("c1", "a1")["links"].as_array().unwrap().is_empty().then_some(()));
    talk();
}

#[test]
fn a_description_that_cannot_be_read_holds_up_nobody() {
    let mut bed = Bed::new("unreadable", &two("1-65535"));
    bed.up("a1");
    bed.up("b1");
    bed.linked("a1", "b1");
    let path = bed.folder.path("grid.toml");
    let many: String = (0..5000).map(|n| format!("hosts.h{n} = []\n")).collect();
    let shell = |line: &str| assert!(std::process::Command::new("sh").args(["-c", line]).status().unwrap().success());
    for (make, why) in [
        (format!("rm {path}"), "No such file or directory"),
        (format!("mkfifo {path}"), "it is a FIFO, and no file"),
        (format!("ln -sf /dev/zero {path}"), "it is a device, and no file"),
        (format!("rm {path}; head -c 20000000 /dev/zero > {path}"), "it is longer than 1024 KiB"),
        (
            format!("printf '[site.a]\n{many}' > {path}"),
            "grid.toml:1026: site.a.hosts.h1024: a grid has up to 1024 hosts",
        ),
        (format!("chmod 666 {path}"), "everybody may change it"),
    ] {
        shell(&make);
        let (status, _, err) = run(&mut bed.on("a1", &["grid", "reload"]));
        assert!(status == Some(1) && err.contains(why) && err.contains("keeps the hosts that it has"), "{make}: {err}");
        let pid = bed.pid("b1").to_string();
        assert!(std::process::Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
        bed.expect_log("b1", &[why]);
        assert!(!bed.links("a1", "b1").is_empty() && !bed.links("b1", "a1").is_empty());
    }
}

#[test]
fn the_largest_grid_has_answers_that_come_whole() {
    // Nobody listens there.
    let refused: Vec<String> = (1..=4).map(|port| format!("'127.0.0.1:{port}'")).collect();
    let others: String = (1..1024).map(|n| format!("hosts.h{n} = [{}]\n", refused.join(", "))).collect();
    let mut bed = Bed::new("large", &format!("[site.a]\nhosts.h0 = '127.0.0.1:{}'\n{others}", free_port()));
    bed.up("h0");
    let status = until("an answer about all", || {
        let status = bed.status("h0");
        let told = status["peers"].as_array().unwrap();
        let settled = told.len() == 1023 && told.iter().all(|peer| peer["settled"] == true);
        settled.then(|| status.to_string())
    });
    assert!(status.len() > 250_000, "{} bytes fit into a socket's buffer", status.len());
    // Who reads late fills the daemon's socket, and gets everything all the same. The question is STATUS, without a body.
    let mut late = UnixStream::connect(bed.runtime("h0", "daemon.sock")).unwrap();
    late.write_all(&[0xA7, 1, 0, 0, 0, 0, 0, 0, 16]).unwrap();
    bed.status("h0");
    let mut answer = Vec::new();
    late.read_to_end(&mut answer).unwrap();
    let length = u64::from_le_bytes(*answer.first_chunk().unwrap()) >> 16;
    assert_eq!(answer.len() as u64, 9 + length);
    assert_eq!(run(&mut bed.on("h0", &["grid", "reload"])).1, "grid.toml read again: nothing is new\n");
}

#[test]
fn many_signals_are_one() {
    let before = two("1-65535");
    let mut bed = Bed::new("signals", &before);
    bed.up("a1");
    let began = std::time::Instant::now();
    let line = format!("for n in $(seq 300); do kill -HUP {}; sleep 0.003; done", bed.pid("a1"));
    assert!(std::process::Command::new("sh").args(["-c", &line]).status().unwrap().success());
    bed.folder.file("grid.toml", 0o600, &and_a_third(&before));
    let line = format!("kill -HUP {}", bed.pid("a1"));
    assert!(std::process::Command::new("sh").args(["-c", &line]).status().unwrap().success());
    // The last one is not lost.
    bed.expect_log("a1", &["grid.toml read again: added c1"]);
    let readings = bed.log("a1").matches("grid.toml read again").count();
    let most = 2 + began.elapsed().as_millis() / 200;
    assert!(readings as u128 <= most, "{readings} readings, {most} are enough");
}

#[test]
fn a_relay_that_is_none_any_more_says_so() {
    let with = format!(
        "trusted = true\n[site.a]\nhosts.a1 = []\n[site.c]\nhosts.c1 = []\n[site.r]\nhosts.r = '127.0.0.1:{}'\nrelay = 'r'\n",
        free_port()
    );
    let mut bed = Bed::new("no-relay", &with);
    ["r", "a1", "c1"].into_iter().for_each(|host| bed.up(host));
    let through = |bed: &Bed| bed.peer("c1", "a1")["through"].clone();
    until("a way by the relay", || (through(&bed) == "through r").then_some(()));
    // The others have not read the file yet.
    bed.folder.file("grid.toml", 0o600, &with.replace("relay = 'r'\n", ""));
    assert_eq!(run(&mut bed.on("r", &["grid", "reload"])).1, "grid.toml read again: changed r\n");
    until("no way", || through(&bed).is_null().then_some(()));
}

#[test]
fn a_host_listens_elsewhere_when_its_file_says_so() {
    let grid = |a: u16, b: u16| {
        format!("[site.a]\nhosts.a1 = '127.0.0.1:{a}'\nallow = '1-65535'\n[site.b]\nhosts.b1 = '127.0.0.1:{b}'\n")
    };
    let (a, b, other) = (free_port(), free_port(), free_port());
    let mut bed = Bed::new("elsewhere", &grid(a, b));
    bed.up("a1");
    assert!(TcpStream::connect(("127.0.0.1", a)).is_ok());
    bed.folder.file("grid.toml", 0o600, &grid(other, b));
    assert_eq!(run(&mut bed.on("a1", &["grid", "reload"])).1, "grid.toml read again: changed a1\n");
    assert!(TcpStream::connect(("127.0.0.1", a)).is_err() && TcpStream::connect(("127.0.0.1", other)).is_ok());
    bed.up("b1");
    bed.linked("b1", "a1");
    // A port of another process: an error, and everything stays.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    bed.folder.file("grid.toml", 0o600, &grid(taken.local_addr().unwrap().port(), b));
    let (status, _, err) = run(&mut bed.on("a1", &["grid", "reload"]));
    assert!(status == Some(1) && err.contains("cannot listen at 127.0.0.1:"), "{err}");
    assert!(TcpStream::connect(("127.0.0.1", other)).is_ok());
    assert!(!bed.links("b1", "a1").is_empty());
}

#[test]
fn no_port_is_open_to_unauthenticated_peers_unless_their_network_is_trusted() {
    let bed = Bed::new("untrusted", "[site.a]\nhosts.a1 = '192.0.2.1'\n");
    let up = |grid: &str, host: &str| run(&mut bed.on("a1", &["up", "--foreground", "--grid", grid, "--host", host]));
    let grid = bed.folder.path("grid.toml");
    let (status, _, err) = up(&grid, "a1");
    assert!(status == Some(2) && err.contains("write trusted = true below [site.a]"), "{err}");
    let (status, _, err) = up(&grid, "b1");
    assert!(status == Some(2) && err.contains("the grid has no host `b1`; there are a1"), "{err}");
    bed.folder.file("grid.toml", 0o600, "[site.a]\nhost = 1\n");
    let (status, _, err) = up(&grid, "a1");
    assert!(status == Some(2) && err.contains("grid.toml:2: site.a.host: there is no such key"), "{err}");
}

#[test]
fn a_killed_daemon_is_a_reset_and_works_again_once_it_is_back() {
    let mut bed = Bed::new("killed", &two("1-65535"));
    let port = echo();
    bed.up("a1");
    bed.up("b1");
    bed.linked("a1", "b1");
    let (_forward, local) = bed.forward("a1", &format!("b1:{port}"));
    let talk = |stream: &mut TcpStream| {
        stream.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
    };
    // The far one.
    let mut stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    talk(&mut stream);
    bed.kill("b1");
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    bed.up("b1");
    let mut stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    talk(&mut stream);
    // One's own: not even it can say that any more, and yet it is no end of the stream.
    bed.kill("a1");
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    bed.up("a1");
    let (_forward, local) = bed.forward("a1", &format!("b1:{port}"));
    talk(&mut TcpStream::connect(("127.0.0.1", local)).unwrap());
}

#[test]
fn unauthenticated_peers_change_nothing() {
    let mut bed = Bed::new("unauthenticated", &two("1-65535"));
    let port = echo();
    bed.up("a1");
    bed.up("b1");
    bed.linked("a1", "b1");
    let grid = std::fs::read_to_string(bed.folder.path("grid.toml")).unwrap();
    let daemon: u16 =
        grid.lines().find(|line| line.contains("b1")).unwrap().split([':', '\'']).nth(2).unwrap().parse().unwrap();
    let frame = |kind: u8, body: &str| [&[0xA7, 1, body.len() as u8, 0, 0, 0, 0, 0, kind], body.as_bytes()].concat();
    let hello = |version: u32, host: &str| {
        frame(1, &format!(r#"{{"version":{version},"host":"{host}","instance":1,"number":1}}"#))
    };
    let sent = [
        b"GET / HTTP/1.0\r\n\r\n".to_vec(),
        vec![0xA7; 4000],
        frame(1, "nonsense"),
        hello(LINK_VERSION, "b1"),
        hello(LINK_VERSION + 1, "a1"),
        vec![],
    ];
    for bytes in sent {
        let mut stream = TcpStream::connect(("127.0.0.1", daemon)).unwrap();
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        let _ = stream.write_all(&bytes);
        // It is ended, with or without a word.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    // Many peers that send nothing.
    let silent: Vec<_> = (0..500).map(|_| TcpStream::connect(("127.0.0.1", daemon)).unwrap()).collect();
    let (_forward, local) = bed.forward("a1", &format!("b1:{port}"));
    let sent = bytes(300_000);
    let stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    assert!(exchange(&stream, &sent) == sent);
    assert!(bed.status("b1")["unauthenticated"].as_u64().unwrap() <= 128);
    drop(silent);
}

#[test]
fn who_does_not_read_holds_up_nobody() {
    let mut bed = Bed::new("stalled", &two("1-65535"));
    let port = echo();
    bed.up("a1");
    bed.up("b1");
    bed.linked("a1", "b1");
    let (_forward, local) = bed.forward("a1", &format!("b1:{port}"));
    // These write until nothing more is taken, and never read.
    let stalled: Vec<_> = (0..20).map(|_| TcpStream::connect(("127.0.0.1", local)).unwrap()).collect();
    for stream in &stalled {
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut to = stream;
        while to.write_all(&[7; 65536]).is_ok() {}
    }
    let sent = bytes(2_000_000);
    let all: Vec<_> = (0..20).map(|_| TcpStream::connect(("127.0.0.1", local)).unwrap()).collect();
    std::thread::scope(|scope| {
        for stream in &all {
            scope.spawn(|| assert!(exchange(stream, &sent) == sent));
        }
    });
    // And what was written before is all there.
    let mut first = &stalled[0];
    first.set_read_timeout(Some(WATCHDOG)).unwrap();
    let mut got = vec![0; 1_000_000];
    first.read_exact(&mut got).unwrap();
    assert!(got.iter().all(|byte| *byte == 7));
}

#[test]
fn what_was_measured_is_remembered_and_a_broken_file_is_set_aside() {
    let mut bed = Bed::new("known", &two("1-65535"));
    bed.up("a1");
    bed.up("b1");
    bed.linked("a1", "b1");
    let path = bed.runtime("a1", "known.json");
    let known = until("a file", || std::fs::read_to_string(&path).ok());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let known: serde_json::Value = serde_json::from_str(&known).unwrap();
    let ways = known["hosts"]["b1"]["ways"].as_object().unwrap();
    assert!(ways.values().all(|way| way["figures"]["round_trip_us"].is_u64()) && !ways.is_empty(), "{known:#}");
    // What is known of a way outlives the daemon, and its peer.
    bed.kill("b1");
    bed.kill("a1");
    bed.up("a1");
    let (status, out, _) = run(&mut bed.on("a1", &["why", "a1", "b1", "--json"]));
    let why: serde_json::Value = serde_json::from_str(&out).unwrap();
    let remembered =
        |way: &serde_json::Value| way["measured_ago_s"].is_u64() && way["figures"]["round_trip_us"].is_u64();
    assert!(status == Some(1) && why["ways"].as_array().unwrap().iter().any(remembered), "{why:#}");
    bed.kill("a1");
    std::fs::write(&path, "{\"version\": 1, \"hosts\": ").unwrap();
    bed.up("a1");
    let log = bed.log("a1");
    assert!(log.contains("known.json cannot be read: ") && log.contains("known.json.bad"), "{log}");
    assert!(bed.runtime("a1", "known.json.bad").exists());
}

#[test]
fn the_service_manager_is_told_of_begin_life_and_end() {
    let bed = Bed::new("notify", &two("22"));
    let path = bed.folder.path("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(WATCHDOG)).unwrap();
    let told = || {
        let mut buffer = [0; 256];
        let count = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    };
    let grid = bed.folder.path("grid.toml");
    let mut command = bed.on("a1", &["up", "--foreground", "--grid", &grid, "--host", "a1"]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000").stdin(Stdio::null()).stderr(Stdio::null());
    let mut daemon = command.spawn().unwrap();
    assert_eq!(told(), format!("READY=1\nMAINPID={}", daemon.id()));
    assert_eq!(run(&mut bed.on("a1", &["status"])).0, Some(0), "it listens when it says so");
    assert_eq!((told().as_str(), told().as_str()), ("WATCHDOG=1", "WATCHDOG=1"));
    assert_eq!(run(&mut bed.on("a1", &["down"])).0, Some(0));
    until("the end", || (told() == "STOPPING=1").then_some(()));
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn a_daemon_that_calls_itself_makes_no_line_about_an_unauthenticated_peer() {
    let port = free_port();
    // As behind the address of a bridge that every host has.
    let site = |name: &str, host: &str| format!("[site.{name}]\nhosts.{host} = '127.0.0.1'\nport = {port}\n");
    let grid = format!("trusted = true\n{}{}", site("a", "a1"), site("b", "b1"));
    let mut bed = Bed::new("itself", &grid);
    bed.up("a1");
    until("a call", || {
        let why = bed.peer("a1", "b1")["why"].as_str().unwrap_or_default().to_owned();
        why.contains("that is an address of this host, too").then_some(())
    });
    // The answer to its own call comes no later than the answer to a client that sent its request after it.
    bed.status("a1");
    assert!(!bed.log("a1").contains("unauthenticated"), "{}", bed.log("a1"));
}

#[test]
fn who_may_connect_and_whose_streams_relays_carry_is_as_the_grid_says() {
    let port = free_port();
    let grid = format!(
        "trusted = true\n[site.a]\nhosts = {{ a1 = [], a2 = [] }}\n[site.b]\nhosts.b1 = []\nallow = '1-65535'\ndeny = 'a2'\n\
         [site.c]\nhosts.c1 = []\n[site.m]\nhosts.r = '127.0.0.1:{port}'\nrelay = 'r'\ncarries = ['a', 'b']\n"
    );
    let mut bed = Bed::new("access", &grid);
    for host in ["r", "a1", "a2", "b1", "c1"] {
        bed.up(host);
    }
    ["a1", "a2", "b1", "c1"].into_iter().for_each(|host| bed.linked(host, "r"));
    let to = format!("b1:{}", echo());
    let connect = |bed: &Bed, host: &str| run(&mut bed.on(host, &["connect", &to]));
    until("a way", || (connect(&bed, "a1").0 == Some(0)).then_some(()));
    let (status, _, err) = connect(&bed, "a2");
    assert!(status == Some(1) && err.contains("b1 lets nothing of a2 in"), "{err}");
    bed.expect_log("b1", &["refused: a2 by r to port"]);
    let (status, _, err) = connect(&bed, "c1");
    assert!(status == Some(1) && err.contains("r carries nothing of c1: see `carries`"), "{err}");
    let (_, why, _) = run(&mut bed.on("c1", &["why", "c1", "b1"]));
    assert!(why.contains("r carries nothing of c1"), "{why}");
}
