//! What the library shows to the loader, and what its hooks cost on descriptors that are none of its business.
//!
//! Features (docs/features.md): P2.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use madrigal_tests::host::{self, How, Scratch};
use madrigal_tests::trials::{need, skip};

madrigal_tests::trials![
    only_hooks_are_exported_and_all_exist_in_the_c_library,
    what_has_a_hook_has_one_by_each_of_its_names,
    our_own_logic_calls_no_hook,
    every_hook_is_called_by_a_test,
    foreign_descriptors_cost_no_extra_system_call,
];

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");

/// Names defined in a shared library, without versions; `None`: no nm here.
fn defined(library: &Path) -> Option<BTreeSet<String>> {
    let out = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().ok()?;
    let text = String::from_utf8(out.stdout).ok()?;
    let names = text.lines().filter_map(|l| l.split_whitespace().nth(2));
    Some(names.map(|n| n.split('@').next().unwrap_or(n).to_owned()).collect())
}

/// The files below a folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(dir).expect("the hooks").map(|entry| entry.expect("a file").path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Names of the hooks in the sources: exported functions, and entries of the tables that make more of them.
fn hooks() -> BTreeSet<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../personalities/syswrap/src/hooks");
    let mut names = BTreeSet::new();
    for file in files(&dir) {
        let text = std::fs::read_to_string(file).expect("a source file");
        let (mut exported, mut listed) = (false, false);
        for line in text.lines().map(str::trim) {
            exported |= line.contains("#[unsafe(no_mangle)]");
            if let Some((_, rest)) = line.split_once("fn ").filter(|_| exported) {
                names.insert(rest.split('(').next().unwrap_or(rest).to_owned());
                exported = false;
            }
            // A table of names, and what follows them.
            listed = (listed || line == "before_request! {" || line == "aliases! {") && line != "}";
            if let Some(entry) = line.strip_suffix(';').filter(|_| listed) {
                names.insert(entry.split([',', ' ']).next().unwrap_or(entry).to_owned());
            }
            if let Some((name, rest)) =
                line.split_once(": before_").filter(|(n, r)| !n.contains(' ') && r.contains('{'))
            {
                let _ = rest;
                names.insert(name.to_owned());
            }
        }
    }
    names.into_iter().filter(|n| !n.starts_with('$')).collect()
}

/// The C library this test runs with.
fn c_library() -> Option<std::path::PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|l| l.ends_with("libc.so.6"))?;
    line.split_whitespace().last().map(Into::into)
}

fn only_hooks_are_exported_and_all_exist_in_the_c_library() {
    let (Some(ours), Some(libc)) = (defined(host::library()), c_library().and_then(|p| defined(&p))) else {
        skip("no nm, or no libc.so.6");
    };
    assert!(ours.len() > 60, "{ours:?}");
    assert_eq!(ours, hooks(), "exported against written as hooks");
    let others = |name: &&String| !(name.starts_with("io_uring_") || *name == "io_submit");
    // liburing's and libaio's make their system calls themselves.
    let unknown: Vec<_> = ours.difference(&libc).filter(others).collect();
    assert!(unknown.is_empty(), "not in the C library: {unknown:?}");
}

/// The C library has some functions by several names, at one address. A call by a name without a hook goes to the kernel, behind the back of
/// those that go by the others.
fn what_has_a_hook_has_one_by_each_of_its_names() {
    let (Some(ours), Some(libc)) = (defined(host::library()), c_library()) else { skip("no nm, or no libc.so.6") };
    let out = Command::new(need("nm")).args(["-D", "--defined-only", "--with-symbol-versions"]).arg(libc).output();
    let text = String::from_utf8(out.expect("nm").stdout).expect("names");
    let mut by_address = BTreeMap::<&str, BTreeSet<&str>>::new();
    for line in text.lines() {
        // What is private to the C library no program calls.
        if let [address, _, name] = line.split_whitespace().collect::<Vec<_>>()[..]
            && !name.ends_with("@GLIBC_PRIVATE")
        {
            by_address.entry(address).or_default().insert(name.split('@').next().unwrap_or(name));
        }
    }
    assert!(by_address.len() > 1000, "{text}");
    let hooked = by_address.into_values().filter(|names| names.iter().any(|name| ours.contains(*name)));
    let lacking: Vec<_> = hooked.filter(|names| !names.iter().all(|name| ours.contains(*name))).collect();
    assert!(lacking.is_empty(), "some names of these have no hook: {lacking:?}");
}

/// What a tool of binutils prints of the library.
fn printed(tool: &str, option: &str) -> String {
    let out = Command::new(need(tool)).arg(option).arg(host::library()).output().expect(tool);
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A hook may end its thread, in the C library's own call (pthread_cancel(3)); in our logic, which nothing may unwind, that would end the
/// program. The standard library calls close(2) where an `OwnedFd` is dropped, for one: [`madrigal_sys::fd::Fd`] does not.
fn our_own_logic_calls_no_hook() {
    let addresses: BTreeMap<u64, String> = {
        let symbols = printed("nm", "--dynamic");
        let lines = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines
            .filter_map(|line| Some((u64::from_str_radix(line.first()?, 16).ok()?, (*line.get(2)?).to_owned())))
            .collect()
    };
    // Places that have a hook's address.
    let places: BTreeMap<u64, String> = {
        let relocations = printed("readelf", "-rW");
        let lines = relocations.lines().filter(|line| line.contains("RELATIVE"));
        let number = |word: Option<&str>| word.and_then(|word| u64::from_str_radix(word, 16).ok());
        let of = |line: &str| Some((number(line.split_whitespace().next())?, number(line.split_whitespace().last())?));
        lines.filter_map(of).filter_map(|(place, at)| Some((place, addresses.get(&at)?.clone()))).collect()
    };
    assert!(places.len() > 20, "{places:?}");
    let (mut caller, mut calls) = (String::new(), BTreeSet::new());
    for line in printed("objdump", "-d").lines() {
        if let Some(name) = line.strip_suffix(">:").and_then(|line| line.split_once(" <")) {
            caller = name.1.to_owned();
        }
        // What writes a panic's message, and hooks that go on as other hooks, are no logic of ours.
        let ours = caller.contains("madrigal") || caller.contains("OwnedFd");
        let is_meant = caller.contains("5hooks3aio7request");
        if !ours || is_meant || !(line.contains("\tcall") || line.contains("\tjmp")) {
            continue;
        }
        let direct = line.split_once(" <").map(|(_, name)| name.split(['+', '>', '@']).next().unwrap_or(name));
        let direct = direct.filter(|name| addresses.values().any(|hook| hook == name) && *name != caller);
        let place = line.split_once("# ").and_then(|(_, rest)| u64::from_str_radix(rest.split(' ').next()?, 16).ok());
        calls.extend(
            direct.or_else(|| Some(places.get(&place?)?.as_str())).map(|hook| format!("{caller} calls {hook}")),
        );
    }
    assert!(calls.is_empty(), "{calls:#?}");
}

/// Hooks whose names stand in no test: other names of what one calls, what such a one passes through, and what still lacks a check.
const UNCALLED: &[&str] = &[
    "_Exit",
    "__dprintf_chk",
    "__sigaction",
    "__sysv_signal",
    "__vdprintf_chk",
    "aio_read64",
    "aio_write64",
    "bsd_signal",
    "execl",
    "execle",
    "execlp",
    "execveat",
    "execvpe",
    "fcntl64",
    "fexecve",
    "gethostbyname2",
    "gethostbyname_r",
    "io_submit",
    "io_uring_queue_init",
    "io_uring_queue_init_mem",
    "io_uring_queue_init_params",
    "io_uring_setup",
    "lio_listio64",
    "preadv64v2",
    "pwritev64v2",
    "sendfile64",
    "sigset",
    "ssignal",
    "sysv_signal",
    "vdprintf",
];

fn every_hook_is_called_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut called = BTreeSet::new();
    for folder in ["src", "tests", "churn", "../fuzz", "../tools/madrigal/tests"] {
        for file in files(&root.join(folder)) {
            let is_program = file.extension().is_some_and(|kind| ["rs", "c", "py"].iter().any(|known| kind == *known));
            if is_program && !file.ends_with("tests/exports.rs") {
                let text = std::fs::read_to_string(&file).expect("a program");
                called.extend(text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned));
            }
        }
    }
    let uncalled: BTreeSet<String> = hooks().into_iter().filter(|name| !called.contains(name)).collect();
    let known: BTreeSet<String> = UNCALLED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(uncalled, known, "hooks without a check (tests/src/bin/semantics), against `UNCALLED`");
}

/// System calls of a run, by name.
fn calls(how: How, count: &str) -> BTreeMap<String, i64> {
    let scratch = Scratch::new();
    let log = scratch.path().join("log");
    let mut command = host::command(How::Plain, "strace", &scratch);
    command.args(["-f", "-qq", "-o"]).arg(&log);
    if how == How::Wrapped {
        command.arg("-E").arg(format!("LD_PRELOAD={}", host::library().display()));
    }
    host::run(command.args([ACTOR, "foreign", count])).expect_success();
    let mut counts = BTreeMap::new();
    for line in std::fs::read_to_string(&log).expect("the trace").lines() {
        let call = line.split_whitespace().nth(1).unwrap_or("").split('(').next().unwrap_or("");
        *counts.entry(call.to_owned()).or_default() += 1;
    }
    counts
}

fn foreign_descriptors_cost_no_extra_system_call() {
    need("strace");
    let more = |how| {
        let (few, many) = (calls(how, "10"), calls(how, "210"));
        let names: BTreeSet<&String> = few.keys().chain(many.keys()).collect();
        let of = |c: &BTreeMap<String, i64>, n: &String| c.get(n).copied().unwrap_or(0);
        let each = names.into_iter().map(|n| (n.clone(), of(&many, n) - of(&few, n)));
        // Memory the C library asks for now and then is nobody's hook.
        each.filter(|(n, d)| *d != 0 && n != "brk" && n != "mmap").collect::<BTreeMap<_, _>>()
    };
    let plain = more(How::Plain);
    assert_eq!(plain.get("read"), Some(&400), "{plain:?}");
    assert_eq!(more(How::Wrapped), plain);
}
