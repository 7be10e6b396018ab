//! Datagrams are spread over time, at the rate that congestion control sets. (noq-proto does it, too, but never catches up what is not sent
//! within 10 ms of its time: on a busy host a connection would come to a stop.)

/// So much of the rate may be caught up by one burst, in nanoseconds.
const CATCH_UP: u64 = 80_000_000;
/// That many bytes in any case.
const LEAST: u64 = 12_000;
const SECOND: u64 = 1_000_000_000;

/// Bytes that may be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    now: u64,
    /// Bytes a second; 0: it is not known, and nothing is held back.
    rate: u64,
    /// Bytes, times [`SECOND`].
    credit: u64,
    /// A datagram that had to wait.
    wanted: Option<u64>,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { now: 0, rate: 0, credit: LEAST * SECOND, wanted: None }
    }

    /// Time goes on.
    pub(crate) fn go_on(&mut self, now: u64, rate: u64) {
        let passed = now.saturating_sub(self.now).min(CATCH_UP);
        let most = (CATCH_UP.saturating_mul(rate)).max(LEAST * SECOND);
        self.credit = self.credit.saturating_add(passed.saturating_mul(rate)).min(most);
        (self.now, self.rate, self.wanted) = (now.max(self.now), rate, None);
    }

    /// Whether so many bytes may be sent now.
    pub(crate) fn may_send(&mut self, bytes: u64) -> bool {
        let may = self.rate == 0 || self.credit >= bytes * SECOND;
        self.wanted = (!may).then_some(bytes);
        may
    }

    /// They were.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_sub(bytes * SECOND);
    }

    /// When what had to wait may be sent; nothing had to: `u64::MAX`.
    pub(crate) fn ready_at(&self) -> u64 {
        let lack = |bytes: u64| (bytes * SECOND).saturating_sub(self.credit).div_ceil(self.rate.max(1));
        self.wanted.map_or(u64::MAX, |bytes| self.now.saturating_add(lack(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_go_at_the_rate_and_a_stall_is_caught_up() {
        let (mut pace, mut now, mut sent) = (Pace::new(), 0, 0);
        let mut run = |step: u64, time: u64| {
            let (begin, before) = (now, sent);
            while now < begin + time {
                now += step;
                pace.go_on(now, 1_000_000);
                while pace.may_send(1200) {
                    pace.sent(1200);
                    sent += 1200;
                }
                assert!(pace.ready_at() > now && pace.ready_at() <= now + 1_200_000);
            }
            sent - before
        };
        run(SECOND / 1000, SECOND);
        for step in [1, 10, 25] {
            let rate = run(step * SECOND / 1000, 10 * SECOND) / 10;
            assert!((980_000..=1_002_000).contains(&rate), "{rate} with steps of {step} ms");
        }
        // No more than that of a long one.
        assert!(run(SECOND, SECOND) <= 81_200);
    }

    #[test]
    fn nothing_is_held_back_while_the_rate_is_not_known() {
        let mut pace = Pace::new();
        pace.go_on(5, 0);
        for _ in 0..100 {
            assert!(pace.may_send(1200));
            pace.sent(1200);
        }
        assert_eq!(pace.ready_at(), u64::MAX);
    }
}
