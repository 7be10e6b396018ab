//! How long sends to a node are refused.

/// Nothing could be sent for so long, though it was tried again and again ...
const LONG_NS: u64 = 10_000_000_000;
/// ... with no longer pauses than this.
const PAUSE_NS: u64 = 1_000_000_000;

/// Since when nothing could be sent to a node.
pub(crate) struct Refused {
    since: u64,
    last: u64,
    /// Frames sent before.
    sent: u64,
    reported: bool,
}

impl Refused {
    /// A send is refused once more: for how many nanoseconds all were, if a report is due.
    pub(crate) fn again(this: &mut Option<Self>, sent: u64, now: u64) -> Option<u64> {
        let refused = this.take().filter(|it| it.sent == sent && now.saturating_sub(it.last) < PAUSE_NS);
        let refused = this.insert(refused.unwrap_or(Self { since: now, last: now, sent, reported: false }));
        refused.last = now;
        let long = now.saturating_sub(refused.since);
        let tell = long >= LONG_NS && !core::mem::replace(&mut refused.reported, long >= LONG_NS);
        tell.then_some(long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Sends that are refused every so many milliseconds, up to a time.
    fn refuse(this: &mut Option<Refused>, sent: u64, every: u64, (from, to): (u64, u64)) -> Vec<u64> {
        (from..to)
            .step_by(every as usize)
            .filter_map(|ms| Refused::again(this, sent, ms * MS))
            .map(|ns| ns / MS)
            .collect()
    }

    #[test]
    fn is_told_once_after_a_long_time_in_which_nothing_was_sent() {
        let mut refused = None;
        assert_eq!(refuse(&mut refused, 5, 100, (0, 10_000)), []);
        assert_eq!(refuse(&mut refused, 5, 100, (10_000, 60_000)), [10_000]);
        assert_eq!(refuse(&mut refused, 6, 100, (60_000, 69_000)), [], "something was sent");
        assert_eq!(refuse(&mut refused, 6, 100, (69_000, 80_000)), [10_000]);
    }

    #[test]
    fn who_does_not_try_is_not_refused() {
        let mut refused = None;
        assert_eq!(refuse(&mut refused, 5, 2_000, (0, 60_000)), []);
    }
}
