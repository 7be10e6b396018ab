//! Tools that people use on programs (docs/tools.md), used on wrapped ones: a small server and client (`tools/transfer.c`) under each, their
//! bytes checked and their sums those of a plain run, shared memory used where it is to be, and no finding of the tool's.
//!
//! Without a tool, or where it cannot be used even on a plain program, a test is ignored, with the reason.

#[path = "tools/bed.rs"]
mod bed;

use bed::{Bed, Under, attached, library, usable};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use madrigal_tests::host;

type Done = Result<(), Failed>;

/// Small where the tool makes everything slow.
const FEW: u64 = 300_000;
const MANY: u64 = 4 << 20;

const MEMCHECK: [&str; 8] = [
    "valgrind",
    "--trace-children=yes",
    "--error-exitcode=9",
    "--leak-check=full",
    "--show-leak-kinds=definite,indirect,possible",
    "--errors-for-leak-kinds=definite,indirect,possible",
    "--child-silent-after-fork=yes",
    "--log-file=valgrind.%p",
];

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let mut trials = Vec::new();
    let mut add = |name: &str, lacks: Option<String>, test: Box<dyn FnOnce() -> Done + Send>| {
        trials.push(Trial::ignorable_test(name, move || match lacks {
            Some(lacks) => Ok(Completion::ignored_with(lacks)),
            None => test().map(|()| Completion::Completed),
        }));
    };
    for (name, programs, test) in PROGRAMS {
        let missing = programs.iter().find(|program| host::find_program(program).is_none());
        let lacks = missing.map(|program| format!("no {program}")).or_else(|| usable(name));
        add(name, lacks, Box::new(test));
    }
    for (name, file) in LIBRARIES {
        let lacks = library(file).is_none().then(|| format!("no {file}"));
        for first in [true, false] {
            let title = format!("{name}_{}", if first { "in_front" } else { "behind" });
            add(&title, lacks.clone(), Box::new(move || preloaded(file, first)));
        }
    }
    for compiler in ["gcc", "clang"] {
        for (sanitizer, test) in SANITIZERS {
            let lacks = bed::sanitized(compiler, sanitizer).err();
            add(&format!("{compiler}_{sanitizer}"), lacks, Box::new(move || test(compiler, sanitizer)));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

type ByProgram = (&'static str, &'static [&'static str], fn() -> Done);

const PROGRAMS: &[ByProgram] = &[
    ("valgrind_inside", &["valgrind"], valgrind_inside),
    ("valgrind_outside", &["valgrind"], valgrind_outside),
    ("valgrind_one_end", &["valgrind"], valgrind_one_end),
    ("valgrind_finds_what_is_wrong", &["valgrind"], valgrind_finds_what_is_wrong),
    ("helgrind", &["valgrind"], helgrind),
    ("drd", &["valgrind"], drd),
    ("gdb_run", &["gdb"], gdb_run),
    ("gdb_breakpoint", &["gdb"], gdb_breakpoint),
    ("gdb_attach", &["gdb"], gdb_attach),
    ("strace_inside", &["strace"], strace_inside),
    ("strace_outside", &["strace"], strace_outside),
    ("strace_attach", &["strace"], strace_attach),
    ("perf_stat", &["perf"], perf_stat),
    ("perf_record", &["perf"], perf_record),
    ("faketime_inside", &["faketime"], faketime_inside),
    ("faketime_outside", &["faketime"], faketime_outside),
    ("eatmydata_inside", &["eatmydata"], || by_eatmydata(Under::inside(&["eatmydata"]))),
    ("eatmydata_outside", &["eatmydata"], || by_eatmydata(Under::outside(&["eatmydata"]))),
];

const LIBRARIES: &[(&str, &str)] = &[
    ("jemalloc", "libjemalloc.so.2"),
    ("tcmalloc", "libtcmalloc_minimal.so.4"),
    ("mimalloc", "libmimalloc.so.2"),
    ("libeatmydata", "libeatmydata.so"),
    ("libfaketime", "faketime/libfaketime.so.1"),
    ("libfaketime_for_threads", "faketime/libfaketimeMT.so.1"),
];

type BySanitizer = (&'static str, fn(&str, &str) -> Done);

const SANITIZERS: &[BySanitizer] = &[
    ("address", sanitizer_with_rings),
    ("undefined", sanitizer_with_rings),
    ("leak", sanitizer_with_rings),
    ("thread", thread_sanitizer),
];

// --- valgrind -----------------------------------------------------------------------------------------------------------------

fn valgrind_inside() -> Done {
    let bed = Bed::new();
    bed.pair(FEW, &Under::inside(&MEMCHECK))?.in_rings()?;
    bed.valgrind_found_nothing(2)
}

fn valgrind_outside() -> Done {
    let bed = Bed::new();
    bed.pair(FEW, &Under::outside(&MEMCHECK))?.in_rings()?;
    bed.valgrind_found_nothing(2)
}

fn valgrind_one_end() -> Done {
    let bed = Bed::new();
    bed.two(FEW, [&Under::inside(&MEMCHECK), &Under::nothing()])?.in_rings()?;
    bed.valgrind_found_nothing(1)
}

/// The tool is at work, and the library does not stand in its way.
fn valgrind_finds_what_is_wrong() -> Done {
    let bed = Bed::new();
    let ended = bed.run(&Under::inside(&["valgrind", "--error-exitcode=9"]), "overflow");
    let told = String::from_utf8_lossy(&ended.err);
    if ended.status == 9 && told.contains("Invalid write of size 1") { Ok(()) } else { Err(told.into()) }
}

fn helgrind() -> Done {
    races("--tool=helgrind")
}

fn drd() -> Done {
    races("--tool=drd")
}

fn races(tool: &str) -> Done {
    let bed = Bed::new();
    let words = ["valgrind", tool, "--error-exitcode=9", "--child-silent-after-fork=yes", "--log-file=valgrind.%p"];
    bed.pair(FEW, &Under::inside(&words))?.plain_for("race-detector")?;
    bed.valgrind_found_nothing(2)
}

// --- sanitizers ---------------------------------------------------------------------------------------------------------------

fn sanitizer_with_rings(compiler: &str, sanitizer: &str) -> Done {
    let program = bed::sanitized(compiler, sanitizer)?;
    let shell = ["sh", "-c", "\"$0\" \"$@\""];
    for under in [Under::nothing(), Under::inside(&shell)] {
        let seen = Bed::new().pair(MANY, &under.program(&program))?;
        seen.in_rings()?;
        seen.is_silent()?;
    }
    let ended = Bed::new().run(&Under::nothing().program(&program), "both");
    if ended.status != 0 || !ended.err.is_empty() {
        return Err(String::from_utf8_lossy(&ended.err).into());
    }
    if sanitizer != "address" {
        return Ok(());
    }
    let ended = Bed::new().run(&Under::nothing().program(&program), "overflow");
    let told = String::from_utf8_lossy(&ended.err);
    if ended.status != 0 && told.contains("heap-buffer-overflow") { Ok(()) } else { Err(told.into()) }
}

fn thread_sanitizer(compiler: &str, sanitizer: &str) -> Done {
    let program = bed::sanitized(compiler, sanitizer)?;
    let seen = Bed::new().pair(MANY, &Under::nothing().program(&program))?;
    seen.plain_for("race-detector")?;
    for end in seen.ends() {
        let told = String::from_utf8_lossy(&end.ended.err);
        if told.lines().count() != 1 || !told.contains("is built with ThreadSanitizer") {
            return Err(told.into());
        }
    }
    // Programs that it starts itself were not checked before.
    let shell = ["sh", "-c", "\"$0\" \"$@\""];
    let seen = Bed::new().pair(MANY, &Under::inside(&shell).program(&program))?;
    seen.plain_for("race-detector")?;
    seen.is_silent()?;
    let ended = Bed::new().run(&Under::inside(&shell).program(&program), "both");
    if ended.status == 0 && ended.err.is_empty() { Ok(()) } else { Err(String::from_utf8_lossy(&ended.err).into()) }
}

// --- debuggers and tracers ----------------------------------------------------------------------------------------------------

fn gdb_run() -> Done {
    let seen = Bed::new().pair(MANY, &Under::inside(&["gdb", "-q", "-nx", "-batch", "-ex", "run", "--args"]))?;
    seen.in_rings()?;
    seen.each_printed("exited normally")
}

fn gdb_breakpoint() -> Done {
    let commands = ["gdb", "-q", "-nx", "-batch", "-ex", "break transfer.c:finish", "-ex", "run", "-ex", "backtrace"];
    let words: Vec<&str> = commands.into_iter().chain(["-ex", "continue", "--args"]).collect();
    let seen = Bed::new().pair(MANY, &Under::inside(&words))?;
    seen.in_rings()?;
    seen.each_printed("Breakpoint 1, finish (")?;
    seen.each_printed("exited normally")
}

fn gdb_attach() -> Done {
    attached(|pid| {
        let words = ["-q", "-nx", "-batch", "-ex", "thread apply all backtrace", "-ex", "detach", "-p"];
        let mut gdb = std::process::Command::new("gdb");
        let ended = host::run(gdb.args(words).arg(pid.to_string()).stdin(std::process::Stdio::null()));
        if ended.text().contains("Inferior 1 (process") {
            Ok(())
        } else {
            Err(format!("{}{}", ended.text(), String::from_utf8_lossy(&ended.err)).into())
        }
    })
}

fn strace_inside() -> Done {
    let bed = Bed::new();
    bed.pair(FEW, &Under::inside(&["strace", "-f", "-o", "strace", "-A"]))?.in_rings()?;
    bed.has_lines("strace", "epoll_wait(")
}

fn strace_outside() -> Done {
    let bed = Bed::new();
    bed.pair(FEW, &Under::outside(&["strace", "-f", "-o", "strace", "-A"]))?.in_rings()?;
    bed.has_lines("strace", "execve(")
}

fn strace_attach() -> Done {
    attached(|pid| {
        let log = std::env::temp_dir().join(format!("madrigal-strace-{pid}"));
        let mut strace = std::process::Command::new("strace");
        strace.args(["-f", "-o"]).arg(&log).arg("-p").arg(pid.to_string());
        let running = host::Running::start(&mut strace);
        host::until("a traced call", || std::fs::metadata(&log).is_ok_and(|log| log.len() > 1000).then_some(()));
        running.signal(libc::SIGINT);
        let ended = running.wait();
        let _ = std::fs::remove_file(&log);
        // It ends itself by the signal, when it has let go.
        let (told, interrupted) = (String::from_utf8_lossy(&ended.err).into_owned(), 128 + libc::SIGINT);
        if told.contains("detached") && ended.status == interrupted { Ok(()) } else { Err(told.into()) }
    })
}

fn perf_stat() -> Done {
    let seen = Bed::new().pair(MANY, &Under::outside(&["perf", "stat", "-e", "task-clock"]))?;
    seen.in_rings()?;
    seen.each_printed("task-clock")
}

fn perf_record() -> Done {
    let bed = Bed::new();
    let seen =
        bed.pair(MANY, &Under::inside(&["sh", "-c", "exec perf record -q -e cpu-clock -o perf.$$ -- \"$0\" \"$@\""]))?;
    seen.in_rings()?;
    bed.perf_can_read(2)
}

// --- libraries that are preloaded, too ----------------------------------------------------------------------------------------

fn faketime_inside() -> Done {
    let seen = Bed::new().pair(MANY, &Under::inside(&["faketime", "-f", "-1d"]))?;
    seen.in_rings()?;
    seen.is_yesterday()
}

fn faketime_outside() -> Done {
    let seen = Bed::new().pair(MANY, &Under::outside(&["faketime", "-f", "-1d"]))?;
    seen.in_rings()?;
    seen.is_yesterday()
}

fn by_eatmydata(under: Under) -> Done {
    let seen = Bed::new().pair(MANY, &under)?;
    seen.in_rings()?;
    seen.has_loaded("libeatmydata.so")
}

/// A library that stands in front of ours, or behind it.
fn preloaded(file: &str, first: bool) -> Done {
    let path = library(file).ok_or("it was there")?;
    let path = path.to_str().ok_or("its path is text")?;
    let order = if first { format!("{path}:$LD_PRELOAD") } else { format!("$LD_PRELOAD:{path}") };
    let script = format!("FAKETIME=-1d LD_PRELOAD={order} exec \"$0\" \"$@\"");
    let seen = Bed::new().pair(MANY, &Under::inside(&["sh", "-c", &script]))?;
    seen.in_rings()?;
    seen.has_loaded(file.rsplit('/').next().unwrap_or(file))?;
    if file.contains("faketime") { seen.is_yesterday() } else { Ok(()) }
}
