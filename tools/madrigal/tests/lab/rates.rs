//! What a stream through daemons makes of a line, next to direct TCP on it.

use serde_json::Value;

use super::bed::{Bed, Who, example, possible};
use super::common::bed::until;
use super::grid::{Grid, has};

/// Bits a second that the server of an iperf3 received, whose command is this; once that listens, and is not busy with the last one.
fn rate(command: impl Fn() -> std::process::Command) -> f64 {
    until("a test", || {
        let (status, out, err) = super::bed::run(&mut command());
        if ["server is busy", "Connection refused"].iter().any(|why| out.contains(why)) {
            return None;
        }
        assert_eq!(status, 0, "{out}{err}");
        let told: Value = serde_json::from_str(&out).unwrap();
        Some(told["end"]["sum_received"]["bits_per_second"].as_f64().unwrap())
    })
}

#[test]
fn a_relay_fills_a_line_of_100_megabits() {
    if !possible(Who::Me) || !has("iperf3") {
        return;
    }
    // Short lines, where the ends take longer than the way.
    let text = std::fs::read_to_string(example("two-sites.toml")).unwrap().replace("10ms", "1ms");
    let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(&text, &["--with-daemons"]));
    for host in ["r", "b1"] {
        grid.serve(host, &["iperf3", "-s"]);
    }
    let ask = |to| ["iperf3", "-c", to, "-t", "3", "-O", "1", "-J"];
    // A busy machine disturbs either now and then, but not what a line can carry.
    let ours = || rate(|| grid.wrap("a1", &ask("b1")));
    let direct = || rate(|| grid.command("a1", &ask("203.0.113.2")));
    let ratios: Vec<f64> = (0..3).map(|_| ours() / direct()).collect();
    println!("through a relay against direct TCP on one of the two lines: {ratios:.2?}");
    assert!(ratios.iter().any(|ratio| *ratio > 0.75), "{ratios:?}");
    grid.down();
}
