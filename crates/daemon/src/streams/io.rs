//! Reads, writes and resets of streams, and what a reset means for the owner.

use madrigal_proto::mux::Read;
use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::link::Link;
use crate::socket::Recv;
use crate::streams::batch::Batch;
use crate::streams::pipe::FastPath;
use crate::streams::stream::{Stream, StreamOwner};
use crate::wire::{ConnectReply, ResetCause};

impl Daemon {
    /// Forwards bytes that came on a stream, if that can be done at once. Returns how many it took; the rest is read later.
    pub(crate) fn deliver(&mut self, stream: Stream, bytes: &[u8], batch: &mut Batch) -> usize {
        let Some(StreamOwner::Pipe(token)) = self.streams.get(&stream).copied() else { return 0 };
        if batch.pipe != token {
            self.write_batch(batch);
            batch.pipe = token;
        }
        let Some(pipe) = self.pipes.get_mut(&token) else { return 0 };
        match pipe.fast_path(stream) {
            FastPath::Socket => pipe.receive(stream, bytes, &mut batch.bytes),
            FastPath::Stream((link, to)) => {
                let Some(other) = self.links.get_mut(&link) else { return 0 };
                self.unflushed.insert(link);
                let count = other.write_at_once(to, [bytes, &[]]);
                pipe.count_forwarded(stream, count);
                count
            }
            FastPath::Blocked => 0,
        }
    }

    /// Writes a batch to its socket.
    pub(crate) fn write_batch(&mut self, batch: &mut Batch) {
        if let Some(pipe) = self.pipes.get_mut(&batch.pipe).filter(|_| !batch.bytes.is_empty()) {
            pipe.write_to_socket(&batch.bytes);
        }
        batch.bytes.clear();
    }

    /// A stream was reset, or its link ended.
    pub(crate) fn handle_reset(&mut self, stream: Stream, cause: ResetCause) {
        match self.streams.remove(&stream) {
            Some(StreamOwner::Pipe(pipe)) => self.handle_way_lost(pipe, cause),
            Some(StreamOwner::Call(call)) => self.attempt_lost(call, stream),
            Some(StreamOwner::Egress(egress)) => self.drop_egress(egress),
            Some(StreamOwner::Migration(pipe)) => self.resume_failed(pipe, "the link broke"),
            Some(StreamOwner::Punch(punch)) => self.punch_lost(punch),
            Some(StreamOwner::Trial(trial)) => self.trial_reset(trial, stream),
            Some(StreamOwner::Check(check)) => drop(self.remove_check(check)),
            Some(StreamOwner::Discard | StreamOwner::RouteUpdate | StreamOwner::Renewal) | None => {}
        }
    }

    /// Answers a connect request. Unless the stream is connected, it ends with the answer.
    pub(crate) fn send_reply(&mut self, (token, stream): Stream, reply: ConnectReply, text: &str) {
        let Some(mux) = self.links.get_mut(&token).and_then(Link::mux) else { return };
        // There is room for the first bytes of a stream.
        let _ = mux.write(stream, &reply.bytes(text));
        if reply != ConnectReply::Connected {
            let _ = mux.finish(stream);
            self.streams.remove(&(token, stream));
        }
        self.unflushed.insert(token);
    }

    /// Resets a stream for good.
    pub(crate) fn reset_stream(&mut self, stream: Stream) {
        self.reset_stream_as(stream, ResetCause::Ended);
    }

    /// Resets a stream, with a cause for the other end.
    pub(crate) fn reset_stream_as(&mut self, (token, stream): Stream, cause: ResetCause) {
        self.streams.remove(&(token, stream));
        if let Some(mux) = self.links.get_mut(&token).and_then(Link::mux) {
            let _ = mux.reset(stream, cause.code());
            self.unflushed.insert(token);
        }
    }

    /// Reads from a stream.
    pub(crate) fn read_stream(&mut self, (token, stream): Stream, buffer: &mut [u8]) -> Result<Recv, Errno> {
        let mux = self.links.get_mut(&token).and_then(Link::mux).ok_or(Errno::CONNRESET)?;
        let read = mux.read(stream, buffer).map_err(|_| Errno::CONNRESET)?;
        Ok(match read {
            Read::Bytes(count) => {
                // There may be credit to send.
                self.unflushed.insert(token);
                Recv::Bytes(count)
            }
            Read::Nothing => Recv::WouldBlock,
            Read::End => Recv::End,
        })
    }

    /// Writes to a stream. Returns how many bytes it took.
    pub(crate) fn write_stream(&mut self, stream: Stream, pieces: [&[u8]; 2]) -> Result<usize, Errno> {
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
        self.unflushed.insert(stream.0);
        Ok(taken)
    }

    /// Ends the sending direction of a stream.
    pub(crate) fn finish_stream(&mut self, (token, stream): Stream) {
        if let Some(mux) = self.links.get_mut(&token).and_then(Link::mux) {
            let _ = mux.finish(stream);
            self.unflushed.insert(token);
        }
    }
}
