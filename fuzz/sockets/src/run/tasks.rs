//! Threads and processes as the kernel sees them, from outside.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};
use std::fs::{self, File};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

/// A thread that is inspected again and again.
#[derive(Default)]
pub(crate) struct Eye {
    thread: (i32, i32),
    stat: Option<File>,
}

impl Eye {
    /// The state of a thread, as `ps` shows it: R, S, D, T, Z; X when it is gone.
    pub(crate) fn state(&mut self, process: i32, thread: i32) -> u8 {
        if self.thread != (process, thread) {
            self.thread = (process, thread);
            self.stat = File::open(format!("/proc/{process}/task/{thread}/stat")).ok();
        }
        // The name comes first, and is short.
        let mut text = [0; 96];
        let Some(got) = self.stat.as_ref().and_then(|stat| stat.read_at(&mut text, 0).ok()) else { return b'X' };
        let text = &text[..got];
        let end = text.iter().rposition(|byte| *byte == b')').unwrap_or(0);
        text.get(end + 2).copied().unwrap_or(b'X')
    }
}

/// The same of a thread that is inspected once.
pub(crate) fn state(process: i32, thread: i32) -> u8 {
    Eye::default().state(process, thread)
}

/// Whether a process exists and is no zombie.
pub(crate) fn lives(process: i32) -> bool {
    !matches!(state(process, process), b'Z' | b'X')
}

/// Whether any thread of a process runs or wants to.
pub(crate) fn is_awake(process: i32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return false };
    tasks.flatten().any(|task| {
        let thread = task.file_name().to_string_lossy().parse().unwrap_or(0);
        !matches!(state(process, thread), b'S' | b'T' | b'Z' | b'X')
    })
}

/// Waits until a process has ended, at most so many milliseconds.
pub(crate) fn await_end(process: i32, ms: i32) -> bool {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    if fd < 0 {
        return true;
    }
    // SAFETY: a descriptor just made, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut entry = libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(&fd), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry of our own.
    unsafe { libc::poll(&raw mut entry, 1, ms) > 0 }
}

/// Sends a signal to a process, or with a negative number to a group.
pub(crate) fn kill(process: i32, signal: i32) {
    // SAFETY: no memory is passed; the number is one of our own children's.
    unsafe { libc::kill(process, signal) };
}

/// Sends a signal to a thread.
pub(crate) fn kill_thread(process: i32, thread: i32, signal: i32) {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal) };
}

/// The present state of every thread of a process.
pub(crate) fn describe(process: i32) -> String {
    let mut text = String::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else {
        return format!("process {process} is gone\n");
    };
    for task in tasks.flatten() {
        let path = task.path();
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
        let stat = read("stat");
        let state = stat.rsplit(')').next().unwrap_or("").trim().chars().next().unwrap_or('?');
        let thread = task.file_name();
        let (call, place) = (read("syscall"), read("wchan"));
        text += &format!("  process {process} thread {} state {state} in {place}: {}\n", thread.display(), call.trim());
        let status = read("status");
        let masks = status.lines().filter(|line| line.starts_with("SigBlk") || line.starts_with("SigPnd"));
        text += &masks.map(|line| format!("    {}\n", line.replace('\t', " "))).collect::<String>();
        text += &super::asleep::shown(process, &call);
    }
    text
}

/// Whether a process has connections in rings, or had.
pub(crate) fn has_rings(process: i32) -> bool {
    fs::read_to_string(format!("/proc/{process}/maps")).is_ok_and(|maps| maps.contains("memfd:madrigal-arena"))
}

/// Lets this thread, and what it starts, run on one processor, or with `None` on all.
pub(crate) fn pin(cpu: Option<usize>) {
    // SAFETY: a set of our own.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        match cpu {
            Some(cpu) => libc::CPU_SET(cpu, &mut set),
            None => (0..libc::CPU_SETSIZE as usize).for_each(|cpu| libc::CPU_SET(cpu, &mut set)),
        }
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// Makes this process the parent of its children's orphans, so that it can wait for them.
pub fn adopt_orphans() {
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
}

static STOPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: i32) {
    STOPPED.store(true, Ordering::Relaxed);
}

/// Lets the usual signals end all runs, so that nothing is left behind.
pub fn stop_on_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: an action of our own; the handler only stores. The second signal ends this process.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = stop as *const () as usize;
            action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, core::ptr::null_mut());
        }
    }
}

/// Whether a signal has ended all runs.
pub fn stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// Waits for every ended process of a group; those still running stay. The ends: process and status.
pub(crate) fn reap(group: i32) -> Vec<(i32, i32)> {
    let mut ends = Vec::new();
    loop {
        let mut status = 0;
        // SAFETY: a status of our own.
        let process = unsafe { libc::waitpid(-group, &raw mut status, libc::WNOHANG) };
        if process <= 0 {
            return ends;
        }
        ends.push((process, status));
    }
}

/// Whether a group still has a process.
pub(crate) fn group_lives(group: i32) -> bool {
    // SAFETY: no memory is passed, and no signal sent.
    unsafe { libc::kill(-group, 0) == 0 }
}
