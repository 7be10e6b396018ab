//! Moves bytes through pipes, and bounds what resumable streams retain.

use madrigal_proto::resumable::LONGEST;
use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::link::Link;
use crate::local::libc_socket;
use crate::poll::Token;
use crate::socket::Recv;
use crate::streams::pipe::{End, PIPE_READ, Pipe, Side, read_counted, send};
use crate::wire::ResetCause;

/// Reads of one direction in one pass.
const READS: usize = 16;
/// Bytes that one stream may retain. A stream that retains more cannot migrate until its other end has caught up.
///
/// The windows of a relay's two links are 16 MiB each, each way. Acknowledgements come in the stream, behind bytes that a slow program may not
/// have read: that is as much again, and what is in sockets. A stream is not stopped instead, since its other end could then wait for ever:
/// where both ends are, neither reads what the other's acknowledgements are behind.
const RETAINED: usize = 64 << 20;
/// Bytes that all streams may retain together.
const RETAINED_BY_ALL: usize = 192 << 20;
/// Bytes that each stream may retain where all together retain more than that.
const RETAINED_UNDER_PRESSURE: usize = 16 << 10;
/// The room in a resumable stream that is worth a read.
const LEAST: usize = 2 << 10;

impl Daemon {
    /// Moves what can be moved, both ways.
    pub(crate) fn pump(&mut self, token: Token) {
        let Some(mut pipe) = self.pipes.remove(&token) else { return };
        let mut buffer = std::mem::take(&mut self.pipe_buffer);
        let Pipe { sides: [one, other], cap, .. } = &mut pipe;
        let cap = cap.as_deref().map(|rule| (rule, token));
        let there = self.transfer(one, other, cap, &mut buffer);
        let more = there.and_then(|more| Ok(more | self.transfer(other, one, cap, &mut buffer)?));
        self.pipe_buffer = buffer;
        if let Some(side) = pipe.resumable_side() {
            // There may be an acknowledgement to send.
            self.send_counted(side);
        }
        self.limit_retained(&mut pipe);
        match more {
            Err(_) => self.end_pipe(token, pipe, Some(ResetCause::Ended)),
            Ok(_) if pipe.is_done() => self.end_pipe(token, pipe, None),
            Ok(more) => {
                self.pipes.insert(token, pipe);
                if more {
                    self.runnable.push_back(token);
                }
            }
        }
    }

    /// Bounds what a resumable stream retains.
    fn limit_retained(&mut self, pipe: &mut Pipe) {
        let before = pipe.retained;
        let Some(resumable) = pipe.resumable_side().and_then(|side| side.resumable.as_mut()) else { return };
        let most = if self.retained > RETAINED_BY_ALL { RETAINED_UNDER_PRESSURE } else { RETAINED };
        if resumable.held() > most {
            resumable.forget();
        }
        let held = resumable.held();
        self.retained = self.retained + held - before;
        pipe.retained = held;
    }

    /// Moves bytes from one end to the other. Returns whether there may be more.
    fn transfer(
        &mut self,
        from: &mut Side,
        to: &mut Side,
        cap: Option<(&str, Token)>,
        buffer: &mut [u8],
    ) -> Result<bool, Errno> {
        for _ in 0..READS {
            if let Some(errno) = from.error.take() {
                return Err(errno);
            }
            if !self.write_staged(from, to)? {
                return Ok(false);
            }
            let most = self.room(to);
            if most == 0 {
                return Ok(false);
            }
            if from.ended && !from.finished {
                from.finished = true;
                self.finish(to);
                continue;
            }
            // Behind the end of a resumable stream its acknowledgements go on.
            if from.ended && from.resumable.is_none() {
                return Ok(false);
            }
            let most = most.min(self.allowed(from, cap));
            let Some(buffer) = buffer.get_mut(..most).filter(|_| most > 0) else { return Ok(false) };
            if let (End::Socket { socket, .. }, Some(resumable)) = (&from.end, &mut to.resumable) {
                match libc_socket::recv(socket, resumable.space(most))? {
                    Recv::Bytes(count) => {
                        resumable.pushed(count);
                        from.received += count as u64;
                        self.spend(from, cap, count);
                    }
                    Recv::WouldBlock => return Ok(false),
                    Recv::End => from.ended = true,
                }
                continue;
            }
            match self.read_end(&from.end, buffer)? {
                Recv::Bytes(count) => {
                    self.spend(from, cap, count);
                    self.forward_bytes(from, to, buffer.get_mut(..count).unwrap_or_default())?;
                }
                Recv::WouldBlock => return Ok(false),
                // A resumable stream ends after everything is acknowledged.
                Recv::End if from.resumable.as_ref().is_some_and(|resumable| resumable.is_done()) => return Ok(false),
                Recv::End if from.resumable.is_some() => return Err(Errno::PROTO),
                Recv::End => from.ended = true,
            }
        }
        Ok(true)
    }

    fn read_end(&mut self, end: &End, buffer: &mut [u8]) -> Result<Recv, Errno> {
        match end {
            End::Socket { socket, .. } => libc_socket::recv(socket, buffer),
            // If the stream was reset, an event reports it with the cause.
            End::Stream(stream) => Ok(self.read_stream(*stream, buffer).unwrap_or(Recv::WouldBlock)),
            End::Null => Ok(Recv::End),
            End::Disconnected => Ok(Recv::WouldBlock),
        }
    }

    /// The bytes that a cap allows to be read from an end now. With 0 the pipe goes on when there are more.
    fn allowed(&mut self, from: &Side, cap: Option<(&str, Token)>) -> usize {
        cap.map_or(usize::MAX, |(rule, pipe)| self.caps.allowed(rule, from.way(), pipe, (&self.grid, self.now)))
    }

    /// So many bytes of those were read.
    fn spend(&mut self, from: &Side, cap: Option<(&str, Token)>, count: usize) {
        if let Some((rule, _)) = cap {
            self.caps.spend(rule, from.way(), count);
        }
    }

    /// The bytes that may be read for an end: for a resumable stream those that its link takes at once, so that they are held once.
    fn room(&mut self, to: &Side) -> usize {
        let (End::Stream((link, stream)), Some(_)) = (&to.end, &to.resumable) else { return PIPE_READ };
        let room = self.links.get_mut(link).and_then(Link::mux).map_or(0, |mux| mux.room(*stream, LEAST));
        if room < LEAST { 0 } else { (room - LEAST / 2).min(LONGEST) }
    }

    /// Writes what is staged. Returns whether all of it was written, and there is room for more.
    fn write_staged(&mut self, from: &mut Side, to: &mut Side) -> Result<bool, Errno> {
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
        Ok(to.resumable.is_none() || self.send_counted(to))
    }

    /// Writes what was read from one end to the other end. What that has no room for is staged.
    fn forward_bytes(&mut self, from: &mut Side, to: &mut Side, bytes: &mut [u8]) -> Result<(), Errno> {
        let new = match &mut from.resumable {
            None => 0..bytes.len(),
            Some(resumable) => read_counted(resumable, bytes, &mut from.ended)?,
        };
        let new = bytes.get(new).unwrap_or_default();
        from.received += new.len() as u64;
        let written = if from.staged.is_empty() { self.write(to, new)? } else { 0 };
        from.staged.extend_from_slice(new.get(written..).unwrap_or_default());
        Ok(())
    }

    /// Sends what a resumable stream has to send. Returns whether its link took all.
    fn send_counted(&mut self, to: &mut Side) -> bool {
        let (End::Stream(stream), Some(resumable)) = (&to.end, &mut to.resumable) else { return false };
        while let Some(pieces) = resumable.output() {
            let offered = pieces[0].len() + pieces[1].len();
            let taken = self.write_stream(*stream, pieces).unwrap_or(0);
            resumable.took(taken);
            if taken < offered {
                return false;
            }
        }
        true
    }

    /// Writes to an end, as much as it has room for.
    fn write(&mut self, to: &mut Side, bytes: &[u8]) -> Result<usize, Errno> {
        if let Some(resumable) = &mut to.resumable {
            resumable.push(bytes);
            self.send_counted(to);
            return Ok(bytes.len());
        }
        match &to.end {
            End::Socket { socket, .. } => send(socket, bytes),
            End::Stream(stream) => Ok(self.write_stream(*stream, [bytes, &[]]).unwrap_or(0)),
            End::Null => Ok(bytes.len()),
            End::Disconnected => Ok(0),
        }
    }

    /// Ends the direction towards an end.
    fn finish(&mut self, to: &mut Side) {
        if let Some(resumable) = &mut to.resumable {
            return resumable.end();
        }
        match &to.end {
            End::Socket { socket, .. } => libc_socket::shutdown_write(socket),
            End::Stream(stream) => self.finish_stream(*stream),
            End::Null | End::Disconnected => {}
        }
    }
}
