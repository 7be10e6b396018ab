//! `madrigal grid`: what can be typed.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use madrigal_identity::Name;

use crate::cli::identity::name;
use crate::cli::values::ports;

const GRID_HELP: &str = "Examples, all typed on one machine, which keeps the grid's key and its grid.toml:
  madrigal grid init lyon
  madrigal grid add a1 --site a --here
  madrigal grid add r --site public --address 203.0.113.2 --relay --ssh root@203.0.113.2
  madrigal grid add b1 --site b --allow 6379           prints a line to paste on b1, and a code to type there
  madrigal grid check

Files are in ~/.config/madrigal, or where MADRIGAL_CONFIG_DIR says. docs/two-sites.md goes through it step by step.

Exit status: 0; 1 where something could not be done; 2 where what was typed or written makes no sense; of check: 0 all is well, 1 there
are warnings, 2 something is wrong.";

/// `madrigal grid`.
#[derive(Args)]
#[command(after_help = GRID_HELP)]
pub(crate) struct Grid {
    #[command(subcommand)]
    pub(crate) what: GridDoes,
    /// Print JSON, for scripts
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum GridDoes {
    /// Make a grid: its certificate authority, and a grid.toml without hosts
    Init(Init),
    /// Add a host: to grid.toml, with a certificate, and start its daemon, by ssh or by a line to paste there
    Add(Add),
    /// Bring grid.toml and the list of what was taken back to the hosts that ssh reaches, whose daemons take them up
    Push(Push),
    /// On a new host: take what `grid add` printed, and start the daemon
    Join(Join),
    /// Look for what is wrong in grid.toml, and ask the hosts' daemons how they are
    Check(Check),
    /// Have this host's daemon read its grid.toml again; where something is wrong in it, the daemon keeps what it has
    Reload,
}

/// `madrigal grid init`.
#[derive(Args)]
pub(crate) struct Init {
    /// The grid's name
    #[arg(value_parser = name, default_value = "grid")]
    pub(crate) grid: Name,
    /// For how long its certificate is good
    #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(i64).range(1..=36_500))]
    pub(crate) days: i64,
}

const ADD_HELP: &str = "Without --ssh and --here a line is printed that is to be pasted on the host, and a code that is to be typed there when it is
asked for. Both are good for an hour. The line may go by mail or chat, the code should not go the same way: who has both has the
host's key. `madrigal ca revoke --host HOST` takes it back.

With --ssh the host is remembered as one that ssh reaches: `grid add` and `grid push` bring it every later grid.toml.

Examples:
  madrigal grid add a1 --site a --here
  madrigal grid add b1 --site b --allow 22,6379 --ssh ann@b1.example.org
  madrigal grid add b2 --site b
  madrigal grid add b1 --again                         a new certificate; the earlier ones are taken back";

/// `madrigal grid add`.
#[derive(Args)]
#[command(after_help = ADD_HELP)]
pub(crate) struct Add {
    /// The host's name in the grid
    #[arg(value_parser = name)]
    pub(crate) host: Name,
    /// The site it is in, which is made if there is none of that name
    #[arg(long, value_name = "SITE", value_parser = site, required_unless_present = "again")]
    pub(crate) site: Option<String>,
    /// Where hosts of other sites may reach its daemon, such as 203.0.113.2 or [2001:db8::2]:7781; may be repeated. None: nobody calls it
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) address: Vec<String>,
    /// It carries streams between hosts that cannot reach each other
    #[arg(long)]
    pub(crate) relay: bool,
    /// Ports of the site's hosts that others may connect to, such as 22,8000-8010; for a site that has none yet
    #[arg(long, value_name = "PORTS", value_parser = ports)]
    pub(crate) allow: Option<String>,
    /// Bring it there by ssh, and start the daemon
    #[arg(long, value_name = "[USER@]HOST", value_parser = destination, conflicts_with = "here")]
    pub(crate) ssh: Option<String>,
    /// It is this host: install its certificate here, and start the daemon
    #[arg(long)]
    pub(crate) here: bool,
    /// It is in grid.toml already: give it a new certificate, and take the earlier ones back
    #[arg(long, conflicts_with_all = ["site", "address", "relay", "allow"])]
    pub(crate) again: bool,
    /// How long the certificate is good
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(i64).range(1..=36_500))]
    pub(crate) days: i64,
    /// Where the command is on hosts that ssh reaches, if not in their PATH
    #[arg(long, value_name = "PATH", default_value = "madrigal")]
    pub(crate) command: String,
}

/// `madrigal grid push`.
#[derive(Args)]
pub(crate) struct Push {
    /// These hosts; without, all that ssh reaches
    #[arg(value_name = "HOST")]
    pub(crate) hosts: Vec<String>,
    /// Where the command is on them, if not in their PATH
    #[arg(long, value_name = "PATH", default_value = "madrigal")]
    pub(crate) command: String,
}

const JOIN_HELP: &str = "The line is the one that `madrigal grid add` printed. The code is asked for, and is not shown while it is typed; without a
terminal it is the first line of standard input. With - instead of a line everything comes on standard input, as `grid add --ssh` sends it.

Nothing of another grid or another host is replaced without --force. A grid.toml that was there is kept as grid.toml.old.";

/// `madrigal grid join`.
#[derive(Args)]
#[command(after_help = JOIN_HELP)]
pub(crate) struct Join {
    /// What `madrigal grid add` printed, or -
    #[arg(value_name = "LINE")]
    pub(crate) line: String,
    /// Replace what is there of another grid or host
    #[arg(long)]
    pub(crate) force: bool,
}

const CHECK_HELP: &str = "What is wrong in the file is told by line and key. Then: whether every two sites can be connected, addresses that two hosts
have, certificates that are missing or end soon (where the CA is), and, where a daemon is up here, whether the daemons of all hosts
answer and know the same hosts.

Exit status: 0 all is well; 1 there are warnings; 2 something is wrong.";

/// `madrigal grid check`.
#[derive(Args)]
#[command(after_help = CHECK_HELP)]
pub(crate) struct Check {
    /// The file; without it grid.toml in ~/.config/madrigal, or in MADRIGAL_CONFIG_DIR
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

fn site(text: &str) -> Result<String, String> {
    madrigal_daemon::grid::check_name(text).map(|()| text.to_owned())
}

fn address(text: &str) -> Result<String, String> {
    let good = text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok_and(|at| at.port() != 0);
    good.then(|| text.to_owned()).ok_or_else(|| "give an address such as 203.0.113.2 or [2001:db8::2]:7781".to_owned())
}

fn destination(text: &str) -> Result<String, String> {
    madrigal_daemon::grid::check_destination(text).map(|()| text.to_owned())
}
