//! Urgent streams have a link of their own on a long way, so that no lost packet of another stream holds them up. Feature A14.

use serde_json::Value;

use super::bed::{Bed, Who, need_lab};
use super::common::bed::until;
use super::grid::Grid;

const LAB: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1']\n[site.b]\nnetwork = '10.2.0.0/24'\nhosts = ['b1']\n\
    [link.ab]\nbetween = ['a', 'b']\nrate = '20M'\ndelay = '10ms'\n";
const RULES: &str = "[site.a]\nhosts.a1 = '10.1.0.2'\nallow = '7000-7001'\n[site.b]\nhosts.b1 = '10.2.0.2'\nallow = '7000-7001'\n\
    [rule.questions]\nports = '7001'\nclass = 'urgent'\n";

/// Exchanges numbers with the echo servers at all the ports given, until the file `argv[1]` exists; how many, if all were right.
const TALK: &str = "import os, socket, sys, threading, time\n\
    counts = []\n\
    def talk(port):\n    \
        c, n = socket.create_connection(('127.0.0.1', port)), 0\n    \
        if port == ports[0]: print('ready', flush=True)\n    \
        while not os.path.exists(sys.argv[1]):\n        \
            b = b'%16d' % n; c.sendall(b); got = b''\n        \
            while len(got) < 16:\n            \
                r = c.recv(16 - len(got)); assert r, 'ended'\n            got += r\n        \
            assert got == b, got; n += 1; time.sleep(0.02)\n    \
        counts.append(n)\n\
    ports = [int(port) for port in sys.argv[2:]]\n\
    threads = [threading.Thread(target=talk, args=(port,)) for port in ports]\n\
    [t.start() for t in threads]; [t.join() for t in threads]\n\
    print(len(counts), all(counts))\n";

/// The streams of the links that two hosts have: of that for urgent ones, and of the other. Only if there are just these two.
fn streams(grid: &Grid) -> Option<[u64; 2]> {
    let status = grid.status("a1");
    let links = status["peers"][0]["links"].as_array().unwrap();
    let one = |urgent: bool| {
        let links: Vec<&Value> = links.iter().filter(|link| link["urgent"] == urgent).collect();
        if let [link] = links[..] { link["streams"].as_u64() } else { None }
    };
    Some([one(true)?, one(false)?])
}

/// Whichever of the two connections breaks, each stream goes on, and both have a link of their own again.
pub(crate) fn urgent_streams_have_a_link_of_their_own() {
    need_lab(Who::Me);
    let mut grid = Grid::on(Bed::up_text(LAB), RULES, &["a1", "b1"]);
    grid.linked("a1", "b1");
    until("both links", || streams(&grid));
    let told = grid.run("a1", &["status"]).1;
    assert_eq!(told.matches(", for urgent streams").count(), 1, "{told}");
    let ports = ["7000", "7001"].map(|port| {
        grid.echo("b1", port);
        grid.forward("a1", &format!("b1:{port}"))
    });
    // The hosts of a lab share /tmp with this one.
    let enough = std::env::temp_dir().join(format!("madrigal-talked-enough-{}", std::process::id()));
    let talk = grid.spawn("a1", &["/usr/bin/python3", "-c", TALK, enough.to_str().unwrap(), &ports[0], &ports[1]]);
    let both = || streams(&grid).filter(|streams| *streams == [1, 1]).map(|_| ());
    until("a stream on each link", both);
    let connections =
        grid.exec("a1", &["sh", "-c", "ss -Htn state established '( sport = :7780 or dport = :7780 )'"]).1;
    assert_eq!(connections.lines().count(), 2, "{connections}");
    for connection in connections.lines() {
        let ends: Vec<&str> = connection.split_whitespace().filter_map(|end| end.rsplit(':').next()).collect();
        let [.., here, there] = ends[..] else { panic!("{connection}") };
        let cut = format!(
            "nft add table ip cut; nft 'add chain ip cut out {{ type filter hook output priority 0; }}'; \
             nft add rule ip cut out tcp sport {here} tcp dport {there} reject with tcp reset"
        );
        assert_eq!(grid.exec("a1", &["sh", "-c", &cut]).0, 0);
        until("the connection to break", || {
            let left =
                grid.exec("a1", &["ss", "-Htn", "state", "established", "sport", "=", here, "dport", "=", there]).1;
            left.trim().is_empty().then_some(())
        });
        until("a stream on each link again", both);
    }
    std::fs::write(&enough, "").unwrap();
    let ended = talk.wait_with_output().unwrap();
    std::fs::remove_file(&enough).unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stdout).lines().last(), Some("2 True"));
    grid.down();
}
