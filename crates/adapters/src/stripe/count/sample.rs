//! What the kernel reports of a stream (TCP_INFO), and whether it shows that more streams would carry more.

use super::guess::Way;

/// A part of a time or of bytes above which something counts, in thousandths and in millionths.
const HELD_BACK: u64 = 300;
const LOST: u64 = 200;
/// Fewer losses count where a stream carries about what they let one carry, from half to so many times that: on a fast, long way few are
/// enough.
const OF_FORMULA: f64 = 3.0;
const SEGMENT: f64 = 1448.0;
/// A part of the round trip, and nanoseconds, above which a queue counts.
const QUEUE_PART: u64 = 6;
const QUEUE: u64 = 2_000_000;

/// One stream since the last sample: differences of TCP_INFO's counters, and its present values.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StreamSample {
    /// Bytes a second that were acknowledged (`tcpi_bytes_acked`; `tcpi_delivery_rate` is of one acknowledgement, and CUBIC's swings);
    /// where `app_limited`, less than the stream could carry.
    pub rate: u64,
    /// `tcpi_delivery_rate_app_limited`.
    pub app_limited: bool,
    /// `tcpi_notsent_bytes`.
    pub unsent: u64,
    /// `tcpi_busy_time`, and the parts of it in which the receiver's window and our own buffer held it back: all in one unit.
    pub busy: u64,
    /// `tcpi_rwnd_limited`.
    pub receiver_limited: u64,
    /// `tcpi_sndbuf_limited`.
    pub buffer_limited: u64,
    /// `tcpi_bytes_sent`.
    pub sent: u64,
    /// `tcpi_bytes_retrans`.
    pub resent: u64,
    /// `tcpi_dsack_dups` times `tcpi_snd_mss`: what was sent again in vain.
    pub in_vain: u64,
    /// `tcpi_rtt`, nanoseconds.
    pub round_trip: u64,
    /// What of it is more than `tcpi_min_rtt`: the time that bytes wait in queues of the way.
    pub queued: u64,
}

/// What holds a stream back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// There is not more to be sent.
    Application,
    /// The other end's window: it is slow, or its buffer is small for this way.
    Receiver,
    /// This end's buffer.
    SendBuffer,
    /// Losses.
    Loss,
    /// Nothing but the link.
    Link,
}

impl StreamSample {
    /// What holds it back; `best` is the highest rate it was seen to have.
    pub fn class(&self, best: u64) -> Class {
        let of_busy =
            |part: u64| self.busy > 0 && u128::from(part) * 1000 > u128::from(self.busy) * u128::from(HELD_BACK);
        if of_busy(self.receiver_limited) {
            Class::Receiver
        } else if of_busy(self.buffer_limited) {
            Class::SendBuffer
        } else if self.app_limited || self.unsent == 0 {
            Class::Application
        } else if self.loses() && self.rate < best {
            Class::Loss
        } else {
            Class::Link
        }
    }

    /// Whether bytes wait on the way: then losses are those of a full queue, and more streams push each other aside.
    pub(super) fn fills_a_queue(&self) -> bool {
        self.queued > (self.round_trip / QUEUE_PART).max(QUEUE)
    }

    /// Whether it loses so much that this may hold it back.
    pub(super) fn loses(&self) -> bool {
        let lost = self.resent.saturating_sub(self.in_vain);
        if u128::from(lost) * 1_000_000 > u128::from(self.sent) * u128::from(LOST) {
            return true;
        }
        let (loss, round_trip) = (lost as f64 / self.sent as f64, self.round_trip as f64 / 1e9);
        let way = Way { rate: self.rate as f64, round_trip, loss, segment: SEGMENT };
        let one = way.one_stream();
        lost > 0 && one < 2.0 * way.rate && way.rate < OF_FORMULA * one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sign_has_its_class() {
        let full = StreamSample { rate: 1000, unsent: 1, busy: 100, sent: 1_000_000, ..StreamSample::default() };
        assert_eq!(full.class(1000), Class::Link);
        assert_eq!(StreamSample { app_limited: true, ..full }.class(1000), Class::Application);
        assert_eq!(StreamSample { unsent: 0, ..full }.class(1000), Class::Application);
        assert_eq!(StreamSample { receiver_limited: 31, app_limited: true, ..full }.class(1000), Class::Receiver);
        assert_eq!(StreamSample { receiver_limited: 30, ..full }.class(1000), Class::Link);
        assert_eq!(StreamSample { buffer_limited: 31, ..full }.class(1000), Class::SendBuffer);
        let lossy = StreamSample { resent: 201, ..full };
        assert_eq!((lossy.class(1001), lossy.class(1000)), (Class::Loss, Class::Link));
        assert_eq!(StreamSample { resent: 200, ..full }.class(1001), Class::Link);
        assert_eq!(StreamSample { in_vain: 150, ..lossy }.class(1001), Class::Link);
        assert_eq!(StreamSample::default().class(0), Class::Application);
    }

    /// One packet of ten thousand holds back a stream over 50 ms; not one that fills a gigabit all the same.
    #[test]
    fn few_losses_hold_back_a_stream_on_a_long_way() {
        let lossy =
            StreamSample { sent: 100_000_000, resent: 10_000, round_trip: 50_000_000, ..StreamSample::default() };
        let loses = |megabits: u64| StreamSample { rate: megabits * 125_000, ..lossy }.loses();
        assert_eq!([25, 75, 85, 900].map(loses), [true, true, false, false]);
        assert!(!StreamSample { resent: 0, rate: 25 * 125_000, ..lossy }.loses());
        // Something else holds it back: on a short way they would let it carry eight times as much.
        assert!(!StreamSample { rate: 900 * 125_000, round_trip: 200_000, ..lossy }.loses());
    }

    #[test]
    fn a_queue_is_a_part_of_the_round_trip() {
        let fills = |queued, round_trip| StreamSample { queued, round_trip, ..StreamSample::default() }.fills_a_queue();
        assert!(fills(20_000_001, 120_000_000) && !fills(20_000_000, 120_000_000));
        // Of a short way two milliseconds are none.
        assert!(fills(2_000_001, 3_000_000) && !fills(2_000_000, 3_000_000));
    }
}
