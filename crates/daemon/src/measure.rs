//! What is measured of links: by the kernel's own counts where they are TCP, else by the answers to pings. A new link of which nobody
//! remembers a rate gets half a MiB that means nothing, once, so that there is one; then real traffic tells.

use std::os::fd::{AsFd as _, AsRawFd as _};

use madrigal_proto::mux::{Class, Mux, StreamId};
use madrigal_selector::route::Figures;
use madrigal_sys::tcp;

use crate::daemon::{Daemon, Holder, MILLISECOND, SECOND};
use crate::links::{Link, Stage, Up};
use crate::poll::Token;
use crate::wire::About;

/// How often links are looked at while something goes over them, and else.
const PACE: (u64, u64) = (200 * MILLISECOND, 30 * SECOND);
/// Bytes that measure the rate of a link, and those written at once.
const PROBE: usize = 512 << 10;
const PIECE: usize = 16 << 10;
/// A link that is no older, and has brought no more across, may be dialled anew.
const YOUNG: (u64, u64) = (10 * SECOND, 4096);
/// Why a link is given up early.
pub(crate) const VANISHED: &str = "long packets seem to vanish";
/// So many times in a row the kernel sent the same bytes.
const STUCK: u8 = 2;
/// Bytes after which the rate, and the part that was sent again, mean something.
const ENOUGH: u64 = 64 << 10;

/// What is known of a link that is up.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) figures: Figures,
    /// The stream that measures its rate, and what it has to carry yet.
    probe: Option<(StreamId, usize)>,
    probed: bool,
}

impl Link {
    /// Whether the kernel sends the same bytes again and again.
    pub(crate) fn is_stuck(&self) -> bool {
        tcp::info(self.channel.as_fd().as_raw_fd()).is_ok_and(|counts| counts.retransmits >= STUCK)
    }

    /// Looks at the kernel's counts. Whether long packets seem to vanish: short ones came across, and then nothing.
    fn measure(&mut self, now: u64) -> bool {
        let counts = tcp::info(self.channel.as_fd().as_raw_fd()).ok();
        let stuck = counts.is_some_and(|counts| counts.retransmits >= STUCK && counts.bytes_acked < YOUNG.1);
        self.measure_up(counts);
        stuck && self.dialled.is_some() && now.saturating_sub(self.since) < YOUNG.0
    }

    fn measure_up(&mut self, counts: Option<tcp::Info>) {
        let Stage::Up(up) = &mut self.stage else { return };
        let Measured { figures, .. } = &mut up.measured;
        let Some(counts) = counts else {
            figures.round_trip_us = up.mux.shortest_round_trip().map(|ns| ns / 1000);
            return;
        };
        figures.round_trip_us = Some(if counts.min_rtt == u32::MAX { counts.rtt } else { counts.min_rtt }.into());
        figures.mtu = Some(counts.pmtu).filter(|mtu| *mtu > 0);
        if counts.bytes_sent >= ENOUGH {
            let part = u128::from(counts.bytes_retrans) * 1_000_000 / u128::from(counts.bytes_sent);
            figures.again_ppm = Some(u32::try_from(part).unwrap_or(1_000_000).min(1_000_000));
        }
        // Of a few packets it says nothing.
        if counts.bytes_acked < ENOUGH {
            return;
        }
        let now = counts.delivery_rate.saturating_mul(8);
        let before = figures.rate.unwrap_or(0);
        // Where the program held back the rate says nothing but that so much is possible.
        let rate = if counts.rate_is_of_the_program() { before.max(now) } else { now.max(before - before / 50) };
        figures.rate = Some(rate).filter(|rate| *rate > 0);
    }
}

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
                Ok(crate::socket::Got::Bytes(_)) => {}
                Ok(crate::socket::Got::Nothing) => break,
                Ok(crate::socket::Got::End) => {
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
