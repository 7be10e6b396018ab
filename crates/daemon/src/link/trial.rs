//! A trial of a stack: a link of its own with a host, on which bytes go for some seconds (`trials.rs` has the daemon's side of it).

use madrigal_adapters::stack::Stack;
use madrigal_proto::mux::StreamId;

use crate::poll::Token;
use crate::streams::egress::Requester;

/// A trial.
pub(crate) struct Trial {
    pub(crate) requester: Requester,
    pub(crate) stack: Stack,
    /// The bytes can be compressed.
    pub(crate) text: bool,
    /// How long bytes go.
    pub(crate) time: u64,
    /// The token of its connection, and then of its link.
    pub(crate) link: Token,
    pub(crate) stage: Stage,
}

/// The stage of a trial.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    /// The link is made, or is given up then.
    Begins { end: u64 },
    /// Bytes go.
    Sends {
        stream: StreamId,
        began: u64,
        /// Bytes that the link has taken.
        taken: u64,
        /// When half of the time had passed, and how many bytes had gone by then. These are not counted: with time connections get faster,
        /// and more of them are made.
        half: Option<(u64, u64)>,
    },
}

impl Trial {
    /// Its next deadline.
    pub(crate) fn deadline(&self) -> u64 {
        match self.stage {
            Stage::Begins { end } => end,
            Stage::Sends { began, half: None, .. } => began + self.time / 2,
            Stage::Sends { began, .. } => began + self.time,
        }
    }
}

/// Fills a buffer with incompressible bytes, or with words; `at`: how many bytes went before.
pub(crate) fn fill(text: bool, at: u64, bytes: &mut [u8]) {
    if text { fill_with_words(at, bytes) } else { fill_with_noise(at, bytes) }
}

/// Incompressible bytes: the time that they take to arrive is that of the line.
pub(crate) fn fill_with_noise(seed: u64, bytes: &mut [u8]) {
    let mut state = seed;
    for piece in bytes.chunks_exact_mut(8) {
        state = next(state);
        piece.copy_from_slice(&(state ^ state >> 29).to_le_bytes());
    }
}

/// Words as in a log: a third of their length is left when they are compressed.
fn fill_with_words(seed: u64, bytes: &mut [u8]) {
    const WORDS: [&str; 16] = [
        "link ",
        "with ",
        "host ",
        "opened ",
        "closed ",
        "after ",
        "seconds ",
        "bytes ",
        "sent ",
        "received ",
        "by ",
        "connection ",
        "error ",
        "none\n",
        "retry ",
        "at ",
    ];
    let (mut state, mut at) = (seed, 0);
    while at < bytes.len() {
        state = next(state);
        let number = (state >> 40).to_string();
        let word = if state >> 63 == 0 { WORDS[(state >> 59) as usize % WORDS.len()] } else { number.as_str() };
        let count = word.len().min(bytes.len() - at);
        bytes[at..at + count].copy_from_slice(&word.as_bytes()[..count]);
        at += count;
    }
}

/// Knuth's generator, MMIX.
fn next(state: u64) -> u64 {
    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}
