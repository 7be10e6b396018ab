//! Real programs of many kinds, plain and wrapped, there also with connections that move at once and at random: the same output and the
//! same exit status.
//!
//! Each script in `programs/` names the programs it needs in its first line, uses the ports `$P1`, `$P2`, `$P3`, and prints what must
//! not differ. Everything it starts is wrapped or plain as a whole, and where it is wrapped some connection went by shared memory.
//!
//! Features (docs/features.md): P2, P9 (`hla`), P10 (`grpc`, `soap`), P11 (`java`, `rmi`), B16 (`nats`, which is never wrapped).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use madrigal_report::Report;
use madrigal_tests::host::{self, Ended, How, Running, Scratch};
use madrigal_tests::trials::skip;

/// What every script begins with: `await PORT` waits for a listener.
const PRELUDE: &str = "export LC_ALL=C
[ -z \"$LD_PRELOAD\" ] || grep -qF \"$LD_PRELOAD\" /proc/$$/maps || exit 99
await(){ until grep -qi \":$(printf %04X $1) 0*:0000 0A\" /proc/net/tcp; do sleep 0.03; done; }
";

/// Programs between which nothing can move: why.
const PLAIN: &[(&str, &str)] = &[
    ("grpc", "it asks for TCP_INQ, which only the kernel tells"),
    ("nats", "nothing can be preloaded into the server"),
    ("ssh", "the server's children hold what their parent accepted"),
];
/// Connections of a process that are looked at.
const RECORDS: usize = 256;
const PAUSE: Duration = Duration::from_millis(5);
/// How often a script is run under it at most, until a connection by shared memory was seen.
const MOST_RUNS: usize = 20;

/// Runs a script; also whether a connection of its programs went by shared memory.
fn run(how: How, script: &str) -> (Ended, bool) {
    let scratch = Scratch::new();
    let file = scratch.path().join("script");
    std::fs::write(&file, format!("{PRELUDE}{script}")).unwrap();
    let mut command = host::command(how, "bash", &scratch);
    for port in ["P1", "P2", "P3"] {
        command.env(port, host::free_port().to_string());
    }
    let over = AtomicBool::new(false);
    let script = Running::start(command.arg(&file));
    let pid = script.pid() as u32;
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| how.is_wrapped() && await_ring(pid, &over));
        let end = Over(&over);
        let ended = script.wait();
        drop(end);
        (ended, watch.join().unwrap())
    })
}

/// Says that the programs have ended, however that came.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Looks until a program that this process has started, itself or through others, has used a ring, or all is over.
fn await_ring(first: u32, over: &AtomicBool) -> bool {
    let parent = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may be anything: state, parent.
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
    };
    let is_ours = |pid: u32| std::iter::successors(Some(pid), |pid| parent(*pid)).take(16).any(|pid| pid == first);
    let by_ring = |pid: u32| {
        let Ok(report) = Report::of(pid) else { return false };
        (0..RECORDS).filter_map(|at| report.record(at)).any(|record| record.shm_in.load(Ordering::Relaxed) > 0)
    };
    while !over.load(Ordering::Relaxed) {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        if pids.any(|pid| is_ours(pid) && by_ring(pid)) {
            return true;
        }
        std::thread::sleep(PAUSE);
    }
    false
}

fn same(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{name}.sh"));
    let script = std::fs::read_to_string(path).unwrap();
    let needs = script.lines().next().and_then(|l| l.strip_prefix("# needs: ")).expect("the first line names programs");
    if let Some(missing) = needs.split(' ').find(|p| host::find_program(p).is_none() && !Path::new(p).is_file()) {
        skip(format!("{missing} is not installed"));
    }
    let (plain, _) = run(How::Plain, &script);
    if plain.status == 77 {
        skip(plain.text().trim());
    }
    let plain_err = String::from_utf8_lossy(&plain.err).into_owned();
    assert!(plain.status == 0 && !plain.out.is_empty(), "plain: {} {} {plain_err}", plain.status, plain.text());
    let known = PLAIN.iter().find(|(program, _)| *program == name);
    let (mut rings, mut runs) = (false, 0);
    let each: Vec<How> = How::ALL.into_iter().filter(|how| how.is_wrapped()).collect();
    // Each way once; and again where short-lived processes were gone before they were looked at.
    for how in each.iter().copied().cycle().take(MOST_RUNS) {
        if runs >= each.len() && (rings || known.is_some()) {
            break;
        }
        runs += 1;
        let (wrapped, by_ring) = run(how, &script);
        let err = String::from_utf8_lossy(&wrapped.err).into_owned();
        assert_eq!((wrapped.status, wrapped.text()), (plain.status, plain.text()), "{how:?} against plain; {err}");
        rings |= by_ring;
    }
    assert_eq!(rings, known.is_none(), "whether a connection went by shared memory; {known:?}");
}

macro_rules! programs {
    ($($test:ident = $script:literal;)*) => { madrigal_tests::trials![$($test),*];

        $(fn $test() { same($script); })* };
}

programs! {
    rsync = "rsync";
    haproxy_in_front_of_nginx = "haproxy-nginx";
    nginx_keep_alive = "nginx-keepalive";
    ssh_and_scp = "ssh";
    socat_and_nc = "socat-nc";
    redis = "redis";
    memcached = "memcached";
    postgres = "postgres";
    python_asyncio = "asyncio";
    node = "node";
    java_nio = "java";
    java_rmi = "rmi";
    grpc = "grpc";
    gsoap = "soap";
    hla = "hla";
    zeromq = "zeromq";
    nats = "nats";
}
