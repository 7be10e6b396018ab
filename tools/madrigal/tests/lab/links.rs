//! WAN links: delay, rate, loss, cuts and live changes, seen by programs on the hosts.

use madrigal_tests::trials::need;
use serde_json::Value;

use super::bed::{Bed, Who, need_lab};
use super::common::bed::until;

/// The shortest of some round-trip times.
fn shortest(times: &[Option<f64>]) -> f64 {
    times.iter().flatten().copied().fold(f64::INFINITY, f64::min)
}

/// Asserts that the shortest round trip is `wanted` milliseconds and not much more, however long that takes on a busy machine.
fn expect_round_trip(bed: &Bed, from: &str, to: &str, wanted: f64) {
    let ratio = until("a round trip as short as the link allows", || {
        let found = shortest(&bed.ping(from, to, 5, 56));
        assert!(found >= wanted, "{found} ms, faster than {wanted} ms");
        (found < 1.3 * wanted).then_some(found / wanted)
    });
    println!("round trip {from} {to}: {ratio:.3} x {wanted} ms");
}

pub(crate) fn delay_is_as_configured_and_changes_live() {
    need_lab(Who::Me);
    let bed = Bed::up("two-sites.toml");
    expect_round_trip(&bed, "a1", "203.0.113.2", 20.0);
    expect_round_trip(&bed, "a1", "198.18.2.1", 40.0);
    let told = bed.lab(&["set", "ar", "delay=50ms", "jitter=10ms"]);
    assert!(told.contains("delay=50ms jitter=10ms") && told.contains("rate=100M"), "{told}");
    let times = bed.ping("a1", "203.0.113.2", 20, 56);
    assert!(shortest(&times) >= 80.0, "{times:?}");
    bed.lab(&["set", "ar", "mtu=1300"]);
    // The router reports packets that are too long, and the kernel fragments them.
    assert!(bed.ping("a1", "203.0.113.2", 2, 1400).iter().any(Option::is_some));
    assert!(bed.exec("gw-a", &["ip", "link", "show", "dev", "ar"]).1.contains("mtu 1300"));
    bed.down();
}

pub(crate) fn a_cut_link_carries_nothing_and_a_healed_one_goes_on() {
    need_lab(Who::Me);
    let mut bed = Bed::up("two-sites.toml");
    bed.serve("r", 7000);
    assert_eq!(bed.call("a1", &[("r", 7000)]), ["r 198.18.1.1"]);
    assert!(bed.lab(&["cut", "ar"]).contains("(cut)"));
    assert_eq!(bed.call("a1", &[("r", 7000)]), ["-"]);
    assert_eq!(bed.status()["links"][1]["now"]["cut"], true);
    assert_eq!(bed.call("b1", &[("r", 7000)]), ["r 198.18.2.1"]);
    bed.lab(&["heal", "ar"]);
    assert_eq!(bed.call("a1", &[("r", 7000)]), ["r 198.18.1.1"]);
    bed.down();
}

/// Packets that came out, and that were lost, from the first site of a link to the second.
fn there(bed: &Bed, link: usize) -> (u64, u64) {
    let counts = bed.status()["links"][link]["now"]["counts"][0].clone();
    (counts["packets"].as_u64().unwrap(), counts["lost"].as_u64().unwrap())
}

pub(crate) fn loss_is_as_configured() {
    need_lab(Who::Me);
    const COUNT: u64 = 2000;
    const RECEIVE: &str = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 9)); s.settimeout(30); n = 0\n\
        print('ready', flush=True)\n\
        while s.recv(999) != b'end': n += 1\n\
        print(n)";
    const SEND: &str = "import socket, sys, time\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); to = (sys.argv[1], 9)\n\
        for n in range(int(sys.argv[2])):\n    s.sendto(b'x' * 200, to)\n    if n % 50 == 49: time.sleep(0.01)\n\
        for n in range(20): time.sleep(0.3 if n == 0 else 0.01); s.sendto(b'end', to)";
    let bed = Bed::up("nat-both-relay.toml");
    bed.lab(&["set", "br", "loss=10%", "queue=1s"]);
    let before = there(&bed, 1);
    let mut receiver = bed.start("r", &["/usr/bin/python3", "-c", RECEIVE]);
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(receiver.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    bed.python("b1", SEND, &["203.0.113.2", &COUNT.to_string()]);
    let received: u64 = lines.next().expect("a count").unwrap().parse().unwrap();
    receiver.wait().unwrap();
    // The link knows of its losses, which include what else was sent; and 2000 x 10 % is 200, five sigmas 67.
    until("the last packets to arrive", || {
        let after = there(&bed, 1);
        (after.0 + after.1 >= before.0 + before.1 + COUNT).then_some(())
    });
    println!("loss: {received} of {COUNT} arrived, 10 % configured");
    assert!((COUNT - 267..=COUNT - 133).contains(&received), "{received}");
    assert!(COUNT - received <= there(&bed, 1).1 - before.1);
    bed.down();
}

/// Bits a second that iperf3 moves from one host to another.
fn iperf(bed: &Bed, (from, to): (&str, &str), address: &str, control: &str) -> f64 {
    let mut server = bed.start(to, &["iperf3", "-s", "-1", "--forceflush"]);
    let lines = std::io::BufRead::lines(std::io::BufReader::new(server.stdout.take().unwrap()));
    assert!(lines.map_while(Result::ok).any(|line| line.contains("Server listening")), "no server");
    let (status, out, err) = bed.exec(from, &["iperf3", "-c", address, "-t", "2", "-J", "-C", control]);
    assert_eq!(status, 0, "{out}{err}");
    server.wait().unwrap();
    let told: Value = serde_json::from_str(&out).unwrap();
    told["end"]["sum_received"]["bits_per_second"].as_f64().unwrap()
}

pub(crate) fn rate_is_as_configured() {
    need_lab(Who::Me);
    need("iperf3");
    let bed = Bed::up("nat-left.toml");
    let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    for rate in [50, 10] {
        bed.lab(&["set", "ab", &format!("rate={rate}M")]);
        for control in ["cubic", "bbr"].into_iter().filter(|control| available.contains(control)) {
            let ratio = iperf(&bed, ("a1", "b1"), "198.51.100.2", control) / (f64::from(rate) * 1e6);
            println!("rate {rate}M, {control}: {ratio:.3} of it");
            // 1448 of 1500 bytes are payload; a busy machine has its share.
            assert!((0.4..1.0).contains(&ratio), "{control} {rate}M: {ratio}");
        }
    }
    bed.down();
}
