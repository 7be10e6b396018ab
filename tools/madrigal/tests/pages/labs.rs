//! Scenes in labs: the grid commands of the pages, typed on its hosts or beside it. Each lab is its test's own, with any name.

use madrigal_tests::trials::{need, need_all};

use super::bed::{Who, example, need_lab};
use super::table::Entry;
use super::terminal::{Terminal, shows};

/// The lab of most pages.
fn two_sites() -> Terminal {
    Terminal::with_lab(&std::fs::read_to_string(example("two-sites.toml")).unwrap())
}

/// README.md, on a host of a lab, where redis's port is free: the first block, and why a connection stays with TCP.
pub(crate) fn exec(lines: &[Entry]) {
    need_lab(Who::Me);
    need_all(&["redis-server", "redis-cli"]);
    let mut terminal = two_sites();
    // A hundredth of the requests: on a busy machine all of them take minutes.
    terminal.stands_in("redis-benchmark", &format!("exec {} -n 1000 \"$@\"", need("redis-benchmark").display()));
    terminal.on("a1");
    let (why, block): (Vec<&Entry>, Vec<&Entry>) = lines.iter().partition(|entry| entry.line.has_prompt());
    let mut said = Vec::new();
    for entry in block {
        said.push(terminal.plays(entry));
        // redis-benchmark waits for ever if there is no listener yet.
        terminal.types("redis-cli ping");
    }
    assert!(said.last().is_some_and(|said| said.contains("requests per second")), "{said:?}");
    terminal.end();
    terminal.types("redis-server &");
    terminal.types("redis-cli ping");
    terminal.types("madrigal exec -- redis-benchmark -l -c 1 -t get &");
    for entry in why {
        assert!(entry.shown.len() > 2, "the page shows what it says");
        terminal.until(entry.line.typed(), "", |said| entry.shown.iter().all(|line| shows(said, line)));
    }
}

/// Labs as README.md and docs/lab.md bring them up. A line without a command opens a shell.
pub(crate) fn lab(lines: &[Entry]) {
    need_lab(Who::Me);
    need_all(&["ping"]);
    let mut terminal = Terminal::new();
    for entry in lines {
        let line = entry.line.typed();
        if line.starts_with("madrigal lab exec") && !line.contains(" -- ") {
            let host = line.split(' ').nth(3).unwrap();
            assert_eq!(terminal.answers(line, "hostname\n"), format!("{host}\n"));
            continue;
        }
        let said = terminal.plays(entry);
        assert!(!line.contains(" ping ") || said.contains(" 0% packet loss"), "{said}");
        assert!(!line.ends_with(" status") || said.contains("two-sites"), "{said}");
        assert!(!line.ends_with(" down") || said.contains("is down"), "{said}");
    }
}

/// A lab with daemons as docs/lab.md brings it up; what other pages show of one.
pub(crate) fn lab_with_daemons(lines: &[Entry]) {
    need_lab(Who::Me);
    need_all(&["redis-server", "redis-cli"]);
    let mut terminal = Terminal::new();
    let (page, others): (Vec<&Entry>, Vec<&Entry>) = lines.iter().partition(|entry| entry.line.page == "docs/lab.md");
    for entry in page {
        let said = terminal.plays(entry);
        assert!(!entry.line.typed().ends_with("ping") || said == "PONG\n", "{said}");
    }
    for entry in others {
        // docs/daemon.md: on a1.
        if !entry.line.typed().contains("lab exec") {
            terminal.on("a1");
        }
        assert_eq!(terminal.plays(entry), "PONG\n");
    }
}

/// What b1 says at port 22.
const SERVER: &str = "import socket\ns = socket.create_server(('127.0.0.1', 22))\nwhile True:\n    \
    c, a = s.accept()\n    c.sendall(b'here is b1\\n')\n    c.close()\n";
/// The same file on every host.
const GRID: &str = "trusted = true\n[site.a]\nhosts.a1 = []\n[site.public]\nhosts.r = '203.0.113.2'\nrelay = ['r']\n\
    [site.b]\nhosts.b1 = []\nallow = '22,6379'\n";

/// docs/daemon.md: from the daemons' beginning to their end.
pub(crate) fn daemon(lines: &[Entry]) {
    need_lab(Who::Me);
    need_all(&["redis-server", "redis-cli", "python3"]);
    let mut terminal = two_sites();
    terminal.file("grid.toml", GRID);
    terminal.on("b1");
    terminal.types("redis-server --save '' --bind 127.0.0.1 &");
    terminal.file("server.py", SERVER);
    terminal.types("python3 server.py &");
    terminal.types("redis-cli ping");
    for entry in lines {
        let line = entry.line.typed();
        if let Some(up) = line.strip_suffix("--host a1") {
            for host in ["r", "b1"] {
                terminal.on(host);
                terminal.types(&format!("{up}--host {host}"));
            }
            terminal.on("a1");
        }
        let said = terminal.plays(entry);
        assert!(!line.ends_with(" connect b1:22") || said == "here is b1\n", "{said}");
        assert!(!line.ends_with(" ping") || said == "PONG\n", "{said}");
    }
    assert_eq!(terminal.once("madrigal status", "").0, 1);
}

/// The hosts of docs/run.md.
const HOSTS: &str = "[site.s]\nnetwork = '10.1.0.0/24'\nhosts = ['a', 'b']\n";
/// What is run there: each says who it is.
const RANK: &str = "echo ${0##*/} $PMI_RANK of $PMI_SIZE on $(hostname)";

/// docs/run.md: jobs on this host, and on two. A script stands in for ssh.
pub(crate) fn run(lines: &[Entry]) {
    need_lab(Who::Me);
    let mut terminal = Terminal::with_lab(HOSTS);
    ["ring", "master", "worker"].iter().for_each(|name| terminal.script(name, RANK));
    let runtime = format!("XDG_RUNTIME_DIR={}/run", terminal.folder());
    let enter = "while [ \"${1#-}\" != \"$1\" ]; do [ \"$1\" != -o ] || shift; shift; done; host=$1; shift; [ \"$1\" != -- ] || shift";
    terminal.stands_in("ssh", &format!("{enter}\nexec env {runtime} madrigal lab exec $host -- sh -c \"$*\""));
    for entry in lines {
        let said = terminal.plays(entry);
        let mut ranks: Vec<&str> = said.lines().collect();
        ranks.sort_unstable();
        let line = entry.line.typed();
        let (names, hosts) = if line.contains("./worker") {
            (["master", "worker", "worker", "worker"], None)
        } else {
            (["ring"; 4], line.contains("--host a:2,b:2").then_some(["a", "a", "b", "b"]))
        };
        let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let hosts = hosts.unwrap_or([here.trim(); 4]);
        let all: Vec<String> = (0..4).map(|n| format!("{} {n} of 4 on {}", names[n], hosts[n])).collect();
        assert_eq!(ranks, all, "{line}");
    }
}
