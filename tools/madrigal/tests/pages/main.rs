//! Every command line that the pages print: typed as it stands there, where that can be in moments, or else checked. `table.rs` says which
//! and why; a line that no row speaks of fails.
//!
//! ```text
//!  lines      the pages, and their lines of code
//!  table      how each is run
//!  labs programs  the scenes that type them     <- terminal, a terminal with a home of its own
//!  checked cargo  what is checked of the others
//! ```

#[allow(dead_code)]
#[path = "../lab/bed.rs"]
mod bed;
mod cargo;
mod checked;
#[path = "../common/mod.rs"]
mod common;
mod labs;
mod lines;
mod programs;
mod table;
mod terminal;

use std::process::ExitCode;

use madrigal_tests::trials;
use table::{Entry, How, TABLE, between_backticks, entries, of_scene};

/// What types the lines of one row or several.
type Scene = fn(&[Entry]);

/// By the names that the table has.
const SCENES: [(&str, Scene); 9] = [
    ("exec", labs::exec),
    ("lab", labs::lab),
    ("lab_with_daemons", labs::lab_with_daemons),
    ("daemon", labs::daemon),
    ("run", labs::run),
    ("installed", programs::installed),
    ("mpi", programs::mpi),
    ("identity", programs::identity),
    ("scripts", programs::scripts),
];

fn main() -> ExitCode {
    let scenes = SCENES.map(|(name, scene)| trials::trial(format!("played::{name}"), move || scene(&of_scene(name))));
    let mut all = vec![
        trials::trial("no_line_escapes", no_line_escapes),
        trials::trial("what_is_only_checked_is_true", what_is_only_checked_is_true),
        trials::trial("what_the_text_names_is_true", what_the_text_names_is_true),
        trials::trial("the_readmes_figures_are_those_of_the_bench", the_readmes_figures_are_those_of_the_bench),
    ];
    all.extend(scenes);
    trials::run_beside(all, 6)
}

fn fail(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Each line has a row, each row a line, and what rows name is there.
fn no_line_escapes() {
    let (all, mut wrong) = entries();
    assert!(all.len() > 100, "only {} lines", all.len());
    for (page, begin, how) in TABLE {
        match how {
            How::Played(name) if !SCENES.iter().any(|scene| scene.0 == *name) => wrong.push(format!("no scene {name}")),
            How::Elsewhere(file) => {
                let text = std::fs::read_to_string(lines::root().join(file)).unwrap_or_default();
                let name = page.rsplit('/').next().unwrap_or(page);
                if !text.contains(name) {
                    wrong.push(format!("{file} does not read {page}, whose lines `{begin}` it is to type"));
                }
            }
            How::Checked(reason) | How::Shown(reason) => assert!(!reason.is_empty()),
            How::Played(_) => {}
        }
    }
    fail(&wrong);
}

fn what_is_only_checked_is_true() {
    trials::need_all(&["make", "python3"]);
    let all = entries().0;
    let checked = all.iter().filter(|entry| matches!(entry.how, How::Checked(_)));
    let told =
        |entry: &Entry| checked::line(entry.line.typed()).err().map(|why| format!("{}: {why}", entry.line.place()));
    fail(&checked.filter_map(told).collect::<Vec<_>>());
}

/// Commands between backticks, too: their programs are there, and accept the words.
fn what_the_text_names_is_true() {
    trials::need_all(&["make", "python3"]);
    let all = between_backticks();
    assert!(all.len() > 50, "only {} commands", all.len());
    let told = |line: &lines::Line| checked::line(line.text()).err().map(|why| format!("{}: {why}", line.place()));
    fail(&all.iter().filter_map(told).collect::<Vec<_>>());
}

/// The figures of README.md stand in the page that `make bench` wrote last.
fn the_readmes_figures_are_those_of_the_bench() {
    let read = |page: &str| std::fs::read_to_string(lines::root().join(page)).unwrap();
    let (readme, page) = (read("README.md"), read("docs/perf.md"));
    let rows =
        readme.lines().skip_while(|line| *line != "## How fast").skip(1).take_while(|line| !line.starts_with("## "));
    let cells = rows.filter(|line| line.starts_with('|')).flat_map(|row| row.split('|').skip(2).map(str::trim));
    let figures: Vec<_> = cells
        .filter_map(|cell| cell.split(' ').next())
        .filter(|word| word.starts_with(|c: char| c.is_ascii_digit()))
        .collect();
    assert!(figures.len() >= 9, "{figures:?}");
    let missing: Vec<_> = figures.iter().filter(|figure| !page.contains(&format!("| {figure} |"))).collect();
    assert!(missing.is_empty(), "not in docs/perf.md: {missing:?}");
}
