//! What a message costs over a driver's port, against a bare TCP connection with the same sizes in the same run.
//!
//! ```text
//! [SIZE=8] cargo run --release -p madrigal-testkit --example messages [-- DRIVER [local]]
//! ```
//! Two processes, on two hosts made of network namespaces (needs root), or with `local` on this one. Bare are two kinds: `spin` looks
//! again and again without sleeping, as the port does when it is polled; `sleep` blocks in the kernel. Printed are medians one way, in
//! microseconds, and their ratios; for the last row the time of a message of 1 MiB while many are on their way.
#![allow(unsafe_code)]

use std::io::{BufRead as _, BufReader, IoSlice, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Instant;

use madrigal_base::config::Settings;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::driver::Place;
use madrigal_progress::message::{LinkError, LinkIndex, Placement, Port, Sent, Sink};
use madrigal_sys::piece::Piece;
use madrigal_testkit::hosts::Hosts;
use rustix::net::{RecvFlags, SendFlags};
use rustix::thread::{CpuSet, sched_setaffinity};

const TASK: &str = "_MADRIGAL_EXAMPLE";
const ROUNDS: usize = 31;
/// Sizes, and how many exchanges of each in a round.
const SIZES: [(usize, u32); 5] = [(8, 300), (1024, 300), (16 << 10, 200), (64 << 10, 100), (1 << 20, 10)];
/// Messages on their way at once, for the rate.
const STREAM: (usize, u32) = (1 << 20, 40);

fn main() {
    match std::env::var(TASK) {
        Ok(task) => {
            let words: Vec<&str> = task.split(' ').collect();
            match words[..] {
                ["server", driver] => {
                    stay_on(1);
                    serve(driver);
                }
                ["client", driver, address, bare] => {
                    stay_on(0);
                    ask(driver, address, bare);
                }
                _ => panic!("{task}"),
            }
        }
        Err(_) => start(),
    }
}

/// Starts both processes where they belong.
fn start() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let driver = words.first().map_or("tcp", String::as_str);
    let hosts = if words.iter().any(|word| word == "local") { None } else { Some(Hosts::two().expect("two hosts")) };
    let program = std::env::current_exe().expect("a path");
    let program = program.to_str().expect("text");
    let command = |host| hosts.as_ref().map_or_else(|| Command::new(program), |hosts| hosts.command(host, program));
    let task = format!("server {driver}");
    let mut server = command(1).env(TASK, task).stdout(Stdio::piped()).spawn().expect("starts");
    let mut lines = BufReader::new(server.stdout.take().expect("a pipe")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    let (address, port) = (line(), line());
    let host = if hosts.is_some() { "10.77.0.2" } else { "127.0.0.1" };
    let task = format!("client {driver} {address} {host}:{port}");
    let asked = command(0).env(TASK, task).status().expect("starts");
    // It ends with the client, unless one of the two failed.
    let _ = server.kill();
    let _ = server.wait();
    assert!(asked.success(), "the client failed");
}

/// Two that wake each other would be put on one processor, and then spin against each other.
fn stay_on(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    // With one processor there is nothing to choose.
    let _ = sched_setaffinity(None, &set);
}

fn serve(driver: &str) {
    let mut node = Node::open(driver);
    let mut address = NodeAddress::bare(node.id);
    node.port.publish(&mut address);
    let listener = TcpListener::bind("0.0.0.0:0").expect("listens");
    println!("{}", address.encode(NodeAddress::LONG).iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    println!("{}", listener.local_addr().expect("has one").port());
    std::io::stdout().flush().expect("is read");
    let mut bare = Bare { socket: listener.accept().expect("accepts").0, spin: false };
    bare.socket.set_nodelay(true).expect("can");
    node.until_up();
    every(|what, size, count| {
        let mut buf = vec![0; size];
        match what {
            What::Sleep | What::Spin => {
                bare.spin = what == What::Spin;
                (0..count).for_each(|_| {
                    bare.receive(&mut buf);
                    bare.send(&buf);
                });
            }
            What::Port => (0..count).for_each(|_| {
                node.receive(&mut buf);
                node.send(&buf);
            }),
            What::BareStream => {
                bare.spin = true;
                (0..count).for_each(|_| bare.receive(&mut buf));
                bare.send(&[1]);
            }
            What::PortStream => {
                (0..count).for_each(|_| node.receive(&mut buf));
                node.send(&[1]);
            }
        }
    });
    // Until the client is done.
    node.receive(&mut [0; 8]);
}

fn ask(driver: &str, address: &str, bare: &str) {
    let bytes: Vec<u8> =
        (0..address.len()).step_by(2).map(|i| u8::from_str_radix(&address[i..i + 2], 16).expect("hex")).collect();
    let address = NodeAddress::decode(&bytes).expect("an address");
    let mut node = Node::open(driver);
    let mut bare =
        Bare { socket: TcpStream::connect(bare.parse::<SocketAddr>().expect("one")).expect("connects"), spin: false };
    bare.socket.set_nodelay(true).expect("can");
    node.port.link(&address).expect("links");
    node.until_up();
    let path = node.port.explain(node.link).path;
    let mut table = Table::default();
    every(|what, size, count| {
        let mut buf = vec![7; size];
        let begun = Instant::now();
        match what {
            What::Sleep | What::Spin => {
                bare.spin = what == What::Spin;
                (0..count).for_each(|_| {
                    bare.send(&buf);
                    bare.receive(&mut buf);
                });
            }
            What::Port => (0..count).for_each(|_| {
                node.send(&buf);
                node.receive(&mut buf);
            }),
            What::BareStream => {
                (0..count).for_each(|_| bare.send(&buf));
                bare.spin = true;
                bare.receive(&mut [0]);
            }
            What::PortStream => {
                (0..count).for_each(|_| node.send(&buf));
                node.receive(&mut [0]);
            }
        }
        table.add(what, size, begun.elapsed().as_secs_f64() * 1e6 / f64::from(count));
    });
    node.send(&[0; 8]);
    println!("{path}; {ROUNDS} rounds, us one way (median; best)");
    table.print();
}

/// The times of every kind, by the name of a row.
#[derive(Default)]
struct Table(Vec<(String, [Vec<f64>; 3])>);

impl Table {
    fn add(&mut self, what: What, size: usize, us: f64) {
        let (column, us) = match what {
            What::Sleep => (0, us / 2.0),
            What::Spin => (1, us / 2.0),
            What::Port => (2, us / 2.0),
            What::BareStream => (1, us),
            What::PortStream => (2, us),
        };
        let name = if what >= What::BareStream { "stream".to_owned() } else { size.to_string() };
        if self.0.iter().all(|(known, _)| *known != name) {
            self.0.push((name.clone(), Default::default()));
        }
        let row = self.0.iter_mut().find(|(known, _)| *known == name);
        row.expect("was added").1[column].push(us);
    }

    fn print(&self) {
        println!("{:>9} {:>16} {:>16} {:>16}  port/spin port/sleep", "bytes", "bare, sleep", "bare, spin", "port");
        for (name, columns) in &self.0 {
            let best = |all: &[f64]| all.iter().copied().fold(f64::NAN, f64::min);
            let [sleep, spin, port] = [0, 1, 2].map(|i| (median(&columns[i]), best(&columns[i])));
            let text = |(median, best): (f64, f64)| format!("{median:.2} ({best:.2})");
            let (to_spin, to_sleep) = (port.0 / spin.0, port.0 / sleep.0);
            println!(
                "{name:>9} {:>16} {:>16} {:>16} {to_spin:>9.2} {to_sleep:>9.2}",
                text(sleep),
                text(spin),
                text(port)
            );
        }
    }
}

fn median(all: &[f64]) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum What {
    Sleep,
    Spin,
    Port,
    BareStream,
    PortStream,
}

/// What both do, in the same order: the kinds in turn, so that a busy moment hits all of them.
fn every(mut exchange: impl FnMut(What, usize, u32)) {
    let only = std::env::var("SIZE").ok().and_then(|size| size.parse::<usize>().ok());
    for _ in 0..ROUNDS {
        for (size, count) in SIZES.into_iter().filter(|(size, _)| only.is_none_or(|only| only == *size)) {
            for what in [What::Port, What::Spin, What::Sleep] {
                exchange(what, size, count);
            }
        }
        let streams = [What::BareStream, What::PortStream].into_iter().filter(|_| only.is_none());
        streams.for_each(|what| exchange(what, STREAM.0, STREAM.1));
    }
}

/// A TCP connection.
struct Bare {
    socket: TcpStream,
    spin: bool,
}

impl Bare {
    fn send(&mut self, bytes: &[u8]) {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += rustix::net::send(&self.socket, &bytes[sent..], SendFlags::NOSIGNAL).expect("sends");
        }
    }

    fn receive(&mut self, bytes: &mut [u8]) {
        let flags = if self.spin { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        let mut got = 0;
        while got < bytes.len() {
            match rustix::net::recv(&self.socket, &mut bytes[got..], flags) {
                Ok((n, _)) => {
                    assert!(n > 0, "the end");
                    got += n;
                }
                Err(errno) => assert_eq!(errno, rustix::io::Errno::AGAIN),
            }
        }
    }
}

/// A port with one link.
struct Node {
    id: NodeId,
    port: Box<dyn Port>,
    link: LinkIndex,
    recorder: Recorder,
}

struct Recorder {
    up: Option<LinkIndex>,
    got: usize,
    into: Piece,
}

impl Sink for Recorder {
    fn up(&mut self, link: LinkIndex, _node: NodeId) {
        self.up = Some(link);
    }

    fn down(&mut self, _link: LinkIndex, why: LinkError) {
        println!("{why}");
        std::process::exit(1);
    }

    fn frame(&mut self, _link: LinkIndex, _head: &[u8], body: &[u8]) {
        self.into.fill(body);
        self.got += 1;
    }

    fn place(&mut self, _link: LinkIndex, _head: &[u8], _len: usize, placement: &mut Placement) {
        placement.push(self.into);
    }

    fn arrived(&mut self, _link: LinkIndex, _head: &[u8]) {
        self.got += 1;
    }
}

impl Node {
    fn open(driver: &str) -> Self {
        let (settings, _) = Settings::from_pairs(std::env::vars());
        let directory = settings.directory(rustix::process::geteuid().as_raw());
        let place = Place { directory, network: settings.network, ..Place::default() };
        let id = NodeId::new(madrigal_sys::process::random()).expect("random");
        let port = madrigal_drivers::message_driver(driver).expect("a driver").open(id, &place).expect("opens");
        Self { id, port, link: LinkIndex(0), recorder: Recorder { up: None, got: 0, into: Piece::EMPTY } }
    }

    fn until_up(&mut self) {
        while self.recorder.up.is_none() {
            self.port.poll(&mut self.recorder);
        }
        self.link = self.recorder.up.expect("is up");
    }

    fn send(&mut self, body: &[u8]) {
        let (head, pieces, mut skip) = ([1u8; 16], [IoSlice::new(body)], 0);
        while let Sent::Part(n) = self.port.send(self.link, &head, &pieces, skip).expect("sends") {
            skip += n;
            if n == 0 {
                self.port.poll(&mut self.recorder);
            }
        }
    }

    fn receive(&mut self, into: &mut [u8]) {
        // SAFETY: `into` is ours until the frame is here, which this waits for.
        self.recorder.into = unsafe { Piece::lend(into.as_mut_ptr(), into.len()) };
        while self.recorder.got == 0 {
            self.port.poll(&mut self.recorder);
        }
        self.recorder.got -= 1;
        self.recorder.into = Piece::EMPTY;
    }
}
