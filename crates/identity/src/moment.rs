//! Points in time, in whole seconds, as certificates have them.

use core::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;

/// Seconds since 1970, in UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Moment(pub i64);

/// An hour, in seconds.
pub const HOUR: i64 = 3600;
/// A day, in seconds.
pub const DAY: i64 = 24 * HOUR;
/// The last second that a certificate can name.
const LAST: i64 = 253_402_300_799;

impl Moment {
    /// Now, by the clock of this host.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_secs()).unwrap_or(LAST))
    }

    /// So many seconds later, or earlier.
    #[must_use]
    pub fn plus(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds).clamp(0, LAST))
    }

    /// Seconds from `now` until then; negative once it has passed.
    pub fn after(self, now: Self) -> i64 {
        self.0.saturating_sub(now.0)
    }

    pub(crate) fn to_date(self) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(self.0.clamp(0, LAST)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.to_date();
        let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
        write!(f, "{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", at.hour(), at.minute(), at.second())
    }
}

/// From when and until when a certificate is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    /// The first second.
    pub from: Moment,
    /// The last second.
    pub to: Moment,
}

impl Validity {
    /// For so many seconds from now; from five minutes ago, for clocks that are a little behind.
    pub fn seconds(seconds: i64) -> Self {
        let now = Moment::now();
        Self { from: now.plus(-SKEW), to: now.plus(seconds) }
    }
}

/// How far clocks may differ without an effect.
const SKEW: i64 = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_read_as_dates() {
        assert_eq!(Moment(0).to_string(), "1970-01-01 00:00:00 UTC");
        assert_eq!(Moment(1_795_281_296).to_string(), "2026-11-21 17:14:56 UTC");
        assert_eq!(Moment(i64::MAX).to_string(), "9999-12-31 23:59:59 UTC");
        assert_eq!(Moment(i64::MIN).plus(-1), Moment(0));
        assert_eq!(Moment(5).after(Moment(7)), -2);
    }
}
