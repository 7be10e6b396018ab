//! What the tests of the command share: the command itself with its library built, real programs, and processes that end with
//! the test.
#![allow(dead_code)]

pub(crate) mod bed;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;

use madrigal_tests::host;

/// The command under test, with the library that it preloads, which is built first.
pub(crate) fn madrigal() -> Command {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| library_beside("libmadrigal_syswrap.so"));
    command()
}

/// The command under test; its environment has no setting of Madrigal's.
pub(crate) fn command() -> Command {
    let mut command = Command::new(exe());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MADRIGAL_") || name == "LD_PRELOAD" {
            command.env_remove(name);
        }
    }
    command
}

/// `madrigal exec` with these arguments.
pub(crate) fn exec(args: &[&str]) -> Command {
    let mut command = madrigal();
    command.arg("exec").args(args);
    command
}

/// Where the command is.
pub(crate) fn exe() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_madrigal"))
}

/// Puts a library that `make build` builds beside the command, by the name under which it is installed.
pub(crate) fn library_beside(name: &str) {
    let installed = exe().with_file_name(name.replace("madrigal_", "madrigal-").replace("ofi", "fi"));
    let built = host::release().join(name);
    if std::fs::read_link(&installed).is_ok_and(|there| there == built) {
        return;
    }
    // Other tests do the same at the same time: a name of this process's, and then a move.
    let fresh = installed.with_extension(std::process::id().to_string());
    let _ = std::fs::remove_file(&fresh);
    std::os::unix::fs::symlink(&built, &fresh).unwrap();
    std::fs::rename(&fresh, &installed).unwrap();
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

/// A directory that ends with the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// A fresh one.
    pub(crate) fn new(what: &str) -> Self {
        let path = std::env::temp_dir().join(format!("madrigal-cli-{}-{what}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The path of a file in it.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file with this mode.
    pub(crate) fn file(&self, name: &str, mode: u32, text: &str) -> String {
        use std::os::unix::fs::PermissionsExt as _;
        if mode & 0o111 != 0 {
            madrigal_tests::host::script(&self.0.join(name), text);
        } else {
            std::fs::write(self.0.join(name), text).unwrap();
        }
        std::fs::set_permissions(self.0.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
        self.path(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program we talk to line by line; killed when the test ends.
pub(crate) struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "the program ended without a word");
        line.trim_end().to_owned()
    }

    /// Tells it a line.
    pub(crate) fn send_line(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// As `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its end: it gets no further line.
    pub(crate) fn finish(mut self) {
        self.send_line("end");
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A plain Python socket server and client. The server prints its port, then echoes; the client makes as many round trips as each
/// line requests, and confirms them; both end at the line `end`.
pub(crate) const ECHO: &str = r#"
import socket, sys, threading
def lines():
    for line in sys.stdin:
        if line.strip() == "end": break
        yield int(line)
if sys.argv[1] == "server":
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    def serve():
        connection, _ = listener.accept()
        while data := connection.recv(65536): connection.sendall(data)
    threading.Thread(target=serve, daemon=True).start()
    for _ in lines(): pass
else:
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    for rounds in lines():
        for _ in range(rounds):
            connection.sendall(b"x" * 100)
            got = 0
            while got < 100: got += len(connection.recv(100 - got))
        print("done", flush=True)
"#;

/// Server and client of [`ECHO`], wrapped or not, with `rounds` round trips made.
pub(crate) fn pair(python: &Path, wrap: (bool, bool), dir: &str, rounds: u32) -> (Running, Running) {
    let start = |wrapped: bool, args: &[&str]| {
        let mut command = if wrapped { exec(&["--"]) } else { Command::new("env") };
        command.arg(python).args(["-c", ECHO]).args(args).env("MADRIGAL_DIR", dir);
        Running::start(&mut command)
    };
    let mut server = start(wrap.0, &["server"]);
    let port = server.line();
    let mut client = start(wrap.1, &["client", &port]);
    client.send_line(&rounds.to_string());
    assert_eq!(client.line(), "done");
    (server, client)
}
