//! `madrigal ca` and `madrigal login`: what can be typed.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use madrigal_identity::Name;

const CA_HELP: &str = "Examples:
  madrigal ca init lyon                       make a grid of that name; its key stays here
  madrigal ca issue --host b1                 a certificate for host b1, and how to bring it there
  madrigal ca issue --user ann                what ann logs in with
  madrigal ca revoke --host b1                nobody lets b1 in any more, once the list is there

Files are in ~/.config/madrigal, or where MADRIGAL_CONFIG_DIR says. docs/identity.md has what each of them is.";

/// `madrigal ca`.
#[derive(Args)]
#[command(after_help = CA_HELP)]
pub(crate) struct Ca {
    #[command(subcommand)]
    pub(crate) what: CaDoes,
    /// Print JSON, for scripts
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum CaDoes {
    /// Make a grid: its certificate and the key that signs for it
    Init(Init),
    /// Issue a certificate for a host or a user
    Issue(Issue),
    /// Take certificates back
    Revoke(Revoke),
    /// Show what was issued
    List,
}

/// `madrigal ca init`.
#[derive(Args)]
pub(crate) struct Init {
    /// The grid's name
    #[arg(value_parser = name)]
    pub(crate) grid: Name,
    /// For how long
    #[arg(long, value_name = "DAYS", default_value_t = 3650, value_parser = clap::value_parser!(i64).range(1..=36_500))]
    pub(crate) days: i64,
    /// Replace the CA that is there: all its certificates become worthless
    #[arg(long)]
    pub(crate) force: bool,
}

const ISSUE_HELP: &str = "Where the CA's key is, it signs. Elsewhere the login signs for hosts: such a certificate ends with the login, and is
believed by daemons and programs of the same user only.";

/// `madrigal ca issue`.
#[derive(Args)]
#[command(after_help = ISSUE_HELP, group = ArgGroup::new("whom").required(true).args(["host", "user"]))]
pub(crate) struct Issue {
    /// For the daemon of this host
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) host: Option<Name>,
    /// For this user, to log in with
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) user: Option<Name>,
    /// For how long
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(i64).range(1..=36_500))]
    pub(crate) days: i64,
    /// Into this directory, instead of one of that name beside the CA
    #[arg(long, value_name = "DIR", conflicts_with = "here")]
    pub(crate) out: Option<PathBuf>,
    /// For this host or user: into ~/.config/madrigal itself
    #[arg(long)]
    pub(crate) here: bool,
    /// Replace what is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// `madrigal ca revoke`.
#[derive(Args)]
#[command(group = ArgGroup::new("which").required(true).args(["host", "user", "serial"]))]
pub(crate) struct Revoke {
    /// All certificates of this host
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) host: Option<Name>,
    /// All certificates and logins of this user
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) user: Option<Name>,
    /// The certificate with this serial number, in hexadecimal digits
    #[arg(long, value_name = "SERIAL")]
    pub(crate) serial: Option<String>,
}

const LOGIN_HELP: &str = "A login lasts for hours and is good on every site of the grid. It takes what `madrigal ca issue --user` wrote, or the CA's
own key. Daemons and programs that run take up a new login by themselves.

Exit status of --status: 0 if there is a certificate to connect with, else 1.

Examples:
  madrigal login
  madrigal login --status
  madrigal login --renew          does nothing while a third of the time is left: for cron";

/// `madrigal login`.
#[derive(Args)]
#[command(after_help = LOGIN_HELP, group = ArgGroup::new("mode").args(["renew", "status", "end"]))]
pub(crate) struct Login {
    /// Who; needed only where the CA's own key logs in and you have another name here
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) user: Option<Name>,
    /// For how long
    #[arg(long, value_name = "HOURS", default_value_t = 12, value_parser = clap::value_parser!(i64).range(1..=720))]
    pub(crate) hours: i64,
    /// Log in again if less than a third of the time is left
    #[arg(long)]
    pub(crate) renew: bool,
    /// Show what there is and how long it lasts
    #[arg(long)]
    pub(crate) status: bool,
    /// Log out: remove the login's files here
    #[arg(long)]
    pub(crate) end: bool,
    /// Print JSON, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn name(text: &str) -> Result<Name, String> {
    Name::parse(text).map_err(|error| error.to_string())
}
