//! Adaptive compression: blocks of a link become shorter where that makes the link faster, and go as they are where it does not.
//!
//! ```text
//!   write --> [ up to 128 KiB ] --> raw, lz4, or zstd of the level that is fastest here --> transmit
//!   front <-- [ block ] <-- decoded, never longer than its header states <-- receive
//! ```
//! * Nothing waits for more: what is there when bytes are requested is a block. Less than 512 bytes go as they are.
//! * The speeds of the network, this end and the other end decide (`choose.rs`). The owner of a clock reports how long calls took
//!   ([`Adapter::took`]) and how fast the network takes bytes ([`Adapter::set_rate`]); until then nothing is compressed.
//! * What cannot be compressed is found by a sample of 4 KiB of each block, then ever more rarely; for each source by itself
//!   ([`Adoc::switch`]).
//! * [`Adoc::secret`]: nothing is compressed, for the length of a compressed block reveals its content.

mod choose;
mod codec;
mod wire;

use choose::{Chooser, TRIAL, speed};
use codec::{Decoder, Encoder};
use wire::{HEADER, Header, LONGEST};

pub use codec::Codec;

use crate::contract::{Adapter, Broken, Lane};

/// Bytes of a block, if there are so many.
pub const BLOCK: usize = 128 << 10;
/// Bytes that may wait to become a block.
const BACKLOG: usize = 2 * BLOCK;
/// Fewer bytes than this are not compressed, nor is the time measured of fewer than that.
const SMALL: (usize, usize) = (512, TRIAL);
/// How much of a block is compressed as a sample, to see whether it can be compressed; of blocks that are not shorter than twice that.
const SAMPLE: usize = 4 << 10;
/// A speed is reported to the other end if it differs from the last report by more than a part of so many.
const DIFFERENT: u64 = 8;

/// Sources whose compressibility is remembered.
const SOURCES: usize = 16;

/// One end of a compressed link.
pub struct Adoc {
    /// Of the bytes that are written now; none where nothing is compressed.
    chooser: Option<Chooser>,
    source: u32,
    /// Of other sources, the one that wrote last at the end.
    others: Vec<(u32, Chooser)>,
    encoder: Encoder,
    decoder: Decoder,
    /// What was written; from `begun` on it has not become a block.
    unsent: Vec<u8>,
    begun: usize,
    /// A block to be sent, from `sent` on.
    block: Vec<u8>,
    sent: usize,
    ended: bool,
    end_sent: bool,
    /// What the call that [`Adapter::took`] is about did.
    did: Option<Did>,
    /// How fast this end decompresses each codec that came.
    speeds: Vec<Speed>,
    /// A part of a header or of an encoded block.
    partial: Vec<u8>,
    state: Reads,
    /// What can be read, from `read` on.
    inbox: Vec<u8>,
    read: usize,
    counts: Counts,
}

/// How fast this end decompresses a codec, bytes a second; and what was reported to the other end of that, which waits for it.
struct Speed {
    codec: Codec,
    rate: u64,
    reported: Option<u64>,
}

#[derive(Clone, Copy)]
enum Did {
    Encode(Codec, usize),
    Decode(Codec, usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    Header,
    /// So many bytes of a raw block are to come.
    Raw(usize),
    Encoded {
        codec: Codec,
        raw: usize,
        encoded: usize,
    },
    End,
}

/// What went out.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Bytes of the link, and what they became, headers included.
    pub raw: u64,
    /// See `raw`.
    pub encoded: u64,
    /// Blocks, and how many of them went as they are.
    pub blocks: u64,
    /// See `blocks`.
    pub raw_blocks: u64,
}

impl Default for Adoc {
    fn default() -> Self {
        Self::new()
    }
}

impl Adoc {
    /// An end of a new link.
    pub fn new() -> Self {
        Self::with(Some(Chooser::new()))
    }

    /// An end that compresses nothing, and understands the other one whatever that does.
    pub fn secret() -> Self {
        Self::with(None)
    }

    fn with(chooser: Option<Chooser>) -> Self {
        Self {
            chooser,
            source: 0,
            others: Vec::new(),
            encoder: Encoder::default(),
            decoder: Decoder::default(),
            unsent: Vec::new(),
            begun: 0,
            block: Vec::new(),
            sent: 0,
            ended: false,
            end_sent: false,
            did: None,
            speeds: Vec::new(),
            partial: Vec::new(),
            state: Reads::Header,
            inbox: Vec::new(),
            read: 0,
            counts: Counts::default(),
        }
    }

    /// What is written from here on is of another source: the compressibility of one source shows little of another's. Call it while
    /// nothing waits ([`Adoc::is_empty`]).
    pub fn switch(&mut self, source: u32) {
        if source == self.source {
            return;
        }
        let Some(before) = self.chooser.take() else { return };
        let known = self.others.iter().position(|(of, _)| *of == source).map(|at| self.others.remove(at).1);
        self.chooser = Some(known.unwrap_or_else(|| before.for_other_data()));
        if self.others.len() == SOURCES {
            self.others.remove(0);
        }
        self.others.push((std::mem::replace(&mut self.source, source), before));
    }

    fn choosers(&mut self) -> impl Iterator<Item = &mut Chooser> {
        self.chooser.iter_mut().chain(self.others.iter_mut().map(|(_, chooser)| chooser))
    }

    /// Whether nothing waits to be sent of what was written.
    pub fn is_empty(&self) -> bool {
        self.begun == self.unsent.len() && self.sent == self.block.len()
    }

    /// What went out so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Makes the next thing to be sent; whether there is one.
    fn begin(&mut self) -> bool {
        self.block.clear();
        self.sent = 0;
        if let Some((codec, rate)) = self.report() {
            let kib = u32::try_from(rate >> 10).unwrap_or(u32::MAX).max(1);
            self.block.extend_from_slice(&Header::Speed { codec, kib }.bytes());
        }
        if self.begun < self.unsent.len() {
            self.encode();
        } else if self.ended && !self.end_sent {
            self.end_sent = true;
            self.block.extend_from_slice(&Header::End.bytes());
        }
        if self.begun == self.unsent.len() {
            self.unsent.clear();
            self.begun = 0;
        }
        !self.block.is_empty()
    }

    /// A speed that the other end does not know.
    fn report(&mut self) -> Option<(Codec, u64)> {
        let is_same = |speed: &Speed| speed.reported.is_some_and(|was| was.abs_diff(speed.rate) <= was / DIFFERENT);
        let speed = self.speeds.iter_mut().find(|speed| !is_same(speed))?;
        speed.reported = Some(speed.rate);
        Some((speed.codec, speed.rate))
    }

    /// Decompressing a block took so many nanoseconds.
    fn decompressing_took(&mut self, codec: Codec, raw: usize, time: u64) {
        let seen = speed(raw, time);
        if let Some(known) = self.speeds.iter_mut().find(|known| known.codec == codec) {
            known.rate = known.rate / 2 + seen / 2;
        } else {
            // There are no more of them than codecs.
            self.speeds.push(Speed { codec, rate: seen, reported: None });
        }
    }

    /// Makes a block of what was written.
    fn encode(&mut self) {
        let rest = self.unsent.get(self.begun..).unwrap_or_default();
        let mut piece = rest.get(..rest.len().min(BLOCK)).unwrap_or_default();
        let chooser = self.chooser.as_mut().filter(|_| piece.len() >= SMALL.0);
        let mut codec = Codec::Raw;
        if let Some(chooser) = chooser {
            let (chosen, is_new) = chooser.choose();
            codec = chosen;
            if is_new {
                piece = piece.get(..piece.len().min(TRIAL)).unwrap_or_default();
            }
            // From the middle: the beginning of a file is like no other part of it.
            let middle = piece.get(piece.len() / 2..).and_then(|half| half.get(..SAMPLE));
            if codec != Codec::Raw
                && let Some(middle) = middle
                && !chooser.sampled(self.encoder.sample(middle))
            {
                codec = Codec::Raw;
            }
        }
        let encoded = self.encoder.encode(codec, piece);
        let (sent_as, bytes) = encoded.map_or((Codec::Raw, piece), |bytes| (codec, bytes));
        self.block.extend_from_slice(&Header::Block { codec: sent_as, raw: piece.len(), encoded: bytes.len() }.bytes());
        self.block.extend_from_slice(bytes);
        if let Some(chooser) = self.chooser.as_mut().filter(|_| piece.len() >= SMALL.1) {
            chooser.encoded(codec, (piece.len(), bytes.len()), sent_as == codec);
            self.did = (codec != Codec::Raw).then_some(Did::Encode(codec, piece.len()));
        }
        self.counts.raw += piece.len() as u64;
        self.counts.encoded += (HEADER + bytes.len()) as u64;
        self.counts.blocks += 1;
        self.counts.raw_blocks += u64::from(sent_as == Codec::Raw);
        self.begun += piece.len();
    }

    /// Takes the front of what came; how much. 0 where nothing can be taken until more was read.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        match self.state {
            Reads::Header => {
                let count = self.fill(HEADER, bytes);
                let Ok(header) = <[u8; HEADER]>::try_from(&self.partial[..]) else { return Ok(count) };
                self.partial.clear();
                self.state = match Header::read(header)? {
                    Header::Block { codec: Codec::Raw, raw, .. } => Reads::Raw(raw),
                    Header::Block { codec, raw, encoded } => Reads::Encoded { codec, raw, encoded },
                    Header::End => Reads::End,
                    Header::Speed { codec, kib } => {
                        self.choosers().for_each(|chooser| chooser.decompresses(codec, u64::from(kib) << 10));
                        Reads::Header
                    }
                };
                Ok(count)
            }
            Reads::Raw(left) => {
                let count = left.min(bytes.len()).min(LONGEST.saturating_sub(self.unread()));
                self.make_room();
                self.inbox.extend_from_slice(bytes.get(..count).unwrap_or_default());
                self.state = if count == left { Reads::Header } else { Reads::Raw(left - count) };
                Ok(count)
            }
            // What is not read is in the way: together with it there might be more than may be held.
            Reads::Encoded { .. } if self.unread() > 0 => Ok(0),
            Reads::Encoded { codec, raw, encoded } => {
                let count = self.fill(encoded, bytes);
                if self.partial.len() == encoded {
                    self.decode(codec, raw)?;
                    self.state = Reads::Header;
                }
                Ok(count)
            }
            Reads::End => {
                Err(Broken::Header { adapter: "adoc", kind: bytes.first().copied().unwrap_or(0), first: 0, second: 0 })
            }
        }
    }

    fn decode(&mut self, codec: Codec, raw: usize) -> Result<(), Broken> {
        self.inbox.clear();
        self.read = 0;
        self.inbox.resize(raw, 0);
        let decoded = self.decoder.decode(codec, &self.partial, &mut self.inbox);
        self.partial.clear();
        if raw >= SMALL.1 {
            self.did = Some(Did::Decode(codec, raw));
        }
        decoded.map_err(|why| {
            self.inbox.clear();
            Broken::Block { kind: wire::kind(codec), raw, why }
        })
    }

    /// Adds to what came in part, up to that length.
    fn fill(&mut self, length: usize, bytes: &[u8]) -> usize {
        let count = length.saturating_sub(self.partial.len()).min(bytes.len());
        self.partial.extend_from_slice(bytes.get(..count).unwrap_or_default());
        count
    }

    fn unread(&self) -> usize {
        self.inbox.len() - self.read
    }

    /// What was read makes room for more.
    fn make_room(&mut self) {
        if self.read > 0 && (self.read == self.inbox.len() || self.read >= BLOCK) {
            self.inbox.drain(..self.read);
            self.read = 0;
        }
    }
}

impl Adapter for Adoc {
    fn room(&self) -> usize {
        if self.ended { 0 } else { BACKLOG.saturating_sub(self.unsent.len() - self.begun) }
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room());
        self.unsent.drain(..self.begun);
        self.begun = 0;
        self.unsent.extend_from_slice(bytes.get(..count).unwrap_or_default());
        count
    }

    fn finish(&mut self) {
        self.ended = true;
    }

    fn is_flushed(&self) -> bool {
        self.is_empty() && (self.end_sent || !self.ended)
    }

    fn set_rate(&mut self, rate: u64) {
        self.choosers().for_each(|chooser| chooser.set_network(rate));
    }

    fn took(&mut self, time: u64) {
        match self.did.take() {
            Some(Did::Encode(codec, raw)) => {
                if let Some(chooser) = &mut self.chooser {
                    chooser.compressing_took(codec, raw, time);
                }
            }
            Some(Did::Decode(codec, raw)) => self.decompressing_took(codec, raw, time),
            None => {}
        }
    }

    /// At most one block is made in a call, so that [`Adapter::took`] is about that one.
    fn transmit(&mut self, _now: u64, _lane: Lane, room: usize, out: &mut Vec<u8>) {
        self.did = None;
        let end = out.len().saturating_add(room);
        for begins in [false, true] {
            if begins && (out.len() >= end || !self.begin()) {
                return;
            }
            let rest = self.block.get(self.sent..).unwrap_or_default();
            let count = rest.len().min(end.saturating_sub(out.len()));
            out.extend_from_slice(rest.get(..count).unwrap_or_default());
            self.sent += count;
        }
    }

    /// At most one block is decoded in a call.
    fn receive(&mut self, _now: u64, _lane: Lane, bytes: &[u8]) -> Result<usize, Broken> {
        self.did = None;
        let mut taken = 0;
        while taken < bytes.len() && self.did.is_none() {
            match self.take(bytes.get(taken..).unwrap_or_default())? {
                0 => break,
                count => taken += count,
            }
        }
        Ok(taken)
    }

    fn front(&self) -> &[u8] {
        self.inbox.get(self.read..).unwrap_or_default()
    }

    fn consume(&mut self, count: usize) {
        self.read += count.min(self.unread());
        self.make_room();
    }

    fn is_at_end(&self) -> bool {
        self.state == Reads::End && self.unread() == 0
    }

    fn deadline(&self) -> u64 {
        u64::MAX
    }

    fn handle_time(&mut self, _now: u64) {}

    fn held(&self) -> usize {
        self.unsent.capacity() + self.block.capacity() + self.partial.capacity() + self.inbox.capacity()
    }
}

#[cfg(test)]
mod tests;
