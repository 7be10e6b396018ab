//! `cargo run --release --example pingpong [SIZE [ITERATIONS [METHOD]]]`: one-way latency of a VLink, against a bare line.

use std::io::Write as _;

use madrigal::perf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if perf::peer()? {
        return Ok(());
    }
    let word = |n: usize, default: &str| std::env::args().nth(n).unwrap_or(default.to_owned());
    let (size, iterations): (usize, u32) = (word(1, "8").parse()?, word(2, "20000").parse()?);
    for method in word(3, "shm,tcp").split(',') {
        let iterations = if method == "tcp" { iterations / 20 } else { iterations };
        writeln!(std::io::stdout(), "{}", perf::vlink(method, size, iterations)?)?;
    }
    Ok(())
}
