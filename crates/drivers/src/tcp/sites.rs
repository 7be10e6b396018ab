//! Hosts of other sites, from the file of this host's daemon ([`madrigal_proto::hosts`]), and connections to them by it.
//!
//! A connection by the daemon is one to its Unix socket. The request goes first, as a frame of `daemon/src/wire.rs`. Behind the frame of
//! the answer, the stream is the peer's.

use core::net::IpAddr;

use madrigal_base::error::Os;
use madrigal_base::node::{Foreign, NodeAddress};
use madrigal_proto::client::{CONNECT, DONE, FAILED};
use madrigal_proto::frame::{self, Front};
use madrigal_proto::hosts::{self, Entry, How, LONGEST};
use madrigal_proto::race::{Way, Wish};
use madrigal_proto::reach::End;
use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, raw};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::AsRawFd as _;

/// How long the file's content counts as current.
const BELIEVED: u64 = 1_000_000_000;
/// The kind under which a node publishes the name of its host.
const KIND: &str = "host";
/// Longer names leave too little room for addresses: such a host is known by them.
const LONGEST_NAME: usize = 24;
/// The longest answer of use.
const LONGEST_ANSWER: usize = 8 << 10;

/// The daemon's list of the grid's hosts; empty where there is none.
#[derive(Default)]
pub(super) struct Sites {
    /// The daemon's directory.
    directory: String,
    text: String,
    /// Which file it was: number, length, and time.
    seen: [u64; 3],
    check_at: u64,
}

impl Sites {
    /// Those of the daemon that is, or was, up in the first of these directories.
    pub(super) fn find(directories: &[String], now: u64) -> Self {
        let one = |directory: &String| {
            let mut sites = Self { directory: directory.clone(), ..Self::default() };
            sites.refresh(now);
            (!sites.text.is_empty()).then_some(sites)
        };
        directories.iter().find_map(one).unwrap_or_default()
    }

    /// Whether there is a grid.
    pub(super) fn is_on(&self) -> bool {
        !self.text.is_empty()
    }

    fn own(&self) -> Option<Entry<'_>> {
        hosts::entries(&self.text).find(|entry| entry.how == How::Own)
    }

    /// Adds the name of this host to an address.
    pub(super) fn publish(&self, address: &mut NodeAddress) {
        let Some(own) = self.own().filter(|own| own.name.len() <= LONGEST_NAME) else { return };
        let foreign = Foreign { kind: Foreign::kind_of(KIND), bytes: own.name.as_bytes().to_vec() };
        if !address.foreign.contains(&foreign) {
            address.foreign.push(foreign);
        }
    }

    /// The way by the daemon to a node on another host of the grid, and whether the node's own addresses are then tried.
    pub(super) fn way(&mut self, to: &NodeAddress, now: u64) -> Option<(Way, Wish)> {
        if !self.is_on() {
            return None;
        }
        self.refresh(now);
        let kind = Foreign::kind_of(KIND);
        let name = to.foreign.iter().find(|foreign| foreign.kind == kind).map(|foreign| foreign.bytes.as_slice());
        let is = |entry: &Entry<'_>| match name {
            Some(name) => entry.is_called(name),
            None => to.addresses.iter().any(|&ip| !ip.is_loopback() && entry.addresses().any(|own| own == ip)),
        };
        let entry = hosts::entries(&self.text).find(is).filter(|entry| entry.how != How::Own)?;
        let wish = match entry.how {
            How::Enciphered => Wish::Barred,
            How::Preferred => Wish::Left,
            _ => Wish::Wanted,
        };
        Some((Way::Daemon { host: entry.name.to_owned(), port: to.port }, wish))
    }

    /// Whether a connection from this address is one that this host's daemon has let in.
    pub(super) fn is_daemon(&self, from: IpAddr) -> bool {
        self.is_on() && from.to_canonical().is_loopback()
    }

    /// Reads the file again if it was replaced. If it is gone, its last content still holds: the daemon may be back soon.
    fn refresh(&mut self, now: u64) {
        if now < self.check_at {
            return;
        }
        self.check_at = now.saturating_add(BELIEVED);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let path = format!("{}/daemon.hosts", self.directory);
        let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()).map(Fd::from) else { return };
        let Ok(stat) = rustix::fs::fstat(&file) else { return };
        let seen = [stat.st_ino, stat.st_size as u64, (stat.st_mtime as u64) << 32 ^ stat.st_mtime_nsec];
        if !is_believed(&stat) || seen == self.seen {
            return;
        }
        let (mut bytes, mut len) = (vec![0; LONGEST], 0);
        while let Some(room) = bytes.get_mut(len..).filter(|room| !room.is_empty()) {
            match rustix::io::read(&file, room) {
                Ok(0) => break,
                Ok(count) => len += count,
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
        bytes.truncate(len);
        if let Ok(text) = String::from_utf8(bytes) {
            (self.text, self.seen) = (text, seen);
        }
    }

    /// Begins to connect to a port of a host; the daemon must do it within so many nanoseconds.
    pub(super) fn dial(&self, host: &str, port: u16, within: u64) -> Result<(Fd, Ask), End> {
        let system = |errno: Errno| End::System(Os(errno.raw_os_error()));
        let address = SocketAddrUnix::new(format!("{}/daemon.sock", self.directory)).map_err(system)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = Fd::from(made.map_err(system)?);
        rustix::net::connect(&socket, &address).map_err(|errno| match errno {
            Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR | Errno::ACCESS => End::NoDaemon,
            errno => system(errno),
        })?;
        let own = rustix::process::geteuid().as_raw();
        if !raw::peer_credentials(socket.as_raw_fd()).is_ok_and(|(_, user)| user == own || user == 0) {
            return Err(End::NoDaemon);
        }
        // A name out of that file needs no quoting.
        let body = format!(r#"{{"host":"{host}","port":{port},"within":{}}}"#, within / 1_000_000);
        let prefix = frame::prefix(1, body.len() as u64).unwrap_or_default();
        let question = [&prefix[..], &[CONNECT], body.as_bytes()].concat();
        // Small enough to go at once or not at all.
        match rustix::net::send(&socket, &question, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == question.len() => Ok((socket, Ask::default())),
            Ok(_) => Err(system(Errno::AGAIN)),
            Err(errno) => Err(system(errno)),
        }
    }
}

/// Whether only this user can have written it.
fn is_believed(stat: &Stat) -> bool {
    let own = stat.st_uid == rustix::process::geteuid().as_raw();
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    own && is_file && stat.st_mode & 0o022 == 0 && stat.st_size <= LONGEST as i64
}

/// What the daemon has answered so far.
#[derive(Default)]
pub(super) struct Ask {
    received: Vec<u8>,
}

impl Ask {
    /// Reads the daemon's answer, and no byte behind it. Returns how the connection goes; `None`: the answer is not complete.
    pub(super) fn handle(&mut self, socket: &Fd) -> Result<Option<String>, End> {
        loop {
            let needs = match frame::front(&self.received, LONGEST_ANSWER) {
                Ok(Front::More(needs)) => needs,
                Ok(Front::Whole { head: &[DONE], body }) => return Ok(Some(text(body))),
                Ok(Front::Whole { head: &[FAILED], body }) => return Err(End::Refused(text(body))),
                _ => return Err(End::Refused("it answers nonsense".to_owned())),
            };
            let len = self.received.len();
            self.received.resize(needs.max(len), 0);
            let room = self.received.get_mut(len..).unwrap_or_default();
            let got = rustix::net::recv(socket, room, RecvFlags::DONTWAIT).map(|(count, _)| count);
            self.received.truncate(len + got.unwrap_or(0));
            match got {
                Ok(0) => return Err(End::Refused("it went away".to_owned())),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(End::System(Os(errno.raw_os_error()))),
            }
        }
    }
}

/// A daemon's text, made printable.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
