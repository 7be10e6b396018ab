//! Master and workers, as programs for PVM are written: the master starts its workers, gives each a task, and whoever has answered gets the
//! next one. The first item of a message is its tag. `workers 3` starts three.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::Command;

use madrigal::ports::{PortAddress, PortType, Ports, ReadMessage, ReceivePort, SendPort};
use madrigal::time;

/// Tags of messages: a worker is there, and where; a task, by its number; what came of it; there are no more.
const JOIN: u8 = 1;
const TASK: u8 = 2;
const RESULT: u8 = 3;
const STOP: u8 = 4;
/// A task is to count the primes among so many numbers.
const NUMBERS: u64 = 1_000;
const TASKS: u64 = 100;
/// How long one waits for another, in nanoseconds.
const PATIENCE: u64 = 30_000_000_000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [workers] => master(workers.parse()?),
        // As pvm_parent() says it.
        [name, parent] => work(name, &parent.parse()?),
        _ => Err("usage: workers WORKERS".into()),
    }
}

fn master(workers: usize) -> Outcome<()> {
    let (worker, _) = madrigal::worker()?;
    let ports = Ports::open(&worker)?;
    let port = ports.receive_port("master", &PortType::default())?;
    let mut children = Vec::new();
    for number in 1..=workers {
        let mut child = Command::new(std::env::current_exe()?);
        children.push(child.args([format!("worker {number}"), port.address().to_string()]).spawn()?);
    }
    let mut out: BTreeMap<String, SendPort> = BTreeMap::new();
    let (mut primes, mut next, mut busy) = (0, 0, workers);
    while busy > 0 {
        let mut message = received(&port)?;
        let who = message.from().to_owned();
        match message.read()? {
            JOIN => {
                let mut to = ports.send_port("master", &PortType::default())?;
                to.connect(&message.read_text()?.parse()?, Some(soon()))?;
                out.insert(who.clone(), to);
            }
            RESULT => primes += message.read::<u64>()?,
            tag => return Err(format!("{who} sent a message of tag {tag}").into()),
        }
        message.finish()?;
        let to = out.get_mut(&who).ok_or("a result of somebody who has not joined")?;
        let mut answer = to.message();
        if next < TASKS {
            answer.write(TASK);
            answer.write(next);
            next += 1;
        } else {
            answer.write(STOP);
            busy -= 1;
        }
        to.send(&answer)?;
    }
    println!("{primes} primes below {}, counted by {workers} workers", TASKS * NUMBERS);
    ports.flush(Some(soon()));
    let ended: Vec<_> = children.iter_mut().map(|child| child.wait()).collect::<Result<_, _>>()?;
    if ended.iter().all(|status| status.success()) { Ok(()) } else { Err("a worker failed".into()) }
}

fn work(name: &str, parent: &PortAddress) -> Outcome<()> {
    let (worker, _) = madrigal::worker()?;
    let ports = Ports::open(&worker)?;
    let port = ports.receive_port("tasks", &PortType::default())?;
    let mut out = ports.send_port(name, &PortType::default())?;
    out.connect(parent, Some(soon()))?;
    let mut message = out.message();
    message.write(JOIN);
    message.write_text(&port.address().to_string());
    out.send(&message)?;
    loop {
        let mut task = received(&port)?;
        if task.read::<u8>()? == STOP {
            return Ok(task.finish()?);
        }
        let from = NUMBERS * task.read::<u64>()?;
        task.finish()?;
        let mut result = out.message();
        result.write(RESULT);
        result.write((from..from + NUMBERS).filter(|number| is_prime(*number)).count() as u64);
        out.send(&result)?;
    }
}

fn is_prime(number: u64) -> bool {
    number > 1 && (2u64..).take_while(|factor| factor * factor <= number).all(|factor| !number.is_multiple_of(factor))
}

fn received(port: &ReceivePort) -> Outcome<ReadMessage> {
    port.receive(Some(soon()))?.ok_or_else(|| "nothing came".into())
}

fn soon() -> u64 {
    time::now_ns() + PATIENCE
}
