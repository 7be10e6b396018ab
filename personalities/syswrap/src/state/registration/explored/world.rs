//! What the threads of a model share: sockets and sets as registrations know them, the kernel, and the ring of each socket (a count of
//! bytes, and whether its writer rings for the next one). Locks stand in here for what a session guarantees (see `session::explored`): no
//! doorbell comes behind its end.

mod parties;

use core::ffi::c_int;
use core::ops::Deref;

use libc::{EPOLLIN, epoll_event};
use madrigal_base::sync::{AtomicU32, AtomicU64, Ordering};

use super::super::{EventSet, Scanned, Subject, adopt, restore, restore_all, set_closed, used, wake_sets};
use super::books::Books;
use super::kernel::{Kernel, fd_of};
use crate::state::key;
use crate::state::lock::{Guard, Lock};
use crate::state::member::{Member, READABLE, Stamps, WRITABLE, bit};
use crate::state::registry::Registry;
use crate::state::session::phase;
use crate::state::use_count::UseCount;

pub(super) const SOCKS: usize = 2;
pub(super) const SETS: usize = 2;
const MEMBERS: usize = 4;
const SECRET: u32 = 0x8bad_cafe;
/// Doorbells that may lie unread.
const BELLS: u64 = 2;

/// The state of one socket.
#[derive(Default)]
pub(super) struct SockState {
    members: [Member; MEMBERS],
    registering: Lock,
    /// The session's locks.
    sending: Lock,
    reading: Lock,
    uses: UseCount,
    closed: AtomicU32,
    generation: AtomicU32,
    hooked: AtomicU32,
    session: AtomicU32,
    rx: AtomicU32,
    watchers: AtomicU32,
    kernel_moves: AtomicU32,
    kernel_room: AtomicU32,
    /// Whether the writer puts into the ring; the ring; and whether its writer rings for the next byte.
    by_ring: AtomicU32,
    tail: AtomicU64,
    head: AtomicU64,
    armed: AtomicU32,
}

/// The state of one set.
#[derive(Default)]
pub(super) struct SetState {
    pub(super) registry: Registry,
    pub(super) rounds: AtomicU32,
    closed: AtomicU32,
}

pub(super) struct World {
    pub(super) kernel: Kernel,
    pub(super) books: Books,
    socks: [SockState; SOCKS],
    pub(super) sets: [SetState; SETS],
}

#[derive(Clone, Copy)]
pub(super) struct SockOf<'a> {
    pub(super) world: &'a World,
    pub(super) index: usize,
}

#[derive(Clone, Copy)]
pub(super) struct SetOf<'a> {
    pub(super) world: &'a World,
    pub(super) index: usize,
}

/// A hook at work on a socket.
pub(super) struct Held<'a>(SockOf<'a>);

/// What the program's slabs give by reference.
#[derive(Clone, Copy)]
pub(super) struct Pinned<T>(T);

impl<T> Deref for Pinned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'a> Deref for Held<'a> {
    type Target = SockOf<'a>;

    fn deref(&self) -> &SockOf<'a> {
        &self.0
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.state().uses.leave() {
            self.0.finish();
        }
    }
}

impl World {
    pub(super) fn new() -> Self {
        Self { kernel: Kernel::new(), books: Books::default(), socks: Default::default(), sets: Default::default() }
    }

    pub(super) fn set(&self, index: usize) -> SetOf<'_> {
        SetOf { world: self, index }
    }

    pub(super) fn sock(&self, index: usize) -> SockOf<'_> {
        SockOf { world: self, index }
    }

    /// As `sock::enter`: by a descriptor, if it is open.
    pub(super) fn enter(&self, index: usize) -> Option<Held<'_>> {
        let held = self.sock(index).held();
        (!held.is_closed()).then_some(held)
    }

    /// As `sets::by_key`.
    pub(super) fn by_key(&self, data: u64) -> Option<Option<(Held<'_>, usize)>> {
        let id = key::id(SECRET, data)? as usize;
        let held = self.sock(id / MEMBERS).held();
        let named = key::is_of(data, held.state().generation.load(Ordering::SeqCst));
        Some(named.then_some((held, id % MEMBERS)))
    }
}

// --- a session's life -----------------------------------------------------------------------------------------------------------

impl<'a> SockOf<'a> {
    fn state(&self) -> &'a SockState {
        &self.world.socks[self.index]
    }

    pub(super) fn fd(&self) -> c_int {
        fd_of(self.index)
    }

    pub(super) fn held(&self) -> Held<'a> {
        self.state().uses.enter();
        Held(*self)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().closed.load(Ordering::SeqCst) != 0
    }

    fn phase(&self, rx: u32) {
        self.state().rx.store(rx, Ordering::SeqCst);
        self.world.kernel.note_event(self.fd());
    }

    fn waiting(&self) -> u64 {
        // The head first: it never passes the tail.
        let head = self.state().head.load(Ordering::SeqCst);
        self.state().tail.load(Ordering::SeqCst) - head
    }

    fn writes_ring(&self) -> bool {
        self.state().by_ring.load(Ordering::SeqCst) != 0
    }

    /// As `Consumer::arm`.
    pub(super) fn arm(&self) -> bool {
        self.state().armed.store(1, Ordering::SeqCst);
        self.waiting() > 0
    }

    pub(super) fn in_ring(&self) -> bool {
        self.is_in_session() && matches!(self.rx(), phase::READY | phase::RING)
    }

    /// The peer sends a byte; true: it goes to the current connection. It switches to the ring as soon as it may.
    pub(super) fn put(&self, switches: bool) -> bool {
        let state = self.state();
        let _sending = state.sending.lock();
        if self.is_closed() {
            return false;
        }
        self.world.books.sent();
        if switches && self.rx() == phase::READY && !self.writes_ring() {
            state.by_ring.store(1, Ordering::SeqCst);
            self.world.kernel.note_event(self.fd());
        }
        if !self.writes_ring() {
            self.world.kernel.send(self.fd(), 1);
            return true;
        }
        state.tail.fetch_add(1, Ordering::SeqCst);
        self.world.kernel.note_event(self.fd());
        // SYNC: SeqCst store then SeqCst swap, as `Producer::publish`.
        if state.armed.swap(0, Ordering::SeqCst) != 0 {
            self.world.kernel.bell(self.fd());
        }
        true
    }

    /// Both ends hold a slot from now on.
    pub(super) fn begin(&self) {
        let state = self.state();
        let _sending = state.sending.lock();
        if !self.is_in_session() && !self.is_closed() {
            state.armed.store(1, Ordering::SeqCst);
            state.session.store(1, Ordering::SeqCst);
        }
    }

    /// As `View::ready`, in a receive of the program's.
    pub(super) fn ready(&self) -> bool {
        let _reading = self.state().reading.lock();
        if !self.is_in_session() || self.is_closed() || self.rx() != phase::KERNEL {
            return false;
        }
        self.phase(phase::SWITCHING);
        let may = adopt(self);
        self.phase(if may { phase::READY } else { phase::KERNEL });
        may
    }

    /// As `View::reach_ring`, under the receive lock.
    fn reach_ring(&self) -> bool {
        let reached = self.rx() == phase::READY && self.writes_ring() && self.world.kernel.bytes(self.fd()) == 0;
        if reached {
            self.phase(phase::RING);
        }
        reached
    }

    /// As `View::swallow` by a thread that is awake, under the receive lock.
    fn swallow(&self) {
        if self.world.kernel.take_bells(self.fd()) && self.state().watchers.load(Ordering::SeqCst) > 0 {
            let _ = self.arm();
        }
    }

    /// The same, if no other thread receives and there are many.
    pub(super) fn swallow_many(&self) {
        if self.world.kernel.bells(self.fd()) >= BELLS
            && let Some(_reading) = self.state().reading.try_lock()
            && self.in_ring()
        {
            self.swallow();
        }
    }

    /// The program receives up to `n` bytes; how many there were.
    pub(super) fn receive(&self, n: u64, swallows: bool) -> u64 {
        let state = self.state();
        let _reading = state.reading.lock();
        if self.is_closed() {
            return 0;
        }
        let mut got = match self.rx() {
            phase::RING => 0,
            _ => self.world.kernel.receive(self.fd(), n),
        };
        if self.rx() == phase::RING || self.reach_ring() {
            let more = self.waiting().min(n - got);
            state.head.fetch_add(more, Ordering::SeqCst);
            got += more;
            if swallows {
                self.swallow();
            }
        }
        self.world.books.read(got);
        got
    }

    /// Either side ends the session: what is unread goes back to the kernel, and no doorbell is left. `restores`: as `leave::leave`; else
    /// as by a reader that finds the ring sealed, and the next caller gives the registration back.
    pub(super) fn end(&self, restores: bool) {
        let state = self.state();
        {
            let _sending = state.sending.lock();
            let _reading = state.reading.lock();
            if !self.is_in_session() || self.is_closed() || self.rx() == phase::DONE {
                return;
            }
            state.by_ring.store(0, Ordering::SeqCst);
            self.world.kernel.take_bells(self.fd());
            let left = self.waiting();
            state.head.fetch_add(left, Ordering::SeqCst);
            self.phase(phase::DONE);
            if left > 0 {
                self.world.kernel.send(self.fd(), left);
            }
            if restores {
                self.unhook();
            }
        }
        if restores {
            wake_sets(self);
        }
        state.uses.set_due();
    }

    /// As `teardown::unhook`.
    fn unhook(&self) {
        if self.is_hooked() && self.is_in_session() && self.rx() == phase::DONE {
            restore(self);
        }
    }

    /// As `teardown::finish`.
    fn finish(&self) {
        let state = self.state();
        if !state.uses.exclusive(0) {
            return;
        }
        if self.is_closed() {
            self.reset();
        } else if self.is_in_session() && self.rx() == phase::DONE {
            self.unhook();
            state.session.store(0, Ordering::SeqCst);
            self.phase(phase::KERNEL);
        }
        state.uses.share();
    }

    /// The last close; then another socket takes the same number and, once no thread uses this one, the same object.
    pub(super) fn close(&self) {
        let held = self.held();
        let state = self.state();
        {
            let _sending = state.sending.lock();
            if state.closed.swap(1, Ordering::SeqCst) != 0 {
                return;
            }
        }
        super::super::drop_members(self);
        let lost = {
            let _sending = state.sending.lock();
            let _reading = state.reading.lock();
            let left = self.waiting();
            state.head.fetch_add(left, Ordering::SeqCst);
            left + self.world.kernel.close(self.fd())
        };
        self.world.books.lost(lost);
        state.uses.set_due();
        drop(held);
    }

    fn reset(&self) {
        let state = self.state();
        state.generation.fetch_add(1, Ordering::SeqCst);
        state.members.iter().for_each(Member::clear);
        for word in [&state.hooked, &state.session, &state.rx, &state.by_ring, &state.kernel_moves, &state.kernel_room]
        {
            word.store(0, Ordering::SeqCst);
        }
        state.closed.store(0, Ordering::SeqCst);
    }

    /// No thread is at work any more: does whatever is due.
    pub(super) fn come_to_rest(&self) {
        self.state().uses.set_due();
        self.finish();
        // As a socket that leaves no session: a registration became ours for a session that never began.
        if self.is_hooked() && !self.is_in_session() {
            let _registering = self.lock_members();
            restore_all(self);
        }
    }

    pub(super) fn changing(&self) -> Guard<'a> {
        self.state().registering.lock()
    }
}

// --- checks ---------------------------------------------------------------------------------------------------------------------

impl SockOf<'_> {
    /// As `ready::stamps`.
    fn stamps(&self) -> Stamps {
        let by_kernel = |moves: &AtomicU32| u64::from(moves.load(Ordering::SeqCst)) | 1 << 47;
        let (state, tail) = (self.state(), self.state().tail.load(Ordering::SeqCst));
        let kernel = (by_kernel(&state.kernel_moves), by_kernel(&state.kernel_room));
        Stamps { bytes: (if self.rx() == phase::RING { tail } else { kernel.0 + tail }, kernel.1), kernel }
    }

    /// As `ready::check`.
    fn check(&self, member: &Member, wanted: u32) -> u32 {
        let in_ring = || if self.waiting() > 0 { READABLE } else { 0 };
        let ask = || member.ask_once(bit::IDLE_IN, || self.world.kernel.poll(self.fd()) & READABLE);
        let mut ready = match self.rx() {
            phase::RING => in_ring(),
            phase::READY if self.writes_ring() => {
                let reached = self.state().reading.try_lock().map(|_reading| self.reach_ring());
                match reached {
                    Some(true) => in_ring(),
                    Some(false) => ask(),
                    None if self.waiting() + self.world.kernel.bytes(self.fd()) > 0 => READABLE,
                    None => 0,
                }
            }
            _ => ask(),
        };
        if wanted & WRITABLE != 0 {
            ready |= member.ask_once(bit::IDLE_OUT, || self.world.kernel.poll(self.fd()) & WRITABLE);
        }
        ready
    }

    /// As `Waiting::note`, of the first set.
    pub(super) fn note(&self, set: SetOf<'_>, m: usize, events: u32) {
        let (state, member) = (self.state(), &self.members()[m]);
        if !member.is_in(set.index()) {
            return;
        }
        if events & EPOLLIN as u32 != 0 {
            state.kernel_moves.fetch_add(1, Ordering::SeqCst);
        }
        if events & WRITABLE != 0 {
            state.kernel_room.fetch_add(1, Ordering::SeqCst);
        }
        notified(set, *self, m);
        if !self.in_ring() {
            return;
        }
        if set.registry().sleepers.load(Ordering::SeqCst) > 0 || used(self).count() > 1 {
            let _ = self.arm();
        }
        self.swallow_many();
    }
}

/// The set lives as long as the socket here.
fn notified<'a>(set: SetOf<'a>, s: SockOf<'a>, m: usize) {
    super::super::notified(&set, &s, m);
}

impl Scanned for SockOf<'_> {
    /// As the wrapped socket's.
    fn is_idle(&self, _: &Member) -> bool {
        self.rx() == phase::RING && self.waiting() == 0
    }

    fn report_of(&self, member: &Member) -> Option<epoll_event> {
        let check = |wanted| member.check_whole(wanted, || self.check(member, wanted));
        member.report(|| self.stamps(), check)
    }

    fn is_stalled(&self) -> bool {
        false
    }

    fn may_rest(&self, member: &Member) -> bool {
        let writes_reported = member.has(bit::IDLE_OUT) || member.events.load(Ordering::Relaxed) & WRITABLE == 0;
        match self.rx() {
            phase::RING => writes_reported && !self.arm(),
            phase::READY => writes_reported && member.has(bit::IDLE_IN) && !self.writes_ring(),
            _ => writes_reported && member.has(bit::IDLE_IN),
        }
    }
}

impl SetOf<'_> {
    /// As `sets::drop_descriptor`, and then the kernel's close.
    pub(super) fn close(&self) {
        if self.world.sets[self.index].closed.swap(1, Ordering::SeqCst) == 0 {
            set_closed(self);
            self.world.kernel.close_set(self.index);
        }
    }
}
