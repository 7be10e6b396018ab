//! The figures of one link: from the kernel's counters where it is TCP, else from pings.

use madrigal_proto::mux::StreamId;
use madrigal_selector::route::Figures;
use madrigal_sys::tcp;

use crate::units::{MILLISECOND, SECOND};

/// Each of several connections may have waiting in the kernel what it carries in this time; the only one what it carries in
/// [`alone`].
pub(super) const AHEAD: u64 = 50 * MILLISECOND;
/// The same for the only connection, at least and at most; in between it is a round trip. Where the kernel has little it takes the connection
/// for one whose program has no more to send, for a round trip; then BBR, which begins with 2.9 times the rate, goes on with that, on a long
/// way for ever, and loses a fifth of what it sends. On a long way urgent streams have a link of their own, and wait for nothing of this.
const ALONE: (u64, u64) = (MILLISECOND, 100 * MILLISECOND);

/// Bytes after which the rate and the share of retransmissions mean something.
const ENOUGH: u64 = 64 << 10;

/// What was measured of a link that is up.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) figures: Figures,
    carried: Carried,
    /// The stream that measures the rate, and the bytes that it has still to carry.
    pub(crate) probe: Option<(StreamId, usize)>,
    pub(crate) probed: bool,
}

impl Measured {
    /// Another connection is measured from now on.
    pub(crate) fn forget_counters(&mut self) {
        self.carried = Carried::default();
    }

    /// Takes the kernel's counters. Where there are none, only the shortest round trip of the pings (nanoseconds) is known.
    pub(crate) fn update(&mut self, counts: Option<tcp::Info>, shortest_round_trip: Option<u64>) {
        let figures = &mut self.figures;
        let Some(counts) = counts else {
            figures.round_trip_us = shortest_round_trip.map(|ns| ns / 1000);
            return;
        };
        figures.round_trip_us = Some(if counts.min_rtt == u32::MAX { counts.rtt } else { counts.min_rtt }.into());
        figures.mtu = Some(counts.pmtu).filter(|mtu| *mtu > 0);
        if counts.bytes_sent >= ENOUGH {
            let part = u128::from(counts.bytes_retrans) * 1_000_000 / u128::from(counts.bytes_sent);
            figures.again_ppm = Some(u32::try_from(part).unwrap_or(1_000_000).min(1_000_000));
        }
        if counts.bytes_acked < ENOUGH {
            return;
        }
        let first = Some(counts.delivery_rate.saturating_mul(8)).filter(|rate| *rate > 0);
        figures.rate = self.carried.update(counts, figures.rate.or(first));
    }
}

/// What one connection carries, from the kernel's counters of two moments. Its own estimate (`delivery_rate`) is of one round trip, and
/// several times too high where acknowledgements come in a row.
#[derive(Default)]
pub(crate) struct Carried {
    before: Option<tcp::Info>,
}

impl Carried {
    /// Bits a second, with what was `known` before. What there was to send is a lower bound only, if it was less than could have gone.
    pub(crate) fn update(&mut self, now: tcp::Info, known: Option<u64>) -> Option<u64> {
        let Some(before) = self.before.replace(now) else { return known };
        let bytes = now.bytes_acked.saturating_sub(before.bytes_acked);
        let busy = now.busy_times()[0].saturating_sub(before.busy_times()[0]);
        if bytes < ENOUGH / 4 || busy == 0 {
            return known;
        }
        let seen = u64::try_from(u128::from(bytes) * 8_000_000 / u128::from(busy)).unwrap_or(u64::MAX);
        let was_full = now.notsent_bytes > 0 || !now.rate_is_of_the_program();
        Some(match known {
            None => seen,
            Some(known) if was_full => known / 2 + seen / 2,
            Some(known) => known.max(seen),
        })
    }
}

/// The bytes that so many bits a second are in a time, in nanoseconds.
pub(super) fn carried_in(time: u64, rate: u64) -> usize {
    usize::try_from(u128::from(rate / 8) * u128::from(time) / u128::from(SECOND)).unwrap_or(usize::MAX)
}

/// The time for which the only connection may have bytes waiting, where the round trip is so many microseconds.
pub(super) fn alone(round_trip_us: u64) -> u64 {
    round_trip_us.saturating_mul(MILLISECOND / 1000).clamp(ALONE.0, ALONE.1)
}
