//! The program of a model: its waits, what it changes, and the sessions of its sockets meanwhile.
//!
//! The steps of a wait are those of `io::epoll::wait`, in their order, and without clocks: the scheduler decides how often it scans and
//! when it queries the kernel. A sleep has no time limit: a lost wake-up leaves a thread asleep for ever.

use core::cell::Cell;

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, EPOLLOUT, epoll_event,
};
use madrigal_base::sync::Ordering;
use madrigal_sys::Errno;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

use super::super::{EventSet, Scan, Scanned, Subject, control, scan, used, wake_sleeper};
use super::kernel::OVER_DATA;
use super::world::{SetOf, SockOf, World};
use crate::state::member::{Member, bit};
use crate::state::session::phase;

const ET: u32 = EPOLLET as u32;
const ONESHOT: u32 = EPOLLONESHOT as u32;
const NO_EVENT: epoll_event = epoll_event { events: 0, u64: 0 };

fn chance(of: f64) -> bool {
    thread_rng().gen_bool(of)
}

fn linger(most: usize) {
    (0..thread_rng().gen_range(0..=most)).for_each(|_| thread::yield_now());
}

// --- epoll_wait(2) --------------------------------------------------------------------------------------------------------------

pub(super) struct Wait<'a> {
    set: SetOf<'a>,
    round: u32,
    /// How long a list is long, and how soon a member is taken off it.
    long: u32,
    since: u64,
    /// Whether it reports something that stays ready.
    stays: Cell<bool>,
}

impl<'a> Wait<'a> {
    pub(super) fn new(set: SetOf<'a>) -> Self {
        let round = set.world.sets[set.index].rounds.fetch_add(1, Ordering::Relaxed) + 1;
        let long = if chance(0.3) { 0 } else { 64 };
        Self { set, round, long, since: set.world.books.now(), stays: Cell::new(false) }
    }

    fn is_plain(&self) -> bool {
        self.set.registry().ours.load(Ordering::Acquire) == 0
    }

    fn sleepers(&self) -> u32 {
        self.set.registry().sleepers.load(Ordering::SeqCst)
    }

    /// One round of a wait; nothing: wait again.
    fn run(&self, out: &mut [epoll_event]) -> usize {
        let n = self.scan_and_sleep(out);
        self.done();
        n
    }

    /// A wait that does not last: events and data.
    pub(super) fn run_at_once(&self) -> Vec<(u32, u64)> {
        let mut out = [NO_EVENT; 3];
        let n = self.ask_kernel(0, &mut out, false);
        let n = n + self.collect(&mut out[n..]);
        out[..n].iter().map(|event| (event.events, event.u64)).collect()
    }

    /// As `Waiting::done`.
    fn done(&self) {
        if self.stays.get() && self.sleepers() > 0 {
            wake_sleeper(&self.set);
        }
    }

    fn scan_and_sleep(&self, out: &mut [epoll_event]) -> usize {
        if !self.is_plain() {
            let n = self.first_scan(out);
            if n > 0 {
                return n;
            }
            if let Some(n) = self.spin(out) {
                return n;
            }
        }
        if self.is_plain() { self.sleep_plainly(out) } else { self.sleep(out) }
    }

    fn first_scan(&self, out: &mut [epoll_event]) -> usize {
        if chance(0.5) {
            let n = self.ask_kernel(0, out, false);
            return n + self.collect(&mut out[n..]);
        }
        let n = self.collect(out);
        if n < out.len() && chance(0.3) { self.ask_kernel(n, out, false) } else { n }
    }

    fn spin(&self, out: &mut [epoll_event]) -> Option<usize> {
        let scans = thread_rng().gen_range(0..2);
        (0..scans)
            .map(|_| match self.collect(out) {
                0 if chance(0.5) => self.ask_kernel(0, out, false),
                n => n,
            })
            .find(|&n| n > 0)
    }

    /// As `wait::begin_sleep` and `wait::after_sleep`.
    fn sleep_plainly(&self, out: &mut [epoll_event]) -> usize {
        // SYNC: SeqCst with `adopt_one`: a thread that makes a registration ours wakes the counted sleepers.
        self.set.registry().sleepers.fetch_add(1, Ordering::SeqCst);
        if !self.is_plain() {
            self.set.registry().sleepers.fetch_sub(1, Ordering::SeqCst);
            return 0;
        }
        let got = self.kernel_wait(out, true);
        self.set.registry().sleepers.fetch_sub(1, Ordering::SeqCst);
        let waiting = Self::new(self.set);
        let (n, ours) = waiting.translate((0, 0), out, got);
        let n = n + if ours { waiting.collect(&mut out[n..]) } else { 0 };
        waiting.done();
        n
    }

    /// As `Waiting::sleep` with `Sleepers::on`.
    fn sleep(&self, out: &mut [epoll_event]) -> usize {
        self.set.registry().sleepers.fetch_add(1, Ordering::SeqCst);
        self.arm_all();
        let n = match self.collect(out) {
            0 => self.ask_kernel(0, out, true),
            n => n,
        };
        self.set.registry().sleepers.fetch_sub(1, Ordering::SeqCst);
        n
    }

    /// As `sleep::arm_all`.
    fn arm_all(&self) {
        let _lock = self.set.registry().lock.lock();
        for (_, s, _) in self.set.active().filter(|(_, _, member)| member.has(bit::OURS)) {
            if s.rx() == phase::RING {
                let _ = s.arm();
            }
        }
    }

    /// As `collect::collect`.
    fn collect(&self, out: &mut [epoll_event]) -> usize {
        if self.set.registry().length.load(Ordering::SeqCst) == 0 {
            return 0;
        }
        let found = scan(&self.set, out, Scan { round: self.round, long: self.long, idle: 0 });
        if found.stays {
            self.stays.set(true);
        }
        found.n
    }

    fn kernel_wait(&self, out: &mut [epoll_event], sleeps: bool) -> usize {
        let reported = self.set.world.kernel.wait(self.set.index, out.len(), sleeps);
        for (place, &(events, data)) in out.iter_mut().zip(&reported) {
            *place = epoll_event { events, u64: data };
        }
        reported.len()
    }

    /// As `Waiting::ask_kernel`.
    fn ask_kernel(&self, found: usize, out: &mut [epoll_event], sleeps: bool) -> usize {
        let (mut n, mut noted) = (found, 0);
        for attempt in 0..=self.set.registry().ours.load(Ordering::Relaxed) {
            let got = self.kernel_wait(&mut out[n..], sleeps && attempt == 0);
            let full = n + got == out.len();
            let (filled, ours) = self.translate((found, n), out, got);
            n = filled;
            noted += u32::from(ours);
            if full && ours && self.sleepers() > 0 {
                n += self.collect(&mut out[n..]);
            }
            if !(full && ours) || n == out.len() {
                break;
            }
        }
        if noted > 0 && n < out.len() {
            n += self.collect(&mut out[n..]);
        }
        if noted > 1 && n == out.len() && self.sleepers() > 0 {
            wake_sleeper(&self.set);
        }
        n
    }

    /// As `Waiting::translate`, of sockets whose peers live.
    fn translate(&self, (found, n): (usize, usize), out: &mut [epoll_event], got: usize) -> (usize, bool) {
        let (mut filled, mut ours) = (n, false);
        for i in n..n + got {
            let event = out[i];
            let data = event.u64;
            match self.set.world.by_key(data) {
                None => {
                    let same = out[found..n].iter_mut().find(|other| { other.u64 } == data);
                    if let Some(other) = same {
                        other.events |= event.events;
                    } else {
                        out[filled] = event;
                        filled += 1;
                    }
                }
                Some(named) => {
                    ours |= named.is_some();
                    if let Some((s, m)) = named {
                        s.note(self.set, m, event.events);
                        self.amend(&mut out[..found], &s, m);
                    }
                }
            }
        }
        (filled, ours)
    }

    /// As `Waiting::amend`.
    fn amend(&self, found: &mut [epoll_event], s: &SockOf<'_>, m: usize) {
        let member = &s.members()[m];
        if member.round.load(Ordering::Relaxed) != self.round {
            return;
        }
        let _lock = self.set.registry().lock.lock();
        let armed = member.events.load(Ordering::Relaxed) & ONESHOT != 0 && !member.has(bit::SPENT);
        if armed || member.has(bit::DETACHED) || !member.is_in(self.set.index()) {
            return;
        }
        let data = member.data.load(Ordering::Relaxed);
        if let Some(event) = found.iter_mut().find(|event| { event.u64 } == data)
            && let Some(more) = s.report_of(member)
        {
            event.events |= more.events;
        }
    }
}

/// A thread that waits until all is over, or for some events only; it handles each event it gets to the end.
pub(super) fn wait_for_all(world: &World, waits: Option<usize>) {
    let most = thread_rng().gen_range(1..=3);
    let mut reported = 0;
    while waits.is_none_or(|waits| reported < waits) {
        let mut out = [NO_EVENT; 3];
        let wait = Wait::new(world.set(0));
        let n = wait.run(&mut out[..most]);
        // A reported socket may be closing: then it is reported again.
        thread::yield_now();
        for event in &out[..n] {
            if event.u64 == OVER_DATA {
                return;
            }
            receive_event(world, event, wait.since);
            reported += 1;
        }
    }
}

/// The program gets an event, and handles it.
fn receive_event(world: &World, event: &epoll_event, since: u64) {
    let edges = [0, 1].map(|sock| world.kernel.edges(world.sock(sock).fd()));
    let (index, set, events) = world.books.note_report(event.u64, since, edges);
    if event.events & EPOLLIN as u32 != 0 {
        // An edge or one-shot event: reads until nothing is left. Any other: reads some, or nothing.
        let once = events & (ET | ONESHOT) != 0;
        let most = if once { 2 } else { thread_rng().gen_range(0..=2) };
        while let Some(s) = world.enter(index)
            && s.receive(most, chance(0.3)) > 0
            && once
        {}
    }
    finish_if_even(world);
    if events & ONESHOT != 0 {
        change(world, index, set, EPOLL_CTL_MOD, events);
    }
}

pub(super) fn finish_if_even(world: &World) {
    if world.books.are_even() {
        world.kernel.finish();
    }
}

// --- epoll_ctl(2) ---------------------------------------------------------------------------------------------------------------

/// As `epoll::control`; true: it was done.
pub(super) fn change(world: &World, index: usize, set: usize, op: i32, events: u32) -> bool {
    let Some(s) = world.enter(index) else { return false };
    let change = (op != EPOLL_CTL_DEL).then(|| world.books.ask(index, set, events, world.kernel.edges(s.fd())));
    let since = world.books.now();
    let event = change.map(|change| epoll_event { events, u64: change.data });
    let call = || {
        let (events, data) = event.map_or((0, 0), |event| (event.events, event.u64));
        world.kernel.ctl(set, op, s.fd(), events, data)
    };
    let done = control((&world.set(set), set as i32), (&*s, s.fd()), op, event, call).expect("there is room");
    assert!(matches!(done, Ok(()) | Err(Errno::NOENT | Errno::EXIST | Errno::INVAL | Errno::BADF)), "{done:?}");
    match change {
        Some(change) => world.books.asked(change, done.is_ok()),
        None if done.is_ok() => world.books.took_out(index, Some(set), since),
        None => {}
    }
    check_entries(&s);
    done.is_ok()
}

/// What a socket is registered for.
pub(super) fn any_events() -> u32 {
    let readable = EPOLLIN as u32;
    match thread_rng().gen_range(0..6) {
        0 | 1 => readable,
        2 => readable | ET,
        3 => readable | ET | EPOLLOUT as u32,
        4 => readable | ET | ONESHOT,
        _ => readable | ONESHOT,
    }
}

/// A thread that changes the requested events; in the end all is armed.
pub(super) fn change_all(world: &World) {
    for _ in 0..thread_rng().gen_range(1..4) {
        linger(6);
        let index = thread_rng().gen_range(0..2);
        match thread_rng().gen_range(0..7) {
            0 | 1 => _ = change(world, index, 0, EPOLL_CTL_MOD, any_events()),
            2 | 3 => {
                change(world, index, 0, EPOLL_CTL_DEL, 0);
                linger(6);
                let exclusive = if chance(0.2) { EPOLLEXCLUSIVE as u32 } else { 0 };
                let events = any_events();
                let events = if events & ONESHOT != 0 { events } else { events | exclusive };
                change(world, index, 0, EPOLL_CTL_ADD, events);
            }
            4 | 5 => {
                let op = if chance(0.5) { EPOLL_CTL_ADD } else { EPOLL_CTL_DEL };
                change(world, index, 1, op, EPOLLIN as u32);
            }
            _ => reopen(world, index),
        }
    }
}

/// The socket is closed, and another one is opened under its number.
fn reopen(world: &World, index: usize) {
    let since = world.books.now();
    world.sock(index).close();
    world.books.took_out(index, None, since);
    finish_if_even(world);
    while world.sock(index).is_closed() {
        thread::yield_now();
    }
    change(world, index, 0, EPOLL_CTL_ADD, any_events());
}

/// Whatever a step may have made of them, the kernel's entries are the program's, or ours.
pub(super) fn check_entries(s: &SockOf<'_>) {
    let _changing = s.changing();
    if s.is_closed() {
        return;
    }
    for (m, member) in used(s) {
        let set = member.set().unwrap() as usize;
        let Some(set) = Some(s.world.set(set)).filter(|set| !set.is_closed()) else { continue };
        // `wake_sleeper` takes an exclusive entry out, and puts it in again.
        let _lock = set.registry().lock.lock();
        check_entry(s, m, member, s.world.kernel.entry(set.index, s.fd()));
    }
}

fn check_entry(s: &SockOf<'_>, m: usize, member: &Member, entry: Option<(u32, u64)>) {
    let wanted = (member.events.load(Ordering::SeqCst), member.data.load(Ordering::SeqCst));
    // A close that has begun takes entries away.
    let Some((events, data)) = entry else {
        assert!(member.has(bit::ABSENT) || s.is_closed(), "no entry of {wanted:x?}");
        return;
    };
    if member.has(bit::OURS) {
        assert_eq!(data, s.key(m), "the key of what is ours");
        return;
    }
    assert!(!member.has(bit::ABSENT), "an entry of what is spent: {events:x}");
    assert_eq!(data, wanted.1, "the data of what is the program's");
    let spent = wanted.0 & ONESHOT != 0 && events == wanted.0 & (ET | ONESHOT | EPOLLEXCLUSIVE as u32);
    assert!(events == wanted.0 || spent, "the program's events: {events:x}, {:x}", wanted.0);
}

// --- sessions and bytes -----------------------------------------------------------------------------------------------------------

/// A thread in which sessions begin and end.
pub(super) fn move_all(world: &World) {
    for _ in 0..thread_rng().gen_range(1..3) {
        let Some(s) = world.enter(thread_rng().gen_range(0..2)) else { continue };
        s.begin();
        for _ in 0..thread_rng().gen_range(1..4) {
            if s.ready() {
                break;
            }
            linger(3);
        }
        check_entries(&s);
        linger(12);
        if chance(0.7) {
            s.end(chance(0.5));
            check_entries(&s);
        }
    }
}

/// The peers; and one of the sets is closed at some time.
pub(super) fn send_all(world: &World) {
    let mut closes = chance(0.5);
    for _ in 0..thread_rng().gen_range(2..8) {
        linger(8);
        let index = thread_rng().gen_range(0..2);
        let _ = world.sock(index).put(chance(0.8));
        if closes && chance(0.3) {
            world.set(1).close();
            closes = false;
        }
    }
}
