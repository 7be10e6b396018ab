//! What lies between the multiplexer of a link and its connections: compression, several connections as one, and encryption above these.
//!
//! ```text
//!   Mux --> Compressed (adoc) --> Enciphered (tls above stripe) --> Striped (stripe) --> a channel for each connection (tls/tcp, or tcp)
//! ```
//! A link of neither has none of this: its multiplexer writes to its only channel.

use madrigal_adapters::contract::{Lane, ONLY};
use madrigal_proto::mux::{Mux, Taker};

use crate::link::compressed::Compressed;
use crate::link::enciphered::Enciphered;
use crate::link::striped::Striped;
use crate::poll::Token;

/// The adapters of a link, one of them at least.
pub(crate) struct Adapters {
    pub(crate) compressed: Option<Compressed>,
    /// Only above several connections; that of a single one is its channel's.
    pub(crate) enciphered: Option<Enciphered>,
    pub(crate) striped: Option<Striped>,
}

impl Adapters {
    /// All connections that carry the link; `own` is the token of its own one.
    pub(crate) fn connections(&self, own: Token) -> Vec<(Lane, Token)> {
        self.striped.as_ref().map_or_else(|| vec![(ONLY, own)], |striped| striped.connections(own))
    }

    /// The number of the link's own connection.
    pub(crate) fn own(&self) -> Lane {
        self.striped.as_ref().map_or(ONLY, Striped::own)
    }

    /// When [`Self::handle_time`] is due.
    pub(crate) fn deadline(&self) -> u64 {
        self.striped.as_ref().map_or(u64::MAX, Striped::deadline)
    }

    /// The time has come, or any other.
    pub(crate) fn handle_time(&mut self, now: u64) {
        if let Some(striped) = &mut self.striped {
            striped.handle_time(now);
        }
    }

    /// Bits a second that its connections carry together, where there are several.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.striped.as_ref().filter(|striped| striped.further() > 0).map(Striped::rate).filter(|rate| *rate > 0)
    }

    /// The network takes so many bits a second.
    pub(crate) fn set_rate(&mut self, rate: u64) {
        if let Some(compressed) = &mut self.compressed {
            compressed.set_rate(rate);
        }
    }

    /// Takes bytes that came by a connection; frames go to the multiplexer.
    pub(crate) fn receive(
        &mut self,
        now: u64,
        lane: Lane,
        bytes: &[u8],
        mux: &mut Mux,
        taker: Taker<'_>,
    ) -> Result<(), String> {
        let Self { compressed, enciphered, striped } = self;
        let mut clear = |bytes: &[u8]| match compressed {
            Some(compressed) => compressed.receive(now, bytes, mux, taker),
            None => mux.receive_with(now, bytes, taker).map_err(|broken| broken.to_string()),
        };
        let mut deliver = |bytes: &[u8]| match enciphered {
            Some(enciphered) => enciphered.receive(now, bytes, &mut clear),
            None => clear(bytes),
        };
        match striped {
            Some(striped) => striped.receive(now, lane, bytes, &mut deliver),
            None => deliver(bytes),
        }
    }

    /// Moves what the multiplexer has to send to the connections' queue, if there are several, as far as there is room. Returns whether
    /// that was anything.
    pub(crate) fn take_from(&mut self, now: u64, mux: &mut Mux) -> bool {
        let Self { compressed, enciphered, striped } = self;
        let Some(striped) = striped else { return false };
        striped.take_from(source(now, compressed, enciphered, mux))
    }

    /// Adds what goes by a connection to `out`, up to `room` bytes.
    pub(crate) fn transmit(&mut self, now: u64, lane: Lane, mux: &mut Mux, room: usize, out: &mut Vec<u8>) {
        let Self { compressed, enciphered, striped } = self;
        let mut source = source(now, compressed, enciphered, mux);
        match striped {
            Some(striped) => striped.transmit(now, lane, room, out, &mut source),
            None => source(out, room),
        }
    }
}

/// What the adapters above the connections make of what the multiplexer has to send.
fn source<'a>(
    now: u64,
    compressed: &'a mut Option<Compressed>,
    enciphered: &'a mut Option<Enciphered>,
    mux: &'a mut Mux,
) -> impl FnMut(&mut Vec<u8>, usize) + use<'a> {
    move |out, room| {
        let mut clear = |out: &mut Vec<u8>, room| match compressed {
            Some(compressed) => compressed.transmit(now, mux, room, out),
            None => mux.transmit(out, room),
        };
        match enciphered {
            Some(enciphered) => enciphered.transmit(now, room, out, &mut clear),
            None => clear(out, room),
        }
    }
}
