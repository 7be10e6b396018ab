//! Delivers a parcel to a host: by ssh, which runs `madrigal grid join -` there; or by a line that a person pastes, and a code.

use std::io::{ErrorKind, Read, Write as _};
use std::process::{Command, Stdio};

use madrigal_daemon::grid::{Grid, Host};
use madrigal_identity::{HOUR, Moment, Parcel};
use madrigal_sys::namespace::ignore_signal;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::failure::Failure;
use super::place::Place;
use crate::cli::grid::Push;
use crate::out;

/// How long a line and its code are valid.
pub(super) const LINE_SECONDS: i64 = HOUR;
/// The exit status of ssh if ssh itself failed (ssh(1)).
const SSH_FAILED: i32 = 255;
/// The most bytes of its output that are stored: another host decides how long it is.
const LONGEST_ANSWER: u64 = 64 << 10;
/// The exit status of a shell if the command does not exist.
const NO_COMMAND: i32 = 127;

/// A line to paste, the code to type, and until when.
pub(super) struct Line {
    line: String,
    code: String,
    until: Moment,
}

impl Line {
    pub(super) fn seal(parcel: &Parcel) -> Result<Self, Failure> {
        let (line, code) = parcel.seal()?;
        Ok(Self { line, code, until: parcel.until() })
    }

    pub(super) fn json(&self) -> Value {
        json!({ "line": format!("madrigal grid join {}", self.line), "code": self.code, "until": self.until.0 })
    }

    /// What to do with it on `hosts`.
    pub(super) fn text(&self, hosts: &str) -> String {
        let Self { line, code, until } = self;
        format!(
            "On {hosts}, where madrigal is installed, paste this line:\n\nmadrigal grid join {line}\n\n\
             and when it asks for the code type\n\n  {code}\n\n\
             Both are good until {until}. The line may go by mail or chat; bring the code by another way, for who has both is that host.\n"
        )
    }
}

/// Delivers a parcel to a host by ssh. Returns the output of its command; or why it failed, and what to type.
pub(super) fn by_ssh(to: &str, command: &str, parcel: &Parcel) -> Result<String, String> {
    let remote = format!("{} grid join -", quoted(command));
    // If ssh does not read its input, a write fails; ssh itself reports why.
    let _ = ignore_signal(Signal::PIPE.as_raw(), true);
    let mut ssh = Command::new("ssh");
    // A host that does not answer any more is given up after a minute.
    let bounds = ["-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"];
    ssh.arg("-T").args(bounds).args(["--", to, &remote]);
    ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = ssh.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => "there is no ssh here: install it, or leave --ssh away".to_owned(),
        _ => format!("cannot run ssh: {error}"),
    })?;
    let (input, bytes) = (child.stdin.take(), parcel.to_bytes());
    let (answer, wrong) = (child.stdout.take(), child.stderr.take());
    let (answer, wrong) = std::thread::scope(|scope| {
        scope.spawn(move || input.map(|mut input| input.write_all(&bytes)));
        let wrong = scope.spawn(move || begin_of(wrong));
        (words(&begin_of(answer)), words(&wrong.join().unwrap_or_default()))
    });
    let status = child.wait().map_err(|error| format!("cannot wait for ssh: {error}"))?;
    match status.code() {
        Some(0) => Ok(answer),
        Some(SSH_FAILED) => Err(format!("ssh {to}: {wrong}: type ssh {to} true until that works")),
        Some(NO_COMMAND) => {
            Err(format!("ssh {to}: {wrong}: install madrigal there, or say where it is with --command PATH"))
        }
        _ => Err(format!("ssh {to}: {wrong}")),
    }
}

/// The first bytes that a program writes until it ends. The others are read and dropped.
fn begin_of(output: Option<impl Read>) -> Vec<u8> {
    let mut begin = Vec::new();
    if let Some(mut output) = output {
        let _ = output.by_ref().take(LONGEST_ANSWER).read_to_end(&mut begin);
        let _ = std::io::copy(&mut output, &mut std::io::sink());
    }
    begin
}

/// The output of a `madrigal` command, as one line.
pub(super) fn words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().map(|line| line.trim_start_matches("madrigal: ").trim());
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// A word as the shell at the other end reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./~+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The result of a delivery to one host.
pub(super) struct Delivery {
    pub(super) host: String,
    pub(super) done: Result<String, String>,
    /// The command that repeats it.
    pub(super) again: String,
}

impl Delivery {
    pub(super) fn json(&self) -> Value {
        let (answer, error) = (self.done.as_ref().ok(), self.done.as_ref().err());
        json!({ "host": self.host, "ok": error.is_none(), "said": answer, "error": error })
    }

    pub(super) fn print(&self) {
        match &self.done {
            Ok(answer) => out::print(&format!("{}: {answer}\n", self.host)),
            Err(why) => out::report(&format!("{}: {why}; then type {}", self.host, self.again)),
        }
    }
}

/// Brings a description, and the list of what was taken back, to hosts that ssh reaches.
pub(super) fn update(place: &Place, text: &str, hosts: &[&Host], command: &str) -> Result<Vec<Delivery>, Failure> {
    let parcel = Parcel::update(&place.dir, text, Moment::now().plus(LINE_SECONDS))?;
    let bring = |host: &&Host| {
        let to = host.ssh.as_deref()?;
        let again = format!("madrigal grid push {}", host.name);
        Some(Delivery { host: host.name.clone(), done: by_ssh(to, command, &parcel), again })
    };
    Ok(hosts.iter().filter_map(bring).collect())
}

/// The hosts that ssh reaches, without `except` and this one.
pub(super) fn reached<'a>(grid: &'a Grid, place: &Place, except: Option<&str>) -> Vec<&'a Host> {
    let own = place.own();
    let other = |host: &&Host| Some(host.name.as_str()) != except && Some(&host.name) != own.as_ref();
    grid.hosts.iter().filter(|host| host.ssh.is_some()).filter(other).collect()
}

/// The hosts that get changes by hand: those that ssh does not reach, without `except` and this one.
pub(super) fn by_hand(grid: &Grid, place: &Place, except: Option<&str>) -> Vec<String> {
    let own = place.own();
    let other = |name: &String| Some(name.as_str()) != except && Some(name) != own.as_ref();
    grid.hosts.iter().filter(|host| host.ssh.is_none()).map(|host| host.name.clone()).filter(other).collect()
}

/// `madrigal grid push`: to hosts that ssh does not reach, by a line.
pub(super) fn push(args: &Push, as_json: bool) -> Result<i32, Failure> {
    let place = Place::find()?;
    let text = place.text()?;
    let grid = place.parse(&text)?;
    let find = |name: &String| {
        let found = grid.host(name).map(|(_, host)| host);
        found.ok_or_else(|| Failure::Usage(format!("{} has no host `{name}`", place.file().display())))
    };
    let named = args.hosts.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let hosts = if named.is_empty() { reached(&grid, &place, None) } else { named.clone() };
    let deliveries = update(&place, &text, &hosts, &args.command)?;
    let by_line: Vec<&str> = named.iter().filter(|host| host.ssh.is_none()).map(|host| host.name.as_str()).collect();
    let line = match by_line.as_slice() {
        [] => None,
        _ => Some(Line::seal(&Parcel::update(&place.dir, &text, Moment::now().plus(LINE_SECONDS))?)?),
    };
    let status = if deliveries.iter().all(|one| one.done.is_ok()) { out::FOUND } else { out::FAILED };
    if as_json {
        let hosts: Vec<Value> = deliveries.iter().map(Delivery::json).collect();
        out::print_json(&json!({ "hosts": hosts, "by_line": by_line, "line": line.as_ref().map(Line::json) }));
        return Ok(status);
    }
    deliveries.iter().for_each(Delivery::print);
    if let Some(line) = line {
        out::print(&line.text(&by_line.join(", ")));
    }
    if args.hosts.is_empty() {
        out::print(&rest(&by_hand(&grid, &place, None)));
    }
    Ok(status)
}

/// What to type for hosts that get changes by hand.
pub(super) fn rest(hosts: &[String]) -> String {
    match hosts {
        [] => String::new(),
        _ => {
            format!("ssh does not reach {0}: type madrigal grid push {0} for a line to paste there\n", hosts.join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_one_word() {
        for word in
            ["madrigal", "~/bin/madrigal", "", "a b", "a\nb", "it's", "$(touch x)", "`x`", "a;b", "-x", "*", "\\"]
        {
            let line = format!("printf '%s|' {} end", quoted(word));
            let done = Command::new("/bin/sh").args(["-c", &line]).env("HOME", "~").output().unwrap();
            assert_eq!(String::from_utf8(done.stdout).unwrap(), format!("{word}|end|"));
        }
    }

    #[test]
    fn an_answer_without_end_takes_bounded_memory() {
        let mut endless = std::io::repeat(b'x').take(10 << 20);
        assert_eq!(begin_of(Some(&mut endless)).len() as u64, LONGEST_ANSWER);
        assert_eq!(endless.limit(), 0, "all is read: a writer that nobody reads would wait for ever");
        assert_eq!(words(b"madrigal: one\n\n  two \r\n"), "one; two");
    }
}
