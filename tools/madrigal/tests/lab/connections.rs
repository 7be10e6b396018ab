//! The connections of one link: each may end, the first one too, and the link goes on; what holds each back is told; one whose estimate is of
//! a quiet time finds its rate anew. Features B7, B8, I5.

use madrigal_tests::trials::skip;
use serde_json::Value;

use super::bed::{Bed, DAEMON_LOG, Who, need_lab};
use super::changes::{SINK, SOURCE};
use super::common::bed::until;
use super::cuts::Program;
use super::grid::Grid;
use super::lanes::{LAB, use_congestion};

/// Resets connections from these ports at once, as a firewall on their way would; then it lets new ones pass.
const RESET: &str = "nft add table ip cut; nft 'add chain ip cut out { type filter hook output priority 0; }'; \
    for p in \"$@\"; do nft add rule ip cut out tcp sport $p reject with tcp reset; done; sleep 1; nft delete table ip cut";

/// The connections of a host's link.
fn each(grid: &Grid, host: &str) -> Vec<Value> {
    let status = grid.status(host);
    let links = status["peers"][0]["links"].as_array().unwrap();
    links.first().map_or_else(Vec::new, |link| link["each"].as_array().unwrap().clone())
}

fn numbers(connections: &[Value]) -> Vec<u64> {
    connections.iter().map(|one| one["number"].as_u64().unwrap()).collect()
}

/// Resets some at a1.
fn reset(grid: &Grid, connections: &[Value]) {
    let port = |one: &Value| one["local"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
    let ports: Vec<String> = connections.iter().map(port).collect();
    let words: Vec<&str> = ["sh", "-c", RESET, "sh"].into_iter().chain(ports.iter().map(String::as_str)).collect();
    let (status, out, err) = grid.exec("a1", &words);
    assert_eq!(status, 0, "{ports:?}: {out}{err}");
}

fn log(grid: &Grid, host: &str) -> String {
    grid.exec(host, &["sh", "-c", DAEMON_LOG]).1
}

/// 200 MB go by several connections. Each of those that there are is reset in turn, the first one first; then all of them at once.
pub(crate) fn a_link_outlives_each_of_its_connections() {
    need_lab(Who::Me);
    outlives(None);
}

/// The same where one session is above all connections.
pub(crate) fn a_link_with_one_session_outlives_each_of_its_connections() {
    need_lab(Who::Me);
    outlives(Some("adoc/tls/stripe(8)/tcp"));
}

/// The test for a link of that stack; without one, of the stack that links have.
fn outlives(stack: Option<&str>) {
    let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(LAB, &["--with-daemons"]));
    if let Some(stack) = stack {
        let rule = format!("printf '[rule.made]\\nstack = \"{stack}\"\\n' >> $MADRIGAL_CONFIG_DIR/grid.toml");
        assert_eq!(grid.exec("a1", &["sh", "-c", &rule]).0, 0);
    }
    use_congestion(&mut grid, "lock cubic");
    assert_eq!(grid.ready("b1", &["/usr/bin/python3", "-c", SINK]).trim(), "ready");
    let port = grid.forward("a1", "b1:7000");
    let end = format!("{}/end", grid.bed.home.folder());
    let told = std::thread::scope(|scope| {
        let grid = &grid;
        let source = scope.spawn(|| grid.bed.exec("a1", &["/usr/bin/python3", "-c", SOURCE, &port, &end]));
        let all = until("several connections", || Some(each(grid, "a1")).filter(|all| all.len() > 2));
        assert_eq!(numbers(&all)[0], 0, "{all:#?}");
        what_holds_each_back_is_told(grid);
        let made = || ["a1", "b1"].map(|host| log(grid, host).matches(", stack ").count());
        let before = made();
        for one in &all {
            one_is_reset(grid, one);
        }
        let logs = ["a1", "b1"].map(|host| log(grid, host));
        assert_eq!(made(), before, "another link was made: {logs:#?}");
        assert!(logs.iter().all(|log| !log.contains("moved: a stream")), "{logs:#?}");
        let used = grid.status("b1")["peers"][0]["links"][0]["stack"].clone();
        assert!(stack.is_none_or(|stack| used == stack), "{used}");
        all_at_once(grid, logs[0].matches("no link with b1").count());
        std::fs::write(&end, "").unwrap();
        source.join().unwrap()
    });
    let logs = ["a1", "b1"].map(|host| log(&grid, host));
    assert!(told.0 == 0 && told.1.trim() == "same", "{told:?}\n{}", logs.concat());
    grid.down();
}

/// Both ends do without it, and there are others.
fn one_is_reset(grid: &Grid, one: &Value) {
    reset(grid, std::slice::from_ref(one));
    let number = one["number"].as_u64().unwrap();
    for host in ["a1", "b1"] {
        until("the end of a connection", || (!numbers(&each(grid, host)).contains(&number)).then_some(()));
    }
    until("others", || (each(grid, "a1").len() > 1).then_some(()));
}

/// The link ends with all of its connections, and its streams go on by another one.
fn all_at_once(grid: &Grid, gone: usize) {
    until("the link's end", || {
        reset(grid, &each(grid, "a1"));
        (log(grid, "a1").matches("no link with b1").count() > gone).then_some(())
    });
    until("another link", || (!each(grid, "a1").is_empty()).then_some(()));
    until("the stream on it", || log(grid, "a1").contains("moved: a stream to port 7000").then_some(()));
}

fn what_holds_each_back_is_told(grid: &Grid) {
    let all =
        until("figures", || Some(each(grid, "a1")).filter(|all| all.iter().all(|one| one["held_back_by"].is_string())));
    let by: Vec<_> = all.iter().map(|one| one["held_back_by"].as_str().unwrap()).collect();
    assert!(by.iter().all(|by| ["congestion", "receiver", "buffer", "application"].contains(by)), "{by:?}");
    // The line loses packets, and there is more to send than it carries.
    until("congestion", || each(grid, "a1").iter().any(|one| one["held_back_by"] == "congestion").then_some(()));
    let (_, why, _) = grid.run("a1", &["why", "a1", "b1"]);
    assert!(why.contains("held back by") && why.contains("connection 0") && why.contains("cubic, 10.1.0.2:"), "{why}");
}

/// A line over which BBR takes long to find more than its estimate.
const LONG: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1']\n[site.b]\nnetwork = '10.2.0.0/24'\nhosts = ['b1']\n\
    [link.ab]\nbetween = ['a', 'b']\nrate = '10M'\ndelay = '75ms'\nloss = '1%'\nqueue = '200ms'\n";

/// Bytes that it carries in five seconds.
const LINE: u64 = 6_250_000;

/// Says at the end how many bytes came in the last five seconds before.
const METER: &str = "import socket, time\n\
    s = socket.create_server(('127.0.0.1', 7000)); print('ready', flush=True)\n\
    while True:\n    \
        c, _ = s.accept(); came = []\n    \
        while b := c.recv(1 << 18): came.append((time.monotonic(), len(b)))\n    \
        last = came[-1][0]; c.sendall(b'%d' % sum(n for t, n in came if t > last - 5)); c.close()\n";

/// Much for some seconds, little for eight, and much again; it says so.
const TALK: &str = "import os, socket, sys, time\n\
    c = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
    def send(seconds, size, pause):\n    \
        end = time.monotonic() + seconds\n    \
        while time.monotonic() < end: c.sendall(os.urandom(size)); time.sleep(pause)\n\
    send(8, 1 << 16, 0)\n\
    print('little', flush=True); send(8, 600, 0.005)\n\
    print('much', flush=True); send(15, 1 << 16, 0); c.shutdown(1); print(c.recv(100).decode())\n";

/// While there is little to send the line carries no more than that, so that the kernel takes it for all that the line carries, whatever it
/// thinks of programs that send little. By itself BBR adds a quarter in eight round trips, and may need 20 s to carry half of the line.
pub(crate) fn a_rate_of_a_quiet_time_is_found_anew() {
    need_lab(Who::Me);
    for several in [false, true] {
        let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(LONG, &["--with-daemons"]));
        if !grid.exec("a1", &["cat", "/proc/sys/net/ipv4/tcp_available_congestion_control"]).1.contains("bbr") {
            skip("the kernel has no BBR".to_owned());
        }
        assert_eq!(grid.ready("b1", &["/usr/bin/python3", "-c", METER]).trim(), "ready");
        use_congestion(&mut grid, "bbr");
        if several {
            by_several(&mut grid);
        }
        let port = grid.forward("a1", "b1:7000");
        let mut talk = Program::start(&grid.bed, "a1", &["/usr/bin/python3", "-c", TALK, &port]);
        for (said, rate) in [("little", "rate=500k"), ("much", "rate=10M")] {
            assert_eq!(talk.line(), said);
            grid.bed.lab(&["set", "ab", rate]);
        }
        let bytes: u64 = talk.line().parse().unwrap();
        let all = each(&grid, "a1");
        let renewed: Vec<u64> = all.iter().map(|one| one["renewed"].as_u64().unwrap()).collect();
        println!("found anew {renewed:?} times, {} kbit/s at the end", bytes * 8 / 5000);
        // Each of several that had bytes to send then; unless the kernel has found it by itself, as some do.
        let by_itself = renewed.iter().all(|renewed| *renewed == 0) && bytes > LINE / 4 * 3;
        assert!(
            by_itself || renewed.len() > usize::from(several) && renewed.iter().any(|renewed| *renewed > 0),
            "{all:#?}"
        );
        let by_each = !several || renewed.iter().skip(1).any(|renewed| *renewed > 0);
        assert!(by_itself || by_each, "the first one only: {all:#?}");
        // 1 % is lost.
        assert!(bytes > LINE / 2, "{bytes} bytes in five seconds: {all:#?}");
        grid.down();
    }
}

/// The link begins with three connections, as if the one before had been best with so many.
fn by_several(grid: &mut Grid) {
    const KNOWN: &str = r#"printf '{"version":1,"hosts":{"b1":{"ways":{"direct":{"connections":3}}}}}' > $XDG_RUNTIME_DIR/madrigal/known.json"#;
    grid.stop("a1");
    let (status, _, err) = grid.exec("a1", &["sh", "-c", KNOWN]);
    assert_eq!(status, 0, "{err}");
    grid.start("a1");
    grid.linked("a1", "b1");
}
