//! A long transfer between two daemons while all that can happens to the way that it takes: connections are reset, the line is cut, loses
//! packets, becomes ten times slower, carries shorter packets, and a host gets another address. Features B15, B18, I12, L1.

use std::time::Duration;

use super::bed::{Bed, DAEMON_LOG, Who, need_lab};
use super::grid::Grid;
use super::lanes::use_congestion;

const LAB: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1']\n[site.b]\nnetwork = '10.2.0.0/24'\nhosts = ['b1']\n\
    [link.ab]\nbetween = ['a', 'b']\nrate = '100M'\ndelay = '10ms'\n";

/// Reads to the end, and answers with the checksum of what came.
pub(crate) const SINK: &str = "import hashlib, socket\n\
    s = socket.create_server(('127.0.0.1', 7000)); print('ready', flush=True)\n\
    while True:\n    \
        c, _ = s.accept(); h = hashlib.sha256()\n    \
        while b := c.recv(1 << 18): h.update(b)\n    \
        c.sendall(h.hexdigest().encode()); c.close()\n";

/// Sends 200 MB, and more until a file is there; whether the other end has the same.
pub(crate) const SOURCE: &str = "import hashlib, os, socket, sys\n\
    c, noise, h, i = socket.create_connection(('127.0.0.1', int(sys.argv[1]))), os.urandom(1 << 20), hashlib.sha256(), 0\n\
    while i < 200 or not os.path.exists(sys.argv[2]):\n    \
        b = i.to_bytes(8, 'big') + noise; h.update(b); c.sendall(b); i += 1\n\
    c.shutdown(1)\n\
    got = b''\n\
    while r := c.recv(100): got += r\n\
    print('same' if got.decode() == h.hexdigest() else 'other: %d MB sent, %r came back' % (i, got))\n";

/// Resets a connection between the daemons, as a firewall on its way would; then it lets new ones pass.
const RESET: &str = "p=$(ss -Htn state established '( dport = :7780 or sport = :7780 )' | head -n 1 | awk '{print $3}' | sed 's/.*://'); \
    nft add table ip cut; nft 'add chain ip cut out { type filter hook output priority 0; }'; \
    nft add rule ip cut out tcp sport $p reject with tcp reset; sleep 1; nft delete table ip cut; echo $p";

/// Another address for a host; its routes keep their congestion control.
const MOVE: &str = "set -e; route=$(ip route | grep '^default'); dev=$(echo $route | sed 's/.* dev \\([^ ]*\\).*/\\1/'); \
    ip addr flush dev $dev scope global; ip addr add 10.1.0.77/24 dev $dev; ip route replace $route; ip -br addr show dev $dev";

pub(crate) fn a_transfer_by_one_connection_outlives_all_that_happens_to_its_way() {
    outlives_changes("bbr");
}

pub(crate) fn a_transfer_by_several_connections_outlives_all_that_happens_to_its_way() {
    outlives_changes("lock cubic");
}

fn outlives_changes(congestion: &str) {
    need_lab(Who::Me);
    let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(LAB, &["--with-daemons"]));
    use_congestion(&mut grid, congestion);
    assert_eq!(grid.ready("b1", &["/usr/bin/python3", "-c", SINK]).trim(), "ready");
    let port = grid.forward("a1", "b1:7000");
    let end = format!("{}/end", grid.bed.home.folder());
    let (told, at) = std::thread::scope(|scope| {
        let grid = &grid;
        let source = scope.spawn(|| grid.bed.exec("a1", &["/usr/bin/python3", "-c", SOURCE, &port, &end]));
        let at = happen(grid);
        std::fs::write(&end, "").unwrap();
        (source.join().unwrap(), at)
    });
    let logs = ["a1", "b1"].map(|host| {
        let up = grid.run(host, &["status"]).0 == 0;
        format!("{host}, up: {up}\n{}", grid.exec(host, &["sh", "-c", DAEMON_LOG]).1)
    });
    let [log, _] = &logs;
    assert!(told.0 == 0 && told.1.trim() == "same", "{told:?}\n{}", logs.concat());
    assert!(at.contains("10.1.0.77") && log.contains("10.1.0.2 is no address of this host any more"), "{at}{log}");
    assert!(log.contains("moved: a stream to port 7000"), "{log}");
    let (status, why, err) = grid.run("a1", &["why", "a1", "b1"]);
    assert!(status == 0 && why.contains("Mbit/s"), "{why}{err}");
    grid.down();
}

/// One thing after another; what the host's address is in the end.
fn happen(grid: &Grid) -> String {
    let wait = |milliseconds| std::thread::sleep(Duration::from_millis(milliseconds));
    let on = |script: &str| {
        let (status, out, err) = grid.exec("a1", &["sh", "-c", script]);
        assert_eq!(status, 0, "{script}: {out}{err}");
        out
    };
    wait(2000);
    let reset = on(RESET);
    assert!(reset.trim().parse::<u16>().is_ok(), "{reset}");
    wait(1000);
    grid.bed.lab(&["cut", "ab"]);
    wait(1000);
    grid.bed.lab(&["heal", "ab"]);
    wait(2000);
    for (setting, how_long) in
        [("loss=5%", 3000), ("loss=0", 2000), ("rate=10M", 3000), ("rate=100M", 2000), ("mtu=1280", 2000)]
    {
        grid.bed.lab(&["set", "ab", setting]);
        wait(how_long);
    }
    let at = on(MOVE);
    wait(4000);
    at
}
