//! What is missing: seen by later pieces, then lost, then requested.

use std::collections::VecDeque;

use super::wire::{NUMBER, expand};

const MILLISECOND: u64 = 1_000_000;
/// So many datagrams after the one behind a gap what is in it is lost, and not late.
const LATER: u64 = 2;

/// Bytes of a class that did not come with their neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gap {
    pub(super) class: u8,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// The gaps of a connection, in the order in which each becomes due.
#[derive(Debug)]
pub(super) struct Gaps {
    /// With the datagram that showed it, and when.
    seen: VecDeque<(u64, u64, Gap)>,
    /// With the time of the request.
    asked: VecDeque<(u64, Gap)>,
    highest: u64,
    round_trip: u64,
}

impl Gaps {
    pub(super) fn new(round_trip: u64) -> Self {
        Self { seen: VecDeque::new(), asked: VecDeque::new(), highest: 0, round_trip }
    }

    pub(super) fn set_round_trip(&mut self, round_trip: u64) {
        self.round_trip = round_trip.max(MILLISECOND);
    }

    /// A datagram came whose number has that low end; returns the number, which is near the highest.
    pub(super) fn note(&mut self, low: u64) -> u64 {
        let number = expand(low, 8 * NUMBER as u32, self.highest);
        self.highest = self.highest.max(number);
        number
    }

    /// A datagram showed a gap; without a number, the control stream did, which may overtake datagrams.
    pub(super) fn see(&mut self, now: u64, number: Option<u64>, gap: Gap) {
        self.seen.push_back((number.unwrap_or(u64::MAX), now, gap));
    }

    /// It was requested.
    pub(super) fn ask(&mut self, now: u64, gap: Gap) {
        self.asked.push_back((now, gap));
    }

    /// A gap in which whatever is still missing is lost.
    pub(super) fn next_lost(&mut self, now: u64) -> Option<Gap> {
        let (late, again) = (self.late_after(), self.again_after());
        let highest = self.highest;
        let is_lost =
            |(number, at, _): &mut (u64, u64, Gap)| highest >= number.saturating_add(LATER) || now >= *at + late;
        let seen = self.seen.pop_front_if(is_lost).map(|(_, _, gap)| gap);
        seen.or_else(|| self.asked.pop_front_if(|(at, _)| now >= *at + again).map(|(_, gap)| gap))
    }

    /// When the next one is lost, if nothing comes.
    pub(super) fn due(&self) -> Option<u64> {
        let seen = self.seen.front().map(|(_, at, _)| at + self.late_after());
        let asked = self.asked.front().map(|(at, _)| at + self.again_after());
        seen.into_iter().chain(asked).min()
    }

    /// As RFC 9002, section 6.1.2, has it for what is behind: an eighth of a round trip, and the grain of a busy machine's clock.
    fn late_after(&self) -> u64 {
        self.round_trip / 8 + 2 * MILLISECOND
    }

    /// What was requested may be lost again.
    fn again_after(&self) -> u64 {
        self.round_trip * 3 / 2 + 20 * MILLISECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_where_their_low_ends_begin_anew() {
        let mut gaps = Gaps::new(0);
        let high = 1_u64 << (8 * NUMBER);
        assert_eq!([high / 3, high / 3 * 2, high - 2].map(|low| gaps.note(low)), [high / 3, high / 3 * 2, high - 2]);
        assert_eq!([1, high - 1, 7].map(|low| gaps.note(low)), [high + 1, high - 1, high + 7]);
    }

    #[test]
    fn a_gap_is_lost_by_later_datagrams_or_by_time_and_asked_for_again() {
        let gap = |from| Gap { class: 0, from, to: from + 1 };
        let mut gaps = Gaps::new(80 * MILLISECOND);
        assert_eq!((gaps.next_lost(0), gaps.due()), (None, None));
        gaps.note(5);
        gaps.see(0, Some(5), gap(1));
        gaps.note(6);
        assert_eq!((gaps.next_lost(0), gaps.due()), (None, Some(12 * MILLISECOND)));
        gaps.note(7);
        assert_eq!((gaps.next_lost(0), gaps.next_lost(0)), (Some(gap(1)), None));
        gaps.see(0, None, gap(2));
        gaps.note(1000);
        assert_eq!(gaps.next_lost(12 * MILLISECOND - 1), None);
        assert_eq!(gaps.next_lost(12 * MILLISECOND), Some(gap(2)));
        gaps.ask(0, gap(2));
        assert_eq!(gaps.due(), Some(140 * MILLISECOND));
        assert_eq!((gaps.next_lost(139 * MILLISECOND), gaps.next_lost(140 * MILLISECOND)), (None, Some(gap(2))));
    }
}
