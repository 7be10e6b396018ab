//! `madrigal doctor`: what can be typed.

use clap::Args;

const DOCTOR_HELP: &str = "With two hosts, by their names in the grid: what each says of itself, whether either can open a connection to the other,
relays, the way that is used, packet length, clocks, certificates, versions, shared memory. Without: this host and its links.
What is wrong comes with what to type. Nothing takes longer than its deadline.

Exit status: 0 all is well; 1 there are warnings, and everything works; 2 something failed.

Examples:
  madrigal doctor
  madrigal doctor a1 b1
  madrigal doctor a1 b1 --json";

/// `madrigal doctor`.
#[derive(Args)]
#[command(after_help = DOCTOR_HELP, override_usage = "madrigal doctor [--json] [A B]")]
pub(crate) struct Doctor {
    /// Two hosts of the grid; without them this one
    #[arg(value_name = "HOST", num_args = 0..=2)]
    pub(crate) hosts: Vec<String>,
    /// Print JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}
