//! One TCP socket of the program: what the hooks know of it, whoever of them it meets first.
//!
//! A socket is found by descriptor ([`enter`]) and lives from socket(2) or accept(2) to its last close in this process. All fields
//! are atomics: hooks run in any thread and in signal handlers. What belongs to a ring session is in [`crate::session`].

use core::ffi::c_int;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use madrigal_netaccess::wait::Waiter;
use madrigal_report::{Path, Reason, Record};
use madrigal_sys::lock::Lock;

use crate::defer::Deferred;
use crate::epoll::Member;
use crate::offers::Tuple;
use crate::route::Routed;
use crate::session::Session;
use crate::slab::{Object, Slab};
use crate::table::{self, Kind, Word};
use crate::{close, process};

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
    /// Both ends hold a slot; see the session's two phases.
    pub(crate) const SESSION: u32 = 2;
}

/// Bits of `Sock::flags`.
pub(crate) mod flag {
    /// `O_NONBLOCK`.
    pub(crate) const NONBLOCK: u32 = 1;
    /// `TCP_CORK`.
    pub(crate) const CORK: u32 = 2;
    /// `SO_LINGER` with time 0: close resets.
    pub(crate) const LINGER0: u32 = 4;
    /// A receive time-out is set.
    pub(crate) const RCVTIMEO: u32 = 8;
    /// A send time-out is set.
    pub(crate) const SNDTIMEO: u32 = 16;
    /// The listener is marked in the shared directory.
    pub(crate) const MARKED: u32 = 32;
    /// The last descriptor is closed; the last user frees the socket.
    pub(crate) const CLOSED: u32 = 64;
    /// The peer was killed behind doorbells it had not taken: the kernel saw a reset where the program sees an end of stream.
    pub(crate) const KILLED: u32 = 128;
    /// `SO_REUSEPORT`: its port may be that of a listener.
    pub(crate) const SHARES_PORT: u32 = 256;
    /// `SO_RCVLOWAT` is above 1: a receive with `MSG_DONTWAIT` would return less.
    pub(crate) const LOW_WATER: u32 = 512;
    /// What a connection has from its listener.
    pub(crate) const INHERITED: u32 = CORK | LINGER0 | RCVTIMEO | SNDTIMEO | LOW_WATER;
}

/// A socket.
pub(crate) struct Sock {
    pub(crate) index: AtomicU32,
    generation: AtomicU32,
    next_free: AtomicU32,
    /// Descriptors of it in this process.
    pub(crate) refs: AtomicU32,
    /// Hooks at work on it right now.
    users: AtomicU32,
    pub(crate) role: AtomicU32,
    pub(crate) mode: AtomicU32,
    pub(crate) flags: AtomicU32,
    /// Why it may never move: a [`Reason`], 0 for none.
    never: AtomicU32,
    /// Sends so far, and how many make the next try worth it.
    pub(crate) sends: AtomicU32,
    pub(crate) next_try: AtomicU32,
    /// Bytes both ways since the last try.
    pub(crate) bytes: AtomicU64,
    /// The offer table's count when an accepting end last looked.
    pub(crate) seen_offers: AtomicU32,
    /// Its counter among processes that share it, plus one; 0 while only this process holds it.
    pub(crate) holders: AtomicU32,
    /// Threads inside a kernel receive or send of it.
    pub(crate) in_recv: AtomicU32,
    pub(crate) in_send: AtomicU32,
    /// Threads asleep on it, not counting those asleep on an event set.
    pub(crate) sleepers: AtomicU32,
    /// Those of them that wait for space.
    pub(crate) tx_sleepers: AtomicU32,
    /// `EPOLLRDHUP`, `EPOLLHUP`, `EPOLLERR` once the kernel has said so.
    pub(crate) kernel_events: AtomicU32,
    /// How often the kernel reported anything for it through an event set.
    pub(crate) kernel_moves: AtomicU32,
    /// The same for room to write.
    pub(crate) kernel_room: AtomicU32,
    /// An error taken from the kernel and owed to the program.
    pub(crate) error: AtomicU32,
    record_of: AtomicU32,
    pub(crate) rlock: Lock,
    pub(crate) wlock: Lock,
    pub(crate) rx_wait: Waiter,
    pub(crate) tx_wait: Waiter,
    pub(crate) tuple: Tuple,
    pub(crate) members: [Member; MEMBERS],
    pub(crate) session: Session,
    pub(crate) deferred: Deferred,
    pub(crate) routed: Routed,
    /// When it last sent through a ring, in programs that are too slow for rings ([`process::pace_ns`]).
    pub(crate) sent_at: AtomicU64,
    /// How often sends and receives have taken turns so far; the lowest bit says that a send was last.
    pub(crate) turns: AtomicU32,
}

// SAFETY: atomics and structs of atomics only; all-zero is a fresh socket.
unsafe impl Object for Sock {
    fn next_free(&self) -> &AtomicU32 {
        &self.next_free
    }
}

/// A hook at work on a socket: keeps it from being freed.
pub(crate) struct Ref(&'static Sock);

impl Deref for Ref {
    type Target = Sock;

    #[inline]
    fn deref(&self) -> &Sock {
        self.0
    }
}

impl Drop for Ref {
    #[inline]
    fn drop(&mut self) {
        // SYNC: AcqRel, so that the last user sees all others' work before it frees the socket.
        if self.0.users.fetch_sub(1, Ordering::AcqRel) == 1 && self.0.has(flag::CLOSED) {
            self.0.free_if_unused();
        }
    }
}

impl Ref {
    /// Gives up one hold that was kept with `mem::forget`.
    pub(crate) fn unhold(&self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The socket behind `fd`, if it is one we know.
#[inline]
pub(crate) fn enter(fd: c_int) -> Option<Ref> {
    loop {
        let word = table::get(fd)?;
        if word.kind() != Kind::Socket {
            return None;
        }
        let sock = SOCKS.get(word.index())?;
        // SYNC: SeqCst with the check below, so that a close in between is seen here or sees us.
        sock.users.fetch_add(1, Ordering::SeqCst);
        let held = Ref(sock);
        if table::get(fd) == Some(word) {
            return Some(held);
        }
    }
}

/// The socket with this index, whatever its descriptors.
pub(crate) fn by_index(index: u32) -> Option<Ref> {
    let sock = SOCKS.get(index)?;
    sock.users.fetch_add(1, Ordering::SeqCst);
    Some(Ref(sock))
}

/// Begins to know the TCP socket `fd`. Does nothing when there is no room: the descriptor stays unknown.
pub(crate) fn track(fd: c_int, role: u32, nonblocking: bool) {
    if process::is_plain() {
        return;
    }
    close::forget(fd);
    let Some((index, sock)) = SOCKS.take() else { return };
    sock.reset(index, role, nonblocking);
    if !table::set(fd, sock.word(index)) {
        SOCKS.put(index);
    }
}

impl Sock {
    fn reset(&self, index: u32, role: u32, nonblocking: bool) {
        let zero = [
            &self.mode,
            &self.never,
            &self.sends,
            &self.seen_offers,
            &self.holders,
            &self.in_recv,
            &self.in_send,
            &self.sleepers,
            &self.tx_sleepers,
            &self.kernel_events,
            &self.kernel_moves,
            &self.kernel_room,
            &self.error,
            &self.record_of,
        ];
        for field in zero {
            field.store(0, Ordering::Relaxed);
        }
        self.bytes.store(0, Ordering::Relaxed);
        self.index.store(index, Ordering::Relaxed);
        self.next_try.store(crate::upgrade::FIRST_TRY, Ordering::Relaxed);
        self.flags.store(if nonblocking { flag::NONBLOCK } else { 0 }, Ordering::Relaxed);
        self.role.store(role, Ordering::Relaxed);
        self.tuple.clear();
        self.rx_wait.forget();
        self.tx_wait.forget();
        for member in &self.members {
            member.clear();
        }
        self.session.clear();
        self.deferred.clear();
        self.routed.clear();
        self.refs.store(1, Ordering::Release);
    }

    /// Its word in the descriptor table.
    pub(crate) fn word(&self, index: u32) -> Word {
        Word::new(Kind::Socket, self.generation.load(Ordering::Relaxed), index)
    }

    /// Its index among all sockets.
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    /// Distinguishes this use of the object from earlier ones.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
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

    /// Whether this hook is the only one at work on the socket.
    pub(crate) fn only_user(&self) -> bool {
        self.users.load(Ordering::SeqCst) == 1
    }

    /// Why it may never move, if so.
    pub(crate) fn never(&self) -> Option<Reason> {
        Reason::from_code(self.never.load(Ordering::Relaxed))
    }

    /// It will not move (again), for this reason; the first reason stays.
    pub(crate) fn set_never(&self, reason: Reason) {
        let _ = self.never.compare_exchange(0, reason as u32, Ordering::Relaxed, Ordering::Relaxed);
        self.tell(Path::Tcp, self.never());
    }

    /// Takes over what the kernel lets an accepted connection have from its listener (socket(7), tcp(7)).
    pub(crate) fn inherit(&self, listener: &Self) {
        self.flags.fetch_or(listener.flags.load(Ordering::Relaxed) & flag::INHERITED, Ordering::Relaxed);
        if let Some(reason @ (Reason::Option | Reason::LowWater)) = listener.never() {
            self.set_never(reason);
        }
    }

    /// It goes through the daemon, or should have: of these reasons only the last counts. What goes through the daemon may move: its other
    /// end is the daemon's.
    pub(crate) fn set_way(&self, reason: Reason) {
        self.never.store(if reason == Reason::Daemon { 0 } else { reason as u32 }, Ordering::Relaxed);
        self.tell(Path::Tcp, Some(reason));
    }

    /// Becomes one end of a connection, listed for `madrigal why`.
    pub(crate) fn connected(&self, fd: c_int, role: u32) {
        self.role.store(role, Ordering::Relaxed);
        self.relist(fd);
    }

    /// (Re-)opens its record in the report of this process.
    pub(crate) fn relist(&self, fd: c_int) {
        if let Some(record) = process::report().and_then(|r| r.record(self.index() as usize)) {
            record.open(fd);
            self.record_of.store(1, Ordering::Relaxed);
            if let Some(reason) = self.never().or_else(|| self.routed.way()) {
                record.set(Path::Tcp, Some(reason));
            }
        }
    }

    /// In the child after fork(2): no other thread exists, and the record is in the parent's report.
    pub(crate) fn after_fork(&self) {
        self.rlock.reset();
        self.wlock.reset();
        for count in [&self.users, &self.in_recv, &self.in_send, &self.sleepers, &self.tx_sleepers, &self.record_of] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Its record, if it has one.
    #[inline]
    pub(crate) fn record(&self) -> Option<&'static Record> {
        if self.record_of.load(Ordering::Relaxed) == 0 {
            return None;
        }
        process::report()?.record(self.index() as usize)
    }

    /// Says how its bytes travel from now on.
    pub(crate) fn tell(&self, path: Path, reason: Option<Reason>) {
        if let Some(record) = self.record() {
            record.set(path, reason);
        }
    }

    /// Counts bytes that went by the kernel. Lossy between threads, as statistics may be.
    #[inline]
    pub(crate) fn count_kernel(&self, n: usize, out: bool) {
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
        if let Some(record) = self.record() {
            add(if out { &record.tcp_out } else { &record.tcp_in }, n);
        }
    }

    /// Counts bytes that went by a ring.
    #[inline]
    pub(crate) fn count_ring(&self, n: usize, out: bool) {
        if let Some(record) = self.record() {
            add(if out { &record.shm_out } else { &record.shm_in }, n);
        }
    }

    /// An error a look of ours has taken from the kernel, while the session lasted.
    pub(crate) fn owed_error(&self) -> Option<madrigal_sys::Errno> {
        if self.error.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let code = self.error.swap(0, Ordering::Relaxed);
        (code != 0).then(|| madrigal_sys::Errno::from_raw_os_error(code as i32))
    }

    /// Whether the next send is the first one behind the end of a peer that was killed: TCP takes it, and only then is reset.
    pub(crate) fn owes_a_send(&self) -> bool {
        self.has(flag::KILLED) && self.flags.fetch_and(!flag::KILLED, Ordering::Relaxed) & flag::KILLED != 0
    }

    /// Counts turns of sending and receiving.
    #[inline]
    pub(crate) fn take_turn(&self, sending: bool) {
        let turns = self.turns.load(Ordering::Relaxed);
        let in_turn = (turns & 1 == 0) == sending;
        self.turns.store(if in_turn { turns.wrapping_add(1) } else { u32::from(sending) }, Ordering::Relaxed);
    }

    /// Frees the object once nobody uses it. Called with `CLOSED` set.
    pub(crate) fn free_if_unused(&self) {
        // One caller wins the flag and frees.
        if self.users.load(Ordering::SeqCst) == 0
            && self.flags.fetch_and(!flag::CLOSED, Ordering::SeqCst) & flag::CLOSED != 0
        {
            crate::session::release(self);
            self.generation.fetch_add(1, Ordering::Relaxed);
            SOCKS.put(self.index());
        }
    }
}

#[inline]
fn add(counter: &AtomicU64, n: usize) {
    counter.store(counter.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
}
