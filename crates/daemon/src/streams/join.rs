//! Pipes begin and end here.

use madrigal_proto::mux::Mux;

use crate::daemon::Daemon;
use crate::descriptor::Thing;
use crate::link::Link;
use crate::local::libc_socket;
use crate::poll::Token;
use crate::streams::origin::{Origin, Role};
use crate::streams::pipe::{End, Pipe, Side};
use crate::streams::record::Record;
use crate::streams::stream::{Holder, Stream};
use crate::wire::Gone;

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
                        libc_socket::reset_at_close(socket, true);
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

    /// One end is no more: the other hears of it.
    pub(crate) fn break_pipe(&mut self, token: Token, why: Gone) {
        if let Some(pipe) = self.pipes.remove(&token) {
            self.end_pipe(token, pipe, Some(why));
        }
    }

    pub(crate) fn end_pipe(&mut self, token: Token, pipe: Pipe, broken: Option<Gone>) {
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
                        libc_socket::reset_at_close(&socket, broken.is_some() && !over);
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

    /// The end of a pipe is to be told by the words that told of its beginning.
    pub(crate) fn record(&mut self, pipe: Token, line: &str) {
        let record = Record { line: line.to_owned(), since: self.now };
        match self.pipes.get_mut(&pipe) {
            Some(pipe) => pipe.record = Some(record),
            // It broke as it began.
            None => self.note(&record.told(self.now, [0, 0], true)),
        }
    }

    /// A pipe ends.
    pub(crate) fn note_end(&mut self, pipe: &Pipe, broken: bool) {
        if let Some(record) = &pipe.record {
            self.note(&record.told(self.now, pipe.carried(), broken && !pipe.is_over()));
        }
    }
}
