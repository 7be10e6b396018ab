//! A pipeline of three stages, each a process with a port: numbers, their squares, and the sum of these.

use std::error::Error;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use madrigal::ports::{PortAddress, PortType, Ports, ReceivePort};
use madrigal::time;

/// How long a stage waits for the one before it, in nanoseconds.
const PATIENCE: u64 = 30_000_000_000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => numbers(),
        [stage, to] if stage == "squares" => squares(&to.parse()?),
        [stage] if stage == "total" => total(),
        _ => Err("usage: pipeline".into()),
    }
}

/// The first stage, which starts the others, the last one first.
fn numbers() -> Outcome<()> {
    let (mut last, mut printed) = started(&["total"])?;
    let end = line(&mut printed)?;
    let (mut middle, mut address) = started(&["squares", &end])?;
    send("numbers", &line(&mut address)?.parse()?, &(0..100).map(f64::from).collect::<Vec<_>>())?;
    println!("{}", line(&mut printed)?);
    let ended = [middle.wait()?, last.wait()?];
    if ended.iter().all(|status| status.success()) { Ok(()) } else { Err("a stage failed".into()) }
}

fn squares(to: &PortAddress) -> Outcome<()> {
    let (numbers, _) = receive("numbers")?;
    send("squares", to, &numbers.iter().map(|number| number * number).collect::<Vec<_>>())
}

fn total() -> Outcome<()> {
    let (squares, sender) = receive("total")?;
    println!("the sum is {} by {sender}", squares.iter().sum::<f64>());
    Ok(())
}

/// Prints the address of a port of that name; the array that it gets, and who sent it.
fn receive(name: &str) -> Outcome<(Vec<f64>, String)> {
    let (worker, _) = madrigal::worker()?;
    let ports = Ports::open(&worker)?;
    let port: ReceivePort = ports.receive_port(name, &PortType::default())?;
    println!("{}", port.address());
    let mut message = port.receive(Some(time::now_ns() + PATIENCE))?.ok_or("nothing came")?;
    let (array, sender) = (message.read_vec()?, message.from().to_owned());
    message.finish()?;
    Ok((array, sender))
}

/// An array, from a port of that name.
fn send(name: &str, to: &PortAddress, array: &[f64]) -> Outcome<()> {
    let (worker, _) = madrigal::worker()?;
    let ports = Ports::open(&worker)?;
    let mut port = ports.send_port(name, &PortType::default())?;
    port.connect(to, Some(time::now_ns() + PATIENCE))?;
    let mut message = port.message();
    message.write_array(array);
    port.send(&message)?;
    ports.flush(Some(time::now_ns() + PATIENCE));
    Ok(())
}

fn started(stage: &[&str]) -> Outcome<(Child, BufReader<ChildStdout>)> {
    let mut child = Command::new(std::env::current_exe()?).args(stage).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("no output")?;
    Ok((child, BufReader::new(output)))
}

fn line(of: &mut BufReader<ChildStdout>) -> Outcome<String> {
    let mut line = String::new();
    of.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
