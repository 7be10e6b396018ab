//! Checks of this host for `madrigal doctor`. What can be tried is tried; nothing takes long.

use std::os::fd::AsRawFd as _;

use madrigal_sys::{mem, process};

use crate::control::status::{Certificate, State};

/// Whether memory can be shared, and how much of it is free.
pub(crate) fn shared_memory() -> State {
    if let Err(errno) = mem::sealed_memfd(c"madrigal-doctor", 4096) {
        return State::bad(
            format!("no shared memory: {errno}"),
            "use Linux 3.17 or later, and a sandbox that allows memfd_create",
        );
    }
    match rustix::fs::statvfs("/dev/shm") {
        Ok(room) => {
            let free = room.f_bavail.saturating_mul(room.f_frsize) >> 20;
            let text = format!("works; {free} MiB free in /dev/shm");
            if free >= 64 { State::good(text) } else { State::bad(text, "mount -o remount,size=50% /dev/shm") }
        }
        Err(errno) => State::bad(format!("/dev/shm: {errno}"), "mount -t tmpfs none /dev/shm"),
    }
}

/// Whether processes of one user may reach each other's memory and descriptors: then long messages are copied once.
pub(crate) fn single_copy() -> State {
    let own = process::steal_fd(process::own_pid(), rustix::stdio::stdin().as_raw_fd());
    if let Err(errno) = own.map(drop)
        && errno != rustix::io::Errno::BADF
    {
        return State::bad(format!("pidfd_getfd: {errno}"), "use Linux 5.6 or later, and a container that allows it");
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let held = rustix::thread::capabilities(None);
    let traces = held.is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_PTRACE));
    match scope.trim() {
        "" | "0" => State::good("works".to_owned()),
        scope if traces && scope != "3" => State::good(format!("works (yama {scope}, but CAP_SYS_PTRACE)")),
        scope => State::bad(
            format!("yama ptrace_scope is {scope}: processes may not read each other's memory"),
            "sysctl kernel.yama.ptrace_scope=0",
        ),
    }
}

/// The certificates of this host and user, and what is wrong with them.
pub(crate) fn certificates() -> Vec<Certificate> {
    let directory = match madrigal_identity::directory(|name| std::env::var(name).ok()) {
        Ok(directory) if directory.exists() => directory,
        _ => return Vec::new(),
    };
    match madrigal_identity::status(&directory) {
        Ok((_, held)) => {
            let all = held.into_iter().filter(|one| ["host", "user"].contains(&one.kind)).map(|one| Certificate {
                kind: one.kind.to_owned(),
                whose: one.subject.map(|subject| subject.to_string()),
                until: one.life.map(|life| life.to.to_string()),
                problem: one.problem.map(|problem| problem.to_string()),
            });
            all.collect()
        }
        Err(madrigal_identity::IdentityError::Missing { .. }) => Vec::new(),
        Err(error) => {
            vec![Certificate { kind: "files".to_owned(), whose: None, until: None, problem: Some(error.to_string()) }]
        }
    }
}
