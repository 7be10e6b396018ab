//! `madrigal run`: real processes and real MPIs, on this host, and on "hosts" whose agents are started by a command.
//!
//! Features (docs/features.md): G4, G8.

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::bed::until;
use common::{Folder, madrigal, run};
use madrigal_tests::trials::skip;

madrigal_tests::trials![
    each_process_knows_its_number,
    lines_are_whole_and_tagged,
    the_first_rank_reads_the_input,
    everybody_reads_the_input,
    the_first_bad_end_is_the_jobs,
    nothing_runs_where_one_program_cannot,
    a_job_that_takes_too_long_is_ended,
    an_interrupt_reaches_the_processes,
    a_killed_launcher_leaves_nothing,
    a_killed_agent_leaves_nothing,
    a_rank_cannot_speak_for_the_launcher,
    a_host_without_an_agent_is_named,
    an_agent_that_speaks_nonsense_ends_the_job,
    a_reader_that_goes_away_ends_the_job,
    a_reader_that_waits_loses_nothing,
    ranks_of_mpich_find_each_other,
    ranks_of_mpich_on_two_hosts_find_each_other,
    an_abort_of_mpich_ends_everybody,
];

/// `madrigal run` with these words.
fn job(words: &[&str]) -> Command {
    let mut command = madrigal();
    command.arg("run").args(words);
    command
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn each_process_knows_its_number() {
    let shell = "echo $PMI_RANK $PMI_SIZE $OMPI_COMM_WORLD_RANK $MPI_LOCALRANKID $MPI_LOCALNRANKS $A";
    let (code, out, err) =
        run(&mut job(&["-n", "2", "-env", "A", "x", "sh", "-c", shell, ":", "-n", "1", "sh", "-c", shell]));
    assert_eq!((code, sorted(&out)), (Some(0), vec!["0 3 0 0 3 x", "1 3 1 1 3 x", "2 3 2 2 3"]), "{err}");
}

fn lines_are_whole_and_tagged() {
    let shell = "i=0; while [ $i -lt 20000 ]; do echo line $i of rank $PMI_RANK; i=$((i+1)); done";
    let (code, out, err) = run(&mut job(&["-n", "4", "-l", "--plain", "sh", "-c", shell]));
    assert_eq!(code, Some(0), "{err}");
    for rank in 0..4 {
        let tag = format!("[{rank}] ");
        let lines: Vec<_> = out.lines().filter_map(|line| line.strip_prefix(&tag)).collect();
        assert_eq!(lines.len(), 20_000, "rank {rank}");
        assert!(lines.iter().zip(0..).all(|(line, i)| *line == format!("line {i} of rank {rank}")), "rank {rank}");
    }
}

/// Gives a job something to read: status and output.
fn fed(words: &[&str], input: &[u8]) -> (Option<i32>, String) {
    let mut child = job(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let done = child.wait_with_output().unwrap();
    let _ = writer.join();
    (done.status.code(), String::from_utf8(done.stdout).unwrap())
}

fn the_first_rank_reads_the_input() {
    let input = vec![b'x'; 300_000];
    let (code, out) = fed(&["-n", "2", "sh", "-c", "echo $PMI_RANK $(wc -c)"], &input);
    assert_eq!((code, sorted(&out)), (Some(0), vec!["0 300000", "1 0"]));
}

fn everybody_reads_the_input() {
    let (code, out) = fed(&["-n", "2", "--stdin", "all", "sh", "-c", "echo $PMI_RANK $(wc -c)"], &[b'x'; 100_000]);
    assert_eq!((code, sorted(&out)), (Some(0), vec!["0 100000", "1 100000"]));
}

fn the_first_bad_end_is_the_jobs() {
    let (code, _, err) = run(&mut job(&["-n", "1", "sleep", "60", ":", "sh", "-c", "echo the reason >&2; exit 9"]));
    assert_eq!(code, Some(9));
    assert!(err.contains("madrigal: rank 1 on localhost ended with status 9: the reason\n"), "{err}");
    let (code, _, err) = run(&mut job(&["-n", "2", "sh", "-c", "kill -ABRT $$"]));
    assert_eq!(code, Some(128 + 6), "{err}");
    assert!(err.contains("was ended by signal 6"), "{err}");
}

fn nothing_runs_where_one_program_cannot() {
    let folder = Folder::new("run-nothing");
    let mark = folder.path("mark");
    for (wrong, code, printed) in [
        (&["/no/such/program"][..], 127, "localhost: /no/such/program: no such file"),
        (&["--wdir", "/no/such/folder", "true"], 125, "localhost: /no/such/folder: No such file"),
        (&["/etc/passwd"], 126, "localhost: cannot execute /etc/passwd: permission denied"),
    ] {
        let (status, _, err) = run(job(&["-n", "1", "touch", &mark, ":", "-n", "1"]).args(wrong));
        assert_eq!(status, Some(code), "{err}");
        assert!(err.contains(printed), "{err}");
        assert!(!PathBuf::from(&mark).exists());
    }
}

fn a_job_that_takes_too_long_is_ended() {
    let (code, _, err) = run(&mut job(&["-n", "2", "--timeout", "1", "sleep", "60"]));
    assert_eq!(code, Some(124));
    assert_eq!(err, "madrigal: the job has taken longer than 1 s, and is ended\n");
}

/// A job whose ranks, and a process that each has started, sleep; and the process ids.
fn sleepers(words: &[&str]) -> (Child, Vec<u32>) {
    let shell = "sleep 300 & echo $$ $!; wait";
    let mut child = job(words).args(["sh", "-c", shell]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pids = (0..2).flat_map(|_| {
        let line = lines.next().unwrap().unwrap();
        line.split(' ').map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>()
    });
    let pids = pids.collect();
    // Until the end: a reader that closes its end must not end it.
    std::thread::spawn(move || lines.count());
    (child, pids)
}

fn are_gone(pids: &[u32]) -> Option<()> {
    let lives =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
    (!pids.iter().any(lives)).then_some(())
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap().success());
}

fn an_interrupt_reaches_the_processes() {
    let (mut child, pids) = sleepers(&["-n", "2"]);
    signal(child.id(), "INT");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 2));
    until("the end of the processes", || are_gone(&pids));
}

fn a_killed_launcher_leaves_nothing() {
    let (mut child, pids) = sleepers(&["-n", "2"]);
    child.kill().unwrap();
    child.wait().unwrap();
    until("the end of the processes", || are_gone(&pids));
}

fn a_killed_agent_leaves_nothing() {
    let (mut child, pids) = sleepers(&["-n", "2"]);
    let agents = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    signal(agents.trim().parse().unwrap(), "KILL");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    // A process that a rank has started in the background is an orphan by now.
    until("the end of the ranks", || are_gone(&[pids[0], pids[2]]));
    pids.iter()
        .for_each(|pid| drop(Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status()));
}

fn a_rank_cannot_speak_for_the_launcher() {
    let (code, _, err) = run(&mut job(&["-n", "2", "sh", "-c", "echo madrigal: rank 7 died >&2"]));
    assert_eq!((code, sorted(&err)), (Some(0), vec!["[0] madrigal: rank 7 died", "[1] madrigal: rank 7 died"]));
}

fn a_host_without_an_agent_is_named() {
    let words = ["--host", "localhost,far", "--agent", "sh -c 'exit${IFS}3'", "-n", "2", "true"];
    let (code, _, err) = run(&mut job(&words));
    assert_eq!(code, Some(125));
    assert!(err.starts_with("madrigal: far: no agent answers by `sh -c"), "{err}");
}

fn an_agent_that_speaks_nonsense_ends_the_job() {
    let folder = Folder::new("run-nonsense");
    let agent = folder.file("agent", 0o700, "#!/bin/sh\necho 'Last login: today'\nsleep 60\n");
    let (code, _, err) = run(&mut job(&["--host", "localhost,far", "--agent", &agent, "-n", "2", "true"]));
    assert_eq!(code, Some(125));
    assert!(err.starts_with("madrigal: far: no agent answers by `"), "{err}");
    assert!(err.contains(": it sent a frame of 544502625 bytes, and no frame is longer than 8388608"), "{err}");
}

/// For longer than a host may be silent.
fn a_reader_that_waits_loses_nothing() {
    let shell = "i=0; while [ $i -lt 400 ]; do head -c 65535 /dev/zero; echo; i=$((i+1)); done";
    let mut child = job(&["-n", "2", "sh", "-c", shell]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(12));
    let mut out = Vec::new();
    std::io::Read::read_to_end(&mut child.stdout.take().unwrap(), &mut out).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(out.len(), 2 * 400 * 65_536);
}

fn a_reader_that_goes_away_ends_the_job() {
    let shell = "while echo line; do :; done";
    let mut child = job(&["-n", "2", "sh", "-c", shell]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "line\n");
    assert_eq!(child.wait().unwrap().code(), Some(128 + 13));
}

/// The program of these tests, built for MPICH.
fn program(folder: &Folder) -> String {
    let compiler = common::exe().parent().unwrap().parent().unwrap().join("mpi/mpich/bin/mpicc");
    if !compiler.exists() {
        skip("no mpich: run tests/mpi/setup --light");
    }
    common::library_beside("libmadrigal_ofi.so");
    let (source, built) = (folder.path("sum.c"), folder.path("sum"));
    std::fs::write(&source, SUM).unwrap();
    assert!(Command::new(compiler).args(["-O1", "-o", &built, &source]).status().unwrap().success());
    built
}

const SUM: &str = r#"
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int rank, size, sum, here;
    MPI_Comm host;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &here);
    if (argc > 1 && rank == size - 1)
        MPI_Abort(MPI_COMM_WORLD, 7);
    if (argc > 1)
        MPI_Barrier(MPI_COMM_WORLD);
    printf("%d of %d: %d, %d here\n", rank, size, sum, here);
    MPI_Finalize();
    return 0;
}
"#;

/// What four ranks print of which so many see each other as on one host.
fn four(here: u32) -> [String; 4] {
    [0, 1, 2, 3].map(|rank| format!("{rank} of 4: 6, {here} here"))
}

/// MPICH leaves shared memory to us, and takes each rank to be on a host of its own (docs/ofi.md); plain it does as ever.
fn ranks_of_mpich_find_each_other() {
    let folder = Folder::new("run-mpich");
    let program = program(&folder);
    for (words, here) in [(&["-n", "4"][..], 1), (&["--plain", "-n", "4"], 4)] {
        let (code, out, err) = run(job(words).args(["--timeout", "100", &program]));
        assert_eq!(code, Some(0), "{err}");
        assert_eq!(sorted(&out), four(here), "{words:?}");
    }
}

/// Two agents, each with a part of the ranks: the second one's host is this one by another name.
fn ranks_of_mpich_on_two_hosts_find_each_other() {
    let folder = Folder::new("run-hosts");
    let words = ["-v", "-n", "4", "--host", "localhost:2,b:2", "--agent", "env HOST={host}", "--timeout", "100"];
    let program = program(&folder);
    for (plain, here) in [(None, 1), (Some("--plain"), 2)] {
        let (code, out, err) = run(job(&words).args(plain).arg(&program));
        assert_eq!(code, Some(0), "{err}");
        assert_eq!(sorted(&out), four(here), "{plain:?}: {err}");
        assert!(err.contains("madrigal: b: rank 2 is process "), "{err}");
    }
}

fn an_abort_of_mpich_ends_everybody() {
    let folder = Folder::new("run-abort");
    let (code, _, err) = run(&mut job(&["-n", "3", "--timeout", "100", &program(&folder), "abort"]));
    assert_eq!(code, Some(7), "{err}");
    assert!(err.contains("madrigal: rank 2 on localhost ended the job with 7"), "{err}");
}
