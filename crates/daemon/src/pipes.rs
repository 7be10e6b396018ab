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

/// A stream of a link.
pub(crate) type Stream = (Token, StreamId);

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
    /// Nobody: what comes there is dropped, and nothing comes from there but what is staged.
    Nobody,
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
    /// For a stream that moves (see `moves.rs`): one that was asked for, and its way; whether the end of this one was read since.
    asked: Option<(Stream, String)>,
    early: bool,
    /// What is written goes to another stream than is read.
    out: Option<Stream>,
    /// The one to read after this one, and the one to write after this one.
    next_in: Option<Stream>,
    next_out: Option<Stream>,
}

/// Two ends that are joined.
pub(crate) struct Pipe {
    sides: [Side; 2],
    /// For a stream that can be moved.
    pub(crate) origin: Option<Origin>,
}

/// What a stream is called where it begins and where it ends.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) id: String,
    pub(crate) role: Role,
}

/// Which of the two this host is.
#[derive(Clone)]
pub(crate) enum Role {
    /// A call began here, to that port of that host, which takes that way.
    Caller { host: usize, port: u16, way: String },
    /// It is connected to a port of this host.
    Target { from: String },
}

impl Origin {
    /// For the log.
    pub(crate) fn spoken(&self) -> String {
        match &self.role {
            Role::Caller { port, way, .. } => format!("a stream to port {port}, {way} now"),
            Role::Target { from } => format!("a stream of {from}"),
        }
    }
}

impl Pipe {
    /// The side that is a stream, of a pipe that has one such.
    fn far(&mut self) -> Option<&mut Side> {
        self.sides.iter_mut().find(|side| matches!(side.end, End::Stream(_)))
    }

    /// Whether nothing ends or moves by now.
    pub(crate) fn can_move(&self) -> bool {
        let still = |side: &Side| !side.ended && !side.finished && !side.early && side.asked.is_none();
        self.sides.iter().all(|side| still(side) && side.out.is_none() && side.next_in.is_none())
    }

    /// A stream was opened that is to take over.
    pub(crate) fn ask(&mut self, new: Stream, way: String) {
        if let Some(far) = self.far() {
            far.asked = Some((new, way));
        }
    }

    /// The far daemon agreed; whether this was asked for.
    pub(crate) fn agree(&mut self, new: Stream) -> bool {
        let Some(far) = self.far() else { return false };
        let End::Stream(old) = far.end else { return false };
        let Some((_, now)) = far.asked.take_if(|(asked, _)| *asked == new) else { return false };
        (far.out, far.next_in, far.next_out) = (Some(old), Some(new), Some(new));
        if let Some(Origin { role: Role::Caller { way, .. }, .. }) = &mut self.origin {
            *way = now;
        }
        true
    }

    /// It did not, or (`lost`) nobody knows; whether the old stream can go on.
    pub(crate) fn disagree(&mut self, lost: bool) -> bool {
        let Some(far) = self.far() else { return true };
        far.asked = None;
        let early = std::mem::take(&mut far.early);
        far.ended |= early;
        !(early && lost)
    }
}

impl Side {
    /// An end, from which something may have been read already.
    pub(crate) fn new(end: End, staged: Vec<u8>) -> Self {
        let (asked, out, next_in, next_out) = (None, None, None, None);
        Self { end, staged, ended: false, finished: false, asked, early: false, out, next_in, next_out }
    }
}

impl Daemon {
    /// Joins two ends; what holds them.
    pub(crate) fn join(&mut self, one: Side, other: Side) -> Token {
        self.join_as(one, other, None)
    }

    /// Joins two ends, of which one is a stream that may be moved; what holds them.
    pub(crate) fn join_as(&mut self, one: Side, other: Side, origin: Option<Origin>) -> Token {
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
                End::Nobody => {}
            }
        }
        if let Some(Origin { id, role: Role::Target { .. } }) = &origin {
            self.movable.insert(id.clone(), pipe);
        }
        self.pipes.insert(pipe, Pipe { sides: [one, other], origin });
        self.pump(pipe);
        pipe
    }

    /// Carries what can be carried.
    pub(crate) fn pump(&mut self, token: Token) {
        let Some(mut pipe) = self.pipes.remove(&token) else { return };
        let mut buffer = std::mem::take(&mut self.piece);
        let [one, other] = &mut pipe.sides;
        let there = self.carry((token, one), other, &mut buffer);
        let more = there.and_then(|more| Ok(more | self.carry((token, other), one, &mut buffer)?));
        self.piece = buffer;
        match more {
            Err(_) => self.end_pipe(pipe, true),
            Ok(_) if pipe.sides.iter().all(|side| side.finished) => self.end_pipe(pipe, false),
            Ok(more) => {
                self.pipes.insert(token, pipe);
                if more {
                    self.again.push_back(token);
                }
            }
        }
    }

    /// Carries from one end to another; whether there may be more to carry at once.
    fn carry(&mut self, (pipe, from): (Token, &mut Side), to: &mut Side, buffer: &mut [u8]) -> Result<bool, Errno> {
        for _ in 0..READS {
            if !from.staged.is_empty() {
                let written = self.write(to, &from.staged)?;
                from.staged.drain(..written);
                if !from.staged.is_empty() {
                    return Ok(false);
                }
                from.staged = Vec::new();
            }
            if let (Some(new), Some(old)) = (to.next_out.take(), to.out) {
                // All that was read is written to the old stream.
                self.finish_stream(old);
                to.out = Some(new).filter(|_| !matches!(to.end, End::Stream(now) if now == new));
            }
            if from.ended {
                if to.asked.is_some() {
                    return Ok(false);
                }
                if !from.finished {
                    from.finished = true;
                    self.finish(to);
                }
                return Ok(false);
            }
            if let Some(new) = from.next_in.take_if(|_| from.early) {
                from.early = false;
                self.go_on_with(pipe, from, new);
            }
            let got = match &from.end {
                End::Socket { socket, .. } => socket::recv(socket, buffer)?,
                End::Stream(stream) => self.read_stream(*stream, buffer)?,
                End::Nobody => Got::End,
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
                Got::End if from.asked.is_some() => {
                    from.early = true;
                    return Ok(false);
                }
                Got::End => match from.next_in.take() {
                    Some(new) => self.go_on_with(pipe, from, new),
                    None => from.ended = true,
                },
            }
        }
        Ok(true)
    }

    /// The old stream is read to its end, which was the other daemon's move.
    fn go_on_with(&mut self, pipe: Token, from: &mut Side, new: Stream) {
        if let End::Stream(old) = std::mem::replace(&mut from.end, End::Stream(new)) {
            self.streams.remove(&old);
        }
        from.out = from.out.filter(|out| *out != new);
        self.streams.insert(new, Holder::Pipe(pipe));
    }

    fn write(&mut self, to: &Side, bytes: &[u8]) -> Result<usize, Errno> {
        if let Some(stream) = to.out {
            return self.write_stream(stream, bytes);
        }
        match &to.end {
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
            End::Nobody => Ok(bytes.len()),
        }
    }

    fn finish(&mut self, to: &Side) {
        if let Some(stream) = to.out {
            return self.finish_stream(stream);
        }
        match &to.end {
            End::Socket { socket, .. } => socket::finish(socket),
            End::Stream(stream) => self.finish_stream(*stream),
            End::Nobody => {}
        }
    }

    /// One end is no more: the other hears of it.
    pub(crate) fn break_pipe(&mut self, token: Token) {
        if let Some(pipe) = self.pipes.remove(&token) {
            self.end_pipe(pipe, true);
        }
    }

    fn end_pipe(&mut self, pipe: Pipe, broken: bool) {
        if let Some(Origin { id, role: Role::Target { .. } }) = &pipe.origin {
            self.movable.remove(id);
        }
        for side in pipe.sides {
            let asked = side.asked.map(|(stream, _)| stream);
            for stream in [asked, side.out, side.next_in].into_iter().flatten() {
                if broken || Some(stream) == asked {
                    self.reset_stream(stream);
                } else {
                    self.streams.remove(&stream);
                }
            }
            match side.end {
                End::Socket { socket, token, is_tcp } => {
                    self.things.remove(&token);
                    if is_tcp {
                        socket::reset_at_close(&socket, broken);
                    }
                }
                End::Stream(stream) if broken => self.reset_stream(stream),
                End::Stream(stream) => drop(self.streams.remove(&stream)),
                End::Nobody => {}
            }
        }
    }

    /// An end that nobody wants.
    pub(crate) fn drop_end(&mut self, end: End) {
        match end {
            End::Socket { token, .. } => drop(self.things.remove(&token)),
            End::Stream(stream) => self.reset_stream(stream),
            End::Nobody => {}
        }
    }
}
