//! How a multiplexed connection handles the peer's bytes.

use super::stream::{End, Stream};
use super::wire::{BadFrame, Class, Frame, MAX_BODY};
use super::{Broken, Event, Mux, StreamId, TOO_MANY, Taker};
use crate::frame::{self, Front};

/// Control frames that may wait; more wait only if a peer does not read the answers to its own frames.
const MOST_CONTROL: usize = 1 << 14;

impl Mux {
    /// Takes bytes of the connection, cut anywhere.
    pub fn receive(&mut self, now: u64, bytes: &[u8]) -> Result<(), Broken> {
        self.receive_with(now, bytes, &mut |_, _| 0)
    }

    /// Takes bytes of the connection, cut anywhere. If a stream has nothing to read, its new bytes go to `taker` first, which returns how
    /// many it takes at once; the rest waits to be read. [`Event::Readable`] follows either way.
    pub fn receive_with(&mut self, now: u64, mut bytes: &[u8], taker: Taker<'_>) -> Result<(), Broken> {
        self.received_at = self.received_at.max(now);
        while !self.partial.is_empty() && !bytes.is_empty() {
            let wanted = match frame::front(&self.partial, MAX_BODY)? {
                Front::More(wanted) => wanted.saturating_sub(self.partial.len()).max(1),
                _ => 0,
            };
            let (first, rest) = bytes.split_at(wanted.min(bytes.len()));
            self.partial.extend_from_slice(first);
            bytes = rest;
            let partial = std::mem::take(&mut self.partial);
            let taken = self.take_frame(now, &partial, taker)?;
            if taken == 0 {
                self.partial = partial;
            }
        }
        loop {
            match self.take_frame(now, bytes, taker)? {
                0 => break,
                taken => bytes = bytes.get(taken..).unwrap_or_default(),
            }
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    /// Takes the frame at the front of `bytes`; returns how many bytes it had, 0 where it is not whole.
    fn take_frame(&mut self, now: u64, bytes: &[u8], taker: Taker<'_>) -> Result<usize, Broken> {
        let front = frame::front(bytes, MAX_BODY)?;
        match front {
            Front::More(_) => Ok(0),
            Front::Whole { head, body } => {
                self.handle(now, Frame::read(head, body)?, taker)?;
                Ok(front.taken())
            }
            Front::Long { head, len } => {
                let kind = head.first().copied().unwrap_or(255);
                Err(BadFrame { kind, head: head.len(), body: usize::try_from(len).unwrap_or(usize::MAX) }.into())
            }
        }
    }

    fn handle(&mut self, now: u64, frame: Frame<'_>, taker: Taker<'_>) -> Result<(), Broken> {
        if self.control.len() > MOST_CONTROL {
            return Err(Broken::Flood);
        }
        match frame {
            Frame::Open { stream, class, about } => self.handle_open(stream, class, about),
            Frame::Data { stream, bytes } => self.handle_data(stream, bytes, taker),
            Frame::Finish { stream } => self.handle_finish(stream),
            Frame::Reset { stream, code } => {
                if self.known(stream)?.is_some() {
                    self.remove(stream);
                    self.events.push_back(Event::Reset { stream, code });
                }
                Ok(())
            }
            Frame::Credit { stream, bytes } => {
                if let Some(known) = self.known(stream)? {
                    known.credit = known.credit.saturating_add(bytes.into());
                    self.list(stream);
                }
                Ok(())
            }
            Frame::Ping { token } => {
                self.pong = Some(token);
                Ok(())
            }
            Frame::Pong { token } => {
                if self.asked == Some(token) {
                    self.asked = None;
                    let trip = now.saturating_sub(token);
                    self.round_trip = Some(trip);
                    self.shortest = Some(self.shortest.map_or(trip, |known| known.min(trip)));
                }
                Ok(())
            }
        }
    }

    /// The stream named by the peer; `None` if it is over here and the peer could not know.
    fn known(&mut self, id: StreamId) -> Result<Option<&mut Stream>, Broken> {
        let used = if self.is_peers(id) { id < self.peer_next } else { id < self.next };
        if used { Ok(self.streams.get_mut(&id)) } else { Err(Broken::Unknown(id)) }
    }

    fn handle_open(&mut self, id: StreamId, class: Class, about: &[u8]) -> Result<(), Broken> {
        if !self.is_peers(id) || id < self.peer_next {
            return Err(Broken::Unknown(id));
        }
        self.peer_next = id.checked_add(2).ok_or(Broken::Unknown(id))?;
        if self.peers >= self.limits.streams {
            self.enqueue(&Frame::Reset { stream: id, code: TOO_MANY });
            return Ok(());
        }
        self.peers += 1;
        self.streams.insert(id, Stream::new(class, self.limits.window.into(), self.received_at));
        self.events.push_back(Event::Opened { stream: id, class, about: about.to_vec() });
        Ok(())
    }

    fn handle_data(&mut self, id: StreamId, bytes: &[u8], taker: Taker<'_>) -> Result<(), Broken> {
        let Some(stream) = self.known(id)? else { return Ok(()) };
        if stream.in_end != End::Open {
            return Err(Broken::AfterEnd(id));
        }
        stream.granted = stream.granted.checked_sub(bytes.len() as u64).ok_or(Broken::Credit(id))?;
        if !stream.inbox.is_empty() {
            stream.inbox.extend(bytes);
            return Ok(());
        }
        let taken = taker(id, bytes).min(bytes.len());
        stream.inbox.extend(bytes.get(taken..).unwrap_or_default());
        self.was_read(id, taken);
        let event = Event::Readable(id);
        if self.events.back() != Some(&event) {
            self.events.push_back(event);
        }
        Ok(())
    }

    fn handle_finish(&mut self, id: StreamId) -> Result<(), Broken> {
        let Some(stream) = self.known(id)? else { return Ok(()) };
        if stream.in_end != End::Open {
            return Err(Broken::AfterEnd(id));
        }
        stream.in_end = End::Done;
        // Otherwise there is something to read, which was reported.
        if stream.inbox.is_empty() {
            self.events.push_back(Event::Readable(id));
        }
        Ok(())
    }
}
