//! A view of this host: the processes that hold each socket, its network namespace, and whether the process is wrapped. It is read once,
//! for one answer.

use core::cell::{OnceCell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::rc::Rc;

use madrigal_report::{Path, Reason, Record, Report};
use madrigal_sys::Errno;

use super::counted::{self, Bytes};
use super::sockets::{self, Namespace, Socket};
use crate::program;

/// This host, as far as this user may inspect it.
pub(super) struct Host {
    namespaces: HashMap<PathBuf, Namespace>,
    /// By inode of a socket: the processes that hold it and a descriptor of each.
    holders: HashMap<u64, Vec<(u32, i32)>>,
    processes: RefCell<HashMap<u32, Rc<Process>>>,
    counted: OnceCell<HashMap<u64, Bytes>>,
}

/// What is known of a process.
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) program: String,
    /// The user that it runs as.
    pub(super) user: Option<u32>,
    /// `None`: it may not be looked into.
    pub(super) wrapped: Option<bool>,
    pub(super) report: Option<Report>,
    /// Its connections, lowest descriptor first.
    pub(super) ends: Vec<End>,
    by_inode: HashMap<u64, usize>,
}

/// One end of a connection. No socket: it was closed while it was inspected.
#[derive(Clone)]
pub(super) struct End {
    pub(super) fd: i32,
    pub(super) socket: Option<Socket>,
    /// Whether the process reports it; if not, the reason is a guess, and the counters are the kernel's.
    pub(super) recorded: bool,
    pub(super) shm: bool,
    pub(super) reason: Option<Reason>,
    pub(super) rings: Bytes,
    pub(super) tcp: Bytes,
    pub(super) moves: u32,
    pub(super) bells: u64,
}

impl Host {
    /// Inspects every process there is.
    pub(super) fn inspect() -> Self {
        let mut host = Self {
            namespaces: HashMap::new(),
            holders: HashMap::new(),
            processes: RefCell::default(),
            counted: OnceCell::new(),
        };
        for pid in pids() {
            if let Entry::Vacant(place) = host.namespaces.entry(namespace(pid)) {
                place.insert(Namespace::of(pid));
            }
            for (fd, inode) in sockets::descriptors(pid) {
                let holders = host.holders.entry(inode).or_default();
                if holders.last().is_none_or(|(last, _)| *last != pid) {
                    holders.push((pid, fd));
                }
            }
        }
        host
    }

    /// The processes that hold a socket, and a descriptor of each.
    pub(super) fn holders(&self, inode: u64) -> &[(u32, i32)] {
        self.holders.get(&inode).map_or(&[], Vec::as_slice)
    }

    /// The sockets of the namespace of a process.
    pub(super) fn around(&self, pid: u32) -> Option<&Namespace> {
        self.namespaces.get(&namespace(pid))
    }

    /// The other end of a connection in any namespace.
    pub(super) fn other_end_anywhere(&self, socket: &Socket) -> Option<&Socket> {
        self.namespaces.values().find_map(|namespace| namespace.other_end(socket))
    }

    /// What is known of a process.
    pub(super) fn process(&self, pid: u32) -> Rc<Process> {
        if let Some(known) = self.processes.borrow().get(&pid) {
            return Rc::clone(known);
        }
        let process = Rc::new(self.examine(pid));
        self.processes.borrow_mut().insert(pid, Rc::clone(&process));
        process
    }

    fn examine(&self, pid: u32) -> Process {
        let wrapped = is_wrapped(pid).ok();
        let report = Report::of(pid).ok();
        let mut process = Process {
            pid,
            program: name(pid),
            user: user(pid),
            wrapped,
            report,
            ends: Vec::new(),
            by_inode: HashMap::new(),
        };
        if wrapped == Some(true) {
            process.ends = self.ends(&process);
        }
        let inodes = process.ends.iter().enumerate().filter_map(|(i, end)| Some((end.socket.as_ref()?.inode, i)));
        process.by_inode = inodes.collect();
        process
    }

    fn ends(&self, process: &Process) -> Vec<End> {
        let pid = process.pid;
        let descriptors = sockets::descriptors(pid);
        let inodes: HashMap<i32, u64> = descriptors.iter().copied().collect();
        let socket = |inode: u64| self.around(pid).and_then(|sockets| sockets.socket(inode)).cloned();
        // For sockets that were made after the namespace was read.
        let late = OnceCell::new();
        let later = |inode: u64| late.get_or_init(|| Namespace::of(pid)).socket(inode).cloned();
        let records = process.report.iter().flat_map(Report::records);
        let mut ends: Vec<End> = records
            .filter_map(|record| {
                let fd = i32::try_from(record.fd.load(Relaxed).checked_sub(1)?).ok()?;
                let socket = inodes.get(&fd).and_then(|inode| socket(*inode).or_else(|| later(*inode)));
                (!socket.as_ref().is_some_and(Socket::is_listener)).then(|| self.recorded(pid, fd, record, socket))
            })
            .collect();
        let mut told: Vec<u64> = ends.iter().filter_map(|end| Some(end.socket.as_ref()?.inode)).collect();
        told.sort_unstable();
        for (fd, inode) in descriptors {
            if told.binary_search(&inode).is_err()
                && let Some(socket) = socket(inode).filter(|socket| !socket.is_listener())
                && ends.iter().all(|end| end.recorded || end.socket.as_ref() != Some(&socket))
            {
                ends.push(self.unrecorded(process, fd, socket));
            }
        }
        ends.sort_by_key(|end| end.fd);
        ends
    }

    fn recorded(&self, pid: u32, fd: i32, record: &Record, socket: Option<Socket>) -> End {
        let reason = Reason::from_code(record.reason.load(Relaxed));
        let (shm_in, shm_out) = (record.shm_in.load(Relaxed), record.shm_out.load(Relaxed));
        let mut end = End {
            fd,
            recorded: true,
            shm: record.path.load(Relaxed) == Path::Shm as u32,
            reason,
            rings: Bytes { read: shm_in, written: shm_out },
            tcp: Bytes { read: record.tcp_in.load(Relaxed), written: record.tcp_out.load(Relaxed) },
            moves: record.moves.load(Relaxed),
            bells: record.bells.load(Relaxed),
            socket,
        };
        // Calls inside the C library, requests of an io_uring, and processes that held it before bypass the hooks of this one; the kernel
        // counts all. But after a move its count includes doorbells, and if other processes hold the socket, their bytes.
        let inode = end.socket.as_ref().map(|socket| socket.inode).filter(|inode| *inode != 0);
        if let Some(inode) = inode.filter(|inode| end.moves == 0 && self.holders(*inode).len() < 2) {
            let all = self.counted(pid, fd, inode);
            end.tcp = Bytes { read: end.tcp.read.max(all.read), written: end.tcp.written.max(all.written) };
        }
        end
    }

    fn unrecorded(&self, process: &Process, fd: i32, socket: Socket) -> End {
        End {
            fd,
            recorded: false,
            shm: false,
            reason: Some(self.why_unrecorded(process, &socket)),
            rings: Bytes::default(),
            tcp: self.counted(process.pid, fd, socket.inode),
            moves: 0,
            bells: 0,
            socket: Some(socket),
        }
    }

    /// Why a process does not report a socket. It lists all that it knows in its report, which it makes with its first connection or, after
    /// a fork, with the first byte. The table of offers survives a fork, but not an exec.
    fn why_unrecorded(&self, process: &Process, socket: &Socket) -> Reason {
        let off = process.report.as_ref().and_then(Report::off);
        match off {
            _ if matches!(socket.state, "close" | "syn-sent" | "syn-recv") => Reason::NotOpen,
            Some(reason) => reason,
            None if process.report.is_none() && detects_races(process.pid) => Reason::RaceDetector,
            None if process.report.is_none() && table(process.pid).is_some() => Reason::NotUsed,
            None if program::makes_raw_calls(&exe(process.pid)) => Reason::RawCalls,
            None => Reason::Inherited,
        }
    }

    /// What the kernel counts for a socket.
    fn counted(&self, pid: u32, fd: i32, inode: u64) -> Bytes {
        if namespace(pid) == namespace(madrigal_sys::process::own_pid()) {
            let all = self.counted.get_or_init(counted::here);
            return all.get(&inode).copied().unwrap_or_default();
        }
        counted::there(pid, fd).unwrap_or_default()
    }
}

impl Process {
    /// Its end with that inode.
    pub(super) fn end(&self, inode: u64) -> Option<&End> {
        self.ends.get(*self.by_inode.get(&inode)?)
    }
}

/// Every process there is, lowest first.
pub(super) fn pids() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// The command's name.
pub(super) fn name(pid: u32) -> String {
    let text = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_else(|_| b"?".to_vec());
    String::from_utf8_lossy(text.strip_suffix(b"\n").unwrap_or(&text)).into_owned()
}

/// The file it runs.
pub(super) fn exe(pid: u32) -> PathBuf {
    format!("/proc/{pid}/exe").into()
}

/// The user that it runs as.
fn user(pid: u32) -> Option<u32> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    // Real, effective, saved, of the file system.
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// What names the network namespace of a process; empty where we may not know.
fn namespace(pid: u32) -> PathBuf {
    std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default()
}

/// What names the table of offers that a process uses, if it uses any.
pub(super) fn table(pid: u32) -> Option<u64> {
    let mut entries = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    entries.find_map(|entry| {
        let path = entry.ok()?.path();
        let target = std::fs::read_link(&path).ok()?;
        target.to_str()?.starts_with("/memfd:madrigal-offers").then_some(())?;
        Some(std::fs::metadata(path).ok()?.ino())
    })
}

/// Whether the library is loaded in it.
pub(super) fn is_wrapped(pid: u32) -> Result<bool, Errno> {
    match std::fs::read(format!("/proc/{pid}/maps")) {
        Ok(maps) => {
            let maps = String::from_utf8_lossy(&maps);
            Ok(maps.contains("/libmadrigal-syswrap.so") || maps.contains("/libmadrigal_syswrap.so"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// Libraries of tools that detect data races.
const RACE_DETECTORS: [&str; 4] = ["/libtsan.so", "/libclang_rt.tsan", "/vgpreload_helgrind", "/vgpreload_drd"];

/// Whether such a tool is at work in a process: the library keeps out of its way.
fn detects_races(pid: u32) -> bool {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    RACE_DETECTORS.iter().any(|library| maps.contains(library)) || program::detects_races(&exe(pid))
}
