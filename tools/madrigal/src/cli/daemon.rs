//! `madrigal up`, `down`, `status`, `connect`, `forward`: what can be typed.

use std::path::PathBuf;

use clap::Args;
use madrigal_daemon::Stack;

const UP_HELP: &str = "One daemon per host and user, without root, on one port (7780, or as the file says). It connects to the daemons of all
other hosts of the grid; where only the other one can open a connection, that one does; where neither can, both begin at once,
arranged through a relay, and where that is in vain the relay carries streams.

Examples:
  madrigal up --grid grid.toml                  this host is known there by its host name
  madrigal up --grid grid.toml --host a1
  madrigal status
  madrigal connect b1:22
  madrigal forward 6379 b1:6379
  madrigal down

docs/daemon.md has the format of the file.";

/// `madrigal up`.
#[derive(Args)]
#[command(after_help = UP_HELP)]
pub(crate) struct Up {
    /// The description of the grid; without it grid.toml in ~/.config/madrigal, or in MADRIGAL_CONFIG_DIR
    #[arg(long, value_name = "FILE")]
    pub(crate) grid: Option<PathBuf>,
    /// Which of its hosts this one is; without it the one with this host's name, or that its certificate names
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// What links are made of for which no rule of the grid says it, such as stripe(4)/tls/tcp; docs/adapters.md
    #[arg(long, value_name = "STACK", value_parser = str::parse::<Stack>)]
    pub(crate) stack: Option<Stack>,
    /// Stay in the foreground, and say on standard error what happens
    #[arg(long)]
    pub(crate) foreground: bool,
}

const STATUS_HELP: &str = "With --all each daemon is asked, over whatever way leads there: how long it is up, with how many hosts it has links, how many
streams it carries, and how many tasks want how many processors of its host.

Exit status 1: no daemon, or with --all: a host that does not answer.";

/// `madrigal status`.
#[derive(Args)]
#[command(after_help = STATUS_HELP)]
pub(crate) struct Status {
    /// Show all hosts of the grid
    #[arg(long)]
    pub(crate) all: bool,
    /// Print JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

const CONNECT_HELP: &str = "Exit status 1: no connection; the message names every way that was tried.

Example, in ~/.ssh/config:
  Host b1
      ProxyCommand madrigal connect %h:%p";

/// `madrigal connect`.
#[derive(Args)]
#[command(after_help = CONNECT_HELP)]
pub(crate) struct Connect {
    /// The host, by its name in the grid, and the port
    #[arg(value_name = "HOST:PORT", value_parser = target)]
    pub(crate) to: (String, u16),
}

const FORWARD_HELP: &str = "With --udp each datagram that comes at the local port goes to that of the other host, and answers come back to who sent it. Where UDP
goes between both hosts, and both have certificates, they go by QUIC: of all bytes the line may lose as many as --tolerance says, and what
it loses beyond that is sent again. Else they go by a stream, which loses none. `madrigal status` says which it is.

Examples:
  madrigal forward 6379 b1:6379
  madrigal forward --udp 5004 b1:5004                       a picture that is late is worth nothing
  madrigal forward --udp --tolerance 0 --within 10000 5140 b1:514    no line of the log is to be missing";

/// `madrigal forward`.
#[derive(Args)]
#[command(after_help = FORWARD_HELP)]
pub(crate) struct Forward {
    /// Datagrams of UDP, and not connections of TCP
    #[arg(long)]
    pub(crate) udp: bool,
    /// How much of all may be lost, in percent: 0 to 100
    #[arg(long, value_name = "PERCENT", requires = "udp", default_value = "100", value_parser = permille)]
    pub(crate) tolerance: u32,
    /// Drop datagrams that wait for longer
    #[arg(long, value_name = "MILLISECONDS", requires = "udp", default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) within: u64,
    /// The local port, on 127.0.0.1; 0 for any that is free
    #[arg(value_name = "LOCALPORT")]
    pub(crate) from: u16,
    /// The host, by its name in the grid, and the port
    #[arg(value_name = "HOST:PORT", value_parser = target)]
    pub(crate) to: (String, u16),
}

fn target(text: &str) -> Result<(String, u16), String> {
    let parts = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let read = parts.and_then(|(host, port)| Some((host.to_owned(), port.parse().ok().filter(|port| *port != 0)?)));
    read.ok_or_else(|| "give a host and a port, such as b1:6379".to_owned())
}

/// Percent, with one decimal at the most, as parts of a thousand.
fn permille(text: &str) -> Result<u32, String> {
    let read = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok().map(|percent| (percent * 10.0).round());
    let read = read.filter(|permille| (0.0..=1000.0).contains(permille)).map(|permille| permille as u32);
    read.ok_or_else(|| "give percent from 0 to 100, such as 2.5".to_owned())
}
