//! A family of processes that hold two sockets, under a scheduler: a process that finds itself alone with one is.

use madrigal_base::sync::explored::mortal::Process;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::thread;
use std::sync::atomic::{AtomicBool, AtomicU64 as Word, Ordering as Order};

use super::few::{Table, child_of};
use super::*;

const SOCKETS: usize = 2;

#[derive(Default)]
struct World {
    /// Descriptors of each socket that are open, in any process.
    open: [Word; SOCKETS],
    /// A process has taken it for its own; no other process may have it then.
    owned: [AtomicBool; SOCKETS],
}

impl World {
    /// Before the close is counted: no process may find itself alone while another has it open.
    fn close(&self, socket: usize) {
        self.owned[socket].store(false, Order::SeqCst);
        self.open[socket].fetch_sub(1, Order::SeqCst);
    }
}

/// A process, and what it knows of the sockets it has.
struct Member {
    own: [Option<Holders>; SOCKETS],
    process: Process,
}

#[test]
fn who_is_alone_is_alone() {
    let run = || {
        let (table, world) = (Arc::new(Table::new()), Arc::new(World::default()));
        // With one counter it is soon another socket's.
        let counters = thread_rng().gen_range(1..3usize);
        let f = table.family(counters);
        let dies = thread_rng().gen_range(0..4usize);
        let process = |n: usize| {
            if n == dies { Process::killed_after(thread_rng().gen_range(1..30)) } else { Process::immortal() }
        };
        let first = Member { own: [const { Some(Holders(AtomicU32::new(0))) }; SOCKETS], process: process(0) };
        world.open.iter().for_each(|open| open.store(1, Order::SeqCst));
        // Two children, one after the other.
        let mut family = vec![first];
        for n in 1..3 {
            let child = fork(f, &world, &family[0], process(n));
            family.push(child);
        }
        let threads = family.into_iter().map(|member| {
            let (table, world) = (Arc::clone(&table), Arc::clone(&world));
            thread::spawn(move || {
                let process = member.process.clone();
                let member = std::sync::Mutex::new(member);
                let live =
                    || live(table.family(counters), &world, &mut member.lock().unwrap_or_else(|e| e.into_inner()));
                if process.run(live).is_none() {
                    // The kernel closes what a killed process has.
                    let member = member.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    (0..SOCKETS).filter(|&socket| member.own[socket].is_some()).for_each(|socket| world.close(socket));
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    };
    shuttle::check_random(run, 20_000);
    shuttle::check_pct(run, 10_000, 4);
}

/// A child that has some of the sockets.
fn fork(f: Family<'_>, world: &World, parent: &Member, process: Process) -> Member {
    let own = [0, 1].map(|socket| {
        let holders = parent.own[socket].as_ref().filter(|_| thread_rng().gen_bool(0.5))?;
        // As before a fork: the owner leaves its ring.
        world.owned[socket].store(false, Order::SeqCst);
        f.share(holders);
        world.open[socket].fetch_add(1, Order::SeqCst);
        Some(child_of(holders))
    });
    Member { own, process }
}

fn live(f: Family<'_>, world: &World, member: &mut Member) {
    for _ in 0..thread_rng().gen_range(2..10) {
        let socket = thread_rng().gen_range(0..SOCKETS);
        match thread_rng().gen_range(0..5) {
            0 => be_alone(f, world, member, socket),
            1 => give_up(world, member, socket, |holders| _ = f.let_go(holders)),
            2 => pass_on(f, world, member, socket),
            3 => exec_fails(f, world, member, socket),
            _ => {
                let mut child = fork(f, world, member, Process::immortal());
                (0..SOCKETS).for_each(|socket| give_up(world, &mut child, socket, |holders| _ = f.let_go(holders)));
            }
        }
        thread::yield_now();
    }
}

/// Takes a socket for its own, if no other process has it.
fn be_alone(f: Family<'_>, world: &World, member: &Member, socket: usize) {
    let Some(holders) = &member.own[socket] else { return };
    if f.sole(holders) {
        assert_eq!(world.open[socket].load(Order::SeqCst), 1, "others have it");
        world.owned[socket].store(true, Order::SeqCst);
    } else {
        assert!(!world.owned[socket].load(Order::SeqCst), "another owns it");
    }
}

/// Its descriptor is closed.
fn give_up(world: &World, member: &mut Member, socket: usize, by: impl FnOnce(&Holders)) {
    let Some(holders) = member.own[socket].take() else { return };
    world.close(socket);
    by(&holders);
}

/// An uncounted process has it from now on, and keeps it.
fn pass_on(f: Family<'_>, world: &World, member: &mut Member, socket: usize) {
    let Some(holders) = member.own[socket].take() else { return };
    world.owned[socket].store(false, Order::SeqCst);
    f.pass_on(&holders);
}

/// What it had it has again, unless another one took it for its own meanwhile: then it is cut off.
fn exec_fails(f: Family<'_>, world: &World, member: &mut Member, socket: usize) {
    let Some(holders) = member.own[socket].take() else { return };
    world.close(socket);
    f.leave_for_exec(&holders);
    // It takes as long as all that others may do.
    (0..thread_rng().gen_range(0..60)).for_each(|_| thread::yield_now());
    if f.come_back(&holders) {
        world.open[socket].fetch_add(1, Order::SeqCst);
        member.own[socket] = Some(holders);
    }
}
