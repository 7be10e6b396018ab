//! One direction of a WAN link, without I/O and without a clock: packets and the time go in, packets and the time of the next one come out.
//!
//! ```text
//!   push --> [ waiting, bounded ] --> line: one packet after another at the rate, some lost --> [ in flight: delay +- jitter ] --> pop
//! ```
//! Packets come out in the order they went in. Times are those of the model, not of the caller: a late caller gets late packets,
//! but the line was not idle meanwhile. The n-th packet to enter the line is lost or not by the seed and n alone.

use std::collections::VecDeque;

use super::settings::Settings;

/// What became of packets, since the link is up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Packets that came out.
    pub packets: u64,
    /// Bytes that came out.
    pub bytes: u64,
    /// Lost on the line.
    pub lost: u64,
    /// Dropped because the queue was full.
    pub full: u64,
    /// Dropped because they were longer than the MTU of a hole.
    pub long: u64,
    /// Dropped because the link was cut.
    pub cut: u64,
}

/// Why a packet was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// The queue is full.
    Full,
    /// It is longer than the MTU, and the link is a hole.
    Long,
    /// The link is cut.
    Cut,
}

/// What a line carries: a packet, or several that came together and may be divided again.
pub trait Load: Sized {
    /// Bytes on the line, of all packets.
    fn bytes(&self) -> u64;
    /// How many packets.
    fn segments(&self) -> u32;
    /// Bytes of the longest packet.
    fn longest(&self) -> u32;
    /// The first `at` packets and the others; everything and nothing, where `at` does not lie within.
    fn split(self, at: u32) -> (Self, Option<Self>);
}

/// Packets stay together up to this time on the line (nanoseconds): what comes in one piece arrives in one piece.
const TOGETHER: u64 = 250_000;

struct Waiting<P> {
    came: u64,
    packet: P,
}

struct Flying<P> {
    due: u64,
    packet: P,
}

/// One direction of a link for packets `P`. Times are nanoseconds of any one clock.
pub struct Direction<P> {
    settings: Settings,
    seed: u64,
    cut: bool,
    waiting: VecDeque<Waiting<P>>,
    waiting_bytes: u64,
    /// When the line has sent everything before the first that waits.
    free: u64,
    /// How many packets entered the line.
    entered: u64,
    flying: VecDeque<Flying<P>>,
    last_due: u64,
    counts: Counts,
}

impl<P: Load> Direction<P> {
    /// An idle line. Two lines of the same seed lose the same packets.
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self {
            settings,
            seed,
            cut: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            free: 0,
            entered: 0,
            flying: VecDeque::new(),
            last_due: 0,
            counts: Counts::default(),
        }
    }

    /// A packet, or several, come at `now`. Of several, those that fit are taken.
    pub fn push(&mut self, now: u64, packet: P) -> Result<(), Dropped> {
        if self.cut {
            self.counts.cut += u64::from(packet.segments());
            return Err(Dropped::Cut);
        }
        if self.settings.hole && packet.longest() > self.settings.mtu {
            self.counts.long += u64::from(packet.segments());
            return Err(Dropped::Long);
        }
        self.advance(now);
        let together = TOGETHER.checked_div(self.settings.line_time(packet.longest().into()));
        let together = together.map_or(u32::MAX, |count| count.clamp(1, u64::from(u32::MAX)) as u32);
        let mut rest = Some(packet);
        while let Some(packet) = rest {
            let (first, more) = packet.split(together);
            rest = more;
            if let Some(refused) = self.enqueue(now, first) {
                self.counts.full += u64::from(refused.segments() + rest.map_or(0, |rest| rest.segments()));
                return Err(Dropped::Full);
            }
        }
        Ok(())
    }

    /// Queues as many packets as there is room for; returns the rest.
    fn enqueue(&mut self, now: u64, packet: P) -> Option<P> {
        let room = self.settings.queue_bytes().saturating_sub(self.waiting_bytes);
        let (taken, refused) = if packet.bytes() <= room {
            (Some(packet), None)
        } else {
            match (room / u64::from(packet.longest().max(1))).min(u64::from(u32::MAX)) as u32 {
                0 => (None, Some(packet)),
                fit => {
                    let (taken, refused) = packet.split(fit);
                    (Some(taken), refused)
                }
            }
        };
        if let Some(packet) = taken {
            self.waiting_bytes += packet.bytes();
            self.waiting.push_back(Waiting { came: now, packet });
        }
        refused
    }

    /// The next packet that has arrived by `now`.
    pub fn pop(&mut self, now: u64) -> Option<P> {
        self.advance(now);
        self.flying.front().filter(|first| first.due <= now)?;
        let arrived = self.flying.pop_front()?;
        self.counts.packets += u64::from(arrived.packet.segments());
        self.counts.bytes += arrived.packet.bytes();
        Some(arrived.packet)
    }

    /// When [`Direction::pop`] has something, at the earliest; `None` when nothing is on its way.
    pub fn next(&self) -> Option<u64> {
        if let Some(first) = self.flying.front() {
            return Some(first.due);
        }
        self.departure().map(|sent| self.arrival(sent))
    }

    /// Changes the settings from `now` on. Packets in flight keep their times; packets in the queue are sent at the new rate.
    pub fn set(&mut self, now: u64, settings: Settings) {
        self.advance(now);
        self.settings = settings;
    }

    /// Cuts the line, with everything that waits or flies, or heals it.
    pub fn set_cut(&mut self, now: u64, cut: bool) {
        self.advance(now);
        self.cut = cut;
        if cut {
            let on_the_way = self.waiting.iter().map(|w| &w.packet).chain(self.flying.iter().map(|f| &f.packet));
            self.counts.cut += on_the_way.map(|packet| u64::from(packet.segments())).sum::<u64>();
            self.waiting.clear();
            self.flying.clear();
            self.waiting_bytes = 0;
        }
    }

    /// Whether the line is cut.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What became of packets.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes that wait for the line, those of a packet partly sent included.
    pub fn backlog(&self) -> u64 {
        self.waiting_bytes
    }

    /// When the first that waits has left.
    fn departure(&self) -> Option<u64> {
        let first = self.waiting.front()?;
        Some(self.free.max(first.came) + self.settings.line_time(first.packet.bytes()))
    }

    /// The arrival time of packets that left at `sent`.
    fn arrival(&self, sent: u64) -> u64 {
        let delay = self.settings.delay.as_nanos() as u64;
        (sent + delay).saturating_add_signed(self.stray(sent)).max(self.last_due)
    }

    /// Moves packets that have left the line by `now` into flight.
    fn advance(&mut self, now: u64) {
        while let Some(sent) = self.departure().filter(|&sent| sent <= now) {
            let Some(Waiting { packet, .. }) = self.waiting.pop_front() else { return };
            self.waiting_bytes -= packet.bytes();
            self.free = sent;
            self.fly(sent, packet);
        }
    }

    /// Puts the packets that are not lost into flight, at `sent`.
    fn fly(&mut self, sent: u64, packet: P) {
        let due = self.arrival(sent);
        let mut rest = Some(packet);
        while let Some(packet) = rest {
            let count = packet.segments();
            let safe = (0..count).take_while(|n| !self.is_lost(u64::from(*n))).count() as u32;
            let (arrives, after) = if safe == 0 { (None, Some(packet)) } else { pair(packet.split(safe)) };
            if let Some(packet) = arrives {
                self.last_due = due;
                self.flying.push_back(Flying { due, packet });
            }
            self.entered += u64::from(safe);
            rest = after.and_then(|packet| {
                self.entered += 1;
                self.counts.lost += 1;
                if packet.segments() > 1 { packet.split(1).1 } else { None }
            });
        }
    }

    /// Whether the packet that enters the line after `ahead` others is lost.
    fn is_lost(&self, ahead: u64) -> bool {
        self.settings.loss > 0
            && mix(self.seed ^ mix(self.entered + 1 + ahead)) % 1_000_000 < u64::from(self.settings.loss)
    }

    /// How far the delay strays at the time `at`: straight lines between random heights, so slow that no packet could overtake another.
    fn stray(&self, at: u64) -> i64 {
        let jitter = self.settings.jitter.as_nanos() as u64;
        if jitter == 0 {
            return 0;
        }
        let step = (4 * jitter).max(1_000_000);
        let height = |knot: u64| (mix(self.seed.wrapping_add(mix(knot))) % (2 * jitter + 1)) as i64 - jitter as i64;
        let (from, to) = (height(at / step), height(at / step + 1));
        from + (i128::from(to - from) * i128::from(at % step) / i128::from(step)) as i64
    }
}

fn pair<P>((first, second): (P, Option<P>)) -> (Option<P>, Option<P>) {
    (Some(first), second)
}

/// Scatters the bits of a number (the finaliser of splitmix64).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
