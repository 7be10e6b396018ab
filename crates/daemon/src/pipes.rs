//! A pipe joins two ends, each a socket or a stream of a link, and carries bytes, and each direction's end, both ways. Between reading and
//! writing it holds at most what one read gave: who does not read holds up its own stream, and nobody else's. Where a stream begins or ends
//! at this host, its bytes are counted, and kept until the other end has them, so that it can go on by another way (`moves.rs`).

use std::ops::Range;
use std::os::fd::OwnedFd;

use madrigal_proto::mux::{Mux, StreamId};
use madrigal_proto::resumable::{LONGEST, Nonsense, Received, Resumable};
use rustix::io::Errno;

use crate::daemon::{Daemon, Holder, Thing};
use crate::links::Link;
use crate::local;
use crate::origin::{Origin, Role};
use crate::poll::Token;
use crate::record::Record;
use crate::socket::Got;
use crate::wire::Gone;

/// Reads of one direction in one pass.
const READS: usize = 16;
/// Bytes of one read.
pub(crate) const PIECE: usize = 32 << 10;

/// What one stream may keep for another way, what all may keep together, and what each may keep even so. Where it is more, a stream cannot
/// go on by another way until its other end has caught up. A relay's two links hold 8 MiB of each direction. What the other end has, it says
/// in the stream, behind bytes that a slow program may not have read: that is as much again, and what lies in sockets. (So who reads no more
/// while much is kept could wait for ever.)
const KEPT: usize = 32 << 20;
const KEPT_BY_ALL: usize = 128 << 20;
const KEPT_BY_ANY: usize = 16 << 10;

/// What a counted stream must have room for to be worth a read.
const LEAST: usize = 2 << 10;

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
    Stream(Stream),
    /// Nobody: what comes there is dropped, and nothing comes from there but what is staged.
    Nobody,
    /// The stream broke, and there is no other one yet.
    FailingOver,
}

/// Where what comes on a stream goes.
pub(crate) enum Beyond {
    /// To a socket.
    Socket,
    /// To another stream.
    Stream(Stream),
    /// It waits.
    Later,
}

/// An end, and what was read from it.
pub(crate) struct Side {
    pub(crate) end: End,
    /// Read, not yet written to the other end.
    staged: Vec<u8>,
    /// It has nothing more.
    ended: bool,
    /// The other end knows.
    finished: bool,
    /// Of a stream that can go on by another way.
    pub(crate) resumable: Option<Box<Resumable>>,
    /// What was wrong as it was last read, or written to the other end.
    wrong: Option<Errno>,
    /// Bytes that came from it.
    came: u64,
}

/// Two ends that are joined.
pub(crate) struct Pipe {
    sides: [Side; 2],
    /// For a stream that can go on by another way.
    pub(crate) origin: Option<Origin>,
    /// What is kept for that.
    held: usize,
    /// For the log.
    pub(crate) record: Option<Record>,
}

impl Pipe {
    /// The side that can go on by another way.
    pub(crate) fn far(&mut self) -> Option<&mut Side> {
        self.sides.iter_mut().find(|side| side.resumable.is_some())
    }

    /// Where what comes on a stream can go at once.
    pub(crate) fn beyond(&self, stream: Stream) -> Beyond {
        let (from, to) = match &self.sides {
            [one, other] if one.is_of(stream) => (one, other),
            [one, other] if other.is_of(stream) => (other, one),
            _ => return Beyond::Later,
        };
        match &to.end {
            _ if !from.staged.is_empty() || from.wrong.is_some() => Beyond::Later,
            End::Socket { .. } if from.resumable.is_some() => Beyond::Socket,
            End::Stream(to) if from.resumable.is_none() => Beyond::Stream(*to),
            _ => Beyond::Later,
        }
    }

    /// Takes what came on a counted stream; what is for the socket at the other end is added to `batch`. How much was taken.
    pub(crate) fn handle(&mut self, stream: Stream, bytes: &[u8], batch: &mut Vec<u8>) -> usize {
        let Some(from) = self.sides.iter_mut().find(|side| side.is_of(stream)) else { return 0 };
        let before = batch.len();
        from.wrong = from.take_in(bytes, batch).err();
        from.came += (batch.len() - before) as u64;
        bytes.len()
    }

    /// So many bytes went from a stream to the other end at once.
    pub(crate) fn went(&mut self, stream: Stream, count: usize) {
        if let Some(from) = self.sides.iter_mut().find(|side| side.is_of(stream)) {
            from.came += count as u64;
        }
    }

    /// How many bytes came from either end.
    pub(crate) fn carried(&self) -> [u64; 2] {
        self.sides.each_ref().map(|side| side.came)
    }

    /// Brings that to the socket. What it has no room for is staged.
    pub(crate) fn bring(&mut self, bytes: &[u8]) {
        let [one, other] = &mut self.sides;
        let (from, to) = if one.resumable.is_some() { (one, other) } else { (other, one) };
        let End::Socket { socket, .. } = &to.end else { return };
        let sent = if from.staged.is_empty() { send(socket, bytes) } else { Ok(0) };
        match sent {
            Ok(sent) => from.staged.extend_from_slice(bytes.get(sent..).unwrap_or_default()),
            Err(errno) => from.wrong = from.wrong.or(Some(errno)),
        }
    }

    /// Whether both ends have said all there is to say.
    pub(crate) fn is_over(&self) -> bool {
        self.sides.iter().all(|side| side.finished)
    }

    /// Whether nobody needs it any more.
    fn is_done(&self) -> bool {
        self.is_over()
            && self.sides.iter().all(|side| side.resumable.as_ref().is_none_or(|resumable| resumable.is_done()))
    }
}

impl Side {
    /// An end, from which something may have been read already.
    pub(crate) fn new(end: End, staged: Vec<u8>) -> Self {
        let came = staged.len() as u64;
        Self { end, staged, ended: false, finished: false, resumable: None, wrong: None, came }
    }

    /// Its bytes are counted from now on.
    fn count(&mut self) -> Result<(), Errno> {
        let mut resumable = Box::new(Resumable::new());
        let new = read_counted(&mut resumable, &mut self.staged, &mut self.ended)?;
        self.staged.truncate(new.end);
        self.staged.drain(..new.start);
        self.came = self.staged.len() as u64;
        self.resumable = Some(resumable);
        Ok(())
    }

    fn is_of(&self, stream: Stream) -> bool {
        matches!(self.end, End::Stream(own) if own == stream)
    }

    /// Takes what came by a counted stream, and adds what was not here before to `batch`.
    fn take_in(&mut self, mut bytes: &[u8], batch: &mut Vec<u8>) -> Result<(), Errno> {
        let Some(resumable) = &mut self.resumable else { return Ok(()) };
        while !bytes.is_empty() {
            let (received, taken) = resumable.handle(bytes).map_err(|Nonsense| Errno::PROTO)?;
            match received {
                Received::Bytes(new) => batch.extend_from_slice(new),
                Received::End => self.ended = true,
                Received::Nothing => {}
            }
            bytes = bytes.get(taken..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Writes to a socket until it takes no more: only then are we told when it does.
fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match local::send(socket, rest)? {
            0 => break,
            count => written += count,
        }
    }
    Ok(written)
}

/// Reads what came by a counted stream: where in the buffer the new bytes lie then, all together.
fn read_counted(resumable: &mut Resumable, buffer: &mut [u8], ended: &mut bool) -> Result<Range<usize>, Errno> {
    let (mut at, mut new) = (0, 0..0);
    while let Some(rest) = buffer.get(at..).filter(|rest| !rest.is_empty()) {
        let (received, taken) = resumable.handle(rest).map_err(|Nonsense| Errno::PROTO)?;
        at += taken;
        match received {
            // They are the last of what was taken.
            Received::Bytes(bytes) if new.is_empty() => new = at - bytes.len()..at,
            Received::Bytes(bytes) => {
                let count = bytes.len();
                buffer.copy_within(at - count..at, new.end);
                new.end += count;
            }
            Received::End => *ended = true,
            Received::Nothing => {}
        }
    }
    Ok(new)
}

impl Daemon {
    /// Joins two ends; what holds them.
    pub(crate) fn join(&mut self, one: Side, other: Side) -> Token {
        self.join_as(one, other, None)
    }

    /// Joins two ends, of which one is a stream that can go on by another way; what holds them.
    pub(crate) fn join_as(&mut self, mut one: Side, mut other: Side, origin: Option<Origin>) -> Token {
        let pipe = self.token();
        let (mut gone, mut good) = (false, true);
        for side in [&mut one, &mut other] {
            match &side.end {
                End::Socket { socket, token, is_tcp } => {
                    if *is_tcp {
                        local::reset_at_close(socket, true);
                    }
                    self.things.insert(*token, Thing::Socket(pipe));
                }
                End::Stream(stream) => {
                    gone |= !self.has_stream(*stream);
                    self.streams.insert(*stream, Holder::Pipe(pipe));
                    good &= origin.is_none() || side.count().is_ok();
                }
                End::Nobody | End::FailingOver => {}
            }
        }
        if let Some(Origin { id, role: Role::Target { .. }, .. }) = &origin {
            self.movable.insert(id.clone(), pipe);
        }
        self.pipes.insert(pipe, Pipe { sides: [one, other], origin, held: 0, record: None });
        match (good, gone) {
            (false, _) => self.break_pipe(pipe, Gone::Ended),
            // It broke before there was anybody to be told.
            (true, true) => self.lose_way(pipe, Gone::Lost),
            (true, false) => self.pump(pipe),
        }
        pipe
    }

    fn has_stream(&mut self, (link, stream): Stream) -> bool {
        self.links.get_mut(&link).and_then(Link::mux).is_some_and(|mux: &mut Mux| mux.contains(stream))
    }

    /// Carries what can be carried.
    pub(crate) fn pump(&mut self, token: Token) {
        let Some(mut pipe) = self.pipes.remove(&token) else { return };
        let mut buffer = std::mem::take(&mut self.piece);
        let [one, other] = &mut pipe.sides;
        let there = self.carry(one, other, &mut buffer);
        let more = there.and_then(|more| Ok(more | self.carry(other, one, &mut buffer)?));
        self.piece = buffer;
        if let Some(far) = pipe.far() {
            // The other end may have to be told what came.
            self.send_out(far);
        }
        self.count_kept(&mut pipe);
        match more {
            Err(_) => self.end_pipe(token, pipe, Some(Gone::Ended)),
            Ok(_) if pipe.is_done() => self.end_pipe(token, pipe, None),
            Ok(more) => {
                self.pipes.insert(token, pipe);
                if more {
                    self.again.push_back(token);
                }
            }
        }
    }

    /// What is kept for another way is bounded.
    fn count_kept(&mut self, pipe: &mut Pipe) {
        let before = pipe.held;
        let Some(resumable) = pipe.far().and_then(|side| side.resumable.as_mut()) else { return };
        let most = if self.kept > KEPT_BY_ALL { KEPT_BY_ANY } else { KEPT };
        if resumable.held() > most {
            resumable.forget();
        }
        let held = resumable.held();
        self.kept = self.kept + held - before;
        pipe.held = held;
    }

    /// Carries from one end to another; whether there may be more to carry at once.
    fn carry(&mut self, from: &mut Side, to: &mut Side, buffer: &mut [u8]) -> Result<bool, Errno> {
        for _ in 0..READS {
            if let Some(errno) = from.wrong.take() {
                return Err(errno);
            }
            if !self.unload(from, to)? {
                return Ok(false);
            }
            let most = self.room(to);
            let Some(buffer) = buffer.get_mut(..most).filter(|_| most > 0) else { return Ok(false) };
            if from.ended && !from.finished {
                from.finished = true;
                self.finish(to);
                continue;
            }
            // Of a counted stream there is more to hear behind its end.
            if from.ended && from.resumable.is_none() {
                return Ok(false);
            }
            if let (End::Socket { socket, .. }, Some(resumable)) = (&from.end, &mut to.resumable) {
                match local::recv(socket, resumable.space(most))? {
                    Got::Bytes(count) => {
                        resumable.pushed(count);
                        from.came += count as u64;
                    }
                    Got::Nothing => return Ok(false),
                    Got::End => from.ended = true,
                }
                continue;
            }
            let got = match &from.end {
                End::Socket { socket, .. } => local::recv(socket, buffer)?,
                // That it is gone is told soon, and why.
                End::Stream(stream) => self.read_stream(*stream, buffer).unwrap_or(Got::Nothing),
                End::Nobody => Got::End,
                End::FailingOver => Got::Nothing,
            };
            match got {
                Got::Bytes(count) => self.bring(from, to, buffer.get_mut(..count).unwrap_or_default())?,
                Got::Nothing => return Ok(false),
                // Nobody ends a counted stream before all is counted.
                Got::End if from.resumable.as_ref().is_some_and(|resumable| resumable.is_done()) => return Ok(false),
                Got::End if from.resumable.is_some() => return Err(Errno::PROTO),
                Got::End => from.ended = true,
            }
        }
        Ok(true)
    }

    /// How much may be read for an end: of a counted stream, what it takes at once, lest it be held twice.
    fn room(&mut self, to: &Side) -> usize {
        let (End::Stream((link, stream)), Some(_)) = (&to.end, &to.resumable) else { return PIECE };
        let room = self.links.get_mut(link).and_then(Link::mux).map_or(0, |mux| mux.room(*stream, LEAST));
        if room < LEAST { 0 } else { (room - LEAST / 2).min(LONGEST) }
    }

    /// Writes what was read before; whether all of it was taken, and there is room for more.
    fn unload(&mut self, from: &mut Side, to: &mut Side) -> Result<bool, Errno> {
        if !from.staged.is_empty() {
            let staged = std::mem::take(&mut from.staged);
            let written = self.write(to, &staged)?;
            from.staged = staged;
            from.staged.drain(..written);
            if !from.staged.is_empty() {
                return Ok(false);
            }
            from.staged = Vec::new();
        }
        Ok(to.resumable.is_none() || self.send_out(to))
    }

    /// Writes what was read from one end to the other.
    fn bring(&mut self, from: &mut Side, to: &mut Side, bytes: &mut [u8]) -> Result<(), Errno> {
        let new = match &mut from.resumable {
            None => 0..bytes.len(),
            Some(resumable) => read_counted(resumable, bytes, &mut from.ended)?,
        };
        let new = bytes.get(new).unwrap_or_default();
        from.came += new.len() as u64;
        let written = if from.staged.is_empty() { self.write(to, new)? } else { 0 };
        from.staged.extend_from_slice(new.get(written..).unwrap_or_default());
        Ok(())
    }

    /// Sends what a counted stream has to send; whether it took all.
    fn send_out(&mut self, to: &mut Side) -> bool {
        let (End::Stream(stream), Some(resumable)) = (&to.end, &mut to.resumable) else { return false };
        while let Some(pieces) = resumable.output() {
            let wanted = pieces[0].len() + pieces[1].len();
            let taken = self.write_stream(*stream, pieces).unwrap_or(0);
            resumable.took(taken);
            if taken < wanted {
                return false;
            }
        }
        true
    }

    fn write(&mut self, to: &mut Side, bytes: &[u8]) -> Result<usize, Errno> {
        if let Some(resumable) = &mut to.resumable {
            resumable.push(bytes);
            self.send_out(to);
            return Ok(bytes.len());
        }
        match &to.end {
            End::Socket { socket, .. } => send(socket, bytes),
            End::Stream(stream) => Ok(self.write_stream(*stream, [bytes, &[]]).unwrap_or(0)),
            End::Nobody => Ok(bytes.len()),
            End::FailingOver => Ok(0),
        }
    }

    fn finish(&mut self, to: &mut Side) {
        if let Some(resumable) = &mut to.resumable {
            return resumable.end();
        }
        match &to.end {
            End::Socket { socket, .. } => local::finish(socket),
            End::Stream(stream) => self.finish_stream(*stream),
            End::Nobody | End::FailingOver => {}
        }
    }

    /// One end is no more: the other hears of it.
    pub(crate) fn break_pipe(&mut self, token: Token, why: Gone) {
        if let Some(pipe) = self.pipes.remove(&token) {
            self.end_pipe(token, pipe, Some(why));
        }
    }

    fn end_pipe(&mut self, token: Token, pipe: Pipe, broken: Option<Gone>) {
        self.kept = self.kept.saturating_sub(pipe.held);
        self.note_end(&pipe, broken.is_some());
        self.anchor(token);
        if let Some(Origin { id, role: Role::Target { .. }, .. }) = &pipe.origin {
            self.movable.remove(id);
        }
        let over = pipe.is_over();
        for side in pipe.sides {
            match (side.end, broken) {
                (End::Socket { socket, token, is_tcp }, _) => {
                    self.things.remove(&token);
                    if is_tcp {
                        // Where all was said, nobody is told that it broke after that.
                        local::reset_at_close(&socket, broken.is_some() && !over);
                    }
                }
                (End::Stream(stream), Some(why)) => self.reset_stream_as(stream, why),
                (End::Stream(stream), None) if side.resumable.is_some() => {
                    self.finish_stream(stream);
                    // Until the other end has finished it, too.
                    self.streams.insert(stream, Holder::Probe);
                    self.go_on_probing(stream.0, stream.1);
                }
                (End::Stream(stream), None) => drop(self.streams.remove(&stream)),
                (End::Nobody | End::FailingOver, _) => {}
            }
        }
    }

    /// An end that nobody wants.
    pub(crate) fn drop_end(&mut self, end: End) {
        match end {
            End::Socket { token, .. } => drop(self.things.remove(&token)),
            End::Stream(stream) => self.reset_stream(stream),
            End::Nobody | End::FailingOver => {}
        }
    }
}
