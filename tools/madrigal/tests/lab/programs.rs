//! Unmodified programs between two hosts of a lab: a server that listens at 127.0.0.1 only and knows nothing of it, and clients under
//! `madrigal exec` that call it by its host's name. What they bring must be what was sent.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use madrigal_tests::trials::{need, need_all, skip};
use serde_json::Value;

use super::common::bed::until;
use super::grid::Grid;

/// A program between two hosts.
type Program = fn(&mut Grid, &str, &str);

/// What the matrix runs, from one host to another. A further program is a function and a line here.
pub(crate) const PROGRAMS: [Program; 4] = [try_redis, try_iperf, try_corba, try_rsync];

/// A redis server, started and listening.
pub(crate) fn redis(grid: &mut Grid, on: &str, bind: &str) {
    grid.serve(on, &["redis-server", "--port", "6379", "--save", "", "--bind", bind, "--protected-mode", "no"]);
    until("redis", || grid.bed.exec(on, &["redis-cli", "ping"]).1.contains("PONG").then_some(()));
}

/// Whom a redis server sees as its client.
pub(crate) fn seen(told: &str) -> String {
    let address = told.split_whitespace().find_map(|word| word.strip_prefix("addr=")).unwrap_or_default();
    address.split(':').next().unwrap_or_default().to_owned()
}

/// Files of a folder with random content, and where they are.
fn files(grid: &Grid) -> String {
    let folder = grid.bed.home.file("data-0", "");
    let folder = Path::new(&folder).parent().unwrap().join("www");
    std::fs::create_dir_all(folder.join("inner")).unwrap();
    for (name, len) in [("large", 3_000_000u32), ("inner/small", 7), ("empty", 0)] {
        let bytes: Vec<u8> = (0..len).map(|n| (n ^ (n >> 7) ^ (n >> 13)) as u8).collect();
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    folder.to_str().unwrap().to_owned()
}

/// A redis server on `to`, and clients on `from`.
pub(crate) fn try_redis(grid: &mut Grid, from: &str, to: &str) {
    need_all(&["redis-server", "redis-cli", "redis-benchmark"]);
    redis(grid, to, "127.0.0.1");
    assert_eq!(grid.wrapped(from, &["redis-cli", "-h", to, "ping"]), "PONG\n");
    let long = "MADRIGAL-PLAIN-TEXT.".repeat(2500);
    assert_eq!(grid.wrapped(from, &["redis-cli", "-h", to, "set", "key", &long]), "OK\n");
    assert_eq!(grid.wrapped(from, &["redis-cli", "-h", to, "get", "key"]).trim(), long);
    let told = grid.wrapped(from, &["redis-benchmark", "-h", to, "-c", "20", "-n", "400", "-t", "set,get", "--csv"]);
    assert!(told.contains("\"SET\",") && told.contains("\"GET\","), "{told}");
}

/// A web server on `to`, and a browser of sorts on `from`.
pub(crate) fn try_web(grid: &mut Grid, from: &str, to: &str) {
    need_all(&["curl", "nginx"]);
    let www = files(grid);
    let text = format!(
        "daemon off;\nuser root;\npid /dev/shm/nginx.pid;\nerror_log /dev/null;\nevents {{}}\nhttp {{ access_log off;\n\
         client_body_temp_path /dev/shm/n1; proxy_temp_path /dev/shm/n2; fastcgi_temp_path /dev/shm/n3;\n\
         uwsgi_temp_path /dev/shm/n4; scgi_temp_path /dev/shm/n5;\n\
         server {{ listen 127.0.0.1:8080; root {www}; }} }}\n"
    );
    let config = grid.bed.home.file("nginx.conf", &text);
    grid.serve(to, &["nginx", "-c", &config]);
    until("nginx", || (grid.bed.exec(to, &["curl", "-s", "http://127.0.0.1:8080/empty"]).0 == 0).then_some(()));
    let got = grid.bed.home.file("got", "");
    grid.wrapped(from, &["curl", "-sf", "-o", &got, &format!("http://{to}:8080/large")]);
    assert!(std::fs::read(&got).unwrap() == std::fs::read(format!("{www}/large")).unwrap());
    let urls = ["empty", "inner/small", "large"].map(|name| format!("http://{to}:8080/{name}"));
    let each = urls.iter().flat_map(|url| ["-o", "/dev/null", url.as_str()]).collect::<Vec<_>>();
    let told = grid.wrapped(from, &[&["curl", "-sfZ", "-w", "%{http_code} "], &each[..]].concat());
    assert_eq!(told, "200 200 200 ");
}

/// rsync's own daemon on `to`; what it has is brought to `from`.
pub(crate) fn try_rsync(grid: &mut Grid, from: &str, to: &str) {
    need("rsync");
    let data = files(grid);
    let text = format!("use chroot = no\naddress = 127.0.0.1\nport = 8730\n[data]\npath = {data}\nuid = 0\ngid = 0\n");
    let config = grid.bed.home.file("rsyncd.conf", &text);
    grid.serve(to, &["rsync", "--daemon", "--no-detach", "--config", &config]);
    until("rsync", || (grid.bed.exec(to, &["rsync", "rsync://127.0.0.1:8730/"]).0 == 0).then_some(()));
    let target = format!("{data}-from-{to}");
    grid.wrapped(from, &["rsync", "-a", &format!("rsync://{to}:8730/data/"), &target]);
    for name in ["large", "inner/small", "empty"] {
        assert!(std::fs::read(format!("{data}/{name}")).unwrap() == std::fs::read(format!("{target}/{name}")).unwrap());
    }
}

/// iperf3, both ways, with two streams.
pub(crate) fn try_iperf(grid: &mut Grid, from: &str, to: &str) {
    need("iperf3");
    for more in [&["-P", "2"][..], &["-R"]] {
        let command = [&["iperf3", "-c", to, "-t", "1", "-J"], more].concat();
        let received = iperf(grid, to, &["-B", "127.0.0.1"], |grid| grid.wrap(from, &command));
        assert!(received["bytes"].as_u64().is_some_and(|bytes| bytes > 100_000), "{more:?}: {received}");
    }
}

/// What the server of an iperf3 received from this client. It closes its listener after each connection and resets who is in the queue:
/// there is a fresh one for each test, and no connection checks whether it is up.
pub(crate) fn iperf(grid: &mut Grid, to: &str, at: &[&str], client: impl FnOnce(&Grid) -> Command) -> Value {
    let listeners = ["ss", "-Hltn", "sport = :5201"];
    grid.serve(to, &[&["iperf3", "-s", "-1"], at].concat());
    until("iperf3 to listen", || (!grid.bed.exec(to, &listeners).1.is_empty()).then_some(()));
    let (status, out, err) = super::bed::run(&mut client(grid));
    assert_eq!(status, 0, "{out}{err}");
    let told: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    until("iperf3 to end", || grid.bed.exec(to, &listeners).1.is_empty().then_some(()));
    told["end"]["sum_received"].clone()
}

/// An omniORB server on `to`, and a client on `from`: text, data there and back, an exception.
pub(crate) fn try_corba(grid: &mut Grid, from: &str, to: &str) {
    let echo = corba().to_str().unwrap();
    assert_eq!(grid.ready(to, &[echo, "server", "-ORBendPoint", "giop:tcp:127.0.0.1:2809"]), "ready\n");
    assert_eq!(grid.wrapped(from, &[echo, "client", &format!("corbaloc::{to}:2809/Echo")]), "well\n");
}

/// The program of `lab/corba`, compiled once.
fn corba() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    need_all(&["omniidl", "c++"]);
    BUILT.get_or_init(compile)
}

/// Where it was compiled before from the same text, it is there.
fn compile() -> PathBuf {
    const SOURCES: [(&str, &str); 2] =
        [("Echo.idl", include_str!("corba/Echo.idl")), ("echo.cc", include_str!("corba/echo.cc"))];
    let mut hash = DefaultHasher::new();
    SOURCES.hash(&mut hash);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("corba-{:016x}", hash.finish()));
    let program = folder.join("echo");
    if program.exists() {
        return program;
    }
    std::fs::create_dir_all(&folder).unwrap();
    SOURCES.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
    let script = format!(
        "omniidl -bcxx Echo.idl && c++ -o echo-{0} echo.cc EchoSK.cc -lomniORB4 -lomnithread && mv echo-{0} echo",
        std::process::id()
    );
    let told = Command::new("sh").args(["-c", &script]).current_dir(&folder).output().unwrap();
    if !told.status.success() {
        skip(format!("omniORB's C++ does not compile here: {}", String::from_utf8_lossy(&told.stderr)));
    }
    program
}
