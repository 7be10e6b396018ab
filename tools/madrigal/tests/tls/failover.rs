//! Ways that break while bytes go over them: streams go on by another one, and nothing is lost or comes twice. Where there is none, their
//! programs hear of it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use madrigal_identity::DAY;

use crate::common::bed::{Bed, WATCHDOG, bytes, echo, exchange, free_port, life, until};

/// Streams of each kind.
const STREAMS: usize = 3;

fn connect(local: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream
}

/// A byte comes back.
fn talk(mut stream: &TcpStream) {
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

/// Traffic of several kinds through a local port that leads to an echo.
struct Traffic {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    idle: Vec<TcpStream>,
}

impl Traffic {
    fn start(local: u16) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let idle: Vec<_> = (0..STREAMS).map(|_| connect(local)).collect();
        idle.iter().for_each(talk);
        let mut threads = Vec::new();
        for n in 0..STREAMS {
            for kind in [questions, flood, often] {
                let (stop, rounds) = (stop.clone(), rounds.clone());
                threads.push(std::thread::spawn(move || kind(local, n, &stop, &rounds)));
            }
        }
        Self { stop, rounds, threads, idle }
    }

    /// Waits until every kind of it has gone on for a while.
    fn goes_on(&self) {
        let until_then = self.rounds.load(Ordering::Relaxed) + 100;
        until("traffic", || (self.rounds.load(Ordering::Relaxed) > until_then).then_some(()));
    }

    fn end(self) {
        self.idle.iter().for_each(talk);
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Asks and is answered, in turns.
fn questions(local: u16, n: usize, stop: &AtomicBool, rounds: &AtomicU64) {
    let mut stream = connect(local);
    for round in 0_u64.. {
        let sent = (round << 8 | n as u64).to_le_bytes();
        stream.write_all(&sent).unwrap();
        let mut got = [0; 8];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, sent);
        rounds.fetch_add(1, Ordering::Relaxed);
        if stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Sends without end and reads at the same time.
fn flood(local: u16, n: usize, stop: &AtomicBool, _: &AtomicU64) {
    let byte = |at: u64| (at ^ at >> 8 ^ at >> 16 ^ n as u64) as u8;
    let mut stream = connect(local);
    let mut to = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut at = 0;
            while !stop.load(Ordering::Relaxed) {
                let piece: Vec<u8> = (at..at + 5000).map(byte).collect();
                to.write_all(&piece).unwrap();
                at += 5000;
            }
            to.shutdown(Shutdown::Write).unwrap();
            at
        });
        let (mut at, mut buffer) = (0, vec![0; 20_000]);
        loop {
            let count = stream.read(&mut buffer).unwrap();
            if count == 0 {
                break;
            }
            assert!(buffer[..count].iter().zip(at..).all(|(got, at)| *got == byte(at)), "near {at}");
            at += count as u64;
        }
        assert_eq!(at, writer.join().unwrap());
    });
}

/// Connects, sends all and its end, reads all and its end, again and again.
fn often(local: u16, n: usize, stop: &AtomicBool, _: &AtomicU64) {
    let sent = bytes(150_000 + n);
    while !stop.load(Ordering::Relaxed) {
        assert!(exchange(&connect(local), &sent) == sent);
    }
}

/// Two hosts that cannot be dialled, and two relays.
fn two_relays(what: &str) -> Bed {
    let (one, two) = (free_port(), free_port());
    let grid = format!(
        "[site.a]\nhosts.a1 = []\nallow = '1-65535'\n[site.b]\nhosts.b1 = []\nallow = '1-65535'\n\
         [site.m]\nhosts = {{ r1 = '127.0.0.1:{one}', r2 = '127.0.0.1:{two}' }}\nrelay = ['r1', 'r2']\n\
         [rule.relays]\nforbid = ['direct']\n"
    );
    let mut bed = Bed::new(what, &grid);
    for host in ["r1", "r2", "a1", "b1"] {
        bed.issue(host, life(DAY));
        bed.up(host);
    }
    ["a1", "b1"].into_iter().for_each(|host| ["r1", "r2"].into_iter().for_each(|relay| bed.linked(host, relay)));
    bed
}

/// The relay that a new stream would take.
fn chosen_relay(bed: &Bed) -> &'static str {
    let chosen = || {
        let (_, out, _) = crate::common::run(&mut bed.on("a1", &["why", "a1", "b1", "--json"]));
        let why: serde_json::Value = serde_json::from_str(&out).ok()?;
        match why["chosen"].as_str()? {
            "through r1" => Some("r1"),
            "through r2" => Some("r2"),
            _ => None,
        }
    };
    until("a way", chosen)
}

pub(crate) fn a_killed_relay_loses_no_byte_while_there_is_another_one() {
    let mut bed = two_relays("relays");
    let (_forward, local) = bed.forward("a1", &format!("b1:{}", echo()));
    let traffic = Traffic::start(local);
    traffic.goes_on();
    // Streams there are by both; each is killed while all go on.
    for round in 0..3 {
        let relay = if round == 0 { chosen_relay(&bed) } else { ["r1", "r2"][round % 2] };
        bed.kill(relay);
        traffic.goes_on();
        bed.up(relay);
        bed.linked("a1", relay);
        bed.linked("b1", relay);
        // It may be killed next only when both have got its advertisement.
        until("both ways", || {
            let (_, out, _) = crate::common::run(&mut bed.on("a1", &["why", "a1", "b1", "--json"]));
            let why: serde_json::Value = serde_json::from_str(&out).ok()?;
            (why["ways"].as_array()?.iter().filter(|way| way["usable"] == true).count() == 2).then_some(())
        });
        traffic.goes_on();
    }
    // When both are gone there is no way left, and that is reported.
    let last = connect(local);
    talk(&last);
    traffic.end();
    bed.kill("r1");
    bed.kill("r2");
    let mut from = &last;
    assert_eq!(from.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    until("an end of all streams", || {
        (bed.status("a1")["streams"] == 0 && bed.status("b1")["streams"] == 0).then_some(())
    });
}

/// Streams without a reader of the answers, until all buffers on the way are full, go on by another relay all the same.
pub(crate) fn a_killed_relay_loses_nothing_of_streams_that_stand_still() {
    const STREAMS: usize = 3;
    const EACH: usize = 40 << 20;
    let mut bed = two_relays("still");
    let (_forward, local) = bed.forward("a1", &format!("b1:{}", echo()));
    let (moved, sent) = (&AtomicBool::new(false), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        for n in 0..STREAMS {
            let from = connect(local);
            let mut to = from.try_clone().unwrap();
            let piece = bytes(64 << 10);
            scope.spawn(move || {
                for _ in 0..EACH / piece.len() {
                    to.write_all(&piece).unwrap();
                    sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
                }
                to.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || read_in_two(from, n, EACH, moved));
        }
        let mut before = 0;
        until("streams that stand still", || {
            std::thread::sleep(std::time::Duration::from_millis(500));
            let now = sent.load(Ordering::Relaxed);
            (std::mem::replace(&mut before, now) == now && now > 0).then_some(())
        });
        println!("{} MiB were sent", before >> 20);
        let (relay, carried) = most_used_relay(&bed);
        bed.kill(relay);
        until("moved streams", || (bed.log("b1").matches("moved: a stream").count() >= carried).then_some(()));
        moved.store(true, Ordering::Relaxed);
    });
}

/// The relay that carries most streams of a1, and how many; the way that a new one would take may have changed since they began.
fn most_used_relay(bed: &Bed) -> (&'static str, usize) {
    let status = bed.status("a1");
    let carried = |relay: &str| {
        let links =
            status["peers"].as_array().unwrap().iter().find(|peer| peer["host"] == relay).unwrap()["links"].clone();
        links.as_array().unwrap().iter().map(|link| link["streams"].as_u64().unwrap() as usize).sum::<usize>()
    };
    let most =
        ["r1", "r2"].into_iter().map(|relay| (relay, carried(relay))).max_by_key(|(_, carried)| *carried).unwrap();
    assert!(most.1 > 0, "no relay carries a stream: {status}");
    most
}

/// A part at once, so that windows grow, and the rest on request.
fn read_in_two(mut from: TcpStream, n: usize, each: usize, go_on: &AtomicBool) {
    let expected = bytes(64 << 10);
    let (mut got, mut buffer) = (0, vec![0; 64 << 10]);
    while got < each {
        if got > each / 4 {
            until("the word to go on", || go_on.load(Ordering::Relaxed).then_some(()));
        }
        let count = from.read(&mut buffer).unwrap();
        assert!(count > 0, "stream {n} ended behind {got} bytes");
        let at = got % expected.len();
        assert!(buffer[..count].iter().eq(expected.iter().cycle().skip(at).take(count)), "stream {n} near {got}");
        got += count;
    }
}

pub(crate) fn a_killed_peer_is_a_reset_and_no_other_way_is_looked_for_in_vain() {
    let mut bed = two_relays("peer");
    let (_forward, local) = bed.forward("a1", &format!("b1:{}", echo()));
    let stream = connect(local);
    talk(&stream);
    let began = std::time::Instant::now();
    bed.kill("b1");
    let mut from = &stream;
    assert_eq!(from.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    println!("a reset after {:?}", began.elapsed());
    bed.up("b1");
    bed.linked("b1", "r1");
    talk(&connect(local));
}

/// A proxy between two daemons; on request it cuts all connections that go through it.
struct Proxy {
    port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, open) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Vec::new())));
        let all: Arc<Mutex<Vec<TcpStream>>> = open.clone();
        std::thread::spawn(move || {
            for here in listener.incoming().flatten() {
                let Ok(there) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                for (from, to) in [(&here, &there), (&there, &here)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                all.lock().unwrap().extend([here, there]);
            }
        });
        Self { port, open }
    }

    /// Resets them all; what is on its way is lost.
    fn reset(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(std::time::Duration::ZERO));
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

pub(crate) fn streams_outlive_the_connection_they_go_by() {
    let port = free_port();
    let proxy = Proxy::start(port);
    let grid =
        |port: u16| format!("[site.a]\nhosts.a1 = []\n[site.b]\nhosts.b1 = '127.0.0.1:{port}'\nallow = '1-65535'\n");
    let mut bed = Bed::new("proxy", &grid(proxy.port));
    bed.folder.file("own.toml", 0o600, &grid(port));
    for host in ["a1", "b1"] {
        bed.issue(host, life(DAY));
    }
    bed.up_as("b1", "b1", "own.toml");
    bed.up("a1");
    bed.linked("a1", "b1");
    let (_forward, local) = bed.forward("a1", &format!("b1:{}", echo()));
    let traffic = Traffic::start(local);
    for _ in 0..3 {
        traffic.goes_on();
        proxy.reset();
    }
    traffic.goes_on();
    traffic.end();
    assert!(bed.log("a1").contains("moved: a stream to port"), "{}", bed.log("a1"));
    until("an end of all streams", || {
        (bed.status("a1")["streams"] == 0 && bed.status("b1")["streams"] == 0).then_some(())
    });
}
