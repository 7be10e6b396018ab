//! How many streams a stripe has, found by measurement: one doubles, sees whether that carries more, and goes back where it does not.
//!
//! Decisions only: the owner of the sockets passes what the kernel reports of them ([`StreamSample`]) every 200 ms or two round trips,
//! whichever is longer, and opens or retires streams. A peak exists beyond which more streams carry less; and every stream takes a share of
//! what others use. So more are tried only where a sign shows that they may help, and never again soon where they did not.

mod guess;
mod sample;

use std::collections::VecDeque;

pub use guess::{Congestion, Way, first_guess};
pub use sample::{Class, StreamSample};

use super::figures::{MILLISECOND, SECOND, ratio};
use super::limits::MOST_STREAMS;

/// How long streams are observed before and after a change: the longer of this and so many round trips.
const OBSERVED: u64 = SECOND;
const OBSERVED_TRIPS: u64 = 10;
/// More streams stay where they carry a tenth more; fewer, where they carry a twentieth less or better.
const MORE: (u64, u64) = (11, 10);
const FEWER: (u64, u64) = (19, 20);
/// There is too little to send where that has been so for so long: a stream that is faster than the others has less than it could carry now
/// and then.
const IDLE: u64 = SECOND;
/// What did not help is not tried again for so long, then for twice as long, up to this.
const HOLD: (u64, u64) = (30 * SECOND, 600 * SECOND);
/// A try that ends for there is too little to send, and nothing was seen, is made again after so long, then after twice as long, up to this:
/// the windows of the streams inside grow while more connections come, and until then those lack bytes.
const BROKEN_OFF: (u64, u64) = (SECOND, 30 * SECOND);
/// Fewer are tried after so long without a change.
const STEADY: u64 = 60 * SECOND;
/// Streams that are not all there after so long do not come, or do not go.
const PATIENCE: u64 = 30 * SECOND;
/// Samples that are kept, whatever comes.
const SAMPLES: usize = 4096;

/// The number of streams of one link.
#[derive(Clone, Debug)]
pub struct StreamCount {
    count: usize,
    limit: usize,
    congestion: Congestion,
    stage: Stage,
    /// The samples of this stage: when, and the rate of all streams together.
    seen: VecDeque<(u64, u64)>,
    /// The highest rate that one stream was seen to have.
    best: u64,
    /// Since when there is too little to send, and the sum and number of the samples of all streams together since then.
    idle_since: Option<(u64, u64, u64)>,
    /// When more, and fewer, may be tried, and how long they are not after the next failure.
    more: Hold,
    fewer: Hold,
    /// How long no more are tried after the next try that shows nothing.
    broken_off: u64,
    /// What more of them carried when that seemed to be no better.
    missed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// As many as there should be.
    Steady,
    /// Another number is tried, since then; before, there were so many, and they carried that. What counts begins at `counts`.
    Tries { from: usize, rate: u64, began: u64, counts: Option<u64> },
}

/// What is known of the streams in one sample.
struct Signs {
    /// More of them may help.
    more: bool,
    /// Most lose, and no queue fills.
    roomy: bool,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    until: u64,
    next: u64,
}

impl Hold {
    fn fail(&mut self, now: u64) {
        self.until = now.saturating_add(self.next);
        self.next = (2 * self.next).min(HOLD.1);
    }
}

impl StreamCount {
    /// A link that begins with so many streams, of at most `limit`; from [`first_guess`], or what was remembered of the same peer.
    pub fn new(now: u64, count: usize, limit: usize, congestion: Congestion) -> Self {
        let limit = limit.clamp(1, MOST_STREAMS.into());
        let hold = |until, next| Hold { until, next };
        Self {
            count: count.clamp(1, limit),
            limit,
            congestion,
            stage: Stage::Steady,
            seen: VecDeque::new(),
            best: 0,
            idle_since: None,
            more: hold(now, HOLD.0),
            fewer: hold(now.saturating_add(STEADY), STEADY),
            broken_off: BROKEN_OFF.0,
            missed: 0,
        }
    }

    /// How many streams there should be now.
    pub fn count(&self) -> usize {
        self.count
    }

    /// One sample of each stream that is up; how many there should be.
    pub fn sample(&mut self, now: u64, streams: &[StreamSample]) -> usize {
        if streams.is_empty() {
            return self.count;
        }
        let classes: Vec<Class> = streams.iter().map(|stream| self.class(stream)).collect();
        for stream in streams.iter().filter(|stream| !stream.app_limited) {
            self.best = self.best.max(stream.rate);
        }
        let most_are = |class: Class| 2 * classes.iter().filter(|found| **found == class).count() > classes.len();
        let rate = streams.iter().map(|stream| stream.rate).fold(0, u64::saturating_add);
        if most_are(Class::Application) {
            let (since, sum, samples) = self.idle_since.unwrap_or((now, 0, 0));
            let (sum, samples) = (sum.saturating_add(rate), samples + 1);
            self.idle_since = Some((since, sum, samples));
            let is_idle = since.saturating_add(IDLE) <= now;
            return if is_idle { self.idle(now, streams.len(), sum / samples) } else { self.count };
        }
        self.idle_since = None;
        let signs = Signs::of(streams, &classes, self.congestion);
        let trip = streams.iter().map(|stream| stream.round_trip).max().unwrap_or(0);
        let period = OBSERVED.max(OBSERVED_TRIPS.saturating_mul(trip)) / if signs.roomy { 2 } else { 1 };
        if !self.counts(now, streams, trip) {
            return self.count;
        }
        self.note(now, period, rate);
        if let Some(rate) = self.average(now, period) {
            match self.stage {
                Stage::Tries { from, rate: before, .. } => self.judge(now, (from, before), rate, &signs),
                Stage::Steady => self.try_another(now, rate, &signs),
            }
        }
        self.count
    }

    /// What holds a stream back. Losses hold none back that goes by rate; its window and its buffer do.
    fn class(&self, stream: &StreamSample) -> Class {
        match stream.class(self.best) {
            Class::Loss if self.congestion == Congestion::ByRate => Class::Link,
            class => class,
        }
    }

    /// Whether what is seen now counts: all streams are there, and carry what they can.
    fn counts(&mut self, now: u64, streams: &[StreamSample], trip: u64) -> bool {
        let all = streams.len() == self.count;
        match &mut self.stage {
            Stage::Steady => {
                if !all {
                    self.seen.clear();
                }
                all
            }
            Stage::Tries { counts: Some(begin), .. } => *begin <= now,
            Stage::Tries { counts, .. } if all => {
                *counts = Some(now.saturating_add(settling(streams, trip)));
                false
            }
            Stage::Tries { from, began, .. } => {
                let (from, late) = (*from, began.saturating_add(PATIENCE) <= now);
                if late {
                    self.settle(now, from);
                    self.more.fail(now);
                    self.fewer.fail(now);
                }
                false
            }
        }
    }

    /// There is too little to send, and so many streams together carried that: what could go is not known. More of them that are being tried
    /// stay where all are there and carry more all the same; any other try is left, and was no failure.
    fn idle(&mut self, now: u64, streams: usize, rate: u64) -> usize {
        if let Stage::Tries { from, rate: before, .. } = self.stage {
            let is_all = streams == self.count && streams > from;
            let is_better = is_all && ratio(before, MORE.0, MORE.1) <= rate;
            self.settle(now, if is_better { self.count } else { from.min(self.count) });
            if !is_better {
                self.more.until = self.more.until.max(now.saturating_add(self.broken_off));
                self.broken_off = (2 * self.broken_off).min(BROKEN_OFF.1);
            }
        }
        self.seen.clear();
        self.fewer.until = self.fewer.until.max(now.saturating_add(STEADY));
        self.count
    }

    /// A number of streams was tried: it stays, or not.
    fn judge(&mut self, now: u64, (from, before): (usize, u64), rate: u64, signs: &Signs) {
        self.broken_off = BROKEN_OFF.0;
        if self.count > from {
            // Where losses come and no queue fills, the way has room. Rates show nothing there: until its first loss a new stream carries
            // many times what it will, and CUBIC's swing by half.
            if signs.roomy || ratio(before, MORE.0, MORE.1) <= rate {
                // It went well, and the next step may, too.
                self.settle(now, self.count);
                (self.more, self.fewer.next, self.missed) = (Hold { until: now, next: HOLD.0 }, STEADY, 0);
                self.try_another(now, rate, signs);
            } else {
                self.settle(now, from);
                self.more.fail(now);
                self.missed = rate;
            }
        } else if ratio(before, FEWER.0, FEWER.1) <= rate {
            self.settle(now, self.count);
            // More were there before, and were no better.
            self.more.fail(now);
        } else {
            self.settle(now, from);
            self.fewer.fail(now);
        }
    }

    /// It has been so for a while: perhaps more, or fewer, are better.
    fn try_another(&mut self, now: u64, rate: u64, signs: &Signs) {
        let more = (self.count + 1).next_power_of_two().min(self.limit);
        // What they were compared with may have been a lucky second, before the first losses.
        let was_worth_it = ratio(rate, MORE.0, MORE.1) <= self.missed;
        let count = if signs.more && more > self.count && (self.more.until <= now || was_worth_it) {
            self.missed = 0;
            more
        } else if self.count > 1 && self.fewer.until <= now {
            self.count / 2
        } else {
            return;
        };
        self.stage = Stage::Tries { from: self.count, rate, began: now, counts: None };
        self.count = count;
        self.seen.clear();
    }

    /// So many there are from now on.
    fn settle(&mut self, now: u64, count: usize) {
        if count == self.count {
            // It is another one than before.
            self.fewer.until = self.fewer.until.max(now.saturating_add(STEADY));
        }
        self.count = count;
        self.stage = Stage::Steady;
        self.seen.clear();
    }

    fn note(&mut self, now: u64, period: u64, rate: u64) {
        self.seen.push_back((now, rate));
        // The one before those that count stays: it shows that they are all there.
        while self.seen.get(1).is_some_and(|(at, _)| at.saturating_add(period) <= now) || self.seen.len() > SAMPLES {
            self.seen.pop_front();
        }
    }

    /// What came on average in the time that counts, if it has been that long.
    fn average(&self, now: u64, period: u64) -> Option<u64> {
        let (first, _) = self.seen.front()?;
        let rates = self.seen.iter().skip(1).map(|(_, rate)| u128::from(*rate));
        let count = rates.len() as u128;
        (first.saturating_add(period) <= now && count > 0)
            .then(|| u64::try_from(rates.sum::<u128>() / count).unwrap_or(u64::MAX))
    }
}

impl Signs {
    fn of(streams: &[StreamSample], classes: &[Class], congestion: Congestion) -> Self {
        let half = |count: usize| 2 * count >= classes.len();
        let helps = |class: &&Class| matches!(class, Class::Receiver | Class::SendBuffer | Class::Loss);
        Self {
            more: half(classes.iter().filter(helps).count()),
            roomy: congestion == Congestion::ByLoss
                && half(streams.iter().filter(|stream| stream.loses()).count())
                && !half(streams.iter().filter(|stream| stream.fills_a_queue()).count()),
        }
    }
}

/// How long a new stream takes until it carries what it can: slow start doubles from ten segments each round trip.
fn settling(streams: &[StreamSample], trip: u64) -> u64 {
    let best = streams.iter().map(|stream| stream.rate).max().unwrap_or(0);
    let windows = ratio(best, trip, SECOND) / (10 * 1448);
    let trips = 2 + u64::from((windows + 1).ilog2());
    trips.saturating_mul(trip).max(200 * MILLISECOND)
}

#[cfg(test)]
mod tests;
