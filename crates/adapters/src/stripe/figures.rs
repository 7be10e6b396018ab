//! What is known of a stream, and what follows from it: how long a piece should be, and whether a stream should wait for a faster one.
//! Arithmetic only, without a clock.

/// The least and the most bytes of a piece: what a stream carries in [`PIECE_TIME`], if that lies between them.
const PIECE: (u64, u64) = (16 << 10, 1 << 20);
const PIECE_TIME: u64 = 25 * MILLISECOND;

pub(super) const MILLISECOND: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1000 * MILLISECOND;

/// How fast a stream is, by the acknowledgements of the other end.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Figures {
    /// Bytes a second.
    pub(super) rate: u64,
    /// Nanoseconds from when bytes are given to it until they are acknowledged, on average, and how far that varies.
    pub(super) trip: u64,
    pub(super) deviation: u64,
}

impl Figures {
    /// Whether anything is known.
    pub(super) fn are_known(&self) -> bool {
        self.rate > 0 && self.trip > 0
    }

    /// How long a piece is, where so much fits behind a hole: no stream gets most of that alone.
    pub(super) fn piece(&self, window: u64) -> u64 {
        self.carries(PIECE_TIME).min(window / 8).clamp(PIECE.0, PIECE.1)
    }

    /// Bytes in that time.
    pub(super) fn carries(&self, time: u64) -> u64 {
        ratio(self.rate, time, SECOND)
    }

    /// Time for so many bytes.
    pub(super) fn takes(&self, bytes: u64) -> u64 {
        ratio(bytes, SECOND, self.rate.max(1))
    }

    /// Bytes that were given to it this long ago should have been acknowledged.
    pub(super) fn overdue(&self) -> u64 {
        self.trip + 4 * self.deviation + 10 * MILLISECOND
    }

    /// A time from giving bytes to their acknowledgement (RFC 6298's averages).
    pub(super) fn saw_trip(&mut self, trip: u64) {
        if self.trip == 0 {
            (self.trip, self.deviation) = (trip.max(1), trip / 2);
            return;
        }
        self.deviation = (3 * self.deviation + self.trip.abs_diff(trip)) / 4;
        self.trip = ((7 * self.trip + trip) / 8).max(1);
    }

    /// A rate; where the stream did not have enough to carry, one that it has at least.
    pub(super) fn saw_rate(&mut self, rate: u64, at_least: bool) {
        self.rate = match self.rate {
            0 => rate,
            known if at_least => known.max(rate),
            known => known / 2 + rate / 2,
        };
    }
}

/// Whether the slow one of two streams should be left without work, because the fast one will have sent all that is `left` before the slow
/// one would have sent a piece (ECF: earliest completion first). `waits`: it is so already, and stays so a little longer.
pub(super) fn should_wait(fast: &Figures, slow: &Figures, left: u64, waits: bool) -> bool {
    let spread = fast.deviation.max(slow.deviation);
    let by_slow = slow.trip + spread;
    let patience = if waits { by_slow / 4 } else { 0 };
    let by_fast = fast.trip + fast.takes(left);
    by_fast < by_slow + patience && slow.trip + slow.takes(left) >= 2 * fast.trip + spread
}

/// Whether a piece on a slow stream would hold the faster ones up (BLEST: blocking estimation): what these carry until it is acknowledged
/// does not fit into the window behind it.
pub(super) fn would_block(faster: u64, slow: &Figures, window: u64) -> bool {
    let behind = Figures { rate: faster, ..Figures::default() }.carries(slow.trip + slow.deviation);
    behind > window
}

/// `a * b / c`, whatever comes between.
pub(super) fn ratio(a: u64, b: u64, c: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c.max(1))).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 125_000;

    fn figures(rate: u64, trip: u64) -> Figures {
        Figures { rate, trip: trip * MILLISECOND, deviation: MILLISECOND }
    }

    #[test]
    fn a_piece_is_what_goes_in_25_milliseconds_within_bounds() {
        let pieces = [0, MBIT, 50 * MBIT, 10_000 * MBIT].map(|rate| figures(rate, 10).piece(32 << 20));
        assert_eq!(pieces, [16 << 10, 16 << 10, 156_250, 1 << 20]);
        assert_eq!(figures(10_000 * MBIT, 10).piece(1 << 20), 128 << 10);
    }

    #[test]
    fn near_the_end_slow_streams_wait_for_fast_ones() {
        let (fast, slow) = (figures(100 * MBIT, 20), figures(10 * MBIT, 300));
        // 100 Mbit/s carry 1 MB in 80 ms, and 100 MB in 8 s.
        assert!(should_wait(&fast, &slow, 1_000_000, false));
        assert!(!should_wait(&fast, &slow, 100_000_000, false));
        // A waiter goes on waiting a little.
        let edge = fast.carries(slow.trip + slow.deviation - fast.trip) + 200_000;
        assert!(!should_wait(&fast, &slow, edge, false) && should_wait(&fast, &slow, edge, true));
        // Two that are alike do not wait for each other, nor a fast one for a slow one.
        assert!(!should_wait(&fast, &fast, 20_000, false) && !should_wait(&slow, &fast, 20_000, false));
    }

    #[test]
    fn a_stream_that_would_fill_the_window_with_a_hole_is_not_used() {
        let slow = figures(MBIT, 1000);
        assert!(would_block(100 * MBIT, &slow, 11 << 20));
        assert!(!would_block(100 * MBIT, &slow, 12 << 20));
        assert!(!would_block(0, &slow, 0));
    }

    #[test]
    fn averages_follow_what_is_seen() {
        let mut seen = Figures::default();
        assert!(!seen.are_known());
        seen.saw_trip(80);
        assert_eq!((seen.trip, seen.deviation), (80, 40));
        seen.saw_trip(160);
        assert_eq!((seen.trip, seen.deviation), (90, 50));
        seen.saw_rate(1000, false);
        seen.saw_rate(100, true);
        assert_eq!(seen.rate, 1000);
        (0..4).for_each(|_| seen.saw_rate(100, false));
        assert!((100..160).contains(&seen.rate));
        assert_eq!(figures(u64::MAX, 1).takes(u64::MAX), SECOND);
    }
}
