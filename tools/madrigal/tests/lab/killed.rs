//! Daemons that are killed under an MPI job between two sites: the job goes on by another relay, or gets an error soon.
//!
//! Features (docs/features.md): B4, B18, L7.

use std::time::Instant;

use super::bed::{Bed, DAEMON_LOG, Who, need_lab};
use super::common::bed::until;
use super::cuts::{Program, TWO_WAYS};
use super::jobs::{Mpi, Site};

/// The exit status of timeout(1) for a command that it had to end.
const TIMED_OUT: i32 = 124;

/// A job of two ranks that goes round after round.
struct Job<'a> {
    bed: &'a Bed,
    end: String,
    program: Program,
}

impl<'a> Job<'a> {
    fn start(bed: &'a Bed, site: &Site, mpi: &Mpi) -> Self {
        let end = site.path("end");
        let _ = std::fs::remove_file(&end);
        let words = site.words(mpi, &["a1", "b1"], &[], ["rounds", &end]);
        let program = Program::start(bed, "a1", &words.iter().map(String::as_str).collect::<Vec<_>>());
        Self { bed, end, program }
    }

    /// Waits for so many rounds more.
    #[track_caller]
    fn goes_on(&mut self, rounds: u64) {
        let mut last = None;
        for _ in 0..rounds {
            let line = self.program.line();
            let round = line.strip_prefix("round ").and_then(|round| round.parse::<u64>().ok());
            assert!(
                round.is_some() && last.is_none_or(|last| round == Some(last + 1)),
                "{line}, after {last:?}\n{}",
                self.logs()
            );
            last = round;
        }
    }

    fn logs(&self) -> String {
        let hosts = ["a1", "b1", "r1", "r2"];
        hosts.map(|host| format!("--- {host}\n{}", self.bed.exec(host, &["sh", "-c", DAEMON_LOG]).1)).concat()
    }

    /// It ends well.
    fn ends(mut self) {
        std::fs::write(&self.end, "").unwrap();
        let last = until("an end", || Some(self.program.line()).filter(|line| !line.starts_with("round ")));
        assert_eq!(last, "whole");
        assert!(self.program.0.wait().unwrap().success());
    }

    /// It fails by itself, with a message, and long before the time limit of its launcher.
    fn fails(mut self) {
        while self.program.line().starts_with("round ") {}
        let status = self.program.0.wait().unwrap();
        assert!(!status.success() && status.code() != Some(TIMED_OUT), "{status}");
    }
}

fn kill(bed: &Bed, host: &str) {
    let (status, out, err) = bed.exec(host, &[&bed.home.exe(), "status", "--json"]);
    assert_eq!(status, 0, "{err}");
    let status: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(bed.exec(host, &["kill", "-9", &status["pid"].to_string()]).0, 0);
}

/// A daemon again. The one that was killed may take a moment to end, and is up until then.
fn up(bed: &Bed, host: &str) {
    until("up", || (bed.exec(host, &[&bed.home.exe(), "up"]).0 == 0).then_some(()));
}

/// Waits until so many ways can be used from a1 to b1 and back.
fn ways(bed: &Bed, count: usize) {
    for [from, to] in [["a1", "b1"], ["b1", "a1"]] {
        until("ways", || {
            let (_, out, _) = bed.exec(from, &[&bed.home.exe(), "why", from, to, "--json"]);
            let why: serde_json::Value = serde_json::from_str(&out).ok()?;
            (why["ways"].as_array()?.iter().filter(|way| way["usable"] == true).count() == count).then_some(())
        });
    }
}

pub(crate) fn a_job_outlives_its_relay_while_there_is_another_one() {
    need_lab(Who::Me);
    let bed = Bed::up_text_with(TWO_WAYS, &["--with-daemons"]).0;
    let site = Site::new(&bed, &["a1", "b1"]);
    for mpi in site.mpis() {
        ways(&bed, 2);
        let mut job = Job::start(&bed, &site, &mpi);
        job.goes_on(10);
        for relay in ["r1", "r2"] {
            kill(&bed, relay);
            let began = Instant::now();
            job.goes_on(20);
            println!("{}: 20 rounds in the {:?} after {relay} was killed", mpi.launcher, began.elapsed());
            up(&bed, relay);
            ways(&bed, 2);
        }
        // One that only falls silent: between it and a1 nothing passes any more.
        bed.lab(&["cut", "an"]);
        job.goes_on(20);
        bed.lab(&["heal", "an"]);
        ways(&bed, 2);
        bed.lab(&["cut", "as"]);
        job.goes_on(20);
        bed.lab(&["heal", "as"]);
        job.ends();
        // While it starts.
        let mut job = Job::start(&bed, &site, &mpi);
        kill(&bed, "r1");
        job.goes_on(20);
        job.ends();
        up(&bed, "r1");
    }
    site.end();
    bed.down();
}

pub(crate) fn a_job_without_a_relay_or_without_a_daemon_hears_of_it() {
    need_lab(Who::Me);
    let bed = Bed::up_text_with(TWO_WAYS, &["--with-daemons"]).0;
    let site = Site::new(&bed, &["a1", "b1"]);
    for mpi in site.mpis() {
        for last in [&["r1", "r2"][..], &["b1"], &["a1"]] {
            ways(&bed, 2);
            let mut job = Job::start(&bed, &site, &mpi);
            job.goes_on(10);
            last.iter().for_each(|host| kill(&bed, host));
            let began = Instant::now();
            job.fails();
            println!("{}: an error {:?} after the daemon of {last:?} was killed", mpi.launcher, began.elapsed());
            last.iter().for_each(|host| up(&bed, host));
        }
    }
    site.end();
    bed.down();
}
