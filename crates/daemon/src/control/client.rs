//! The commands' side of the control socket: requests to a daemon.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};

pub use crate::control::carry::carry;
use crate::control::description::Reloaded;
use crate::control::runtime::{Runtime, RuntimeError};
use crate::control::status::{Examination, Explanation, Status, TrialReport};
use crate::local::connection::ConnectionStatus;
use crate::socket;
use crate::wire::{self, Question, Target, TunnelOptions};

/// The time that a daemon has to answer: more than a call may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No daemon runs.
    #[error("no daemon of yours is up: `madrigal up` starts one")]
    Down,
    /// The runtime directory cannot be used.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The daemon refuses, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The daemon ended, or hangs.
    #[error("the daemon does not answer: {0}")]
    Broken(Errno),
    /// Its answer cannot be parsed.
    #[error("the daemon answers nonsense: {0}")]
    Nonsense(String),
}

/// The status of the daemon.
pub fn status(runtime: &Runtime) -> Result<Status, ClientError> {
    let (_, body) = request(runtime, &wire::frame(wire::STATUS, b""))?;
    serde_json::from_slice(&body).map_err(|error| ClientError::Nonsense(error.to_string()))
}

/// The status of the daemon of another host, by the daemon of this one.
pub fn status_of(runtime: &Runtime, host: &str) -> Result<Status, ClientError> {
    ask_daemon(runtime, host, Question::Status)
}

/// Stops the daemon, and waits until it has ended.
pub fn stop(runtime: &Runtime) -> Result<(), ClientError> {
    let (socket, _) = request(runtime, &wire::frame(wire::STOP, b""))?;
    // Until the daemon closes the connection.
    let _ = rustix::io::read(&socket, &mut [0]);
    for _ in 0..500 {
        match runtime.claim() {
            Err(RuntimeError::Up) => std::thread::sleep(Duration::from_millis(10)),
            other => return other.map(drop).map_err(ClientError::from),
        }
    }
    Err(ClientError::Broken(Errno::TIMEDOUT))
}

/// Makes the daemon read its grid.toml again. Returns the changes.
pub fn reload(runtime: &Runtime) -> Result<Reloaded, ClientError> {
    let (_, body) = request(runtime, &wire::frame(wire::RELOAD, b""))?;
    serde_json::from_slice(&body).map_err(|error| ClientError::Nonsense(error.to_string()))
}

/// The connections of programs that go through the daemon, and those that failed lately; the latest first.
pub fn connections(runtime: &Runtime) -> Result<Vec<ConnectionStatus>, ClientError> {
    let (_, body) = request(runtime, &wire::frame(wire::CONNECTIONS, b""))?;
    serde_json::from_slice(&body).map_err(|error| ClientError::Nonsense(error.to_string()))
}

/// A connection to a port of a host.
pub fn connect(runtime: &Runtime, host: &str, port: u16) -> Result<OwnedFd, ClientError> {
    let target = Target { host: host.to_owned(), port, ..Target::default() };
    Ok(request(runtime, &wire::json(wire::CONNECT, &target))?.0)
}

/// Forwards connections from local port `from` (0: any free port) to a port of a host, as long as the returned descriptor is open. Returns
/// the local port, too.
pub fn forward(runtime: &Runtime, from: u16, host: &str, port: u16) -> Result<(OwnedFd, u16), ClientError> {
    let target = Target { host: host.to_owned(), port, from, ..Target::default() };
    begin_forward(runtime, &target)
}

/// As [`forward`], for datagrams: of a thousand bytes `tolerance` may be lost. A datagram that waits for more than `within_ms`
/// milliseconds is dropped.
pub fn forward_datagrams(
    runtime: &Runtime,
    from: u16,
    (host, port): (&str, u16),
    tolerance: u32,
    within_ms: u64,
) -> Result<(OwnedFd, u16), ClientError> {
    let datagrams = Some(TunnelOptions { tolerance, within_ms });
    let target = Target { host: host.to_owned(), port, from, datagrams, ..Target::default() };
    begin_forward(runtime, &target)
}

fn begin_forward(runtime: &Runtime, target: &Target) -> Result<(OwnedFd, u16), ClientError> {
    let (socket, body) = request(runtime, &wire::json(wire::FORWARD, target))?;
    let text = String::from_utf8_lossy(&body).into_owned();
    Ok((socket, text.parse().map_err(|_| ClientError::Nonsense(text))?))
}

/// A connection that becomes a link. The other daemon greets first.
pub fn link(runtime: &Runtime) -> Result<OwnedFd, ClientError> {
    Ok(request(runtime, &wire::frame(wire::LINK, b""))?.0)
}

/// The ways from one host to another, as the daemon of the first one knows them, for one port or for any.
pub fn why(runtime: &Runtime, from: &str, to: &str, port: Option<u16>) -> Result<Explanation, ClientError> {
    ask_daemon(runtime, from, Question::Why { to: to.to_owned(), port })
}

/// The state of a host, and of its ways to another host, as its daemon reports them.
pub fn examine(runtime: &Runtime, host: &str, to: Option<&str>) -> Result<Examination, ClientError> {
    ask_daemon(runtime, host, Question::Check { to: to.map(str::to_owned) })
}

/// Measures what a link of a stack carries from one host to another in so many milliseconds: of text, or of incompressible bytes.
pub fn try_stack(
    runtime: &Runtime,
    (from, to): (&str, &str),
    stack: &str,
    text: bool,
    milliseconds: u64,
) -> Result<TrialReport, ClientError> {
    ask_daemon(runtime, from, Question::Trial { to: to.to_owned(), stack: stack.to_owned(), text, milliseconds })
}

/// Sends a question to the daemon of a host.
fn ask_daemon<T: serde::de::DeserializeOwned>(
    runtime: &Runtime,
    host: &str,
    question: Question,
) -> Result<T, ClientError> {
    let target = Target { host: host.to_owned(), question: Some(question), ..Target::default() };
    let (socket, _) = request(runtime, &wire::json(wire::CONNECT, &target))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT)).map_err(ClientError::Broken)?;
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        match rustix::io::read(&socket, &mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(ClientError::Broken(errno)),
        }
        if answer.len() > wire::LONGEST {
            return Err(ClientError::Nonsense("a long answer".to_owned()));
        }
    }
    serde_json::from_slice(&answer).map_err(|error| ClientError::Nonsense(error.to_string()))
}

/// Sends a request. Returns the connection, and the body of the answer.
fn request(runtime: &Runtime, frame: &[u8]) -> Result<(OwnedFd, Vec<u8>), ClientError> {
    let socket = match socket::dial_unix(&runtime.socket()) {
        Ok(socket) => socket,
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR) => return Err(ClientError::Down),
        Err(errno) => return Err(ClientError::Broken(errno)),
    };
    runtime.check()?;
    let limit = |how, time| sockopt::set_socket_timeout(&socket, how, time).map_err(ClientError::Broken);
    limit(Timeout::Recv, Some(ANSWER_TIMEOUT))?;
    limit(Timeout::Send, Some(ANSWER_TIMEOUT))?;
    rustix::net::send(&socket, frame, rustix::net::SendFlags::NOSIGNAL).map_err(ClientError::Broken)?;
    // Not a byte more than the answer: payload of the stream may follow.
    let mut answer = Vec::new();
    read_exactly(socket.as_fd(), &mut answer, 9)?;
    let len = u64::from_le_bytes(answer.first_chunk::<8>().copied().unwrap_or_default()) >> 16;
    let len = usize::try_from(len).ok().filter(|len| *len <= wire::LONGEST);
    read_exactly(socket.as_fd(), &mut answer, len.ok_or_else(|| ClientError::Nonsense("a long answer".to_owned()))?)?;
    limit(Timeout::Recv, None)?;
    limit(Timeout::Send, None)?;
    match wire::take(&answer, wire::LONGEST).map_err(ClientError::Nonsense)? {
        Some((wire::DONE, body, _)) => Ok((socket, body)),
        Some((wire::FAILED, body, _)) => Err(ClientError::Refused(String::from_utf8_lossy(&body).into_owned())),
        _ => Err(ClientError::Nonsense("an answer of no kind".to_owned())),
    }
}

fn read_exactly(socket: BorrowedFd<'_>, into: &mut Vec<u8>, count: usize) -> Result<(), ClientError> {
    let mut at = into.len();
    into.resize(at + count, 0);
    while let Some(room) = into.get_mut(at..).filter(|room| !room.is_empty()) {
        match rustix::io::read(socket, room) {
            Ok(0) => return Err(ClientError::Broken(Errno::CONNRESET)),
            Ok(count) => at += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(ClientError::Broken(errno)),
        }
    }
    Ok(())
}
