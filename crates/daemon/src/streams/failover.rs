//! When a stream tries another way, which one, and when it is given up. Decisions only, without streams and clocks, so that
//! `simulation/migration.rs` can run them. `migrations.rs` carries them out.
//!
//! The two ends of a link that falls silent notice it within [`SKEW`] of each other ([`keepalive_limits`]). The calling end tries other ways from
//! then on. The target end waits as long and [`SKEW`] longer. So both ends notice a permanent cut within 15 seconds.

use std::collections::BTreeMap;

use madrigal_proto::mux::Limits;

use crate::units::{MILLISECOND, SECOND};

/// A link without traffic is pinged after this time.
const IDLE: u64 = 2 * SECOND;
/// A link without traffic is given up this long after the ping. So it survives an outage of five seconds: by then the kernel has
/// retransmitted what was lost.
const SILENCE_LIMIT: u64 = 8 * SECOND;
/// One end of a link may notice its silence this much later than the other end, beside the round trip.
const SKEW: u64 = IDLE;
/// The time that the calling end has to find another way: after its own way was closed, and after it fell silent.
const CALLER_LIMITS: (u64, u64) = (1500 * MILLISECOND, 2300 * MILLISECOND);
/// The time that the target end waits for the calling end, in the same two cases.
const TARGET_LIMITS: (u64, u64) = (1800 * MILLISECOND, CALLER_LIMITS.1 + SKEW + 300 * MILLISECOND);
/// The time that a way has to answer.
const REPLY_TIMEOUT: u64 = SECOND;
/// The pause before a way that failed is tried again.
const RETRY_AFTER: u64 = 150 * MILLISECOND;
/// After so many refusals by better ways, with pauses that double, no other way is tried: the stream stays on its own.
const MOST_REFUSALS: u32 = 8;

/// The limits of links between daemons.
pub(crate) fn keepalive_limits() -> Limits {
    Limits { idle: IDLE, patience: SILENCE_LIMIT, ..Limits::default() }
}

/// The decisions about one stream that migrates.
#[derive(Debug)]
pub(crate) struct Failover {
    /// When it is given up; never, while its own way works.
    end: u64,
    /// When a way is tried next.
    next: u64,
    /// The way that was asked, and when that times out.
    attempt: Option<(String, u64)>,
    /// When each way may be tried again.
    tried: BTreeMap<String, u64>,
    /// How often better ways refused it.
    refusals: u32,
    /// Why it stays on its own way.
    stays: Option<String>,
}

/// What is to be done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Nothing.
    None,
    /// The stream found no way in time: it ends.
    GiveUp,
    /// The way that was asked has not answered in time.
    AttemptTimedOut,
    /// The stream may migrate to a better way, if there is one.
    TryBetter,
    /// The stream has no way: the best one is tried.
    TryAny,
}

impl Failover {
    /// For a stream that has a way.
    pub(crate) fn new() -> Self {
        Self { end: u64::MAX, next: u64::MAX, attempt: None, tried: BTreeMap::new(), refusals: 0, stays: None }
    }

    /// The stream lost its way; `silent`: because a link fell silent.
    pub(crate) fn way_lost(&mut self, now: u64, caller: bool, silent: bool) {
        let limits = if caller { CALLER_LIMITS } else { TARGET_LIMITS };
        self.end = self.end.min(now + if silent { limits.1 } else { limits.0 });
        self.next = if caller { now } else { u64::MAX };
        self.stays = None;
    }

    /// Whether it has no way.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.end < u64::MAX
    }

    /// The next deadline.
    pub(crate) fn deadline(&self) -> u64 {
        self.attempt.as_ref().map_or(self.next, |(_, until)| *until).min(self.end)
    }

    /// What is to be done now.
    pub(crate) fn action(&self, now: u64) -> Action {
        match &self.attempt {
            _ if self.end <= now => Action::GiveUp,
            Some((_, until)) if *until <= now => Action::AttemptTimedOut,
            None if self.next <= now && self.is_disconnected() => Action::TryAny,
            None if self.next <= now => Action::TryBetter,
            _ => Action::None,
        }
    }

    /// There may be a new way.
    pub(crate) fn wake(&mut self, now: u64) {
        if self.is_disconnected() && self.next < u64::MAX {
            self.next = self.next.min(now);
        }
    }

    /// There is a new connection. A way that refused the stream may accept it now.
    pub(crate) fn clear_refusals(&mut self) {
        (self.refusals, self.stays) = (0, None);
    }

    /// Whether a better way may be tried now.
    pub(crate) fn may_migrate(&self) -> bool {
        self.attempt.is_none() && !self.is_disconnected() && self.stays.is_none()
    }

    /// The way that a stream without a way tries now, of these, the best first.
    pub(crate) fn choose(&mut self, now: u64, ways: &[String]) -> Option<usize> {
        if self.attempt.is_some() {
            return None;
        }
        self.next = now + RETRY_AFTER;
        ways.iter().position(|way| self.tried.get(way).is_none_or(|next| *next <= now))
    }

    /// A better way is tried now, if there is one.
    pub(crate) fn begin_better(&mut self) {
        self.next = u64::MAX;
    }

    /// A way was asked.
    pub(crate) fn begin_attempt(&mut self, now: u64, way: String) {
        self.attempt = Some((way, now + REPLY_TIMEOUT));
    }

    /// The way that was asked refused, did not answer, or failed. Returns whether the stream stays on its own way for good.
    pub(crate) fn attempt_failed(&mut self, now: u64, why: &str) -> bool {
        let Some((way, _)) = self.attempt.take() else { return false };
        if self.is_disconnected() {
            self.tried.insert(way, now + RETRY_AFTER);
            self.next = now;
            return false;
        }
        // The request may have crossed acknowledgements on the stream's own way: it is repeated, with longer pauses.
        self.next = now + (RETRY_AFTER << self.refusals);
        self.refusals += 1;
        let enough = self.refusals >= MOST_REFUSALS;
        if enough {
            self.next = u64::MAX;
            self.stays = Some(format!("asked {MOST_REFUSALS} times to go on by {way}, in vain; the last time: {why}"));
        }
        enough
    }

    /// Why it stays on its own way though there is a better one.
    pub(crate) fn stays(&self) -> Option<&str> {
        self.stays.as_deref()
    }
}
