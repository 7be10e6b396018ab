//! The sockets of the thread: what came and is no whole frame yet, and what the socket has not taken.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use madrigal_pools::wire;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use serde::Serialize;

use crate::poll::Token;
use crate::socket::{self, Recv};

/// Bytes read at once.
const READ: usize = 64 << 10;

/// What a socket is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A program of this host.
    Program,
    /// Another daemon, for which this one keeps pools; or this one itself.
    Peer,
    /// This daemon's stream to the one that keeps the pools.
    Keeper,
}

/// A socket.
pub(super) struct Connection {
    kind: Kind,
    socket: OwnedFd,
    /// Readable when the process at its other end has ended, even if a child of that has the socket, too.
    process: Option<OwnedFd>,
    /// What came, and how much of it was taken.
    inbox: Vec<u8>,
    taken: usize,
    /// What is to go, and how much of it went.
    outbox: Vec<u8>,
    sent: usize,
    /// Nothing is read for now.
    paused: bool,
    ended: bool,
    /// What the epoll looks for.
    asked: EventFlags,
}

/// All of them, by token, and the epoll that looks at them, by level.
pub(super) struct Connections {
    all: HashMap<Token, Connection>,
    last: Token,
    epoll: Arc<OwnedFd>,
}

impl Connections {
    pub(super) fn new(epoll: Arc<OwnedFd>) -> Self {
        Self { all: HashMap::new(), last: 0, epoll }
    }

    /// Takes a socket, and the pidfd of the process at its other end where that is known. An error is one of the epoll.
    pub(super) fn add(
        &mut self,
        kind: Kind,
        socket: OwnedFd,
        process: Option<OwnedFd>,
        inbox: Vec<u8>,
    ) -> Result<Token, Errno> {
        self.last += 1;
        let token = self.last;
        for fd in [Some(&socket), process.as_ref()].into_iter().flatten() {
            epoll::add(&self.epoll, fd, EventData::new_u64(token), EventFlags::IN)?;
        }
        let connection = Connection {
            kind,
            socket,
            process,
            inbox,
            taken: 0,
            outbox: Vec::new(),
            sent: 0,
            paused: false,
            ended: false,
            asked: EventFlags::IN,
        };
        self.all.insert(token, connection);
        Ok(token)
    }

    pub(super) fn kind(&self, token: Token) -> Option<Kind> {
        self.all.get(&token).map(|connection| connection.kind)
    }

    pub(super) fn count(&self, kind: Kind) -> usize {
        self.all.values().filter(|connection| connection.kind == kind).count()
    }

    /// Sends a frame, behind those that wait.
    pub(super) fn send(&mut self, token: Token, content: &impl Serialize) {
        self.send_bytes(token, &wire::encode(content));
    }

    /// The same with bytes.
    pub(super) fn send_bytes(&mut self, token: Token, bytes: &[u8]) {
        if let Some(connection) = self.all.get_mut(&token) {
            connection.outbox.extend_from_slice(bytes);
        }
    }

    /// Bytes that wait for a socket.
    pub(super) fn waiting(&self, token: Token) -> usize {
        self.all.get(&token).map_or(0, |connection| connection.outbox.len() - connection.sent)
    }

    /// Whether the socket is read.
    pub(super) fn pause(&mut self, token: Token, paused: bool) {
        if let Some(connection) = self.all.get_mut(&token) {
            connection.paused = paused;
        }
    }

    pub(super) fn is_paused(&self, token: Token) -> bool {
        self.all.get(&token).is_some_and(|connection| connection.paused)
    }

    /// Sends what it takes at once, and closes it.
    pub(super) fn close(&mut self, token: Token) {
        self.flush(token);
        self.all.remove(&token);
    }

    /// Takes the next frame off what came; an error is the peer's.
    pub(super) fn next<T: serde::de::DeserializeOwned>(
        &mut self,
        token: Token,
        longest: usize,
    ) -> Result<Option<T>, String> {
        let Some(connection) = self.all.get_mut(&token).filter(|one| !one.paused) else { return Ok(None) };
        let rest = connection.inbox.get(connection.taken..).unwrap_or_default();
        match wire::decode(rest, longest)? {
            Some((content, whole)) => {
                connection.taken += whole;
                Ok(Some(content))
            }
            // Once for all frames that were there.
            None => {
                connection.drop_taken();
                Ok(None)
            }
        }
    }

    /// What came, as it is.
    pub(super) fn inbox(&mut self, token: Token) -> Option<&mut Vec<u8>> {
        let connection = self.all.get_mut(&token)?;
        connection.drop_taken();
        Some(&mut connection.inbox)
    }

    /// Reads what has come. Returns whether the socket, or the process at its other end, has ended.
    pub(super) fn read(&mut self, token: Token) -> bool {
        let Some(connection) = self.all.get_mut(&token) else { return false };
        connection.drop_taken();
        let mut buffer = vec![0; READ];
        while !connection.paused && !connection.ended && connection.inbox.len() <= wire::LONGEST_REPLY {
            match socket::recv(&connection.socket, &mut buffer) {
                Ok(Recv::Bytes(count)) => {
                    connection.inbox.extend_from_slice(buffer.get(..count).unwrap_or_default());
                }
                Ok(Recv::WouldBlock) => break,
                Ok(Recv::End) | Err(_) => connection.ended = true,
            }
        }
        // What its process has sent is there by now.
        connection.ended |= connection.process.as_ref().is_some_and(has_ended);
        connection.ended |= connection.paused && socket::is_hung_up(&connection.socket);
        connection.ended
    }

    /// Sends what sockets take.
    pub(super) fn flush_all(&mut self) {
        let waiting: Vec<Token> =
            self.all.iter().filter(|(_, one)| !one.outbox.is_empty()).map(|(token, _)| *token).collect();
        waiting.into_iter().for_each(|token| self.flush(token));
        for (token, connection) in &mut self.all {
            let mut asked = EventFlags::empty();
            asked.set(EventFlags::IN, !connection.paused);
            asked.set(EventFlags::OUT, !connection.outbox.is_empty());
            if asked != connection.asked {
                connection.asked = asked;
                // It is there: nothing but memory could lack.
                let _ = epoll::modify(&self.epoll, &connection.socket, EventData::new_u64(*token), asked);
            }
        }
    }

    fn flush(&mut self, token: Token) {
        let Some(connection) = self.all.get_mut(&token) else { return };
        loop {
            let rest = connection.outbox.get(connection.sent..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            match socket::send(&connection.socket, rest) {
                Ok(0) => break,
                Ok(count) => connection.sent += count,
                // The next read tells.
                Err(_) => connection.sent = connection.outbox.len(),
            }
        }
        // Seldom, for what is left is moved.
        if connection.sent >= connection.outbox.len() / 2 {
            connection.outbox.drain(..connection.sent);
            connection.sent = 0;
        }
    }
}

impl Connection {
    fn drop_taken(&mut self) {
        self.inbox.drain(..self.taken);
        self.taken = 0;
    }
}

/// Whether the process of a pidfd has (pidfd_open(2)).
fn has_ended(process: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}
