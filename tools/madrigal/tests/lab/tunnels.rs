//! Datagrams of programs, by QUIC where UDP goes, by a stream where it does not: `madrigal forward --udp`. Features B11, B15, I2.

use serde_json::Value;

use super::bed::{Bed, DAEMON_LOG, Who, need_lab};
use super::common::bed::until;
use super::grid::Grid;
use super::ways::FAR_RELAY;

/// A line that loses one packet of 20.
const LAB: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1']\n[site.b]\nnetwork = '10.2.0.0/24'\nhosts = ['b1']\n\
    [link.ab]\nbetween = ['a', 'b']\nrate = '100M'\ndelay = '10ms'\nloss = '5%'\n";

/// Sends datagrams back (with a long queue, `SO_RCVBUFFORCE`), to whoever they came from, from port `argv[1]`.
const ECHO: &str = "import socket, sys\n\
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(1, 33, 1 << 23)\n\
    s.bind(('127.0.0.1', int(sys.argv[1])))\nprint('ready', flush=True)\n\
    while True: s.sendto(*s.recvfrom(65536))\n";

/// Sends `argv[2]` datagrams of different lengths up to `argv[3]` to port `argv[1]`, one a millisecond; how many came back within two seconds
/// behind the last one, and whether each was one of them, and came once.
const ASK: &str = "import random, socket, sys, time\n\
    port, count, most = map(int, sys.argv[1:4]); r = random.Random(7)\n\
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.setsockopt(1, 33, 1 << 23)\n\
    s.connect(('127.0.0.1', port)); s.settimeout(0.001)\n\
    sent = [(b'%08d' % n) + r.randbytes(r.randrange(0, most - 7)) for n in range(count)]; left, back = set(sent), 0\n\
    def take():\n    \
        global back\n    \
        try: b = s.recv(65536)\n    \
        except TimeoutError: return False\n    \
        assert b in left, len(b); left.remove(b); back += 1\n    \
        return True\n\
    for b in sent:\n    \
        s.send(b); take()\n\
    end = time.monotonic() + 2\n\
    while time.monotonic() < end and left:\n    \
        if take(): end = time.monotonic() + 2\n\
    print(back)\n";

/// The tunnels that end at a host.
fn tunnels(grid: &Grid, host: &str) -> Vec<Value> {
    grid.status(host)["datagrams"].as_array().cloned().unwrap_or_default()
}

/// What became of datagrams at one end of the only tunnel: sent, received, dropped, lost.
fn counts(grid: &Grid, host: &str) -> [u64; 4] {
    let [end] = &tunnels(grid, host)[..] else { panic!("one tunnel: {}", grid.status(host)) };
    ["sent", "received", "dropped", "lost"].map(|what| end[what].as_u64().unwrap())
}

/// Waits until datagrams go that way.
fn go_by(grid: &Grid, way: &str) {
    let goes = |host: &str| tunnels(grid, host).first().is_some_and(|one| one["by"] == way);
    until(way, || ["a1", "b1"].iter().all(|host| goes(host)).then_some(()));
}

fn two_sites() -> Grid {
    need_lab(Who::Me);
    let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(LAB, &["--with-daemons"]));
    grid.linked("a1", "b1");
    assert_eq!(grid.ready("b1", &["/usr/bin/python3", "-c", ECHO, "5004"]), "ready\n");
    grid
}

fn ask(grid: &Grid, port: &str, count: u64, most: &str) -> u64 {
    grid.bed.python("a1", ASK, &[port, &count.to_string(), most]).parse().unwrap()
}

pub(crate) fn datagrams_of_which_none_may_be_lost_all_come_by_quic() {
    let mut grid = two_sites();
    let port = grid.forward_datagrams("a1", &["--tolerance", "0", "--within", "20000"], "b1:5004");
    go_by(&grid, "quic");
    assert_eq!(ask(&grid, &port, 1000, "1100"), 1000);
    assert_eq!((counts(&grid, "a1"), counts(&grid, "b1")), ([1000, 1000, 0, 0], [1000, 1000, 0, 0]));
    // Longer than a packet, too; sockets of the daemons that have no room for more may drop some, and the tunnel none.
    let back = ask(&grid, &port, 200, "20000");
    let ([sent, returned, ..], [echoed, arrived, ..]) = (counts(&grid, "a1"), counts(&grid, "b1"));
    assert!(back >= 150 && arrived == sent && returned == echoed && returned == back + 1000, "{back} of 200");
    let [near, far] = ["a1", "b1"].map(|host| tunnels(&grid, host).remove(0));
    for (end, other) in [(&near, "b1"), (&far, "a1")] {
        assert_eq!((end["host"].as_str(), end["port"].as_u64()), (Some(other), Some(5004)));
    }
    grid.down();
}

pub(crate) fn what_is_lost_of_datagrams_both_ends_know() {
    let mut grid = two_sites();
    let port = grid.forward_datagrams("a1", &[], "b1:5004");
    go_by(&grid, "quic");
    let back = ask(&grid, &port, 2000, "1100");
    // One packet of 20 is lost each way. How many datagrams are in one hangs on when they are sent.
    assert!((1500..2000).contains(&back), "{back} of 2000");
    until("all to be known", || {
        let ([sent, returned, none, lost], [echoed, arrived, nothing, gone]) =
            (counts(&grid, "a1"), counts(&grid, "b1"));
        assert_eq!((none, nothing), (0, 0));
        (arrived == sent - lost && echoed == arrived && returned == echoed - gone && returned == back).then_some(())
    });
    grid.down();
}

pub(crate) fn datagrams_go_by_a_stream_where_udp_does_not() {
    let mut grid = two_sites();
    let drop_udp = "nft add table ip cut; nft 'add chain ip cut out { type filter hook output priority 0; }'; \
        nft add rule ip cut out oifname != lo udp dport 7780 drop";
    assert_eq!(grid.exec("a1", &["sh", "-c", drop_udp]).0, 0);
    let port = grid.forward_datagrams("a1", &[], "b1:5004");
    go_by(&grid, "stream");
    assert_eq!(ask(&grid, &port, 300, "1100"), 300);
    let log = || grid.exec("a1", &["sh", "-c", DAEMON_LOG]).1;
    until("the reason", || log().contains("datagrams to b1:5004 go by a stream: no QUIC: no answer").then_some(()));
    // It works again: the log stays the same, and datagrams go by QUIC after a while.
    let (status, _, err) = grid.exec("a1", &["nft", "delete", "table", "ip", "cut"]);
    assert_eq!(status, 0, "{err}");
    let port = grid.forward_datagrams("a1", &[], "b1:5004");
    until("QUIC", || {
        tunnels(&grid, "a1")
            .iter()
            .any(|one| one["by"] == "quic" && one["from"].as_u64() == port.parse().ok())
            .then_some(())
    });
    // And when UDP is cut off meanwhile, by the stream once more.
    assert_eq!(grid.exec("a1", &["sh", "-c", drop_udp]).0, 0);
    until("the stream", || tunnels(&grid, "a1").iter().all(|one| one["by"] == "stream").then_some(()));
    assert_eq!(ask(&grid, &port, 100, "1100"), 100);
    grid.down();
}

pub(crate) fn the_end_that_is_let_through_connects() {
    let mut grid = two_sites();
    let keep_out = "nft add table ip cut; nft 'add chain ip cut in { type filter hook input priority 0; }'; \
        nft add rule ip cut in ct state new udp dport 7780 drop";
    assert_eq!(grid.exec("b1", &["sh", "-c", keep_out]).0, 0);
    let port = grid.forward_datagrams("a1", &["--tolerance", "0", "--within", "20000"], "b1:5004");
    go_by(&grid, "quic");
    assert_eq!(ask(&grid, &port, 300, "1100"), 300);
    grid.down();
}

/// Two sites behind NAT and a relay; datagrams are forwarded from a1 to b1 by the port that is returned. There is no way for TCP without the
/// relay: by a link that both ends began at once, the daemons would know more of each other's addresses than the relay tells them.
fn behind_nat(lab: &str) -> (Grid, String) {
    const DROP_TCP: &str = "nft add table ip cut; nft 'add chain ip cut out { type filter hook output priority 0; }'; \
        nft add rule ip cut out ip daddr 198.18.0.0/15 meta l4proto tcp drop";
    need_lab(Who::Me);
    let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(lab, &["--with-daemons"]));
    ["a1", "b1"].iter().for_each(|host| grid.linked(host, "r"));
    assert_eq!(grid.ready("b1", &["/usr/bin/python3", "-c", ECHO, "5004"]), "ready\n");
    ["a1", "b1"].iter().for_each(|host| assert_eq!(grid.exec(host, &["sh", "-c", DROP_TCP]).0, 0));
    let port = grid.forward_datagrams("a1", &["--tolerance", "0", "--within", "20000"], "b1:5004");
    (grid, port)
}

/// Both ends learn from the relay where they are seen, and connect at once: then the relay carries nothing.
pub(crate) fn datagrams_of_hosts_behind_nat_go_by_quic_without_the_relay() {
    let (grid, port) = behind_nat(FAR_RELAY);
    go_by(&grid, "quic");
    let log = grid.exec("a1", &["sh", "-c", DAEMON_LOG]).1;
    assert!(log.contains("go by a stream: no QUIC: no answer") && log.matches("go by QUIC").count() == 1, "{log}");
    let of_relay = || grid.bed.python("r", "print(open('/proc/net/dev').read().split('eth0:')[1].split()[1])", &[]);
    let packets = || of_relay().parse::<u64>().unwrap();
    let before = packets();
    assert_eq!(ask(&grid, &port, 500, "1100"), 500);
    let by_relay = packets() - before;
    assert!(by_relay < 250, "the relay got {by_relay} packets while 500 datagrams went there and back");
    grid.down();
}

/// Where a NAT shows each peer another port, datagrams go by the stream, and the log has the reason.
pub(crate) fn datagrams_stay_with_the_stream_behind_a_symmetric_nat() {
    let (grid, port) = behind_nat(&FAR_RELAY.replace("nat = true # one mapping", "nat = 'symmetric'"));
    let log = || grid.exec("a1", &["sh", "-c", DAEMON_LOG]).1;
    until("the reason", || log().contains("no QUIC with b1 by both ends at once: no answer").then_some(()));
    go_by(&grid, "stream");
    assert_eq!(ask(&grid, &port, 300, "1100"), 300);
    grid.down();
}
