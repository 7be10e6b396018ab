//! One TCP socket of the program: the state that all hooks share.
//!
//! A socket is found by descriptor ([`enter`]) and lives from socket(2) or accept(2) to its last close in this process:
//!
//! ```text
//!   free --track--> descriptors > 0 --(dup +1, close -1)--> no descriptor --(no hook at work, none parked: finish)--> free
//!                     |         ^
//!                     the last closes while calls sleep on it: one of our own takes its place until they are over ([`super::callers`])
//! ```
//! The hook that opens or closes a descriptor counts it (`lifecycle::close`); [`super::teardown`] frees the object. All fields are atomics:
//! hooks run in any thread and in signal handlers. What belongs to a ring session is in [`super::session`].

mod held;
pub(crate) mod options;
mod traffic;

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use madrigal_offers::Tuple;
use madrigal_progress::wait::Waiter;
use madrigal_report::{Path, Reason};
use madrigal_sys::fd::Fd;

use super::defer::Deferred;
use super::holders::{Holders, Rest};
use super::lock::Lock;
use super::member::Member;
use super::pending_release::PendingRelease;
use super::retained::Retained;
use super::routed::Routed;
use super::session::Session;
use super::slab::{Object, Slab};
use super::table::{self, Kind, Word};
use super::use_count::UseCount;
use super::{fork_locks, process};
pub(crate) use held::{Parked, Ref, by_index, enter};

/// All sockets of this process.
pub(crate) static SOCKS: Slab<Sock> = Slab::new();

/// Event sets a socket can be in and still move; more is [`Reason::EventSet`].
pub(crate) const MEMBERS: usize = 4;

/// What a socket is for.
pub(crate) mod role {
    /// Made by socket(2), nothing more yet.
    pub(crate) const FRESH: u32 = 0;
    /// The connecting end of a connection.
    pub(crate) const CLIENT: u32 = 1;
    /// The accepting end of a connection.
    pub(crate) const SERVER: u32 = 2;
    /// A listener.
    pub(crate) const LISTENER: u32 = 3;
}

/// How far a connection is on its way to a ring.
pub(crate) mod mode {
    /// The kernel carries everything.
    pub(crate) const KERNEL: u32 = 0;
    /// This end has an offer out and watches for the answer.
    pub(crate) const OFFERED: u32 = 1;
    /// Both ends hold a slot; see the session's phases.
    pub(crate) const SESSION: u32 = 2;
}

/// Bits of `Sock::flags`.
pub(crate) mod flag {
    /// `O_NONBLOCK`.
    pub(crate) const NONBLOCK: u32 = 1;
    /// It was connected anew, under names that may be others (`lifecycle::anew`): to the program it has those it had.
    pub(crate) const RECONNECTED: u32 = 2;
    /// `SO_LINGER` with time 0: close resets.
    pub(crate) const LINGER0: u32 = 4;
    /// A receive time-out is set.
    pub(crate) const RCVTIMEO: u32 = 8;
    /// A send time-out is set.
    pub(crate) const SNDTIMEO: u32 = 16;
    /// The listener is marked in the table of offers.
    pub(crate) const MARKED: u32 = 32;
    /// Registrations and options are ours, for the sake of a session.
    pub(crate) const HOOKED: u32 = 64;
    /// This process was the last of a family that held it: what it does with the slot is its side's.
    pub(crate) const LAST: u32 = 128;
    /// `SO_REUSEPORT`: its port may be that of a listener.
    pub(crate) const SHARES_PORT: u32 = 256;
    /// `SO_RCVLOWAT` is above 1: a receive with `MSG_DONTWAIT` would return less.
    pub(crate) const LOW_WATER: u32 = 512;
    /// Its descriptors are closed on exec only until a child is made that must not read it.
    pub(crate) const WITHHELD: u32 = 1024;
    /// The session is over, and registrations stay ours all the same.
    pub(crate) const STAYS: u32 = 2048;
    /// Another process may have set options on it, or on its listener; this process does not know them.
    pub(crate) const OPTIONS_UNKNOWN: u32 = 4096;
    /// What a connection has from its listener; `TCP_CORK`, too.
    pub(crate) const INHERITED: u32 = LINGER0 | RCVTIMEO | SNDTIMEO | LOW_WATER | OPTIONS_UNKNOWN;
}

/// A socket.
pub(crate) struct Sock {
    index: AtomicU32,
    generation: AtomicU32,
    next_free: AtomicU32,
    /// Hooks at work on it right now. Never reset: a late hook may still be counted.
    pub(crate) uses: UseCount,
    /// Descriptors of it in this process, and one of them.
    pub(crate) refs: AtomicU32,
    fd: AtomicI32,
    /// The descriptor that retains it after its last close.
    pub(crate) retained: Retained,
    role: AtomicU32,
    pub(crate) mode: AtomicU32,
    flags: AtomicU32,
    /// Why it may never move: a [`Reason`], 0 for none.
    never: AtomicU32,
    /// While this process tries to become another program: one more than a descriptor of it, whose own numbers stand for a reset socket.
    pub(crate) displaced: AtomicU32,
    /// The slot of a session that is over, until the others of the family are done with it.
    pub(crate) pending_release: PendingRelease,
    /// Sends so far, and how many make the next try worth it.
    sends: AtomicU32,
    next_try: AtomicU32,
    /// Bytes both ways since the last try.
    bytes: AtomicU64,
    /// The table's count of posts when an accepting end last looked.
    pub(crate) seen_offers: AtomicU32,
    /// Its counter among processes that share it, plus one; 0 while only this process holds it.
    pub(crate) holders: Holders,
    /// How often the kernel reported anything for it through an event set; the same for room to write.
    pub(crate) kernel_moves: AtomicU32,
    pub(crate) kernel_room: AtomicU32,
    /// Bytes that the kernel had received for it when that was last so.
    pub(crate) kernel_bytes: AtomicU64,
    /// The offer this end has out: its place plus one, its generation, when it was made, and how often its answer was checked.
    pub(crate) offer: AtomicU32,
    pub(crate) offer_generation: AtomicU64,
    pub(crate) offered_at: AtomicU64,
    pub(crate) offer_checks: AtomicU32,
    /// The lease its session's slot is in, plus one; and the slot.
    pub(crate) lease: AtomicU32,
    pub(crate) slot_index: AtomicU32,
    /// The program's `TCP_NODELAY`, while ours is on for the doorbells' sake.
    pub(crate) nodelay: AtomicU32,
    /// Where the last large receive went.
    pub(crate) large_at: AtomicU64,
    pub(super) record_of: AtomicU32,
    pub(crate) rx_wait: Waiter,
    pub(crate) tx_wait: Waiter,
    pub(crate) tuple: Tuple,
    /// Before members, or the kernel's registrations behind them, change.
    pub(crate) registering: Lock,
    pub(crate) members: [Member; MEMBERS],
    pub(crate) session: Session,
    pub(crate) deferred: Deferred,
    pub(crate) routed: Routed,
    /// How often sends and receives have alternated so far; the lowest bit is set if a send was last.
    pub(crate) alternations: AtomicU32,
}

// SAFETY: atomics and structs of atomics only; all-zero is a fresh socket.
unsafe impl Object for Sock {
    fn next_free(&self) -> &AtomicU32 {
        &self.next_free
    }
}

/// Begins to track the TCP socket `fd`, which was unknown. Does nothing when there is no room: the descriptor stays unknown.
pub(crate) fn track(fd: c_int, role: u32, nonblocking: bool) {
    if process::is_plain() {
        return;
    }
    let Some((index, sock)) = SOCKS.take() else { return };
    sock.reset(index, fd, role, nonblocking);
    if !table::set(fd, sock.word(index)) {
        sock.refs.store(0, Ordering::Relaxed);
        SOCKS.put(index);
    }
}

impl Sock {
    fn reset(&self, index: u32, fd: c_int, role: u32, nonblocking: bool) {
        let words = [&self.mode, &self.never, &self.sends, &self.seen_offers, &self.kernel_moves];
        let more = [
            &self.kernel_room,
            &self.offer,
            &self.offer_checks,
            &self.lease,
            &self.record_of,
            &self.alternations,
            &self.displaced,
        ];
        self.holders.begin();
        for field in words.into_iter().chain(more) {
            field.store(0, Ordering::Relaxed);
        }
        self.bytes.store(0, Ordering::Relaxed);
        self.kernel_bytes.store(0, Ordering::Relaxed);
        self.index.store(index, Ordering::Relaxed);
        self.fd.store(fd, Ordering::Relaxed);
        self.next_try.store(process::first_try(), Ordering::Relaxed);
        self.flags.store(if nonblocking { flag::NONBLOCK } else { 0 }, Ordering::Relaxed);
        self.role.store(role, Ordering::Relaxed);
        self.tuple.clear();
        self.rx_wait.forget();
        self.tx_wait.forget();
        self.members.iter().for_each(Member::clear);
        self.session.reset();
        self.deferred.clear();
        self.routed.clear();
        self.refs.store(1, Ordering::Release);
    }

    /// It is freed: a word of it in the table of descriptors names nothing any more.
    pub(super) fn free(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        SOCKS.put(self.index());
    }

    /// Its word in the descriptor table.
    pub(crate) fn word(&self, index: u32) -> Word {
        Word::new(Kind::Socket, self.generation.load(Ordering::Relaxed), index)
    }

    /// Its word for a descriptor that is ours.
    pub(crate) fn retained_word(&self) -> Word {
        Word::new(Kind::Retained, self.generation.load(Ordering::Relaxed), self.index())
    }

    /// Whether this is a descriptor of it.
    pub(crate) fn has_fd(&self, fd: c_int) -> bool {
        table::peek(fd).is_some_and(|word| word == self.word(self.index()) || word == self.retained_word())
    }

    /// Its index among all sockets.
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    /// Distinguishes this use of the object from earlier ones.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// A descriptor of it.
    pub(crate) fn fd(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    /// `fd`, if it is still a descriptor of it, or else another one. Under the send lock: none of them is closed before that is free.
    pub(crate) fn open_fd(&self, fd: c_int) -> Option<c_int> {
        [fd, self.fd()].into_iter().find(|&fd| self.has_fd(fd))
    }

    /// Does something with this very descriptor of it. `None`: another thread has closed it, and the number may be another socket's.
    pub(crate) fn while_open<T>(&self, fd: c_int, act: impl FnOnce() -> T) -> Option<T> {
        let _sending = self.session.wlock.lock();
        (self.open_fd(fd) == Some(fd)).then(act)
    }

    /// Takes away the descriptor that stands for it while its own are displaced.
    pub(crate) fn take_displaced(&self) -> Option<Fd> {
        let copy = self.displaced.swap(0, Ordering::Relaxed).checked_sub(1)?;
        // SAFETY: from `Fd::into_number`, and only the caller that takes it away gets here.
        Some(unsafe { Fd::from_number(copy as c_int) })
    }

    /// Another descriptor of it is the one that stays.
    pub(crate) fn set_fd(&self, fd: c_int) {
        self.fd.store(fd, Ordering::Relaxed);
        if let Some(line) = self.own_line() {
            line.fd.store(fd as u32, Ordering::Relaxed);
        }
        if let Some(record) = self.record() {
            record.set_fd(fd);
        }
    }

    /// A fork is coming: the child will hold it, too.
    pub(crate) fn share(&self) {
        self.set_flag(flag::LAST, false);
        self.holders.share();
    }

    /// This process holds it no longer; true: no other process does.
    pub(crate) fn let_go(&self) -> bool {
        self.note_rest(self.holders.let_go()) == Rest::Nobody
    }

    /// An uncounted process holds it from now on.
    pub(crate) fn pass_on(&self) {
        self.note_rest(self.holders.pass_on());
    }

    /// This process is about to become a program that will not hold it.
    pub(crate) fn leave_for_exec(&self) {
        self.note_rest(self.holders.leave_for_exec());
    }

    /// It has not become another program. False: another process may have taken the socket for its own meanwhile.
    pub(crate) fn come_back(&self) -> bool {
        self.set_flag(flag::LAST, false);
        self.holders.come_back()
    }

    fn note_rest(&self, rest: Rest) -> Rest {
        if rest != Rest::Family {
            self.set_flag(flag::LAST, true);
        }
        rest
    }

    /// Whether this process is the only holder of it. From then on no other process changes its options.
    pub(crate) fn is_sole(&self) -> bool {
        let was_shared = self.holders.was_shared();
        let sole = self.holders.sole();
        if sole && was_shared {
            self.set_flag(flag::LAST | flag::OPTIONS_UNKNOWN, true);
            self.ask_nonblocking();
        }
        sole
    }

    #[inline]
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    pub(crate) fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.flags.fetch_or(flag, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!flag, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn mode(&self) -> u32 {
        self.mode.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn role(&self) -> u32 {
        self.role.load(Ordering::Relaxed)
    }

    pub(crate) fn set_role(&self, role: u32) {
        self.role.store(role, Ordering::Relaxed);
    }

    /// Whether it is an end of a connection, or will be.
    pub(crate) fn may_carry(&self) -> bool {
        matches!(self.role(), role::CLIENT | role::SERVER | role::FRESH)
    }

    /// Whether the last descriptor is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.refs.load(Ordering::SeqCst) == 0
    }

    /// Why it may never move, if so.
    pub(crate) fn never(&self) -> Option<Reason> {
        Reason::from_code(self.never.load(Ordering::Relaxed))
    }

    /// It will not move (again), for this reason; the first reason stays.
    pub(crate) fn set_never(&self, reason: Reason) {
        let _ = self.never.compare_exchange(0, reason as u32, Ordering::Relaxed, Ordering::Relaxed);
        self.session.stays.store(1, madrigal_base::sync::Ordering::Relaxed);
        self.record_path(Path::Tcp, self.never());
    }

    /// Takes over what the kernel lets an accepted connection have from its listener (socket(7), tcp(7)).
    pub(crate) fn inherit(&self, listener: &Self) {
        self.flags.fetch_or(listener.flags.load(Ordering::Relaxed) & flag::INHERITED, Ordering::Relaxed);
        let corked = listener.session.corked.load(madrigal_base::sync::Ordering::Relaxed);
        self.session.corked.store(corked, madrigal_base::sync::Ordering::Relaxed);
        if let Some(reason @ (Reason::Option | Reason::LowWater)) = listener.never() {
            self.set_never(reason);
        }
    }

    /// It goes through the daemon, or should have: of these reasons only the last counts. What goes through the daemon may move, for its other
    /// end is the daemon's; unless the program has set before what no ring can do.
    pub(crate) fn set_way(&self, reason: Reason) {
        if self.never().is_none_or(|before| before == Reason::NoDaemon) {
            self.never.store(if reason == Reason::Daemon { 0 } else { reason as u32 }, Ordering::Relaxed);
        }
        self.record_path(Path::Tcp, Some(reason));
    }

    /// Its locks, in the order in which they are taken.
    pub(crate) fn locks(&self) -> [&Lock; 3] {
        [&self.session.wlock, &self.session.rlock, &self.registering]
    }

    /// In the child after fork(2): no other thread exists, and the record is in the parent's report.
    pub(crate) fn after_fork(&self) {
        self.uses.after_fork();
        self.locks().into_iter().for_each(fork_locks::reset);
        self.session.after_fork();
        self.record_of.store(0, Ordering::Relaxed);
    }
}
