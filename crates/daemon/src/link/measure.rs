//! Measures links. A new link whose rate is not on record carries half a MiB of padding once; after that the traffic itself is measured.

use madrigal_proto::mux::{Class, Mux, StreamId};
use madrigal_selector::route::Figures;

use crate::daemon::Daemon;
use crate::link::close::BLACK_HOLE;
use crate::link::trial::fill_with_noise;
use crate::link::{Link, Purpose, Stage, Up, YOUNG};
use crate::poll::Token;
use crate::socket::Recv;
use crate::streams::stream::StreamOwner;
use crate::units::{MILLISECOND, SECOND};
use crate::wire::StreamHeader;

/// The interval of measurements while links carry bytes.
const MEASURE_BUSY: u64 = 200 * MILLISECOND;
/// The interval of measurements while they are idle.
const MEASURE_IDLE: u64 = 30 * SECOND;
/// Bytes of padding that measure the rate of a link.
const PROBE_BYTES: usize = 512 << 10;
/// Bytes of one write of padding.
const PROBE_WRITE: usize = 16 << 10;

impl Daemon {
    /// Links carry bytes: they are measured soon.
    pub(crate) fn measure_soon(&mut self) {
        self.next_measurement = self.next_measurement.min(self.now + MEASURE_BUSY);
    }

    /// Measures all links, if it is time.
    pub(crate) fn measure(&mut self) {
        if self.next_measurement > self.now {
            return;
        }
        self.next_measurement = self.now + MEASURE_IDLE;
        let (mut measured, mut stuck) = (Vec::new(), Vec::new());
        for (token, link) in &mut self.links {
            if link.measure(self.now) {
                stuck.push(*token);
            }
            let method = link.method();
            let up = link.up().filter(|up| up.purpose == Purpose::Streams);
            measured.extend(up.map(|up| (up.peer, method, up.measured.figures, up.connections_wanted())));
        }
        for (host, method, figures, connections) in measured {
            self.save_figures(host, method, figures, connections);
        }
        for token in stuck {
            self.connection_lost(token, BLACK_HOLE);
        }
        self.measure_connections();
        self.make_urgent_links();
        let now = self.now;
        if self.links.values().any(|link| link.dialled.is_some() && now.saturating_sub(link.since) < YOUNG.0) {
            self.measure_soon();
        }
    }

    /// Measures a new link. Its rate is that of an earlier link, if there is one on record; else a probe measures it.
    pub(crate) fn measure_new(&mut self, token: Token) {
        let Some(link) = self.links.get_mut(&token) else { return };
        link.measure(self.now);
        let method = link.method();
        let Stage::Up(up) = &mut link.stage else { return };
        let peer = up.peer;
        let known = self.known_file.known.way(&self.grid.hosts[peer].name, method).and_then(|known| known.figures.rate);
        up.measured.figures.rate = known;
        let figures = up.measured.figures;
        // One end is enough: the one that dialled.
        if known.is_none() && link.dialled.is_some() {
            self.probe(token);
        }
        self.save_figures(peer, method, figures, None);
        self.measure_soon();
    }

    /// Opens a stream of padding.
    fn probe(&mut self, token: Token) {
        let header = StreamHeader::Discard.bytes();
        let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&token) else { return };
        if up.measured.probed {
            return;
        }
        up.measured.probed = true;
        let Ok(stream) = up.mux.open(Class::Data, &header) else { return };
        up.measured.probe = Some((stream, PROBE_BYTES));
        self.streams.insert((token, stream), StreamOwner::Discard);
        self.service_discard(token, stream);
    }

    /// A stream without an owner is readable or writable: what comes is discarded, and a probe goes on.
    pub(crate) fn service_discard(&mut self, token: Token, stream: StreamId) {
        let mut buffer = [0; 4096];
        loop {
            match self.read_stream((token, stream), &mut buffer) {
                Ok(Recv::Bytes(_)) => {}
                Ok(Recv::WouldBlock) => break,
                Ok(Recv::End) => {
                    self.streams.remove(&(token, stream));
                    return self.finish_stream((token, stream));
                }
                Err(_) => {
                    self.streams.remove(&(token, stream));
                    return;
                }
            }
        }
        let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&token) else { return };
        self.unflushed.insert(token);
        if let Some((probe, left)) = &mut up.measured.probe
            && *probe == stream
            && feed(&mut up.mux, stream, left)
        {
            up.measured.probe = None;
            let _ = up.mux.finish(stream);
        }
    }

    /// The figures of a link.
    pub(crate) fn figures(&self, token: Token) -> Figures {
        self.links.get(&token).and_then(Link::up).map_or_else(Figures::default, |up: &Up| up.measured.figures)
    }
}

/// Writes padding until the stream takes no more. Returns whether all is written.
fn feed(mux: &mut Mux, stream: StreamId, left: &mut usize) -> bool {
    let mut padding = [0; PROBE_WRITE];
    while *left > 0 {
        let piece = PROBE_WRITE.min(*left);
        fill_with_noise(*left as u64, &mut padding);
        match mux.write(stream, &padding[..piece]) {
            Ok(taken) => {
                *left -= taken;
                if taken < piece {
                    return false;
                }
            }
            Err(_) => *left = 0,
        }
    }
    true
}
