//! A terminal for lines: a shell with a home of its own, in a copy of the tree, on this machine or on a host of a lab.

use std::fs::{File, create_dir, create_dir_all, read_dir, write};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::bed::{Home, Who, run};
use super::common;
use super::lines::root;
use super::table::Entry;

/// How long a line is typed again where it needs what has just been started.
const PATIENCE: Duration = Duration::from_secs(30);
/// Ends a line that hangs.
const WATCHDOG: &str = "120";

/// A shell, what it has exported, and what it has started.
pub(crate) struct Terminal {
    home: Home,
    folder: String,
    host: Option<String>,
    /// `export` lines: they hold for what follows.
    exports: String,
    running: Vec<Child>,
}

impl Terminal {
    /// At this machine, in something like a clone.
    pub(crate) fn new() -> Self {
        let _ = common::madrigal();
        let home = Home::new(Who::Me);
        let folder = home.folder();
        for name in ["bin", "clone"] {
            create_dir(format!("{folder}/{name}")).unwrap();
        }
        symlink(common::exe(), format!("{folder}/bin/madrigal")).unwrap();
        for entry in read_dir(root()).unwrap().flatten() {
            if !["target", ".git"].iter().any(|name| entry.file_name() == *name) {
                symlink(entry.path(), format!("{folder}/clone/{}", entry.file_name().display())).unwrap();
            }
        }
        let mut terminal = Self { home, folder, host: None, exports: String::new(), running: Vec::new() };
        terminal.at_home("user");
        terminal
    }

    /// With a lab up, which this text describes.
    pub(crate) fn with_lab(text: &str) -> Self {
        let terminal = Self::new();
        let file = terminal.file("lab.toml", text);
        let (status, out, err) = run(&mut terminal.home.lab(&["up", &file]));
        assert_eq!(status, 0, "{out}{err}");
        terminal
    }

    /// The following lines are typed in a user's home.
    pub(crate) fn at_home(&mut self, name: &str) {
        create_dir_all(self.home_of(name)).unwrap();
        self.export(&format!("HOME={}", self.home_of(name)));
    }

    pub(crate) fn home_of(&self, name: &str) -> String {
        format!("{}/home-{name}", self.folder)
    }

    /// What follows is typed on a host of the lab.
    pub(crate) fn on(&mut self, host: &str) {
        self.host = Some(host.to_owned());
    }

    /// What follows is typed with these variables.
    pub(crate) fn export(&mut self, settings: &str) {
        self.exports += &format!("export {settings}\n");
    }

    /// Where its files are.
    pub(crate) fn folder(&self) -> &str {
        &self.folder
    }

    /// Writes a file where lines are typed.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = format!("{}/clone/{name}", self.folder);
        write(&path, text).unwrap();
        path
    }

    /// Writes a script where lines are typed, which may be executed.
    pub(crate) fn script(&self, name: &str, text: &str) {
        let path = format!("{}/clone/{name}", self.folder);
        madrigal_tests::host::script(path.as_ref(), &format!("#!/bin/sh\n{text}\n"));
    }

    /// Puts a script where a program is looked for first: it stands in for that one.
    pub(crate) fn stands_in(&self, name: &str, text: &str) {
        self.script(&format!("../bin/{name}"), text);
    }

    /// A shell that has this line.
    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", WATCHDOG]);
        if let Some(host) = &self.host {
            command.args([&self.home.exe(), "lab", "exec", host, "--"]);
        }
        command.args(["sh", "-c", &format!("{}{line}", self.exports)]);
        let mine = |name: &str| {
            name.starts_with("MADRIGAL_") || ["LD_PRELOAD", "MAKEFLAGS", "XDG_CONFIG_HOME"].contains(&name)
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| mine(&name.to_string_lossy())) {
            command.env_remove(name);
        }
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}/bin:{path}:/usr/sbin:/sbin", self.folder));
        // Jobs of MPIs, of which tests beside this one have some, too, keep their sessions there.
        command.env("TMPDIR", &self.folder);
        command.env("XDG_RUNTIME_DIR", self.home.runtime()).current_dir(format!("{}/clone", self.folder));
        command
    }

    /// Types a line once. Returns its exit status and its output, errors last.
    pub(crate) fn once(&self, line: &str, input: &str) -> (i32, String) {
        let mut command = self.shell(line);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let done = child.wait_with_output().unwrap();
        let said = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (done.status.code().unwrap_or(-1), said.concat())
    }

    /// Types a line. Returns its output. It must succeed, at once or when the command before a `&` is ready.
    pub(crate) fn types(&mut self, line: &str) -> String {
        self.answers(line, "")
    }

    /// The same, with something to read.
    pub(crate) fn answers(&mut self, line: &str, input: &str) -> String {
        if let Some(line) = line.strip_suffix('&') {
            self.start(line);
            return String::new();
        }
        if let Some(settings) = line.strip_prefix("export ") {
            self.export(settings);
            return String::new();
        }
        self.until(line, input, |_| true)
    }

    /// Types it until it succeeds with the right output.
    pub(crate) fn until(&mut self, line: &str, input: &str, good: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let (status, said) = self.once(line, input);
            if status == 0 && good(&said) {
                return said;
            }
            let all = || (1..=self.running.len()).map(|at| self.said(at)).collect::<String>();
            assert!(
                !self.running.is_empty() && Instant::now() < end,
                "$ {line}\n{said}exit status {status}\n{}",
                all()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Types the line of the page. Returns its output.
    pub(crate) fn plays(&mut self, entry: &Entry) -> String {
        println!("{}", entry.line.place());
        self.types(entry.line.typed())
    }

    /// Starts what runs until the end.
    fn start(&mut self, line: &str) {
        let file = File::create(format!("{}/said-{}", self.folder, self.running.len() + 1)).unwrap();
        let mut command = self.shell(line);
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file).process_group(0);
        self.running.push(command.spawn().unwrap());
    }

    /// The output of one of them.
    fn said(&self, number: usize) -> String {
        std::fs::read_to_string(format!("{}/said-{number}", self.folder)).unwrap_or_default()
    }

    /// Ends them.
    pub(crate) fn end(&mut self) {
        for mut child in self.running.drain(..) {
            let group = Pid::from_child(&child);
            let _ = kill_process_group(group, Signal::KILL);
            let _ = child.wait();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whether a line of the output is a line that the page shows: word by word, any number for a number, anything for `...`.
pub(crate) fn shows(said: &str, shown: &str) -> bool {
    let number = |word: &str| word.contains(|c: char| c.is_ascii_digit());
    let same = |line: &str| {
        let mut words = line.split_whitespace();
        for shown in shown.split_whitespace() {
            match words.next() {
                _ if shown == "..." => return true,
                Some(word) if word == shown || number(word) && number(shown) => {}
                _ => return false,
            }
        }
        words.next().is_none()
    };
    said.lines().any(same)
}
