//! A server and a client under a tool, and what was seen of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use libtest_mimic::Failed;
use madrigal_tests::host::{self, Ended, How, Running, Scratch};
use serde_json::Value;

use super::{Done, MANY};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tools/transfer.c");
const ROLES: [&str; 2] = ["serve", "call"];

/// How a program is run: what stands in front of `madrigal exec --`, and what behind it.
#[derive(Clone)]
pub(super) struct Under {
    outside: Vec<String>,
    inside: Vec<String>,
    program: PathBuf,
    wrapped: bool,
}

impl Under {
    /// Under Madrigal and nothing else.
    pub(super) fn nothing() -> Self {
        let program = built("cc", "").expect("cc builds the program");
        Self { outside: Vec::new(), inside: Vec::new(), program, wrapped: true }
    }

    /// `madrigal exec -- TOOL PROGRAM`
    pub(super) fn inside(words: &[&str]) -> Self {
        Self { inside: owned(words), ..Self::nothing() }
    }

    /// `TOOL madrigal exec -- PROGRAM`
    pub(super) fn outside(words: &[&str]) -> Self {
        Self { outside: owned(words), ..Self::nothing() }
    }

    fn plain() -> Self {
        Self { wrapped: false, ..Self::nothing() }
    }

    /// The same with another program.
    pub(super) fn program(self, program: &Path) -> Self {
        Self { program: program.to_owned(), ..self }
    }

    fn words(&self) -> Vec<String> {
        let mut words = self.outside.clone();
        if self.wrapped {
            words.extend([text(host::madrigal()), "exec".into(), "--".into()]);
        }
        words.extend(self.inside.iter().cloned());
        words.push(text(&self.program));
        words
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// One of the two programs.
pub(super) struct End {
    pub(super) ended: Ended,
    /// Its time of day, in seconds.
    time: i64,
    /// What it received, as a sum.
    sum: String,
    /// The report of `madrigal why --json` about its connection; none for a plain program.
    why: Value,
    /// Names of what was loaded.
    maps: String,
}

/// Both programs of a run, which ended well.
pub(super) struct Seen([End; 2]);

/// A folder in which a server and a client find each other.
pub(super) struct Bed(Scratch);

impl Bed {
    pub(super) fn new() -> Self {
        Self(Scratch::new())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, under: &Under, role: &str, bytes: u64) -> Command {
        let words = under.words();
        let mut command = host::command(How::Plain, &words[0], &self.0);
        command.args(&words[1..]).arg(role).arg(self.0.path()).env("TRANSFER_BYTES", bytes.to_string());
        for name in ["ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "VALGRIND_OPTS", "FAKETIME"] {
            command.env_remove(name);
        }
        command
    }

    /// Both ends in the same way.
    pub(super) fn pair(&self, bytes: u64, under: &Under) -> Result<Seen, Failed> {
        self.two(bytes, [under, under])
    }

    /// Server and client; their sums are those of a plain run.
    pub(super) fn two(&self, bytes: u64, under: [&Under; 2]) -> Result<Seen, Failed> {
        let seen = self.seen(bytes, under, |_| Ok(()))?;
        if seen.sums() == plain(bytes)? { Ok(seen) } else { Err("the sums differ from those of a plain run".into()) }
    }

    /// Runs server and client; `meanwhile` gets their processes.
    fn seen(&self, bytes: u64, under: [&Under; 2], meanwhile: impl Fn([i32; 2]) -> Done) -> Result<Seen, Failed> {
        let start = |i: usize| Running::start(&mut self.command(under[i], ROLES[i], bytes));
        let mut running = [start(0), start(1)];
        let started = meanwhile([running[0].pid(), running[1].pid()]);
        let mut failed = false;
        host::until("the ends of the transfer", || {
            let done = ROLES.iter().all(|role| self.path(&format!("{role}.done")).exists());
            failed = !done && (!self.files("failed.").is_empty() || !running.iter_mut().all(Running::is_running));
            (done || failed).then_some(())
        });
        if failed {
            return Err(self.failure(running).into());
        }
        started?;
        let inspected = ROLES.map(|role| self.inspect(role, under[0].wrapped));
        std::fs::write(self.path("go"), "").expect("a file");
        let mut ends = running.into_iter().zip(inspected).map(|(running, (time, sum, why, maps))| {
            let ended = running.wait();
            End { ended, time, sum, why, maps }
        });
        let (Some(first), Some(second)) = (ends.next(), ends.next()) else { return Err("two".into()) };
        drop(ends);
        let seen = Seen([first, second]);
        for end in seen.ends() {
            if end.ended.status != 0 {
                let (out, err) = (end.ended.text(), String::from_utf8_lossy(&end.ended.err));
                return Err(format!("status {}\n{out}{err}", end.ended.status).into());
            }
        }
        Ok(seen)
    }

    /// What both programs printed when one has failed, and why their connection is as it is.
    fn failure(&self, running: [Running; 2]) -> String {
        let whys = running.each_ref().map(|end| {
            let pid = end.pid().to_string();
            host::run(host::command(How::Plain, host::madrigal(), &self.0).args(["why", &pid])).text()
        });
        std::fs::write(self.path("go"), "").expect("a file");
        let ends = running.map(|end| {
            if !self.path(&format!("failed.{}", end.pid())).exists() {
                end.signal(libc::SIGTERM);
            }
            end.wait()
        });
        let told = ends.iter().zip(whys).zip(ROLES).map(|((ended, why), role)| {
            let err = String::from_utf8_lossy(&ended.err);
            format!("{role}: status {}\n{}{err}madrigal why: {why}\n", ended.status, ended.text())
        });
        format!("a program failed\n{}", told.collect::<String>())
    }

    /// A program's own report at its end, Madrigal's report about it, and its loaded libraries.
    fn inspect(&self, role: &str, wrapped: bool) -> (i64, String, Value, String) {
        let told = std::fs::read_to_string(self.path(&format!("{role}.done"))).expect("a file");
        let words: Vec<&str> = told.split_whitespace().collect();
        let [pid, sum, time] = words[..] else { panic!("{told}") };
        let mut why = Value::Null;
        if wrapped {
            let ended = host::run(host::command(How::Plain, host::madrigal(), &self.0).args(["why", pid, "--json"]));
            why = serde_json::from_slice(&ended.expect_success().out).expect("JSON");
        }
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        (time.parse().expect("seconds"), sum.to_owned(), why["processes"][0].clone(), maps)
    }

    /// Runs the program alone, which need not end well.
    pub(super) fn run(&self, under: &Under, role: &str) -> Ended {
        std::fs::write(self.path("go"), "").expect("a file");
        host::run(&mut self.command(under, role, MANY))
    }

    fn files(&self, prefix: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.0.path()).expect("the folder").filter_map(Result::ok);
        let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        named.map(|entry| entry.path()).collect()
    }

    /// There are so many logs of Valgrind's at least; they have no error and no unknown system call or instruction.
    pub(super) fn valgrind_found_nothing(&self, least: usize) -> Done {
        let logs = self.files("valgrind.");
        if logs.len() < least {
            return Err(format!("{} logs", logs.len()).into());
        }
        for log in logs {
            let text = std::fs::read_to_string(&log).expect("a log");
            let bad = ["Invalid", "WARNING", "ninitialised", "unaddressable", "Possible data race", "Conflicting"];
            if !text.contains("ERROR SUMMARY: 0 errors") || bad.iter().any(|word| text.contains(word)) {
                return Err(text.into());
            }
        }
        Ok(())
    }

    /// A log of the tool's has lines with this text.
    pub(super) fn has_lines(&self, log: &str, wanted: &str) -> Done {
        let text = std::fs::read_to_string(self.path(log)).unwrap_or_default();
        if text.contains(wanted) { Ok(()) } else { Err(format!("no {wanted} in {log}").into()) }
    }

    /// perf can read what it recorded of so many programs.
    pub(super) fn perf_can_read(&self, programs: usize) -> Done {
        let files = self.files("perf.");
        if files.len() != programs {
            return Err(format!("{} recordings", files.len()).into());
        }
        for file in files {
            let ended = host::run(Command::new("perf").args(["script", "-f", "-i"]).arg(&file));
            if ended.status != 0 || !ended.text().contains("transfer") {
                return Err(String::from_utf8_lossy(&ended.err).into());
            }
        }
        Ok(())
    }
}

impl Seen {
    pub(super) fn ends(&self) -> &[End; 2] {
        &self.0
    }

    fn sums(&self) -> [String; 2] {
        self.0.each_ref().map(|end| end.sum.clone())
    }

    fn each(&self, what: &str, holds: impl Fn(&End) -> bool) -> Done {
        let bad = self.0.iter().find(|end| !holds(end));
        bad.map_or(
            Ok(()),
            |end| Err(format!("{what}: {}\n{}", end.why, String::from_utf8_lossy(&end.ended.err)).into()),
        )
    }

    /// Most bytes of both ends went by shared memory, and no wake-up was lost.
    pub(super) fn in_rings(&self) -> Done {
        self.each("not in rings", |end| {
            let connection = &end.why["connections"][0];
            let [ring_in, ring_out, tcp_in, tcp_out] =
                ["ring_in", "ring_out", "tcp_in", "tcp_out"].map(|key| connection[key].as_u64().unwrap_or(0));
            ring_in > tcp_in && ring_out > tcp_out && end.why["missed_bells"] == 0
        })
    }

    /// The same of programs that were stopped on the way: for long, on a machine that is busy, and then they leave their rings.
    fn in_rings_or_left(&self) -> Done {
        self.each("not in rings", |end| {
            let connection = &end.why["connections"][0];
            let count = |key: &str| connection[key].as_u64().unwrap_or(0);
            let left = count("moves") > 1 && count("ring_in") > 0 && count("ring_out") > 0;
            left && end.why["missed_bells"] == 0
        })
        .or_else(|_| self.in_rings())
    }

    /// Nothing went by shared memory, for this reason.
    pub(super) fn plain_for(&self, reason: &str) -> Done {
        self.each("not plain for that reason", |end| {
            let connections = end.why["connections"].as_array().map_or(&[][..], Vec::as_slice);
            let plain = |connection: &Value| connection["path"] == "tcp" && connection["reason"]["name"] == reason;
            !connections.is_empty() && connections.iter().all(plain)
        })
    }

    /// No word on standard error.
    pub(super) fn is_silent(&self) -> Done {
        self.each("it said something", |end| end.ended.err.is_empty())
    }

    /// The tool, or the program, said this.
    pub(super) fn each_printed(&self, wanted: &str) -> Done {
        self.each(wanted, |end| {
            format!("{}{}", end.ended.text(), String::from_utf8_lossy(&end.ended.err)).contains(wanted)
        })
    }

    /// The programs' time is a day behind.
    pub(super) fn is_yesterday(&self) -> Done {
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        self.each("it is today", |end| (now - end.time - 86400).abs() < 43200)
    }

    pub(super) fn has_loaded(&self, library: &str) -> Done {
        self.each(library, |end| end.maps.contains(library))
    }
}

/// The sums of a plain run.
fn plain(bytes: u64) -> Result<[String; 2], Failed> {
    let under = Under::plain();
    Ok(Bed::new().seen(bytes, [&under, &under], |_| Ok(()))?.sums())
}

/// A transfer, to whose ends a tool attaches meanwhile, and lets go of them again.
pub(super) fn attached(attach: impl Fn(i32) -> Done) -> Done {
    const BYTES: u64 = 64 << 20;
    let (bed, under) = (Bed::new(), Under::nothing());
    let seen = bed.seen(BYTES, [&under, &under], |pids| {
        host::until("a listener", || bed.path("port").exists().then_some(()));
        pids.into_iter().cycle().take(4).try_for_each(&attach)
    })?;
    seen.in_rings_or_left()?;
    if seen.sums() == plain(BYTES)? { Ok(()) } else { Err("the sums differ from those of a plain run".into()) }
}

/// Why a tool cannot be used here, not even on a plain program.
pub(super) fn usable(test: &str) -> Option<String> {
    let tried: &[&str] = match test {
        "perf_stat" => &["perf", "stat", "-e", "task-clock", "true"],
        "perf_record" => &["perf", "record", "-q", "-e", "cpu-clock", "-o", "/dev/null", "true"],
        _ if test.starts_with("gdb") => &["gdb", "-q", "-nx", "-batch", "-ex", "run", "-ex", "quit $_exitcode", "true"],
        _ if test.starts_with("strace") => &["strace", "-o", "/dev/null", "true"],
        _ if test.starts_with("valgrind") => &["valgrind", "-q", "true"],
        _ => return None,
    };
    let ended = Command::new(tried[0]).args(&tried[1..]).output();
    (!ended.is_ok_and(|ended| ended.status.success())).then(|| format!("{} is not permitted here", tried[0]))
}

/// A shared library, where Debian and others have them.
pub(super) fn library(file: &str) -> Option<PathBuf> {
    let triple = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    [triple.as_str(), "/usr/lib", "/usr/lib64", "/usr/local/lib"]
        .iter()
        .map(|dir| Path::new(dir).join(file))
        .find(|path| path.exists())
}

/// The program built with a sanitizer, or why it cannot be had, or not even starts plain.
pub(super) fn sanitized(compiler: &str, sanitizer: &str) -> Result<PathBuf, String> {
    let program = built(compiler, sanitizer)?;
    // Wrongly called it ends with 2.
    match Command::new(&program).output() {
        Ok(ended) if ended.status.code() == Some(2) => Ok(program),
        _ => Err(format!("programs built by {compiler} -fsanitize={sanitizer} do not run here")),
    }
}

/// Builds the program, once in a run.
fn built(compiler: &str, sanitizer: &str) -> Result<PathBuf, String> {
    static BUILT: Mutex<BTreeMap<String, Result<PathBuf, String>>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("transfer-{compiler}-{sanitizer}");
    built.entry(name.clone()).or_insert_with(|| build(compiler, sanitizer, &name)).clone()
}

fn build(compiler: &str, sanitizer: &str, name: &str) -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let program = folder.join("transfer");
    let mut cc = Command::new(compiler);
    cc.args(["-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(SOURCE);
    if !sanitizer.is_empty() {
        cc.arg(format!("-fsanitize={sanitizer}"));
    }
    match cc.output() {
        Ok(done) if done.status.success() => Ok(program),
        Ok(_) if !sanitizer.is_empty() => Err(format!("{compiler} has no -fsanitize={sanitizer}")),
        Ok(done) => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
        Err(_) => Err(format!("no {compiler}")),
    }
}
