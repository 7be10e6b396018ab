//! `madrigal lab`: what can be typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

const LAB_HELP: &str = "Examples:
  madrigal lab up examples/two-sites.toml --with-daemons
  madrigal lab exec a1 -- ping -c 3 r
  madrigal lab set ab loss=5% delay=40ms
  madrigal lab cut ab; sleep 5; madrigal lab heal ab
  madrigal lab down

A host of a lab has a network, processes, /dev/shm, host name and /etc/hosts of its own, and shares all other files with this
machine. Needs root, or a kernel that lets users make namespaces; ip (Debian: iproute2), and nft (nftables) for NAT and firewalls.
docs/lab.md has the format of the file.";

/// `madrigal lab`.
#[derive(Args)]
#[command(after_help = LAB_HELP)]
pub(crate) struct Lab {
    #[command(subcommand)]
    pub(crate) what: LabDoes,
    /// Which lab; without it the file's name for `up`, and the only lab that is up for all else
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum LabDoes {
    /// Build what FILE describes; refused if it is up
    Up(Up),
    /// Run a command on a host, or on the router gw-SITE
    Exec(Exec),
    /// Change a WAN link while it carries packets
    Set(Set),
    /// Let a WAN link carry nothing, without a word to anybody
    Cut(WanLink),
    /// Let a WAN link carry again
    Heal(WanLink),
    /// Show hosts, links and what became of packets
    Status(Status),
    /// End everything in a lab and leave nothing of it
    Down,
}

/// `madrigal lab up`.
#[derive(Args)]
pub(crate) struct Up {
    /// The description
    pub(crate) file: PathBuf,
    /// Make a CA for the lab and start a daemon on each host, with certificate and grid.toml
    #[arg(long)]
    pub(crate) with_daemons: bool,
    /// Print JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

const EXEC_HELP: &str = "Signals sent to this command go on to the other. Exit status: that of the command, or 128 and the signal that ended
it; 127: there is no such program; 126: it cannot be executed; 1: there is no such lab or host.
Without a command: a shell. MADRIGAL_LAB and MADRIGAL_LAB_HOST tell a program where it is.";

/// `madrigal lab exec`.
#[derive(Args)]
#[command(after_help = EXEC_HELP, override_usage = "madrigal lab exec HOST -- COMMAND [ARGUMENTS]...")]
pub(crate) struct Exec {
    /// The host
    pub(crate) host: String,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, num_args = 0..)]
    pub(crate) command: Vec<OsString>,
}

const SET_HELP: &str = "Settings: rate=100M (bits a second, or unlimited), delay=20ms (one way), jitter=2ms, loss=0.5%, queue=100ms or
queue=256KiB, mtu=1400, hole=true (longer packets vanish, instead of being refused). Both directions; all or none are changed.";

/// `madrigal lab set`.
#[derive(Args)]
#[command(after_help = SET_HELP)]
pub(crate) struct Set {
    /// The link
    pub(crate) link: String,
    /// What to change
    #[arg(value_name = "KEY=VALUE", required = true)]
    pub(crate) settings: Vec<String>,
}

/// `madrigal lab cut` and `heal`.
#[derive(Args)]
pub(crate) struct WanLink {
    /// The link
    pub(crate) link: String,
}

/// `madrigal lab status`.
#[derive(Args)]
pub(crate) struct Status {
    /// Print JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}
