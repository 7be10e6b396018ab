//! Congestion control by the rate at which bytes arrive: BBR of its first version (Cardwell et al., ACM Queue 14(5), 2016), for lines that
//! lose packets for other reasons than a full queue. (The third version takes more than 2 % of loss in a round for a full queue, and comes
//! to a stop on a line that always loses 7 %.)
//!
//! ```text
//!   Startup: twice as fast each round, until the rate grows no more --> Drain: what waits in queues goes out --> Probe: a round trip at a
//!   quarter more, one at a quarter less, six at the rate; so a larger rate is found within eight, and a queue is emptied
//! ```
//! * The rate is the largest at which bytes were delivered in the last ten round trips. The window is one and a half times what that
//!   carries in the shortest round trip, so that queues hold no more than half of that. If none was that short for ten seconds, the window
//!   is half for a moment, and the shortest is measured anew.
//! * Acknowledgements that come in heaps, from hosts that are busy now and then, show nothing of the line: the window has room for a heap.
//! * What is lost while no queue grows is lost by the line. That many more bytes are sent, so that the line is full and the loss is not
//!   taken for a smaller rate. While a queue grows nothing is added.
//! * What is lost beyond that while there is a queue, the queue has lost: others share it. Then at most seven tenths of what was on its way
//!   may be, and a packet more each round, as TCP does it (RFC 9438).

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

/// The rate is the largest of so many round trips.
const ROUNDS: u64 = 10;
/// What makes the rate double in a round trip, and what empties the queue that this leaves behind.
const STARTUP: f64 = 2.885;
const DRAIN: f64 = 1.0 / STARTUP;
/// A round trip each.
const PROBE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const DOWN: usize = 1;
/// How long the shortest round trip is used, and for how long the window is small then.
const SHORTEST_FOR: Duration = Duration::from_secs(10);
const SMALL_FOR: Duration = Duration::from_millis(200);
/// The window then, of what the line carries in a round trip: what queues hold beyond it goes out.
const SMALL: f64 = 0.5;
/// Packets of the window at the beginning, and at least.
const INITIAL: u64 = 32;
const LEAST: u64 = 4;
/// A round whose shortest round trip is so much above the shortest of all shows a queue. (Long ones come from busy hosts, too.)
const QUEUED: f64 = 1.0625;
/// The most packets on their way; noq-proto never reports what became of a few of them (probes of the MTU that were lost).
const MOST: usize = 1 << 17;
const FORGOTTEN: Duration = Duration::from_secs(10);
/// Bytes a second that no line carries.
const UNPACED: u64 = 1 << 40;
/// What a full queue leaves of the bytes on their way.
const BACK: f64 = 0.7;
/// A heap of acknowledgements is of no longer a time, in seconds, and so much of it is forgotten each round.
const LONGEST_HEAP: f64 = 0.1;
const HEAP_FADES: f64 = 1.0 / 16.0;
/// Where so many rounds lose something it is the line, queue or not.
const MOSTLY: f64 = 0.75;
/// More is never taken for the line's own loss.
const MOST_LOSS: f64 = 0.3;

/// State that a connection and its congestion control share, unknown to noq-proto.
#[derive(Clone, Default, Debug)]
pub(crate) struct Shared(Arc<SharedState>);

// Both ends are in one thread.
#[derive(Default, Debug)]
struct SharedState {
    waits: AtomicBool,
    room: AtomicU64,
}

impl Shared {
    /// Whether a datagram waits for its time ([`crate::pace`]), or for room.
    pub(crate) fn set_waits(&self, waits: bool) {
        self.0.waits.store(waits, Ordering::Relaxed);
    }

    fn waits(&self) -> bool {
        self.0.waits.load(Ordering::Relaxed)
    }

    /// Bytes that may be sent now.
    pub(crate) fn room(&self) -> u64 {
        self.0.room.load(Ordering::Relaxed)
    }
}

/// Makes that of a connection.
#[derive(Clone, Default, Debug)]
pub(crate) struct Config(pub(crate) Shared);

impl ControllerFactory for Config {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Rate::new(now, mtu, self.0.clone()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Startup,
    Drain,
    /// Which of [`PROBE`], and since when.
    Probe(usize, Instant),
    /// The window is small until then.
    Shortest(Instant),
}

/// What was known when a packet was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    delivered: u64,
    delivered_at: Instant,
}

#[derive(Clone, Debug)]
struct Rate {
    shared: Shared,
    mtu: u64,
    phase: Phase,
    /// By their numbers, which are those of one space of several: one of a handshake may be another one's.
    flight: BTreeMap<u64, Sent>,
    /// Bytes on their way, as noq-proto counts them at each acknowledgement: it tells nobody of those that it forgets, such as a handshake's.
    in_flight: u64,
    /// Bytes that arrived, and when the last ones did.
    delivered: u64,
    delivered_at: Instant,
    round: u64,
    /// With the packet that is sent behind so many bytes a round begins.
    round_ends: u64,
    /// The largest rates, in bytes a second, each with its round; falling.
    rates: VecDeque<(u64, f64)>,
    /// The rate at the end of the last round in which it grew, and rounds since.
    grew_to: f64,
    since: u32,
    shortest: Duration,
    shortest_at: Instant,
    /// Of late.
    smoothed: Duration,
    /// Of this round: the shortest round trip; packets that came and that were lost; and the share that the line loses.
    least: Duration,
    came: u64,
    lost: u64,
    loss: f64,
    /// The share of rounds that lost something.
    lossy: f64,
    /// Bytes acknowledged since then, as long as they are more than the rate's; and by how much they were more, of late.
    heap: (Instant, u64),
    heaped: f64,
    /// Bytes on their way that a queue has room for, as its losses showed.
    cap: f64,
}

impl Rate {
    fn new(now: Instant, mtu: u16, shared: Shared) -> Self {
        let rate = Self {
            shared,
            mtu: mtu.into(),
            phase: Phase::Startup,
            flight: BTreeMap::new(),
            in_flight: 0,
            delivered: 0,
            delivered_at: now,
            round: 0,
            round_ends: 0,
            rates: VecDeque::new(),
            grew_to: 0.0,
            since: 0,
            shortest: Duration::MAX,
            shortest_at: now,
            smoothed: Duration::ZERO,
            least: Duration::MAX,
            came: 0,
            lost: 0,
            loss: 0.0,
            lossy: 0.0,
            heap: (now, 0),
            heaped: 0.0,
            cap: f64::INFINITY,
        };
        rate.publish();
        rate
    }

    /// Reports to the connection what may be sent now.
    fn publish(&self) {
        self.shared.0.room.store(self.window().saturating_sub(self.in_flight), Ordering::Relaxed);
    }

    /// Bytes a second that arrive; 0: not known.
    fn rate(&self) -> f64 {
        self.rates.front().map_or(0.0, |(_, rate)| *rate)
    }

    /// What the line carries in the shortest round trip.
    fn on_its_way(&self) -> f64 {
        if self.shortest == Duration::MAX { 0.0 } else { self.rate() * self.shortest.as_secs_f64() }
    }

    /// How many bytes must be sent for each that is to arrive.
    fn for_each(&self) -> f64 {
        1.0 / (1.0 - self.loss)
    }

    fn gain(&self) -> f64 {
        match self.phase {
            Phase::Startup => STARTUP,
            Phase::Drain => DRAIN,
            Phase::Probe(at, _) => PROBE[at],
            Phase::Shortest(_) => 1.0,
        }
    }

    fn note_rate(&mut self, rate: f64) {
        while self.rates.back().is_some_and(|(_, last)| *last <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, rate));
        while self.rates.front().is_some_and(|(round, _)| round + ROUNDS < self.round) {
            self.rates.pop_front();
        }
    }

    /// So many bytes were acknowledged.
    fn note_heap(&mut self, now: Instant, bytes: u64) {
        let rate = self.rate();
        let of_the_rate = |since: Instant| rate * now.saturating_duration_since(since).as_secs_f64();
        if self.heap.1 as f64 <= of_the_rate(self.heap.0) {
            self.heap = (now, 0);
        }
        self.heap.1 += bytes;
        let more = (self.heap.1 as f64 - of_the_rate(self.heap.0)).min(rate * LONGEST_HEAP);
        self.heaped = self.heaped.max(more);
    }

    /// A round has ended; `idle`: the program had no more to send.
    fn end_round(&mut self, idle: bool) {
        self.round += 1;
        self.heaped -= self.heaped * HEAP_FADES;
        let all = self.came + self.lost;
        if all >= 10 {
            let share = (self.lost as f64 / all as f64).min(MOST_LOSS);
            let is_queued = self.least.as_secs_f64() > QUEUED * self.shortest.as_secs_f64();
            self.lossy += (f64::from(u8::from(self.lost > 0)) - self.lossy) / 16.0;
            // A queue's losses show nothing of the line, but they come now and then; a loss below the estimate shows much.
            if !is_queued || share < self.loss || self.lossy > MOSTLY {
                self.loss += (share - self.loss) / 8.0;
            }
            self.heed_queue(is_queued && !idle, all as f64);
            (self.came, self.lost, self.least) = (0, 0, Duration::MAX);
        }
        // How fast a program sends does not show how fast it might.
        if self.phase == Phase::Startup && !idle {
            if self.rate() > 1.25 * self.grew_to {
                (self.grew_to, self.since) = (self.rate(), 0);
            } else {
                self.since += 1;
            }
            if self.since >= 3 {
                self.phase = Phase::Drain;
            }
        }
    }

    /// What was lost of a round's packets beyond what the line loses, and beyond chance, a queue has lost.
    fn heed_queue(&mut self, is_queued: bool, all: f64) {
        let chance = 4.0 * (all * self.loss * (1.0 - self.loss)).sqrt() + 1.0;
        if is_queued && self.lost as f64 > all * self.loss + chance {
            self.cap = (BACK * self.in_flight as f64).max(SMALL * self.on_its_way());
        } else {
            self.cap += self.mtu as f64;
        }
    }

    /// Goes on to the next phase, if it is time.
    fn go_on(&mut self, now: Instant, in_flight: u64) {
        match self.phase {
            Phase::Startup => {}
            Phase::Drain if in_flight as f64 <= self.on_its_way() * self.for_each() => {
                self.phase = Phase::Probe(2, now)
            }
            Phase::Drain => {}
            Phase::Probe(at, since) => {
                let is_empty = in_flight as f64 <= self.on_its_way() * self.for_each();
                let rounds = (now - since).as_secs_f64() / self.shortest.as_secs_f64();
                // What a faster round left in the queue goes out, which may take longer; what is out need not wait.
                let is_over = if at == DOWN { is_empty || rounds >= 3.0 } else { rounds >= 1.0 };
                if is_over {
                    self.phase = Phase::Probe((at + 1) % PROBE.len(), now);
                }
            }
            Phase::Shortest(until) if now >= until => {
                self.shortest_at = now;
                self.phase = Phase::Probe(2, now);
            }
            Phase::Shortest(_) => return,
        }
        let is_old = now >= self.shortest_at + SHORTEST_FOR;
        if is_old && matches!(self.phase, Phase::Probe(..)) {
            self.phase = Phase::Shortest(now + SMALL_FOR + self.smoothed);
            self.shortest = self.smoothed;
        }
    }
}

impl Controller for Rate {
    fn on_packet_sent(&mut self, now: Instant, bytes: u16, number: u64) {
        if self.flight.is_empty() {
            // Nothing was under way: what comes next is not late.
            self.delivered_at = now;
        }
        let is_old = |first: &Sent| self.flight.len() >= MOST || now > first.at + FORGOTTEN;
        if let Some(number) =
            self.flight.first_key_value().filter(|(_, first)| is_old(first)).map(|(number, _)| *number)
        {
            self.flight.remove(&number);
        }
        let (bytes, delivered, delivered_at) = (u64::from(bytes), self.delivered, self.delivered_at);
        self.flight.insert(number, Sent { at: now, delivered, delivered_at });
        self.in_flight += bytes;
        self.publish();
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, number: u64, idle: bool, rtt: &RttEstimator) {
        let idle = idle && !self.shared.waits();
        self.delivered += bytes;
        self.delivered_at = now;
        self.came += 1;
        self.note_heap(now, bytes);
        self.smoothed = rtt.get();
        let took = now.saturating_duration_since(sent);
        self.shortest = self.shortest.min(took);
        self.least = self.least.min(took);
        if took <= self.shortest + self.shortest / 16 {
            self.shortest_at = now;
        }
        let Some(packet) = self.flight.remove(&number) else { return };
        if packet.delivered >= self.round_ends {
            self.round_ends = self.delivered;
            self.end_round(idle);
        }
        // Over the longer of the times in which the bytes were sent, and came: acknowledgements may come in heaps.
        let time = now.saturating_duration_since(packet.delivered_at);
        let time = time.max(packet.at.saturating_duration_since(packet.delivered_at)).as_secs_f64();
        if time <= 0.0 || took < self.shortest / 2 {
            return;
        }
        let rate = (self.delivered - packet.delivered) as f64 / time;
        if !idle || rate > self.rate() {
            self.note_rate(rate);
        }
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, _idle: bool, _largest: Option<u64>) {
        self.in_flight = in_flight;
        self.go_on(now, in_flight);
        self.publish();
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, persistent: bool, _ecn: bool, _lost: u64, _number: u64) {
        if persistent {
            // Nothing came through for long: the line is another one.
            self.rates.clear();
            (self.phase, self.grew_to, self.since) = (Phase::Startup, 0.0, 0);
            self.cap = f64::INFINITY;
        }
        self.publish();
    }

    fn on_packet_lost(&mut self, lost: u16, number: u64, _now: Instant) {
        self.lost += 1;
        self.flight.remove(&number);
        self.in_flight = self.in_flight.saturating_sub(lost.into());
        self.publish();
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = mtu.into();
        self.publish();
    }

    fn window(&self) -> u64 {
        let gain = match self.phase {
            Phase::Startup => STARTUP,
            Phase::Shortest(_) => SMALL,
            Phase::Drain | Phase::Probe(..) => 1.5,
        };
        let heaped = if self.phase == Phase::Startup { 0.0 } else { self.heaped };
        let gained = gain * self.on_its_way() * self.for_each() + heaped;
        let least = if self.phase == Phase::Startup { INITIAL } else { LEAST };
        (gained.min(self.cap) as u64).max(least * self.mtu) + 3 * self.mtu
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        if self.rate() > 0.0 {
            // For [`crate::pace`], which spreads datagrams over time instead of noq-proto.
            metrics.bandwidth_estimate = Some((self.gain() * self.rate() * self.for_each() * 8.0) as u64);
        }
        metrics.pacing_rate = Some(UNPACED);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL * self.mtu
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_tells_of_is_forgotten() {
        let mut rate = Rate::new(Instant::now(), 1200, Shared::default());
        let begin = Instant::now();
        for number in 0..MOST as u64 + 1000 {
            rate.on_packet_sent(begin, 1200, number);
        }
        assert_eq!(rate.flight.len(), MOST);
    }

    /// Packets of a handshake have the numbers of others, and what became of them is not told: they take no room for ever.
    #[test]
    fn a_handshake_leaves_all_room() {
        let (begin, shared) = (Instant::now(), Shared::default());
        let mut rate = Rate::new(begin, 1200, shared.clone());
        for number in [0, 0, 1, 2, 0, 1] {
            rate.on_packet_sent(begin, 1200, number);
        }
        rate.on_end_acks(begin + Duration::from_millis(1), 1200, false, Some(1));
        assert_eq!(shared.room(), rate.window() - 1200);
        rate.on_packet_lost(1200, 0, begin);
        assert_eq!(shared.room(), rate.window());
    }

    #[test]
    fn a_program_that_sends_little_is_not_held_to_it() {
        let begin = Instant::now();
        let mut rate = Rate::new(begin, 1200, Shared::default());
        rate.shortest = Duration::from_millis(20);
        rate.note_rate(1e5);
        (0..20).for_each(|_| rate.end_round(true));
        assert_eq!(rate.phase, Phase::Startup);
        assert!(rate.metrics().bandwidth_estimate >= Some(8 * 288_000));
        (0..5).for_each(|_| rate.end_round(false));
        assert_eq!(rate.phase, Phase::Drain);
    }

    #[test]
    fn a_line_is_another_one_where_nothing_came_through_for_long() {
        let begin = Instant::now();
        let mut rate = Rate::new(begin, 1200, Shared::default());
        let initial = rate.window();
        rate.phase = Phase::Probe(3, begin);
        (rate.round, rate.shortest) = (5, Duration::from_millis(10));
        rate.note_rate(1e6);
        rate.note_rate(5e5);
        assert_eq!((rate.rate(), rate.window()), (1e6, 15_000 + 3600));
        // The largest one is forgotten after ten rounds.
        rate.round += ROUNDS + 1;
        rate.note_rate(4e5);
        assert_eq!(rate.rate(), 4e5);
        rate.on_congestion_event(begin, begin, true, false, 1200, 1);
        assert_eq!((rate.phase, rate.rate(), rate.window()), (Phase::Startup, 0.0, initial));
    }
}
