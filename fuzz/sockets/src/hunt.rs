//! The hunt: seeds one after the other, each plain once and wrapped in every way that is asked for.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::compare::{self, Verdict};
use crate::found::{self, Failure, Found};
use crate::generate;
use crate::op::Op;
use crate::program::{Program, Side, Theme};
use crate::rng::mix;
use crate::rules::{Counts, Rule};
use crate::run::{Bench, Fate, How, Mode, Place, Transcript, stopped};

/// The options of a hunt.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// Where things are.
    pub place: Place,
    /// The first seed.
    pub first: u64,
    /// How many; none: as many as there is time for.
    pub count: Option<u64>,
    /// How long.
    pub time: Option<Duration>,
    /// How many at a time.
    pub jobs: usize,
    /// Ways to wrap.
    pub hows: Vec<How>,
    /// Every seed in every way, and not only in one that it draws.
    pub every_way: bool,
    /// One theme only.
    pub theme: Option<Theme>,
    /// Whether to go on after a failure.
    pub keep_going: bool,
    /// How often a failure is tried again.
    pub tries: u32,
}

/// How many plain runs a seed gets that failed.
const RARE_RUNS: u32 = 60;

/// What was found.
#[derive(Clone, Default, Debug, Serialize)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Wrapped runs.
    pub runs: u64,
    /// Those of them with connections in rings.
    pub rings: u64,
    /// Failures.
    pub failures: u64,
    /// Seeds whose plain runs differ: they have no result.
    pub flaky: Vec<u64>,
    /// Seeds whose plain runs do not work: the fuzzer's own faults.
    pub own: Vec<u64>,
    /// Programs that were cut off, because plain they wait for ever.
    pub cut: u64,
    /// How often each rule was used.
    pub counts: Counts,
    /// How many failures have which name, and one of each.
    pub classes: BTreeMap<String, (u64, Found)>,
    /// Seconds.
    pub seconds: f64,
}

struct Shared<'a> {
    hunt: &'a Hunt,
    next: AtomicU64,
    stop: AtomicBool,
    begin: Instant,
    report: Mutex<Report>,
    tell: &'a Tell<'a>,
}

/// Is called with a failure, and may use the worker's bench to examine it.
pub type Tell<'a> = dyn Fn(&mut Bench, &Program, &Found) + Sync + 'a;

impl Hunt {
    /// The ways in which a seed is wrapped.
    fn ways(&self, seed: u64) -> Vec<How> {
        if self.every_way || self.hows.is_empty() {
            return self.hows.clone();
        }
        vec![self.hows[(mix(seed) % self.hows.len() as u64) as usize]]
    }
}

/// Hunts; calls `tell` with each failure at once.
pub fn hunt(hunt: &Hunt, tell: &Tell<'_>) -> std::io::Result<Report> {
    let shared = Shared {
        hunt,
        next: AtomicU64::new(hunt.first),
        stop: AtomicBool::new(false),
        begin: Instant::now(),
        report: Mutex::default(),
        tell,
    };
    let benches =
        (0..hunt.jobs).map(|job| Bench::new(hunt.place.clone(), job % cpus())).collect::<Result<Vec<_>, _>>()?;
    std::thread::scope(|scope| {
        for mut bench in benches {
            let shared = &shared;
            scope.spawn(move || {
                while let Some(seed) = shared.seed() {
                    shared.one(&mut bench, seed);
                }
            });
        }
    });
    let mut report = shared.report.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    report.seconds = shared.begin.elapsed().as_secs_f64();
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    Ok(report)
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

impl Shared<'_> {
    /// The next seed, if there is one.
    fn seed(&self) -> Option<u64> {
        if stopped()
            || self.stop.load(Ordering::Relaxed)
            || self.hunt.time.is_some_and(|time| self.begin.elapsed() >= time)
        {
            return None;
        }
        let seed = self.next.fetch_add(1, Ordering::Relaxed);
        self.hunt.count.is_none_or(|count| seed - self.hunt.first < count).then_some(seed)
    }

    fn with<T>(&self, f: impl FnOnce(&mut Report) -> T) -> T {
        f(&mut self.report.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn one(&self, bench: &mut Bench, seed: u64) {
        let program = generate::program(seed, self.hunt.theme);
        let plain = plain(bench, &program);
        if let Some(failure) = found::failure(&program, None, &plain) {
            // Tried again: a machine may be too busy once.
            if found::failure(&program, None, &self::plain(bench, &program)).is_some() && !stopped() {
                eprintln!("\nseed {seed}: {} ({})", failure.how, failure.name);
                self.with(|report| report.own.push(seed));
                return;
            }
        }
        let mut counts = Counts::default();
        let (mut runs, mut rings) = (0, 0);
        for how in self.hunt.ways(seed) {
            if stopped() {
                return;
            }
            runs += 1;
            let failure = wrapped(bench, &program, &plain, how, &mut counts);
            rings += u64::from(bench.rings());
            if let Some(failure) = failure
                && !self.failed(bench, &program, &plain, how, failure)
            {
                break;
            }
        }
        self.with(|report| {
            report.seeds += 1;
            report.runs += runs;
            report.rings += rings;
            report.cut += u64::from(plain.cut.is_some());
            report.counts.add(&counts);
            self.progress(report);
        });
    }

    /// Examines a failure. False: the seed has no result, since its plain runs differ.
    fn failed(&self, bench: &mut Bench, program: &Program, plain: &Transcript, how: How, failure: Failure) -> bool {
        let mut counts = Counts::default();
        // If no process is wrapped, such differences are the subject of the hunt.
        let most = |often: u32| if how.side == Side::Plain { 0 } else { often };
        if self.differs_plain(bench, program, plain, most(2)) {
            return false;
        }
        let (mut fails, mut runs) = (1, 1);
        for _ in 0..self.hunt.tries {
            runs += 1;
            fails += u32::from(wrapped(bench, program, plain, how, &mut counts).is_some());
        }
        // It may happen to a plain program, too, now and then: what a read finds there may hang on who is faster.
        if stopped() || self.differs_plain(bench, program, plain, most(RARE_RUNS)) {
            return false;
        }
        let found = Found { seed: program.seed, side: how.side, mode: how.mode, failure, fails, runs };
        self.with(|report| {
            report.failures += 1;
            let class = report.classes.entry(found.failure.name.clone()).or_insert_with(|| (0, found.clone()));
            class.0 += 1;
            if class.1.fails * found.runs < found.fails * class.1.runs {
                class.1 = found.clone();
            }
        });
        (self.tell)(bench, program, &found);
        if !self.hunt.keep_going {
            self.stop.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Whether one of so many plain runs differs from the first.
    fn differs_plain(&self, bench: &mut Bench, program: &Program, plain: &Transcript, runs: u32) -> bool {
        let how = How { side: Side::Plain, mode: Mode::Default };
        let mut differs = || wrapped(bench, program, plain, how, &mut Counts::default()).is_some();
        let found = (0..runs).any(|_| !stopped() && differs()) && !stopped();
        if found {
            self.with(|report| report.flaky.push(program.seed));
        }
        found
    }

    fn progress(&self, report: &Report) {
        let every = if std::io::stderr().is_terminal() { 20 } else { 2000 };
        if report.seeds.is_multiple_of(every) {
            let pace = report.seeds as f64 / self.begin.elapsed().as_secs_f64();
            let mut out = std::io::stderr().lock();
            let (head, tail) = if every == 20 { ("\r", "   ") } else { ("", "\n") };
            let (seeds, failures, flaky) = (report.seeds, report.failures, report.flaky.len());
            let _ = write!(out, "{head}{seeds} seeds, {pace:.0} a second, {failures} failures, {flaky} flaky{tail}");
        }
    }
}

/// A plain run.
pub fn plain(bench: &mut Bench, program: &Program) -> Transcript {
    let how = How { side: Side::Plain, mode: Mode::Default };
    bench.run(program, how, None, &mut |_, _| Verdict::Same)
}

/// A program without the registrations that it did not make: the last registration that was made counts.
fn as_made(program: &Program, plain: &Transcript) -> Program {
    let mut made = program.clone();
    for (step, entry) in made.steps.iter_mut().zip(&plain.entries) {
        if entry.fate == Fate::Skipped && matches!(step.op, Op::EpollCtl { .. }) {
            step.op = Op::Sleep { us: 0 };
        }
    }
    made
}

/// A wrapped run beside a plain one; what is wrong with it, if anything.
pub fn wrapped(
    bench: &mut Bench,
    program: &Program,
    plain: &Transcript,
    how: How,
    counts: &mut Counts,
) -> Option<Failure> {
    let made = as_made(program, plain);
    let mut judge =
        |number: usize, entry: &crate::run::Entry| compare::step(&made, number, &plain.entries[number], entry, counts);
    let run = bench.run(program, how, Some(plain), &mut judge);
    if plain.restless.or(run.restless).is_some() {
        counts.count(Rule::HeldBack);
    }
    found::failure(program, Some(plain), &run)
}
