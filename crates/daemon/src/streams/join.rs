//! Creates and ends pipes.

use madrigal_proto::mux::Mux;

use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::link::Link;
use crate::local::libc_socket;
use crate::poll::Token;
use crate::streams::origin::{Origin, Role};
use crate::streams::pipe::{End, Pipe, Side};
use crate::streams::record::Record;
use crate::streams::stream::{Stream, StreamOwner};
use crate::wire::ResetCause;

impl Daemon {
    /// Joins two ends by a pipe.
    pub(crate) fn join(&mut self, one: Side, other: Side) -> Token {
        self.join_as(one, other, None)
    }

    /// Joins two ends by a pipe. With an `origin` the end that is a stream becomes resumable.
    pub(crate) fn join_as(&mut self, mut one: Side, mut other: Side, origin: Option<Origin>) -> Token {
        let pipe = self.new_token();
        let (mut lost, mut valid) = (false, true);
        for side in [&mut one, &mut other] {
            match &side.end {
                End::Socket { socket, token, is_tcp } => {
                    if *is_tcp {
                        libc_socket::reset_at_close(socket, true);
                    }
                    self.descriptors.insert(*token, Descriptor::Socket(pipe));
                }
                End::Stream(stream) => {
                    lost |= !self.has_stream(*stream);
                    self.streams.insert(*stream, StreamOwner::Pipe(pipe));
                    valid &= origin.is_none() || side.make_resumable().is_ok();
                }
                End::Null | End::Disconnected => {}
            }
        }
        if let Some(Origin { id, role: Role::Target { .. }, .. }) = &origin {
            self.resumable_pipes.insert(id.clone(), pipe);
        }
        let cap = origin.as_ref().and_then(|origin| match origin.role {
            Role::Caller { host, port, .. } => self.grid.capped_by(host, port).map(str::to_owned),
            Role::Target { .. } => None,
        });
        self.pipes.insert(pipe, Pipe { sides: [one, other], origin, retained: 0, cap, record: None });
        match (valid, lost) {
            (false, _) => self.abort_pipe(pipe, ResetCause::Ended),
            // The stream was reset before it had this owner.
            (true, true) => self.handle_way_lost(pipe, ResetCause::LinkLost),
            (true, false) => self.pump(pipe),
        }
        pipe
    }

    fn has_stream(&mut self, (link, stream): Stream) -> bool {
        self.links.get_mut(&link).and_then(Link::mux).is_some_and(|mux: &mut Mux| mux.contains(stream))
    }

    /// Ends a pipe, one of whose ends failed: the other end is reset.
    pub(crate) fn abort_pipe(&mut self, token: Token, cause: ResetCause) {
        if let Some(pipe) = self.pipes.remove(&token) {
            self.end_pipe(token, pipe, Some(cause));
        }
    }

    /// Ends a pipe that is out of its table; `broken`: because an end failed.
    pub(crate) fn end_pipe(&mut self, token: Token, pipe: Pipe, broken: Option<ResetCause>) {
        self.retained = self.retained.saturating_sub(pipe.retained);
        self.log_end(&pipe, broken.is_some());
        self.cancel_migration(token);
        pipe.cap.iter().for_each(|rule| self.caps.forget(rule, token));
        if let Some(Origin { id, role: Role::Target { .. }, .. }) = &pipe.origin {
            self.resumable_pipes.remove(id);
        }
        let over = pipe.is_over();
        for side in pipe.sides {
            match (side.end, broken) {
                (End::Socket { socket, token, is_tcp }, _) => {
                    self.descriptors.remove(&token);
                    if is_tcp {
                        // Where both directions had ended, the peer sees no reset.
                        libc_socket::reset_at_close(&socket, broken.is_some() && !over);
                    }
                }
                (End::Stream(stream), Some(cause)) => self.reset_stream_as(stream, cause),
                (End::Stream(stream), None) if side.resumable.is_some() => {
                    self.finish_stream(stream);
                    // What the other end still sends, up to its end, is discarded.
                    self.streams.insert(stream, StreamOwner::Discard);
                    self.service_discard(stream.0, stream.1);
                }
                (End::Stream(stream), None) => drop(self.streams.remove(&stream)),
                (End::Null | End::Disconnected, _) => {}
            }
        }
    }

    /// Closes an end that is not joined.
    pub(crate) fn discard_end(&mut self, end: End) {
        match end {
            End::Socket { token, .. } => drop(self.descriptors.remove(&token)),
            End::Stream(stream) => self.reset_stream(stream),
            End::Null | End::Disconnected => {}
        }
    }

    /// Has the log repeat `line`, which it has of the beginning, when the pipe ends.
    pub(crate) fn record(&mut self, pipe: Token, line: &str) {
        let record = Record { line: line.to_owned(), since: self.now };
        match self.pipes.get_mut(&pipe) {
            Some(pipe) => pipe.record = Some(record),
            // The pipe has ended already.
            None => self.log_line(&record.describe(self.now, [0, 0], true)),
        }
    }

    fn log_end(&mut self, pipe: &Pipe, broken: bool) {
        if let Some(record) = &pipe.record {
            self.log_line(&record.describe(self.now, pipe.byte_counts(), broken && !pipe.is_over()));
        }
    }
}
