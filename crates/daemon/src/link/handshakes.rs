//! Limits the handshakes of each origin, so that a flood delays its own origin only.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use crate::poll::Token;
use crate::units::MILLISECOND;

/// Handshakes that one origin may begin at once.
const BURST: u64 = 100;
/// The time after which it may begin one more.
const STEP: u64 = 20 * MILLISECOND;
/// Origins that are tracked. Beyond this number those with a full burst are removed.
const MOST_ORIGINS: usize = 4096;

/// An address of IPv4, or a /64 network of IPv6; none for connections without an address.
type Origin = Option<IpAddr>;

/// The origin of what comes from an address.
pub(crate) fn origin(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
        four => four,
    }
}

/// The token buckets of the origins.
#[derive(Default)]
pub(crate) struct HandshakeLimiter {
    /// When the bucket of each origin is full again.
    origins: HashMap<Origin, u64>,
    /// When full buckets were removed last.
    pruned: u64,
    /// Connections whose handshakes are delayed, and until when.
    pub(crate) delayed: BTreeSet<(u64, Token)>,
}

impl HandshakeLimiter {
    /// Takes a handshake of an origin's bucket; `Err`: it is empty until then.
    pub(crate) fn begin(&mut self, now: u64, origin: Origin) -> Result<(), u64> {
        if self.origins.len() >= MOST_ORIGINS && self.pruned + STEP <= now {
            self.origins.retain(|_, full| *full > now);
            self.pruned = now;
        }
        if origin.is_some() && self.origins.len() >= MOST_ORIGINS && !self.origins.contains_key(&origin) {
            // So many origins at once: those that are not tracked share one bucket.
            return self.begin(now, None);
        }
        let full = self.origins.entry(origin).or_insert(now);
        let next = (*full).max(now) + STEP;
        if next > now + BURST * STEP {
            return Err(next - BURST * STEP);
        }
        *full = next;
        Ok(())
    }

    /// When the first delayed handshake may begin.
    pub(crate) fn next(&self) -> u64 {
        self.delayed.first().map_or(u64::MAX, |(due, _)| *due)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_burst_goes_and_then_one_at_a_time() {
        let mut all = HandshakeLimiter::default();
        let (one, other) = (Some(IpAddr::from([192, 0, 2, 1])), Some(IpAddr::from([192, 0, 2, 2])));
        let now = 1_000_000 * STEP;
        assert!((0..BURST).all(|_| all.begin(now, one).is_ok()));
        assert_eq!(all.begin(now, one), Err(now + STEP));
        // Other origins are not affected.
        assert_eq!(all.begin(now, other), Ok(()));
        assert_eq!(all.begin(now + STEP, one), Ok(()));
        assert_eq!(all.begin(now + STEP, one), Err(now + 2 * STEP));
        assert!((0..BURST).all(|_| all.begin(now + 200 * STEP, one).is_ok()));
    }

    #[test]
    fn floods_from_everywhere_take_bounded_memory() {
        let mut all = HandshakeLimiter::default();
        let begun = (0..200_000_u32).filter(|n| all.begin(u64::from(*n), Some(IpAddr::from(n.to_be_bytes()))).is_ok());
        assert!(begun.count() <= MOST_ORIGINS + BURST as usize + 1 && all.origins.len() <= MOST_ORIGINS + 1);
    }

    proptest! {
        /// In any time no origin begins more than its burst, and one for each step.
        #[test]
        fn nobody_begins_more_than_his_share(gaps in prop::collection::vec(0..3 * STEP, 1..600)) {
            let (mut all, mut now, mut begun) = (HandshakeLimiter::default(), 0, 0);
            for gap in gaps {
                now += gap;
                begun += u64::from(all.begin(now, None).is_ok());
                prop_assert!(begun <= BURST + now / STEP);
            }
        }
    }
}
