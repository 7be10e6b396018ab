//! What the kernel counted of one connection of several, and what that says of it.

use madrigal_adapters::stripe::count::StreamSample;
use madrigal_sys::tcp;

use crate::link::measured::Carried;
use crate::units::SECOND;

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
}

impl Counted {
    pub(crate) fn new(info: tcp::Info, at: u64) -> Self {
        Self { info, at, carried: Carried::default(), rate: None, sent: 0, resent: 0 }
    }

    /// What came since the last sample.
    pub(crate) fn sample(&mut self, at: u64, now: tcp::Info) -> StreamSample {
        self.rate = self.carried.update(now, self.rate);
        let before = std::mem::replace(&mut self.info, now);
        let time = at.saturating_sub(std::mem::replace(&mut self.at, at));
        let acknowledged = u128::from(now.bytes_acked.saturating_sub(before.bytes_acked)) * u128::from(SECOND);
        let fade = |sum: u64, now: u64, before: u64| sum - sum / 64 + now.saturating_sub(before);
        self.sent = fade(self.sent, now.bytes_sent, before.bytes_sent);
        self.resent = fade(self.resent, now.bytes_retrans, before.bytes_retrans);
        let (times, until) = (now.busy_times(), before.busy_times());
        let [busy, receiver_limited, buffer_limited] = [0, 1, 2].map(|at: usize| times[at].saturating_sub(until[at]));
        StreamSample {
            rate: u64::try_from(acknowledged / u128::from(time.max(1))).unwrap_or(u64::MAX),
            app_limited: now.rate_is_of_the_program(),
            unsent: now.notsent_bytes.into(),
            busy,
            receiver_limited,
            buffer_limited,
            sent: self.sent,
            resent: self.resent,
            in_vain: 0,
            round_trip: u64::from(now.rtt) * 1000,
            queued: u64::from(now.rtt.saturating_sub(now.min_rtt)) * 1000,
        }
    }
}
