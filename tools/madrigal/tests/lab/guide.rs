//! docs/two-sites.md, line by line: two sites behind NAT, a host that both reach, and the commands of the page, typed there.
//!
//! Features (docs/features.md): B10, B18, G1, L1.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use madrigal_tests::trials::{need, need_all};
use serde_json::Value;

use super::bed::{Bed, Who, need_lab};
use super::common;
use super::common::bed::until;
use super::grid::Grid;
use super::ways::{keys, need_ssh};

/// The page.
const PAGE: &str = include_str!("../../../../docs/two-sites.md");
/// Stands on the page for what a line really has.
const REST: &str = "...";

/// A line of the page that is typed on a host, and the part of its output that the page shows.
struct Typed {
    host: String,
    words: String,
    shown: Vec<String>,
}

/// All of them, in order. A line of a block is typed, or shown below one that is.
fn typed() -> Vec<Typed> {
    let mut all: Vec<Typed> = Vec::new();
    for line in PAGE.lines().filter_map(|line| line.strip_prefix("    ")) {
        match line.split_once("$ ").filter(|(host, _)| host.chars().all(char::is_alphanumeric)) {
            Some((host, words)) => all.push(Typed { host: host.into(), words: words.into(), shown: Vec::new() }),
            None => all.last_mut().expect("something is typed first").shown.push(line.to_owned()),
        }
    }
    all
}

/// Whether a text has a line that the page shows: word by word, with anything for `...`.
fn shows(text: &str, shown: &str) -> bool {
    let plain = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown = plain(shown);
    let parts: Vec<&str> = shown.split(REST).collect();
    text.lines().map(plain).any(|line| {
        let mut rest = line.as_str();
        let found = parts.iter().all(|part| rest.find(part).map(|at| rest = &rest[at + part.len()..]).is_some());
        found && line.starts_with(parts[0])
    })
}

/// The hosts of the page.
struct Stage {
    grid: Grid,
    path: String,
    /// Where the homes of the hosts are.
    home: String,
    /// The line that was printed last, and its code.
    pasted: Option<(String, String)>,
}

impl Stage {
    fn up() -> Self {
        let _ = common::madrigal();
        let bed = Bed::up("two-sites.toml");
        keys(&bed.home, "203.0.113.2");
        let (home, ssh) = (bed.home.folder(), need("ssh"));
        let path = format!("{home}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
        std::fs::create_dir(format!("{home}/bin")).unwrap();
        std::os::unix::fs::symlink(common::exe(), format!("{home}/bin/madrigal")).unwrap();
        // In place of ~/.ssh/config, which belongs to the user that runs the tests.
        let settings = format!(
            "Host *\n  IdentityFile {home}/user\n  IdentitiesOnly yes\n  BatchMode yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
        );
        let settings = bed.home.file("ssh_config", &settings);
        let script = format!("#!/bin/sh\nexec {} -F {settings} \"$@\"\n", ssh.display());
        madrigal_tests::host::script(format!("{home}/bin/ssh").as_ref(), &script);
        let config = std::fs::read_to_string(format!("{home}/sshd_config")).unwrap();
        let variables = format!("PATH={path} HOME={home}/home-r XDG_RUNTIME_DIR=/run/user/0");
        bed.home.file("sshd_config", &format!("{config}SetEnv {variables}\n"));
        let mut stage = Self { grid: Grid::on(bed, "trusted = true\n", &[]), path, home: home.clone(), pasted: None };
        let server = format!("mkdir -p /run/sshd; exec {} -D -e -f {home}/sshd_config", need("sshd").display());
        stage.grid.serve("r", &["sh", "-c", &server]);
        until("a server of ssh", || (stage.on("a1", "ssh root@203.0.113.2 true", None).0 == 0).then_some(()));
        stage.grid.serve("b1", &["redis-server", "--port", "6379", "--save", "", "--bind", "127.0.0.1"]);
        stage
    }

    /// Types a line on a host. Returns its exit status and its output.
    fn on(&self, host: &str, line: &str, input: Option<&str>) -> (i32, String, String) {
        let unset = ["env", "-u", "MADRIGAL_CONFIG_DIR", "-u", "XDG_CONFIG_HOME"];
        let (path, home) = (format!("PATH={}", self.path), format!("HOME={}/home-{host}", self.home));
        let mut command = self.grid.command(host, &[&unset[..], &[path.as_str(), &home, "sh", "-c", line]].concat());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.unwrap_or_default().as_bytes());
        let done = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code().unwrap_or(-1), text(&done.stdout), text(&done.stderr))
    }

    #[track_caller]
    fn good(&self, host: &str, line: &str, input: Option<&str>) -> String {
        let (status, out, err) = self.on(host, line, input);
        assert_eq!(status, 0, "{host}$ {line}\n{out}{err}");
        out
    }

    /// Types a line of the page. What takes a moment to be so is typed until it is.
    fn play(&mut self, typed: &Typed) {
        let Typed { host, words, shown } = typed;
        println!("{host}$ {words}");
        if words.starts_with("madrigal grid join ") {
            let (line, code) = self.pasted.take().expect("a line was printed");
            assert!(words.ends_with(REST) && line.starts_with("madrigal grid join m1."), "{line}");
            let out = self.good(host, &line, Some(&code));
            assert!(out.contains("up"), "{out}");
            return;
        }
        let repeats =
            ["check", "status", "why", "doctor", "exec"].iter().any(|word| words.split(' ').any(|one| one == *word));
        let out = if repeats {
            until(words, || {
                let (status, out, _) = self.on(host, words, None);
                (status == 0 && shown.iter().all(|line| shows(&out, line))).then_some(out)
            })
        } else {
            self.good(host, words, None)
        };
        for line in shown {
            assert!(shows(&out, line), "{host}$ {words}\nno `{line}` in\n{out}");
        }
        let line = out.lines().find(|line| line.starts_with("madrigal grid join "));
        let code = out.lines().find_map(|line| line.strip_prefix("  ").filter(|line| line.len() == 24));
        self.pasted = line.zip(code).map(|(line, code)| (line.to_owned(), format!("{code}\n")));
    }
}

pub(crate) fn every_line_of_the_page_works() {
    need_lab(Who::Me);
    need_ssh();
    need_all(&["redis-server", "redis-cli"]);
    let all = typed();
    let first = all.iter().position(|typed| typed.words.contains("exec --")).unwrap();
    assert!(first < 6, "{} commands to the first connection", first + 1);
    let mut stage = Stage::up();
    for typed in &all {
        stage.play(typed);
    }
    // Who was taken back and came again is there.
    until("a2 again", || {
        let (status, out, _) = stage.on("a1", "madrigal status --json", None);
        let status: Value = (status == 0).then(|| serde_json::from_str(&out).unwrap())?;
        let peers = status["peers"].as_array().unwrap();
        peers.iter().any(|peer| peer["host"] == "a2" && peer["through"] == "through r").then_some(())
    });
    stage.grid.down();
}

/// What README.md shows of it stands on the page.
pub(crate) fn the_readme_leads_to_the_page() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap();
    assert!(readme.contains("(docs/two-sites.md)"));
    let commands: Vec<&str> = readme
        .lines()
        .skip_while(|line| !line.starts_with("## Five minutes to two sites"))
        .filter_map(|line| line.strip_prefix("    "))
        .take_while(|line| line.contains("$ "))
        .collect();
    let page: Vec<String> = typed().iter().map(|typed| format!("{}$ {}", typed.host, typed.words)).collect();
    assert!(commands.len() >= 5, "{commands:?}");
    for command in commands {
        let words = command.split("  #").next().unwrap().trim_end();
        assert!(page.iter().any(|line| line == words), "{words}: not on the page");
    }
}
