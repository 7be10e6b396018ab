//! Many connections, few descriptors, little memory, and no work for nothing.
//!
//! Features (docs/features.md): P2.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;

use madrigal_report::{Path as Way, Record, Report};
use madrigal_tests::host::{self, How, Running, Scratch};
use madrigal_tests::net;
use madrigal_tests::trials::{need, skip};

madrigal_tests::trials![
    a_thousand_idle_connections_cost_no_time,
    ten_thousand_connections_in_64_megabytes,
    short_connections_by_the_thousand,
    descriptors_run_out_as_in_a_plain_program,
    large_receives_to_fresh_memory_are_whole_and_take_huge_pages,
];

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");

fn start(scratch: &Scratch, words: &[&str]) -> Running {
    Running::start(host::command(How::Wrapped, ACTOR, scratch).args(words))
}

fn echo(scratch: &Scratch) -> (Running, String) {
    let file = scratch.path().join("port");
    let server = start(scratch, &["echo", file.to_str().unwrap()]);
    let port = host::until("a port", || std::fs::read_to_string(&file).ok());
    (server, port)
}

/// A server and a client with `count` connections in rings, both idle.
fn crowd(scratch: &Scratch, count: usize) -> (Running, Running, std::path::PathBuf) {
    let (server, port) = echo(scratch);
    let idle = scratch.path().join("idle");
    let client = start(scratch, &["many", &port, &count.to_string(), idle.to_str().unwrap()]);
    let moved = host::until("an idle client", || std::fs::read_to_string(&idle).ok().filter(|t| !t.is_empty()));
    assert_eq!(moved, count.to_string(), "connections in rings");
    (server, client, idle)
}

fn missed(pid: i32) -> u64 {
    Report::of(pid as u32).map_or(0, |r| r.missed_bells().load(Ordering::Relaxed))
}

/// Processor time of a process so far, in clock ticks.
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // utime and stime: fields 14 and 15, where the state, the first one here, is field 3.
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn a_thousand_idle_connections_cost_no_time() {
    let scratch = Scratch::new();
    let (server, client, idle) = crowd(&scratch, 1000);
    // Whatever is still under way comes to rest.
    net::sleep_ms(300);
    let pids = [server.pid(), client.pid()];
    let before = pids.map(ticks);
    net::sleep_ms(10_000);
    for (pid, before) in pids.iter().zip(before) {
        // 0.5 % of one processor: 5 of 1000 ticks. (The client sleeps 100 times and looks for a file.)
        let used = ticks(*pid) - before;
        assert!(used <= 5, "{used} ticks in ten seconds");
    }
    assert_eq!(missed(server.pid()), 0);
    std::fs::remove_file(idle).unwrap();
    assert!(client.wait().expect_success().text().contains("path=shm why=none missed=0"));
}

/// Real memory of all shared files these processes hold, each counted once.
fn shared_bytes(pids: &[i32], name: &str) -> u64 {
    let mut seen = HashMap::new();
    for pid in pids {
        let entries = std::fs::read_dir(format!("/proc/{pid}/map_files")).into_iter().flatten();
        for entry in entries.filter_map(Result::ok) {
            let named = std::fs::read_link(entry.path()).is_ok_and(|t| t.to_string_lossy().contains(name));
            if let (true, Ok(meta)) = (named, std::fs::metadata(entry.path())) {
                seen.insert(meta.ino(), meta.blocks() * 512);
            }
        }
    }
    assert!(!seen.is_empty(), "no {name} is mapped");
    seen.values().sum()
}

fn ten_thousand_connections_in_64_megabytes() {
    const COUNT: usize = 9_900;
    if !can_open(10_200) {
        skip("the limit of open files is below 10,200");
    }
    let scratch = Scratch::new();
    let (server, client, idle) = crowd(&scratch, COUNT);
    let pids = [server.pid(), client.pid()];
    let arenas = shared_bytes(&pids, "madrigal-arena");
    let table: u64 =
        std::fs::read_dir(scratch.shared()).unwrap().map(|e| e.unwrap().metadata().unwrap().blocks() * 512).sum();
    assert!(arenas + table <= 64 << 20, "{arenas} bytes of arenas and {table} of the table");
    let in_shm = |r: &&Record| r.path.load(Ordering::Relaxed) == Way::Shm as u32;
    assert_eq!(Report::of(pids[0] as u32).unwrap().records().filter(in_shm).count(), COUNT);
    assert_eq!(missed(server.pid()), 0);
    std::fs::remove_file(idle).unwrap();
    assert!(client.wait().expect_success().text().contains("missed=0"));
}

fn can_open(n: u64) -> bool {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|l| l.starts_with("Max open files")).unwrap_or_default();
    let soft = line.split_whitespace().nth(3).unwrap_or("0");
    soft == "unlimited" || soft.parse::<u64>().is_ok_and(|limit| limit >= n)
}

fn short_connections_by_the_thousand() {
    let scratch = Scratch::new();
    let (server, port) = echo(&scratch);
    let ended = host::run(host::command(How::Wrapped, ACTOR, &scratch).args(["bomb", &port, "20", "100"]));
    assert!(ended.expect_success().text().contains("done missed=0"));
    assert_eq!(missed(server.pid()), 0);
    // All closed: no descriptor is left behind, and the server still serves.
    let pid = server.pid();
    host::until("the last connection to go", || (open_files(pid) < 40).then_some(()));
    let text = host::run(host::command(How::Wrapped, ACTOR, &scratch).args(["ask", &port])).expect_success().text();
    assert!(text.contains("path=shm"), "{text}");
    let mut server = server;
    server.kill();
    let file = scratch.path().join("next");
    host::run(host::command(How::Wrapped, ACTOR, &scratch).args(["both", file.to_str().unwrap()])).expect_success();
    scratch.assert_empty();
}

fn open_files(pid: i32) -> usize {
    std::fs::read_dir(Path::new("/proc").join(pid.to_string()).join("fd")).map_or(usize::MAX, Iterator::count)
}

fn descriptors_run_out_as_in_a_plain_program() {
    let scratch = Scratch::new();
    for limit in ["12", "13", "32", "33", "100"] {
        let run = |how| host::run(host::command(how, ACTOR, &scratch).args(["files", limit])).expect_success().text();
        assert_eq!(run(How::Wrapped), run(How::Plain), "limit {limit}");
        scratch.assert_empty();
    }
}

/// Receives 48 MiB into memory never touched before, from its 4,321st byte on; tells whether they are whole, and how much of the process's
/// memory became huge pages.
const FRESH: &str = "
import mmap, os, re, socket, threading
data = memoryview(os.urandom(1 << 20) * 48)
listener = socket.create_server(('127.0.0.1', 0))
sender = socket.create_connection(listener.getsockname())
receiver, _ = listener.accept()
def send():
    for at in range(0, len(data), 1 << 20): sender.sendall(data[at:][:1 << 20])
    sender.close()
threading.Thread(target=send).start()
target = memoryview(mmap.mmap(-1, len(data) + 12345, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[4321:][:len(data)]
got = 0
while more := receiver.recv_into(target[got:]): got += more
print(target == data, got, sum(map(int, re.findall(r'AnonHugePages: *([0-9]+)', open('/proc/self/smaps').read()))))
";

fn large_receives_to_fresh_memory_are_whole_and_take_huge_pages() {
    let python = need("python3");
    let scratch = Scratch::new();
    let told = |how| host::run(host::command(how, &python, &scratch).args(["-c", FRESH])).expect_success().text();
    let (plain, wrapped) = (told(How::Plain), told(How::Wrapped));
    let huge = |text: &str| text.trim().rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(plain.starts_with("True 50331648 ") && wrapped.starts_with("True 50331648 "), "{plain}{wrapped}");
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    match setting.contains("[madvise]") {
        true => assert!(huge(&plain) == 0 && huge(&wrapped) >= 2048, "{plain}{wrapped}"),
        false => skip(format!("huge pages: transparent_hugepage/enabled is {}", setting.trim())),
    }
}
