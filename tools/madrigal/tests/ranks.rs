//! `madrigal why` about processes of a parallel job, and `madrigal info -d`.
//!
//! Features (docs/features.md): P7, A8.

mod common;

use madrigal_tests::trials::skip;
use std::process::{Child, Command, Stdio};

use common::bed::until;
use common::{madrigal, run};
use serde_json::Value;

madrigal_tests::trials![
    a_rank_tells_its_peers_paths_and_counters,
    a_rank_tells_addresses,
    a_rank_over_a_provider_of_libfabric_tells_which,
    what_the_parallel_side_can_do_here_is_told,
];

/// Two processes that send each other messages for some seconds: the command measuring a Circuit.
struct Job(Child);

/// What is told of a job by `why`, all of it while the job went on.
struct Told {
    job: u32,
    worker: Value,
    later: Value,
    text: String,
    all: String,
}

impl Told {
    /// On a busy machine a job may be over before it has been asked about.
    fn of(method: &str) -> Self {
        until("a job that is told of", || {
            let mut job = Job::start(method);
            let pid = job.0.id();
            let (worker, later) = (job.worker()?, job.worker()?);
            let (code, text, _) = run(madrigal().args(["why", &pid.to_string()]));
            let (_, all, _) = run(madrigal().arg("why"));
            let goes_on = job.0.try_wait().unwrap().is_none();
            assert!(!goes_on || code == Some(0), "{text}");
            goes_on.then_some(Self { job: pid, worker, later, text, all })
        })
    }
}

impl Job {
    fn start(method: &str) -> Self {
        let mut command = madrigal();
        command.args(["perf", "circuit", "--iterations", "3000000", "--method", method]);
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// The worker of the process that was started, as soon as it sent something to a node that is up. Nothing: the job is over.
    fn worker(&mut self) -> Option<Value> {
        loop {
            let (code, stdout, stderr) = run(madrigal().args(["why", &self.0.id().to_string(), "--json"]));
            if let Some(ended) = self.0.try_wait().unwrap() {
                assert!(ended.success(), "{ended}");
                return None;
            }
            if code != Some(0) {
                // It has no worker yet.
                assert!(stderr.contains("is not under madrigal"), "{stderr}");
                continue;
            }
            let answer: Value = serde_json::from_str(&stdout).unwrap();
            let worker = &answer["processes"][0]["workers"][0];
            let peers = worker["peers"].as_array().unwrap();
            if peers.iter().any(|peer| peer["state"] == "up" && peer["frames_in"].as_u64() > Some(100)) {
                return Some(worker.clone());
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn peer(worker: &Value) -> &Value {
    let peers = worker["peers"].as_array().unwrap();
    assert_eq!(peers.len(), 1, "{worker}");
    &peers[0]
}

fn a_rank_tells_its_peers_paths_and_counters() {
    let Told { job, worker, later, text, all } = Told::of("shm");
    let told = peer(&worker);
    assert_eq!(told["path"], "shm", "{told}");
    assert!(told["how"].as_str().unwrap().starts_with("inbox"), "{told}");
    assert!(told["long"].as_str().unwrap().contains("shared memory"), "{told}");
    // It is reported whether single copies work, and if not, why.
    let rejected = told["rejected"].as_array().unwrap();
    let refused = rejected.iter().any(|r| r["what"] == "single copy" && !r["why"].as_str().unwrap().is_empty());
    assert!(told["how"] == "inbox, single copy" || refused, "{told}");
    let count = |of: &Value, what: &str| of[what].as_u64().unwrap();
    assert!(count(told, "frames_out") > 100 && count(told, "bytes_out") >= 8 * 100, "{told}");
    let later = peer(&later);
    assert!(count(later, "frames_in") >= count(told, "frames_in") && later["node"] == told["node"]);
    // The other process is found by its node, among all of this user's.
    assert!(told["pid"].as_u64().is_some_and(|pid| pid != u64::from(job)), "{told}");
    assert!(text.contains("knows 1 node\n") && text.contains("  shm  "), "{text}");
    assert!(text.contains("long messages by shm: "), "{text}");
    assert!(all.contains(&format!("process {job} (")), "{all}");
}

fn a_rank_tells_addresses() {
    let Told { worker, .. } = Told::of("tcp");
    let told = peer(&worker);
    assert_eq!(told["path"], "tcp", "{told}");
    assert!(told["how"].as_str().unwrap().contains(" -> "), "{told}");
    assert!(!told["addresses"].as_array().unwrap().is_empty(), "{told}");
    // Only this driver was requested: there is no nearer one that could have been rejected.
    assert_eq!(told["rejected"], serde_json::json!([]), "{told}");
}

fn a_rank_over_a_provider_of_libfabric_tells_which() {
    let (_, stdout, _) = run(madrigal().args(["info", "-d", "--json"]).env("MADRIGAL_METHODS", "fabric:tcp"));
    let info: Value = serde_json::from_str(&stdout).unwrap();
    let driver =
        info["drivers"].as_array().unwrap().iter().find(|driver| driver["name"] == "fabric:tcp").unwrap().clone();
    if driver["ok"] == false {
        skip(format!("{driver}"));
    }
    let Told { worker, .. } = Told::of("fabric:tcp");
    let told = peer(&worker);
    assert_eq!(told["path"], "fabric:tcp", "{told}");
    assert!(told["how"].as_str().unwrap().starts_with("tcp"), "{told}");
}

fn what_the_parallel_side_can_do_here_is_told() {
    let (code, stdout, _) = run(madrigal().args(["info", "-d", "--json"]));
    assert_eq!(code, Some(0));
    let info: Value = serde_json::from_str(&stdout).unwrap();
    let names: Vec<_> = info["drivers"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert_eq!(names, madrigal::MESSAGE_DRIVERS.iter().map(|driver| driver.name()).collect::<Vec<_>>());
    let tried = |name: &str| info["tried"].as_array().unwrap().iter().find(|t| t["name"] == name).unwrap().clone();
    for name in ["single copy", "/dev/shm", "provider for MPI"] {
        assert!(!tried(name)["detail"].as_str().unwrap().is_empty(), "{info}");
    }
    // If it cannot even be tried the sentence reports that.
    assert!(tried("single copy")["detail"].as_str().unwrap().contains("process_vm_readv"), "{info}");
    assert!(info["libfabric"]["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{info}");
    if info["libfabric"]["ok"] == true {
        assert!(info["providers"].as_array().is_some_and(|list| !list.is_empty()), "{info}");
    }
    let (_, text, _) = run(madrigal().args(["info", "-d"]));
    for name in madrigal::MESSAGE_DRIVERS.iter().map(|driver| driver.name()) {
        assert!(text.contains(&format!("messages {name}")), "{text}");
    }
    // A process that is refused its neighbour's memory says that.
    let (code, printed, _) = run(Command::new(common::exe()).args(["peek", "4194305", "4096"]));
    assert!(code == Some(1) && printed.contains("refused"), "{printed}");
}
