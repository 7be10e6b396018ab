//! Hosts of other sites, from the file of this host's daemon ([`madrigal_proto::hosts`]), and connections to them by it.
//!
//! A connection by the daemon is one to its Unix socket. The request goes first, as a frame of `daemon/src/wire.rs`. Behind the frame of
//! the answer, the stream is the peer's.

use core::mem::MaybeUninit;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use madrigal_base::error::Os;
use madrigal_base::node::{Foreign, NodeAddress};
use madrigal_proto::client::{CONNECT, DONE, FAILED, ROUTE};
use madrigal_proto::frame::{self, Front};
use madrigal_proto::hosts::{self, Entry, How, LONGEST};
use madrigal_proto::race::{Way, Wish};
use madrigal_proto::reach::End;
use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, raw};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use std::io::IoSlice;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

/// How long the file's content counts as current.
const BELIEVED: u64 = 1_000_000_000;
/// The kind under which a node publishes the name of its host.
const KIND: &str = "host";
/// Longer names leave too little room for addresses: such a host is known by them.
const LONGEST_NAME: usize = 24;
const MILLISECOND: u64 = 1_000_000;
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

    /// Where a connection to an address goes.
    pub(super) fn of_address(&self, to: SocketAddr) -> Goes<'_> {
        let Some(entry) = hosts::entries(&self.text).find(|entry| entry.has(to.ip())) else { return Goes::There(to) };
        let is_alias = to.ip() == IpAddr::V4(entry.alias);
        match entry.how {
            // By its alias this host is meant: whatever it listens at.
            How::Own if is_alias => Goes::There(here(to.port())),
            How::Own | How::Direct if !is_alias => Goes::There(to),
            How::Daemon | How::Preferred if !is_alias => Goes::Daemon { host: entry.name, without: Some(to) },
            _ => Goes::Daemon { host: entry.name, without: None },
        }
    }

    /// Where a connection to a port of a host of that name goes; nothing, where the grid has no such host.
    pub(super) fn of_name(&self, name: &str, port: u16) -> Option<Goes<'_>> {
        let entry = hosts::entries(&self.text).find(|entry| entry.is_called(name.as_bytes()))?;
        let own = entry.addresses().next().map(|ip| SocketAddr::new(ip, port));
        Some(match (entry.how, own) {
            (How::Own, _) => Goes::There(here(port)),
            (How::Direct, Some(own)) => Goes::There(own),
            (How::Daemon | How::Preferred, own) => Goes::Daemon { host: entry.name, without: own },
            (How::Direct | How::Enciphered, _) => Goes::Daemon { host: entry.name, without: None },
        })
    }

    /// The names of the grid's hosts.
    pub(super) fn names(&self) -> String {
        hosts::entries(&self.text).map(|entry| entry.name).collect::<Vec<_>>().join(", ")
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
        let socket = self.open()?;
        // A name out of that file needs no quoting.
        let body = format!(r#"{{"host":"{host}","port":{port},"within":{}}}"#, within / MILLISECOND);
        send(&socket, CONNECT, &body, None)?;
        Ok((socket, Ask::default()))
    }

    /// Has the daemon connect a TCP socket of IPv4 to a port of a host, which was asked for as `asked`. Returns where to connect the socket,
    /// which then waits there until the daemon knows (`daemon/src/local/park.rs`); and a connection on which the daemon tells first that it
    /// does it, and why it cannot, before the socket learns that.
    pub(super) fn route(&self, socket: &Fd, (host, port): (&str, u16), asked: &str) -> Result<(SocketAddr, Fd), End> {
        let decoy = hosts::ports(&self.text).map_or(0, |[four, ..]| four);
        if decoy == 0 {
            return Err(End::NoDaemon);
        }
        let told = self.open()?;
        let body = format!(r#"{{"host":"{host}","port":{port},"asked":"{asked}","told":true}}"#);
        send(&told, ROUTE, &body, Some(socket.as_fd()))?;
        Ok((SocketAddr::new(Ipv4Addr::LOCALHOST.into(), decoy), told))
    }

    /// A connection to the daemon.
    fn open(&self) -> Result<Fd, End> {
        let address = SocketAddrUnix::new(format!("{}/daemon.sock", self.directory)).map_err(system)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let made = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = Fd::from(made.map_err(system)?);
        rustix::net::connect(&socket, &address).map_err(|errno| match errno {
            Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR | Errno::ACCESS => End::NoDaemon,
            errno => system(errno),
        })?;
        let own = rustix::process::geteuid().as_raw();
        let is_ours = raw::peer_credentials(socket.as_raw_fd()).is_ok_and(|(_, user)| user == own || user == 0);
        if is_ours { Ok(socket) } else { Err(End::NoDaemon) }
    }
}

/// Sends a question: small enough to go at once or not at all.
fn send(socket: &Fd, kind: u8, body: &str, passed: Option<BorrowedFd<'_>>) -> Result<(), End> {
    let prefix = frame::prefix(1, body.len() as u64).unwrap_or_default();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights = passed.map(|fd| [fd]);
    if let Some(rights) = &rights {
        control.push(SendAncillaryMessage::ScmRights(rights));
    }
    let pieces = [IoSlice::new(&prefix), IoSlice::new(core::slice::from_ref(&kind)), IoSlice::new(body.as_bytes())];
    match rustix::net::sendmsg(socket, &pieces, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(sent) if sent == prefix.len() + 1 + body.len() => Ok(()),
        Ok(_) => Err(system(Errno::AGAIN)),
        Err(errno) => Err(system(errno)),
    }
}

fn system(errno: Errno) -> End {
    End::System(Os(errno.raw_os_error()))
}

/// Whether only this user can have written it.
fn is_believed(stat: &Stat) -> bool {
    let own = stat.st_uid == rustix::process::geteuid().as_raw();
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    own && is_file && stat.st_mode & 0o022 == 0 && stat.st_size <= LONGEST as i64
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

/// Where a connection of a program goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goes<'a> {
    /// To that address.
    There(SocketAddr),
    /// By the daemon, to that host; where none is up, to the address, if there is one.
    Daemon { host: &'a str, without: Option<SocketAddr> },
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

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: &str = "madrigal-hosts 1\n: 1 2 3 4\na1 own 127.77.0.1 10.1.0.2\na2 direct 127.77.0.2 10.1.0.3\n\
                        b1 enciphered 127.77.0.3 10.2.0.2\nb2 daemon 127.77.0.4 10.2.0.3\nc1 direct 127.77.0.5\n";

    #[test]
    fn addresses_and_names_of_the_grid_lead_where_the_daemon_says() {
        let sites = Sites { text: GRID.to_owned(), ..Sites::default() };
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let there = |text: &str| Goes::There(at(text));
        let daemon = |host, without: Option<&str>| Goes::Daemon { host, without: without.map(at) };
        for (to, goes) in [
            ("192.0.2.7:9", there("192.0.2.7:9")),
            ("10.1.0.2:9", there("10.1.0.2:9")),
            ("127.77.0.1:9", there("127.0.0.1:9")),
            ("10.1.0.3:9", there("10.1.0.3:9")),
            ("127.77.0.2:9", daemon("a2", None)),
            ("10.2.0.2:9", daemon("b1", None)),
            ("10.2.0.3:9", daemon("b2", Some("10.2.0.3:9"))),
            ("127.77.0.4:9", daemon("b2", None)),
        ] {
            assert_eq!(sites.of_address(at(to)), goes, "{to}");
        }
        for (name, goes) in [
            ("a1", Some(there("127.0.0.1:9"))),
            ("A2", Some(there("10.1.0.3:9"))),
            ("b1", Some(daemon("b1", None))),
            ("b2", Some(daemon("b2", Some("10.2.0.3:9")))),
            ("c1", Some(daemon("c1", None))),
            ("b3", None),
        ] {
            assert_eq!(sites.of_name(name, 9), goes, "{name}");
        }
    }
}
