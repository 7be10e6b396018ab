//! `cargo run --release --example one_thread vlink|circuit [ROUNDS]`: what a message of 8 bytes costs in one thread that has both ends, in
//! nanoseconds: sending it and receiving it, by a link over shared memory, or by a Circuit, which the loopback driver carries in one
//! process. The least of many short rounds, so that a busy machine matters little. `bench/c/one_thread.c` is the same by the library for C.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Instant;

use madrigal::circuit::{Packs, Unpacking, Unpacks};
use madrigal::{Circuit, Endpoint, Runtime, Worker};

const SIZE: usize = 8;
/// Messages of a round: less than a time slice.
const MESSAGES: u32 = 1_000;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let way = std::env::args().nth(1).unwrap_or("vlink".to_owned());
    let rounds = std::env::args().nth(2).unwrap_or("2000".to_owned()).parse()?;
    let least = if way == "circuit" { by_circuit(rounds)? } else { by_link(rounds)? };
    writeln!(std::io::stdout(), "{least:.1}")?;
    Ok(())
}

/// The least time of a message in any round.
fn least(rounds: u32, mut message: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..rounds {
        let began = Instant::now();
        for _ in 0..MESSAGES {
            message()?;
        }
        least = least.min(began.elapsed().as_nanos() as f64 / f64::from(MESSAGES));
    }
    Ok(least)
}

fn by_link(rounds: u32) -> Outcome<f64> {
    let runtime = Runtime::new()?;
    let acceptor = runtime.listen(&format!("shm://one-thread-{}", std::process::id()).parse()?)?;
    let client = runtime.connect(acceptor.locator()).wait()?;
    let server = acceptor.accept().wait()?;
    let (mut out, mut back) = (vec![1; SIZE], vec![0; SIZE]);
    least(rounds, || {
        out = client.write(core::mem::take(&mut out)).wait()?;
        let filled = server.read(core::mem::take(&mut back)).wait()?;
        assert_eq!(filled.len, SIZE);
        back = filled.buf;
        Ok(())
    })
}

fn by_circuit(rounds: u32) -> Outcome<f64> {
    let ends = [end()?, end()?];
    let nodes = [ends[0].1.address(), ends[1].1.address()];
    let [(_near_worker, near), (_far_worker, far)] = ends;
    let (mut near, mut far) = (Circuit::join(near, &nodes)?, Circuit::join(far, &nodes)?);
    let (out, mut back) = ([1; SIZE], [0; SIZE]);
    // They meet first, for which both must poll.
    send(&mut near, &out)?;
    loop {
        if let Some(unpacking) = far.try_unpacking()? {
            receive(unpacking, &mut back)?;
            break;
        }
        drop(near.try_unpacking()?);
    }
    least(rounds, || {
        send(&mut near, &out)?;
        receive(far.begin_unpacking()?, &mut back)
    })
}

fn send(circuit: &mut Circuit, bytes: &[u8]) -> Outcome<()> {
    let mut packing = circuit.begin_packing(1)?;
    packing.pack(bytes, Packs::Cheaper);
    Ok(packing.end()?)
}

fn receive<'b>(mut unpacking: Unpacking<'_, 'b>, bytes: &'b mut [u8]) -> Outcome<()> {
    unpacking.unpack(bytes, Unpacks::Cheaper)?;
    Ok(unpacking.end()?)
}

fn end() -> Outcome<(Arc<Worker>, Endpoint)> {
    let (worker, _) = madrigal::worker()?;
    let endpoint = Circuit::endpoint(&worker)?;
    Ok((worker, endpoint))
}
