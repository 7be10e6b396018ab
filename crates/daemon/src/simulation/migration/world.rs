//! The model: two ends, relays, links with delays, and events in flight.

use std::collections::BTreeMap;

use madrigal_proto::mux::Mux;

use crate::simulation::Random;
use crate::streams::failover::{Action, Failover, keepalive_limits};
use crate::units::MILLISECOND;

/// The hosts at the two ends; relays follow.
pub(super) const ENDS: usize = 2;

/// A link between an end and a relay.
pub(super) struct Link {
    pub(super) hosts: [usize; 2],
    pub(super) delay: u64,
    /// The count of links between the two hosts.
    pub(super) count: u64,
    pub(super) muxes: [Option<Mux>; 2],
    /// Until then nothing passes; what is sent comes later.
    pub(super) cut: u64,
    /// When it may be made anew.
    pub(super) remade_at: u64,
}

/// An end of a link: the link, the end, and the count.
pub(super) type Place = (usize, usize, u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    Request(u32),
    Accepted,
    Refused,
    Unknown,
    /// The stream was reset: `None` for good, else whether for silence.
    Reset(Option<bool>),
}

pub(super) enum Event {
    Bytes(Place, Vec<u8>),
    Closed(Place),
    /// On the stream of this id.
    Message(Place, u64, Message),
}

/// A stream's end.
#[derive(Default)]
pub(super) struct End {
    /// The stream that carries it, and the end of a link where that begins.
    pub(super) at: Option<(u64, Place)>,
    pub(super) attempt: Option<(u64, Place)>,
    pub(super) failover: Option<Failover>,
    pub(super) epoch: u32,
    pub(super) over: Option<u64>,
}

pub(super) struct World {
    pub(super) relays: usize,
    pub(super) links: Vec<Link>,
    /// The streams that relays join: the two ends of each.
    pub(super) joined: BTreeMap<u64, [Place; 2]>,
    pub(super) ends: [End; 2],
    pub(super) events: BTreeMap<(u64, u64), Event>,
    /// When the last message of each end arrives: they keep their order.
    pub(super) last: BTreeMap<(usize, usize), u64>,
    pub(super) count: u64,
    pub(super) now: u64,
    pub(super) random: Random,
}

impl World {
    pub(super) fn new(mut random: Random) -> Self {
        let relays = 1 + random.below(3) as usize;
        let mut links = Vec::new();
        for relay in 0..relays {
            for end in 0..2 {
                let delay = random.below(120) * MILLISECOND;
                links.push(Link {
                    hosts: [end, ENDS + relay],
                    delay,
                    count: 0,
                    muxes: [None, None],
                    cut: 0,
                    remade_at: 0,
                });
            }
        }
        let (joined, events, last) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut world =
            Self { relays, links, joined, ends: Default::default(), events, last, count: 0, now: 0, random };
        (0..world.links.len()).for_each(|link| world.make_link(link));
        let [there, here] = [0, 1].map(|link| (link, 0, world.links[link].count));
        world.joined.insert(0, [(0, 1, there.2), (1, 1, here.2)]);
        (world.ends[0].at, world.ends[1].at) = (Some((0, there)), Some((0, here)));
        world
    }

    pub(super) fn make_link(&mut self, link: usize) {
        let now = self.now;
        self.count += 1;
        let count = self.count;
        let link = &mut self.links[link];
        link.count = count;
        link.muxes = [true, false].map(|dialled| {
            let mut mux = Mux::new(dialled, keepalive_limits(), now);
            mux.ping(now);
            Some(mux)
        });
    }

    pub(super) fn is_there(&self, (link, end, count): Place) -> bool {
        self.links[link].count == count && self.links[link].muxes[end].is_some()
    }

    pub(super) fn add(&mut self, (link, end, count): Place, event: impl Fn(Place) -> Event) {
        let there = (link, 1 - end, count);
        let soonest = self.last.get(&(link, end)).copied().unwrap_or(0);
        let at = soonest.max(self.now.max(self.links[link].cut) + self.links[link].delay);
        self.last.insert((link, end), at);
        self.count += 1;
        self.events.insert((at, self.count), event(there));
    }

    pub(super) fn send(&mut self, from: Place, id: u64, message: Message) {
        if self.is_there(from) {
            self.add(from, |place| Event::Message(place, id, message));
        }
    }

    /// One end of a link is closed.
    pub(super) fn close_end(&mut self, place: Place, silent: bool) {
        let (link, end, _) = place;
        if !self.is_there(place) {
            return;
        }
        self.add(place, Event::Closed);
        self.links[link].muxes[end] = None;
        self.links[link].remade_at = self.now + self.random.below(400) * MILLISECOND;
        if end == 1 {
            let gone: Vec<u64> =
                self.joined.iter().filter(|(_, ends)| ends.contains(&place)).map(|(id, _)| *id).collect();
            for id in gone {
                let ends = self.joined.remove(&id).unwrap();
                let other = if ends[0] == place { ends[1] } else { ends[0] };
                self.send(other, id, Message::Reset(Some(silent)));
            }
            return;
        }
        let host = self.links[link].hosts[0];
        if self.ends[host].attempt.is_some_and(|(_, at)| at == place) {
            self.attempt_failed(host);
        }
        if self.ends[host].at.is_some_and(|(_, at)| at == place) {
            self.way_lost(host, silent);
        }
    }

    pub(super) fn way_lost(&mut self, host: usize, silent: bool) {
        let now = self.now;
        let end = &mut self.ends[host];
        end.at = None;
        end.failover.get_or_insert_with(Failover::new).way_lost(now, host == 0, silent);
    }

    pub(super) fn attempt_failed(&mut self, host: usize) {
        if let Some((id, place)) = self.ends[host].attempt.take() {
            self.ends[host].failover.as_mut().unwrap().attempt_failed(self.now, "no");
            self.send(place, id, Message::Reset(Some(false)));
        }
    }

    pub(super) fn end(&mut self, host: usize) {
        let end = &mut self.ends[host];
        end.over = end.over.or(Some(self.now));
        end.failover = None;
        for (id, place) in [end.at.take(), end.attempt.take()].into_iter().flatten() {
            self.send(place, id, Message::Reset(None));
        }
    }

    /// The ways of the calling end: its end of a link with a relay, and the name of the way.
    pub(super) fn ways(&self) -> Vec<(Place, String)> {
        let all = (0..self.relays).map(|relay| (2 * relay, self.links[2 * relay].count));
        let there = all.map(|(link, count)| (link, 0, count)).filter(|place| self.is_there(*place));
        there.map(|place| (place, format!("r{}", place.0))).collect()
    }

    pub(super) fn begin_attempt(&mut self, place: Place, way: String) {
        self.count += 1;
        let (id, now) = (self.count, self.now);
        let end = &mut self.ends[0];
        end.epoch += 1;
        let epoch = end.epoch;
        end.failover.as_mut().unwrap().begin_attempt(now, way);
        end.attempt = Some((id, place));
        self.send(place, id, Message::Request(epoch));
    }

    pub(super) fn handle(&mut self, place: Place, id: u64, message: Message) {
        let (link, end, _) = place;
        if end == 0 {
            return self.handle_at_end(self.links[link].hosts[0], place, id, message);
        }
        if let Some(ends) = self.joined.get(&id).copied() {
            let other = if ends[0] == place { ends[1] } else { ends[0] };
            if let Message::Reset(_) = message {
                self.joined.remove(&id);
            }
            return self.send(other, id, message);
        }
        if let Message::Request(_) = message {
            let next = link + 1;
            let on = (next, 1, self.links[next].count);
            if self.is_there(on) {
                self.joined.insert(id, [place, on]);
                self.send(on, id, message);
            } else {
                self.send(place, id, Message::Refused);
            }
        }
    }

    pub(super) fn handle_at_end(&mut self, host: usize, place: Place, id: u64, message: Message) {
        let end = &mut self.ends[host];
        match message {
            Message::Request(_) if end.over.is_some() => self.send(place, id, Message::Unknown),
            Message::Request(epoch) if epoch <= end.epoch => self.send(place, id, Message::Unknown),
            Message::Request(epoch) => {
                end.epoch = epoch;
                // If it has a way, more may have been acknowledged there.
                if end.at.is_some() && self.random.once_in(3) {
                    return self.send(place, id, Message::Refused);
                }
                let old = self.ends[host].at.replace((id, place));
                self.ends[host].failover = None;
                if let Some((old, at)) = old {
                    self.send(at, old, Message::Reset(Some(false)));
                }
                self.send(place, id, Message::Accepted);
            }
            Message::Accepted if end.attempt.is_some_and(|(attempt, _)| attempt == id) => {
                let old = std::mem::replace(&mut end.at, end.attempt.take());
                end.failover = None;
                if let Some((old, at)) = old {
                    self.send(at, old, Message::Reset(Some(false)));
                }
            }
            Message::Unknown if end.attempt.is_some_and(|(attempt, _)| attempt == id) => {
                if end.failover.as_ref().is_some_and(Failover::is_disconnected) {
                    self.end(host)
                } else {
                    self.attempt_failed(host)
                }
            }
            Message::Refused | Message::Reset(_) if end.attempt.is_some_and(|(attempt, _)| attempt == id) => {
                self.attempt_failed(host)
            }
            Message::Reset(Some(silent)) if end.at.is_some_and(|(at, _)| at == id) => self.way_lost(host, silent),
            Message::Reset(None) if end.at.is_some_and(|(at, _)| at == id) => self.end(host),
            _ => {}
        }
    }

    pub(super) fn failover(&mut self, host: usize) {
        let now = self.now;
        let Some(failover) = self.ends[host].failover.as_mut() else { return };
        match failover.action(now) {
            Action::None => {}
            Action::TryBetter => {
                failover.begin_better();
                self.try_better();
            }
            Action::GiveUp => self.end(host),
            Action::AttemptTimedOut => self.attempt_failed(host),
            Action::TryAny => {
                let ways = self.ways();
                let names: Vec<String> = ways.iter().map(|(_, name)| name.clone()).collect();
                let chosen = self.ends[host].failover.as_mut().unwrap().choose(now, &names);
                if let Some((place, way)) = chosen.and_then(|at| ways.get(at).cloned()) {
                    self.begin_attempt(place, way);
                }
            }
        }
    }

    /// Tries another way, though its own one works.
    pub(super) fn try_better(&mut self) {
        let ways = self.ways();
        let end = &mut self.ends[0];
        if end.over.is_some() || ways.is_empty() || !end.failover.get_or_insert_with(Failover::new).may_migrate() {
            return;
        }
        let at = self.random.below(ways.len() as u64) as usize;
        let (place, way) = ways[at].clone();
        self.begin_attempt(place, way);
    }

    pub(super) fn step_links(&mut self) {
        let now = self.now;
        for link in 0..self.links.len() {
            let Link { muxes, cut, remade_at, .. } = &self.links[link];
            if muxes.iter().all(Option::is_none) && *cut <= now && *remade_at <= now {
                self.make_link(link);
                if let Some(failover) = &mut self.ends[0].failover {
                    failover.wake(now);
                }
            }
            for end in 0..2 {
                let place = (link, end, self.links[link].count);
                let Some(mux) = self.links[link].muxes[end].as_mut() else { continue };
                if mux.handle_time(now).is_err() {
                    self.close_end(place, true);
                    continue;
                }
                let mut bytes = Vec::new();
                mux.transmit(&mut bytes, 1000);
                if !bytes.is_empty() {
                    self.add(place, |place| Event::Bytes(place, bytes.clone()));
                }
            }
        }
    }

    /// The next deadline.
    pub(super) fn next(&self) -> u64 {
        let muxes = self.links.iter().flat_map(|link| link.muxes.iter().flatten().map(Mux::deadline));
        let remade_at = self.links.iter().filter(|link| link.muxes.iter().all(Option::is_none));
        let remade_at = remade_at.map(|link| link.cut.max(link.remade_at));
        let failovers = self.ends.iter().filter_map(|end| end.failover.as_ref()).map(Failover::deadline);
        let events = self.events.first_key_value().map(|((at, _), _)| *at);
        muxes.chain(remade_at).chain(failovers).chain(events).min().unwrap_or(u64::MAX)
    }

    pub(super) fn until(&mut self, end: u64) {
        loop {
            self.step_links();
            (0..2).for_each(|host| self.failover(host));
            let next = self.next().max(self.now);
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
            while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (_, count) = *entry.key();
                let event = entry.remove();
                let (Event::Bytes(place, _) | Event::Closed(place) | Event::Message(place, ..)) = &event;
                let link = &self.links[place.0];
                if link.cut > self.now {
                    // It was cut while this was in flight.
                    self.events.insert((link.cut + link.delay, count), event);
                    continue;
                }
                match event {
                    Event::Bytes(place, bytes) if self.is_there(place) => {
                        let now = self.now;
                        self.links[place.0].muxes[place.1].as_mut().unwrap().receive(now, &bytes).unwrap();
                    }
                    Event::Closed(place) => self.close_end(place, false),
                    Event::Message(place, id, message) if self.is_there(place) => self.handle(place, id, message),
                    _ => {}
                }
            }
        }
    }

    /// Breaks a relay's links in some manner, until a time.
    pub(super) fn break_relay(&mut self, relay: usize, until: u64) {
        let links = [2 * relay, 2 * relay + 1];
        let both = self.random.once_in(3);
        let one = links[self.random.below(2) as usize];
        match self.random.below(3) {
            // It is killed, and restarted later.
            0 => {
                for link in links {
                    let place = (link, 1, self.links[link].count);
                    self.close_end(place, false);
                    self.links[link].remade_at = until;
                }
                self.joined.retain(|_, ends| !links.contains(&ends[0].0));
            }
            1 => links.into_iter().filter(|link| both || *link == one).for_each(|link| self.links[link].cut = until),
            _ => {
                let end = self.random.below(2) as usize;
                let place = (one, end, self.links[one].count);
                self.close_end(place, false);
            }
        }
    }

    /// Neither end is over for long while the other one goes on.
    pub(super) fn check(&self, most: u64) {
        let [one, other] = self.ends.each_ref().map(|end| end.over);
        let alone = one.xor(other).is_some_and(|over| over + most < self.now);
        assert!(!alone, "{:?}, {one:?}, {other:?}", self.now);
    }
}
