//! What the kernel counted of one connection (TCP_INFO: linux/tcp.h), and what that says of it: what it carries, what holds it back, and
//! whether its rate has to be found anew.

use madrigal_adapters::stripe::count::{Class, StreamSample};
use madrigal_sys::tcp;

use crate::link::measured::Carried;
use crate::units::{MILLISECOND, SECOND};

/// What holds a connection back is told of an interval of this at least.
const INTERVAL: u64 = 100 * MILLISECOND;
/// BBR's estimate is the most of ten round trips. Where it is less than a part of so many of what the way carried, it is of a time in which
/// the program had little to send.
const STALE: u64 = 2;
/// The way may carry less than it did: so the kernel is not told so again within this time.
const RENEWED: u64 = 5 * SECOND;

/// What was counted of a connection.
pub(crate) struct Counted {
    pub(crate) info: tcp::Info,
    at: u64,
    carried: Carried,
    /// Bits a second.
    pub(crate) rate: Option<u64>,
    /// Bytes sent, and sent again, lately: a sample counts a 64th less with every further one. Losses are so rare that most samples see
    /// none.
    sent: u64,
    resent: u64,
    /// Since the sample before.
    pub(crate) sample: StreamSample,
    /// The highest rate of any sample.
    best: u64,
    /// Over the last interval.
    pub(crate) held: Option<Held>,
    /// When the kernel was last told to find the rate anew, and how often.
    renewed_at: u64,
    pub(crate) renewed: u32,
}

/// What held a connection back in an interval.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    pub(crate) by: Class,
    /// The interval, nanoseconds.
    pub(crate) time: u64,
    /// Microseconds of it in which something was on its way; and of those, in which the receiver's window and this end's buffer held it back.
    pub(crate) busy: [u64; 3],
}

impl Counted {
    pub(crate) fn new(info: tcp::Info, at: u64) -> Self {
        Self {
            info,
            at,
            carried: Carried::default(),
            rate: None,
            sent: 0,
            resent: 0,
            sample: StreamSample::default(),
            best: 0,
            held: None,
            renewed_at: at,
            renewed: 0,
        }
    }

    /// Takes what the kernel counts now.
    pub(crate) fn update(&mut self, at: u64, now: tcp::Info) {
        self.rate = self.carried.update(now, self.rate);
        let before = std::mem::replace(&mut self.info, now);
        let time = at.saturating_sub(std::mem::replace(&mut self.at, at));
        let acknowledged = u128::from(now.bytes_acked.saturating_sub(before.bytes_acked)) * u128::from(SECOND);
        let fade = |sum: u64, now: u64, before: u64| sum - sum / 64 + now.saturating_sub(before);
        self.sent = fade(self.sent, now.bytes_sent, before.bytes_sent);
        self.resent = fade(self.resent, now.bytes_retrans, before.bytes_retrans);
        let (times, until) = (now.busy_times(), before.busy_times());
        let busy = [0, 1, 2].map(|at: usize| times[at].saturating_sub(until[at]));
        self.sample = StreamSample {
            rate: u64::try_from(acknowledged / u128::from(time.max(1))).unwrap_or(u64::MAX),
            app_limited: now.rate_is_of_the_program(),
            unsent: now.notsent_bytes.into(),
            busy: busy[0],
            receiver_limited: busy[1],
            buffer_limited: busy[2],
            sent: self.sent,
            resent: self.resent,
            in_vain: 0,
            round_trip: u64::from(now.rtt) * 1000,
            queued: u64::from(now.rtt.saturating_sub(now.min_rtt)) * 1000,
        };
        if time >= INTERVAL {
            self.best = self.best.max(self.sample.rate);
            self.held = Some(Held { by: self.sample.class(self.best), time, busy });
        }
    }

    /// Whether the kernel paces by what the program had to send lately, though the way carries more: it is `known` to carry so many bits a
    /// second. Not twice within [`RENEWED`].
    pub(crate) fn is_stale(&self, at: u64, now: &tcp::Info, known: Option<u64>) -> bool {
        let paced = now.pacing_rate.saturating_mul(8).saturating_mul(STALE);
        let is_less = now.notsent_bytes > 0 && known.is_some_and(|known| paced < known);
        is_less && at >= self.renewed_at + RENEWED
    }

    /// The kernel was told to find the rate anew.
    pub(crate) fn renew(&mut self, at: u64) {
        self.renewed_at = at;
        self.renewed += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_of_a_time_with_little_to_send_is_found_anew_once() {
        let counts = |notsent: u32, paced: u64| {
            let mut counts = tcp::Info::default();
            (counts.notsent_bytes, counts.pacing_rate) = (notsent, paced);
            counts
        };
        let mut counted = Counted::new(tcp::Info::default(), 0);
        let known = Some(8_000_000);
        assert!(!counted.is_stale(10 * SECOND, &counts(1, 1000), None), "no rate is known");
        assert!(!counted.is_stale(10 * SECOND, &counts(0, 1000), known), "there is nothing to send");
        assert!(!counted.is_stale(10 * SECOND, &counts(1, 600_000), known), "it is no less than half");
        assert!(counted.is_stale(11 * SECOND, &counts(1, 400_000), known));
        counted.renew(11 * SECOND);
        assert!(!counted.is_stale(12 * SECOND, &counts(1, 400_000), known), "it was told so just now");
        assert!(counted.is_stale(17 * SECOND, &counts(1, 400_000), known));
    }

    /// A sample of two moments that lie together says nothing of what holds the connection back.
    #[test]
    fn what_holds_a_connection_back_is_told_of_an_interval() {
        let mut counted = Counted::new(tcp::Info::default(), SECOND);
        counted.update(SECOND, tcp::Info::default());
        assert!(counted.held.is_none());
        let mut full = tcp::Info::default();
        (full.notsent_bytes, full.bytes_acked, full.bytes_sent) = (1, 1 << 20, 1 << 20);
        counted.update(2 * SECOND, full);
        let held = counted.held.expect("an interval");
        assert_eq!((held.by, held.time), (Class::Link, SECOND));
        counted.update(2 * SECOND + MILLISECOND, tcp::Info::default());
        assert_eq!(counted.held.expect("the interval before").time, SECOND);
    }
}
