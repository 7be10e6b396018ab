//! Ports in several processes: messages there and back, many senders at once, and peers killed at any moment. Every byte is checked.
//!
//! The other processes are this program, started once more with its task in the environment.
//!
//! Features (docs/features.md): A8, D6.
#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::process::{Child, Command, ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};
use madrigal_base::ids::Reach;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::driver::Place;
use madrigal_progress::message::{LinkError, LinkIndex, MessageDriver, Placement, Port, Sent, Sink};
use madrigal_sys::piece::Piece;
use madrigal_sys::process;
use madrigal_testkit::noise::Noise;
use madrigal_testkit::watchdog::Watchdog;
use madrigal_testkit::{place, stacked, tidy};
use rustix::event::{PollFd, PollFlags, poll};

/// The variable with the role of a started copy.
const TASK: &str = "_MADRIGAL_TESTKIT_NODE";
/// Messages there and back.
const ECHOES: u64 = 3_000;
/// Senders at once, and what each sends.
const SENDERS: u64 = 6;
const EACH: u64 = 1_500;
/// Peers killed, one after the other.
const KILLED: u64 = 12;
/// The longest body.
const LONGEST: usize = 60_000;

fn main() -> ExitCode {
    if let Ok(task) = std::env::var(TASK) {
        let words: Vec<&str> = task.split(' ').collect();
        let [driver, directory, to, what, seed] = words[..] else { return ExitCode::FAILURE };
        let driver = stacked::message_driver(driver).expect("is in the table, or a stack");
        let mut node = Node::new(driver, directory);
        let link = node.link(to);
        let seed = seed.parse().expect("a number");
        match what {
            "echo" => node.echo(link),
            "send" => node.send_all(link, seed, EACH),
            _ => node.send_all(link, seed, u64::MAX),
        }
        return ExitCode::SUCCESS;
    }
    let mut trials = Vec::new();
    // Those with `tls` have other certificates in each process.
    let stacks = ["adoc/tcp", "adoc/stripe(3)/tcp"].into_iter().filter_map(stacked::message_driver);
    for driver in madrigal_testkit::own_message_drivers().into_iter().chain(stacks) {
        if driver.facts().reach == Reach::Process {
            continue;
        }
        trials.push(trial(driver, "messages_come_back_as_they_were", echoes));
        trials.push(trial(driver, "many_senders_at_once", many));
        trials.push(trial(driver, "a_killed_peer_is_told_after_its_last_words", killed));
    }
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    tidy();
    conclusion.exit_code()
}

fn trial(driver: &'static dyn MessageDriver, name: &str, run: fn(&'static dyn MessageDriver)) -> Trial {
    let name = format!("{}::{name}", driver.name());
    Trial::test(name.clone(), move || {
        let _dog = Watchdog::set(&name);
        run(driver);
        Ok::<(), Failed>(())
    })
}

/// A process started with a task; killed on drop if it still runs.
struct Other(Child);

impl Other {
    fn start(driver: &dyn MessageDriver, to: &Node, what: &str, seed: u64) -> Self {
        let hex: String = to.address().encode(NodeAddress::LONG).iter().map(|byte| format!("{byte:02x}")).collect();
        let task = format!("{} {} {hex} {what} {seed}", driver.name(), to.directory);
        Self(Command::new("/proc/self/exe").env(TASK, task).spawn().expect("starts"))
    }

    fn succeeds(mut self) {
        assert!(self.0.wait().expect("is our child").success(), "another process failed");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It ended before, or ends now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A head and a body.
type Frame = (Vec<u8>, Vec<u8>);

/// The events of a port, by link.
#[derive(Default)]
struct Recorder {
    up: Vec<LinkIndex>,
    down: HashMap<LinkIndex, LinkError>,
    frames: HashMap<LinkIndex, VecDeque<Frame>>,
    placed: HashMap<LinkIndex, Vec<u8>>,
}

impl Sink for Recorder {
    fn up(&mut self, link: LinkIndex, _: NodeId) {
        self.up.push(link);
    }

    fn down(&mut self, link: LinkIndex, why: LinkError) {
        self.placed.remove(&link);
        assert_eq!(self.down.insert(link, why), None, "told once");
    }

    fn frame(&mut self, link: LinkIndex, head: &[u8], body: &[u8]) {
        self.frames.entry(link).or_default().push_back((head.to_vec(), body.to_vec()));
    }

    fn place(&mut self, link: LinkIndex, _: &[u8], len: usize, placement: &mut Placement) {
        let memory = self.placed.entry(link).insert_entry(vec![0; len]).into_mut();
        // SAFETY: kept, and not accessed by other code, until `arrived` or `down`.
        placement.push(unsafe { Piece::lend(memory.as_mut_ptr(), len) });
    }

    fn arrived(&mut self, link: LinkIndex, head: &[u8]) {
        let body = self.placed.remove(&link).expect("placed before");
        self.frames.entry(link).or_default().push_back((head.to_vec(), body));
    }
}

struct Node {
    id: NodeId,
    directory: String,
    port: Box<dyn Port>,
    recorder: Recorder,
}

impl Node {
    fn new(driver: &dyn MessageDriver, directory: &str) -> Self {
        let id = NodeId::new(process::random()).expect("random");
        let at = Place { directory: directory.to_owned(), ..Place::default() };
        Self {
            id,
            directory: at.directory.clone(),
            port: driver.open(id, &at).expect("opens"),
            recorder: Recorder::default(),
        }
    }

    fn address(&self) -> NodeAddress {
        let mut address = NodeAddress::bare(self.id);
        self.port.publish(&mut address);
        address
    }

    fn link(&mut self, hex: &str) -> LinkIndex {
        let digits = hex.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).expect("hex"));
        let bytes: Vec<u8> = digits.map(|two| u8::from_str_radix(two, 16).expect("hex")).collect();
        let link = self.port.link(&NodeAddress::decode(&bytes).expect("an address")).expect("links");
        self.until(|recorder| recorder.up.contains(&link));
        link
    }

    /// Polls until something holds, asleep where nothing happens.
    fn until(&mut self, mut done: impl FnMut(&mut Recorder) -> bool) {
        while !done(&mut self.recorder) {
            if self.port.poll(&mut self.recorder) == 0 {
                self.sleep();
            }
        }
    }

    fn sleep(&mut self) {
        if self.port.arm() {
            return;
        }
        let fd = self.port.descriptor().expect("frames come from others");
        // A deadline is rare here, and polling too early harms nothing.
        let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        let limit = self.port.deadline().map(|_| &moment);
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], limit).expect("polls");
        self.port.woken();
    }

    /// Sends a frame whole; false: the link is down.
    fn send(&mut self, link: LinkIndex, head: &[u8], body: &[u8]) -> bool {
        let (mut skip, pieces) = (0, [IoSlice::new(body)]);
        loop {
            match self.port.send(link, head, &pieces, skip) {
                Ok(Sent::All) => return true,
                Ok(Sent::Part(n)) => skip += n,
                Err(_) => return false,
            }
            if self.port.poll(&mut self.recorder) == 0 {
                self.sleep();
            }
        }
    }

    /// The next frame of a link; `None`: it is down.
    fn next(&mut self, link: LinkIndex) -> Option<Frame> {
        let waiting = |recorder: &Recorder| recorder.frames.get(&link).is_some_and(|frames| !frames.is_empty());
        self.until(|recorder| waiting(recorder) || recorder.down.contains_key(&link));
        self.recorder.frames.get_mut(&link)?.pop_front()
    }

    fn echo(&mut self, link: LinkIndex) {
        while let Some((head, body)) = self.next(link) {
            if !self.send(link, &head, &body) {
                return;
            }
        }
    }

    /// Sends numbered messages, and waits until the other side closes.
    fn send_all(&mut self, link: LinkIndex, seed: u64, count: u64) {
        for number in 0..count {
            if !self.send(link, &head_of(seed, number), &body_of(seed, number)) {
                return;
            }
        }
        while self.next(link).is_some() {}
    }
}

fn head_of(seed: u64, number: u64) -> Vec<u8> {
    let mut head = [seed.to_le_bytes(), number.to_le_bytes()].concat();
    head.resize(16 + (number % 49) as usize, 0xAA);
    head
}

fn body_of(seed: u64, number: u64) -> Vec<u8> {
    let mut noise = Noise::new(seed << 32 ^ number);
    let len = noise.size(LONGEST) - 1;
    let mut body = Vec::with_capacity(len + 8);
    while body.len() < len {
        body.extend(noise.next_u64().to_le_bytes());
    }
    body.truncate(len);
    body
}

fn echoes(driver: &'static dyn MessageDriver) {
    let mut node = Node::new(driver, &place().directory);
    let other = Other::start(driver, &node, "echo", 0);
    node.until(|recorder| !recorder.up.is_empty());
    let link = node.recorder.up[0];
    for number in 0..ECHOES {
        // Mostly one at a time, sometimes several under way.
        let burst = if number % 7 == 0 { 5 } else { 1 };
        for i in 0..burst {
            assert!(node.send(link, &head_of(i, number), &body_of(i, number)), "the peer lives");
        }
        for i in 0..burst {
            let (head, body) = node.next(link).expect("the peer lives");
            assert!(head == head_of(i, number) && body == body_of(i, number), "message {number} came back");
        }
    }
    drop(node);
    other.succeeds();
}

/// Takes what came over a link, checking that it is what the sender sends next; how many messages.
fn check(node: &mut Node, link: LinkIndex, seeds: &mut HashMap<LinkIndex, u64>, from: u64) -> u64 {
    let mut number = from;
    for (head, body) in node.recorder.frames.get_mut(&link).map(std::mem::take).unwrap_or_default() {
        let seed = u64::from_le_bytes(head[..8].try_into().expect("long enough"));
        assert_eq!(*seeds.entry(link).or_insert(seed), seed, "a link has one sender");
        assert!(head == head_of(seed, number) && body == body_of(seed, number), "message {number} of {seed}");
        number += 1;
    }
    number
}

fn many(driver: &'static dyn MessageDriver) {
    let mut node = Node::new(driver, &place().directory);
    let others: Vec<_> = (0..SENDERS).map(|seed| Other::start(driver, &node, "send", seed)).collect();
    let (mut counts, mut seeds) = (HashMap::new(), HashMap::new());
    while counts.values().sum::<u64>() < SENDERS * EACH {
        if node.port.poll(&mut node.recorder) == 0 {
            node.sleep();
        }
        for link in node.recorder.up.clone() {
            let count = check(&mut node, link, &mut seeds, counts.get(&link).copied().unwrap_or(0));
            counts.insert(link, count);
        }
    }
    assert!(counts.values().all(|count| *count == EACH) && counts.len() == SENDERS as usize);
    assert!(node.recorder.down.is_empty());
    drop(node);
    others.into_iter().for_each(Other::succeeds);
}

fn killed(driver: &'static dyn MessageDriver) {
    let directory = &format!("{}-{}-killed", place().directory, driver.name().replace('/', "-"));
    let mut node = Node::new(driver, directory);
    let witness = Other::start(driver, &node, "echo", 0);
    node.until(|recorder| recorder.up.len() == 1);
    let friend = node.recorder.up[0];
    let mut noise = Noise::new(process::random());
    for round in 0..KILLED {
        let mut victim = Other::start(driver, &node, "flood", round);
        node.until(|recorder| recorder.up.len() == 2 + round as usize);
        let link = node.recorder.up[1 + round as usize];
        let (mut seeds, mut count, after) = (HashMap::new(), 0, noise.below(300) as u64);
        while count < after {
            if node.port.poll(&mut node.recorder) == 0 {
                node.sleep();
            }
            count = check(&mut node, link, &mut seeds, count);
        }
        victim.0.kill().expect("is our child");
        node.until(|recorder| recorder.down.contains_key(&link));
        // In order and whole, to the last one.
        check(&mut node, link, &mut seeds, count);
        assert!(matches!(node.recorder.down[&link], LinkError::Gone { .. }));
        victim.0.wait().expect("is our child");
        assert!(!node.send(link, b"head", b"body"));
        assert!(node.send(friend, b"are you", b"there"));
        assert_eq!(node.next(friend), Some((b"are you".to_vec(), b"there".to_vec())));
    }
    drop(node);
    witness.succeeds();
    // Neither the dead nor we leave anything.
    assert!(!std::path::Path::new(directory).exists(), "{directory}");
}
