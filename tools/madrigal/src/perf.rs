//! `madrigal perf`: measurements, always against something in the same run.

use std::fmt::Display;

use madrigal::perf::{self, Crowd, LossyReport, MailboxReport, PerfError, PortReport, Report};
use serde::Serialize;

use crate::{cli, out};

mod links;

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

/// The same of those who have idle peers.
#[derive(Serialize)]
struct Among<'a> {
    method: &'a str,
    size: usize,
    iterations: u32,
    /// How many idle peers each of them was connected with by TCP.
    peers: usize,
    among_ns: f64,
    alone_ns: f64,
    ratio: f64,
    among_rounds_ns: &'a [f64],
    alone_rounds_ns: &'a [f64],
}

/// The same of ports.
#[derive(Serialize)]
struct Between<'a> {
    method: &'a str,
    size: usize,
    iterations: u32,
    port_ns: f64,
    circuit_ns: f64,
    ratio: f64,
    port_rounds_ns: &'a [f64],
    circuit_rounds_ns: &'a [f64],
}

/// The same of mailboxes.
#[derive(Serialize)]
struct Boxed<'a> {
    method: &'a str,
    iterations: u32,
    header_ns: f64,
    small_ns: f64,
    large_ns: f64,
    ratio: f64,
    header_rounds_ns: &'a [f64],
    small_rounds_ns: &'a [f64],
    large_rounds_ns: &'a [f64],
}

/// The same of messages of which a part may be lost.
#[derive(Serialize)]
struct Lossy<'a> {
    tolerance: u32,
    size: usize,
    iterations: u32,
    message_ns: f64,
    stream_ns: f64,
    ratio: f64,
    /// Bytes of the answers.
    lost: u64,
    sent: u64,
    message_rounds_ns: &'a [f64],
    stream_rounds_ns: &'a [f64],
}

/// Runs the command.
pub(crate) fn run(args: &cli::Perf) -> i32 {
    let Some(what) = &args.what else { return links::run(args) };
    match what {
        cli::PerfOf::Lossy(of) => {
            let report = perf::lossy(of.tolerance, of.size as usize, of.iterations);
            let found = report.as_ref().map(|report| (report, lossy(report)));
            print("link of messages", ("vrp/udp", of.json), found)
        }
        cli::PerfOf::Vlink(of) => {
            let report = perf::vlink(&of.method, of.size as usize, of.iterations);
            print("VLink", (&of.method, of.json), report.as_ref().map(|report| (report, measured(report))))
        }
        cli::PerfOf::Circuit(cli::Circuit { of, peers: None }) => {
            let report = perf::circuit(&of.method, of.size as usize, of.iterations);
            print("Circuit", (&of.method, of.json), report.as_ref().map(|report| (report, measured(report))))
        }
        cli::PerfOf::Port(of) => {
            let report = perf::port(&of.method, of.size as usize, of.iterations);
            print(
                "message between ports",
                (&of.method, of.json),
                report.as_ref().map(|report| (report, between(report))),
            )
        }
        cli::PerfOf::Mailbox(of) => {
            let report = perf::mailbox(&of.method, of.iterations);
            print(
                "message between mailboxes",
                (&of.method, of.json),
                report.as_ref().map(|report| (report, boxed(report))),
            )
        }
        cli::PerfOf::Circuit(cli::Circuit { of, peers: Some(peers) }) => {
            let crowd = perf::crowd(&of.method, of.size as usize, of.iterations, *peers as usize);
            print("Circuit", (&of.method, of.json), crowd.as_ref().map(|crowd| (crowd, among(crowd))))
        }
    }
}

/// Prints what was found, for people or for scripts.
fn print(what: &str, (method, json): (&str, bool), found: Result<(&impl Display, impl Serialize), &PerfError>) -> i32 {
    match found {
        Ok((_, measured)) if json => out::print_json(&measured),
        Ok((report, _)) => {
            out::print(&format!("{report}\n"));
            out::FOUND
        }
        Err(error) => out::fail(&format!("cannot measure a {what} over {method}: {error}")),
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

fn between(report: &PortReport) -> Between<'_> {
    Between {
        method: &report.method,
        size: report.size,
        iterations: report.iterations,
        port_ns: report.port(),
        circuit_ns: report.circuit(),
        ratio: report.ratio(),
        port_rounds_ns: &report.port_ns,
        circuit_rounds_ns: &report.circuit_ns,
    }
}

fn boxed(report: &MailboxReport) -> Boxed<'_> {
    Boxed {
        method: &report.method,
        iterations: report.iterations,
        header_ns: report.header(),
        small_ns: report.small(),
        large_ns: report.large(),
        ratio: report.ratio(),
        header_rounds_ns: &report.header_ns,
        small_rounds_ns: &report.small_ns,
        large_rounds_ns: &report.large_ns,
    }
}

fn lossy(report: &LossyReport) -> Lossy<'_> {
    Lossy {
        tolerance: report.tolerance,
        size: report.size,
        iterations: report.iterations,
        message_ns: report.message(),
        stream_ns: report.stream(),
        ratio: report.ratio(),
        lost: report.lost,
        sent: report.sent,
        message_rounds_ns: &report.message_ns,
        stream_rounds_ns: &report.stream_ns,
    }
}

fn among(crowd: &Crowd) -> Among<'_> {
    Among {
        method: &crowd.method,
        size: crowd.size,
        iterations: crowd.iterations,
        peers: crowd.peers,
        among_ns: crowd.among(),
        alone_ns: crowd.alone(),
        ratio: crowd.ratio(),
        among_rounds_ns: &crowd.among_ns,
        alone_rounds_ns: &crowd.alone_ns,
    }
}
