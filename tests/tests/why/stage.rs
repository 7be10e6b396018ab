//! The bed of the scenes: programs that are controlled line by line, and the reports of `madrigal why` about them.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use madrigal_tests::host::{self, How, Scratch, WATCHDOG};
use madrigal_tests::net;
use serde_json::Value;

/// What a scene needs and this host has not.
pub(crate) struct Missing(pub(crate) String);

/// How a scene ends; it fails by a panic.
pub(crate) type Played = Result<(), Missing>;

/// Starts programs, and looks.
pub(crate) type Scene = fn(&Stage) -> Played;

/// A message of a round, there and back.
pub(crate) const MESSAGE: u64 = 100;

/// A folder, and the programs every scene needs.
pub(crate) struct Stage {
    pub(crate) scratch: Scratch,
    python: PathBuf,
}

impl Stage {
    /// An empty one.
    pub(crate) fn new() -> Result<Self, Missing> {
        // Not one of the user's own: other users are to run it, too.
        let python = [PathBuf::from("/usr/bin/python3")].into_iter().find(|p| p.is_file());
        let python = python.map_or_else(|| need("python3"), Ok)?;
        Ok(Self { scratch: Scratch::new(), python })
    }

    /// Says that something moves in this scene.
    pub(crate) fn moves(&self) -> Played {
        let info = host::run(host::command(How::Plain, host::madrigal(), &self.scratch).args(["info", "--json"]));
        let info: Value = serde_json::from_str(&info.expect_success().text()).expect("JSON");
        let features = info["kernel"]["features"].as_array().expect("features");
        let lacking = features.iter().find(|feature| feature["ok"] == false);
        lacking.map_or(Ok(()), |feature| Err(Missing(format!("nothing moves here: {feature}"))))
    }

    /// A Python program to be started, behind what all of them share.
    pub(crate) fn python(&self, how: How, program: &str, args: &[&str]) -> Command {
        let mut command = host::command(how, &self.python, &self.scratch);
        command.arg("-c").arg(format!("{PRELUDE}{program}")).args(args);
        command
    }

    /// Where it is.
    pub(crate) fn interpreter(&self) -> &Path {
        &self.python
    }

    /// The server of one connection, which answers with what it gets, and its port.
    pub(crate) fn server(&self, how: How) -> (Actor, String) {
        listening(&mut self.python(how, ECHO, &[]))
    }

    /// The client of one, behind so many rounds.
    pub(crate) fn client(&self, how: How, port: &str, rounds: u32) -> Actor {
        played(&mut self.python(how, CLIENT, &[port]), rounds)
    }

    /// Both.
    pub(crate) fn pair(&self, server: How, client: How, rounds: u32) -> (Actor, Actor) {
        let (server, port) = self.server(server);
        let client = self.client(client, &port, rounds);
        (server, client)
    }

    /// `madrigal why` with these arguments: exit status, output, and what went to standard error.
    pub(crate) fn why(&self, args: &[&str]) -> (i32, String, String) {
        let mut command = host::command(How::Plain, host::madrigal(), &self.scratch);
        output_of(command.arg("why").args(args))
    }

    /// The only connection of a process.
    #[track_caller]
    pub(crate) fn connection(&self, pid: i32) -> Seen {
        let mut all = self.connections(pid);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// The connections of a process; the text says the same.
    #[track_caller]
    pub(crate) fn connections(&self, pid: i32) -> Vec<Seen> {
        let pid = pid.to_string();
        let (status, json, err) = self.why(&[&pid, "--json"]);
        assert_eq!(status, 0, "{err}");
        let all = seen(&json);
        let (status, text, err) = self.why(&[&pid]);
        assert_eq!(status, 0, "{err}");
        let plural = if all.len() == 1 { "" } else { "s" };
        assert!(text.contains(&format!("): {} connection{plural}, missed_bells 0\n", all.len())), "{text}");
        all.iter().for_each(|one| one.assert_shown_in(&text));
        all
    }
}

/// The report of `madrigal why` about one connection.
#[derive(Debug)]
pub(crate) struct Seen(pub(crate) Value);

/// Every connection in its JSON.
#[track_caller]
pub(crate) fn seen(json: &str) -> Vec<Seen> {
    let answer: Value = serde_json::from_str(json).expect("JSON");
    let processes = answer["processes"].as_array().expect("processes").iter();
    let connections = processes.flat_map(|process| process["connections"].as_array().expect("connections").clone());
    connections.map(Seen).collect()
}

impl Seen {
    /// How it goes, and why; and bytes read and written, by whatever way.
    #[track_caller]
    pub(crate) fn expect(&self, path: &str, reason: Option<&str>, bytes: (u64, u64)) -> &Self {
        let told = (self.0["path"].as_str(), self.reason());
        assert_eq!(told, (Some(path), reason), "{self:?}");
        assert_eq!(self.bytes(), bytes, "{self:?}");
        let moved = self.0["moves"].as_u64() > Some(0);
        assert!(path != "shm" || moved && self.number("ring_in") > 0 && self.number("ring_out") > 0, "{self:?}");
        self
    }

    /// The process at the other end; and why that end stays with TCP, by its own account.
    #[track_caller]
    pub(crate) fn expect_peer(&self, pid: i32, wrapped: bool, reason: Option<&str>) -> &Self {
        let peer = &self.0["peer_process"];
        let told = (peer["pid"].as_i64(), peer["wrapped"].as_bool(), peer["reason"].as_str());
        assert_eq!(told, (Some(pid.into()), Some(wrapped), reason), "{self:?}");
        self
    }

    /// Why it is with TCP.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.0["reason"]["name"].as_str()
    }

    /// Bytes read and written.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.number("ring_in") + self.number("tcp_in"), self.number("ring_out") + self.number("tcp_out"))
    }

    /// A counter.
    #[track_caller]
    pub(crate) fn number(&self, key: &str) -> u64 {
        self.0[key].as_u64().unwrap_or_else(|| panic!("no {key}: {self:?}"))
    }

    /// Its line of the table says the same.
    #[track_caller]
    fn assert_shown_in(&self, text: &str) {
        let word = |key: &str| self.0[key].as_str().unwrap_or("?").to_owned();
        let numbers =
            ["ring_in", "ring_out", "tcp_in", "tcp_out", "moves", "bells"].map(|key| self.number(key).to_string());
        let mut wanted = vec![self.number("fd").to_string(), word("local"), word("peer"), word("path")];
        wanted.extend(numbers);
        let line = text.lines().find(|line| line.split_whitespace().take(wanted.len()).eq(wanted.iter()));
        let line = line.unwrap_or_else(|| panic!("no line {wanted:?} in {text}"));
        match (self.reason(), self.0["reason"]["text"].as_str()) {
            (Some(name), Some(sentence)) => assert!(line.contains(&format!("{name}: {sentence}")), "{line}"),
            _ => assert!(!line.split("peer: process ").next().unwrap_or(line).contains(": "), "no reason: {line}"),
        }
    }
}

/// A program that is talked to line by line; ended with all it started when this is dropped.
pub(crate) struct Actor {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Actor {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> Self {
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: prctl is async-signal-safe: a test that is killed takes its programs along.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{:?}: {e}", command.get_program()));
        let (tell, lines) = channel();
        let output: ChildStdout = child.stdout.take().expect("a pipe");
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if tell.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        Self { input: child.stdin.take(), child, lines }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// The next line that it prints.
    #[track_caller]
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(WATCHDOG).unwrap_or_else(|_| panic!("process {} says nothing", self.pid()))
    }

    /// A number that it prints.
    #[track_caller]
    pub(crate) fn number(&self) -> i32 {
        let line = self.line();
        line.parse().unwrap_or_else(|_| panic!("no number: {line}"))
    }

    /// Waits until it prints `word`.
    #[track_caller]
    pub(crate) fn expect_line(&self, word: &str) -> &Self {
        assert_eq!(self.line(), word);
        self
    }

    /// Gives it bytes to read.
    pub(crate) fn give(&mut self, bytes: &[u8]) {
        self.input.as_mut().expect("a pipe").write_all(bytes).expect("a reader");
    }

    /// Tells it a line.
    pub(crate) fn send_line(&mut self, line: &str) {
        self.give(format!("{line}\n").as_bytes());
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // A group of ours: its leader has not been waited for by anybody else.
        let _ = net::kill(-self.pid(), libc::SIGKILL);
        let _ = self.child.wait();
    }
}

/// A server that prints its port first.
#[track_caller]
pub(crate) fn listening(command: &mut Command) -> (Actor, String) {
    let server = Actor::start(command);
    let port = server.line();
    (server, port)
}

/// A client that plays as many rounds as each line requests.
#[track_caller]
pub(crate) fn played(command: &mut Command, rounds: u32) -> Actor {
    let mut client = Actor::start(command);
    client.send_line(&rounds.to_string());
    client.expect_line("done");
    client
}

/// Runs a command: exit status, output, and what went to standard error.
pub(crate) fn output_of(command: &mut Command) -> (i32, String, String) {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    child.stdout.take().expect("a pipe").read_to_end(&mut out).expect("output");
    child.stderr.take().expect("a pipe").read_to_end(&mut err).expect("output");
    let status = child.wait().expect("its status").code().unwrap_or(-1);
    (status, String::from_utf8_lossy(&out).into_owned(), String::from_utf8_lossy(&err).into_owned())
}

/// A program that has to be there.
pub(crate) fn need(program: &str) -> Result<PathBuf, Missing> {
    host::find_program(program).ok_or_else(|| Missing(format!("{program} is not installed")))
}

/// Most hosts let only root do what this scene does.
pub(crate) fn need_root() -> Played {
    if host::is_root() { Ok(()) } else { Err(Missing("only root can do this".to_owned())) }
}

/// A command with more in its environment.
pub(crate) fn with(mut command: Command, name: &str, value: impl AsRef<OsStr>) -> Command {
    command.env(name, value);
    command
}

/// What the Python programs share.
const PRELUDE: &str = r#"
import array, ctypes, os, socket, sys, time
def say(*words): print(*words, flush=True)
def told(): return sys.stdin.readline().strip()
def listen(address="127.0.0.1"):
    listener = socket.create_server((address, 0))
    say(listener.getsockname()[1])
    return listener
def accept():
    return listen().accept()[0]
def echo(connection):
    while data := connection.recv(65536): connection.sendall(data)
def connect(address="127.0.0.1"):
    return socket.create_connection((address, int(sys.argv[1])))
def play(connection, rounds):
    for _ in range(rounds):
        connection.sendall(b"x" * 100)
        got = 0
        while got < 100: got += len(connection.recv(100 - got))
def rounds(connection):
    for line in sys.stdin:
        play(connection, int(line))
        say("done")
"#;

/// Answers with what it gets, then stays.
pub(crate) const ECHO: &str = "
connection = accept()
echo(connection)
told()
";

/// As many rounds as each line says.
pub(crate) const CLIENT: &str = "rounds(connect())";
