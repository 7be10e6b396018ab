//! Unmodified programs under `madrigal exec` on hosts of a lab: they reach hosts of other sites through the daemons, by the names and
//! addresses that they always used, and the servers there know nothing of it.
//!
//! Features (docs/features.md): B16, B18, L7.

use std::path::Path;

use super::bed::{Who, possible, until};
use super::common;
use super::daemons::{Grid, has, two_sites};

/// A command under `madrigal exec` on a host; its output.
#[track_caller]
fn wrapped(grid: &Grid, host: &str, command: &[&str]) -> String {
    // Where its library lies beside it.
    let _ = common::madrigal();
    let exe = common::exe().to_str().unwrap();
    let (status, out, err) = grid.bed.exec(host, &[&[exe, "exec", "--"], command].concat());
    assert_eq!(status, 0, "{host}: {command:?}: {out}{err}");
    out
}

fn redis(grid: &mut Grid, on: &str, bind: &str) {
    grid.serve(on, &["redis-server", "--port", "6379", "--save", "", "--bind", bind, "--protected-mode", "no"]);
    until("redis", || grid.bed.exec(on, &["redis-cli", "ping"]).1.contains("PONG").then_some(()));
}

/// Whom a redis server sees as its client.
fn seen(told: &str) -> String {
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
fn try_redis(grid: &mut Grid, from: &str, to: &str) {
    if !has("redis-server") || !has("redis-cli") {
        return;
    }
    redis(grid, to, "127.0.0.1");
    assert_eq!(wrapped(grid, from, &["redis-cli", "-h", to, "ping"]), "PONG\n");
    let long = "x".repeat(50_000);
    assert_eq!(wrapped(grid, from, &["redis-cli", "-h", to, "set", "key", &long]), "OK\n");
    assert_eq!(wrapped(grid, from, &["redis-cli", "-h", to, "get", "key"]).trim(), long);
    if has("redis-benchmark") {
        let told =
            wrapped(grid, from, &["redis-benchmark", "-h", to, "-c", "20", "-n", "400", "-t", "set,get", "--csv"]);
        assert!(told.contains("\"SET\",") && told.contains("\"GET\","), "{told}");
    }
}

/// A web server on `to`, and a browser of sorts on `from`.
fn try_web(grid: &mut Grid, from: &str, to: &str) {
    if !has("curl") || !(has("nginx") || Path::new("/usr/sbin/nginx").exists()) {
        return;
    }
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
    wrapped(grid, from, &["curl", "-sf", "-o", &got, &format!("http://{to}:8080/large")]);
    assert!(std::fs::read(&got).unwrap() == std::fs::read(format!("{www}/large")).unwrap());
    let urls = ["empty", "inner/small", "large"].map(|name| format!("http://{to}:8080/{name}"));
    let each = urls.iter().flat_map(|url| ["-o", "/dev/null", url.as_str()]).collect::<Vec<_>>();
    let told = wrapped(grid, from, &[&["curl", "-sfZ", "-w", "%{http_code} "], &each[..]].concat());
    assert_eq!(told, "200 200 200 ");
}

/// rsync's own daemon on `to`; what it has is brought to `from`.
fn try_rsync(grid: &mut Grid, from: &str, to: &str) {
    if !has("rsync") {
        return;
    }
    let data = files(grid);
    let text = format!("use chroot = no\naddress = 127.0.0.1\nport = 8730\n[data]\npath = {data}\nuid = 0\ngid = 0\n");
    let config = grid.bed.home.file("rsyncd.conf", &text);
    grid.serve(to, &["rsync", "--daemon", "--no-detach", "--config", &config]);
    until("rsync", || (grid.bed.exec(to, &["rsync", "rsync://127.0.0.1:8730/"]).0 == 0).then_some(()));
    let target = format!("{data}-copy");
    wrapped(grid, from, &["rsync", "-a", &format!("rsync://{to}:8730/data/"), &target]);
    for name in ["large", "inner/small", "empty"] {
        assert!(std::fs::read(format!("{data}/{name}")).unwrap() == std::fs::read(format!("{target}/{name}")).unwrap());
    }
}

/// iperf3, both ways, with two streams.
fn try_iperf(grid: &mut Grid, from: &str, to: &str) {
    if !has("iperf3") {
        return;
    }
    grid.serve(to, &["iperf3", "-s", "-B", "127.0.0.1"]);
    let listens = "import socket; socket.create_connection(('127.0.0.1', 5201)).close()";
    until("iperf3", || (grid.bed.exec(to, &["/usr/bin/python3", "-c", listens]).0 == 0).then_some(()));
    for more in [&["-P", "2"][..], &["-R"]] {
        let base = ["iperf3", "-c", to, "-t", "2", "-J"];
        // The server takes one test at a time, and the last one may not be over.
        let command = [&base[..], more].concat();
        let told = until("a test", || {
            let exe = common::exe().to_str().unwrap();
            let told = grid.bed.exec(from, &[&[exe, "exec", "--"], &command[..]].concat());
            (!told.1.contains("server is busy")).then_some(told)
        });
        let answer: serde_json::Value = serde_json::from_str(&told.1).unwrap_or_else(|_| panic!("{told:?}"));
        let bytes = answer["end"]["sum_received"]["bytes"].as_u64();
        assert!(told.0 == 0 && bytes.is_some_and(|bytes| bytes > 1_000_000), "{more:?}: {}", told.1);
    }
}

#[test]
fn programs_between_two_sites_behind_nat() {
    if !possible(Who::Me) {
        return;
    }
    let mut grid = Grid::up("two-sites.toml", &two_sites(), &["r", "a1", "a2", "b1"]);
    grid.linked("a1", "r");
    grid.linked("b1", "r");
    try_redis(&mut grid, "a1", "b1");
    try_web(&mut grid, "a1", "b1");
    try_rsync(&mut grid, "a1", "b1");
    try_iperf(&mut grid, "a1", "b1");
    if has("redis-server") {
        // By the address in the other site; and the hops are told.
        let script = "import socket\ns = socket.create_connection(('10.2.0.2', 6379)); s.sendall(b'PING\\r\\n'); assert s.recv(9) == b'+PONG\\r\\n'\n\
            assert s.getpeername() == ('10.2.0.2', 6379) and s.getsockname()[0] == '10.1.0.2', s\n\
            import os, subprocess, sys\nprint(subprocess.run([sys.argv[1], 'why', str(os.getpid()), '--json'], stdout=-1).stdout.decode())";
        let exe = common::exe().to_str().unwrap();
        let told = wrapped(&grid, "a1", &["/usr/bin/python3", "-c", script, exe]);
        let answer: serde_json::Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{told}"));
        let connection = &answer["processes"][0]["connections"][0];
        assert_eq!(connection["daemon"]["hops"], serde_json::json!(["a1", "r", "b1"]), "{told}");
        assert!(connection["daemon"]["why"].as_str().unwrap().contains("the direct way is shut"), "{told}");
        // Within a site nothing goes by daemons.
        redis(&mut grid, "a2", "0.0.0.0");
        assert_eq!(seen(&wrapped(&grid, "a1", &["redis-cli", "-h", "a2", "client", "list"])), "10.1.0.2");
        assert_eq!(seen(&wrapped(&grid, "a1", &["redis-cli", "-h", "b1", "client", "list"])), "127.0.0.1");
    }
    grid.down();
}

#[test]
fn programs_through_a_one_way_firewall() {
    if !possible(Who::Me) || !has("redis-server") {
        return;
    }
    let allow = "allow = '6379,8080,8730,5201'\n";
    let file =
        format!("trusted = true\n[site.a]\nhosts.a1 = '10.1.0.2'\n{allow}[site.b]\nhosts.b1 = '10.2.0.2'\n{allow}");
    let mut grid = Grid::up("one-way-firewall.toml", &file, &["b1", "a1"]);
    grid.linked("b1", "a1");
    try_redis(&mut grid, "b1", "a1");
    try_rsync(&mut grid, "b1", "a1");
    // The other way is open, and nobody demands more.
    redis(&mut grid, "b1", "0.0.0.0");
    let sees = |grid: &Grid| seen(&wrapped(grid, "a1", &["redis-cli", "-h", "b1", "client", "list"]));
    until("a direct connection", || (sees(&grid) == "10.1.0.2").then_some(()));
    grid.down();
}

#[test]
fn programs_between_networks_with_the_same_addresses() {
    if !possible(Who::Me) {
        return;
    }
    let allow = "allow = '6379,8080'\n";
    let file = format!(
        "trusted = true\n[site.a]\nhosts.a1 = '10.0.0.2'\n{allow}[site.b]\nhosts.b1 = '10.0.0.2'\n{allow}\
         [site.public]\nhosts.r = '203.0.113.2'\nrelay = 'r'\n"
    );
    let mut grid = Grid::up("overlapping.toml", &file, &["r", "a1", "b1"]);
    grid.linked("a1", "r");
    grid.linked("b1", "r");
    // Only the name tells which one is meant, for both have the same address.
    try_redis(&mut grid, "a1", "b1");
    try_web(&mut grid, "b1", "a1");
    grid.down();
}
