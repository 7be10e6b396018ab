//! Unauthenticated peers at the port: nothing that they send or omit disturbs linked daemons, or takes more than a bound of memory.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use madrigal_identity::DAY;
use rustix::process::{Resource, getrlimit};

use crate::common::bed::{Bed, WATCHDOG, bytes, echo, exchange, free_port, life, peak, raise_limits, until};

/// Connections that are opened and left, where this process may have so many.
const MANY: usize = 10_000;
/// A daemon at whose port they are needs no more than this beyond what it had before.
const MOST_MEMORY: u64 = 24 << 20;

/// The head of a record of the handshake, with that many bytes to follow.
fn record(len: u16) -> Vec<u8> {
    [&[0x16, 3, 1], &len.to_be_bytes()[..]].concat()
}

/// The bytes of unauthenticated peers.
fn nonsense() -> Vec<Vec<u8>> {
    let hello = |len: u32| [&record(16_000)[..], &[1], &len.to_be_bytes()[1..], &vec![7; 16_000 - 4]].concat();
    vec![
        b"GET / HTTP/1.0\r\n\r\n".to_vec(),
        vec![0x16; 70_000],
        record(0),
        record(0xFFFF),
        [record(5), vec![1, 0, 0, 1, 7]].concat(),
        // A greeting of TLS that is longer than any, in pieces.
        [hello(60_000), hello(60_000), hello(60_000)].concat(),
        [0x15, 3, 3, 0, 2, 2, 40].to_vec(),
        [0x17, 3, 3, 0, 2, 2, 40].to_vec(),
        vec![0xA7; 4000],
        vec![],
    ]
}

/// The first bytes of the daemon of `c1`, the correct beginning of a handshake.
fn first_words(bed: &mut Bed) -> Vec<u8> {
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    bed.folder.file("trap.toml", 0o600, &grid(trap.local_addr().unwrap().port()));
    bed.up_as("c1", "c1", "trap.toml");
    let (mut stream, _) = trap.accept().unwrap();
    let mut head = [0; 5];
    stream.read_exact(&mut head).unwrap();
    let mut rest = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
    stream.read_exact(&mut rest).unwrap();
    bed.kill("c1");
    [&head[..], &rest].concat()
}

/// `a1` and `c1` call `b1`, which listens at this port of 127.0.0.1.
fn grid(port: u16) -> String {
    format!("[site.a]\nhosts = {{ a1 = [], c1 = [] }}\n[site.b]\nhosts.b1 = '127.0.0.1:{port}'\nallow = '1-65535'\n")
}

pub(crate) fn unauthenticated_peers_change_nothing() {
    raise_limits();
    let daemon = free_port();
    let mut bed = Bed::new("unauthenticated", &grid(daemon));
    ["a1", "b1", "c1"].into_iter().for_each(|host| bed.issue(host, life(DAY)));
    bed.up("b1");
    bed.up("a1");
    bed.linked("b1", "a1");
    let (_forward, local) = bed.forward("a1", &format!("b1:{}", echo()));
    let mut before = TcpStream::connect(("127.0.0.1", local)).unwrap();
    before.write_all(b"x").unwrap();
    before.read_exact(&mut [0]).unwrap();
    for bytes in nonsense() {
        let mut stream = TcpStream::connect(("127.0.0.1", daemon)).unwrap();
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        let _ = stream.write_all(&bytes);
        // It is ended, with or without a word.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let hello = first_words(&mut bed);
    let sent = bytes(300_000);
    let stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    assert!(exchange(&stream, &sent) == sent);
    let memory = peak(bed.pid("b1"));
    // Many that begin and do not go on, in several ways, a third of them a byte at a time.
    let begin = [record(512), vec![1, 0, 1, 252, 3, 3]].concat();
    let many = MANY.min(usize::try_from(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)).unwrap() - 500);
    let mut open = Vec::new();
    for n in 0..many {
        let mut stream = TcpStream::connect(("127.0.0.1", daemon)).unwrap();
        stream.set_write_timeout(Some(WATCHDOG)).unwrap();
        let _ = stream.write_all([&begin[..1], &begin, &hello][n % 3]);
        open.push(stream);
        if n % 1000 == 500 {
            for mut slow in open.iter().step_by(3) {
                let _ = slow.write_all(&begin[1..2]);
            }
            let stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
            assert!(exchange(&stream, &sent) == sent);
            assert!(bed.status("b1")["unauthenticated"].as_u64().unwrap() <= 128);
        }
    }
    // Who is of the grid gets in, from the same address; and the link is the same as before, and so is the stream.
    bed.up("c1");
    bed.linked("c1", "b1");
    before.write_all(b"y").unwrap();
    before.read_exact(&mut [0]).unwrap();
    let more = peak(bed.pid("b1")) - memory;
    println!("{many} half-open connections: {} KiB, and {} KiB more at most", memory >> 10, more >> 10);
    assert!(more < MOST_MEMORY, "{memory} bytes, and then {more} more");
    // They are ended by the daemon, not by us.
    until("the end of all unauthenticated peers", || (bed.status("b1")["unauthenticated"] == 0).then_some(()));
    drop(open);
    bed.linked("b1", "a1");
    assert!(!bed.log("a1").contains("no link with b1"), "{}", bed.log("a1"));
}

pub(crate) fn a_host_gets_in_while_unauthenticated_peers_crowd_the_port() {
    let (mut bed, daemon) = Bed::two("crowd");
    for host in ["a1", "b1"] {
        bed.issue(host, life(DAY));
    }
    bed.up("b1");
    // All from one address, which is also a1's here: a1 gets in all the same, since it completes its handshake at once.
    let crowd: Vec<_> = (0..200).map(|_| TcpStream::connect(("127.0.0.1", daemon)).unwrap()).collect();
    bed.up("a1");
    bed.linked("a1", "b1");
    drop(crowd);
}
