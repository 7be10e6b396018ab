//! One stream between two hosts and the relays that it may go by, with the decisions of `streams/failover.rs`, and links that notice silence as
//! the real ones do. Relays are killed, links are cut, reset and made anew. While there is a way that works throughout, the stream goes on.
//! Where there is none both ends learn it within 15 seconds. One end never goes on alone.

mod world;

use world::World;

use super::{Random, run_seeds};
use crate::streams::failover::{Action, Failover};
use crate::units::SECOND;

/// The time in which both ends learn that there is no way any more.
const DEADLINE: u64 = 15 * SECOND;
/// One relay after another fails, while another one works: the stream goes on.
fn one_relay_at_a_time(random: Random) {
    let mut world = World::new(random);
    if world.relays == 1 {
        return;
    }
    for _ in 0..1 + world.random.below(6) {
        let relay = world.random.below(world.relays as u64) as usize;
        let long = world.random.below(20 * SECOND);
        world.break_relay(relay, world.now + long);
        if world.random.once_in(3) {
            world.try_better();
        }
        // Everything was noticed by now, and works again.
        world.until(world.now + long + 20 * SECOND);
        assert!(world.ends.iter().all(|end| end.over.is_none()), "{:?}", world.now);
        let [one, other] = world.ends.each_ref().map(|end| end.at.map(|(id, _)| id));
        assert!(one.is_some() && one == other, "{one:?}, {other:?}");
    }
}

/// Any relays fail: both ends go on, or neither does. Where no way is left, both learn it in time.
fn any_relays(random: Random) {
    let mut world = World::new(random);
    for _ in 0..world.random.below(12) {
        let relay = world.random.below(world.relays as u64) as usize;
        let long = world.random.below(20 * SECOND);
        world.break_relay(relay, world.now + long);
        if world.random.once_in(2) {
            world.try_better();
        }
        let pause = world.random.below(6 * SECOND);
        world.until(world.now + pause);
        world.check(DEADLINE);
    }
    let end = world.now;
    for relay in 0..world.relays {
        for link in [2 * relay, 2 * relay + 1] {
            if world.random.once_in(2) || link % 2 == 0 {
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
    run_seeds(3000, one_relay_at_a_time);
}

#[test]
fn both_ends_learn_in_time_that_there_is_no_way() {
    run_seeds(5000, any_relays);
}

#[test]
fn a_stream_that_is_refused_again_and_again_stays_on_its_way() {
    run_seeds(1000, |mut random| {
        let (mut failover, mut now, mut attempts) = (Failover::new(), 0, 0);
        while failover.may_migrate() {
            failover.begin_attempt(now, "direct".to_owned());
            attempts += 1;
            now += random.below(SECOND);
            if !random.once_in(3) || failover.action(now) == Action::AttemptTimedOut {
                failover.attempt_failed(now, "it is further by now");
            } else {
                now = failover.deadline();
                assert_eq!(failover.action(now), Action::AttemptTimedOut);
                failover.attempt_failed(now, "no answer");
            }
            now = if failover.stays().is_some() { now } else { failover.deadline() };
            assert!(attempts < 100 && now < 60 * SECOND, "{attempts} attempts in {now} ns");
        }
        assert!(failover.stays().is_some_and(|why| why.contains("direct")) && failover.deadline() == u64::MAX);
        // A stream that loses its way then tries others as ever, and a new connection may be tried.
        failover.clear_refusals();
        assert!(failover.may_migrate());
        failover.way_lost(now, true, random.once_in(2));
        assert!(
            failover.action(now) == Action::TryAny
                && failover.deadline() < now + DEADLINE
                && failover.stays().is_none()
        );
    });
}
