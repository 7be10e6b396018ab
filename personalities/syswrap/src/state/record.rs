//! What `madrigal why` shows of a socket: its record in the report of this process.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use madrigal_report::{Path, Reason, Record};

use super::sock::{SOCKS, Sock, role};
use super::{offers, process};

/// Lists what was inherited: its records are in the parent's report. It lists all at once, so that `madrigal why` knows that no hook knows a
/// socket that is not listed.
#[cold]
pub(crate) fn list_all() {
    if process::report().is_none() {
        return;
    }
    for (_, s) in SOCKS.all() {
        if !s.is_closed() && !s.is_listed() && s.is_connection() {
            s.relist(s.fd());
        }
    }
}

impl Sock {
    /// Becomes one end of a connection, listed for `madrigal why`.
    pub(crate) fn connected(&self, fd: c_int, role: u32) {
        self.set_role(role);
        self.relist(fd);
    }

    /// (Re-)opens its record in the report of this process.
    pub(crate) fn relist(&self, fd: c_int) {
        let Some(report) = process::report() else { return };
        // More than a report holds have none, and are not looked for again.
        self.record_of.store(1, Ordering::Relaxed);
        if let Some(record) = report.record(self.index() as usize) {
            record.open(fd);
            if let Some(reason) = self.known_reason(fd) {
                record.set(Path::Tcp, Some(reason));
            }
        }
    }

    /// What keeps it with TCP whatever its traffic is.
    fn known_reason(&self, fd: c_int) -> Option<Reason> {
        let process = || process::off().or_else(offers::failed);
        self.never().or_else(|| self.routed.way()).or_else(process).or_else(|| self.port_off(fd))
    }

    fn port_off(&self, fd: c_int) -> Option<Reason> {
        if !process::wants_some_ports() || self.tuple.learn(fd, self.role() == role::CLIENT).is_err() {
            return None;
        }
        (!process::port_wanted(self.tuple.port())).then_some(Reason::PortOff)
    }

    /// Whether it is an end of a connection.
    pub(super) fn is_connection(&self) -> bool {
        matches!(self.role(), role::CLIENT | role::SERVER)
    }

    #[inline]
    pub(super) fn is_listed(&self) -> bool {
        self.record_of.load(Ordering::Relaxed) != 0
    }

    /// Its record, if it has one.
    #[inline]
    pub(crate) fn record(&self) -> Option<&'static Record> {
        if !self.is_listed() {
            return None;
        }
        process::report()?.record(self.index() as usize)
    }

    /// Records how its bytes travel from now on.
    pub(crate) fn record_path(&self, path: Path, reason: Option<Reason>) {
        if let Some(record) = self.record() {
            record.set(path, reason);
        }
    }

    /// Its session is over while the connection is not. If no reason is recorded, the peer has left.
    pub(crate) fn record_end(&self) {
        if let Some(record) = self.record().filter(|record| record.path.load(Ordering::Relaxed) == Path::Shm as u32) {
            record.set(Path::Tcp, Some(Reason::PeerLeft));
        }
    }
}
