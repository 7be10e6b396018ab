//! `madrigal why` and `madrigal info` about real programs.
//!
//! Features (docs/features.md): B16.

mod common;

use common::{Folder, Running, exec, madrigal, pair, run};
use madrigal_tests::host::copy_program;
use madrigal_tests::trials::{need, skip};
use serde_json::Value;

madrigal_tests::trials![
    a_wrapped_pair_goes_by_shared_memory_and_leaves_nothing,
    whoever_is_killed_nothing_is_left_at_the_next_start,
    with_one_end_plain_the_reason_is_named,
    a_wrapped_process_without_connections_has_none,
    udp_has_a_line_of_its_own,
    no_process_and_nonsense_are_told,
    another_users_process_is_told,
    info_tells_settings_with_where_they_are_from,
    completions_and_manual_pages_come_out,
    idle_peers_are_connected_while_what_they_cost_is_measured,
    a_measurement_comes_with_its_yardstick,
    links_over_udp_are_measured_with_a_certificate,
];

fn why(args: &[&str]) -> (Option<i32>, String, String) {
    run(madrigal().arg("why").args(args))
}

/// The only connection of a process, from the JSON.
fn connection(pid: u32) -> Value {
    let (code, stdout, stderr) = why(&[&pid.to_string(), "--json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let answer: Value = serde_json::from_str(&stdout).unwrap();
    let process = &answer["processes"][0];
    assert_eq!(
        (process["pid"].as_u64(), process["missed_bells"].as_u64()),
        (Some(u64::from(pid)), Some(0)),
        "{stdout}"
    );
    let connections = process["connections"].as_array().unwrap();
    assert_eq!(connections.len(), 1, "{stdout}");
    connections[0].clone()
}

fn a_wrapped_pair_goes_by_shared_memory_and_leaves_nothing() {
    let python = need("python3");
    let info: Value = serde_json::from_str(&run(madrigal().args(["info", "--json"])).1).unwrap();
    let lacking = info["kernel"]["features"].as_array().unwrap().iter().find(|feature| feature["ok"] == false);
    if let Some(feature) = lacking {
        skip(format!("nothing moves here: {feature}"));
    }
    let folder = Folder::new("shm");
    let dir = folder.path("rendezvous");
    let (server, client) = pair(&python, (true, true), &dir, 1000);
    let (s, c) = (connection(server.pid()), connection(client.pid()));
    for end in [&s, &c] {
        assert_eq!(end["path"].as_str(), Some("shm"), "{end}");
        assert!(end["moves"].as_u64().unwrap() >= 1, "{end}");
        for way in ["in", "out"] {
            let [ring, tcp] = ["ring", "tcp"].map(|path| end[format!("{path}_{way}")].as_u64().unwrap());
            assert_eq!(ring + tcp, 100_000, "{end}");
            assert!(ring > 50_000, "{end}");
        }
    }
    assert_eq!((&s["local"], &s["peer"], s["state"].as_str()), (&c["peer"], &c["local"], Some("established")));
    let (code, table, _) = why(&[&client.pid().to_string()]);
    assert_eq!(code, Some(0));
    assert!(table.contains("1 connection, missed_bells 0") && table.contains("  shm "), "{table}");
    let (_, all, _) = why(&[]);
    assert!(all.contains(&format!("process {} ", server.pid())) && all.contains(&format!("process {} ", client.pid())));
    client.finish();
    server.finish();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

fn whoever_is_killed_nothing_is_left_at_the_next_start() {
    let python = need("python3");
    let folder = Folder::new("killed");
    let dir = folder.path("rendezvous");
    let files = || std::fs::read_dir(&dir).unwrap().count();
    let (server, mut client) = pair(&python, (true, true), &dir, 10);
    client.kill();
    server.finish();
    assert_eq!(files(), 0);
    let (mut server, mut client) = pair(&python, (true, true), &dir, 10);
    client.kill();
    server.kill();
    assert_eq!(files(), 1);
    run(exec(&["--", "true"]).env("MADRIGAL_DIR", &dir));
    assert_eq!(files(), 0);
}

fn with_one_end_plain_the_reason_is_named() {
    let python = need("python3");
    let folder = Folder::new("plain");
    let dir = folder.path("rendezvous");
    let (server, client) = pair(&python, (false, true), &dir, 100);
    let c = connection(client.pid());
    assert_eq!((c["path"].as_str(), c["reason"]["name"].as_str()), (Some("tcp"), Some("peer-not-wrapped")), "{c}");
    let (_, table, _) = why(&[&client.pid().to_string()]);
    assert!(table.contains("peer-not-wrapped: ") && table.contains("madrigal exec"), "{table}");
    let (code, stdout, stderr) = why(&[&server.pid().to_string()]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert!(stderr.contains("is not under madrigal") && stderr.contains("madrigal exec -- python"), "{stderr}");
}

fn a_wrapped_process_without_connections_has_none() {
    let mut cat = Running::start(exec(&["--", "cat"]).stderr(std::process::Stdio::null()));
    cat.send_line("up");
    assert_eq!(cat.line(), "up");
    let (code, stdout, _) = why(&[&cat.pid().to_string()]);
    assert_eq!((code, stdout), (Some(0), format!("process {} (cat): 0 connections, missed_bells 0\n", cat.pid())));
}

fn udp_has_a_line_of_its_own() {
    let python = need("python3");
    const SCRIPT: &str = "import socket, sys\ns = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); print('up', flush=True)\n\
        sys.stdin.read()\n";
    let mut program = Running::start(exec(&["--"]).arg(python).args(["-c", SCRIPT]));
    assert_eq!(program.line(), "up");
    let (code, stdout, _) = why(&[&program.pid().to_string()]);
    assert!(
        code == Some(0) && stdout.ends_with("1 UDP socket: plain, as without madrigal: only TCP is looked after\n"),
        "{stdout}"
    );
    let (_, json, _) = why(&[&program.pid().to_string(), "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["processes"][0]["udp"], 1);
}

fn no_process_and_nonsense_are_told() {
    // Beyond the largest id a kernel gives (proc(5), pid_max).
    let (code, _, stderr) = why(&["4194305"]);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("no process has the id 4194305"), "{stderr}");
    assert_eq!(why(&["redis"]).0, Some(2));
}

fn another_users_process_is_told() {
    use std::os::unix::process::CommandExt as _;
    if !rustix::process::geteuid().is_root() {
        skip("only root can be another user");
    }
    let mut cat = Running::start(exec(&["--", "cat"]).stderr(std::process::Stdio::null()));
    cat.send_line("up");
    assert_eq!(cat.line(), "up");
    let folder = Folder::new("other");
    let copy = folder.path("madrigal");
    copy_program(common::exe(), copy.as_ref());
    let mut other = std::process::Command::new(copy);
    other.uid(65534).gid(65534).args(["why", &cat.pid().to_string()]);
    let (code, _, stderr) = run(&mut other);
    assert_eq!(code, Some(1));
    assert!(stderr.contains("belongs to user 0, and you are user 65534"), "{stderr}");
}

fn info_tells_settings_with_where_they_are_from() {
    let folder = Folder::new("info");
    let dir = folder.path("rendezvous");
    let mut command = madrigal();
    command.args(["info", "--json"]).env("MADRIGAL_DIR", &dir).env("MADRIGAL_FOO", "1").env("XDG_CONFIG_HOME", "/x");
    let (code, stdout, _) = run(&mut command);
    assert_eq!(code, Some(0));
    let info: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(info["library"]["ok"], true, "{stdout}");
    assert_eq!(
        (&info["directory"]["ok"], info["directory"]["path"].as_str()),
        (&Value::Bool(true), Some(&*dir)),
        "{stdout}"
    );
    assert!(!std::path::Path::new(&dir).exists());
    let drivers: Vec<_> = info["drivers"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert_eq!(drivers, madrigal::DRIVERS.iter().map(|d| d.name()).collect::<Vec<_>>());
    let setting =
        |key: &str| info["configuration"].as_array().unwrap().iter().find(|s| s["key"] == key).unwrap().clone();
    assert_eq!(
        (&setting("MADRIGAL_DIR")["from"], &setting("MADRIGAL_SPIN_US")["from"]),
        (&"environment".into(), &"default".into())
    );
    assert_eq!(setting("MADRIGAL_CONFIG_DIR")["value"], "/x/madrigal");
    assert!(info["warnings"][0].as_str().unwrap().contains("MADRIGAL_FOO"));
    let (code, text, _) = run(madrigal().arg("info").env("MADRIGAL_DIR", "/no/such/place"));
    assert_eq!(code, Some(0));
    assert!(text.contains("NOT") && text.contains("dir-missing") && text.contains("set MADRIGAL_DIR"), "{text}");
}

fn completions_and_manual_pages_come_out() {
    let (code, stdout, _) = run(madrigal().args(["completions", "bash"]));
    assert!(code == Some(0) && stdout.contains("_madrigal()"));
    let folder = Folder::new("man");
    assert_eq!(run(madrigal().arg("man").arg(&folder.0)).0, Some(0));
    let page = std::fs::read_to_string(folder.path("madrigal-exec.1")).unwrap();
    assert!(page.contains("\\-\\-only") && std::path::Path::new(&folder.path("madrigal.1")).exists());
}

fn idle_peers_are_connected_while_what_they_cost_is_measured() {
    let few = ["perf", "circuit", "--peers", "3", "--iterations", "50", "--json"];
    let (code, stdout, stderr) = run(madrigal().args(few));
    assert_eq!(code, Some(0), "{stderr}");
    let measured: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&measured["method"], &measured["peers"]), (&"shm".into(), &3.into()), "{stdout}");
    for number in ["alone_ns", "among_ns", "ratio"] {
        assert!(measured[number].as_f64().unwrap() > 0.0, "{stdout}");
    }
    let rounds = |of: &str| measured[of].as_array().unwrap().len();
    assert!(rounds("alone_rounds_ns") > 0 && rounds("alone_rounds_ns") == rounds("among_rounds_ns"), "{stdout}");
    let (code, _, stderr) = run(madrigal().args(["perf", "circuit", "--peers", "0"]));
    assert!(code == Some(2) && stderr.contains("--peers"), "{stderr}");
    // More than the descriptors of one process are good for.
    let limited =
        format!("ulimit -n 100; exec {} perf circuit --peers 200 --iterations 50", env!("CARGO_BIN_EXE_madrigal"));
    let (code, stdout, stderr) = run(std::process::Command::new("sh").args(["-c", &limited]));
    assert!(code == Some(1) && stdout.is_empty(), "{stdout}{stderr}");
    assert!(stderr.contains(" of 200 idle peers are connected by tcp"), "{stderr}");
}

fn links_over_udp_are_measured_with_a_certificate() {
    let folder = Folder::new("udp");
    let with = |args: &[&str]| run(madrigal().args(args).env("MADRIGAL_CONFIG_DIR", &folder.0));
    let lossy = ["perf", "lossy", "--tolerance", "50", "--iterations", "20", "--json"];
    let (code, _, stderr) = with(&lossy);
    assert!(code == Some(1) && stderr.contains("madrigal ca init"), "{stderr}");
    for words in [&["ca", "init", "test"][..], &["login", "--user", "ann"]] {
        let (code, _, stderr) = with(words);
        assert_eq!(code, Some(0), "{stderr}");
    }
    let (code, stdout, stderr) = with(&lossy);
    assert_eq!(code, Some(0), "{stderr}");
    let measured: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&measured["tolerance"], &measured["size"], &measured["lost"]), (&50.into(), &1000.into(), &0.into()));
    let (code, stdout, stderr) = with(&["perf", "vlink", "--method", "adoc/vrp/udp", "--iterations", "20", "--json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let stream: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(stream["method"], "adoc/vrp/udp");
    for number in [&measured["message_ns"], &measured["stream_ns"], &stream["link_ns"]] {
        assert!(number.as_f64().unwrap() > 0.0, "{measured} {stream}");
    }
    for method in ["udp", "vrp/tcp", "vrp(2000)/udp"] {
        let (code, _, stderr) = with(&["perf", "vlink", "--method", method]);
        assert!(code == Some(2) && stderr.contains(method), "{stderr}");
    }
}

fn a_measurement_comes_with_its_yardstick() {
    let (code, stdout, stderr) = run(madrigal().args(["perf", "vlink", "--iterations", "50", "--json"]));
    assert_eq!(code, Some(0), "{stderr}");
    let measured: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&measured["method"], &measured["size"]), (&"shm".into(), &8.into()));
    for number in ["link_ns", "bare_ns", "ratio"] {
        assert!(measured[number].as_f64().unwrap() > 0.0, "{stdout}");
    }
    let (code, stdout, stderr) = run(madrigal().args(["perf", "circuit", "--iterations", "50", "--json"]));
    assert_eq!(code, Some(0), "{stderr}");
    let measured: Value = serde_json::from_str(&stdout).unwrap();
    for number in ["link_ns", "channel_ns", "bare_ns"] {
        assert!(measured[number].as_f64().unwrap() > 0.0, "{stdout}");
    }
    let (code, _, stderr) = run(madrigal().args(["perf", "vlink", "--method", "nosuch"]));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("there is no method `nosuch`"), "{stderr}");
}
