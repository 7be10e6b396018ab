//! Reads, writes and resets of streams, and what a reset means for the owner.

use madrigal_proto::mux::{Read, StreamId};
use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::link::Link;
use crate::poll::Token;
use crate::socket::Got;
use crate::streams::batch::Batch;
use crate::streams::pipe::Beyond;
use crate::streams::stream::Holder;
use crate::wire::{Gone, Verdict};

impl Daemon {
    /// Brings what came on a stream to where it goes, at once where that can be; how much of it was taken.
    pub(crate) fn deliver(&mut self, stream: (Token, StreamId), bytes: &[u8], batch: &mut Batch) -> usize {
        let Some(Holder::Pipe(token)) = self.streams.get(&stream).copied() else { return 0 };
        if batch.pipe != token {
            self.write_batch(batch);
            batch.pipe = token;
        }
        let Some(pipe) = self.pipes.get_mut(&token) else { return 0 };
        match pipe.beyond(stream) {
            Beyond::Socket => pipe.handle(stream, bytes, &mut batch.bytes),
            Beyond::Stream((link, to)) => {
                let Some(other) = self.links.get_mut(&link) else { return 0 };
                self.dirty.insert(link);
                let went = other.write_at_once(to, [bytes, &[]]);
                pipe.went(stream, went);
                went
            }
            Beyond::Later => 0,
        }
    }

    pub(crate) fn write_batch(&mut self, batch: &mut Batch) {
        if let Some(pipe) = self.pipes.get_mut(&batch.pipe).filter(|_| !batch.bytes.is_empty()) {
            pipe.bring(&batch.bytes);
        }
        batch.bytes.clear();
    }

    /// A stream is no more: of whoever has it.
    pub(crate) fn stream_gone(&mut self, stream: (Token, StreamId), why: Gone) {
        match self.streams.remove(&stream) {
            Some(Holder::Pipe(pipe)) => self.lose_way(pipe, why),
            Some(Holder::Call(call)) => self.ask_lost(call, stream),
            Some(Holder::Egress(egress)) => self.drop_egress(egress),
            Some(Holder::Move(pipe)) => self.way_failed(pipe, "the link broke"),
            Some(Holder::Check(check)) => drop(self.forget_check(check)),
            Some(Holder::Probe | Holder::RouteUpdate | Holder::Renewal) | None => {}
        }
    }

    /// Tells the other end what became of its order; unless it is connected, that is all it hears.
    pub(crate) fn tell(&mut self, (token, stream): (Token, StreamId), verdict: Verdict, text: &str) {
        let Some(mux) = self.links.get_mut(&token).and_then(Link::mux) else { return };
        // The first bytes of a stream: there is room.
        let _ = mux.write(stream, &verdict.bytes(text));
        if verdict != Verdict::Connected {
            let _ = mux.finish(stream);
            self.streams.remove(&(token, stream));
        }
        self.dirty.insert(token);
    }

    /// Ends a stream both ways.
    pub(crate) fn reset_stream(&mut self, stream: (Token, StreamId)) {
        self.reset_stream_as(stream, Gone::Ended);
    }

    /// Ends a stream both ways, and tells the other end why.
    pub(crate) fn reset_stream_as(&mut self, (token, stream): (Token, StreamId), why: Gone) {
        self.streams.remove(&(token, stream));
        if let Some(mux) = self.links.get_mut(&token).and_then(Link::mux) {
            let _ = mux.reset(stream, why.code());
            self.dirty.insert(token);
        }
    }

    /// Reads from a stream.
    pub(crate) fn read_stream(&mut self, (token, stream): (Token, StreamId), buffer: &mut [u8]) -> Result<Got, Errno> {
        let mux = self.links.get_mut(&token).and_then(Link::mux).ok_or(Errno::CONNRESET)?;
        let read = mux.read(stream, buffer).map_err(|_| Errno::CONNRESET)?;
        Ok(match read {
            Read::Bytes(count) => {
                // The other end may have to be given credit.
                self.dirty.insert(token);
                Got::Bytes(count)
            }
            Read::Nothing => Got::Nothing,
            Read::End => Got::End,
        })
    }

    /// Writes to a stream; how much it took.
    pub(crate) fn write_stream(&mut self, stream: (Token, StreamId), pieces: [&[u8]; 2]) -> Result<usize, Errno> {
        let link = self.links.get_mut(&stream.0).ok_or(Errno::CONNRESET)?;
        let mut taken = link.write_at_once(stream.1, pieces);
        let mux = link.mux().ok_or(Errno::CONNRESET)?;
        for (piece, before) in pieces.into_iter().zip([0, pieces[0].len()]) {
            if let Some(rest) =
                piece.get(taken.saturating_sub(before)..).filter(|rest| taken >= before && !rest.is_empty())
            {
                taken += mux.write(stream.1, rest).map_err(|_| Errno::CONNRESET)?;
            }
        }
        self.dirty.insert(stream.0);
        Ok(taken)
    }

    /// Ends the sending direction of a stream.
    pub(crate) fn finish_stream(&mut self, (token, stream): (Token, StreamId)) {
        if let Some(mux) = self.links.get_mut(&token).and_then(Link::mux) {
            let _ = mux.finish(stream);
            self.dirty.insert(token);
        }
    }
}
