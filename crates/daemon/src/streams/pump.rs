//! Moves bytes through pipes, and bounds what resumable streams retain.

use madrigal_proto::resumable::LONGEST;
use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::link::Link;
use crate::local::libc_socket;
use crate::poll::Token;
use crate::socket::Got;
use crate::streams::pipe::{End, PIECE, Pipe, Side, read_counted, send};
use crate::wire::Gone;

/// Reads of one direction in one pass.
const READS: usize = 16;
/// What one stream may keep for another way, what all may keep together, and what each may keep even so. Where it is more, a stream cannot
/// go on by another way until its other end has caught up. A relay's two links hold 8 MiB of each direction. What the other end has, it says
/// in the stream, behind bytes that a slow program may not have read: that is as much again, and what lies in sockets. (So who reads no more
/// while much is kept could wait for ever.)
const KEPT: usize = 32 << 20;
const KEPT_BY_ALL: usize = 128 << 20;
const KEPT_BY_ANY: usize = 16 << 10;
/// What a counted stream must have room for to be worth a read.
const LEAST: usize = 2 << 10;

impl Daemon {
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
                match libc_socket::recv(socket, resumable.space(most))? {
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
                End::Socket { socket, .. } => libc_socket::recv(socket, buffer)?,
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
    pub(crate) fn room(&mut self, to: &Side) -> usize {
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
    pub(crate) fn bring(&mut self, from: &mut Side, to: &mut Side, bytes: &mut [u8]) -> Result<(), Errno> {
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

    pub(crate) fn write(&mut self, to: &mut Side, bytes: &[u8]) -> Result<usize, Errno> {
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

    pub(crate) fn finish(&mut self, to: &mut Side) {
        if let Some(resumable) = &mut to.resumable {
            return resumable.end();
        }
        match &to.end {
            End::Socket { socket, .. } => libc_socket::finish(socket),
            End::Stream(stream) => self.finish_stream(*stream),
            End::Nobody | End::FailingOver => {}
        }
    }
}
