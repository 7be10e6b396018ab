//! `madrigal perf A B`: what links of several stacks between two hosts of the grid carry, one after the other.

use madrigal_daemon::{Runtime, TrialReport, WayStatus, client};
use serde::Serialize;

use crate::{cli, doctor, out};

/// What is printed as JSON.
#[derive(Serialize)]
struct Table<'a> {
    from: &'a str,
    to: &'a str,
    /// The way of connections between them, and what its first link is made of.
    way: Option<&'a str>,
    stack: Option<&'a str>,
    trials: &'a [TrialReport],
}

/// Runs the command.
pub(super) fn run(args: &cli::Perf) -> i32 {
    let [from, to] = args.hosts.as_slice() else { return out::usage("give two hosts of the grid") };
    if from == to {
        return out::usage("give two different hosts, by their names in the grid");
    }
    let runtime = Runtime::find();
    let why = match client::why(&runtime, from, to, None) {
        Ok(why) => why,
        Err(error) => return out::fail(&error.to_string()),
    };
    let used = why.ways.iter().find(|way| way.chosen);
    let stacks = if args.stack.is_empty() { usual(used) } else { args.stack.clone() };
    let mut trials = Vec::new();
    for (at, stack) in stacks.iter().enumerate() {
        if !args.json {
            out::report(&format!("{} of {}: {stack}, {} s", at + 1, stacks.len(), args.seconds));
        }
        let text = stack.contains("adoc");
        match client::try_stack(&runtime, (from, to), stack, text, args.seconds * 1000) {
            Ok(report) => trials.push(report),
            Err(error) => return out::fail(&error.to_string()),
        }
    }
    let (way, stack) = (why.chosen.as_deref(), used.and_then(|way| way.stack.as_deref()));
    if args.json {
        out::print_json(&Table { from, to, way, stack, trials: &trials });
    } else {
        out::print(&describe(&format!("{from} to {to}: {}", way.unwrap_or("no way")), stack, &trials));
    }
    if trials.iter().all(|trial| trial.error.is_none()) { out::FOUND } else { out::FAILED }
}

/// One connection, several, compressed, and what the link of the way has.
fn usual(used: Option<&WayStatus>) -> Vec<String> {
    let base = if used.and_then(|way| way.tls) == Some(false) { "tcp" } else { "tls/tcp" };
    let mut stacks = vec![base.to_owned(), format!("stripe(32)/{base}"), format!("adoc/{base}")];
    stacks.extend(used.and_then(|way| way.stack.clone()).filter(|stack| !stacks.contains(stack)));
    stacks
}

fn describe(title: &str, used: Option<&str>, trials: &[TrialReport]) -> String {
    let mut rows =
        vec![["", "stack", "carried", "ratio", "connections", "control", "bytes", ""].map(str::to_owned).to_vec()];
    let first = trials.first().map_or(0, |trial| trial.rate);
    for trial in trials {
        let is_known = trial.error.is_none();
        let when = |text: String| if is_known { text } else { String::new() };
        let ratio = if first > 0 { format!("{:.2}", trial.rate as f64 / first as f64) } else { String::new() };
        rows.push(vec![
            if used == Some(trial.stack.as_str()) { "*" } else { "" }.to_owned(),
            trial.stack.clone(),
            when(doctor::bits(trial.rate)),
            when(ratio),
            when(trial.connections.to_string()),
            trial.congestion.clone().unwrap_or_default(),
            when(bytes(trial)),
            trial.error.clone().unwrap_or_default(),
        ]);
    }
    format!("{}\n\n{}", out::one_line(title), out::table(&rows, &[2, 3, 4]))
}

/// What was sent.
fn bytes(trial: &TrialReport) -> String {
    match &trial.compressed {
        Some(compressed) if trial.text && compressed.encoded > 0 => {
            format!("text, {:.1} times shorter", compressed.raw as f64 / compressed.encoded as f64)
        }
        _ if trial.text => "text".to_owned(),
        _ => "random".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(stack: &str, rate: u64, error: Option<&str>) -> TrialReport {
        let (stack, congestion, error) = (stack.to_owned(), Some("cubic".to_owned()), error.map(str::to_owned));
        TrialReport { stack, text: false, rate, connections: 1, congestion, compressed: None, error }
    }

    #[test]
    fn the_table_says_what_is_used_and_what_failed() {
        let trials = [
            trial("tls/tcp", 2_000_000, None),
            trial("stripe(32)/tls/tcp", 20_000_000, None),
            trial("adoc/tls/tcp", 0, Some("no\nanswer")),
        ];
        let text = describe("a1 to b1: direct", Some("stripe(32)/tls/tcp"), &trials);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (6, "a1 to b1: direct"), "{text}");
        assert!(lines[4].starts_with('*') && lines[4].contains("20.0 Mbit/s  10.00"), "{text}");
        assert!(
            lines[5].contains("adoc/tls/tcp") && lines[5].contains("no\\nanswer") && !lines[5].contains("0 kbit/s"),
            "{text}"
        );
    }

    #[test]
    fn what_is_tried_hangs_on_the_link() {
        let way = |tls, stack: &str| WayStatus {
            way: "direct".into(),
            chosen: true,
            usable: true,
            figures: madrigal_daemon::Figures::default(),
            measured_ago_s: None,
            address: None,
            tls: Some(tls),
            stack: Some(stack.into()),
            connections: 1,
            each: Vec::new(),
            congestion: None,
            left_out: Vec::new(),
            why: None,
        };
        assert_eq!(usual(Some(&way(false, "tcp"))), ["tcp", "stripe(32)/tcp", "adoc/tcp"]);
        let all = ["tls/tcp", "stripe(32)/tls/tcp", "adoc/tls/tcp", "adoc/stripe(32)/tls/tcp"];
        assert_eq!(usual(Some(&way(true, "adoc/stripe(32)/tls/tcp"))), all);
        assert_eq!(usual(None), all[..3]);
    }
}
