//! Two hosts that dial each other, or only one the other, by the pauses of `link/backoff.rs`, while the network between them opens and shuts, links
//! break and daemons are started again. Where a way is open a link is there soon, and nobody dials without rest.

use super::{Chance, play};
use crate::link::backoff::Backoff;
use crate::units::{MILLISECOND, SECOND};

/// How long an address has to answer, as in `link/dial.rs`.
const PATIENCE: u64 = 4 * SECOND;
/// The longest pauses, what an attempt may take that began before the network opened, and what one takes that succeeds.
const SOON: [u64; 2] = [30 * SECOND + PATIENCE + SECOND, 4 * SECOND + PATIENCE + SECOND];

struct Host {
    backoff: Backoff,
    /// Whether it can dial at all.
    can: bool,
    /// It has dialled the other one before, with success.
    worked: bool,
    /// An attempt, and when it ends; whether it succeeds.
    trying: Option<(u64, bool)>,
    /// When it dialled last, and whether something happened since that is a reason to dial at once.
    last: Option<u64>,
    reason: bool,
    count: u64,
}

struct World {
    hosts: [Host; 2],
    linked: bool,
    open: bool,
    /// Since when it is open without a link, and nobody was started anew.
    since: u64,
    trip: u64,
    now: u64,
    chance: Chance,
}

impl World {
    fn new(mut chance: Chance) -> Self {
        let one = chance.once_in(2);
        let now = chance.below(SECOND);
        let host = |can| Host {
            backoff: Backoff::new(now),
            can,
            worked: false,
            trying: None,
            last: None,
            reason: true,
            count: 0,
        };
        let hosts = [host(true), host(one)];
        Self {
            hosts,
            linked: false,
            open: chance.once_in(2),
            since: now,
            trip: chance.below(300) * MILLISECOND,
            now,
            chance,
        }
    }

    fn next(&self) -> u64 {
        let due = self.hosts.iter().map(|host| match host.trying {
            Some((end, _)) => end,
            None if host.can && !self.linked => host.backoff.next,
            None => u64::MAX,
        });
        due.min().unwrap_or(u64::MAX)
    }

    fn until(&mut self, end: u64) {
        loop {
            let next = self.next();
            if next > end {
                self.now = end;
                break;
            }
            self.now = self.now.max(next);
            (0..2).for_each(|host| self.advance(host));
            self.check();
        }
        self.check();
    }

    fn advance(&mut self, at: usize) {
        let (now, chance) = (self.now, self.chance.next());
        let host = &mut self.hosts[at];
        if let Some((_, well)) = host.trying.take_if(|(end, _)| *end <= now) {
            // The network may have shut meanwhile.
            if well && self.open && !self.linked {
                self.linked = true;
                host.worked = true;
                self.hosts.iter_mut().for_each(|host| host.backoff.up());
            }
            return;
        }
        if host.can && !self.linked && host.trying.is_none() && host.backoff.next <= now {
            let gap = host.last.map_or(u64::MAX, |last| now - last);
            assert!(host.reason || gap >= 125 * MILLISECOND, "dialled again after {gap} ns");
            host.backoff.dial(now, host.worked, chance);
            assert!(host.backoff.next > now);
            (host.last, host.reason) = (Some(now), false);
            host.count += 1;
            host.trying = Some(if self.open { (now + self.trip, true) } else { (now + PATIENCE, false) });
        }
    }

    /// Where somebody can dial, and the network is open, there is a link soon.
    fn check(&self) {
        let worked = self.hosts.iter().any(|host| host.can && host.worked);
        let late = self.since + SOON[usize::from(worked)];
        assert!(self.linked || !self.open || self.now <= late, "no link at {}, open since {}", self.now, self.since);
    }

    fn happen(&mut self) {
        let now = self.now;
        match self.chance.below(6) {
            0 => {
                self.open = !self.open;
                self.since = now;
                if !self.open && self.linked {
                    self.lose();
                }
            }
            1 if self.linked => {
                self.since = now;
                self.lose();
            }
            // A daemon is started again: it knows nothing.
            2 => {
                let at = self.chance.below(2) as usize;
                let (can, count) = (self.hosts[at].can, self.hosts[at].count);
                if self.linked {
                    self.lose();
                }
                self.since = now;
                self.hosts[at] = Host {
                    backoff: Backoff::new(now),
                    can,
                    worked: false,
                    trying: None,
                    last: None,
                    reason: true,
                    count,
                };
            }
            _ => {
                let at = self.chance.below(2) as usize;
                self.hosts[at].backoff.dial_soon(now);
                let host = &self.hosts[at];
                let soon = host.last.map_or(now, |last| now.max(last + 500 * MILLISECOND));
                assert!(host.backoff.next <= soon, "{} is not soon after {now}", host.backoff.next);
            }
        }
    }

    fn lose(&mut self) {
        self.linked = false;
        for host in &mut self.hosts {
            let chance = self.chance.next();
            host.backoff.lost(self.now, chance);
            host.reason = true;
        }
    }
}

fn one(chance: Chance) {
    let mut world = World::new(chance);
    for _ in 0..world.chance.below(60) {
        let longest = if world.chance.once_in(4) { 60 * SECOND } else { 3 * SECOND };
        let pause = world.chance.below(longest);
        world.until(world.now + pause);
        world.happen();
    }
    // Nothing passes for an hour: attempts become rare, and never stop.
    if world.linked {
        world.lose();
    }
    world.open = false;
    world.until(world.now + 60 * SECOND);
    let before = world.hosts.each_ref().map(|host| host.count);
    world.until(world.now + 3600 * SECOND);
    for (host, before) in world.hosts.iter().zip(before) {
        let count = host.count - before;
        let most = if host.worked { 3600 / 2 } else { 3600 / 15 };
        assert!(if host.can { (3600 / 40..=most).contains(&count) } else { count == 0 }, "{count} attempts in an hour");
    }
    (world.open, world.since) = (true, world.now);
    world.until(world.now + 60 * SECOND);
    assert!(world.linked);
}

#[test]
fn an_open_way_is_found_soon_and_a_shut_one_is_tried_now_and_then() {
    play(5000, one);
}
