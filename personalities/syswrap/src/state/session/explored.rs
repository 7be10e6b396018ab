//! Sessions under a scheduler: two processes with three threads each on one connection, over a model of the kernel's socket, with the
//! code that runs under programs (`cargo test -p madrigal-syswrap --features shuttle --lib`).
//!
//! Every byte is a function of its place in the stream, and never a doorbell's, so the reader finds a byte that is lost, doubled, out of
//! order or foreign. A lost wake-up leaves a thread asleep for ever, which the scheduler reports as a deadlock. Either process may be
//! killed before any of its operations on shared memory or on the socket.

mod gone;
mod kernel;
mod program;
mod queue;
mod world;

use madrigal_base::sync::explored::mortal::Process;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::thread;

use crate::state::explored::explore;
use program::Plan;
use world::World;

/// Runs both sides of a connection to their end, then ends a killed side as the kernel does.
fn connect(plans: [Plan; 2], processes: &[Process; 2]) -> Arc<World> {
    let world = Arc::new(World::new());
    let sides = [0, 1].map(|side| {
        let (world, process, plan) = (Arc::clone(&world), processes[side].clone(), plans[side]);
        thread::spawn(move || {
            let threads = program::threads(&world, &process, side, plan);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            world.end(side, process.is_dead());
        })
    });
    sides.into_iter().for_each(|side| side.join().unwrap());
    world
}

fn living() -> [Process; 2] {
    [Process::immortal(), Process::immortal()]
}

#[test]
fn both_streams_arrive_whole_through_kernel_and_ring() {
    explore(1_500, 700, || {
        let world = connect([Plan::talk(2500, 700), Plan::talk(1700, 600)], &living());
        world.assert_whole();
    });
}

#[test]
fn a_larger_ring_takes_over_without_a_gap() {
    explore(600, 300, || {
        let world = connect([Plan { grows: true, ..Plan::talk(6000, 1800) }, Plan::talk(300, 100)], &living());
        world.assert_whole();
    });
}

#[test]
fn a_ring_that_was_left_for_a_larger_one_is_another_sessions() {
    explore(600, 300, || {
        let mut plans = [Plan { grows: true, ..Plan::talk(200_000, 150_000) }, Plan::talk(300, 100)];
        (plans[1].hands_back, plans[1].late) = (true, true);
        let world = connect(plans, &living());
        world.assert_whole();
    });
}

#[test]
fn whoever_leaves_at_any_time_loses_nothing() {
    explore(2_000, 1_000, || {
        let mut plans = [Plan::talk(2500, 700), Plan::talk(2000, 600)];
        for plan in &mut plans {
            plan.leaves = thread_rng().gen_bool(0.6);
        }
        let world = connect(plans, &living());
        world.assert_whole();
    });
}

#[test]
fn who_sleeps_through_a_seal_of_its_own_side_is_woken_by_a_byte() {
    explore(1_500, 700, || {
        let world = connect([Plan { leaves: true, ..Plan::talk(300, 300) }, Plan::talk(300, 100)], &living());
        world.assert_whole();
        world.assert_woken();
    });
}

#[test]
fn the_kernel_hears_of_a_cork_before_it_carries_what_follows() {
    explore(600, 300, || {
        let mut plans = [Plan { corks: true, ..Plan::talk(2500, 700) }, Plan::talk(300, 100)];
        plans[thread_rng().gen_range(0..2usize)].leaves = true;
        let world = connect(plans, &living());
        world.assert_whole();
    });
}

#[test]
fn unread_bytes_go_back_to_a_reader_that_knows_no_rings() {
    explore(2_000, 1_000, || {
        let mut plans = [Plan::talk(2200, 700), Plan::talk(2000, 600)];
        for plan in &mut plans {
            plan.hands_back = thread_rng().gen_bool(0.7);
            plan.leaves = thread_rng().gen_bool(0.3);
        }
        let world = connect(plans, &living());
        world.assert_whole();
    });
}

#[test]
fn a_half_close_beside_a_hand_back_loses_nothing() {
    explore(2_000, 2_000, || {
        let world = connect([Plan { hands_back: true, ..Plan::talk(100, 100) }, Plan::talk(300, 300)], &living());
        world.assert_whole();
    });
}

#[test]
fn what_knows_no_gate_comes_behind_what_goes_back() {
    explore(2_000, 1_000, || {
        let mut plans = [Plan { hands_back: true, last: true, ..Plan::talk(300, 20) }, Plan::talk(900, 300)];
        plans[1].unhooked = 30;
        let world = connect(plans, &living());
        world.assert_whole();
    });
}

#[test]
fn no_doorbell_lies_before_the_end_of_a_stream() {
    explore(2_000, 1_000, || {
        let reads = Plan { hands_back: true, last: true, behind_end: true, ..Plan::talk(300, 20) };
        let world = connect([reads, Plan::talk(900, 300)], &living());
        world.assert_whole();
    });
}

#[test]
fn the_peer_takes_back_what_we_may_not() {
    explore(1_000, 500, || {
        // The other side goes on talking, so it checks the connection.
        let world = connect([Plan { asks_back: true, ..Plan::talk(400, 90) }, Plan::talk(900, 120)], &living());
        world.assert_whole();
    });
}

#[test]
fn what_was_sent_before_a_close_is_read() {
    explore(1_500, 700, || {
        let world = connect([Plan { closes: true, ..Plan::talk(900, 400) }, Plan::receive_all(900)], &living());
        world.assert_whole();
    });
}

#[test]
fn a_kill_at_any_step_spoils_nothing_that_came_before() {
    explore(3_000, 1_500, || {
        let mut plans = [Plan::talk(1800, 700), Plan::talk(1500, 600)];
        for plan in &mut plans {
            plan.leaves = thread_rng().gen_bool(0.3);
            plan.hands_back = thread_rng().gen_bool(0.2);
        }
        let dies = thread_rng().gen_range(0..2usize);
        let at = thread_rng().gen_range(1..700);
        let mut processes = living();
        processes[dies] = Process::killed_after(at);
        let world = connect(plans, &processes);
        // A side that lived has read a prefix of what was sent, byte for byte; or all of it, if no process died before the end.
        world.assert_no_nonsense();
    });
}
