//! Wrapped processes and their connections; processes of parallel jobs.

use core::sync::atomic::Ordering::Relaxed;
use std::os::unix::fs::MetadataExt as _;

use madrigal_daemon::ConnectionStatus;
use madrigal_report::{Reason, Report};
use madrigal_sys::Errno;
use serde::Serialize;

use super::host::{self, End, Host, is_wrapped};
use super::ranks::{self, Worker};
use super::reasons::{self, Because, Peer};
use super::sockets;
use crate::out;

/// A wrapped process, or one of a parallel job, or both.
#[derive(Serialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) program: String,
    /// Whether the library handles its sockets.
    pub(super) wrapped: bool,
    /// The rank an MPI launcher gave it.
    pub(super) rank: Option<u32>,
    /// Its workers: one where MPI runs over us.
    pub(super) workers: Vec<Worker>,
    /// Sleeps that ended by the safety cut with something to read: 0 unless a wake-up was lost.
    pub(super) missed_bells: u64,
    pub(super) connections: Vec<Connection>,
    /// UDP sockets, which stay with the kernel.
    pub(super) udp: usize,
    /// What the daemon could not connect for it lately.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) not_connected: Vec<ConnectionStatus>,
}

/// One of its connections. Addresses are missing if it was closed while it was inspected.
#[derive(Serialize)]
pub(super) struct Connection {
    pub(super) fd: i32,
    pub(super) local: Option<String>,
    pub(super) peer: Option<String>,
    state: Option<&'static str>,
    /// `shm`, `tcp` or `daemon`.
    pub(super) path: &'static str,
    pub(super) reason: Option<Because>,
    /// The process at the other end, where it can be seen.
    pub(super) peer_process: Option<Peer>,
    /// Other processes that hold this socket.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also_held_by: Vec<u32>,
    /// How it goes through daemons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) daemon: Option<ConnectionStatus>,
    /// The source of its byte counts: the `program`'s calls, or the `kernel`, for all processes that ever held it.
    counted: &'static str,
    pub(super) ring_in: u64,
    pub(super) ring_out: u64,
    pub(super) tcp_in: u64,
    pub(super) tcp_out: u64,
    pub(super) moves: u32,
    pub(super) bells: u64,
}

/// The wrapped process `pid`, or a message about why there is none.
pub(super) fn of(host: &Host, pid: u32, routes: &[ConnectionStatus]) -> Result<Process, String> {
    let owner = match std::fs::metadata(format!("/proc/{pid}")) {
        Ok(stat) => stat.uid(),
        Err(_) => {
            return Err(format!("no process has the id {pid}: see `ps -e`, or type `madrigal why` for all of yours"));
        }
    };
    let program = out::escaped(&host::name(pid));
    match Report::of(pid) {
        Ok(_) => Ok(describe(host, pid, routes)),
        Err(Errno::NOENT) => match is_wrapped(pid) {
            Ok(true) => Ok(describe(host, pid, routes)),
            Ok(false) => match parallel(pid) {
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
pub(super) fn all(host: &Host, routes: &[ConnectionStatus]) -> Vec<Process> {
    // The user's daemon is wrapped, too, and its connections are those of the programs.
    let exe = |pid: u32| std::fs::read_link(host::exe(pid)).ok();
    let serves = |pid: u32| is_wrapped(pid) == Ok(true) && exe(pid) != exe(own());
    let ours = |pid: &u32| serves(*pid) || ranks::of(*pid).is_ok_and(|workers| !workers.is_empty());
    let others = host::pids().into_iter().filter(|pid| *pid != own());
    others.filter(ours).filter_map(|pid| of(host, pid, routes).ok()).collect()
}

/// A process that is not wrapped and belongs to a parallel job.
fn parallel(pid: u32) -> Option<Process> {
    let workers = ranks::of(pid).ok().filter(|workers| !workers.is_empty())?;
    let program = host::name(pid);
    Some(Process {
        pid,
        program,
        wrapped: false,
        rank: ranks::rank(pid),
        workers,
        missed_bells: 0,
        connections: Vec::new(),
        udp: 0,
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

fn describe(host: &Host, pid: u32, routes: &[ConnectionStatus]) -> Process {
    let seen = host.process(pid);
    let mut connections: Vec<Connection> = seen.ends.iter().map(|end| connection(host, &seen, end)).collect();
    connections.iter_mut().for_each(|connection| find_route(connection, routes));
    let report = seen.report.as_ref();
    let by_daemon = routes.iter().filter(|route| route.pid == pid && route.error.is_some()).cloned();
    let not_connected = by_daemon.chain(report.into_iter().flat_map(|report| refusals(pid, report))).collect();
    let missed_bells = report.map_or(0, |r| r.missed_bells().load(Relaxed));
    let (workers, rank) = (ranks::of(pid).unwrap_or_default(), ranks::rank(pid));
    let (program, udp) = (seen.program.clone(), sockets::count_udp(pid));
    Process { pid, program, wrapped: true, rank, workers, missed_bells, connections, udp, not_connected }
}

/// The failed connections that no daemon knows.
fn refusals(pid: u32, report: &Report) -> Vec<ConnectionStatus> {
    let now = madrigal_sys::time::now_ns();
    let one = |(to, reason, at): (std::net::SocketAddr, Reason, u64)| ConnectionStatus {
        pid,
        asked: to.to_string(),
        port: to.port(),
        error: Some(format!("{}: {}", reason.name(), reason.text())),
        age: now.saturating_sub(at) / 1_000_000_000,
        ..ConnectionStatus::default()
    };
    report.refusals().into_iter().rev().map(one).collect()
}

/// Finds the route of a connection to the daemon, or of one that the daemon made.
fn find_route(connection: &mut Connection, routes: &[ConnectionStatus]) {
    let (local, peer) = (connection.local.as_ref(), connection.peer.as_ref());
    let let_in = |route: &&ConnectionStatus| {
        let ends = (route.server.as_ref(), route.local.as_ref());
        route.open && ends.0.is_some() && ends == (local, peer)
    };
    if let Some(route) = routes.iter().find(let_in) {
        connection.daemon = Some(route.clone());
        return;
    }
    let own = |route: &&ConnectionStatus| route.open && route.server.is_none() && local.is_some();
    let route = routes.iter().filter(own).find(|route| route.local.as_ref() == local);
    if route.is_none() && connection.reason.as_ref().is_none_or(|reason| reason.name != Reason::Daemon.name()) {
        return;
    }
    connection.path = "daemon";
    connection.reason = Some(Because::new(Reason::Daemon));
    connection.daemon = route.cloned();
    if let Some(route) = &connection.daemon {
        connection.peer = Some(route.asked.clone());
    }
}

fn connection(host: &Host, process: &host::Process, end: &End) -> Connection {
    let (reason, peer_process) = reasons::explain(host, process, end);
    let socket = end.socket.as_ref();
    let holders = socket.map_or(&[][..], |socket| host.holders(socket.inode));
    Connection {
        fd: end.fd,
        local: socket.map(|s| s.local.to_string()),
        peer: socket.map(|s| s.peer.to_string()),
        state: socket.map(|s| s.state),
        path: if end.shm { "shm" } else { "tcp" },
        reason,
        peer_process,
        also_held_by: holders.iter().map(|(pid, _)| *pid).filter(|pid| *pid != process.pid).collect(),
        daemon: None,
        counted: if end.recorded { "program" } else { "kernel" },
        ring_in: end.rings.read,
        ring_out: end.rings.written,
        tcp_in: end.tcp.read,
        tcp_out: end.tcp.written,
        moves: end.moves,
        bells: end.bells,
    }
}
