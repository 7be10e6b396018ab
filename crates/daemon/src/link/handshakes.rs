//! Limits the handshakes of each origin, so that a flood delays its own origin only.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use crate::poll::Token;
use crate::units::MILLISECOND;

/// Handshakes that one origin may begin at once, and the time after which it may begin one more.
const BURST: u64 = 100;
const STEP: u64 = 20 * MILLISECOND;
/// Origins that are remembered; of more, those are forgotten that may begin as many as any.
const MOST_ORIGINS: usize = 4096;

/// An address of IPv4, or a network of IPv6, of which one host has all; none for connections that have no address.
type Origin = Option<IpAddr>;

/// The handshakes that were begun.
#[derive(Default)]
pub(crate) struct Handshakes {
    /// When each origin will have all of its burst again; and when those were forgotten that have.
    origins: HashMap<Origin, u64>,
    swept: u64,
    /// Connections that wait for theirs, and until when.
    pub(crate) late: BTreeSet<(u64, Token)>,
}

impl Handshakes {
    /// Whether an origin may begin one now; if not, when it may be asked again.
    pub(crate) fn begin(&mut self, now: u64, origin: Origin) -> Result<(), u64> {
        if self.origins.len() >= MOST_ORIGINS && self.swept + STEP <= now {
            self.origins.retain(|_, full| *full > now);
            self.swept = now;
        }
        if origin.is_some() && self.origins.len() >= MOST_ORIGINS && !self.origins.contains_key(&origin) {
            // So many at once: those who are not remembered share what one has.
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

    /// When somebody may go on who waits.
    pub(crate) fn next(&self) -> u64 {
        self.late.first().map_or(u64::MAX, |(due, _)| *due)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_burst_goes_and_then_one_at_a_time() {
        let mut all = Handshakes::default();
        let (one, other) = (Some(IpAddr::from([192, 0, 2, 1])), Some(IpAddr::from([192, 0, 2, 2])));
        let now = 1_000_000 * STEP;
        assert!((0..BURST).all(|_| all.begin(now, one).is_ok()));
        assert_eq!(all.begin(now, one), Err(now + STEP));
        // It is nobody else's matter.
        assert_eq!(all.begin(now, other), Ok(()));
        assert_eq!(all.begin(now + STEP, one), Ok(()));
        assert_eq!(all.begin(now + STEP, one), Err(now + 2 * STEP));
        assert!((0..BURST).all(|_| all.begin(now + 200 * STEP, one).is_ok()));
    }

    #[test]
    fn floods_from_everywhere_take_bounded_memory() {
        let mut all = Handshakes::default();
        let begun = (0..200_000_u32).filter(|n| all.begin(u64::from(*n), Some(IpAddr::from(n.to_be_bytes()))).is_ok());
        assert!(begun.count() <= MOST_ORIGINS + BURST as usize + 1 && all.origins.len() <= MOST_ORIGINS + 1);
    }

    proptest! {
        /// In any time no origin begins more than its burst, and one for each step.
        #[test]
        fn nobody_begins_more_than_his_share(gaps in prop::collection::vec(0..3 * STEP, 1..600)) {
            let (mut all, mut now, mut begun) = (Handshakes::default(), 0, 0);
            for gap in gaps {
                now += gap;
                begun += u64::from(all.begin(now, None).is_ok());
                prop_assert!(begun <= BURST + now / STEP);
            }
        }
    }
}
