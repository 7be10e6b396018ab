//! The ping-pong over a Circuit of two processes, and over the bare channel of the same driver.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use madrigal_base::config::{Methods, Settings};
use madrigal_base::node::NodeAddress;
use madrigal_message::circuit::{Packs, Unpacks};
use madrigal_message::{Circuit, Worker};
use madrigal_progress::message::MessageDriver;
use madrigal_shm_ring::arena::Arena;
use madrigal_stream::StackedMessages;
use madrigal_sys::{process, time};

use super::channel::Channel;
use super::job::{Job, LONGEST, Peer, ROUNDS, START_NS, line};
use super::report::{PerfError, Report, os};

/// The argument of a started copy begins with this.
pub(super) const ASKED: &str = "circuit ";

/// Measures a ping-pong of `size` bytes (at least 1) over a Circuit by `method`, over the bare channel of that driver (messages that are
/// frames of their own), and the bare line, in turn. Blocks until done; starts this program once more meanwhile.
pub fn circuit(method: &str, size: usize, iterations: u32) -> Result<Report, PerfError> {
    let way = Way::of(method)?;
    let job = Job { size: size.clamp(1, LONGEST), iterations: iterations.max(1) };
    let worker = worker(method)?;
    let endpoint = Circuit::endpoint(&worker)?;
    let me = endpoint.address();
    let mut channel = Channel::open(way.driver(), &settings(&[method]), job.size)?;
    let (arena, fd) = Arena::create().map_err(os)?;
    for _ in 0..ROUNDS {
        arena.take_slot().map_err(os)?;
    }
    let asked = [
        process::own_pid().to_string(),
        fd.as_raw_fd().to_string(),
        arena.id().to_string(),
        job.size.to_string(),
        job.iterations.to_string(),
        method.to_owned(),
        hex(&me.encode(NodeAddress::LONG)),
        hex(&channel.address().encode(NodeAddress::LONG)),
    ];
    let mut peer = Peer::start(&format!("{ASKED}{}", asked.join(" ")))?;
    let other = other(&endpoint, &mut peer)?;
    let mut circuit = Circuit::join(endpoint, &[me, other])?;
    channel.join(None, || peer.is_alive())?;
    let mut report = Report::of(method, job.size, job.iterations);
    for round in 0..ROUNDS {
        let line = line(&arena, round)?;
        report.bare_ns.push(job.ask_bare(line, || peer.is_alive())?);
        if channel.carries() {
            report.channel_ns.push(job.ask_channel(&mut channel)?);
        }
        report.link_ns.push(job.ask_circuit(&mut circuit)?);
    }
    Ok(report)
}

/// The part of the started copy.
pub(super) fn peer(asked: &str) -> Result<(), PerfError> {
    let unclear = || PerfError::Unclear(asked.to_owned());
    let words: Vec<&str> = asked.split(' ').collect();
    let [pid, fd, id, size, iterations, method, to, channel_to] = words[..] else { return Err(unclear()) };
    let number = |text: &str| text.parse::<u64>().map_err(|_| unclear());
    let job = Job { size: (number(size)? as usize).clamp(1, LONGEST), iterations: number(iterations)? as u32 };
    let parent = number(pid)? as u32;
    let arena = Arena::attach_from(parent, number(fd)? as i32, number(id)?).map_err(os)?;
    let born = process::start_time(parent).ok_or(PerfError::Gone)?;
    let (to, channel_to) = (address(to)?, address(channel_to)?);
    let way = Way::of(method)?;
    let worker = worker(method)?;
    let endpoint = Circuit::endpoint(&worker)?;
    let me = endpoint.address();
    introduce(&worker, &to, &me)?;
    let mut circuit = Circuit::join(endpoint, &[to, me])?;
    let mut channel = Channel::open(way.driver(), &settings(&[method]), job.size)?;
    channel.join(Some(&channel_to), || process::alive(parent, born))?;
    for round in 0..ROUNDS {
        job.answer_bare(line(&arena, round)?, || process::alive(parent, born))?;
        if channel.carries() {
            job.answer_channel(&mut channel)?;
        }
        job.answer_circuit(&mut circuit)?;
    }
    Ok(())
}

/// Sends the parent our address, by a Circuit of its own: messages of the one that is measured are counted on both sides.
pub(super) fn introduce(worker: &Arc<Worker>, to: &NodeAddress, me: &NodeAddress) -> Result<(), PerfError> {
    let endpoint = Circuit::endpoint(worker)?;
    let own = endpoint.address();
    let mut circuit = Circuit::join(endpoint, &[to.clone(), own])?;
    let mut packing = circuit.begin_packing(0)?;
    packing.pack_safer(&me.encode(NodeAddress::LONG));
    packing.end()?;
    circuit.flush();
    Ok(())
}

/// The address of the started copy, which it sends first.
pub(super) fn other(endpoint: &madrigal_message::Endpoint, peer: &mut Peer) -> Result<NodeAddress, PerfError> {
    let until = time::now_ns() + START_NS;
    loop {
        if let Some((_, bytes)) = endpoint.take_plain() {
            return NodeAddress::decode(&bytes).map_err(|_| PerfError::Gone);
        }
        if time::now_ns() > until || !peer.is_alive() {
            return Err(PerfError::Gone);
        }
        endpoint.worker().idle();
    }
}

/// What joins two processes.
pub(super) enum Way {
    Driver(&'static dyn MessageDriver),
    Stacked(StackedMessages),
}

impl Way {
    pub(super) fn of(method: &str) -> Result<Self, PerfError> {
        if method.contains('/') {
            let stacked = crate::stacked_messages(method, Some(crate::grid_tls()));
            return stacked.map(Self::Stacked).map_err(|why| PerfError::Stack { stack: method.to_owned(), why });
        }
        let driver = madrigal_drivers::message_driver(method).filter(|_| method != "loopback");
        driver.map(Self::Driver).ok_or_else(|| PerfError::Method { method: method.to_owned() })
    }

    pub(super) fn driver(&self) -> &dyn MessageDriver {
        match self {
            Self::Driver(driver) => *driver,
            Self::Stacked(stacked) => stacked,
        }
    }
}

/// What carries messages by that method, and by no other.
pub(super) fn worker(method: &str) -> Result<Arc<Worker>, PerfError> {
    if !method.contains('/') {
        return Ok(crate::worker_with(&settings(&[method]))?);
    }
    let settings = Settings { message_stack: method.to_owned(), ..settings(&["tcp"]) };
    Ok(crate::stacked_worker(&settings, Some(crate::grid_tls()))?)
}

/// For workers that use these methods only.
pub(super) fn settings(methods: &[&str]) -> Settings {
    let methods = methods.iter().map(|&method| method.to_owned()).collect();
    Settings { methods: Methods::Only(methods), ..Settings::default() }
}

impl Job {
    pub(super) fn ask_circuit(self, circuit: &mut Circuit) -> Result<f64, PerfError> {
        let (mut out, mut back) = (vec![0; self.size], vec![0; self.size]);
        self.timed(|last| {
            out[0] = u8::from(last);
            send(circuit, 1, &out)?;
            receive(circuit, &mut back)
        })
    }

    pub(super) fn answer_circuit(self, circuit: &mut Circuit) -> Result<(), PerfError> {
        let (out, mut back) = (vec![0; self.size], vec![0; self.size]);
        loop {
            receive(circuit, &mut back)?;
            send(circuit, 0, &out)?;
            if back[0] != 0 {
                return Ok(());
            }
        }
    }
}

#[inline]
pub(super) fn send(circuit: &mut Circuit, to: usize, bytes: &[u8]) -> Result<(), PerfError> {
    let mut packing = circuit.begin_packing(to)?;
    packing.pack(bytes, Packs::Cheaper);
    Ok(packing.end()?)
}

#[inline]
pub(super) fn receive(circuit: &mut Circuit, bytes: &mut [u8]) -> Result<(), PerfError> {
    let mut unpacking = circuit.begin_unpacking()?;
    unpacking.unpack(bytes, Unpacks::Cheaper)?;
    Ok(unpacking.end()?)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What [`hex`] made of an address.
pub(super) fn address(text: &str) -> Result<NodeAddress, PerfError> {
    let address = unhex(text).and_then(|bytes| NodeAddress::decode(&bytes).ok());
    address.ok_or_else(|| PerfError::Unclear(text.to_owned()))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(pair).collect()
}
