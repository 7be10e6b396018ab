//! A signal handler runs before any instruction of a call, and does something with the same socket or set: what comes of both is what comes
//! of one behind the other. A run tries some of the moments; `ANY_TIME=7` that one.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, POLLOUT,
};
use madrigal_tests::net::{self, poll, recv, recv_exact, send};
use madrigal_tests::pair::Pair;

use crate::any_time::{STARTS, Start};
use crate::set::Set;
use crate::traced::at_instruction;

crate::checks![modifies, adds_again, waits, receives, sends, polls, closes_a_copy, closes, forks];

/// Moments that a run tries of each.
const TRIES: u32 = 2;
/// Instructions of a call, about.
const MOST: u32 = 3000;

/// What is done on top of it.
const ON_TOP: [Call; 8] = [
    Call::Modify(THEIRS),
    Call::AddAgain(THEIRS),
    Call::Wait,
    Call::Receive(100),
    Call::Send(b'h', 300),
    Call::Poll,
    Call::Close,
    Call::Fork,
];

/// The registrations in the set by the call and by the handler: data and events.
const OURS: (u64, i32) = (2, EPOLLIN);
const THEIRS: (u64, i32) = (3, EPOLLOUT);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Call {
    Modify((u64, i32)),
    AddAgain((u64, i32)),
    Wait,
    Receive(usize),
    Send(u8, usize),
    Poll,
    CloseCopy,
    Close,
    Fork,
}

/// A connection, a set that has one end of it, and the bytes that the call and the handler got. Handlers allocate nothing.
struct Scene {
    pair: Pair,
    set: Set,
    /// For the call that closes it.
    copy: OwnedFd,
    got: [Cell<([u8; MUCH], usize)>; 2],
    sent: [Cell<usize>; 2],
    on_top: Call,
    /// Whether the handler did that.
    ran: Cell<bool>,
}

const MUCH: usize = 1000;
const QUIETLY: i32 = MSG_DONTWAIT | MSG_NOSIGNAL;

/// For the handler.
static SCENE: AtomicPtr<Scene> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn handler(_: i32) {
    let scene = SCENE.load(Ordering::SeqCst);
    // SAFETY: it stays until the check is over; this thread alone has it.
    let scene = unsafe { &*scene };
    scene.ran.set(true);
    scene.call(scene.on_top, 1);
}

impl Scene {
    fn call(&self, call: Call, by: usize) {
        let s = &self.pair.s;
        match call {
            // What the other one has taken out, or put in, is not there, or there: one of them has it then.
            Call::Modify((data, events)) => _ = self.set.control(EPOLL_CTL_MOD, s, events, data),
            Call::AddAgain((data, events)) => {
                let _ = self.set.control(EPOLL_CTL_DEL, s, 0, 0);
                let _ = self.set.control(EPOLL_CTL_ADD, s, events, data);
            }
            Call::Wait => {
                let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
                // SAFETY: our own events.
                assert!(unsafe { libc::epoll_wait(self.set.0.as_raw_fd(), events.as_mut_ptr(), 4, 0) } <= 1);
            }
            Call::Receive(n) => {
                let mut buf = [0; MUCH];
                let got = recv(s, &mut buf[..n], MSG_DONTWAIT).unwrap_or(0);
                self.got[by].set((buf, got));
            }
            Call::Send(letter, n) => self.sent[by].set(send(s, &[letter; MUCH][..n], QUIETLY).unwrap_or(0)),
            Call::Poll => _ = poll(s, POLLIN | POLLOUT, 0),
            Call::CloseCopy => close(&self.copy),
            Call::Close => close(s),
            Call::Fork => assert_eq!(net::wait(net::fork(|| 0)), 0),
        }
    }

    /// Every byte is there once, and in order, and the set reports the events of one of the two registrations.
    fn verify(&self, call: Call, unread: &[u8], when: &str) {
        let on_top = Some(self.on_top).filter(|_| self.ran.get());
        let [main, handler] = self.got.each_ref().map(|got| {
            let (bytes, n) = got.get();
            bytes[..n].to_vec()
        });
        let orders = [[&main[..], &handler].concat(), [&handler[..], &main].concat()];
        let got = main.len() + handler.len();
        assert!(orders.iter().any(|all| unread.starts_with(all)), "{when}: {main:?} {handler:?}");
        if call == Call::Close || on_top == Some(Call::Close) {
            assert_eq!(self.set.wait(4, 0), [], "{when}");
            let end = self.drain();
            return assert!(matches!(end, Ok(0) | Err(libc::ECONNRESET)), "{when}: {end:?}");
        }
        for (asked, mine, other) in [(Some(call), &main, &handler), (on_top, &handler, &main)] {
            if let Some(Call::Receive(n)) = asked {
                // More may be on its way.
                assert!(mine.len() <= n && (!mine.is_empty() || other.len() == unread.len()), "{when}: {mine:?}");
            }
        }
        let left = unread.len() - got;
        let told = self.set.wait(4, 0);
        let is_reported = |(data, events): (u64, i32)| match events {
            EPOLLIN if left == 0 => told.is_empty(),
            events => told == [(data, events)],
        };
        let asks = |call| matches!(call, Call::Modify(_) | Call::AddAgain(_));
        let may_be = match (asks(call), on_top.is_some_and(asks)) {
            (false, false) => is_reported((1, EPOLLIN)),
            (true, false) => is_reported(OURS),
            (false, true) => is_reported(THEIRS),
            (true, true) => is_reported(OURS) || is_reported(THEIRS),
        };
        assert!(may_be, "{when}: told {told:?} with {left} bytes unread");
        assert_eq!(recv_exact(&self.pair.s, left), unread[got..], "{when}: what was left");
        let [main, handler] = self.sent.each_ref().map(Cell::get);
        let came = recv_exact(&self.pair.c, main + handler);
        let orders =
            [[vec![b'm'; main], vec![b'h'; handler]].concat(), [vec![b'h'; handler], vec![b'm'; main]].concat()];
        assert!(orders.contains(&came), "{when}: what was sent");
        for (from, to) in [(&self.pair.c, &self.pair.s), (&self.pair.s, &self.pair.c)] {
            assert_eq!(send(from, b"more", 0), Ok(4), "{when}");
            assert_eq!(recv_exact(to, 4), b"more", "{when}");
        }
    }

    /// What comes behind everything at the other end.
    fn drain(&self) -> net::Count {
        let mut buf = [0; MUCH];
        loop {
            match recv(&self.pair.c, &mut buf, 0) {
                Ok(1..) => {}
                end => return end,
            }
        }
    }
}

/// The owner forgets it.
fn close(fd: &OwnedFd) {
    // SAFETY: open still.
    assert_eq!(unsafe { libc::close(fd.as_raw_fd()) }, 0);
}

fn nothing_unread() -> (Pair, Vec<u8>) {
    (Pair::warm(), Vec::new())
}

/// A call, with each handler on top, from each start.
fn interrupted(call: Call) {
    let starts = STARTS.into_iter().chain([("an empty ring", nothing_unread as Start)]);
    for (name, start) in starts {
        for on_top in ON_TOP.into_iter().filter(|on_top| (call, *on_top) != (Call::Close, Call::Close)) {
            let mut most = MOST;
            for attempt in 0..TRIES {
                let asked = std::env::var("ANY_TIME").ok().and_then(|at| at.parse().ok());
                let mut at = asked.unwrap_or_else(|| random() % most);
                let mut steps = before(at, call, on_top, (name, start));
                if steps < at && asked.is_none() {
                    // The next one may be a little shorter.
                    most = (steps * 9 / 10).max(1);
                    at = random() % most;
                    steps = before(at, call, on_top, (name, start));
                }
                assert!(steps >= at || attempt > 0 || asked.is_some(), "{call:?}, {on_top:?}: {steps} of {at}");
            }
        }
    }
}

/// How many instructions the call had, if fewer.
fn before(at: u32, call: Call, on_top: Call, (name, start): (&str, Start)) -> u32 {
    at_instruction(at, libc::SIGUSR1, |mark| {
        let (pair, unread) = start();
        let (set, copy) = (Set::new(), net::dup(&pair.s));
        set.add(&pair.s, EPOLLIN, 1);
        // It becomes quiet where nothing is unread.
        (0..20).for_each(|_| _ = set.wait(4, 0));
        if call != Call::CloseCopy {
            close(&copy);
        }
        let got = [(); 2].map(|()| Cell::new(([0; MUCH], 0)));
        // Some of it is closed by then, and the process ends.
        let scene = Box::leak(Box::new(Scene {
            pair,
            set,
            copy,
            got,
            sent: Default::default(),
            on_top,
            ran: Cell::new(false),
        }));
        SCENE.store(scene, Ordering::SeqCst);
        net::on_signal(libc::SIGUSR1, handler, true);
        mark();
        scene.call(call, 0);
        mark();
        scene.verify(call, &unread, &format!("{call:?}, {on_top:?} before instruction {at}, {name}"));
    })
}

fn random() -> u32 {
    RandomState::new().hash_one(0) as u32
}

fn modifies() {
    interrupted(Call::Modify(OURS));
}

fn adds_again() {
    interrupted(Call::AddAgain(OURS));
}

fn waits() {
    interrupted(Call::Wait);
}

fn receives() {
    interrupted(Call::Receive(MUCH));
}

fn sends() {
    interrupted(Call::Send(b'm', MUCH));
}

fn polls() {
    interrupted(Call::Poll);
}

fn closes_a_copy() {
    interrupted(Call::CloseCopy);
}

fn closes() {
    interrupted(Call::Close);
}

fn forks() {
    interrupted(Call::Fork);
}
