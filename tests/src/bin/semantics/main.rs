//! Socket behaviour, one check per run: `semantics --list` names them, `semantics NAME...` runs them, all must hold plain and
//! wrapped. With `EXPECT_RING=1` every connection under test must really be in rings before the check begins.

mod addresses;
mod any_instruction;
mod any_time;
mod between;
mod bulk;
mod close;
mod descriptors;
mod edges;
mod exec;
mod families;
mod files;
mod gone;
mod gone_sets;
mod held;
mod interrupts;
mod killed;
mod names;
mod nested;
mod options;
mod overtaken;
mod passing;
mod polling;
mod processes;
mod receive;
mod rest;
mod restarts;
mod set;
mod sets;
mod sleepers;
mod threads;
mod traced;
mod transmit;
mod turns;
mod urgent;
mod watched;

use madrigal_tests::{net, pair};

/// A check and its name.
type Check = (&'static str, fn());

/// Names a module's checks after their functions.
macro_rules! checks {
    ($($name:ident),* $(,)?) => {
        pub(crate) const CHECKS: &[crate::Check] = &[$((stringify!($name), $name as fn())),*];
    };
}
pub(crate) use checks;

const ALL: &[(&str, &[Check])] = &[
    ("receive", receive::CHECKS),
    ("transmit", transmit::CHECKS),
    ("held", held::CHECKS),
    ("urgent", urgent::CHECKS),
    ("close", close::CHECKS),
    ("polling", polling::CHECKS),
    ("sets", sets::CHECKS),
    ("nested", nested::CHECKS),
    ("turns", turns::CHECKS),
    ("edges", edges::CHECKS),
    ("interrupts", interrupts::CHECKS),
    ("between", between::CHECKS),
    ("restarts", restarts::CHECKS),
    ("descriptors", descriptors::CHECKS),
    ("overtaken", overtaken::CHECKS),
    ("processes", processes::CHECKS),
    ("exec", exec::CHECKS),
    ("families", families::CHECKS),
    ("killed", killed::CHECKS),
    ("gone", gone::CHECKS),
    ("gone_sets", gone_sets::CHECKS),
    ("passing", passing::CHECKS),
    ("files", files::CHECKS),
    ("names", names::CHECKS),
    ("rest", rest::CHECKS),
    ("watched", watched::CHECKS),
    ("addresses", addresses::CHECKS),
    ("options", options::CHECKS),
    ("threads", threads::CHECKS),
    ("sleepers", sleepers::CHECKS),
    ("bulk", bulk::CHECKS),
    ("any_time", any_time::CHECKS),
    ("any_instruction", any_instruction::CHECKS),
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.first().is_some_and(|a| a == "--list") {
        return each(|name, _| println!("{name}"));
    }
    if wanted.first().is_some_and(|a| a == "--child") {
        return exec::child(&wanted[1..]);
    }
    interrupts::watchdog(if any_time::tries_all() { 3600 } else { 60 });
    let mut found = 0;
    each(|name, check| {
        if wanted.iter().any(|w| w == name) {
            found += 1;
            check();
            assert_eq!(pair::missed_bells(), 0, "a wake-up was lost");
        }
    });
    assert_eq!(found, wanted.len(), "no such check");
}

fn each(mut f: impl FnMut(&str, fn())) {
    for (group, checks) in ALL {
        for (name, check) in *checks {
            f(&format!("{group}::{name}"), *check);
        }
    }
}

/// Runs both functions at once, each in a thread; a panic of one is a panic here.
pub(crate) fn both(first: impl FnOnce() + Send, second: impl FnOnce()) {
    std::thread::scope(|scope| {
        scope.spawn(first);
        second();
    });
}

/// Waits until thread `tid` of this process sleeps in the kernel.
pub(crate) fn await_asleep(tid: i32) {
    let mut sleeps = 0;
    while sleeps < 5 {
        sleeps = if is_asleep(tid) { sleeps + 1 } else { 0 };
        net::sleep_ms(2);
    }
}

/// Whether a thread, of this process or another, sleeps in the kernel.
pub(crate) fn is_asleep(tid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or("").trim_start().chars().next();
    matches!(state, Some('S'))
}

/// This thread, and those it makes, run on one processor from now on.
#[allow(unsafe_code)]
pub(crate) fn stay_here() {
    // SAFETY: all-zero is a set of no processors.
    let mut here: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: no pointers; a set of our own.
    unsafe { libc::CPU_SET(libc::sched_getcpu() as usize, &mut here) };
    // SAFETY: a set of our own.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&here), &raw const here) }, 0);
}
