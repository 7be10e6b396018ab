//! The engine makes its system calls itself: preloaded hooks, ours among them, never see it.
//!
//! The suites of drivers, links and ports run once more, over every driver and `vrp/udp`, in a process with a preloaded library that counts calls of
//! the C library's I/O functions. Afterwards the same process calls each of these functions once, to show that they would have been counted.
//!
//! Features (docs/features.md): A1.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_long, c_ulong};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};
use madrigal_testkit::udp::Vrp;
use madrigal_testkit::{drivers, ports, tidy, vlinks, watchdog::Watchdog};

/// Set in the process that runs the suites.
const TASK: &str = "_MADRIGAL_TESTKIT_COUNTED";
fn main() -> ExitCode {
    if std::env::var_os(TASK).is_some() {
        return counted();
    }
    let trial = Trial::test("no_hook_sees_the_engine", || {
        let _dog = Watchdog::set("no_hook_sees_the_engine");
        no_hook_sees_the_engine()
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

fn no_hook_sees_the_engine() -> Result<(), Failed> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let library = directory.join(format!("libcounting-{}.so", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/counting.c");
    let flags = ["-shared", "-fPIC", "-O1", "-fno-builtin", "-o"];
    let built = Command::new("cc").args(flags).arg(&library).args([source, "-ldl"]).status()?;
    assert!(built.success(), "cc cannot build the counting library");
    let ran = Command::new("/proc/self/exe").env(TASK, "1").env("LD_PRELOAD", &library).output();
    std::fs::remove_file(&library)?;
    let ran = ran?;
    let errors = String::from_utf8_lossy(&ran.stderr);
    if ran.status.success() { Ok(()) } else { Err(format!("{}\n{errors}", ran.status).into()) }
}

/// The process with the counting library.
fn counted() -> ExitCode {
    let Some(table) = Table::find() else { return failure("the counting library is not preloaded") };
    let _dog = Watchdog::set("the process with the counting library");
    // Certificates are files, read by the standard library.
    drop(vlinks::context(&Vrp));
    let before = table.counts();
    vlinks::CASES.iter().for_each(|case| (case.run)(&vlinks::context(&Vrp)));
    let after = table.counts();
    // So is the list of those that were revoked, which is looked for now and then; here there is none.
    let seen: Vec<_> = after.iter().filter(|(name, n)| before[*name] != **n && **name != "open64").collect();
    if !seen.is_empty() {
        return failure(&format!("calls of links over UDP that passed through hooks: {seen:?}"));
    }
    let before = table.counts();
    for driver in madrigal::DRIVERS.iter().copied() {
        let packets = if drivers::has_packets(driver) { drivers::PACKETS } else { &[] };
        drivers::CASES.iter().chain(packets).for_each(|case| (case.run)(&drivers::context(driver)));
        vlinks::CASES.iter().for_each(|case| (case.run)(&vlinks::context(driver)));
    }
    for driver in madrigal_testkit::own_message_drivers() {
        ports::CASES.iter().for_each(|case| (case.run)(&ports::context(driver)));
    }
    let after = table.counts();
    tidy();
    let seen: Vec<_> = after.iter().filter(|(name, n)| before[*name] != **n).collect();
    if !seen.is_empty() {
        return failure(&format!("calls of the engine that passed through hooks: {seen:?}"));
    }
    let before = table.counts();
    before.keys().for_each(|name| call(name));
    let after = table.counts();
    match after.iter().find(|(name, n)| **n < before[*name] + 1) {
        Some((name, _)) => failure(&format!("a call of {name} was not counted")),
        None => ExitCode::SUCCESS,
    }
}

fn failure(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}

type Address = *mut libc::c_void;
type Name = extern "C" fn(c_int) -> *const c_char;
type Calls = extern "C" fn(c_int) -> c_ulong;
type Function = extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// The counting library's two functions.
struct Table {
    name: Name,
    calls: Calls,
}

impl Table {
    fn find() -> Option<Self> {
        let (name, calls) = (symbol(c"counting_name")?, symbol(c"counting_calls")?);
        // SAFETY: these symbols are only in the counting library, whose functions have these types.
        unsafe {
            let name = std::mem::transmute::<Address, Name>(name);
            Some(Self { name, calls: std::mem::transmute::<Address, Calls>(calls) })
        }
    }

    fn counts(&self) -> BTreeMap<&'static str, c_ulong> {
        let named = |i| {
            let name = (self.name)(i);
            // SAFETY: null, or a literal of the library, which stays loaded.
            let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
            Some((name.to_str().ok()?, (self.calls)(i)))
        };
        (0..).map_while(named).collect()
    }
}

fn symbol(name: &CStr) -> Option<Address> {
    // SAFETY: looks a name up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Calls a function of the C library with arguments it refuses.
fn call(name: &str) {
    let name = std::ffi::CString::new(name).expect("a name");
    let found = symbol(&name).expect("a function of the C library");
    // SAFETY: every hooked function takes up to six words. -1 is no descriptor, address, count nor set of flags, and 0 is a time that
    // is over and no address; so each fails at once and changes nothing.
    unsafe {
        let function = std::mem::transmute::<Address, Function>(found);
        function(-1, -1, 0, 0, 0, 0);
    }
}
