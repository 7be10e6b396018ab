//! A link that several connections carry, because losses hold each one back: a [`Stripe`] of them, the link's own connection among them,
//! whose place another one takes when it ends (`successor.rs`).
//! How many there are is found by measurement ([`StreamCount`]); docs/adapters.md has both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use madrigal_adapters::contract::{Adapter as _, AddError, Lane, ONLY};
use madrigal_adapters::stripe::count::{Congestion, StreamCount, StreamSample};
use madrigal_adapters::stripe::{Limits, Stripe};

use crate::link::channel::UNSENT;
use crate::link::measured::{AHEAD, alone, carried_in};
use crate::link::numbers::Numbers;
use crate::poll::Token;
use crate::units::SECOND;

/// Bytes of the link that are moved at once.
const MOVED: usize = 64 << 10;
/// The least that each of several connections may have waiting. With more than it carries soon, one connection would take all there is to
/// send, and the others would be idle.
const LEAST_AHEAD: usize = 16 << 10;
/// A link that carries so many bits a second passes its bytes by the stripe while it has one connection: there a copy costs a part of what
/// processors carry. On a slower one what waits in the stripe is ready, compressed, when the kernel takes more.
const FAST: u64 = 1_000_000_000;
/// The pause of a network after a connection by it could not be made.
const PAUSE: u64 = 10 * SECOND;

/// The connections of a link.
pub(crate) struct Striped {
    stripe: Stripe,
    /// The link's own connection: [`ONLY`], with which it began, as long as that lives.
    own: Lane,
    /// The connections beside the link's own.
    further: BTreeMap<Lane, Token>,
    /// Those of them that end once nothing is in flight on them.
    retired: BTreeSet<Lane>,
    /// At the dialling end, the networks to use; each gets one connection at least. The first one is that of the link's own.
    networks: Vec<Network>,
    /// The network of each connection that was dialled, those that are being made among them; and the number of the next one.
    lies: BTreeMap<Lane, usize>,
    next: u32,
    /// The numbers that there were.
    numbers: Numbers,
    count: StreamCount,
    most: usize,
    /// How many the other end wants, and the number that we reported to it last.
    wanted_there: usize,
    reported_count: usize,
    /// What each carries, as of the last sample.
    carries: BTreeMap<Lane, Carries>,
    /// Bytes of the link, of which the stripe has taken so many.
    waiting: Vec<u8>,
    taken: usize,
}

/// What a connection carries.
#[derive(Clone, Copy, Default)]
pub(crate) struct Carries {
    /// Bits a second.
    pub(crate) rate: Option<u64>,
    /// The shortest round trip, microseconds.
    pub(crate) round_trip: u32,
}

/// A network by which the other end is reached.
struct Network {
    /// The other end's address there.
    address: SocketAddr,
    /// No connection is made before this, since one could not be made.
    pause: u64,
}

impl Striped {
    /// For a link that has one connection, should get `begin` of them, and may have `most`. `networks`: addresses of the other end by
    /// different networks, the link's own first; none at the end that does not dial.
    pub(crate) fn new(
        now: u64,
        [begin, most]: [u8; 2],
        congestion: Congestion,
        networks: Vec<SocketAddr>,
    ) -> Result<Self, AddError> {
        let mut stripe = Stripe::new(Limits::default());
        stripe.add(now, ONLY)?;
        // There is one connection at least, even if the peer answered 0.
        let [begin, most] = [begin, most].map(|count| usize::from(count.max(1)));
        // By rate each network is full with one, and a network that cannot be reached is no reason for more on the others.
        let begin = if congestion == Congestion::ByRate { begin } else { begin.max(networks.len()) }.min(most);
        Ok(Self {
            stripe,
            own: ONLY,
            further: BTreeMap::new(),
            retired: BTreeSet::new(),
            networks: networks.into_iter().map(|address| Network { address, pause: 0 }).collect(),
            lies: [(ONLY, 0)].into(),
            next: 1,
            numbers: Numbers::default(),
            count: StreamCount::new(now, begin, most, congestion),
            most,
            wanted_there: 1,
            reported_count: 1,
            carries: BTreeMap::new(),
            waiting: Vec::new(),
            taken: 0,
        })
    }

    /// The number of the link's own connection.
    pub(crate) fn own(&self) -> Lane {
        self.own
    }

    /// The connections beside the link's own.
    pub(crate) fn further(&self) -> usize {
        self.further.len()
    }

    /// All connections; `own` is the link's.
    pub(crate) fn connections(&self, own: Token) -> Vec<(Lane, Token)> {
        let further = self.further.iter().map(|(lane, token)| (*lane, *token));
        [(self.own, own)].into_iter().chain(further).collect()
    }

    /// Bits a second that they carry together.
    pub(crate) fn rate(&self) -> u64 {
        self.carries.values().filter_map(|carries| carries.rate).fold(0, u64::saturating_add)
    }

    /// When [`Self::handle_time`] is due.
    pub(crate) fn deadline(&self) -> u64 {
        self.stripe.deadline()
    }

    /// The time has come, or any other.
    pub(crate) fn handle_time(&mut self, now: u64) {
        self.stripe.handle_time(now);
    }

    /// Takes bytes that came by a connection; what is in order is delivered.
    pub(crate) fn receive(
        &mut self,
        now: u64,
        lane: Lane,
        bytes: &[u8],
        deliver: &mut dyn FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut delivered = Ok(());
        let mut pass = |bytes: &[u8]| {
            if delivered.is_ok() {
                delivered = deliver(bytes);
            }
            true
        };
        self.stripe.receive_passing(now, lane, bytes, &mut pass).map_err(|broken| broken.to_string())?;
        delivered?;
        loop {
            let front = self.stripe.front();
            let count = front.len();
            if count == 0 {
                return Ok(());
            }
            deliver(front)?;
            self.stripe.consume(count);
        }
    }

    /// Whether the bytes of the link go by its own connection as they are: it has no other and is fast, and nothing waits here.
    fn is_passing(&self) -> bool {
        let is_fast = self.carries.get(&self.own).is_some_and(|own| own.rate >= Some(FAST));
        is_fast && self.taken == self.waiting.len() && self.stripe.is_passing(self.own)
    }

    /// Moves what `source` adds of the link, as far as there is room, unless it goes by [`Self::transmit`] at once. Returns whether that was
    /// anything.
    pub(crate) fn take_from(&mut self, mut source: impl FnMut(&mut Vec<u8>, usize)) -> bool {
        let mut moved = false;
        if self.is_passing() {
            return false;
        }
        loop {
            let taken = self.stripe.write(self.waiting.get(self.taken..).unwrap_or_default());
            self.taken += taken;
            moved |= taken > 0;
            let room = self.stripe.room().min(MOVED);
            if self.taken < self.waiting.len() || room == 0 {
                return moved;
            }
            self.waiting.clear();
            self.taken = 0;
            // A frame goes whole, and may be longer than there is room.
            source(&mut self.waiting, room);
            if self.waiting.is_empty() {
                return moved;
            }
        }
    }

    /// Adds what goes by a connection to `out`, up to `room` bytes and what the last frame of `source` is longer.
    pub(crate) fn transmit(
        &mut self,
        now: u64,
        lane: Lane,
        room: usize,
        out: &mut Vec<u8>,
        source: &mut dyn FnMut(&mut Vec<u8>, usize),
    ) {
        if self.is_passing() {
            self.stripe.transmit_passing(now, lane, room, out, source);
        } else {
            self.stripe.transmit(now, lane, room, out);
        }
    }

    /// A connection was not made.
    pub(crate) fn not_made(&mut self, now: u64, lane: Lane) {
        if let Some(network) = self.lies.remove(&lane).and_then(|at| self.networks.get_mut(at)) {
            network.pause = now + PAUSE;
        }
    }

    /// A connection is there.
    pub(crate) fn join(&mut self, now: u64, lane: Lane, token: Token) -> Result<(), AddError> {
        if !self.numbers.is_fresh(lane.0) {
            return Err(AddError::Twice(lane));
        }
        self.stripe.add(now, lane)?;
        self.numbers.take(lane.0);
        self.further.insert(lane, token);
        Ok(())
    }

    /// A connection has ended: others carry what the other end has not received. Returns whether it was retired.
    pub(crate) fn leave(&mut self, lane: Lane) -> bool {
        self.further.remove(&lane);
        self.forget(lane)
    }

    /// The link's own connection has ended: another one takes its place. Returns the token of that, and whether the other one was retired.
    /// Nothing where no connection is left that may carry bytes, or where bytes were not kept that the other end has not received: then the
    /// link has ended.
    pub(crate) fn succeed(&mut self) -> Option<(Token, bool)> {
        let mut others = self.further.iter().filter(|(lane, _)| !self.stripe.is_retired(**lane));
        let (lane, token) = others.next().map(|(lane, token)| (*lane, *token))?;
        if !self.stripe.can_lose_one() {
            return None;
        }
        self.further.remove(&lane);
        let ended = std::mem::replace(&mut self.own, lane);
        Some((token, self.forget(ended)))
    }

    /// Returns whether it was retired.
    fn forget(&mut self, lane: Lane) -> bool {
        let meant = self.stripe.is_over(lane);
        self.stripe.remove(lane);
        self.retired.remove(&lane);
        self.lies.remove(&lane);
        self.carries.remove(&lane);
        meant
    }

    /// Takes what was counted of each connection. That decides how many connections there should be for what this end sends. `waits`: bytes
    /// of the link have not been taken yet.
    pub(crate) fn sample(&mut self, now: u64, waits: bool, counted: Vec<(Lane, Carries, StreamSample)>) {
        // If the link has more than there is room for, no connection lacks bytes: a new one gets few before its rate is known.
        let passing = self.is_passing() && waits;
        let has_more = passing || self.stripe.room() == 0 || self.taken < self.waiting.len();
        let mut samples = Vec::new();
        for (lane, carries, mut sample) in counted {
            self.carries.insert(lane, carries);
            if has_more {
                (sample.app_limited, sample.unsent) = (false, sample.unsent.max(1));
            }
            if !self.retired.contains(&lane) {
                samples.push(sample);
            }
        }
        self.count.sample(now, &samples);
    }

    /// How many bytes may wait to be sent at a connection.
    pub(crate) fn most_unsent(&self, lane: Lane) -> usize {
        let Carries { rate, round_trip } = self.carries.get(&lane).copied().unwrap_or_default();
        let rate = rate.unwrap_or(0);
        if self.further.is_empty() {
            carried_in(alone(round_trip.into()), rate).max(UNSENT)
        } else {
            carried_in(AHEAD, rate).max(LEAST_AHEAD)
        }
    }

    /// The other end wants so many connections.
    pub(crate) fn handle_wanted(&mut self, count: u8) {
        self.wanted_there = usize::from(count);
    }

    /// How many connections we want, if that was not reported to the other end.
    pub(crate) fn unreported(&self) -> Option<u8> {
        let count = self.count.count();
        (self.reported_count != count).then(|| u8::try_from(count).unwrap_or(u8::MAX))
    }

    /// The number was reported.
    pub(crate) fn reported(&mut self, count: u8) {
        self.reported_count = usize::from(count);
    }

    /// How many there should be, for what either end sends.
    pub(crate) fn wanted(&self) -> usize {
        self.count.count().max(self.wanted_there).clamp(1, self.most)
    }

    /// The connections to make now, and their addresses. Surplus connections are retired: they get no more to carry.
    pub(crate) fn adjust(&mut self, now: u64) -> Vec<(Lane, SocketAddr)> {
        let usable = || self.networks.iter().enumerate().filter(|(_, network)| network.pause <= now);
        let wanted = self.wanted().max(usable().count().min(self.most));
        let bare = usable().filter(|(at, _)| self.staying(*at) == 0).count();
        for _ in wanted.saturating_sub(bare)..self.lies.len() - self.retired.len() {
            let is_alone = |lane: &Lane| self.lies.get(lane).is_none_or(|at| self.staying(*at) < 2);
            let last = self.further.keys().rev().find(|lane| !self.retired.contains(lane) && !is_alone(lane)).copied();
            let Some(lane) = last else { break };
            self.stripe.retire(lane);
            self.retired.insert(lane);
        }
        let mut made = Vec::new();
        while self.lies.len() - self.retired.len() < wanted {
            let usable = self.networks.iter().enumerate().filter(|(_, network)| network.pause <= now);
            // The one that has the fewest.
            let Some((at, network)) = usable.min_by_key(|(at, _)| self.staying(*at)) else { break };
            let lane = Lane(self.next);
            made.push((lane, network.address));
            self.lies.insert(lane, at);
            self.next += 1;
        }
        made
    }

    /// How many connections a network has, or will have.
    fn staying(&self, network: usize) -> usize {
        self.lies.iter().filter(|(lane, at)| **at == network && !self.retired.contains(lane)).count()
    }

    /// The retired connections on which nothing is in flight any more.
    pub(crate) fn over(&self) -> Vec<Token> {
        let over = self.retired.iter().filter(|lane| self.stripe.is_over(**lane));
        over.filter_map(|lane| self.further.get(lane).copied()).collect()
    }
}

#[cfg(test)]
mod succession;
#[cfg(test)]
mod tests;
