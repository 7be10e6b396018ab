//! What a wrapped process reports about its connections, and a process of a parallel job about its nodes ([`ranks`]).
//!
//! SysWrap keeps one page-backed table in a memfd of its own process; `madrigal why` finds it under `/proc/PID/fd`, maps it for
//! reading and prints it. No file, no socket, no thread: nothing to clean up, and a reader can never disturb the process.
//!
//! Where it stands: below SysWrap and the workers (writers) and the command line (reader); it decides nothing.
#![allow(unsafe_code)]

pub mod ranks;
mod reason;

use core::ffi::CStr;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use madrigal_sys::fd::Fd;
use madrigal_sys::mem::{self, SharedMap};
use madrigal_sys::{Errno, fd, process};

pub use reason::Reason;

/// Name of the memfd.
pub const NAME: &CStr = c"madrigal-report";
/// Connections a report can hold; later ones work but are not listed.
pub const RECORDS: usize = 32 * 1024;

const MAGIC: u64 = u64::from_le_bytes(*b"mdr-why\x01");
const RECORDS_AT: usize = 4096;
const BYTES: usize = RECORDS_AT + RECORDS * size_of::<Record>();

/// How bytes of a connection travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Path {
    /// By the kernel socket, for the recorded [`Reason`].
    Tcp = 1,
    /// Through a ring in at least one direction.
    Shm = 2,
}

/// One connection. Written by one process, read by any of the same user.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Record {
    /// Its descriptor plus one; 0 for a free record.
    pub fd: AtomicU32,
    /// A [`Path`].
    pub path: AtomicU32,
    /// A [`Reason`] code, 0 for none.
    pub reason: AtomicU32,
    /// How often it moved into shared memory.
    pub moves: AtomicU32,
    /// Bytes read and written through rings.
    pub shm_in: AtomicU64,
    /// See `shm_in`.
    pub shm_out: AtomicU64,
    /// Bytes read and written by the kernel socket.
    pub tcp_in: AtomicU64,
    /// See `tcp_in`.
    pub tcp_out: AtomicU64,
    /// Doorbells sent.
    pub bells: AtomicU64,
}

impl Record {
    /// Makes the record a fresh one for descriptor `fd`.
    pub fn open(&self, fd: i32) {
        for counter in [&self.shm_in, &self.shm_out, &self.tcp_in, &self.tcp_out, &self.bells] {
            counter.store(0, Ordering::Relaxed);
        }
        self.moves.store(0, Ordering::Relaxed);
        self.set(Path::Tcp, Some(Reason::Unearned));
        self.set_fd(fd);
    }

    /// Names the descriptor the program uses.
    pub fn set_fd(&self, fd: i32) {
        self.fd.store(fd as u32 + 1, Ordering::Release);
    }

    /// Ends the record.
    pub fn close(&self) {
        self.fd.store(0, Ordering::Release);
    }

    /// Says how bytes travel from now on.
    pub fn set(&self, path: Path, reason: Option<Reason>) {
        self.reason.store(reason.map_or(0, |r| r as u32), Ordering::Relaxed);
        self.path.store(path as u32, Ordering::Relaxed);
    }
}

/// The first page.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    pid: AtomicU32,
    /// How many connects were refused in the process itself.
    refused: AtomicU32,
    /// Sleeps that ended by the safety cut with something to read: always 0 unless a wake-up was lost.
    missed_bells: AtomicU64,
    /// The latest of those, the n-th at `n % REFUSALS`.
    refusals: [Refusal; REFUSALS],
    /// A [`Reason`] for which nothing moves in the whole process; 0 for none.
    off: AtomicU32,
}

/// Refused connects that are remembered.
const REFUSALS: usize = 32;

/// A connect that was refused in the process itself. Two threads may mix theirs, as in everything that is only for display.
#[repr(C)]
#[derive(Default)]
struct Refusal {
    ip: [AtomicU32; 4],
    port: AtomicU32,
    reason: AtomicU32,
    at: AtomicU64,
}

/// The table of this process.
pub struct Report {
    map: SharedMap,
    fd: Fd,
}

impl Report {
    /// A new, empty table, at a high descriptor number.
    pub fn create() -> Result<Self, Errno> {
        let fd = fd::move_high(mem::sealed_memfd(NAME, BYTES)?);
        let report = Self { map: SharedMap::map(&fd, BYTES, true)?, fd };
        report.header().pid.store(process::own_pid(), Ordering::Relaxed);
        report.header().magic.store(MAGIC, Ordering::Release);
        Ok(report)
    }

    /// The table of process `pid`. `ENOENT`: no such process, or it is not wrapped or has made no connection yet. `EACCES`: it
    /// belongs to another user.
    pub fn of(pid: u32) -> Result<Self, Errno> {
        let fd = found(pid, NAME, BYTES)?.into_iter().next().ok_or(Errno::NOENT)?;
        let report = Self { map: SharedMap::map(&fd, BYTES, false)?, fd };
        if report.header().magic.load(Ordering::Acquire) == MAGIC { Ok(report) } else { Err(Errno::INVAL) }
    }

    /// The descriptor by which others find it.
    pub fn fd(&self) -> &Fd {
        &self.fd
    }

    /// The process that writes it.
    pub fn pid(&self) -> u32 {
        self.header().pid.load(Ordering::Relaxed)
    }

    /// Sleeps that ended by the safety cut with something to read.
    pub fn missed_bells(&self) -> &AtomicU64 {
        &self.header().missed_bells
    }

    /// Why nothing moves in the whole process, if so.
    pub fn off(&self) -> Option<Reason> {
        Reason::from_code(self.header().off.load(Ordering::Relaxed))
    }

    /// Says that nothing moves in the whole process.
    pub fn set_off(&self, reason: Reason) {
        self.header().off.store(reason as u32, Ordering::Relaxed);
    }

    /// Remembers that a connect to an address (IPv4 in its mapped form) was refused in the process itself, at that time (CLOCK_MONOTONIC).
    pub fn refuse(&self, ip: Ipv6Addr, port: u16, reason: Reason, now: u64) {
        let count = self.header().refused.fetch_add(1, Ordering::Relaxed);
        let Some(cell) = self.header().refusals.get(count as usize % REFUSALS) else { return };
        let bits = u128::from(ip);
        for (part, shift) in cell.ip.iter().zip([96, 64, 32, 0]) {
            part.store((bits >> shift) as u32, Ordering::Relaxed);
        }
        cell.port.store(port.into(), Ordering::Relaxed);
        cell.reason.store(reason as u32, Ordering::Relaxed);
        cell.at.store(now, Ordering::Release);
    }

    /// Connects that were refused in the process itself lately, the oldest first: to which address, why, and when.
    pub fn refusals(&self) -> Vec<(SocketAddr, Reason, u64)> {
        let count = self.header().refused.load(Ordering::Relaxed) as usize;
        let places = (count.saturating_sub(REFUSALS)..count).map(|n| n % REFUSALS);
        let refusals = places.filter_map(|place| {
            let cell = self.header().refusals.get(place)?;
            let at = cell.at.load(Ordering::Acquire);
            let parts = cell.ip.each_ref().map(|part| u128::from(part.load(Ordering::Relaxed)));
            let ip = IpAddr::V6(parts.into_iter().fold(0, |all, part| all << 32 | part).into()).to_canonical();
            let port = cell.port.load(Ordering::Relaxed) as u16;
            let reason = Reason::from_code(cell.reason.load(Ordering::Relaxed))?;
            (at != 0).then_some((SocketAddr::new(ip, port), reason, at))
        });
        refusals.collect()
    }

    /// Record `index`.
    pub fn record(&self, index: usize) -> Option<&Record> {
        if index >= RECORDS {
            return None;
        }
        // SAFETY: a record is atomics only; the reference lives no longer than the map.
        unsafe { self.map.shared(RECORDS_AT + index * size_of::<Record>()) }
    }

    /// Records in use.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        (0..RECORDS).filter_map(|i| self.record(i)).filter(|r| r.fd.load(Ordering::Acquire) != 0)
    }

    fn header(&self) -> &Header {
        // SAFETY: the header is atomics only and inside the map, which is larger; the reference lives no longer than it.
        unsafe { self.map.shared(0) }.expect("a report is larger than its header")
    }
}

/// Opens the memfds of that name and size among the descriptors of `pid`. An error only if none can be opened.
fn found(pid: u32, name: &CStr, bytes: usize) -> Result<Vec<Fd>, Errno> {
    let (mut files, mut refused) = (Vec::new(), None);
    process::each_number(process::proc_path(pid, format_args!("fd")).as_c_str(), |fd| {
        if is_memfd(pid, fd, name) {
            match mem::open_peer_memfd(pid, fd.cast_signed(), bytes, false) {
                Ok(file) => files.push(file),
                Err(e) => refused = Some(e),
            }
        }
        true
    })?;
    refused.filter(|_| files.is_empty()).map_or(Ok(files), Err)
}

/// Whether a descriptor of `pid` is a memfd of that name.
fn is_memfd(pid: u32, fd: u32, name: &CStr) -> bool {
    let mut target = [0u8; 64];
    let link = process::proc_path(pid, format_args!("fd/{fd}"));
    let target = rustix::fs::readlinkat_raw(rustix::fs::CWD, link.as_c_str(), &mut target[..]).map(|n| target.get(..n));
    let named = target.ok().flatten().and_then(|target| target.strip_prefix(b"/memfd:"));
    named.is_some_and(|target| target.starts_with(name.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_found_by_pid() {
        let mine = Report::create().unwrap();
        mine.record(3).unwrap().open(11);
        mine.record(3).unwrap().shm_in.fetch_add(5, Ordering::Relaxed);
        let seen = Report::of(process::own_pid()).unwrap();
        let fds: Vec<_> = seen.records().map(|r| r.fd.load(Ordering::Relaxed) - 1).collect();
        assert_eq!(fds, [11]);
        assert_eq!(seen.pid(), process::own_pid());
        assert_eq!(seen.record(3).unwrap().shm_in.load(Ordering::Relaxed), 5);
        assert_eq!(seen.off(), None);
        mine.set_off(Reason::Seccomp);
        assert_eq!(seen.off(), Some(Reason::Seccomp));
    }

    #[test]
    fn the_latest_refusals_are_told() {
        let mine = Report::create().unwrap();
        let ip = |n: u32| core::net::Ipv4Addr::new(10, 0, 0, n as u8);
        for n in 1..=40 {
            mine.refuse(ip(n).to_ipv6_mapped(), 7000, Reason::Refused, n.into());
        }
        let refusals = mine.refusals();
        assert_eq!(
            (refusals.len(), refusals[0], refusals[31].2),
            (32, (SocketAddr::new(ip(9).into(), 7000), Reason::Refused, 9), 40)
        );
    }

    #[test]
    fn no_process_is_no_entry() {
        assert!(matches!(Report::of(u32::MAX >> 2), Err(Errno::NOENT)));
    }
}
