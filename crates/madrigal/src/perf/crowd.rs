//! What idle peers cost: the ping-pong over Circuits of two pairs of workers in the same two processes, in turn. One pair has no other
//! peers; each worker of the other one is linked by TCP with many that sleep, all of them in a third process.

use core::fmt;
use std::os::fd::AsRawFd as _;

use madrigal_base::node::NodeAddress;
use madrigal_message::endpoint::{PeerId, PostError, Send};
use madrigal_message::{Circuit, Endpoint, Worker};
use madrigal_sys::{process, raw, time};
use rustix::event::epoll;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::circuit::{Way, address, hex, introduce, other, receive, send, settings};
use super::job::{Job, LONGEST, Peer, START_NS};
use super::report::{PerfError, best, median, os, steady};

/// The argument of the started copy of a pair begins with this, ...
pub(super) const ASKED: &str = "crowd ";
/// ... and that of the one that has the idle workers with this.
pub(super) const IDLE: &str = "idle ";
/// How often all processes are started anew: where a pair's lines lie in the cache is a matter of luck.
const SETS: usize = 25;
/// Rounds of each pair every time.
const ROUNDS: usize = 6;

/// What was measured: one-way nanoseconds of a message, half of a ping-pong.
#[derive(Clone, PartialEq, Debug)]
pub struct Crowd {
    /// The driver.
    pub method: String,
    /// Bytes of a message.
    pub size: usize,
    /// Ping-pongs a round, at most.
    pub iterations: u32,
    /// Idle peers that each of the two was linked with by TCP and had exchanged messages with, as its worker counted them in the end.
    pub peers: usize,
    /// One round each, of the pair without other peers.
    pub alone_ns: Vec<f64>,
    /// The round beside it, of the pair that has those peers.
    pub among_ns: Vec<f64>,
}

impl Crowd {
    /// Median of the pair without other peers.
    pub fn alone(&self) -> f64 {
        median(&self.alone_ns)
    }

    /// Median of the pair with idle peers.
    pub fn among(&self) -> f64 {
        median(&self.among_ns)
    }

    /// How much longer a message takes with idle peers: the median over pairs of adjacent rounds.
    pub fn ratio(&self) -> f64 {
        let ratios: Vec<_> = self.among_ns.iter().zip(&self.alone_ns).map(|(among, alone)| among / alone).collect();
        median(&ratios)
    }

    /// Whether both processes had a processor of their own nearly all the time.
    pub fn is_quiet(&self) -> bool {
        steady(&self.alone_ns) && steady(&self.among_ns)
    }
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} B: {:.1} ns one way (best {:.1}) with {} idle peers by tcp; {:.1} ns (best {:.1}) with none; ratio {:.3} ({} \
             rounds of {} each)",
            self.method,
            self.size,
            self.among(),
            best(&self.among_ns),
            self.peers,
            self.alone(),
            best(&self.alone_ns),
            self.ratio(),
            self.alone_ns.len(),
            self.iterations,
        )?;
        if self.is_quiet() { Ok(()) } else { f.write_str("; the machine was busy") }
    }
}

/// Measures a ping-pong of `size` bytes (at least 1) over a Circuit by `method`, by two workers with `peers` idle peers each and by two
/// with none, in turn. Blocks until done; starts this program some more times meanwhile.
pub fn crowd(method: &str, size: usize, iterations: u32, peers: usize) -> Result<Crowd, PerfError> {
    let job = Job { size: size.clamp(1, LONGEST), iterations: iterations.max(1) };
    let (size, iterations) = (job.size, job.iterations);
    match Way::of(method)? {
        Way::Driver(_) => {}
        Way::Stacked(_) => {
            let why = "peers that are idle are connected by TCP alone".to_owned();
            return Err(PerfError::Stack { stack: method.to_owned(), why });
        }
    }
    let mut crowd =
        Crowd { method: method.to_owned(), size, iterations, peers, alone_ns: Vec::new(), among_ns: Vec::new() };
    for set in 0..SETS {
        // Another pair is opened first each time.
        job.ask_pairs(set % 2, peers, &mut crowd)?;
    }
    Ok(crowd)
}

impl Job {
    /// Rounds of two pairs, the one of that number among idle peers.
    fn ask_pairs(self, among: usize, peers: usize, crowd: &mut Crowd) -> Result<(), PerfError> {
        let method = crowd.method.as_str();
        let ends = open(method)?;
        let registry = Circuit::endpoint(ends[among].worker())?;
        let addresses = [&ends[0], &ends[1], &registry].map(|end| hex(&end.address().encode(NodeAddress::LONG)));
        let numbers = [process::own_pid() as usize, self.size, self.iterations as usize, among, peers];
        let asked = [numbers.map(|number| number.to_string()).join(" "), method.to_owned(), addresses.join(" ")];
        let mut peer = Peer::start(&format!("{ASKED}{}", asked.join(" ")))?;
        let others = [other(&ends[0], &mut peer)?, other(&ends[1], &mut peer)?];
        let there = hex(&other(&registry, &mut peer)?.encode(NodeAddress::LONG));
        let mut idle = Peer::start(&format!("{IDLE}{peers} {} {there}", addresses[2]))?;
        welcome(&registry, peers, || idle.is_alive())?;
        let mut pairs = join(ends, |me, pair| [me, others[pair].clone()])?;
        for round in 0..ROUNDS {
            let mut ns = [0.0; 2];
            for pair in order(round) {
                ns[pair] = self.ask_circuit(&mut pairs[pair])?;
            }
            crowd.among_ns.push(ns[among]);
            crowd.alone_ns.push(ns[1 - among]);
        }
        let mut count = [0; 8];
        receive(&mut pairs[among], &mut count)?;
        check_path(registry.worker(), &others[among], method)?;
        let up = linked(registry.worker(), &others[among]).min(u64::from_le_bytes(count) as usize);
        crowd.peers = crowd.peers.min(up);
        if up < peers { Err(PerfError::Peers { up, wanted: peers }) } else { Ok(()) }
    }
}

/// The part of the started copy that has the other ends of both pairs.
pub(super) fn peer(asked: &str) -> Result<(), PerfError> {
    let unclear = || PerfError::Unclear(asked.to_owned());
    let words: Vec<&str> = asked.split(' ').collect();
    let [pid, size, iterations, among, peers, method, first, second, registry] = words[..] else {
        return Err(unclear());
    };
    let number = |text: &str| text.parse::<usize>().map_err(|_| unclear());
    let job = Job { size: number(size)?.clamp(1, LONGEST), iterations: number(iterations)? as u32 };
    let (parent, among, peers) = (number(pid)? as u32, number(among)? & 1, number(peers)?);
    let (to, registry) = ([address(first)?, address(second)?], address(registry)?);
    let born = process::start_time(parent).ok_or(PerfError::Gone)?;
    let ends = open(method)?;
    for (end, to) in ends.iter().zip(&to) {
        introduce(end.worker(), to, &end.address())?;
    }
    let own = Circuit::endpoint(ends[among].worker())?;
    introduce(own.worker(), &registry, &own.address())?;
    welcome(&own, peers, || process::alive(parent, born))?;
    let mut pairs = join(ends, |me, pair| [to[pair].clone(), me])?;
    for round in 0..ROUNDS {
        for pair in order(round) {
            job.answer_circuit(&mut pairs[pair])?;
            pairs[pair].flush();
        }
    }
    let count = linked(own.worker(), &to[among]) as u64;
    send(&mut pairs[among], 0, &count.to_le_bytes())
}

/// Which pair is first, and which second: the second is first in the next round.
fn order(round: usize) -> [usize; 2] {
    [round % 2, 1 - round % 2]
}

/// Ends of both pairs. Both may use TCP; what carries their own messages is nearer, if that is another method.
fn open(method: &str) -> Result<[Endpoint; 2], PerfError> {
    let end = || Ok::<_, PerfError>(Circuit::endpoint(&crate::worker_with(&settings(&[method, "tcp"]))?)?);
    Ok([end()?, end()?])
}

fn join(
    ends: [Endpoint; 2],
    group: impl Fn(NodeAddress, usize) -> [NodeAddress; 2],
) -> Result<[Circuit; 2], PerfError> {
    let groups = [group(ends[0].address(), 0), group(ends[1].address(), 1)];
    let [first, second] = ends;
    Ok([Circuit::join(first, &groups[0])?, Circuit::join(second, &groups[1])?])
}

/// Answers the first message of every idle peer.
fn welcome(registry: &Endpoint, peers: usize, mut alive: impl FnMut() -> bool) -> Result<(), PerfError> {
    let until = time::now_ns() + START_NS;
    let mut up = 0;
    while up < peers {
        if let Some((from, _)) = registry.take_plain() {
            // A peer that cannot be answered is gone again, and so are all of them soon.
            up += usize::from(greet(registry, from).is_ok());
        } else if time::now_ns() > until || !alive() {
            return Err(PerfError::Peers { up, wanted: peers });
        } else {
            registry.worker().idle();
        }
    }
    registry.worker().flush(Some(until));
    Ok(())
}

/// Sends an empty message.
fn greet(from: &Endpoint, to: PeerId) -> Result<(), PerfError> {
    let empty = Send { to, tag: None, data: None, parts: &[], token: 0, inject: true, delivery: false };
    loop {
        match from.send(&empty) {
            Ok(_) => return Ok(()),
            Err(PostError::Again) => drop(from.worker().progress()),
            Err(_) => return Err(PerfError::Gone),
        }
    }
}

/// Whether that method is how the others of a pair are reached; TCP would be, if it fails.
fn check_path(worker: &Worker, other: &NodeAddress, method: &str) -> Result<(), PerfError> {
    let reached = worker.reached();
    let so =
        reached.iter().any(|node| node.node == other.id && node.path.as_ref().is_some_and(|path| path.0 == method));
    if so { Ok(()) } else { Err(PerfError::Method { method: method.to_owned() }) }
}

/// How many other nodes a worker is linked with by TCP, with traffic in both directions.
fn linked(worker: &Worker, but: &NodeAddress) -> usize {
    let reached = worker.reached();
    let by_tcp = reached.iter().filter(|node| node.node != but.id && matches!(node.path, Some(("tcp", _))));
    by_tcp.filter(|node| node.sent > 0 && node.received > 0).count()
}

/// The part of the started copy that has the idle workers: it is killed in the end.
pub(super) fn idle(asked: &str) -> Result<(), PerfError> {
    let unclear = || PerfError::Unclear(asked.to_owned());
    let words: Vec<&str> = asked.split(' ').collect();
    let [count, here, there] = words[..] else { return Err(unclear()) };
    let (count, registries) = (count.parse::<usize>().map_err(|_| unclear())?, [address(here)?, address(there)?]);
    // A worker takes half a dozen descriptors.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os)?;
    let mut workers = Vec::new();
    for _ in 0..count {
        let endpoint = Circuit::endpoint(&crate::worker_with(&settings(&["tcp"]))?)?;
        for fd in endpoint.worker().descriptors() {
            raw::epoll_ctl(watch.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, epoll::EventFlags::IN.bits(), 0).map_err(os)?;
        }
        for registry in &registries {
            greet(&endpoint, endpoint.peer(registry))?;
        }
        workers.push(endpoint);
    }
    loop {
        let mut until = Some(u64::MAX);
        for endpoint in &workers {
            while endpoint.take_plain().is_some() {}
            until = until.and_then(|until| Some(until.min(endpoint.worker().arm()?)));
        }
        if let Some(until) = until {
            raw::wait_readable(&[watch.as_raw_fd()], until.saturating_sub(time::now_ns()));
        }
        workers.iter().for_each(|endpoint| endpoint.worker().woken());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_beside_each_other_are_compared() {
        let (alone_ns, among_ns) = (vec![100.0, 200.0, 120.0, 90.0, 100.0], vec![101.0, 202.0, 100.0, 99.0, 101.0]);
        let crowd = Crowd { method: "shm".into(), size: 8, iterations: 50, peers: 3, alone_ns, among_ns };
        assert_eq!((crowd.alone(), crowd.among(), crowd.ratio()), (100.0, 101.0, 1.01));
        let expected = "101.0 ns one way (best 99.0) with 3 idle peers by tcp; 100.0 ns (best 90.0) with none; ratio 1.010 (5 rounds";
        assert!(crowd.to_string().contains(expected), "{crowd}");
    }
}
