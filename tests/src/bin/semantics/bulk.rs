//! Much data: both directions at once, checked byte by byte, in one process and across two.

use madrigal_tests::net::{self, read, recv_exact, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::both;

crate::checks![
    both_directions_64_mib,
    across_processes_64_mib,
    nonblocking_both_directions,
    by_tiny_writes,
    by_huge_reads,
    reader_stalls_and_returns,
    bulk_from_the_first_byte,
    only_one_side_sends,
    sends_only_where_there_is_room,
    echo_under_back_pressure,
    echo_to_a_client_that_stalls,
    byte_by_byte_before_the_ring,
];

const MIB: usize = 1 << 20;

/// Byte `i` of the stream with this seed.
fn stream_byte(seed: u32, i: usize) -> u8 {
    ((i as u32 ^ seed).wrapping_mul(2_654_435_761) >> 24) as u8
}

fn send_stream(fd: &std::os::fd::OwnedFd, seed: u32, total: usize, chunk: usize) {
    let mut at = 0;
    while at < total {
        let end = (at + chunk).min(total);
        let part: Vec<u8> = (at..end).map(|i| stream_byte(seed, i)).collect();
        send_all(fd, &part);
        at = end;
    }
}

fn check_stream(fd: &std::os::fd::OwnedFd, seed: u32, total: usize, chunk: usize) {
    let mut buf = vec![0; chunk];
    let mut at = 0;
    while at < total {
        let n = read(fd, &mut buf).unwrap();
        assert!(n > 0, "the stream ended at {at} of {total}");
        let good = buf[..n].iter().enumerate().all(|(k, b)| *b == stream_byte(seed, at + k));
        assert!(good, "wrong bytes between {at} and {}", at + n);
        at += n;
    }
    assert_eq!(at, total, "more came than was sent");
}

fn both_directions_64_mib() {
    let p = Pair::warm();
    std::thread::scope(|scope| {
        scope.spawn(|| send_stream(&p.c, 1, 64 * MIB, 123_457));
        scope.spawn(|| send_stream(&p.s, 2, 64 * MIB, 65_536));
        scope.spawn(|| check_stream(&p.s, 1, 64 * MIB, 99_999));
        check_stream(&p.c, 2, 64 * MIB, 262_144);
    });
}

fn across_processes_64_mib() {
    let (out, input) = net::pipe();
    let child = net::fork(|| {
        let fd = pair::client_of_port(&out);
        both(|| send_stream(&fd, 3, 64 * MIB, 200_000), || check_stream(&fd, 4, 64 * MIB, 131_072));
        0
    });
    let (listener, addr) = net::listener(pair::loopback());
    pair::send_port(&input, addr);
    let fd = net::accept(&listener, 0).unwrap();
    both(|| send_stream(&fd, 4, 64 * MIB, 77_777), || check_stream(&fd, 3, 64 * MIB, 1 << 20));
    assert_eq!(net::wait(child), 0);
}

fn nonblocking_both_directions() {
    // One thread, poll(2), both ends: neither end may wait for the other.
    let p = Pair::warm();
    net::set_nonblocking(&p.c, true);
    net::set_nonblocking(&p.s, true);
    let total = 16 * MIB;
    let ends = [(&p.c, 5u32, 6u32), (&p.s, 6, 5)];
    let mut sent = [0; 2];
    let mut got = [0; 2];
    let mut buf = vec![0; 50_000];
    while got.iter().any(|g| *g < total) {
        let mut set: Vec<libc::pollfd> = ends
            .iter()
            .zip(sent)
            .map(|((fd, ..), sent)| {
                let events = if sent < total { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
                libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(*fd), events, revents: 0 }
            })
            .collect();
        net::poll_many(&mut set, -1).unwrap();
        for (i, (fd, out_seed, in_seed)) in ends.iter().enumerate() {
            if set[i].revents & libc::POLLOUT != 0 {
                let end = (sent[i] + 40_000).min(total);
                let part: Vec<u8> = (sent[i]..end).map(|k| stream_byte(*out_seed, k)).collect();
                sent[i] += net::send(fd, &part, 0).unwrap_or(0);
            }
            if let Ok(n) = read(fd, &mut buf) {
                assert!(buf[..n].iter().enumerate().all(|(k, b)| *b == stream_byte(*in_seed, got[i] + k)));
                got[i] += n;
            }
        }
    }
}

fn by_tiny_writes() {
    let p = Pair::warm();
    both(|| send_stream(&p.c, 7, 200_000, 1), || check_stream(&p.s, 7, 200_000, 65_536));
}

fn by_huge_reads() {
    let p = Pair::warm();
    both(|| send_stream(&p.c, 8, 32 * MIB, 8 * MIB), || check_stream(&p.s, 8, 32 * MIB, 8 * MIB));
}

fn reader_stalls_and_returns() {
    let p = Pair::warm();
    both(
        || send_stream(&p.c, 9, 24 * MIB, 300_000),
        || {
            let mut buf = vec![0; 400_000];
            let mut at = 0;
            while at < 24 * MIB {
                if at / (4 * MIB) != (at + 400_000) / (4 * MIB) {
                    net::sleep_ms(150);
                }
                let n = read(&p.s, &mut buf).unwrap();
                assert!(buf[..n].iter().enumerate().all(|(k, b)| *b == stream_byte(9, at + k)));
                at += n;
            }
        },
    );
    // After the stall the connection still works both ways.
    for i in 0..2000u32 {
        send_all(&p.c, &i.to_ne_bytes());
        assert_eq!(recv_exact(&p.s, 4), i.to_ne_bytes());
        send_all(&p.s, b"k");
        assert_eq!(recv_exact(&p.c, 1), b"k");
    }
}

fn bulk_from_the_first_byte() {
    let p = Pair::fresh();
    both(|| send_stream(&p.c, 10, 32 * MIB, 100_000), || check_stream(&p.s, 10, 32 * MIB, 100_000));
    if pair::expect_ring() {
        // A ring that a busy machine leaves full for a while is left for TCP.
        assert!(pair::moves(&p.s) > 0, "the end that never sends cannot ring for space: {:?}", pair::why(&p.s));
    }
}

fn only_one_side_sends() {
    let p = Pair::fresh();
    both(
        || {
            for i in 0..20_000u32 {
                send_all(&p.c, &i.to_ne_bytes());
            }
        },
        || {
            for i in 0..20_000u32 {
                assert_eq!(recv_exact(&p.s, 4), i.to_ne_bytes());
            }
        },
    );
}

/// A sender that polls before each send is never refused; its sends fill a ring exactly.
fn sends_only_where_there_is_room() {
    const BLOCK: usize = 128 << 10;
    for _ in 0..40 {
        let p = Pair::fresh();
        net::set_nonblocking(&p.c, true);
        both(
            || {
                let mut at = 0;
                while at < 32 * BLOCK {
                    assert_eq!(net::poll(&p.c, libc::POLLOUT, -1), libc::POLLOUT);
                    at += net::write(&p.c, &vec![7; BLOCK - at % BLOCK]).unwrap();
                }
            },
            || assert!(recv_exact(&p.s, 32 * BLOCK).iter().all(|b| *b == 7)),
        );
    }
}

/// An event loop that takes nothing while it has something to give, as pipes of streams do, behind a client that sends faster than it
/// reads: neither may wait for a reader that in truth waits for it, and leave the rings for that.
fn echo_under_back_pressure() {
    // On a busy machine a thread may stand still for as long as makes the other leave; not every time.
    let stays = || {
        let p = Pair::fresh();
        echo(&p, 48 * MIB, || ());
        !pair::expect_ring() || (pair::moves(&p.c), pair::why(&p.c)) == (1, None)
    };
    assert!((0..6).any(|_| stays()), "it leaves the rings on the way");
}

/// The same with both leaving the rings at about the same time, again and again.
fn echo_to_a_client_that_stalls() {
    echo(&Pair::fresh(), 24 * MIB, || net::sleep_ms(4));
}

/// `total` bytes there and back; the client calls `pause` after each piece it has read.
fn echo(p: &Pair, total: usize, pause: impl Fn() + Send + Sync) {
    net::set_nonblocking(&p.c, true);
    net::set_nonblocking(&p.s, true);
    both(
        || {
            let (mut buf, mut unsent, mut echoed) = (vec![0; 65_536], Vec::new(), 0);
            while echoed < total {
                net::poll(&p.s, if unsent.is_empty() { libc::POLLIN } else { libc::POLLOUT }, -1);
                if unsent.is_empty()
                    && let Ok(n) = read(&p.s, &mut buf)
                {
                    unsent.extend_from_slice(&buf[..n]);
                }
                if let Ok(n) = net::send(&p.s, &unsent, 0) {
                    unsent.drain(..n);
                    echoed += n;
                }
            }
        },
        || {
            let stream: Vec<u8> = (0..total).map(|k| stream_byte(11, k)).collect();
            let (mut sent, mut got, mut buf) = (0, 0, vec![0; 65_536]);
            while got < total {
                net::poll(&p.c, if sent < total { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN }, -1);
                if sent < total {
                    sent += net::send(&p.c, &stream[sent..(sent + MIB).min(total)], 0).unwrap_or(0);
                }
                if let Ok(n) = read(&p.c, &mut buf) {
                    assert!(buf[..n] == stream[got..got + n], "wrong bytes between {got} and {}", got + n);
                    got += n;
                    pause();
                }
            }
        },
    );
}

/// What the kernel holds before the ring begins costs a reader of single bytes about what it costs without a ring.
fn byte_by_byte_before_the_ring() {
    for ends in [false, true] {
        // Others on this processor slow one of the two now and then.
        let times: Vec<_> = (0..4).map(|_| (read_before_the_ring(ends), read_by_unix())).collect();
        assert!(
            times.iter().any(|(with, without)| *with < 4 * without),
            "{SINGLE} bytes with and without a ring: {times:?} ns"
        );
    }
}

/// Bytes read one by one.
const SINGLE: usize = 50_000;

fn read_single(fd: &std::os::fd::OwnedFd) -> u64 {
    let (before, mut byte) = (net::thread_ns(), [0]);
    for i in 0..SINGLE {
        assert_eq!((read(fd, &mut byte), byte[0]), (Ok(1), stream_byte(11, i)));
    }
    net::thread_ns() - before
}

fn read_by_unix() -> u64 {
    let (near, far) = net::unix_pair();
    send_stream(&far, 11, SINGLE, SINGLE);
    read_single(&near)
}

fn read_before_the_ring(ends: bool) -> u64 {
    let p = Pair::fresh();
    let head = vec![0; 300];
    head.chunks(1).for_each(|byte| send_all(&p.c, byte));
    send_stream(&p.c, 11, SINGLE, SINGLE);
    // Its end learns that there is a ring to come, and the other one goes on in it.
    assert_eq!(recv_exact(&p.s, 1), [0]);
    head[1..].iter().for_each(|_| {
        assert_eq!(recv_exact(&p.s, 1), [0]);
        send_all(&p.c, b"r");
    });
    assert!(!pair::expect_ring() || pair::moves(&p.c) > 0, "no ring: {:?}", pair::why(&p.c));
    if ends {
        net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    }
    let with = read_single(&p.s);
    assert!(recv_exact(&p.s, head.len() - 1).iter().all(|byte| *byte == b'r'));
    with
}
