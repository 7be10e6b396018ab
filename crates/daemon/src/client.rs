//! The other side of the Unix socket: what a command asks a daemon, and a connection that it carries on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};

use crate::reload::Reloaded;
use crate::routes::RouteStatus;
use crate::runtime::{Runtime, RuntimeError};
use crate::socket::{self, Got};
use crate::status::{Examination, Explanation, Status};
use crate::wire::{self, Question, Target};

/// How long a daemon may take to answer: more than it takes to try everything.
const PATIENCE: Duration = Duration::from_secs(20);

/// Why a daemon did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// There is none.
    #[error("no daemon of yours is up: `madrigal up` starts one")]
    Down,
    /// Its directory cannot be used.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// It says why.
    #[error("{0}")]
    Refused(String),
    /// It went away, or hangs.
    #[error("the daemon does not answer: {0}")]
    Broken(Errno),
    /// It said something that nobody understands.
    #[error("the daemon answers nonsense: {0}")]
    Nonsense(String),
}

/// How the daemon is.
pub fn status(runtime: &Runtime) -> Result<Status, AskError> {
    let (_, body) = ask(runtime, &wire::frame(wire::STATUS, b""))?;
    serde_json::from_slice(&body).map_err(|error| AskError::Nonsense(error.to_string()))
}

/// How the daemon of another host is, as it tells the one of this host.
pub fn status_of(runtime: &Runtime, host: &str) -> Result<Status, AskError> {
    question(runtime, host, Question::Status)
}

/// Ends the daemon, and waits until it has ended.
pub fn stop(runtime: &Runtime) -> Result<(), AskError> {
    let (socket, _) = ask(runtime, &wire::frame(wire::STOP, b""))?;
    // It closes the connection, or its end does.
    let _ = rustix::io::read(&socket, &mut [0]);
    for _ in 0..500 {
        match runtime.claim() {
            Err(RuntimeError::Up) => std::thread::sleep(Duration::from_millis(10)),
            other => return other.map(drop).map_err(AskError::from),
        }
    }
    Err(AskError::Broken(Errno::TIMEDOUT))
}

/// Has the daemon read its grid.toml again; what is new in it.
pub fn reload(runtime: &Runtime) -> Result<Reloaded, AskError> {
    let (_, body) = ask(runtime, &wire::frame(wire::RELOAD, b""))?;
    serde_json::from_slice(&body).map_err(|error| AskError::Nonsense(error.to_string()))
}

/// The connections of programs that go through the daemon, and those that it could not make lately; the latest first.
pub fn routes(runtime: &Runtime) -> Result<Vec<RouteStatus>, AskError> {
    let (_, body) = ask(runtime, &wire::frame(wire::ROUTES, b""))?;
    serde_json::from_slice(&body).map_err(|error| AskError::Nonsense(error.to_string()))
}

/// A connection to a port of a host.
pub fn connect(runtime: &Runtime, host: &str, port: u16) -> Result<OwnedFd, AskError> {
    let target = Target { host: host.to_owned(), port, from: 0, within: None, question: None };
    Ok(ask(runtime, &wire::json(wire::CONNECT, &target))?.0)
}

/// Has connections to local port `from` (0: any that is free) carried to a port of a host, as long as the returned descriptor is open;
/// and which port it is.
pub fn forward(runtime: &Runtime, from: u16, host: &str, port: u16) -> Result<(OwnedFd, u16), AskError> {
    let target = Target { host: host.to_owned(), port, from, within: None, question: None };
    let (socket, body) = ask(runtime, &wire::json(wire::FORWARD, &target))?;
    let text = String::from_utf8_lossy(&body).into_owned();
    Ok((socket, text.parse().map_err(|_| AskError::Nonsense(text))?))
}

/// A connection on which another daemon, which begins, makes a link with this one.
pub fn link(runtime: &Runtime) -> Result<OwnedFd, AskError> {
    Ok(ask(runtime, &wire::frame(wire::LINK, b""))?.0)
}

/// The ways from one host to another, as the daemon of the first one has them, for a port or for any.
pub fn why(runtime: &Runtime, from: &str, to: &str, port: Option<u16>) -> Result<Explanation, AskError> {
    question(runtime, from, Question::Why { to: to.to_owned(), port })
}

/// What the daemon of a host finds out about itself, and about the way to another host.
pub fn examine(runtime: &Runtime, host: &str, to: Option<&str>) -> Result<Examination, AskError> {
    question(runtime, host, Question::Check { to: to.map(str::to_owned) })
}

fn question<T: serde::de::DeserializeOwned>(runtime: &Runtime, host: &str, asked: Question) -> Result<T, AskError> {
    let target = Target { host: host.to_owned(), port: 0, from: 0, within: None, question: Some(asked) };
    let (socket, _) = ask(runtime, &wire::json(wire::CONNECT, &target))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).map_err(AskError::Broken)?;
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        match rustix::io::read(&socket, &mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(AskError::Broken(errno)),
        }
        if answer.len() > wire::LONGEST {
            return Err(AskError::Nonsense("a long answer".to_owned()));
        }
    }
    serde_json::from_slice(&answer).map_err(|error| AskError::Nonsense(error.to_string()))
}

/// Carries standard input to a connection, and what comes back to standard output, until both have ended.
pub fn carry(socket: &OwnedFd) -> Result<(), Errno> {
    let (input, output) = (rustix::stdio::stdin(), rustix::stdio::stdout());
    let mut there = Way::default();
    let mut back = Way::default();
    while !back.is_over() {
        let wanted = |way: &Way| if way.wants() { PollFlags::IN } else { PollFlags::empty() };
        let room = |way: &Way| if way.has() { PollFlags::OUT } else { PollFlags::empty() };
        // What nothing is wanted of is not asked: an end that hung up would always answer.
        let all = [(socket.as_fd(), wanted(&back) | room(&there)), (input, wanted(&there)), (output, room(&back))];
        let mut seen = [PollFlags::empty(); 3];
        let asks = all.iter().filter(|(_, what)| !what.is_empty());
        let mut asked: Vec<_> = asks.map(|(fd, what)| PollFd::from_borrowed_fd(*fd, *what)).collect();
        match poll(&mut asked, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let mut told = asked.iter().map(PollFd::revents);
        for (seen, (_, what)) in seen.iter_mut().zip(&all) {
            if !what.is_empty() {
                *seen = told.next().unwrap_or(PollFlags::empty());
            }
        }
        let [net, local, out] = seen;
        if there.wants() && !local.is_empty() {
            there.fill(|buffer| rustix::io::read(input, buffer))?;
        }
        if there.has() && net.intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP) {
            there.empty(|bytes| socket::send(socket, bytes))?;
        }
        if there.ends() {
            socket::finish(socket);
        }
        if back.wants() && net.intersects(PollFlags::IN | PollFlags::ERR | PollFlags::HUP) {
            back.fill(|buffer| match socket::recv(socket, buffer)? {
                Got::Bytes(count) => Ok(count),
                Got::Nothing => Err(Errno::AGAIN),
                Got::End => Ok(0),
            })?;
        }
        if back.has() && !out.is_empty() {
            back.empty(|bytes| rustix::io::write(output, bytes.get(..4096).unwrap_or(bytes)))?;
        }
        back.ends();
    }
    Ok(())
}

/// One direction.
#[derive(Default)]
struct Way {
    held: Vec<u8>,
    ended: bool,
    told: bool,
}

impl Way {
    fn wants(&self) -> bool {
        self.held.is_empty() && !self.ended
    }

    fn has(&self) -> bool {
        !self.held.is_empty()
    }

    fn is_over(&self) -> bool {
        self.told
    }

    /// Whether its end is to be passed on now; true once.
    fn ends(&mut self) -> bool {
        self.ended && self.held.is_empty() && !std::mem::replace(&mut self.told, true)
    }

    fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> Result<(), Errno> {
        let mut buffer = vec![0; 64 << 10];
        match read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(count) => {
                buffer.truncate(count);
                self.held = buffer;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    fn empty(&mut self, write: impl FnOnce(&[u8]) -> Result<usize, Errno>) -> Result<(), Errno> {
        match write(&self.held) {
            Ok(count) => drop(self.held.drain(..count)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }
}

/// Asks one thing.
fn ask(runtime: &Runtime, question: &[u8]) -> Result<(OwnedFd, Vec<u8>), AskError> {
    let socket = match socket::dial_unix(&runtime.socket()) {
        Ok(socket) => socket,
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => return Err(AskError::Down),
        Err(errno) => return Err(AskError::Broken(errno)),
    };
    runtime.judge()?;
    let limit = |how, time| sockopt::set_socket_timeout(&socket, how, time).map_err(AskError::Broken);
    limit(Timeout::Recv, Some(PATIENCE))?;
    limit(Timeout::Send, Some(PATIENCE))?;
    rustix::net::send(&socket, question, rustix::net::SendFlags::NOSIGNAL).map_err(AskError::Broken)?;
    // Not a byte more than the answer: the rest is the stream's.
    let mut answer = Vec::new();
    read_exactly(socket.as_fd(), &mut answer, 9)?;
    let len = u64::from_le_bytes(answer.first_chunk::<8>().copied().unwrap_or_default()) >> 16;
    let len = usize::try_from(len).ok().filter(|len| *len <= wire::LONGEST);
    read_exactly(socket.as_fd(), &mut answer, len.ok_or_else(|| AskError::Nonsense("a long answer".to_owned()))?)?;
    limit(Timeout::Recv, None)?;
    limit(Timeout::Send, None)?;
    match wire::take(&answer, wire::LONGEST).map_err(AskError::Nonsense)? {
        Some((wire::DONE, body, _)) => Ok((socket, body)),
        Some((wire::FAILED, body, _)) => Err(AskError::Refused(String::from_utf8_lossy(&body).into_owned())),
        _ => Err(AskError::Nonsense("an answer of no kind".to_owned())),
    }
}

fn read_exactly(socket: BorrowedFd<'_>, into: &mut Vec<u8>, count: usize) -> Result<(), AskError> {
    let mut at = into.len();
    into.resize(at + count, 0);
    while let Some(room) = into.get_mut(at..).filter(|room| !room.is_empty()) {
        match rustix::io::read(socket, room) {
            Ok(0) => return Err(AskError::Broken(Errno::CONNRESET)),
            Ok(count) => at += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(AskError::Broken(errno)),
        }
    }
    Ok(())
}
