//! What must hold when all threads but one have ended: registrations are the last requests, and report what they should.

use libc::{EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT};
use madrigal_base::sync::Ordering;

use super::super::{EventSet, Subject, used};
use super::kernel::OVER_DATA;
use super::program::{Wait, change, check_entries};
use super::world::{SETS, SOCKS, World};
use crate::state::member::bit;

/// So many waits take every event that the kernel had from earlier.
const LATE: usize = 4;

pub(super) fn check(world: &World) {
    for index in 0..SOCKS {
        let s = world.sock(index);
        s.come_to_rest();
        check_entries(&s);
        assert!(used(&s).all(|(_, member)| !world.set(member.set().unwrap() as usize).is_closed()), "in a closed set");
        for (_, member) in used(&s).filter(|(_, member)| !member.has(bit::DETACHED)) {
            let data = member.data.load(Ordering::SeqCst);
            assert!(world.books.may_stand(data), "of the past: {data}\n{}", world.books.describe());
        }
    }
    (0..LATE).for_each(|_| _ = scan(world));
    assert_eq!(scan(world), [], "told without an edge");
    (0..SOCKS).for_each(|index| check_reports(world, index));
}

/// A byte comes: a level-triggered member is reported each time, an edge-triggered one when the byte comes, a one-shot one only then.
fn check_reports(world: &World, index: usize) {
    let s = world.sock(index);
    let in_first = used(&s).find(|(_, member)| member.is_in(0) && !member.has(bit::DETACHED));
    let Some((_, member)) = in_first else { return };
    let (events, data) = (member.events.load(Ordering::SeqCst), member.data.load(Ordering::SeqCst));
    assert!(s.put(true));
    let reports: Vec<usize> =
        (0..LATE).map(|_| scan(world).iter().filter(|&&reported| reported == data).count()).collect();
    let why = || format!("{events:x}: {reports:?}\n{}", world.books.describe());
    assert_eq!(reports[0], 1, "a byte has come, {}", why());
    match () {
        () if events & EPOLLONESHOT as u32 != 0 => assert_eq!(reports.iter().sum::<usize>(), 1, "once, {}", why()),
        () if events & EPOLLET as u32 != 0 => assert_eq!(reports[LATE - 1], 0, "an edge, {}", why()),
        () => assert_eq!(reports, [1; LATE], "what stays, {}", why()),
    }
    // A new request gets a new report.
    if change(world, index, 0, EPOLL_CTL_MOD, events) {
        assert_eq!(scan(world).len(), 1, "armed while it is ready, {}", why());
    }
    assert_eq!(s.receive(2, true), 1);
    (0..LATE).for_each(|_| _ = scan(world));
    assert_eq!(scan(world), [], "told of what is read");
}

/// The data that a wait without a sleep reports.
fn scan(world: &World) -> Vec<u64> {
    let reported = Wait::new(world.set(0)).run_at_once();
    reported
        .into_iter()
        .filter(|&(_, data)| data != OVER_DATA)
        .filter(|&(events, _)| events & EPOLLIN as u32 != 0)
        .map(|(_, data)| data)
        .collect()
}

/// Everything is closed, in either order: nothing is left.
pub(super) fn close_all(world: &World) {
    let close_sets = || (0..SETS).for_each(|set| world.set(set).close());
    if world.books.now() % 2 == 0 {
        close_sets();
    }
    (0..SOCKS).for_each(|index| world.sock(index).close());
    close_sets();
    for index in 0..SETS {
        let set = world.set(index);
        let counts = [&set.registry().tcp, &set.registry().ours, &set.registry().sleepers]
            .map(|count| count.load(Ordering::SeqCst));
        assert_eq!(counts, [0; 3], "sockets, registrations of ours, and sleepers of a closed set");
        assert_eq!(set.registry().check(|id| set.member(id)), [], "members of a closed set");
    }
    for index in 0..SOCKS {
        let s = world.sock(index);
        assert_eq!((s.watchers().load(Ordering::SeqCst), used(&s).count()), (0, 0), "sets of a closed socket");
    }
}
