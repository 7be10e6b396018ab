//! The traffic of links: reads, events of the multiplexer, writes.

use madrigal_adapters::contract::Lane;
use madrigal_proto::mux::{Event, Mux};

use crate::daemon::Daemon;
use crate::link::close::CLOSED;
use crate::link::{Link, Stage};
use crate::poll::Token;
use crate::socket::Recv;
use crate::streams::stream::StreamOwner;
use crate::units::MILLISECOND;
use crate::wire::{self, ResetCause};

/// Links that send are measured after this time.
const MEASURE_AFTER: u64 = 200 * MILLISECOND;
/// Reads in one pass.
const READS_PER_PASS: usize = 8;
/// A read shorter than this may have been the last one. What it gave is delivered before the next read.
const SMALL_READ: usize = 16 << 10;

impl Daemon {
    /// A link's descriptor changed.
    pub(crate) fn handle_link(&mut self, token: Token) {
        let mut buffer = std::mem::take(&mut self.link_buffer);
        let mut more = true;
        for _ in 0..READS_PER_PASS {
            more = self.read_once(token, &mut buffer);
            if !more {
                break;
            }
        }
        self.link_buffer = buffer;
        self.deliver_received(token);
        if more {
            self.runnable.push_back(token);
        }
        // There may be room to write.
        self.unflushed.insert(self.carried(token));
    }

    /// Reads once. Returns whether there may be more.
    fn read_once(&mut self, token: Token, buffer: &mut [u8]) -> bool {
        if !self.may_read(token) {
            return false;
        }
        let Some(link) = self.links.get_mut(&token) else { return false };
        let read = link.channel.read(buffer);
        let authenticated = if link.channel.take_handshake_done() { self.handshake_done(token) } else { Ok(()) };
        let count = match (read, authenticated) {
            (_, Err(why)) => Err(why),
            (Ok(Recv::Bytes(count)), _) => Ok(count),
            (Ok(Recv::WouldBlock), _) => return false,
            (Ok(Recv::End), _) => Err(CLOSED.to_owned()),
            (Err(broken), _) => Err(broken.to_string()),
        };
        match count {
            Ok(count) => match self.receive_bytes(token, buffer.get(..count).unwrap_or_default()) {
                Ok(()) if count < SMALL_READ || self.batch.is_full() => self.deliver_received(token),
                Ok(()) => {}
                Err(why) => {
                    self.deliver_received(token);
                    self.drop_link(token, &why);
                }
            },
            Err(why) => {
                self.deliver_received(token);
                self.connection_lost(token, &why);
            }
        }
        self.links.contains_key(&token)
    }

    /// Writes the batch to its socket, and handles the events of the multiplexer. Several reads share one call, since each write may wake a
    /// program.
    pub(crate) fn deliver_received(&mut self, token: Token) {
        let token = self.carried(token);
        let mut batch = std::mem::take(&mut self.batch);
        self.write_batch(&mut batch);
        self.batch = batch;
        self.handle_mux_events(token);
    }

    /// Takes bytes that came on a link.
    fn receive_bytes(&mut self, token: Token, bytes: &[u8]) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&token) else { return Ok(()) };
        let up = match &mut link.stage {
            Stage::Greeting(inbox) => {
                inbox.extend_from_slice(bytes);
                return self.handle_greeting(token);
            }
            Stage::Joined => {
                if let Some(joins) = link.joins {
                    self.receive_joined(joins, bytes);
                }
                return Ok(());
            }
            Stage::Up(up) => up,
        };
        // The peer may refuse our greeting.
        if std::mem::take(&mut up.just_greeted)
            && let Ok(Some((wire::REFUSED, body, _))) = wire::take(bytes, wire::LONGEST_HELLO)
        {
            return Err(format!("refused: {}", String::from_utf8_lossy(&body)));
        }
        let own = up.own_lane();
        self.receive_on(token, own, bytes)
    }

    /// Takes bytes that came for a link that is up, by one of its connections.
    pub(crate) fn receive_on(&mut self, token: Token, lane: Lane, bytes: &[u8]) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&token).filter(|link| link.up().is_some()) else { return Ok(()) };
        // Taken out, since delivery needs the other links.
        let Stage::Up(mut up) = std::mem::replace(&mut link.stage, Stage::Greeting(Vec::new())) else { return Ok(()) };
        let (mut batch, now) = (std::mem::take(&mut self.batch), self.now);
        let mut deliver = |stream, bytes: &[u8]| self.deliver((token, stream), bytes, &mut batch);
        let taken = up.receive(now, lane, bytes, &mut deliver);
        self.batch = batch;
        if let Some(link) = self.links.get_mut(&token) {
            link.stage = Stage::Up(up);
        }
        taken
    }

    /// Handles the events of a link's multiplexer.
    pub(crate) fn handle_mux_events(&mut self, token: Token) {
        while let Some(event) = self.links.get_mut(&token).and_then(Link::mux).and_then(Mux::event) {
            match event {
                Event::Opened { stream, class, about } => self.handle_open(token, (stream, class), &about),
                Event::Readable(stream) | Event::Writable(stream) => {
                    match self.streams.get(&(token, stream)).copied() {
                        Some(StreamOwner::Pipe(pipe)) => self.pump(pipe),
                        Some(StreamOwner::Call(call)) => self.handle_reply(call, (token, stream)),
                        Some(StreamOwner::Punch(punch)) => self.handle_punch_reply(punch, (token, stream)),
                        Some(StreamOwner::Migration(pipe)) => self.handle_resume_reply(pipe, (token, stream)),
                        Some(StreamOwner::Trial(trial)) => self.feed_trial(trial),
                        Some(StreamOwner::Discard) => self.service_discard(token, stream),
                        Some(StreamOwner::RouteUpdate) => self.handle_update(token, stream),
                        Some(StreamOwner::Renewal) => self.handle_renewal(token, stream),
                        Some(StreamOwner::Egress(_) | StreamOwner::Check(_)) | None => {}
                    }
                }
                Event::Reset { stream, code } => self.handle_reset((token, stream), ResetCause::from_code(code)),
            }
        }
    }

    /// Sends what there is to send, and handles the events that follow.
    pub(crate) fn flush_link(&mut self, token: Token) {
        match self.links.get(&token).map(|link| (&link.stage, link.joins)) {
            Some((Stage::Joined, Some((of, _)))) => return self.flush_striped(of),
            Some((Stage::Up(up), _)) if up.adapters.is_some() => return self.flush_striped(token),
            _ => {}
        }
        loop {
            let Some(link) = self.links.get_mut(&token) else { return };
            let room = link.channel.room();
            if let Stage::Up(up) = &mut link.stage
                && room > 0
                && up.mux.has_output()
            {
                up.mux.transmit(link.channel.out(), room);
                self.next_measurement = self.next_measurement.min(self.now + MEASURE_AFTER);
            }
            match link.channel.flush() {
                Ok(all) => {
                    let more = link.mux().is_some_and(|mux| mux.has_output());
                    self.handle_mux_events(token);
                    if !(all && more) {
                        return;
                    }
                }
                Err(broken) => return self.drop_link(token, &broken.to_string()),
            }
        }
    }
}
