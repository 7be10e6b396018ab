//! One stream between two hosts and the relays that it may go by, with the decisions of `streams/failover.rs` and links that notice silence as the
//! real ones do. Relays are killed, links are cut, reset and made anew. While there is a way that nobody touches the stream goes on; where
//! there is none both ends hear of it within 15 seconds; and never does one end go on alone.

use std::collections::BTreeMap;

use madrigal_proto::mux::Mux;

use super::{Chance, play};
use crate::streams::failover::{Action, Failover, keepalive_limits};
use crate::units::{MILLISECOND, SECOND};

/// Within which both ends hear that there is no way any more, however they were cut off.
const DEADLINE: u64 = 15 * SECOND;
/// The hosts at the two ends; relays follow.
const ENDS: usize = 2;

/// A link between an end and a relay.
struct Link {
    hosts: [usize; 2],
    delay: u64,
    /// Which of several that there were, one after another.
    count: u64,
    muxes: [Option<Mux>; 2],
    /// Nothing passes until then; what is sent comes later.
    cut: u64,
    /// When it may be made anew.
    again: u64,
}

/// An end of a link, and which of several.
type Place = (usize, usize, u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Message {
    Ask(u32),
    Agreed,
    Refused,
    Never,
    /// The stream is no more: `None` for good, else whether for a silence.
    Reset(Option<bool>),
}

enum Event {
    Bytes(Place, Vec<u8>),
    Closed(Place),
    /// Of the stream of this number.
    Message(Place, u64, Message),
}

/// A stream's end.
#[derive(Default)]
struct End {
    /// The stream that it goes by, and at which end of a link that begins.
    at: Option<(u64, Place)>,
    asked: Option<(u64, Place)>,
    failover: Option<Failover>,
    epoch: u32,
    over: Option<u64>,
}

struct World {
    relays: usize,
    links: Vec<Link>,
    /// What relays join: the two places of each stream.
    joined: BTreeMap<u64, [Place; 2]>,
    ends: [End; 2],
    events: BTreeMap<(u64, u64), Event>,
    /// On one end of a link, what is said later comes later.
    last: BTreeMap<(usize, usize), u64>,
    count: u64,
    now: u64,
    chance: Chance,
}

impl World {
    fn new(mut chance: Chance) -> Self {
        let relays = 1 + chance.below(3) as usize;
        let mut links = Vec::new();
        for relay in 0..relays {
            for end in 0..2 {
                let delay = chance.below(120) * MILLISECOND;
                links.push(Link { hosts: [end, ENDS + relay], delay, count: 0, muxes: [None, None], cut: 0, again: 0 });
            }
        }
        let (joined, events, last) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut world =
            Self { relays, links, joined, ends: Default::default(), events, last, count: 0, now: 0, chance };
        (0..world.links.len()).for_each(|link| world.make(link));
        let [there, here] = [0, 1].map(|link| (link, 0, world.links[link].count));
        world.joined.insert(0, [(0, 1, there.2), (1, 1, here.2)]);
        (world.ends[0].at, world.ends[1].at) = (Some((0, there)), Some((0, here)));
        world
    }

    fn make(&mut self, link: usize) {
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

    fn is_there(&self, (link, end, count): Place) -> bool {
        self.links[link].count == count && self.links[link].muxes[end].is_some()
    }

    fn add(&mut self, (link, end, count): Place, event: impl Fn(Place) -> Event) {
        let there = (link, 1 - end, count);
        let soonest = self.last.get(&(link, end)).copied().unwrap_or(0);
        let at = soonest.max(self.now.max(self.links[link].cut) + self.links[link].delay);
        self.last.insert((link, end), at);
        self.count += 1;
        self.events.insert((at, self.count), event(there));
    }

    fn send(&mut self, from: Place, id: u64, message: Message) {
        if self.is_there(from) {
            self.add(from, |place| Event::Message(place, id, message));
        }
    }

    /// One end of a link is no more, there.
    fn discard_end(&mut self, place: Place, silent: bool) {
        let (link, end, _) = place;
        if !self.is_there(place) {
            return;
        }
        self.add(place, Event::Closed);
        self.links[link].muxes[end] = None;
        self.links[link].again = self.now + self.chance.below(400) * MILLISECOND;
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
        if self.ends[host].asked.is_some_and(|(_, at)| at == place) {
            self.resume_failed(host);
        }
        if self.ends[host].at.is_some_and(|(_, at)| at == place) {
            self.way_lost(host, silent);
        }
    }

    fn way_lost(&mut self, host: usize, silent: bool) {
        let now = self.now;
        let end = &mut self.ends[host];
        end.at = None;
        end.failover.get_or_insert_with(Failover::new).way_lost(now, host == 0, silent);
    }

    fn resume_failed(&mut self, host: usize) {
        if let Some((id, place)) = self.ends[host].asked.take() {
            self.ends[host].failover.as_mut().unwrap().attempt_failed(self.now, "no");
            self.send(place, id, Message::Reset(Some(false)));
        }
    }

    fn end(&mut self, host: usize) {
        let end = &mut self.ends[host];
        end.over = end.over.or(Some(self.now));
        end.failover = None;
        for (id, place) in [end.at.take(), end.asked.take()].into_iter().flatten() {
            self.send(place, id, Message::Reset(None));
        }
    }

    /// The ways that the calling end sees: its end of a link with a relay, and that relay's name.
    fn ways(&self) -> Vec<(Place, String)> {
        let all = (0..self.relays).map(|relay| (2 * relay, self.links[2 * relay].count));
        let there = all.map(|(link, count)| (link, 0, count)).filter(|place| self.is_there(*place));
        there.map(|place| (place, format!("r{}", place.0))).collect()
    }

    fn begin_attempt(&mut self, place: Place, way: String) {
        self.count += 1;
        let (id, now) = (self.count, self.now);
        let end = &mut self.ends[0];
        end.epoch += 1;
        let epoch = end.epoch;
        end.failover.as_mut().unwrap().begin_attempt(now, way);
        end.asked = Some((id, place));
        self.send(place, id, Message::Ask(epoch));
    }

    fn handle(&mut self, place: Place, id: u64, message: Message) {
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
        if let Message::Ask(_) = message {
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

    fn handle_at_end(&mut self, host: usize, place: Place, id: u64, message: Message) {
        let end = &mut self.ends[host];
        match message {
            Message::Ask(_) if end.over.is_some() => self.send(place, id, Message::Never),
            Message::Ask(epoch) if epoch <= end.epoch => self.send(place, id, Message::Never),
            Message::Ask(epoch) => {
                end.epoch = epoch;
                // It is further by now, if it has a way.
                if end.at.is_some() && self.chance.once_in(3) {
                    return self.send(place, id, Message::Refused);
                }
                let old = self.ends[host].at.replace((id, place));
                self.ends[host].failover = None;
                if let Some((old, at)) = old {
                    self.send(at, old, Message::Reset(Some(false)));
                }
                self.send(place, id, Message::Agreed);
            }
            Message::Agreed if end.asked.is_some_and(|(asked, _)| asked == id) => {
                let old = std::mem::replace(&mut end.at, end.asked.take());
                end.failover = None;
                if let Some((old, at)) = old {
                    self.send(at, old, Message::Reset(Some(false)));
                }
            }
            Message::Never if end.asked.is_some_and(|(asked, _)| asked == id) => {
                if end.failover.as_ref().is_some_and(Failover::is_disconnected) {
                    self.end(host)
                } else {
                    self.resume_failed(host)
                }
            }
            Message::Refused | Message::Reset(_) if end.asked.is_some_and(|(asked, _)| asked == id) => {
                self.resume_failed(host)
            }
            Message::Reset(Some(silent)) if end.at.is_some_and(|(at, _)| at == id) => self.way_lost(host, silent),
            Message::Reset(None) if end.at.is_some_and(|(at, _)| at == id) => self.end(host),
            _ => {}
        }
    }

    fn failover(&mut self, host: usize) {
        let now = self.now;
        let Some(failover) = self.ends[host].failover.as_mut() else { return };
        match failover.action(now) {
            Action::None => {}
            Action::TryBetter => {
                failover.begin_better();
                self.better();
            }
            Action::GiveUp => self.end(host),
            Action::AttemptTimedOut => self.resume_failed(host),
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

    /// Goes to another way, though the one that it has works.
    fn better(&mut self) {
        let ways = self.ways();
        let end = &mut self.ends[0];
        if end.over.is_some() || ways.is_empty() || !end.failover.get_or_insert_with(Failover::new).may_migrate() {
            return;
        }
        let at = self.chance.below(ways.len() as u64) as usize;
        let (place, way) = ways[at].clone();
        self.begin_attempt(place, way);
    }

    fn turn_links(&mut self) {
        let now = self.now;
        for link in 0..self.links.len() {
            let Link { muxes, cut, again, .. } = &self.links[link];
            if muxes.iter().all(Option::is_none) && *cut <= now && *again <= now {
                self.make(link);
                if let Some(failover) = &mut self.ends[0].failover {
                    failover.wake(now);
                }
            }
            for end in 0..2 {
                let place = (link, end, self.links[link].count);
                let Some(mux) = self.links[link].muxes[end].as_mut() else { continue };
                if mux.handle_time(now).is_err() {
                    self.discard_end(place, true);
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

    /// When something is due.
    fn next(&self) -> u64 {
        let muxes = self.links.iter().flat_map(|link| link.muxes.iter().flatten().map(Mux::deadline));
        let again = self.links.iter().filter(|link| link.muxes.iter().all(Option::is_none));
        let again = again.map(|link| link.cut.max(link.again));
        let failovers = self.ends.iter().filter_map(|end| end.failover.as_ref()).map(Failover::deadline);
        let events = self.events.first_key_value().map(|((at, _), _)| *at);
        muxes.chain(again).chain(failovers).chain(events).min().unwrap_or(u64::MAX)
    }

    fn until(&mut self, end: u64) {
        loop {
            self.turn_links();
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
                    // It was cut while this was on its way.
                    self.events.insert((link.cut + link.delay, count), event);
                    continue;
                }
                match event {
                    Event::Bytes(place, bytes) if self.is_there(place) => {
                        let now = self.now;
                        self.links[place.0].muxes[place.1].as_mut().unwrap().receive(now, &bytes).unwrap();
                    }
                    Event::Closed(place) => self.discard_end(place, false),
                    Event::Message(place, id, message) if self.is_there(place) => self.handle(place, id, message),
                    _ => {}
                }
            }
        }
    }

    /// Breaks a relay's ways in some manner, until a time.
    fn hurt(&mut self, relay: usize, until: u64) {
        let links = [2 * relay, 2 * relay + 1];
        let both = self.chance.once_in(3);
        let one = links[self.chance.below(2) as usize];
        match self.chance.below(3) {
            // It is killed, and started again later.
            0 => {
                for link in links {
                    let place = (link, 1, self.links[link].count);
                    self.discard_end(place, false);
                    self.links[link].again = until;
                }
                self.joined.retain(|_, ends| !links.contains(&ends[0].0));
            }
            1 => links.into_iter().filter(|link| both || *link == one).for_each(|link| self.links[link].cut = until),
            _ => {
                let end = self.chance.below(2) as usize;
                let place = (one, end, self.links[one].count);
                self.discard_end(place, false);
            }
        }
    }

    /// Neither end is over for long while the other one is not.
    fn check(&self, most: u64) {
        let [one, other] = self.ends.each_ref().map(|end| end.over);
        let alone = one.xor(other).is_some_and(|over| over + most < self.now);
        assert!(!alone, "{:?}, {one:?}, {other:?}", self.now);
    }
}

/// One relay after another fails, while another one does not: nothing is lost.
fn spared(chance: Chance) {
    let mut world = World::new(chance);
    if world.relays == 1 {
        return;
    }
    for _ in 0..1 + world.chance.below(6) {
        let relay = world.chance.below(world.relays as u64) as usize;
        let long = world.chance.below(20 * SECOND);
        world.hurt(relay, world.now + long);
        if world.chance.once_in(3) {
            world.better();
        }
        // All has been noticed, and all that was broken is whole again.
        world.until(world.now + long + 20 * SECOND);
        assert!(world.ends.iter().all(|end| end.over.is_none()), "{:?}", world.now);
        let [one, other] = world.ends.each_ref().map(|end| end.at.map(|(id, _)| id));
        assert!(one.is_some() && one == other, "{one:?}, {other:?}");
    }
}

/// Whatever breaks: both go on or neither does; and where nothing is left, both hear of it in time.
fn torn(chance: Chance) {
    let mut world = World::new(chance);
    for _ in 0..world.chance.below(12) {
        let relay = world.chance.below(world.relays as u64) as usize;
        let long = world.chance.below(20 * SECOND);
        world.hurt(relay, world.now + long);
        if world.chance.once_in(2) {
            world.better();
        }
        let pause = world.chance.below(6 * SECOND);
        world.until(world.now + pause);
        world.check(DEADLINE);
    }
    let end = world.now;
    for relay in 0..world.relays {
        for link in [2 * relay, 2 * relay + 1] {
            if world.chance.once_in(2) || link % 2 == 0 {
                world.links[link].cut = u64::MAX / 2;
            }
        }
    }
    world.until(end + DEADLINE);
    assert!(
        world.ends.iter().all(|end| end.over.is_some()),
        "cut at {end}: {:?}",
        world.ends.each_ref().map(|end| end.over)
    );
}

#[test]
fn a_stream_goes_on_while_there_is_a_way() {
    play(3000, spared);
}

#[test]
fn both_ends_hear_in_time_that_there_is_no_way() {
    play(5000, torn);
}

#[test]
fn what_is_refused_again_and_again_stays_where_it_is() {
    play(1000, |mut chance| {
        let (mut failover, mut now, mut asked) = (Failover::new(), 0, 0);
        while failover.may_migrate() {
            failover.begin_attempt(now, "direct".to_owned());
            asked += 1;
            now += chance.below(SECOND);
            if !chance.once_in(3) || failover.action(now) == Action::AttemptTimedOut {
                failover.attempt_failed(now, "it is further by now");
            } else {
                now = failover.deadline();
                assert_eq!(failover.action(now), Action::AttemptTimedOut);
                failover.attempt_failed(now, "no answer");
            }
            now = if failover.stays().is_some() { now } else { failover.deadline() };
            assert!(asked < 100 && now < 60 * SECOND, "asked {asked} times in {now} ns");
        }
        assert!(failover.stays().is_some_and(|why| why.contains("direct")) && failover.deadline() == u64::MAX);
        // What is lost then looks for a way as ever; and a new connection may be asked again.
        failover.clear_refusals();
        assert!(failover.may_migrate());
        failover.way_lost(now, true, chance.once_in(2));
        assert!(
            failover.action(now) == Action::TryAny
                && failover.deadline() < now + DEADLINE
                && failover.stays().is_none()
        );
    });
}
