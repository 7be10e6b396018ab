//! `madrigal perf`: measurements, always against something in the same run.

use madrigal::perf::{self, Report};
use serde::Serialize;

use crate::{cli, out};

/// What is printed as JSON. Times are nanoseconds of a message one way.
#[derive(Serialize)]
struct Measured<'a> {
    method: &'a str,
    size: usize,
    iterations: u32,
    link_ns: f64,
    bare_ns: f64,
    ratio: f64,
    link_rounds_ns: &'a [f64],
    bare_rounds_ns: &'a [f64],
    /// Of the driver with nothing above it, for a Circuit.
    #[serde(skip_serializing_if = "Option::is_none")]
    channel_ns: Option<f64>,
    #[serde(skip_serializing_if = "<[f64]>::is_empty")]
    channel_rounds_ns: &'a [f64],
}

/// Runs the command.
pub(crate) fn run(args: &cli::Perf) -> i32 {
    let (what, args, report) = match &args.what {
        cli::PerfOf::Vlink(args) => ("VLink", args, perf::vlink(&args.method, args.size as usize, args.iterations)),
        cli::PerfOf::Circuit(args) => {
            ("Circuit", args, perf::circuit(&args.method, args.size as usize, args.iterations))
        }
    };
    match report {
        Ok(report) if args.json => out::print_json(&measured(&report)),
        Ok(report) => {
            out::print(&format!("{report}\n"));
            out::FOUND
        }
        Err(error) => out::fail(&format!("cannot measure a {what} over {}: {error}", args.method)),
    }
}

fn measured(report: &Report) -> Measured<'_> {
    Measured {
        method: &report.method,
        size: report.size,
        iterations: report.iterations,
        link_ns: report.link(),
        bare_ns: report.bare(),
        ratio: report.ratio(),
        link_rounds_ns: &report.link_ns,
        bare_rounds_ns: &report.bare_ns,
        channel_ns: report.channel(),
        channel_rounds_ns: &report.channel_ns,
    }
}
