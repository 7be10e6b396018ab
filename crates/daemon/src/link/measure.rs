//! Measures links. A new link whose rate is not on record carries half a MiB of padding once; after that the traffic itself is measured.

use madrigal_proto::mux::{Class, Mux, StreamId};
use madrigal_selector::route::Figures;

use crate::daemon::Daemon;
use crate::link::close::VANISHED;
use crate::link::{Link, Stage, Up, YOUNG};
use crate::poll::Token;
use crate::socket::Got;
use crate::streams::stream::Holder;
use crate::units::{MILLISECOND, SECOND};
use crate::wire::About;

/// How often links are looked at while something goes over them, and else.
const PACE: (u64, u64) = (200 * MILLISECOND, 30 * SECOND);
/// Bytes that measure the rate of a link, and those written at once.
const PROBE: usize = 512 << 10;
const PIECE: usize = 16 << 10;

impl Daemon {
    /// Something goes over links: they are looked at soon.
    pub(crate) fn measure_soon(&mut self) {
        self.next_look = self.next_look.min(self.now + PACE.0);
    }

    /// Looks at all links that have to be.
    pub(crate) fn measure(&mut self) {
        if self.next_look > self.now {
            return;
        }
        self.next_look = self.now + PACE.1;
        let (mut seen, mut stuck) = (Vec::new(), Vec::new());
        for (token, link) in &mut self.links {
            if link.measure(self.now) {
                stuck.push(*token);
            }
            let method = link.method();
            seen.extend(link.up().map(|up| (up.peer, method, up.measured.figures)));
        }
        for (host, method, figures) in seen {
            self.remember(host, method, figures);
        }
        for token in stuck {
            self.drop_link(token, VANISHED);
        }
        let now = self.now;
        if self.links.values().any(|link| link.dialled.is_some() && now.saturating_sub(link.since) < YOUNG.0) {
            self.measure_soon();
        }
    }

    /// A link came up: looks at it, with what is remembered of the way; and measures its rate if nobody knows that.
    pub(crate) fn measure_new(&mut self, token: Token) {
        let Some(link) = self.links.get_mut(&token) else { return };
        link.measure(self.now);
        let method = link.method();
        let Stage::Up(up) = &mut link.stage else { return };
        let peer = up.peer;
        let known = self.memory.known.way(&self.grid.hosts[peer].name, method).and_then(|known| known.figures.rate);
        up.measured.figures.rate = known;
        let figures = up.measured.figures;
        // One of the two ends is enough: the one that dialled.
        if known.is_none() && link.dialled.is_some() {
            self.probe(token);
        }
        self.remember(peer, method, figures);
        self.measure_soon();
    }

    fn probe(&mut self, token: Token) {
        let about = About::Discard.bytes();
        let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&token) else { return };
        if up.measured.probed {
            return;
        }
        up.measured.probed = true;
        let Ok(stream) = up.mux.open(Class::Data, &about) else { return };
        up.measured.probe = Some((stream, PROBE));
        self.streams.insert((token, stream), Holder::Probe);
        self.go_on_probing(token, stream);
    }

    /// A stream that carries nothing of meaning can carry more, or has something to read, or its end.
    pub(crate) fn go_on_probing(&mut self, token: Token, stream: StreamId) {
        let mut buffer = [0; 4096];
        loop {
            match self.read_stream((token, stream), &mut buffer) {
                Ok(Got::Bytes(_)) => {}
                Ok(Got::Nothing) => break,
                Ok(Got::End) => {
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
        self.dirty.insert(token);
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

/// Writes until the stream takes no more; whether all is written.
fn feed(mux: &mut Mux, stream: StreamId, left: &mut usize) -> bool {
    while *left > 0 {
        let piece = PIECE.min(*left);
        match mux.write(stream, &[0; PIECE][..piece]) {
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
