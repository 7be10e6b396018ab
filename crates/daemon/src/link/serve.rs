//! The traffic of links: reads, events of the multiplexer, writes.

use madrigal_proto::mux::{Event, Mux};

use crate::daemon::Daemon;
use crate::link::close::CLOSED;
use crate::link::{Link, Stage};
use crate::poll::Token;
use crate::socket::Got;
use crate::streams::stream::Holder;
use crate::units::MILLISECOND;
use crate::wire::{self, Gone};

/// What goes over links is looked at after this time.
const LOOK: u64 = 200 * MILLISECOND;
/// Reads in one pass.
const READS: usize = 8;
/// Less than this may be all there is: it is brought on before there is another look.
const FEW: usize = 16 << 10;

impl Daemon {
    /// Takes what came on a link.
    pub(crate) fn handle_link(&mut self, token: Token) {
        let mut buffer = std::mem::take(&mut self.scratch);
        let mut more = true;
        for _ in 0..READS {
            more = self.handle_once(token, &mut buffer);
            if !more {
                break;
            }
        }
        self.scratch = buffer;
        self.tell_all(token);
        if more {
            self.again.push_back(token);
        }
        // What could not be sent may be now.
        self.dirty.insert(token);
    }

    /// Reads once; whether there may be more.
    fn handle_once(&mut self, token: Token, buffer: &mut [u8]) -> bool {
        if !self.may_begin(token) {
            return false;
        }
        let Some(link) = self.links.get_mut(&token) else { return false };
        let got = link.channel.read(buffer);
        let met = if link.channel.is_newly_proven() { self.meet_peer(token) } else { Ok(()) };
        let count = match (got, met) {
            (_, Err(why)) => Err(why),
            (Ok(Got::Bytes(count)), _) => Ok(count),
            (Ok(Got::Nothing), _) => return false,
            (Ok(Got::End), _) => Err(CLOSED.to_owned()),
            (Err(broken), _) => Err(broken.to_string()),
        };
        let taken = count.and_then(|count| {
            self.take_bytes(token, buffer.get(..count).unwrap_or_default())?;
            Ok(count)
        });
        match taken {
            Ok(length) if length < FEW || self.batch.is_long() => self.tell_all(token),
            Ok(_) => {}
            Err(why) => {
                self.tell_all(token);
                self.drop_link(token, &why);
            }
        }
        self.links.contains_key(&token)
    }

    /// Brings on what came, and handles what the link's mux tells of it: once for several reads, for each may wake a program.
    fn tell_all(&mut self, token: Token) {
        let mut batch = std::mem::take(&mut self.batch);
        self.write_batch(&mut batch);
        self.batch = batch;
        self.listen_to(token);
    }

    fn take_bytes(&mut self, token: Token, bytes: &[u8]) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&token) else { return Ok(()) };
        let up = match &mut link.stage {
            Stage::Greeting(inbox) => {
                inbox.extend_from_slice(bytes);
                return self.greet(token);
            }
            Stage::Up(up) => up,
        };
        // We greeted last, and are not believed.
        if std::mem::take(&mut up.fresh)
            && let Ok(Some((wire::REFUSED, body, _))) = wire::take(bytes, wire::LONGEST_HELLO)
        {
            return Err(format!("refused: {}", String::from_utf8_lossy(&body)));
        }
        // The other links are needed meanwhile.
        let Stage::Up(mut up) = std::mem::replace(&mut link.stage, Stage::Greeting(Vec::new())) else { return Ok(()) };
        let (mut batch, now) = (std::mem::take(&mut self.batch), self.now);
        let mut deliver = |stream, bytes: &[u8]| self.deliver((token, stream), bytes, &mut batch);
        let taken = up.mux.receive_with(now, bytes, &mut deliver).map_err(|broken| broken.to_string());
        self.batch = batch;
        if let Some(link) = self.links.get_mut(&token) {
            link.stage = Stage::Up(up);
        }
        taken
    }

    /// Handles what a link's mux tells.
    fn listen_to(&mut self, token: Token) {
        while let Some(event) = self.links.get_mut(&token).and_then(Link::mux).and_then(Mux::event) {
            match event {
                Event::Opened { stream, about, .. } => self.take_order(token, stream, &about),
                Event::Readable(stream) | Event::Writable(stream) => {
                    match self.streams.get(&(token, stream)).copied() {
                        Some(Holder::Pipe(pipe)) => self.pump(pipe),
                        Some(Holder::Call(call)) => self.handle_verdict(call, token, stream),
                        Some(Holder::Move(pipe)) => self.handle_move(pipe, (token, stream)),
                        Some(Holder::Probe) => self.go_on_probing(token, stream),
                        Some(Holder::RouteUpdate) => self.handle_update(token, stream),
                        Some(Holder::Renewal) => self.handle_renewal(token, stream),
                        Some(Holder::Egress(_) | Holder::Check(_)) | None => {}
                    }
                }
                Event::Reset { stream, code } => self.stream_gone((token, stream), Gone::of(code)),
            }
        }
    }

    /// Sends what there is to send, and handles what that makes possible.
    pub(crate) fn tend(&mut self, token: Token) {
        loop {
            let Some(link) = self.links.get_mut(&token) else { return };
            let room = link.channel.room();
            if let Stage::Up(up) = &mut link.stage
                && room > 0
                && up.mux.has_output()
            {
                up.mux.transmit(link.channel.out(), room);
                self.next_look = self.next_look.min(self.now + LOOK);
            }
            match link.channel.flush() {
                Ok(all) => {
                    let more = link.mux().is_some_and(|mux| mux.has_output());
                    self.listen_to(token);
                    if !(all && more) {
                        return;
                    }
                }
                Err(broken) => return self.drop_link(token, &broken.to_string()),
            }
        }
    }
}
