//! A pipe joins two ends, each a socket or a stream of a link, and carries bytes, and each direction's end, both ways. Between reading and
//! writing it holds at most what one read gave: who does not read holds up its own stream, and nobody else's.

use std::os::fd::OwnedFd;

use madrigal_proto::mux::StreamId;
use rustix::io::Errno;

use crate::daemon::{Daemon, Holder, Thing};
use crate::poll::Token;
use crate::socket::{self, Got};

/// Reads of one direction in one turn.
const READS: usize = 16;
/// Bytes of one read.
pub(crate) const PIECE: usize = 32 << 10;

/// One of two.
pub(crate) enum End {
    /// A socket of this host.
    Socket {
        /// The socket.
        socket: OwnedFd,
        /// Its token.
        token: Token,
        /// It is TCP: a broken stream shows as a reset.
        is_tcp: bool,
    },
    /// A stream of a link.
    Stream((Token, StreamId)),
}

/// An end, and what was read from it.
pub(crate) struct Side {
    end: End,
    /// Read, not yet written to the other end.
    staged: Vec<u8>,
    /// It has nothing more.
    ended: bool,
    /// The other end knows.
    finished: bool,
}

/// Two ends that are joined.
pub(crate) struct Pipe([Side; 2]);

impl Side {
    /// An end, from which something may have been read already.
    pub(crate) fn new(end: End, staged: Vec<u8>) -> Self {
        Self { end, staged, ended: false, finished: false }
    }
}

impl Daemon {
    /// Joins two ends.
    pub(crate) fn join(&mut self, one: Side, other: Side) {
        let pipe = self.token();
        for side in [&one, &other] {
            match &side.end {
                End::Socket { socket, token, is_tcp } => {
                    if *is_tcp {
                        socket::reset_at_close(socket, true);
                    }
                    self.things.insert(*token, Thing::Socket(pipe));
                }
                End::Stream(stream) => drop(self.streams.insert(*stream, Holder::Pipe(pipe))),
            }
        }
        self.pipes.insert(pipe, Pipe([one, other]));
        self.pump(pipe);
    }

    /// Carries what can be carried.
    pub(crate) fn pump(&mut self, token: Token) {
        let Some(mut pipe) = self.pipes.remove(&token) else { return };
        let mut buffer = std::mem::take(&mut self.piece);
        let [one, other] = &mut pipe.0;
        let there = self.carry(one, &other.end, &mut buffer);
        let more = there.and_then(|more| Ok(more | self.carry(other, &one.end, &mut buffer)?));
        self.piece = buffer;
        match more {
            Err(_) => self.end_pipe(pipe, true),
            Ok(_) if pipe.0.iter().all(|side| side.finished) => self.end_pipe(pipe, false),
            Ok(more) => {
                self.pipes.insert(token, pipe);
                if more {
                    self.again.push_back(token);
                }
            }
        }
    }

    /// Carries from one end to another; whether there may be more to carry at once.
    fn carry(&mut self, from: &mut Side, to: &End, buffer: &mut [u8]) -> Result<bool, Errno> {
        for _ in 0..READS {
            if !from.staged.is_empty() {
                let written = self.write(to, &from.staged)?;
                from.staged.drain(..written);
                if !from.staged.is_empty() {
                    return Ok(false);
                }
                from.staged = Vec::new();
            }
            if from.ended {
                if !from.finished {
                    from.finished = true;
                    self.finish(to);
                }
                return Ok(false);
            }
            let got = match &from.end {
                End::Socket { socket, .. } => socket::recv(socket, buffer)?,
                End::Stream(stream) => self.read_stream(*stream, buffer)?,
            };
            match got {
                Got::Bytes(count) => {
                    let bytes = buffer.get(..count).unwrap_or_default();
                    let written = self.write(to, bytes)?;
                    from.staged.extend_from_slice(bytes.get(written..).unwrap_or_default());
                    if !from.staged.is_empty() {
                        return Ok(false);
                    }
                }
                Got::Nothing => return Ok(false),
                Got::End => from.ended = true,
            }
        }
        Ok(true)
    }

    fn write(&mut self, to: &End, bytes: &[u8]) -> Result<usize, Errno> {
        match to {
            End::Socket { socket, .. } => {
                let mut written = 0;
                // Until it takes no more: only then are we told when it does.
                while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
                    match socket::send(socket, rest)? {
                        0 => break,
                        count => written += count,
                    }
                }
                Ok(written)
            }
            End::Stream(stream) => self.write_stream(*stream, bytes),
        }
    }

    fn finish(&mut self, end: &End) {
        match end {
            End::Socket { socket, .. } => socket::finish(socket),
            End::Stream(stream) => self.finish_stream(*stream),
        }
    }

    /// One end is no more: the other hears of it.
    pub(crate) fn break_pipe(&mut self, token: Token) {
        if let Some(pipe) = self.pipes.remove(&token) {
            self.end_pipe(pipe, true);
        }
    }

    fn end_pipe(&mut self, pipe: Pipe, broken: bool) {
        for side in pipe.0 {
            match side.end {
                End::Socket { socket, token, is_tcp } => {
                    self.things.remove(&token);
                    if is_tcp {
                        socket::reset_at_close(&socket, broken);
                    }
                }
                End::Stream(stream) if broken => self.reset_stream(stream),
                End::Stream(stream) => drop(self.streams.remove(&stream)),
            }
        }
    }

    /// An end that nobody wants.
    pub(crate) fn drop_end(&mut self, end: End) {
        match end {
            End::Socket { token, .. } => drop(self.things.remove(&token)),
            End::Stream(stream) => self.reset_stream(stream),
        }
    }
}
