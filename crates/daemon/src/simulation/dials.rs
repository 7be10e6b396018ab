//! Two hosts that dial each other, or only one the other, with the pauses of `link/backoff.rs`. The network between them opens and shuts, links
//! break, daemons restart. Where the network is open a link comes up soon, and no host dials too often.

use super::{Random, run_seeds};
use crate::link::backoff::Backoff;
use crate::units::{MILLISECOND, SECOND};

/// The time that an address has to answer, as in `link/dial.rs`.
const CONNECT_TIMEOUT: u64 = 4 * SECOND;
/// The bounds of the time without a link: the longest pause, an attempt that began before the network opened, and one that succeeds.
const SOON: [u64; 2] = [30 * SECOND + CONNECT_TIMEOUT + SECOND, 4 * SECOND + CONNECT_TIMEOUT + SECOND];

struct Host {
    backoff: Backoff,
    /// Whether it can dial at all.
    can_dial: bool,
    /// It has reached the other one before.
    worked: bool,
    /// An attempt: when it ends, and whether it succeeds.
    trying: Option<(u64, bool)>,
    /// When it dialled last, and whether there was a reason since to dial at once.
    last: Option<u64>,
    reason: bool,
    count: u64,
}

struct World {
    hosts: [Host; 2],
    linked: bool,
    open: bool,
    /// Since when it is open without a link, and without a restart.
    since: u64,
    delay: u64,
    now: u64,
    random: Random,
}

impl World {
    fn new(mut random: Random) -> Self {
        let one = random.once_in(2);
        let now = random.below(SECOND);
        let host = |can_dial| Host {
            backoff: Backoff::new(now),
            can_dial,
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
            open: random.once_in(2),
            since: now,
            delay: random.below(300) * MILLISECOND,
            now,
            random,
        }
    }

    fn next(&self) -> u64 {
        let due = self.hosts.iter().map(|host| match host.trying {
            Some((end, _)) => end,
            None if host.can_dial && !self.linked => host.backoff.next,
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
        let (now, random) = (self.now, self.random.any());
        let host = &mut self.hosts[at];
        if let Some((_, succeeds)) = host.trying.take_if(|(end, _)| *end <= now) {
            // The network may have shut meanwhile.
            if succeeds && self.open && !self.linked {
                self.linked = true;
                host.worked = true;
                self.hosts.iter_mut().for_each(|host| host.backoff.up());
            }
            return;
        }
        if host.can_dial && !self.linked && host.trying.is_none() && host.backoff.next <= now {
            let gap = host.last.map_or(u64::MAX, |last| now - last);
            assert!(host.reason || gap >= 125 * MILLISECOND, "dialled again after {gap} ns");
            host.backoff.dial(now, host.worked, random);
            assert!(host.backoff.next > now);
            (host.last, host.reason) = (Some(now), false);
            host.count += 1;
            host.trying = Some(if self.open { (now + self.delay, true) } else { (now + CONNECT_TIMEOUT, false) });
        }
    }

    /// Where a host can dial, and the network is open, there is a link soon.
    fn check(&self) {
        let worked = self.hosts.iter().any(|host| host.can_dial && host.worked);
        let late = self.since + SOON[usize::from(worked)];
        assert!(self.linked || !self.open || self.now <= late, "no link at {}, open since {}", self.now, self.since);
    }

    fn disturb(&mut self) {
        let now = self.now;
        match self.random.below(6) {
            0 => {
                self.open = !self.open;
                self.since = now;
                if !self.open && self.linked {
                    self.lose_link();
                }
            }
            1 if self.linked => {
                self.since = now;
                self.lose_link();
            }
            // A daemon restarts: it knows nothing.
            2 => {
                let at = self.random.below(2) as usize;
                let (can_dial, count) = (self.hosts[at].can_dial, self.hosts[at].count);
                if self.linked {
                    self.lose_link();
                }
                self.since = now;
                self.hosts[at] = Host {
                    backoff: Backoff::new(now),
                    can_dial,
                    worked: false,
                    trying: None,
                    last: None,
                    reason: true,
                    count,
                };
            }
            _ => {
                let at = self.random.below(2) as usize;
                self.hosts[at].backoff.dial_soon(now);
                let host = &self.hosts[at];
                let soon = host.last.map_or(now, |last| now.max(last + 500 * MILLISECOND));
                assert!(host.backoff.next <= soon, "{} is not soon after {now}", host.backoff.next);
            }
        }
    }

    fn lose_link(&mut self) {
        self.linked = false;
        for host in &mut self.hosts {
            let random = self.random.any();
            host.backoff.lost(self.now, random);
            host.reason = true;
        }
    }
}

fn one(random: Random) {
    let mut world = World::new(random);
    for _ in 0..world.random.below(60) {
        let longest = if world.random.once_in(4) { 60 * SECOND } else { 3 * SECOND };
        let pause = world.random.below(longest);
        world.until(world.now + pause);
        world.disturb();
    }
    // The network is shut for an hour: attempts become rare, and never stop.
    if world.linked {
        world.lose_link();
    }
    world.open = false;
    world.until(world.now + 60 * SECOND);
    let before = world.hosts.each_ref().map(|host| host.count);
    world.until(world.now + 3600 * SECOND);
    for (host, before) in world.hosts.iter().zip(before) {
        let count = host.count - before;
        let most = if host.worked { 3600 / 2 } else { 3600 / 15 };
        assert!(
            if host.can_dial { (3600 / 40..=most).contains(&count) } else { count == 0 },
            "{count} attempts in an hour"
        );
    }
    (world.open, world.since) = (true, world.now);
    world.until(world.now + 60 * SECOND);
    assert!(world.linked);
}

#[test]
fn an_open_network_is_found_soon_and_a_shut_one_is_tried_at_times() {
    run_seeds(5000, one);
}
