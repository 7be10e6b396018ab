//! When a stream tries another way, which one, and when it is given up. Decisions only, without streams and clocks, so that
//! `simulation/migration.rs` can play them. `migrations.rs` carries them out.
//!
//! The two ends of a link that falls silent notice it within [`SKEW`] of each other ([`link_limits`]). The calling end tries other ways from
//! then on. The target end waits as long, and that much longer. So both ends know of a permanent cut within 15 seconds.

use std::collections::BTreeMap;

use madrigal_proto::mux::Limits;

use crate::units::{MILLISECOND, SECOND};

/// After how long a link without a word is asked, and how long after that it is given up: an outage of five seconds is survived, for the
/// kernel has sent again by then what was lost.
const ASKED: u64 = 2 * SECOND;
const GIVEN_UP: u64 = 8 * SECOND;
/// What one end of a link may hear of its silence later than the other, beside the round trip.
const SKEW: u64 = ASKED;
/// How long a stream waits for another way where it began, and where it ends: when its way was closed, and when it fell silent.
const CALLER: (u64, u64) = (1500 * MILLISECOND, 2300 * MILLISECOND);
const TARGET: (u64, u64) = (1800 * MILLISECOND, CALLER.1 + SKEW + 300 * MILLISECOND);
/// How long a way may take to answer.
const PATIENCE: u64 = SECOND;
/// A way that did not work is tried again after this time.
const AGAIN: u64 = 150 * MILLISECOND;
/// Where a stream has a way that works, a better one may refuse it so often, each time after twice the pause: it stays after that.
const REFUSALS: u32 = 8;

/// What links between daemons keep to.
pub(crate) fn link_limits() -> Limits {
    Limits { idle: ASKED, patience: GIVEN_UP, ..Limits::default() }
}

/// A stream that is to go on by another way.
#[derive(Debug)]
pub(crate) struct Failover {
    /// When it is given up; never, while the way that it has still works.
    end: u64,
    next: u64,
    /// The way that was asked for, and until when it may answer.
    asked: Option<(String, u64)>,
    /// When each way may be tried again.
    tried: BTreeMap<String, u64>,
    /// How often a better way refused it.
    refused: u32,
    /// Why it stays where it is.
    stays: Option<String>,
}

/// What is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    Nothing,
    /// There is no way: the stream is over.
    Over,
    /// The way that was asked for has not answered.
    Unanswered,
    /// To see whether there is a better way.
    Better,
    /// To look for any way.
    Look,
}

impl Failover {
    /// Of a stream that has a way.
    pub(crate) fn new() -> Self {
        Self { end: u64::MAX, next: u64::MAX, asked: None, tried: BTreeMap::new(), refused: 0, stays: None }
    }

    /// The way that it has is no more; `silent`: by the silence of a link.
    pub(crate) fn lose(&mut self, now: u64, caller: bool, silent: bool) {
        let limits = if caller { CALLER } else { TARGET };
        self.end = self.end.min(now + if silent { limits.1 } else { limits.0 });
        self.next = if caller { now } else { u64::MAX };
        self.stays = None;
    }

    /// Whether it has no way.
    pub(crate) fn is_lost(&self) -> bool {
        self.end < u64::MAX
    }

    /// When it is due.
    pub(crate) fn deadline(&self) -> u64 {
        self.asked.as_ref().map_or(self.next, |(_, until)| *until).min(self.end)
    }

    /// What is due.
    pub(crate) fn due(&self, now: u64) -> Due {
        match &self.asked {
            _ if self.end <= now => Due::Over,
            Some((_, until)) if *until <= now => Due::Unanswered,
            None if self.next <= now && self.is_lost() => Due::Look,
            None if self.next <= now => Due::Better,
            _ => Due::Nothing,
        }
    }

    /// There may be a way that there was not.
    pub(crate) fn wake(&mut self, now: u64) {
        if self.is_lost() && self.next < u64::MAX {
            self.next = self.next.min(now);
        }
    }

    /// There is a new connection: what refused the stream before may take it.
    pub(crate) fn forgive(&mut self) {
        (self.refused, self.stays) = (0, None);
    }

    /// Whether a better way may be asked now.
    pub(crate) fn may_move(&self) -> bool {
        self.asked.is_none() && !self.is_lost() && self.stays.is_none()
    }

    /// Which of these ways, the best first, a stream that has none asks now.
    pub(crate) fn choose(&mut self, now: u64, ways: &[String]) -> Option<usize> {
        if self.asked.is_some() {
            return None;
        }
        self.next = now + AGAIN;
        ways.iter().position(|way| self.tried.get(way).is_none_or(|next| *next <= now))
    }

    /// It is seen now whether there is a better way.
    pub(crate) fn look_for_better(&mut self) {
        self.next = u64::MAX;
    }

    /// A way was asked.
    pub(crate) fn ask(&mut self, now: u64, way: String) {
        self.asked = Some((way, now + PATIENCE));
    }

    /// The way that was asked said no, or nothing, or is gone. Whether the stream stays where it is for that.
    pub(crate) fn fail(&mut self, now: u64, why: &str) -> bool {
        let Some((way, _)) = self.asked.take() else { return false };
        if self.is_lost() {
            self.tried.insert(way, now + AGAIN);
            self.next = now;
            return false;
        }
        // More may have been said on the way that it has than we knew of when we asked: again, with longer pauses.
        self.next = now + (AGAIN << self.refused);
        self.refused += 1;
        let enough = self.refused >= REFUSALS;
        if enough {
            self.next = u64::MAX;
            self.stays = Some(format!("asked {REFUSALS} times to go on by {way}, in vain; the last time: {why}"));
        }
        enough
    }

    /// Why it stays where it is, though there is a better way.
    pub(crate) fn stays(&self) -> Option<&str> {
        self.stays.as_deref()
    }
}
