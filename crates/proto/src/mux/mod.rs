//! Many streams over one connection: credits bound the memory of each, so that one that is not read holds up no other; what is urgent
//! goes first, what is bulk last, and all streams of a class get equal shares.
//!
//! ```text
//!   open write finish reset --> [ Mux ] --> transmit: bytes for the connection     control > urgent > data > bulk, by quanta
//!   events, read            <-- [     ] <-- receive:  bytes of the connection
//! ```
//! * Bytes and the time go in, bytes and a deadline come out: no I/O, no clock. Times are nanoseconds of any one clock.
//! * A stream may have [`Limits::window`] bytes unread; where they are read within some round trips (`TRIPS`, `LOADED`), it is the window
//!   that holds the sender back, and it grows, out of a budget of the connection. So all streams together never hold more than
//!   `streams x window + budget`.
//! * Whatever a peer sends, nothing here panics or grows beyond that; a peer that breaks the rules ends the connection ([`Broken`]).
//! * Numbers of streams are odd for those the dialling end opens, even for the other's, and never used twice.

mod handle;
mod limits;
mod ready;
mod stream;
pub mod wire;

use std::collections::{HashMap, VecDeque};

use crate::frame::{self, Nonsense};
use ready::Ready;
use stream::{End, Stream};
use wire::{BadFrame, Frame, MAX_ABOUT};

pub use limits::Limits;
pub use ready::BULK_SHARE;
pub use wire::{Class, StreamId};

/// Whoever takes what came to a stream; how much.
pub type Taker<'a> = &'a mut dyn FnMut(StreamId, &[u8]) -> usize;

/// The code of a reset that refuses a stream because there are too many.
pub const TOO_MANY: u32 = 1;

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The peer opened a stream.
    Opened {
        /// Its number.
        stream: StreamId,
        /// Its class.
        class: Class,
        /// What it is for.
        about: Vec<u8>,
    },
    /// Bytes, or the end, came to a stream that had nothing to read.
    Readable(StreamId),
    /// A stream that could not take all that was written can take more.
    Writable(StreamId),
    /// The peer ended a stream; it is gone.
    Reset {
        /// Which.
        stream: StreamId,
        /// Why.
        code: u32,
    },
}

/// What reading gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// Nothing more will come.
    End,
}

/// Whose frames they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The multiplexer's own.
    Control,
    /// A stream's.
    Stream(StreamId),
}

/// The stream does not exist: it is over, was reset, or never was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no stream {0}")]
pub struct Gone(pub StreamId);

/// Why no stream was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Its description is too long.
    #[error("{0} bytes to say what a stream is for; {MAX_ABOUT} are the most")]
    About(usize),
    /// All numbers have been used.
    #[error("no numbers for streams are left on this connection")]
    Numbers,
}

/// Why the connection cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// The peer's bytes are no frames.
    #[error("the peer sent no frames: {0}")]
    Nonsense(#[from] Nonsense),
    /// The peer sent a frame that is never allowed.
    #[error("the peer sent {0}")]
    Frame(#[from] BadFrame),
    /// The peer sent more than it had credit for.
    #[error("the peer sent more than it may on stream {0}")]
    Credit(StreamId),
    /// The peer named a stream that never was, or one of ours as a new one.
    #[error("the peer speaks of stream {0}, which never was")]
    Unknown(StreamId),
    /// The peer went on after it had finished.
    #[error("the peer sent on stream {0} after its end")]
    AfterEnd(StreamId),
    /// The peer makes us answer faster than it takes answers.
    #[error("the peer asks for more answers than it takes")]
    Flood,
    /// The peer does not answer.
    #[error("the peer was silent for too long")]
    Silent,
}

/// Bytes of a stream before the next one is served, the quantum of round robin: with what goes before them in one frame they fill a record
/// of TLS, so that whole records are whole frames.
pub const QUANTUM: usize = (16 << 10) - frame::PREFIX - 5;

/// Data read within this time counts as read at once, however short the round trip. A round trip measured on an idle link does not show how
/// long busy ends take to wake.
const PROMPT: u64 = 1_000_000;

/// If a whole window is read within so many of the shortest round trips, the window may hold the sender back. Bytes on their way wait in
/// queues and at both ends. Credit is given by halves, so a window that is too small takes up to three trips. Where several connections
/// carry the link and each loses packets, the bytes of the slowest come four or more trips late, and those of the others wait for them: by
/// 4 trips 32 connections carried no more than 16.
const TRIPS: u64 = 16;

/// The same in round trips on the busy link. A slow line that is full both ways takes twenty of its shortest ones to bring a credit, for it
/// waits behind all that was sent before: 13 of 20 Mbit/s came back from an echo server.
const LOADED: u64 = 4;

/// Bytes of the longest frame that is sent, but for its body.
const OVERHEAD: usize = frame::PREFIX + 9;

/// One end of a connection with many streams.
pub struct Mux {
    limits: Limits,
    streams: HashMap<StreamId, Stream>,
    /// The next number of ours, and the least that the peer may use.
    next: StreamId,
    peer_next: StreamId,
    peers: usize,
    /// What windows may still grow by.
    budget: u64,
    /// Frames that go before all others, as bytes.
    control: VecDeque<Vec<u8>>,
    /// Streams with credit to give.
    givers: VecDeque<StreamId>,
    /// Streams that can send, urgent ones and others, by round robin.
    ready: Ready,
    /// The last ping, to be answered.
    pong: Option<u64>,
    events: VecDeque<Event>,
    /// The front of a frame whose rest has not come.
    partial: Vec<u8>,
    received_at: u64,
    asked: Option<u64>,
    round_trip: Option<u64>,
    shortest: Option<u64>,
}

impl Mux {
    /// An end of a new connection; `dialled`: the end that dialled it.
    pub fn new(dialled: bool, limits: Limits, now: u64) -> Self {
        Self {
            limits,
            streams: HashMap::new(),
            next: if dialled { 1 } else { 2 },
            peer_next: if dialled { 2 } else { 1 },
            peers: 0,
            budget: limits.budget,
            control: VecDeque::new(),
            givers: VecDeque::new(),
            ready: Ready::default(),
            pong: None,
            events: VecDeque::new(),
            partial: Vec::new(),
            received_at: now,
            asked: None,
            round_trip: None,
            shortest: None,
        }
    }

    /// Opens a stream; it can be written at once. The peer gets `about` as its purpose.
    pub fn open(&mut self, class: Class, about: &[u8]) -> Result<StreamId, OpenError> {
        if about.len() > MAX_ABOUT {
            return Err(OpenError::About(about.len()));
        }
        let stream = self.next;
        self.next = stream.checked_add(2).ok_or(OpenError::Numbers)?;
        self.streams.insert(stream, Stream::new(class, self.limits.window.into(), self.received_at));
        self.enqueue(&Frame::Open { stream, class, about });
        Ok(stream)
    }

    /// Takes bytes to be sent; returns how many. When not all were taken, [`Event::Writable`] reports when to go on.
    pub fn write(&mut self, id: StreamId, bytes: &[u8]) -> Result<usize, Gone> {
        let stream = self.streams.get_mut(&id).filter(|stream| stream.out_end == End::Open).ok_or(Gone(id))?;
        let taken = bytes.len().min(self.limits.backlog.saturating_sub(stream.out.len()));
        stream.out.extend(bytes.get(..taken).unwrap_or_default());
        stream.write_waits = taken < bytes.len();
        self.list(id);
        Ok(taken)
    }

    /// Adds bytes of a stream to `out`, up to `room` with what goes before them, in whole frames, if nothing else waits to be sent: they
    /// are next, and need not wait themselves. Returns how many were taken; the rest is for [`Mux::write`].
    pub fn write_at_once(&mut self, id: StreamId, pieces: [&[u8]; 2], out: &mut Vec<u8>, room: usize) -> usize {
        if self.has_output() {
            return 0;
        }
        let Some(stream) = self.streams.get_mut(&id) else { return 0 };
        if stream.out_end != End::Open || !stream.out.is_empty() {
            return 0;
        }
        let (end, [mut first, mut second]) = (out.len() + room, pieces);
        let mut taken = 0;
        loop {
            let credit = usize::try_from(stream.credit).unwrap_or(usize::MAX);
            let fits = end.saturating_sub(out.len() + OVERHEAD).min(credit).min(QUANTUM);
            let count = fits.min(first.len() + second.len());
            if count == 0 {
                return taken;
            }
            let (now, later) = first.split_at(count.min(first.len()));
            let (then, last) = second.split_at(count - now.len());
            Frame::write_data(id, [now, then], out);
            stream.credit -= count as u64;
            (first, second, taken) = (later, last, taken + count);
        }
    }

    /// How many bytes a write would take now. When these are fewer than `least`, [`Event::Writable`] reports when to go on.
    pub fn room(&mut self, id: StreamId, least: usize) -> usize {
        let Some(stream) = self.streams.get_mut(&id) else { return 0 };
        let room = self.limits.backlog.saturating_sub(stream.out.len());
        stream.write_waits |= room < least.min(self.limits.backlog / 2);
        room
    }

    /// Ends the sending direction, behind what was written.
    pub fn finish(&mut self, id: StreamId) -> Result<(), Gone> {
        let stream = self.streams.get_mut(&id).ok_or(Gone(id))?;
        if stream.out_end == End::Open {
            stream.out_end = End::Wanted;
        }
        self.list(id);
        Ok(())
    }

    /// Ends a stream both ways, at once: what was not sent or read is dropped.
    pub fn reset(&mut self, id: StreamId, code: u32) -> Result<(), Gone> {
        self.remove(id).ok_or(Gone(id))?;
        self.enqueue(&Frame::Reset { stream: id, code });
        Ok(())
    }

    /// Reads what came.
    pub fn read(&mut self, id: StreamId, buffer: &mut [u8]) -> Result<Read, Gone> {
        let stream = self.streams.get_mut(&id).ok_or(Gone(id))?;
        let taken = stream.take(buffer);
        self.was_read(id, taken);
        let stream = self.streams.get_mut(&id).ok_or(Gone(id))?;
        let ended = taken == 0 && stream.inbox.is_empty() && stream.in_end == End::Done;
        stream.end_seen |= ended;
        if stream.is_over() {
            self.remove(id);
        }
        Ok(match taken {
            0 if ended => Read::End,
            0 => Read::Nothing,
            count => Read::Bytes(count),
        })
    }

    /// So many bytes were read: the peer may be given credit for them.
    fn was_read(&mut self, id: StreamId, count: usize) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Some(took) = stream.pace(self.received_at, count as u64) {
            self.widen(id, took);
        }
        if let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.should_give() && !stream.gives) {
            stream.gives = true;
            self.givers.push_back(id);
        }
    }

    /// What happened next.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether [`Mux::transmit`] has something.
    pub fn has_output(&self) -> bool {
        let is_quiet = self.control.is_empty() && self.givers.is_empty() && self.ready.is_empty();
        self.pong.is_some() || !is_quiet
    }

    /// Adds up to `room` bytes for the connection to `out`, in whole frames (one even where `room` is less). The less lies between
    /// here and the wire, the sooner what is urgent arrives.
    pub fn transmit(&mut self, out: &mut Vec<u8>, room: usize) {
        let end = out.len() + room.max(1);
        while out.len() < end && self.transmit_one(out, end - out.len()).is_some() {}
    }

    /// As [`Mux::transmit`], but frames of one source only; returns which.
    pub fn transmit_one(&mut self, out: &mut Vec<u8>, room: usize) -> Option<Source> {
        if let Some(token) = self.pong.take() {
            Frame::Pong { token }.write(out);
        } else if let Some(frame) = self.control.pop_front() {
            out.extend_from_slice(&frame);
        } else if let Some(id) = self.givers.pop_front() {
            self.give(id, out);
        } else {
            let id = self.ready.pop()?;
            self.send(id, room.saturating_sub(OVERHEAD).max(1), out);
            return Some(Source::Stream(id));
        }
        Some(Source::Control)
    }

    /// When [`Mux::handle_time`] is due.
    pub fn deadline(&self) -> u64 {
        match self.unanswered() {
            Some(at) => at.saturating_add(self.limits.patience),
            None => self.received_at.saturating_add(self.limits.idle),
        }
    }

    /// Sends a silent peer a ping, or gives up.
    pub fn handle_time(&mut self, now: u64) -> Result<(), Broken> {
        match self.unanswered() {
            _ if now < self.deadline() => Ok(()),
            Some(_) => Err(Broken::Silent),
            None => {
                self.ping(now);
                Ok(())
            }
        }
    }

    /// When the last ping was sent, if the peer has sent nothing at all since.
    fn unanswered(&self) -> Option<u64> {
        self.asked.filter(|at| self.received_at <= *at)
    }

    /// Sends the peer a ping: its answer measures the round trip and shows that it lives.
    pub fn ping(&mut self, now: u64) {
        self.asked = Some(now);
        self.enqueue(&Frame::Ping { token: now });
    }

    /// The last round trip measured, in nanoseconds; with what waits in between.
    pub fn round_trip(&self) -> Option<u64> {
        self.round_trip
    }

    /// The shortest round trip measured, in nanoseconds.
    pub fn shortest_round_trip(&self) -> Option<u64> {
        self.shortest
    }

    /// Bytes held for all streams: unsent and unread.
    pub fn held(&self) -> u64 {
        self.streams.values().map(|stream| (stream.out.len() + stream.inbox.len()) as u64).sum()
    }

    /// Whether there is such a stream.
    pub fn contains(&self, id: StreamId) -> bool {
        self.streams.contains_key(&id)
    }

    /// How many streams there are.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    fn enqueue(&mut self, frame: &Frame<'_>) {
        let mut bytes = Vec::new();
        frame.write(&mut bytes);
        self.control.push_back(bytes);
    }

    /// Puts a stream in the queue if it can send.
    fn list(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.listed && stream.can_send()) {
            stream.listed = true;
            self.ready.push(stream.class, id);
        }
    }

    /// Takes a stream out; its number stays used.
    fn remove(&mut self, id: StreamId) -> Option<Stream> {
        let stream = self.streams.remove(&id)?;
        self.budget += stream.window - u64::from(self.limits.window);
        self.peers -= usize::from(self.is_peers(id));
        Some(stream)
    }

    fn is_peers(&self, id: StreamId) -> bool {
        id % 2 == self.peer_next % 2
    }

    /// A whole window was read in the time `took`: where that is short, the window is what holds the peer back.
    fn widen(&mut self, id: StreamId, took: u64) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.window < self.limits.widest.into()) else {
            return;
        };
        let idle = self.shortest.map_or(0, |trip| trip.saturating_mul(TRIPS).max(PROMPT));
        let loaded = self.round_trip.map_or(0, |trip| trip.saturating_mul(LOADED));
        let prompt = idle.max(loaded);
        if took < prompt {
            let times = if took < prompt / 2 { 4 } else { 2 };
            let wider = (stream.window * times).min(self.limits.widest.into());
            let growth = (wider - stream.window).min(self.budget);
            stream.window += growth;
            self.budget -= growth;
        } else if self.asked.is_none() {
            // The answer waits where credit does, so that the next window is judged by the link as it is now.
            self.ping(self.received_at);
        }
    }

    fn give(&mut self, id: StreamId, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.gives = false;
        let bytes = u32::try_from(stream.to_give()).unwrap_or(u32::MAX);
        if bytes > 0 {
            stream.granted += u64::from(bytes);
            Frame::Credit { stream: id, bytes }.write(out);
        }
    }

    /// Serves a stream: up to [`QUANTUM`] bytes, in several frames where there is little room, and then it stands at the end of the line.
    fn send(&mut self, id: StreamId, room: usize, out: &mut Vec<u8>) {
        let backlog = self.limits.backlog;
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.listed = false;
        let credit = usize::try_from(stream.credit).unwrap_or(usize::MAX);
        let count = stream.out.len().min(credit).min(room).min(QUANTUM - stream.used);
        if count > 0 {
            if stream.out.as_slices().0.len() < count {
                stream.out.make_contiguous();
            }
            let bytes = stream.out.as_slices().0.get(..count).unwrap_or_default();
            Frame::Data { stream: id, bytes }.write(out);
            stream.out.drain(..count);
            stream.credit -= count as u64;
        }
        if stream.out.is_empty() && stream.out_end == End::Wanted {
            stream.out_end = End::Done;
            Frame::Finish { stream: id }.write(out);
        }
        // Reported when half is free, so that few reports make much room.
        if stream.write_waits && stream.out.len() <= backlog / 2 {
            stream.write_waits = false;
            self.events.push_back(Event::Writable(id));
        }
        stream.used += count;
        if stream.used < QUANTUM && stream.can_send() {
            stream.listed = true;
            return self.ready.push_front(stream.class, id);
        }
        stream.used = 0;
        if stream.is_over() {
            self.remove(id);
        }
        self.list(id);
    }
}

#[cfg(test)]
mod tests;
