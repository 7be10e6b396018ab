//! Adaptive compression of a link ([`Adoc`]), with a clock: how fast the network takes bytes, and how long it takes to make them shorter.

use std::time::Instant;

use madrigal_adapters::adoc::{Adoc, BLOCK, Counts};
use madrigal_adapters::contract::{Adapter as _, ONLY};
use madrigal_proto::mux::{Mux, Source, Taker};

use crate::control::status::Compression;
use crate::units::{MILLISECOND, SECOND};

/// A block, before compression, is what the network takes in this time: urgent bytes wait behind it.
const BLOCK_TIME: u64 = 50 * MILLISECOND;
/// The shortest block that is waited for: fewer bytes become hardly shorter.
const SHORTEST: usize = 16 << 10;

/// One end of a compressed link.
pub(crate) struct Compressed {
    adoc: Adoc,
    /// The most bytes of a block.
    block: usize,
    /// The source of `frames`, if it is another one than that of the last block: they go into the next block. If bytes of two programs
    /// shared a block, its length would tell one program what the other sends (CRIME).
    ahead: Option<Source>,
    frames: Vec<u8>,
}

impl Compressed {
    pub(crate) fn new() -> Self {
        Self { adoc: Adoc::new(), block: SHORTEST, ahead: None, frames: Vec::new() }
    }

    /// The network takes so many bits a second.
    pub(crate) fn set_rate(&mut self, rate: u64) {
        self.adoc.set_rate(rate / 8);
        let bytes = u128::from(rate / 8) * u128::from(BLOCK_TIME) / u128::from(SECOND);
        self.block = usize::try_from(bytes).unwrap_or(BLOCK).clamp(SHORTEST, BLOCK);
    }

    /// What went out.
    pub(crate) fn report(&self) -> Compression {
        let Counts { raw, encoded, .. } = self.adoc.counts();
        Compression { raw, encoded }
    }

    /// Adds what the multiplexer has to send to `out`, compressed: up to `room` bytes, of which the rest of a block is for the next call.
    pub(crate) fn transmit(&mut self, now: u64, mux: &mut Mux, room: usize, out: &mut Vec<u8>) {
        let end = out.len().saturating_add(room);
        while out.len() < end {
            if self.adoc.is_empty() {
                self.take_block(mux);
            }
            let (before, begun) = (out.len(), Instant::now());
            self.adoc.transmit(now, ONLY, end - before, out);
            self.adoc.took(nanoseconds_since(begun));
            if out.len() == before {
                return;
            }
        }
    }

    /// Takes the next block from the multiplexer: frames of one source.
    fn take_block(&mut self, mux: &mut Mux) {
        let mut source = self.ahead.take();
        if let Some(Source::Stream(stream)) = source {
            self.adoc.switch(stream);
        }
        let mut taken = self.adoc.write(&self.frames);
        self.frames.clear();
        while taken < self.block {
            let Some(of) = mux.transmit_one(&mut self.frames, self.block - taken) else { return };
            if source.is_some_and(|source| source != of) {
                self.ahead = Some(of);
                return;
            }
            if let (None, Source::Stream(stream)) = (source, of) {
                self.adoc.switch(stream);
            }
            source = Some(of);
            // There is room: a block and the longest frame are less than the limit of bytes that wait.
            taken += self.adoc.write(&self.frames);
            self.frames.clear();
        }
    }

    /// Takes bytes that came, decompresses them, and passes them to the multiplexer.
    pub(crate) fn receive(
        &mut self,
        now: u64,
        mut bytes: &[u8],
        mux: &mut Mux,
        taker: Taker<'_>,
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            let begun = Instant::now();
            let taken = self.adoc.receive(now, ONLY, bytes).map_err(|broken| broken.to_string())?;
            self.adoc.took(nanoseconds_since(begun));
            let front = self.adoc.front();
            let count = front.len();
            mux.receive_with(now, front, taker).map_err(|broken| broken.to_string())?;
            self.adoc.consume(count);
            if taken == 0 && count == 0 {
                return Err("adoc: the peer sent on behind the end".to_owned());
            }
            bytes = bytes.get(taken..).unwrap_or_default();
        }
        Ok(())
    }
}

fn nanoseconds_since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use madrigal_proto::mux::{Class, Limits, Read};

    use super::*;

    struct End {
        mux: Mux,
        compressed: Compressed,
    }

    impl End {
        fn new(dialled: bool) -> Self {
            let mut compressed = Compressed::new();
            compressed.set_rate(1_000_000);
            Self { mux: Mux::new(dialled, Limits::default(), 0), compressed }
        }

        /// Sends what there is, by pieces of up to `room` bytes; how many bytes they were.
        fn send(&mut self, room: usize, to: &mut Self) -> usize {
            let mut sent = 0;
            loop {
                let mut out = Vec::new();
                self.compressed.transmit(0, &mut self.mux, room, &mut out);
                if out.is_empty() {
                    return sent;
                }
                assert!(out.len() <= room);
                sent += out.len();
                to.compressed.receive(0, &out, &mut to.mux, &mut |_, _| 0).expect("frames");
            }
        }
    }

    /// Text and noise by two streams at once: every byte arrives, the text is shorter, the noise hardly longer.
    #[test]
    fn streams_arrive_whole_and_text_is_shorter() {
        for room in [100, 5000, 70_000] {
            let (mut one, mut other) = (End::new(true), End::new(false));
            let text: Vec<u8> =
                (0..40_000u32).flat_map(|n| format!("line {} of a log\n", n % 977).into_bytes()).collect();
            let mut state = 1u64;
            let noise: Vec<u8> = (0..text.len())
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            let sent = [text, noise];
            let streams = [0, 1].map(|_| one.mux.open(Class::Data, b"test").expect("a stream"));
            let (mut written, mut read) = ([0; 2], [Vec::new(), Vec::new()]);
            let (mut on_wire, mut buffer) = (0, [0; 9000]);
            while read[0].len() + read[1].len() < sent[0].len() + sent[1].len() {
                for at in 0..2 {
                    written[at] += one.mux.write(streams[at], &sent[at][written[at]..]).expect("it is open");
                }
                on_wire += one.send(room, &mut other);
                while other.mux.event().is_some() {}
                for at in 0..2 {
                    while let Ok(Read::Bytes(count)) = other.mux.read(streams[at], &mut buffer) {
                        read[at].extend_from_slice(&buffer[..count]);
                    }
                }
                other.send(room, &mut one);
                while one.mux.event().is_some() {}
            }
            assert!(read == sent, "other bytes, room {room}");
            let (text, noise) = (sent[0].len(), sent[1].len());
            assert!(on_wire < noise + noise / 50 + text / 2, "{on_wire} bytes of {text} of text and {noise} of noise");
        }
    }

    /// What one program sends has no influence on how long another one's becomes.
    #[test]
    fn no_block_has_frames_of_two_streams() {
        let mut end = End::new(true);
        let streams = [0, 1].map(|_| end.mux.open(Class::Data, b"test").expect("a stream"));
        for stream in streams {
            assert!(end.mux.write(stream, &[7; 60_000]).expect("it is open") > 30_000);
        }
        let (mut before, mut out) = (end.compressed.adoc.counts(), Vec::new());
        loop {
            let at = out.len() as u64;
            // So little that it is of one block.
            end.compressed.transmit(0, &mut end.mux, 1, &mut out);
            if out.len() as u64 == at {
                break;
            }
            let now = end.compressed.adoc.counts();
            let bytes = now.raw - before.raw;
            assert!(now.blocks - before.blocks <= 1 && bytes <= SHORTEST as u64 + 32, "{bytes} bytes in one block");
            before = now;
        }
        assert!(before.blocks >= 4, "{before:?}");
    }

    #[test]
    fn noise_of_a_peer_ends_the_link() {
        let mut end = End::new(true);
        let why = end.compressed.receive(0, &[0xff; 64], &mut end.mux, &mut |_, _| 0).unwrap_err();
        assert!(why.starts_with("adoc: "), "{why}");
    }
}
