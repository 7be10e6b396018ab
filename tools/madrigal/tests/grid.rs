//! `madrigal grid`, by the real command: a grid whose hosts are directories of this machine, each with a daemon at a port of its own.
//!
//! Features (docs/features.md): B10, B18, D3, L2.

mod common;

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use common::bed::{free_port, until};
use common::{Folder, command, run};
use serde_json::Value;

/// Hosts of a grid: directories with a home and a runtime directory each.
struct Hosts {
    folder: Folder,
}

impl Hosts {
    fn new(what: &str) -> Self {
        Self { folder: Folder::new(&format!("grid-{what}")) }
    }

    /// `madrigal` as it is typed on a host.
    fn on(&self, host: &str, args: &[&str]) -> Command {
        let home = self.folder.0.join(host);
        std::fs::create_dir_all(home.join("run")).unwrap();
        let mut command = command();
        command.args(args).env("HOME", &home).env("XDG_RUNTIME_DIR", home.join("run")).env_remove("XDG_CONFIG_HOME");
        command.env("PATH", format!("{}:{}", self.folder.path("bin"), std::env::var("PATH").unwrap()));
        command
    }

    fn run(&self, host: &str, args: &[&str]) -> (Option<i32>, String, String) {
        run(&mut self.on(host, args))
    }

    #[track_caller]
    fn good(&self, host: &str, args: &[&str]) -> String {
        let (status, out, err) = self.run(host, args);
        assert_eq!(status, Some(0), "{args:?}: {out}{err}");
        out
    }

    #[track_caller]
    fn json(&self, host: &str, args: &[&str]) -> Value {
        let out = self.good(host, &[args, &["--json"]].concat());
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{args:?}: {out}"))
    }

    #[track_caller]
    fn bad(&self, host: &str, status: i32, args: &[&str], words: &[&str]) {
        let (found, out, err) = self.run(host, args);
        assert_eq!(found, Some(status), "{args:?}: {out}{err}");
        words.iter().for_each(|word| assert!(err.contains(word), "{args:?}: no `{word}` in {err}"));
    }

    /// Pastes a line on a host, and types a code.
    fn paste(&self, host: &str, line: &str, code: &str) -> (Option<i32>, String, String) {
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        let mut command = self.on(host, &words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "{code}").unwrap();
        let done = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    }

    fn file(&self, host: &str, name: &str) -> std::path::PathBuf {
        self.folder.0.join(host).join(".config/madrigal").join(name)
    }

    fn text(&self, host: &str) -> String {
        std::fs::read_to_string(self.file(host, "grid.toml")).unwrap()
    }

    /// Stands in for ssh, which is no part of this: the host's name is its directory, and `away` does not answer.
    fn ssh(&self) {
        std::fs::create_dir_all(self.folder.path("bin")).unwrap();
        let script = format!(
            "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nto=${{2#*@}}\n[ \"$to\" != away ] || {{ echo 'ssh: connect to host away port 22: No route to host' >&2; exit 255; }}\n\
             mkdir -p {0}/$to/run\nHOME={0}/$to XDG_RUNTIME_DIR={0}/$to/run exec sh -c \"$3\"\n",
            self.folder.path("")
        );
        self.folder.file("bin/ssh", 0o755, &script);
        let _ = std::os::unix::fs::symlink(common::exe(), self.folder.path("bin/madrigal"));
    }

    /// Waits until a host has links with so many others.
    #[track_caller]
    fn linked(&self, host: &str, count: usize) {
        until("links", || {
            let status = self.json(host, &["status"]);
            let linked =
                status["peers"].as_array().unwrap().iter().filter(|peer| !peer["links"].as_array().unwrap().is_empty());
            (linked.count() == count).then_some(())
        });
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in
            std::fs::read_dir(&self.folder.0).unwrap().flatten().filter(|entry| entry.path().join("run").exists())
        {
            let _ = self.run(host.file_name().to_str().unwrap(), &["down"]);
        }
    }
}

#[test]
fn from_nothing_to_three_hosts_by_lines_and_by_ssh() {
    let hosts = Hosts::new("three");
    hosts.ssh();
    let at = || format!("127.0.0.1:{}", free_port());
    let (a1, b1, r) = (at(), at(), at());
    let made = hosts.json("a1", &["grid", "init", "lyon"]);
    assert_eq!(made["grid"], "lyon");
    hosts.bad("a1", 1, &["grid", "init", "lyon"], &["grid.toml is there already", "madrigal grid add HOST"]);
    let told = hosts.good("a1", &["grid", "add", "a1", "--site", "a", "--address", &a1, "--here"]);
    assert!(told.contains("a1: up on a1, process "), "{told}");
    let told = hosts.json("a1", &["grid", "add", "r", "--site", "public", "--address", &r, "--relay", "--ssh", "me@r"]);
    assert_eq!((&told["delivered"], &told["others"][0]["host"]), (&"ssh".into(), &"a1".into()), "{told:#}");
    assert!(told["others"][0]["said"].as_str().unwrap().contains("added r"), "{told:#}");
    hosts.linked("a1", 1);
    // A host that ssh does not reach: those that it reaches learn of it.
    let told = hosts.json("a1", &["grid", "add", "b1", "--site", "b", "--address", &b1, "--allow", "6379"]);
    assert_eq!(
        (&told["delivered"], &told["others"][1]["host"], &told["others"][1]["ok"]),
        (&"line".into(), &"r".into(), &true.into()),
        "{told:#}"
    );
    let (line, code) =
        (told["line"]["line"].as_str().unwrap().to_owned(), told["line"]["code"].as_str().unwrap().to_owned());
    assert!(!hosts.file("a1", "issued").exists(), "no key of another host stays here");
    let (status, _, err) = hosts.paste("b1", &line, "0000-0000");
    assert!(status == Some(1) && err.contains("the code is not that of this line"), "{err}");
    assert!(!hosts.file("b1", "").exists());
    let (status, out, err) = hosts.paste("b1", &line, &code.to_lowercase());
    assert!(status == Some(0) && out.contains("up on b1, process "), "{out}{err}");
    let mode = |path: std::path::PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(hosts.file("b1", "")), mode(hosts.file("b1", "host.pem"))), (0o700, 0o600));
    hosts.linked("b1", 2);
    assert_eq!((hosts.text("b1"), hosts.text("r")), (hosts.text("a1"), hosts.text("a1")));
    // All is well; the other hosts are checked by the reports of their daemons.
    let checked = hosts.json("a1", &["grid", "check"]);
    assert_eq!(checked["state"], "ok", "{checked:#}");
    // A change by hand goes to those that ssh reaches; for the others there is a line.
    let text = hosts.text("a1").replace("[site.b]\n", "[site.b]\nhosts.b2 = [] # next week\n");
    std::fs::write(hosts.file("a1", "grid.toml"), &text).unwrap();
    assert_eq!(hosts.good("a1", &["grid", "reload"]), "grid.toml read again: added b2\n");
    let told = hosts.good("a1", &["grid", "push"]);
    assert!(
        told.contains("r: up since ") && told.contains("added b2") && told.contains("madrigal grid push b2 b1"),
        "{told}"
    );
    let (status, out, _) = hosts.run("a1", &["grid", "check"]);
    assert!(status == Some(2) && out.contains("it does not know b2") && out.contains("madrigal grid push b1"), "{out}");
    let told = hosts.json("a1", &["grid", "push", "b1"]);
    let (line, code) =
        (told["line"]["line"].as_str().unwrap().to_owned(), told["line"]["code"].as_str().unwrap().to_owned());
    let (status, out, err) = hosts.paste("b1", &line, &code);
    assert!(status == Some(0) && out.contains("added b2"), "{out}{err}");
    assert_eq!(hosts.text("b1"), text);
}

#[test]
fn a_host_gets_a_new_certificate_and_the_earlier_one_is_taken_back() {
    let hosts = Hosts::new("again");
    hosts.ssh();
    let at = format!("127.0.0.1:{}", free_port());
    hosts.good("a1", &["grid", "init"]);
    hosts.bad("a1", 2, &["grid", "add", "b1"], &["--site"]);
    hosts.bad("a1", 2, &["grid", "add", "b1", "--again"], &["has no host b1", "--site SITE"]);
    hosts.good("a1", &["grid", "add", "b1", "--site", "b", "--address", &at, "--ssh", "b1"]);
    hosts.bad("a1", 2, &["grid", "add", "b1", "--site", "b"], &["grid.toml has host b1 already", "--again"]);
    let first = std::fs::read(hosts.file("b1", "host.pem")).unwrap();
    let told = hosts.good("a1", &["grid", "add", "b1", "--again"]);
    assert!(told.contains("b1: up since "), "{told}");
    assert_ne!(std::fs::read(hosts.file("b1", "host.pem")).unwrap(), first);
    let books = hosts.json("a1", &["ca", "list"]);
    let revoked: Vec<bool> = books.as_array().unwrap().iter().map(|entry| entry["revoked"].is_i64()).collect();
    assert_eq!(revoked, [true, false]);
    // The output of ssh is shown, and what to type after it is repaired.
    let words = [
        "ssh me@away: ssh: connect to host away port 22: No route to host",
        "type ssh me@away true",
        "madrigal grid add c1 --again",
    ];
    hosts.bad("a1", 1, &["grid", "add", "c1", "--site", "c", "--ssh", "me@away"], &words);
    let words = ["install madrigal there", "--command PATH"];
    hosts.bad("a1", 1, &["grid", "add", "c1", "--again", "--ssh", "c1", "--command", "/nonexistent/madrigal"], &words);
    let told = hosts.good("a1", &["grid", "add", "c1", "--again"]);
    assert!(told.contains("c1: up on c1"), "{told}");
}

#[test]
fn what_makes_no_sense_is_refused_and_the_file_stays() {
    let hosts = Hosts::new("sense");
    hosts.bad(
        "a1",
        1,
        &["grid", "add", "b1", "--site", "b"],
        &["there is no key of a grid in ", "madrigal grid init NAME"],
    );
    hosts.bad("a1", 2, &["grid", "init", "Lyon"], &["is no name"]);
    hosts.good("a1", &["grid", "init", "lyon"]);
    hosts.good("a1", &["grid", "add", "b1", "--site", "b", "--allow", "22"]);
    let text = hosts.text("a1");
    for (args, words) in [
        (vec!["grid", "add", "B2", "--site", "b"], vec!["is no name"]),
        (vec!["grid", "add", "b2", "--site", "b c"], vec!["is no name"]),
        (vec!["grid", "add", "b2", "--site", "b", "--address", "b2.example.org"], vec!["give an address such as"]),
        (vec!["grid", "add", "b2", "--site", "b", "--allow", "ssh"], vec!["such as 80,8000-8010"]),
        (vec!["grid", "add", "b2", "--site", "b", "--allow", "80"], vec!["site b has allow = \"22\" already"]),
        (vec!["grid", "add", "b2", "--site", "b", "--ssh", "-oProxyCommand=x"], vec![]),
        (vec!["grid", "add", "b2", "--site", "b", "--ssh", "b2 x"], vec!["must be where ssh goes"]),
        (vec!["grid", "add", "b2", "--site", "b", "--ssh", "b2", "--here"], vec!["cannot be used with"]),
        (vec!["grid", "push", "b9"], vec!["has no host `b9`"]),
    ] {
        hosts.bad("a1", 2, &args, &words);
    }
    hosts.bad("b1", 2, &["grid", "join", "m1.AAAA"], &["type the code that madrigal grid add showed"]);
    hosts.bad("a1", 1, &["grid", "reload"], &["no daemon of yours is up"]);
    assert_eq!(hosts.text("a1"), text);
    // An error in a file is reported by line and key, by all that read it, and the file is not written.
    let wrong = text.replace("hosts.b1", "host.b1");
    std::fs::write(hosts.file("a1", "grid.toml"), &wrong).unwrap();
    let line = 1 + wrong.lines().position(|line| line.starts_with("host.b1")).unwrap();
    let place = format!("grid.toml:{line}: site.b.host: there is no such key; did you mean `hosts`?");
    hosts.bad("a1", 2, &["grid", "add", "b2", "--site", "b"], &[&place]);
    hosts.bad("a1", 2, &["grid", "push"], &[&place]);
    let (status, out, _) = hosts.run("a1", &["grid", "check"]);
    assert!(status == Some(2) && out.contains(&place) && out.contains("-> correct that line"), "{out}");
    assert_eq!(hosts.text("a1"), wrong);
}

#[test]
fn a_description_is_checked_without_a_daemon() {
    let hosts = Hosts::new("check");
    let check = |text: &str| {
        let file = hosts.folder.file("grid.toml", 0o644, text);
        let (status, out, _) = hosts.run("a1", &["grid", "check", &file, "--json"]);
        let answer: Value = serde_json::from_str(&out).unwrap();
        let wrong = answer["checks"].as_array().unwrap().iter().filter(|check| check["state"] != "ok");
        (status.unwrap(), wrong.map(|check| check["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>())
    };
    let two = "[site.a]\nhosts.a7 = []\n[site.b]\nhosts.b7 = []\n";
    let relay = "[site.r]\nhosts.r7 = '203.0.113.2'\nrelay = 'r7'\n";
    let none: Vec<String> = Vec::new();
    assert_eq!(check(&format!("{two}{relay}")), (0, none.clone()));
    assert_eq!(check(&two.replace("a7 = []", "a7 = '198.51.100.2'")), (0, none));
    assert_eq!(check(two), (2, vec!["ways".to_owned()]));
    assert_eq!(check(&format!("{two}{}", relay.replace("'203.0.113.2'", "[]"))), (1, vec!["ways".to_owned()]));
    assert_eq!(
        check("[site.a]\nhosts = { A7 = '10.0.0.1', a8 = '10.0.0.1' }\n"),
        (2, vec!["name A7".to_owned(), "addresses".to_owned()])
    );
    assert_eq!(check("[site.a]\n"), (2, vec!["grid.toml".to_owned()]));
    // A word that means more than was meant.
    let ambiguous = "[site.a]\nhosts.b = '198.51.100.2'\n[site.b]\nhosts.b7 = []\n";
    assert_eq!(check(ambiguous), (0, Vec::new()));
    assert_eq!(check(&format!("{ambiguous}deny = 'b'\n")), (1, vec!["name b".to_owned()]));
    // What is no file, and what forges a line.
    let fifo = hosts.folder.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let (status, out, _) = hosts.run("a1", &["grid", "check", &fifo]);
    assert!(status == Some(2) && out.contains("it is a FIFO, and no file"), "{out}");
    let file = hosts.folder.file("grid.toml", 0o644, "[site.\"a\\nok    grid.toml  good\\u001b[2J\"]\n");
    let (status, out, _) = hosts.run("a1", &["grid", "check", &file]);
    assert!(status == Some(2) && !out.contains('\u{1b}') && !out.lines().any(|line| line.starts_with("ok")), "{out}");
}

#[test]
fn a_description_that_the_host_would_not_take_replaces_nothing() {
    let hosts = Hosts::new("refused");
    let at = format!("127.0.0.1:{}", free_port());
    hosts.good("a1", &["grid", "init"]);
    let told = hosts.json("a1", &["grid", "add", "b1", "--site", "b", "--address", &at]);
    let words = |told: &Value| ["line", "code"].map(|key| told["line"][key].as_str().unwrap().to_owned());
    let [line, code] = words(&told);
    assert_eq!(hosts.paste("b1", &line, &code).0, Some(0));
    let before = hosts.text("b1");
    // Of another version, as it may be; and one in which the host is not.
    for (text, why) in [
        (format!("{before}[ways.x]\na = 1\n"), "grid.toml:"),
        ("[site.c]\nhosts.c1 = []\n".to_owned(), "it has no host b1, which this one is"),
    ] {
        let parcel =
            madrigal_identity::Parcel::update(&hosts.file("a1", ""), &text, madrigal_identity::Moment::now().plus(60));
        let (line, code) = parcel.unwrap().seal().unwrap();
        let (status, _, err) = hosts.paste("b1", &format!("madrigal grid join {line}"), &code);
        assert!(status == Some(1) && err.contains(why) && err.contains("nothing is changed"), "{err}");
        assert_eq!(hosts.text("b1"), before);
        assert!(!hosts.file("b1", "grid.toml.old").exists());
    }
}

#[test]
fn two_that_add_at_once_do_not_lose_a_host() {
    let hosts = Hosts::new("once");
    hosts.good("a1", &["grid", "init"]);
    let names: Vec<String> = (0..8).map(|n| format!("h{n}")).collect();
    let children: Vec<_> = names
        .iter()
        .map(|name| {
            let mut command = hosts.on("a1", &["grid", "add", name, "--site", "a"]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let text = hosts.text("a1");
    assert!(names.iter().all(|name| text.contains(&format!("hosts.{name} = []"))), "{text}");
    assert_eq!(hosts.json("a1", &["ca", "list"]).as_array().unwrap().len(), 8);
    let left = std::fs::read_dir(hosts.file("a1", ""))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".grid.toml"));
    assert_eq!(left.count(), 0);
}
