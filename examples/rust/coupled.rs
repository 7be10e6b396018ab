//! A simulation of two codes: an ocean and the air above it, which exchange a field in every step. `coupled ocean` prints an address;
//! `coupled air ADDRESS`, on the same host or at another site, joins it.

use std::error::Error;

use madrigal::ports::{PortType, Ports, ReadMessage, ReceivePort, SendPort};
use madrigal::time;

const CELLS: usize = 10_000;
const STEPS: u32 = 20;
/// The share of the difference that passes from one to the other in a step.
const EXCHANGE: f64 = 0.25;
/// How long one waits for the other, in nanoseconds.
const PATIENCE: u64 = 30_000_000_000;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (worker, _) = madrigal::worker()?;
    let ports = Ports::open(&worker)?;
    // Both ends say so, or there is no connection.
    let kind = "unit=kelvin".parse()?;
    match &arguments[..] {
        [role] if role == "ocean" => ocean(&ports, &kind),
        [role, address] if role == "air" => air(&ports, &kind, address),
        _ => Err("usage: coupled ocean | air ADDRESS".into()),
    }
}

fn ocean(ports: &Ports, kind: &PortType) -> Outcome<()> {
    let fluxes = ports.receive_port("fluxes", kind)?;
    println!("{}", fluxes.address());
    let mut first = received(&fluxes)?;
    let mut out = connected(ports, kind, &first.read_text()?)?;
    first.finish()?;
    let mut temperature = vec![290.0; CELLS];
    let mut flux = vec![0.0; CELLS];
    for _ in 0..STEPS {
        sent(&mut out, &temperature)?;
        taken(&fluxes, &mut flux)?;
        temperature.iter_mut().zip(&flux).for_each(|(here, flux)| *here += flux);
    }
    println!("the ocean has {:.3} K", mean(&temperature));
    Ok(())
}

fn air(ports: &Ports, kind: &PortType, address: &str) -> Outcome<()> {
    let surface = ports.receive_port("surface", kind)?;
    let mut out = connected(ports, kind, address)?;
    let mut first = out.message();
    first.write_text(&surface.address().to_string());
    out.send(&first)?;
    let mut temperature = vec![278.0; CELLS];
    let mut below = vec![0.0; CELLS];
    for _ in 0..STEPS {
        taken(&surface, &mut below)?;
        let flux: Vec<_> = temperature.iter().zip(&below).map(|(here, below)| EXCHANGE * (here - below)).collect();
        sent(&mut out, &flux)?;
        temperature.iter_mut().zip(&flux).for_each(|(here, flux)| *here -= flux);
    }
    println!("the air has {:.3} K", mean(&temperature));
    Ok(())
}

fn connected(ports: &Ports, kind: &PortType, to: &str) -> Outcome<SendPort> {
    let mut port = ports.send_port("field", kind)?;
    port.connect(&to.parse()?, Some(time::now_ns() + PATIENCE))?;
    Ok(port)
}

fn received(port: &ReceivePort) -> Outcome<ReadMessage> {
    port.receive(Some(time::now_ns() + PATIENCE))?.ok_or_else(|| "the other code says nothing".into())
}

fn sent(port: &mut SendPort, field: &[f64]) -> Outcome<()> {
    let mut message = port.message();
    message.write_array(field);
    port.send(&message)?;
    Ok(())
}

fn taken(port: &ReceivePort, field: &mut [f64]) -> Outcome<()> {
    let mut message = received(port)?;
    message.read_array(field)?;
    Ok(message.finish()?)
}

fn mean(field: &[f64]) -> f64 {
    field.iter().sum::<f64>() / field.len() as f64
}
