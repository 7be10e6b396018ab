//! Strangers at the port: nothing they send or leave out changes anything for those who are linked, or takes more than a bound of memory.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use madrigal_identity::DAY;

use crate::bed::{Bed, WATCHDOG, bytes, echo, exchange, life, peak, raise_limits, until};

/// Connections that are opened and left.
const MANY: usize = 3000;
/// A daemon that holds so many strangers needs less.
const MOST_MEMORY: u64 = 96 << 20;

/// The head of a record of the handshake, with that many bytes to follow.
fn record(len: u16) -> Vec<u8> {
    [&[0x16, 3, 1], &len.to_be_bytes()[..]].concat()
}

/// What strangers say.
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

#[test]
fn strangers_change_nothing() {
    raise_limits();
    let (mut bed, daemon) = Bed::two("strangers");
    for host in ["a1", "b1"] {
        bed.issue(host, life(DAY));
        bed.up(host);
    }
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
    // Many who begin and do not go on, a third of them a byte at a time.
    let sent = bytes(300_000);
    let mut open = Vec::new();
    for n in 0..MANY {
        let mut stream = TcpStream::connect(("127.0.0.1", daemon)).unwrap();
        stream.set_write_timeout(Some(WATCHDOG)).unwrap();
        let begin = [record(512), vec![1, 0, 1, 252, 3, 3]].concat();
        let _ = stream.write_all(if n % 3 == 0 { &begin[..1] } else { &begin });
        open.push(stream);
        if n % 500 == 250 {
            for mut slow in open.iter().step_by(3) {
                let _ = slow.write_all(&begin[1..2]);
            }
            let stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
            assert!(exchange(&stream, &sent) == sent);
            assert!(bed.status("b1")["strangers"].as_u64().unwrap() <= 128);
        }
    }
    // The link is the same as before, and so is the stream.
    before.write_all(b"y").unwrap();
    before.read_exact(&mut [0]).unwrap();
    let most = peak(bed.pid("b1"));
    assert!(most < MOST_MEMORY, "{most} bytes");
    println!("{MANY} half-open connections: {} KiB at most", most >> 10);
    // They are ended by the daemon, not by us.
    until("the end of all strangers", || (bed.status("b1")["strangers"] == 0).then_some(()));
    drop(open);
    bed.linked("b1", "a1");
    assert!(!bed.log("a1").contains("no link with b1"), "{}", bed.log("a1"));
}

#[test]
fn a_host_gets_in_while_strangers_crowd_the_port() {
    let (mut bed, daemon) = Bed::two("crowd");
    for host in ["a1", "b1"] {
        bed.issue(host, life(DAY));
    }
    bed.up("b1");
    // All from one address, as a1 is here: it gets in all the same, for it does not dawdle.
    let crowd: Vec<_> = (0..200).map(|_| TcpStream::connect(("127.0.0.1", daemon)).unwrap()).collect();
    bed.up("a1");
    bed.linked("a1", "b1");
    drop(crowd);
}
