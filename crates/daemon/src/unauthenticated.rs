//! Connections of those who have not said and proved who they are: how many there may be, and how many handshakes each origin gets, so
//! that who floods the port stands in his own way, and takes neither memory nor the processor from links that are up.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use crate::daemon::{Daemon, MILLISECOND};
use crate::links::Link;
use crate::poll::Token;

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
    late: BTreeSet<(u64, Token)>,
}

impl Handshakes {
    /// Whether an origin may begin one now; if not, when it may be asked again.
    fn begin(&mut self, now: u64, origin: Origin) -> Result<(), u64> {
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

impl Link {
    /// Whether somebody called and has not said and proved who it is.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        self.dialled.is_none() && self.up().is_none()
    }

    /// Where it comes from.
    fn origin(&self) -> Origin {
        self.address.map(|at| match at.ip().to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) >> 64 << 64).into()),
            four => four,
        })
    }
}

impl Daemon {
    /// Of as many connections that have not said who they are, or more, one goes: the oldest from where the most come.
    pub(crate) fn make_room(&mut self, most: usize) {
        let unauthenticated = self.links.iter().filter(|(_, link)| link.is_unauthenticated());
        if unauthenticated.clone().count() < most {
            return;
        }
        let mut crowds: HashMap<Origin, (usize, Reverse<Token>)> = HashMap::new();
        for (token, link) in unauthenticated {
            let (count, oldest) = crowds.entry(link.origin()).or_insert((0, Reverse(*token)));
            (*count, *oldest) = (*count + 1, (*oldest).max(Reverse(*token)));
        }
        if let Some((_, Reverse(oldest))) = crowds.into_values().max() {
            self.drop_link(oldest, "too many connections said nothing");
        }
    }

    /// Whether a connection may be read now. If it would begin a handshake, and its origin has begun too many of late, it waits.
    pub(crate) fn may_begin(&mut self, token: Token) -> bool {
        let Some(link) = self.links.get(&token).filter(|link| link.is_unauthenticated() && link.channel.is_beginning())
        else {
            return true;
        };
        match self.handshakes.begin(self.now, link.origin()) {
            Ok(()) => true,
            Err(due) => {
                self.handshakes.late.insert((due, token));
                false
            }
        }
    }

    /// Those who waited long enough are read.
    pub(crate) fn begin_late(&mut self) {
        while let Some((due, token)) = self.handshakes.late.pop_first() {
            if due > self.now {
                self.handshakes.late.insert((due, token));
                return;
            }
            if self.links.contains_key(&token) {
                self.handle_link(token);
            }
        }
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
