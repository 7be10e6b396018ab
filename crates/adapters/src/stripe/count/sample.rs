//! What the kernel reports of a stream (TCP_INFO), and whether it shows that more streams would carry more.

/// A part of a time or of bytes above which something counts, in thousandths and in millionths.
const HELD_BACK: u64 = 300;
const LOST: u64 = 200;
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

    pub(super) fn loses(&self) -> bool {
        let lost = self.resent.saturating_sub(self.in_vain);
        u128::from(lost) * 1_000_000 > u128::from(self.sent) * u128::from(LOST)
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

    #[test]
    fn a_queue_is_a_part_of_the_round_trip() {
        let fills = |queued, round_trip| StreamSample { queued, round_trip, ..StreamSample::default() }.fills_a_queue();
        assert!(fills(20_000_001, 120_000_000) && !fills(20_000_000, 120_000_000));
        // Of a short way two milliseconds are none.
        assert!(fills(2_000_001, 3_000_000) && !fills(2_000_000, 3_000_000));
    }
}
