//! `madrigal doctor`: checks between two hosts of the grid, or of this host, each with what to type where something is wrong.

mod checks;

use std::time::{Duration, Instant};

use madrigal_daemon::client::{self, ClientError};
use madrigal_daemon::{Examination, Runtime};
use serde::Serialize;

use crate::cli::doctor::Doctor;
use crate::out;
use checks::Seen;
pub(crate) use checks::bits;
pub(crate) use checks::{Check, Mark};

/// What is printed as JSON.
#[derive(Serialize)]
struct Answer {
    from: Option<String>,
    to: Option<String>,
    /// The worst of all checks.
    state: Mark,
    checks: Vec<Check>,
}

/// Runs the command. Exit status: 0 all is well, 1 there are warnings, 2 something failed.
pub(crate) fn run(args: &Doctor) -> i32 {
    let runtime = Runtime::find();
    let (from, to) = match args.hosts.as_slice() {
        [] => (None, None),
        [from, to] if from != to => (Some(from.clone()), Some(to.clone())),
        _ => return out::usage("give two different hosts, by their names in the grid, or none for this one"),
    };
    let checks = match (&from, &to) {
        (Some(from), Some(to)) => between(&runtime, from, to),
        _ => own(&runtime),
    };
    let state = checks.iter().map(|check| check.state).max().unwrap_or(Mark::Ok);
    let answer = Answer { from, to, state, checks };
    if args.json {
        out::print_json(&answer);
    } else {
        out::print(&describe(&answer.checks));
    }
    state as i32
}

fn own(runtime: &Runtime) -> Vec<Check> {
    let status = match client::status(runtime) {
        Ok(status) => status,
        Err(error) => return vec![no_daemon(&error)],
    };
    let mut checks = vec![Check::ok("daemon", format!("{}, process {}, up {} s", status.host, status.pid, status.up))];
    match client::examine(runtime, &status.host, None) {
        Ok(seen) => checks.extend(checks::of_host(&seen, true)),
        Err(error) => checks.push(Check::failed("daemon", error.to_string(), "madrigal down; madrigal up")),
    }
    checks.extend(checks::of_peers(&status));
    checks
}

fn between(runtime: &Runtime, from: &str, to: &str) -> Vec<Check> {
    let status = match client::status(runtime) {
        Ok(status) => status,
        Err(error) => return vec![no_daemon(&error)],
    };
    let known: Vec<&str> =
        [status.host.as_str()].into_iter().chain(status.peers.iter().map(|p| p.host.as_str())).collect();
    let unknown: Vec<&str> = [from, to].into_iter().filter(|host| !known.contains(host)).collect();
    if !unknown.is_empty() {
        let text =
            format!("the grid of {} has no host {}; it has {}", status.host, unknown.join(" and "), known.join(", "));
        let fix = "madrigal grid add HOST --site SITE, where the CA is";
        return vec![Check::failed("resolve", text, fix)];
    }
    let (near, far) = (examine(runtime, from, to), examine(runtime, to, from));
    checks::of_pair((from, near), (to, far))
}

/// The report of a host's daemon, with the difference of its clock to ours.
fn examine(runtime: &Runtime, host: &str, to: &str) -> Result<Seen, ClientError> {
    // The clock first, by a question that takes no time.
    let (began, start) = (own_time(), Instant::now());
    let early: Examination = client::examine(runtime, host, None)?;
    let took = start.elapsed();
    let middle = began + i64::try_from(took.as_micros() / 2).unwrap_or(0);
    let examination = client::examine(runtime, host, Some(to))?;
    Ok(Seen { examination, clock_us: early.health.time_us - middle, unsure_us: half(took) })
}

fn half(took: Duration) -> u64 {
    u64::try_from(took.as_micros() / 2).unwrap_or(u64::MAX)
}

fn own_time() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1000)
}

fn no_daemon(error: &ClientError) -> Check {
    Check::failed("daemon", error.to_string(), "madrigal up")
}

/// Checks in words, each with its fix below, if there is one.
pub(crate) fn describe(checks: &[Check]) -> String {
    let mut rows = Vec::new();
    for check in checks {
        rows.push(vec![check.state.word().to_owned(), check.name.clone(), check.text.clone()]);
        rows.extend(check.fix.iter().map(|fix| vec![String::new(), String::new(), format!("-> {fix}")]));
    }
    out::table(&rows, &[])
}
