//! A parameter server: it sends the parameters to all workers at once, and adds what they send back. `parameters 3` starts three workers.

use std::error::Error;
use std::process::Command;

use madrigal::ports::{PortAddress, Ports, ReadMessage, ReceivePort};
use madrigal::time;

const LENGTH: usize = 10_000;
const ROUNDS: u32 = 5;
/// How long one waits for another, in nanoseconds.
const PATIENCE: u64 = 30_000_000_000;
/// Gradients come from all workers to one port, parameters go from one port to all workers.
const GRADIENTS: &str = "connection=many-to-one";
const PARAMETERS: &str = "connection=one-to-many";

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [workers] => serve(workers.parse()?),
        [rank, address] => work(rank.parse()?, &address.parse()?),
        _ => Err("usage: parameters WORKERS".into()),
    }
}

fn serve(workers: usize) -> Outcome<()> {
    let (worker, _) = madrigal::worker()?;
    let ports = Ports::open(&worker)?;
    let gradients = ports.receive_port("gradients", &GRADIENTS.parse()?)?;
    let mut out = ports.send_port("parameters", &PARAMETERS.parse()?)?;
    let mut children = Vec::new();
    for rank in 1..=workers {
        let mut child = Command::new(std::env::current_exe()?);
        children.push(child.args([rank.to_string(), gradients.address().to_string()]).spawn()?);
    }
    for _ in 0..workers {
        let mut message = received(&gradients)?;
        let to = message.read_text()?.parse()?;
        message.finish()?;
        out.connect(&to, Some(soon()))?;
    }
    let (mut parameters, mut gradient) = (vec![0.0; LENGTH], vec![0.0; LENGTH]);
    for _ in 0..ROUNDS {
        let mut message = out.message();
        message.write_array(&parameters);
        out.send(&message)?;
        for _ in 0..workers {
            let mut message = received(&gradients)?;
            message.read_array(&mut gradient)?;
            message.finish()?;
            parameters.iter_mut().zip(&gradient).for_each(|(parameter, change)| *parameter += change);
        }
    }
    println!("the parameters' sum is {}", parameters.iter().sum::<f64>());
    let ended: Vec<_> = children.iter_mut().map(|child| child.wait()).collect::<Result<_, _>>()?;
    if ended.iter().all(|status| status.success()) { Ok(()) } else { Err("a worker failed".into()) }
}

fn work(rank: u32, server: &PortAddress) -> Outcome<()> {
    let (worker, _) = madrigal::worker()?;
    let ports = Ports::open(&worker)?;
    let parameters = ports.receive_port("parameters", &PARAMETERS.parse()?)?;
    let mut out = ports.send_port("gradients", &GRADIENTS.parse()?)?;
    out.connect(server, Some(soon()))?;
    let mut message = out.message();
    message.write_text(&parameters.address().to_string());
    out.send(&message)?;
    let (gradient, mut room) = (vec![f64::from(rank); LENGTH], vec![0.0; LENGTH]);
    for _ in 0..ROUNDS {
        let mut message = received(&parameters)?;
        message.read_array(&mut room)?;
        message.finish()?;
        let mut message = out.message();
        message.write_array(&gradient);
        out.send(&message)?;
    }
    Ok(())
}

fn received(port: &ReceivePort) -> Outcome<ReadMessage> {
    port.receive(Some(soon()))?.ok_or_else(|| "nothing came".into())
}

fn soon() -> u64 {
    time::now_ns() + PATIENCE
}
