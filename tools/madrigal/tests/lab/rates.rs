//! What a stream through daemons makes of a line, next to direct TCP on it.

use madrigal_tests::trials::need;

use super::bed::{Bed, Who, example, need_lab};
use super::grid::Grid;
use super::programs::iperf;

pub(crate) fn a_relay_fills_a_line_of_100_megabits() {
    need_lab(Who::Me);
    need("iperf3");
    // Short lines, where the ends take longer than the way.
    let text = std::fs::read_to_string(example("two-sites.toml")).unwrap().replace("10ms", "1ms");
    let (mut grid, _) = Grid::on_lab_of_daemons(Bed::up_text_with(&text, &["--with-daemons"]));
    let ask = |to| ["iperf3", "-c", to, "-t", "3", "-O", "1", "-J"];
    // A busy machine disturbs either now and then: the middle one counts.
    let mut ratios: Vec<f64> = (0..5)
        .map(|_| {
            let ours = iperf(&mut grid, "b1", &[], |grid| grid.wrap("a1", &ask("b1")));
            let direct = iperf(&mut grid, "r", &[], |grid| grid.command("a1", &ask("203.0.113.2")));
            let [ours, direct] = [ours, direct].map(|received| received["bits_per_second"].as_f64().unwrap());
            ours / direct
        })
        .collect();
    println!("through a relay against direct TCP on one of the two lines: {ratios:.2?}");
    ratios.sort_by(f64::total_cmp);
    assert!(ratios[ratios.len() / 2] > 0.75, "{ratios:?}");
    grid.down();
}
