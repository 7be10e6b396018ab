//! `madrigal-fuzz-sockets`: the fuzzer's command.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use madrigal_fuzz_sockets::found::Found;
use madrigal_fuzz_sockets::hunt::{self, Hunt, Report};
use madrigal_fuzz_sockets::program::{Program, Side, Theme};
use madrigal_fuzz_sockets::rules::Rule;
use madrigal_fuzz_sockets::run::{Bench, How, Mode, Place, adopt_orphans, stop_on_signals, stopped};
use madrigal_fuzz_sockets::shrink::shrink;
use madrigal_fuzz_sockets::{c, compare, generate};

/// Runs random socket programs plain and under SysWrap, and compares.
///
/// Each seed is a program of some processes and threads. It runs plain, which says what must happen, and then wrapped; every result,
/// errno, byte and readiness must be the same, but for what `--list-rules` names.
#[derive(Parser, Debug)]
#[command(version, after_help = EXAMPLES)]
struct Options {
    /// First seed [default: random].
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds.
    #[arg(long)]
    count: Option<u64>,
    /// How long, in seconds [default: 60 if there is no count].
    #[arg(long)]
    seconds: Option<f64>,
    /// How many at a time [default: as many as there are processors].
    #[arg(long)]
    jobs: Option<usize>,
    /// How soon connections earn their rings (`MADRIGAL_EAGER`).
    #[arg(long, value_delimiter = ',', default_value = "default,eager-first,eager-random")]
    modes: Vec<Mode>,
    /// Which processes are wrapped; `plain`: none, which proves that programs are deterministic.
    #[arg(long, value_delimiter = ',', default_value = "both,client,server")]
    sides: Vec<Side>,
    /// Each seed in every mode and for every side, and not only in one of them that the seed draws.
    #[arg(long)]
    every_way: bool,
    /// One theme only.
    #[arg(long)]
    theme: Option<Theme>,
    /// The library that wraps [default: `MADRIGAL_SYSWRAP`, else target/release/libmadrigal_syswrap.so].
    #[arg(long)]
    library: Option<PathBuf>,
    /// Goes on after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Runs one seed in every way, and tells of each failure.
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seed", "count", "seconds"])]
    replay: Option<u64>,
    /// Makes the program of each failure smaller, and prints its steps.
    #[arg(long)]
    shrink: bool,
    /// Prints the program of each failure, shrunk, as C.
    #[arg(long)]
    c: bool,
    /// Seconds for making a program smaller.
    #[arg(long, default_value_t = 60.0)]
    shrink_seconds: f64,
    /// Runs a failure so often again, to say how often it happens.
    #[arg(long, default_value_t = 4)]
    tries: u32,
    /// Seconds after which what should be done is said to hang.
    #[arg(long, default_value_t = 4.0)]
    patience: f64,
    /// Does not ask the library to compare checksums (`MADRIGAL_CHECK`).
    #[arg(long)]
    no_check: bool,
    /// Lets the programs write to standard error.
    #[arg(long)]
    loud: bool,
    /// Prints failures and the summary as JSON.
    #[arg(long)]
    json: bool,
    /// Prints the steps of the first seed and what a plain run gives; with `--c` its program.
    #[arg(long)]
    show: bool,
    /// Prints what may differ, and why.
    #[arg(long)]
    list_rules: bool,
}

const EXAMPLES: &str = "\
Examples:
  madrigal-fuzz-sockets --seconds 600 --keep-going    ten minutes of random seeds
  madrigal-fuzz-sockets --seed 1 --count 20000        the same 20,000 programs each time
  madrigal-fuzz-sockets --replay 4711 --shrink --c    one seed, made small, as a C program
  madrigal-fuzz-sockets --sides plain --count 1000    no library: nothing may differ

Exit status: 0 nothing differs, 1 something does, 2 it cannot run.";

fn main() -> ExitCode {
    let options = Options::parse();
    if options.list_rules {
        Rule::ALL.iter().for_each(|rule| println!("{rule:?}: {}", rule.reason()));
        return ExitCode::SUCCESS;
    }
    adopt_orphans();
    stop_on_signals();
    let done = if options.show { show(&options).map(|()| true) } else { run(&options) };
    match done {
        Ok(_) if stopped() => ExitCode::from(130),
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("madrigal-fuzz-sockets: {error}");
            ExitCode::from(2)
        }
    }
}

/// Prints a program and what its plain run gives.
fn show(options: &Options) -> std::io::Result<()> {
    let program = generate::program(options.replay.or(options.seed).unwrap_or(1), options.theme);
    let mut bench = Bench::new(place(options)?, 0)?;
    if options.c {
        println!("{}", c::source(&program, &hunt::plain(&mut bench, &program), None));
    } else {
        print(&mut bench, &program);
    }
    Ok(())
}

/// Prints the steps of a program, each with what it gives plain.
fn print(bench: &mut Bench, program: &Program) {
    let run = hunt::plain(bench, program);
    println!("{:?}, {} processes, one processor: {}", program.theme, program.processes.len(), program.one_cpu);
    for (number, (step, entry)) in program.steps.iter().zip(&run.entries).enumerate() {
        let (mark, held) = (if step.together { "+" } else { "" }, if step.held { " held" } else { "" });
        let (actor, fate) = (step.actor, entry.fate);
        println!("{number}{mark}: actor {actor} {:?}{held} -> {fate:?} {}", step.op, compare::result(&entry.seen));
    }
    println!("ends {:?} trouble {:?} cut {:?}", run.ends, run.trouble, run.cut);
}

/// The library: as told, or where `make build` puts it, beside this program or below this folder.
fn library(options: &Options) -> std::io::Result<PathBuf> {
    const FILE: &str = "libmadrigal_syswrap.so";
    let given = options.library.clone().or_else(|| std::env::var_os("MADRIGAL_SYSWRAP").map(PathBuf::from));
    let built = PathBuf::from("target/release").join(FILE);
    let path = match given {
        Some(path) => path,
        None if built.exists() => built,
        None => std::env::current_exe()?.with_file_name(FILE),
    };
    if path.is_file() {
        return path.canonicalize();
    }
    let text = format!("there is no {}: `make build`, or name one by --library or MADRIGAL_SYSWRAP", path.display());
    Err(std::io::Error::other(text))
}

fn place(options: &Options) -> std::io::Result<Place> {
    let play = std::env::current_exe()?.with_file_name("madrigal-fuzz-play");
    if !play.is_file() {
        return Err(std::io::Error::other(format!("there is no {}: build the whole package", play.display())));
    }
    // Where nothing is wrapped no library is needed.
    let needed = options.sides.iter().any(|side| *side != Side::Plain) && !options.show;
    let library = if needed { library(options)? } else { PathBuf::new() };
    Ok(Place { play, library, check: !options.no_check, loud: options.loud, patience: options.patience })
}

fn hunt_of(options: &Options) -> std::io::Result<Hunt> {
    let random =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |now| now.as_micros() as u64);
    let modes = options.modes.iter();
    let replay = options.replay.is_some();
    let seconds = options.seconds.or(if options.count.is_none() && !replay { Some(60.0) } else { None });
    Ok(Hunt {
        place: place(options)?,
        first: options.replay.or(options.seed).unwrap_or(random),
        count: options.replay.map_or(options.count, |_| Some(1)),
        time: seconds.map(Duration::from_secs_f64),
        jobs: if replay { 1 } else { options.jobs.unwrap_or_else(processors).max(1) },
        hows: modes.flat_map(|mode| options.sides.iter().map(|side| How { side: *side, mode: *mode })).collect(),
        every_way: options.every_way || replay,
        theme: options.theme,
        keep_going: options.keep_going || replay,
        tries: options.tries,
    })
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// So many runs, and one of them should have connections in rings.
const ENOUGH: u64 = 200;

fn run(options: &Options) -> std::io::Result<bool> {
    let what = hunt_of(options)?;
    eprintln!("first seed {}, library {}", what.first, what.place.library.display());
    let report = hunt::hunt(&what, &|bench, program, found| tell(options, bench, program, found))?;
    if options.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        summary(&report);
    }
    // Programs that run freely are not checked for this.
    let expected = options.theme.is_none() && options.sides.contains(&Side::Both);
    if report.rings == 0 && report.runs >= ENOUGH && expected && !stopped() {
        return Err(std::io::Error::other(format!(
            "none of {} runs had a connection in a ring, so nothing was tried: `madrigal info` says why",
            report.runs
        )));
    }
    Ok(report.failures == 0 && report.own.is_empty())
}

fn tell(options: &Options, bench: &mut Bench, program: &Program, found: &Found) {
    if options.json {
        println!("{}", serde_json::to_string(found).unwrap_or_default());
    } else {
        describe(program, found);
    }
    if !options.shrink && !options.c || stopped() {
        return;
    }
    let small = shrink(bench, program, found, Duration::from_secs_f64(options.shrink_seconds));
    println!("seed {} in {} steps instead of {}", found.seed, small.steps.len(), program.steps.len());
    if options.shrink {
        print(bench, &small);
    }
    if options.c {
        println!("{}", c::source(&small, &hunt::plain(bench, &small), Some(found)));
    }
}

fn describe(program: &Program, found: &Found) {
    let at = found.failure.step.map_or_else(String::new, |step| {
        let what = &program.steps[step];
        format!("step {step}, actor {} {:?}: ", what.actor, what.op)
    });
    println!(
        "seed {} {:?} {:?} {:?} ({} of {} runs) [{}] {at}{}",
        found.seed,
        program.theme,
        found.side,
        found.mode,
        found.fails,
        found.runs,
        found.failure.name,
        found.failure.how
    );
}

fn summary(report: &Report) {
    println!(
        "{} seeds in {:.0} s ({:.1} a second), {} wrapped runs ({} with rings), {} failures, {} flaky seeds, {} faults of the fuzzer, {} programs cut off",
        report.seeds,
        report.seconds,
        report.seeds as f64 / report.seconds,
        report.runs,
        report.rings,
        report.failures,
        report.flaky.len(),
        report.own.len(),
        report.cut
    );
    for (rule, count) in report.counts.list().filter(|(_, count)| *count > 0) {
        println!("  rule {rule:?}: {count} times");
    }
    for (name, (count, found)) in &report.classes {
        let how = found.failure.how.lines().next().unwrap_or("");
        let (seed, side, mode) = (found.seed, found.side, found.mode);
        println!("  {count} x {name}: seed {seed} {side:?} {mode:?} ({} of {}): {how}", found.fails, found.runs);
    }
    for (what, seeds) in [("flaky", &report.flaky), ("fuzzer's own", &report.own)] {
        if !seeds.is_empty() {
            println!("  {what}: {seeds:?}");
        }
    }
}
