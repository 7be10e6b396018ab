//! The ping-pong of two send ports and two receive ports of two processes, and that over a Circuit of theirs.

use core::fmt;

use madrigal_base::node::NodeAddress;
use madrigal_message::Circuit;
use madrigal_message::ports::{PortAddress, PortType, Ports, ReadMessage, ReceivePort, SendPort};
use madrigal_sys::{process, time};

use super::circuit::{Way, address, hex, introduce, other, worker};
use super::job::{Job, LONGEST, Peer, ROUNDS, START_NS};
use super::report::{PerfError, best, median, steady};

/// The argument of a started copy begins with this.
pub(super) const ASKED: &str = "port ";

/// What was measured: one-way nanoseconds of a message, half of a ping-pong; one round each.
#[derive(Clone, PartialEq, Debug)]
pub struct PortReport {
    /// The driver.
    pub method: String,
    /// Bytes of a message: one array of them.
    pub size: usize,
    /// Ping-pongs a round, at most.
    pub iterations: u32,
    /// Between ports.
    pub port_ns: Vec<f64>,
    /// Over a Circuit.
    pub circuit_ns: Vec<f64>,
}

impl PortReport {
    /// Median of ports.
    pub fn port(&self) -> f64 {
        median(&self.port_ns)
    }

    /// Median of the Circuit.
    pub fn circuit(&self) -> f64 {
        median(&self.circuit_ns)
    }

    /// How many times as long a message of ports takes.
    pub fn ratio(&self) -> f64 {
        self.port() / self.circuit()
    }
}

impl fmt::Display for PortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} B: {:.0} ns one way between ports (best {:.0}); by a Circuit {:.0} ns (best {:.0}); ratio {:.2} ({} rounds of {})",
            self.method,
            self.size,
            self.port(),
            best(&self.port_ns),
            self.circuit(),
            best(&self.circuit_ns),
            self.ratio(),
            self.port_ns.len(),
            self.iterations,
        )?;
        let is_quiet = steady(&self.port_ns) && steady(&self.circuit_ns);
        if is_quiet { Ok(()) } else { f.write_str("; the machine was busy") }
    }
}

/// Measures a ping-pong of `size` bytes (at least 1) between ports by `method`, and over a Circuit, in turn. Blocks until done; starts this
/// program once more meanwhile.
pub fn port(method: &str, size: usize, iterations: u32) -> Result<PortReport, PerfError> {
    Way::of(method)?;
    let job = Job { size: size.clamp(1, LONGEST), iterations: iterations.max(1) };
    let worker = worker(method)?;
    let endpoint = Circuit::endpoint(&worker)?;
    let me = endpoint.address();
    let ports = Ports::open(&worker)?;
    let answers = ports.receive_port("answers", &PortType::default())?;
    let asked = [
        process::own_pid().to_string(),
        job.size.to_string(),
        job.iterations.to_string(),
        method.to_owned(),
        hex(&me.encode(NodeAddress::LONG)),
        answers.address().to_string(),
    ];
    let mut peer = Peer::start(&format!("{ASKED}{}", asked.join(" ")))?;
    let other = other(&endpoint, &mut peer)?;
    let mut circuit = Circuit::join(endpoint, &[me, other])?;
    // The first answer says where the questions go.
    let first = received(&answers)?.read_text()?;
    let mut questions = ports.send_port("questions", &PortType::default())?;
    questions.connect(&parsed(&first)?, soon())?;
    let (port_ns, circuit_ns) = (Vec::new(), Vec::new());
    let mut report =
        PortReport { method: method.to_owned(), size: job.size, iterations: job.iterations, port_ns, circuit_ns };
    for _ in 0..ROUNDS {
        report.circuit_ns.push(job.ask_circuit(&mut circuit)?);
        report.port_ns.push(job.ask_port(&mut questions, &answers)?);
    }
    Ok(report)
}

/// The part of the started copy.
pub(super) fn peer(asked: &str) -> Result<(), PerfError> {
    let unclear = || PerfError::Unclear(asked.to_owned());
    let words: Vec<&str> = asked.split(' ').collect();
    let [_, size, iterations, method, to, answers] = words[..] else { return Err(unclear()) };
    let number = |text: &str| text.parse::<u32>().map_err(|_| unclear());
    let job = Job { size: (number(size)? as usize).clamp(1, LONGEST), iterations: number(iterations)? };
    let to = address(to)?;
    let worker = worker(method)?;
    let endpoint = Circuit::endpoint(&worker)?;
    let me = endpoint.address();
    introduce(&worker, &to, &me)?;
    let mut circuit = Circuit::join(endpoint, &[to, me])?;
    let ports = Ports::open(&worker)?;
    let questions = ports.receive_port("questions", &PortType::default())?;
    let mut out = ports.send_port("answers", &PortType::default())?;
    out.connect(&parsed(answers)?, soon())?;
    let mut first = out.message();
    first.write_text(&questions.address().to_string());
    out.send(&first)?;
    // The other end connects before it asks.
    while questions.connected().is_empty() {
        ports.turn(Some(time::now_ns() + 1_000_000));
    }
    for _ in 0..ROUNDS {
        job.answer_circuit(&mut circuit)?;
        job.answer_port(&mut out, &questions)?;
    }
    Ok(())
}

impl Job {
    fn ask_port(self, out: &mut SendPort, back: &ReceivePort) -> Result<f64, PerfError> {
        let (mut bytes, mut room) = (vec![0u8; self.size], vec![0u8; self.size]);
        self.timed(|last| {
            bytes[0] = u8::from(last);
            send(out, &bytes)?;
            receive(back, &mut room)
        })
    }

    fn answer_port(self, out: &mut SendPort, questions: &ReceivePort) -> Result<(), PerfError> {
        let (bytes, mut room) = (vec![0u8; self.size], vec![0u8; self.size]);
        loop {
            receive(questions, &mut room)?;
            send(out, &bytes)?;
            if room[0] != 0 {
                return Ok(());
            }
        }
    }
}

#[inline]
fn send(out: &mut SendPort, bytes: &[u8]) -> Result<(), PerfError> {
    let mut message = out.message();
    message.write_array(bytes);
    out.send(&message)?;
    Ok(())
}

#[inline]
fn receive(port: &ReceivePort, room: &mut [u8]) -> Result<(), PerfError> {
    Ok(received(port)?.read_array(room)?)
}

fn received(port: &ReceivePort) -> Result<ReadMessage, PerfError> {
    port.receive(soon())?.ok_or(PerfError::Gone)
}

fn parsed(address: &str) -> Result<PortAddress, PerfError> {
    address.parse().map_err(|_| PerfError::Unclear(address.to_owned()))
}

fn soon() -> Option<u64> {
    Some(time::now_ns() + START_NS)
}
