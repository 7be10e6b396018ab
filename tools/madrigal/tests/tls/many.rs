//! Very many streams through one enciphered link: each has its share, and together they take a bounded amount of memory.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use madrigal_identity::DAY;
use rustix::event::epoll;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

use crate::common::bed::{Bed, life, peak, raise_limits, until};

const STREAMS: usize = 2000;
/// What each gets on average before shares are compared.
const SHARE: usize = 128 << 10;
/// The kernel's own buffers of each end: as large as it makes them by itself, all together use up what a host has for TCP, and other tests'
/// connections get none.
const BUFFER: usize = 16 << 10;
/// Windows of all streams, what they may grow by, what is kept for another way, and as much again for all else.
const MOST_MEMORY: u64 = 2 * ((STREAMS as u64) * (16 << 10) + (64 << 20) + (192 << 20));

/// Everything is read, or written, that can be.
fn each_ready(epoll: &rustix::fd::OwnedFd, mut each: impl FnMut(usize)) {
    let mut events = [const { std::mem::MaybeUninit::uninit() }; 512];
    let soon = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let (events, _) = epoll::wait(epoll, &mut events, Some(&soon)).unwrap();
    events.iter().for_each(|event| each(event.data.u64() as usize));
}

/// Sends without end on every connection, until `stop` is set. Returns its port.
fn source(stop: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // All may come at once; clients that a full queue drops are not notified while only this side sends.
    rustix::net::listen(&listener, STREAMS as i32).unwrap();
    set_socket_send_buffer_size(&listener, BUFFER).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let all: Vec<_> = listener.incoming().take(STREAMS).map(Result::unwrap).collect();
        for (n, stream) in all.iter().enumerate() {
            stream.set_nonblocking(true).unwrap();
            epoll::add(&epoll, stream, epoll::EventData::new_u64(n as u64), epoll::EventFlags::OUT).unwrap();
        }
        let bytes = [7; 16 << 10];
        while !stop.load(Ordering::Relaxed) {
            each_ready(&epoll, |n| drop((&all[n]).write(&bytes)));
        }
    });
    port
}

pub(crate) fn two_thousand_streams_have_equal_shares_and_bounded_memory() {
    raise_limits();
    let (mut bed, _) = Bed::two("many");
    for host in ["a1", "b1"] {
        bed.issue(host, life(DAY));
        bed.up(host);
    }
    bed.linked("a1", "b1");
    let stop = Arc::new(AtomicBool::new(false));
    let (_forward, local) = bed.forward("a1", &format!("b1:{}", source(stop.clone())));
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let mut all = Vec::new();
    for n in 0..STREAMS {
        let stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
        stream.set_nonblocking(true).unwrap();
        set_socket_recv_buffer_size(&stream, BUFFER).unwrap();
        epoll::add(&epoll, &stream, epoll::EventData::new_u64(n as u64), epoll::EventFlags::IN).unwrap();
        all.push(stream);
    }
    until("all streams", || (bed.status("b1")["streams"] == STREAMS).then_some(()));
    let (mut got, mut buffer) = (vec![0_usize; STREAMS], vec![0; 64 << 10]);
    let mut read = |until: usize| {
        got.fill(0);
        while got.iter().sum::<usize>() < until {
            each_ready(&epoll, |n| match (&all[n]).read(&mut buffer) {
                Ok(count) => {
                    assert!(count > 0, "stream {n} ended");
                    got[n] += count;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "stream {n}"),
            });
        }
        (got.iter().copied().min().unwrap(), got.iter().copied().max().unwrap())
    };
    // Bytes that were in buffers when the last stream began count for no stream.
    read(STREAMS * SHARE / 4);
    let (least, most) = read(STREAMS * SHARE);
    let memory = ["a1", "b1"].map(|host| peak(bed.pid(host)));
    println!(
        "{STREAMS} streams: {least} to {most} bytes each, ratio {:.2}; {} KiB, {} KiB",
        most as f64 / least as f64,
        memory[0] >> 10,
        memory[1] >> 10
    );
    assert!(most < 3 * least, "{least} to {most}");
    assert!(memory.iter().all(|used| *used < MOST_MEMORY), "{memory:?}");
    stop.store(true, Ordering::Relaxed);
}
