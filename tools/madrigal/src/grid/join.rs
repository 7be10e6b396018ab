//! `madrigal grid join`: what `grid add` made for this host is put in its place, and the daemon is started, or told.

use std::io::{BufRead as _, IsTerminal as _, Read as _};
use std::process::{Command, Stdio};

use madrigal_daemon::{Runtime, client};
use madrigal_identity::{Moment, Name, Parcel};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use serde_json::json;

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
        line => Parcel::open(line, &code()?, Moment::now())?,
    };
    let installed = parcel.install(&place.dir, args.force)?;
    let host = installed.host.as_ref().map(Name::to_string).or_else(|| place.own());
    let said = match &host {
        Some(host) => start(host)?,
        None => "there is no certificate of a host here".to_owned(),
    };
    if as_json {
        let files = &installed.changed;
        return Ok(out::print_json(&json!({ "host": host, "directory": place.dir, "changed": files, "said": said })));
    }
    out::print(&format!("{said}\n"));
    Ok(out::FOUND)
}

/// Has the daemon of this host, which is `host`, take up what there is by now; starts it where none is up. What it says.
pub(super) fn start(host: &str) -> Result<String, Failure> {
    let runtime = Runtime::find();
    match client::status(&runtime) {
        Ok(status) if status.host == host => {
            let told = client::reload(&runtime).map_err(|error| Failure::Failed(error.to_string()))?;
            Ok(format!("up since {} s, {told}", status.up))
        }
        Ok(status) => Err(Failure::Failed(format!(
            "a daemon is up here that says it is {}: type madrigal down, then madrigal up --host {host}",
            status.host
        ))),
        Err(client::ClientError::Down) => launch(host),
        Err(error) => Err(Failure::Failed(error.to_string())),
    }
}

/// `madrigal up`, as it would be typed: it becomes another program.
fn launch(host: &str) -> Result<String, Failure> {
    let own = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let done = Command::new(own).args(["up", "--host", host]).stdin(Stdio::null()).output();
    let done = done.map_err(|error| Failure::Failed(format!("cannot run madrigal up: {error}")))?;
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().trim_start_matches("madrigal: ").to_owned();
    if done.status.success() {
        return Ok(words(&done.stdout));
    }
    Err(Failure::Failed(format!("the certificate is in place, but no daemon is up: {}", words(&done.stderr))))
}

/// The code, from the terminal, or the first line of standard input.
fn code() -> Result<String, Failure> {
    let input = std::io::stdin();
    let silent = if input.is_terminal() { Silence::begin() } else { None };
    let mut line = String::new();
    let read = input.lock().read_line(&mut line);
    drop(silent);
    match read {
        Ok(0) => Err(Failure::Usage("type the code that madrigal grid add showed with the line".to_owned())),
        Ok(_) => Ok(line),
        Err(error) => Err(Failure::Failed(format!("cannot read the code: {error}"))),
    }
}

/// What is typed is not shown until this is dropped.
struct Silence(rustix::termios::Termios);

impl Silence {
    fn begin() -> Option<Self> {
        let input = rustix::stdio::stdin();
        let before = tcgetattr(input).ok()?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        quiet.local_modes.insert(LocalModes::ECHONL);
        out::say("the code that was shown with this line:");
        tcsetattr(input, OptionalActions::Now, &quiet).ok()?;
        Some(Self(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.0);
    }
}
