//! The figures of one link: from the kernel's counters where it is TCP, else from pings.

use madrigal_proto::mux::StreamId;
use madrigal_selector::route::Figures;
use madrigal_sys::tcp;

/// Bytes after which the rate and the share of retransmissions mean something.
const ENOUGH: u64 = 64 << 10;

/// What was measured of a link that is up.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) figures: Figures,
    /// The stream that measures the rate, and the bytes that it has still to carry.
    pub(crate) probe: Option<(StreamId, usize)>,
    pub(crate) probed: bool,
}

impl Measured {
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
        let now = counts.delivery_rate.saturating_mul(8);
        let before = figures.rate.unwrap_or(0);
        // Where the application limited the rate, it is a lower bound only.
        let rate = if counts.rate_is_of_the_program() { before.max(now) } else { now.max(before - before / 50) };
        figures.rate = Some(rate).filter(|rate| *rate > 0);
    }
}
