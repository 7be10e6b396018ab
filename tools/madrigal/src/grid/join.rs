//! `madrigal grid join`: installs the files that `grid add` made for this host, and starts the daemon, or makes it reload.

use std::io::Read as _;
use std::process::{Command, Stdio};

use madrigal_daemon::grid::Grid;
use madrigal_daemon::{Runtime, client};
use madrigal_identity::{Moment, Name, Parcel};
use serde_json::json;

use super::code;
use super::deliver::words;
use super::failure::Failure;
use super::place::Place;
use crate::cli::grid::Join;
use crate::out;

/// No parcel is longer.
const LONGEST: u64 = 4 << 20;
/// Stands for a parcel on standard input.
const INPUT: &str = "-";

pub(super) fn run(args: &Join, as_json: bool) -> Result<i32, Failure> {
    let place = Place::find()?;
    let parcel = match args.line.as_str() {
        INPUT => {
            let mut bytes = Vec::new();
            let read = std::io::stdin().lock().take(LONGEST).read_to_end(&mut bytes);
            read.map_err(|error| Failure::Failed(format!("cannot read standard input: {error}")))?;
            Parcel::from_bytes(&bytes)?
        }
        line => Parcel::open(line, &code::ask()?, Moment::now())?,
    };
    let host = parcel.host()?.as_ref().map(Name::to_string).or_else(|| place.own());
    check(&parcel, host.as_deref())?;
    let installed = parcel.install(&place.dir, args.force)?;
    let answer = match &host {
        Some(host) => start(host)?,
        None => "there is no certificate of a host here".to_owned(),
    };
    if as_json {
        let files = &installed.changed;
        return Ok(out::print_json(&json!({ "host": host, "directory": place.dir, "changed": files, "said": answer })));
    }
    out::print(&format!("{answer}\n"));
    Ok(out::FOUND)
}

/// Checks that this host's daemon would accept the received description, before any file is replaced.
fn check(parcel: &Parcel, host: Option<&str>) -> Result<(), Failure> {
    let refused = |why: &dyn std::fmt::Display| {
        Failure::Failed(format!("the grid.toml that came cannot be used here, and nothing is changed: {why}"))
    };
    let grid = Grid::read("grid.toml", parcel.description()).map_err(|wrong| {
        refused(&format!("{wrong}; type madrigal grid check where it was made, and install the same version here"))
    })?;
    match host.filter(|host| grid.host(host).is_none()) {
        Some(host) => Err(refused(&format!("it has no host {host}, which this one is"))),
        None => Ok(()),
    }
}

/// Makes the daemon of this host, `host`, reload its description, or starts it if none is up. Returns its answer.
pub(super) fn start(host: &str) -> Result<String, Failure> {
    let runtime = Runtime::find();
    match client::status(&runtime) {
        Ok(status) if status.host == host => {
            let changes = client::reload(&runtime).map_err(|error| Failure::Failed(error.to_string()))?;
            Ok(format!("up since {} s, {changes}", status.up))
        }
        Ok(status) => Err(Failure::Failed(format!(
            "a daemon is up here that says it is {}: type madrigal down, then madrigal up --host {host}",
            status.host
        ))),
        Err(client::ClientError::Down) => launch(host),
        Err(error) => Err(Failure::Failed(error.to_string())),
    }
}

/// Runs `madrigal up` as a process, since it executes itself again under the library.
fn launch(host: &str) -> Result<String, Failure> {
    let own = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let done = Command::new(own).args(["up", "--host", host]).stdin(Stdio::null()).output();
    let done = done.map_err(|error| Failure::Failed(format!("cannot run madrigal up: {error}")))?;
    if done.status.success() {
        return Ok(words(&done.stdout));
    }
    Err(Failure::Failed(format!("the certificate is in place, but no daemon is up: {}", words(&done.stderr))))
}
