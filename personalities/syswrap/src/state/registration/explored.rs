//! Registrations under a scheduler: two sockets in two event sets, over a model of the kernel's, with the code that runs under programs
//! (`cargo test -p madrigal-syswrap --features shuttle --lib`).
//!
//! The real code is: the steps of a registration and of epoll_ctl(2), a member, the active list, its scans, and what of a member is an
//! edge. The waits of the program make these steps in the order of `io::epoll`. A session is a ring of counted bytes and a doorbell here.
//!
//! A lost wake-up leaves a thread asleep for ever, which the scheduler reports as a deadlock. Every request of the program has data of its
//! own, by which [`books`] finds what is reported twice, too late, or without an edge.

mod books;
mod kernel;
mod program;
mod rest;
mod world;

use libc::EPOLL_CTL_ADD;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::thread;

use crate::state::explored::explore;
use world::World;

/// The threads of a program: one that waits until all is over, one that takes a few events, and those that run `works`.
fn live(works: &[fn(&World)]) {
    let world = Arc::new(World::new());
    for index in 0..world::SOCKS {
        assert!(program::change(&world, index, 0, EPOLL_CTL_ADD, program::any_events()));
    }
    let spawn = |work: fn(&World)| {
        let world = Arc::clone(&world);
        thread::spawn(move || work(&world))
    };
    let works: Vec<_> = works.iter().map(|&work| spawn(work)).collect();
    let waiter = spawn(|world| program::wait_for_all(world, None));
    let helper = {
        let world = Arc::clone(&world);
        let few = thread_rng().gen_range(0..=2);
        thread::spawn(move || program::wait_for_all(&world, Some(few)))
    };
    works.into_iter().for_each(|work| work.join().unwrap());
    world.books.done();
    program::finish_if_even(&world);
    waiter.join().unwrap();
    helper.join().unwrap();
    rest::check(&world);
    rest::close_all(&world);
}

#[test]
fn registrations_change_hands_and_nobody_sleeps_for_ever() {
    explore(8_000, 4_000, || live(&[program::send_all, program::change_all, program::move_all]));
}

#[test]
fn a_byte_wakes_somebody_while_sessions_begin_and_end() {
    explore(20_000, 10_000, || live(&[program::send_all, program::move_all]));
}
