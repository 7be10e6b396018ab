//! Wrapped processes and their connections; processes of parallel jobs.

use core::sync::atomic::Ordering::Relaxed;
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;

use madrigal_daemon::RouteStatus;
use madrigal_report::{Path, Reason, Record, Report};
use madrigal_sys::Errno;
use serde::Serialize;

use super::ranks::{self, Station};
use super::sockets::{self, Socket};
use crate::program;

/// A wrapped process, or one of a parallel job, or both.
#[derive(Serialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) program: String,
    /// Whether its sockets are looked after.
    pub(super) wrapped: bool,
    /// The rank an MPI launcher gave it.
    pub(super) rank: Option<u32>,
    /// Its stations: one where MPI runs over us.
    pub(super) stations: Vec<Station>,
    /// Sleeps that ended by the safety cut with something to read: 0 unless a wake-up was lost.
    pub(super) missed_bells: u64,
    pub(super) connections: Vec<Connection>,
    /// What the daemon could not connect for it lately.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) not_connected: Vec<RouteStatus>,
}

/// One of its connections. Addresses are missing if it was closed while we looked.
#[derive(Serialize)]
pub(super) struct Connection {
    pub(super) fd: i32,
    pub(super) local: Option<String>,
    pub(super) peer: Option<String>,
    state: Option<&'static str>,
    /// `shm`, `tcp` or `daemon`.
    pub(super) path: &'static str,
    pub(super) reason: Option<Because>,
    /// How it goes through daemons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) daemon: Option<RouteStatus>,
    pub(super) ring_in: u64,
    pub(super) ring_out: u64,
    pub(super) tcp_in: u64,
    pub(super) tcp_out: u64,
    pub(super) moves: u32,
    pub(super) bells: u64,
}

/// Why a connection, or one direction of it, is not in shared memory.
#[derive(Serialize, Clone, Copy)]
pub(super) struct Because {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

/// A socket SysWrap has no record of.
const UNSEEN: Because = Because {
    name: "not-used-yet",
    text: "the program has not used this socket since it came to it (inherited, passed, or idle since it was made)",
};

/// The same, where the library keeps out of the way of what looks for data races.
const WATCHED: Because = Because { name: Reason::RaceDetector.name(), text: Reason::RaceDetector.text() };
/// Libraries of such tools.
const RACE_DETECTORS: [&str; 4] = ["/libtsan.so", "/libclang_rt.tsan", "/vgpreload_helgrind", "/vgpreload_drd"];

/// The wrapped process `pid`, or what to say instead.
pub(super) fn of(pid: u32, routes: &[RouteStatus]) -> Result<Process, String> {
    let owner = match std::fs::metadata(format!("/proc/{pid}")) {
        Ok(stat) => stat.uid(),
        Err(_) => {
            return Err(format!("no process has the id {pid}: see `ps -e`, or type `madrigal why` for all of yours"));
        }
    };
    let program = program(pid);
    match Report::of(pid) {
        Ok(report) => Ok(describe(pid, program, Some(&report), routes)),
        Err(Errno::NOENT) => match is_wrapped(pid) {
            Ok(true) => Ok(describe(pid, program, None, routes)),
            Ok(false) => match parallel(pid, &program) {
                Some(process) => Ok(process),
                None => Err(format!(
                    "process {pid} ({program}) is not under madrigal: start it with `madrigal exec -- {program} ...`"
                )),
            },
            Err(errno) => Err(forbidden(pid, &program, owner, errno)),
        },
        Err(errno) => Err(forbidden(pid, &program, owner, errno)),
    }
}

/// Every wrapped process that may be looked into: all of this user's; for root, everybody's.
pub(super) fn all(routes: &[RouteStatus]) -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut pids: Vec<u32> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != own())
        .collect();
    pids.sort_unstable();
    // The user's daemon is wrapped, too, and its connections are those of the programs.
    let exe = |pid: u32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let serves = |pid: u32| is_wrapped(pid) == Ok(true) && exe(pid) != exe(own());
    let ours = |pid: &u32| serves(*pid) || ranks::of(*pid).is_ok_and(|stations| !stations.is_empty());
    pids.into_iter().filter(ours).filter_map(|pid| of(pid, routes).ok()).collect()
}

/// A process that is not wrapped and belongs to a parallel job.
fn parallel(pid: u32, program: &str) -> Option<Process> {
    let stations = ranks::of(pid).ok().filter(|stations| !stations.is_empty())?;
    let program = program.to_owned();
    Some(Process {
        pid,
        program,
        wrapped: false,
        rank: ranks::rank(pid),
        stations,
        missed_bells: 0,
        connections: Vec::new(),
        not_connected: Vec::new(),
    })
}

fn own() -> u32 {
    madrigal_sys::process::own_pid()
}

fn forbidden(pid: u32, program: &str, owner: u32, errno: Errno) -> String {
    let me = rustix::process::geteuid().as_raw();
    match errno {
        Errno::ACCESS | Errno::PERM if owner != me => {
            format!(
                "process {pid} ({program}) belongs to user {owner}, and you are user {me}: ask as that user, or as root"
            )
        }
        Errno::ACCESS | Errno::PERM if me == 0 => {
            format!(
                "process {pid} ({program}) may not be inspected, not even by root here: it is protected by the system"
            )
        }
        Errno::ACCESS | Errno::PERM => {
            format!("process {pid} ({program}) may not be inspected: it changed user or forbids it; ask as root")
        }
        errno => format!("cannot read the report of process {pid} ({program}): {}", std::io::Error::from(errno)),
    }
}

/// The command's name.
fn program(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map_or_else(|_| "?".to_owned(), |name| name.trim_end().to_owned())
}

/// Whether the library is loaded in it.
fn is_wrapped(pid: u32) -> Result<bool, Errno> {
    match std::fs::read(format!("/proc/{pid}/maps")) {
        Ok(maps) => {
            let maps = String::from_utf8_lossy(&maps);
            Ok(maps.contains("/libmadrigal-syswrap.so") || maps.contains("/libmadrigal_syswrap.so"))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// Whether a tool looks for data races in it.
fn is_watched(pid: u32) -> bool {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    RACE_DETECTORS.iter().any(|library| maps.contains(library))
        || program::detects_races(std::path::Path::new(&format!("/proc/{pid}/exe")))
}

fn describe(pid: u32, program: String, report: Option<&Report>, routes: &[RouteStatus]) -> Process {
    let sockets = sockets::in_namespace_of(pid);
    let descriptors = sockets::descriptors(pid);
    let inodes: HashMap<i32, u64> = descriptors.iter().copied().collect();
    let mut connections: Vec<Connection> = report
        .into_iter()
        .flat_map(Report::records)
        .filter_map(|record| {
            let fd = i32::try_from(record.fd.load(Relaxed).checked_sub(1)?).ok()?;
            let socket = inodes.get(&fd).and_then(|inode| sockets.get(inode));
            (!socket.is_some_and(Socket::is_listener)).then(|| recorded(fd, record, socket))
        })
        .collect();
    let told: HashSet<Option<u64>> = connections.iter().map(|c| inodes.get(&c.fd).copied()).collect();
    let unseen = if report.is_none() && is_watched(pid) { WATCHED } else { UNSEEN };
    for (fd, inode) in descriptors {
        if let Some(socket) = sockets.get(&inode).filter(|s| !s.is_listener() && !told.contains(&Some(inode))) {
            connections.push(unrecorded(fd, socket, unseen));
        }
    }
    connections.sort_by_key(|c| c.fd);
    connections.iter_mut().for_each(|connection| find_route(connection, routes));
    let by_daemon = routes.iter().filter(|route| route.pid == pid && route.error.is_some()).cloned();
    let not_connected = by_daemon.chain(report.into_iter().flat_map(|report| refusals(pid, report))).collect();
    let missed_bells = report.map_or(0, |r| r.missed_bells().load(Relaxed));
    let (stations, rank) = (ranks::of(pid).unwrap_or_default(), ranks::rank(pid));
    Process { pid, program, wrapped: true, rank, stations, missed_bells, connections, not_connected }
}

/// What was not connected, and no daemon knows of.
fn refusals(pid: u32, report: &Report) -> Vec<RouteStatus> {
    let now = madrigal_sys::time::now_ns();
    let one = |(to, reason, at): (std::net::SocketAddr, Reason, u64)| RouteStatus {
        pid,
        asked: to.to_string(),
        port: to.port(),
        error: Some(format!("{}: {}", reason.name(), reason.text())),
        age: now.saturating_sub(at) / 1_000_000_000,
        ..RouteStatus::default()
    };
    report.refusals().into_iter().rev().map(one).collect()
}

/// Of a connection to the daemon, whose other end that is; or of one that the daemon made, whose.
fn find_route(connection: &mut Connection, routes: &[RouteStatus]) {
    let (local, peer) = (connection.local.as_ref(), connection.peer.as_ref());
    let let_in = |route: &&RouteStatus| {
        let ends = (route.server.as_ref(), route.local.as_ref());
        route.open && ends.0.is_some() && ends == (local, peer)
    };
    if let Some(route) = routes.iter().find(let_in) {
        connection.daemon = Some(route.clone());
        return;
    }
    let own = |route: &&RouteStatus| route.open && route.server.is_none() && local.is_some();
    let route = routes.iter().filter(own).find(|route| route.local.as_ref() == local);
    if route.is_none() && connection.reason.as_ref().is_none_or(|reason| reason.name != Reason::Daemon.name()) {
        return;
    }
    connection.path = "daemon";
    connection.reason = Some(Because { name: Reason::Daemon.name(), text: Reason::Daemon.text() });
    connection.daemon = route.cloned();
    if let Some(route) = &connection.daemon {
        connection.peer = Some(route.asked.clone());
    }
}

fn recorded(fd: i32, record: &Record, socket: Option<&Socket>) -> Connection {
    let shm = record.path.load(Relaxed) == Path::Shm as u32;
    let reason = Reason::from_code(record.reason.load(Relaxed));
    Connection {
        path: if shm { "shm" } else { "tcp" },
        reason: reason.map(|reason| Because { name: reason.name(), text: reason.text() }),
        ring_in: record.shm_in.load(Relaxed),
        ring_out: record.shm_out.load(Relaxed),
        tcp_in: record.tcp_in.load(Relaxed),
        tcp_out: record.tcp_out.load(Relaxed),
        moves: record.moves.load(Relaxed),
        bells: record.bells.load(Relaxed),
        ..named(fd, socket)
    }
}

fn unrecorded(fd: i32, socket: &Socket, reason: Because) -> Connection {
    Connection { reason: Some(reason), ..named(fd, Some(socket)) }
}

/// A connection of which only the names are known.
fn named(fd: i32, socket: Option<&Socket>) -> Connection {
    Connection {
        fd,
        local: socket.map(|s| s.local.to_string()),
        peer: socket.map(|s| s.peer.to_string()),
        state: socket.map(|s| s.state),
        path: "tcp",
        reason: None,
        daemon: None,
        ring_in: 0,
        ring_out: 0,
        tcp_in: 0,
        tcp_out: 0,
        moves: 0,
        bells: 0,
    }
}
