//! What a port costs by itself: ping-pong between two processes over a driver of messages, beside one cache line that both write in
//! turn, round by round (the quietest tenth); and bodies by frames and by single copies.
//!
//! `cargo run --release -p madrigal-drivers --example ports [shm|tcp] [SIZE..]`

#![allow(unsafe_code)]

use std::hint::spin_loop;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};

use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::driver::Place;
use madrigal_progress::message::{LinkError, LinkIndex, Placement, Port, Sent, SingleCopy, Sink};
use madrigal_shm_ring::arena::Arena;
use madrigal_sys::piece::Piece;
use madrigal_sys::{process, time};

/// The argument for a started copy.
const ASKED: &str = "_MADRIGAL_PORTS_PEER";
const ROUNDS: usize = 200;
/// Exchanges of the bare line in a round.
const BARE: u64 = 500;
/// Bytes of the layer above's head.
const HEAD: usize = 24;

fn main() {
    if let Ok(asked) = std::env::var(ASKED) {
        return answer(&asked);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let driver = args.first().map_or("shm", String::as_str).to_owned();
    let sizes: Vec<usize> = args.iter().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let sizes = if sizes.is_empty() { vec![8, 64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20] } else { sizes };
    for size in sizes {
        ask(&driver, size, false);
        if size > 4 << 10 {
            ask(&driver, size, true);
        }
    }
}

struct Node {
    port: Box<dyn Port>,
    link: Option<LinkIndex>,
    seen: Seen,
}

#[derive(Default)]
struct Seen {
    up: Option<LinkIndex>,
    down: bool,
    /// Messages received.
    count: u64,
    /// The first byte of the last head, which marks the last message, and the address in it.
    last: (u8, u64),
    buffer: Vec<u8>,
}

impl Seen {
    fn head(&mut self, head: &[u8]) {
        self.count += 1;
        self.last = (head[0], u64::from_ne_bytes(head[8..16].try_into().expect("long enough")));
    }
}

impl Sink for Seen {
    fn up(&mut self, link: LinkIndex, _: NodeId) {
        self.up = Some(link);
    }
    fn down(&mut self, _: LinkIndex, _: LinkError) {
        self.down = true;
    }
    fn frame(&mut self, _: LinkIndex, head: &[u8], body: &[u8]) {
        self.buffer[..body.len()].copy_from_slice(body);
        self.head(head);
    }
    fn place(&mut self, _: LinkIndex, _: &[u8], len: usize, placement: &mut Placement) {
        // SAFETY: the buffer is touched only after `arrived`.
        placement.push(unsafe { Piece::lend(self.buffer.as_mut_ptr(), len) });
    }
    fn arrived(&mut self, _: LinkIndex, head: &[u8]) {
        self.head(head);
    }
}

impl Node {
    fn new(driver: &str, id: NodeId, directory: &str, size: usize) -> Self {
        let place = Place { directory: directory.to_owned(), ..Place::default() };
        let port = madrigal_drivers::message_driver(driver).expect("a driver").open(id, &place).expect("opens");
        let seen = Seen { buffer: vec![1; size.max(64)], ..Seen::default() };
        Self { port, link: None, seen }
    }

    fn up(&mut self) {
        while self.seen.up.is_none() {
            self.port.poll(&mut self.seen);
            std::thread::yield_now();
        }
        self.link = self.seen.up;
    }

    #[inline(never)]
    fn send(&mut self, last: bool, body: &[u8], single: bool) {
        let link = self.link.expect("up");
        let mut head = [0u8; HEAD];
        head[0] = u8::from(last);
        head[8..16].copy_from_slice(&(body.as_ptr().addr() as u64).to_ne_bytes());
        let body = [IoSlice::new(if single { &[] } else { body })];
        let (mut skip, mut polls) = (0, 0u32);
        while let Sent::Part(n) = self.port.send(link, &head, &body, skip).expect("sends") {
            skip += n;
            self.port.poll(&mut self.seen);
            polls += 1;
            if polls.is_multiple_of(1 << 10) {
                std::thread::yield_now();
            }
        }
    }

    /// Waits for the next message; whether it is the last.
    #[inline(never)]
    fn wait(&mut self, count: u64, size: usize, single: bool) -> bool {
        let mut polls = 0u32;
        while self.seen.count < count {
            self.port.poll(&mut self.seen);
            polls += 1;
            if polls.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            }
            assert!(!self.seen.down, "the peer is gone");
        }
        if single {
            let (remote, local) = ([(self.seen.last.1, size)], [(self.seen.buffer.as_mut_ptr() as u64, size)]);
            assert_eq!(self.port.pull(self.link.expect("up"), &remote, &local), SingleCopy::Done);
        }
        self.seen.last.0 != 0
    }
}

fn ask(driver: &str, size: usize, single: bool) {
    let directory = format!("/dev/shm/madrigal-ports-{}", process::own_pid());
    let (me, you) = (NodeId::new(process::random()).expect("random"), NodeId::new(process::random()).expect("random"));
    let (arena, fd) = Arena::create().expect("an arena");
    let lines: Vec<u32> = (0..ROUNDS).map(|_| arena.take_slot().expect("a slot")).collect();
    let mut node = Node::new(driver, me, &directory, size);
    let mut address = NodeAddress::bare(me);
    node.port.publish(&mut address);
    let hex: String = address.encode(NodeAddress::LONG).iter().map(|byte| format!("{byte:02x}")).collect();
    let iterations = (100_000 / (200 + size / 5)).max(4) as u64;
    let asked = format!(
        "{driver} {directory} {hex} {} {} {} {} {size} {}",
        you.number(),
        process::own_pid(),
        fd.as_raw_fd(),
        arena.id(),
        u8::from(single)
    );
    let _child = Other(Command::new("/proc/self/exe").env(ASKED, asked).spawn().expect("starts"));
    node.up();
    let body = vec![7u8; size];
    let (mut bare, mut port, mut stream, mut count) = (vec![], vec![], vec![], 0);
    for slot in &lines {
        let line = &arena.slot(*slot).expect("a slot").side[0].cookie;
        bare.push(timed(BARE, |i| exchange(line, 2 * i + 1, 2 * i + 2)));
        port.push(timed(iterations, |_| {
            count += 1;
            node.send(false, &body, single);
            node.wait(count, size, single);
        }));
        stream.push(
            2.0 * timed(iterations, |i| {
                let last = i + 1 == iterations;
                node.send(last, &body, single);
                if last || single {
                    count += 1;
                    node.wait(count, size, false);
                }
            }),
        );
    }
    let (bare, port, stream) = (quiet(bare), quiet(port), quiet(stream));
    let how = if single { "single copy" } else { "frames" };
    let rate = size as f64 / stream;
    println!(
        "{driver} {size:>8} B {how:11}: one way {port:9.0} ns, bare line {bare:4.0} ns, ratio {:7.2}; stream {stream:9.0} ns, {rate:6.2} GB/s",
        port / bare
    );
    let _ = std::fs::remove_dir_all(&directory);
}

fn answer(asked: &str) {
    let words: Vec<&str> = asked.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    let bytes: Vec<u8> =
        (0..words[2].len() / 2).map(|i| u8::from_str_radix(&words[2][2 * i..2 * i + 2], 16).expect("hex")).collect();
    let address = NodeAddress::decode(&bytes).expect("an address");
    let arena = Arena::attach_from(number(4) as u32, number(5) as i32, number(6)).expect("the arena");
    let (size, single) = (number(7) as usize, number(8) != 0);
    let mut node = Node::new(words[0], NodeId::new(number(3)).expect("an id"), words[1], size);
    node.port.link(&address).expect("links");
    node.up();
    let body = vec![9u8; size];
    let iterations = (100_000 / (200 + size / 5)).max(4) as u64;
    let mut count = 0;
    for round in 0..ROUNDS {
        let line = &arena.slot(round as u32).expect("a slot").side[0].cookie;
        for i in 0..BARE {
            exchange_back(line, 2 * i + 1, 2 * i + 2);
        }
        for _ in 0..iterations {
            count += 1;
            node.wait(count, size, single);
            node.send(false, &body, single);
        }
        loop {
            count += 1;
            let last = node.wait(count, size, single);
            if last || single {
                node.send(false, &[0; 1], false);
            }
            if last {
                break;
            }
        }
    }
    // Until the other side has everything.
    while !node.seen.down {
        node.port.poll(&mut node.seen);
    }
}

struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // It ended, or ends now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Nanoseconds one way.
fn timed(iterations: u64, mut run: impl FnMut(u64)) -> f64 {
    let begun = time::now_ns();
    (0..iterations).for_each(&mut run);
    (time::now_ns() - begun) as f64 / (2 * iterations) as f64
}

fn exchange(line: &AtomicU64, put: u64, wait: u64) {
    line.store(put, Ordering::Release);
    wait_for(line, wait);
}

fn exchange_back(line: &AtomicU64, wait: u64, put: u64) {
    wait_for(line, wait);
    line.store(put, Ordering::Release);
}

fn wait_for(line: &AtomicU64, count: u64) {
    let mut polls = 0u32;
    while line.load(Ordering::Acquire) != count {
        spin_loop();
        polls += 1;
        if polls.is_multiple_of(1 << 12) {
            std::thread::yield_now();
        }
    }
}

/// What the quieter rounds took: on a machine with other work, most show how busy it was.
fn quiet(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 10]
}
