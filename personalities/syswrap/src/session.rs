//! A ring session: the time during which a connection's bytes may travel through a slot.
//!
//! Each direction goes its own way, and only forward:
//!
//! ```text
//!   receiving   KERNEL -> READY -> RING -> DONE      READY: doorbells are understood; kernel bytes up to n_kernel still come first
//!   sending     KERNEL  ->  RING  ->  DONE           DONE: the kernel carries bytes again
//! ```
//! When both are DONE the session is over and the socket is an ordinary one, which may earn another session.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use madrigal_drivers::shm::layout::{Block, Direction, SEALED, SideLine, Slot, fate, state, want};
use madrigal_drivers::shm::ring::{Consumer, Memory, Producer, Sleeper};
use madrigal_netaccess::wait::Peer;
use madrigal_sys::{Errno, cpu, raw, time};

use crate::arenas::{self, Lease};
use crate::epoll::Member;
use crate::sock::{Sock, flag};

mod retire;
pub(crate) use retire::{release, release_unused, retire, tell_back};

/// Phases of a direction.
pub(crate) mod phase {
    pub(crate) const KERNEL: u32 = 0;
    pub(crate) const READY: u32 = 1;
    pub(crate) const RING: u32 = 2;
    pub(crate) const DONE: u32 = 3;
    /// Sending only: the switch is being made.
    pub(crate) const SWITCHING: u32 = 4;
}

/// In `Sock::kernel_events`: a receive has told how the stream ended.
const ASKED: u32 = 1 << 27;
/// How long a nonblocking reader believes that a quiet kernel socket is still open.
const TRUST_NS: u64 = 1_000_000;

/// Who takes doorbells out of a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Me {
    /// A thread that is not counted among the sleepers.
    Awake,
    /// One about to sleep for bytes.
    Reader,
    /// One about to sleep for space.
    Writer,
}

/// This process's part of a session. All-zero: none.
#[derive(Default)]
pub(crate) struct Session {
    slot: AtomicPtr<Slot>,
    lease: AtomicU32,
    slot_index: AtomicU32,
    /// 0: connecting side. 1: accepting side.
    side: AtomicU32,
    pub(crate) rx: AtomicU32,
    pub(crate) tx: AtomicU32,
    /// Kernel bytes taken so far, as the kernel counts (phase READY).
    pub(crate) pos: AtomicU64,
    /// Doorbells taken out of the kernel so far.
    pub(crate) swallowed: AtomicU64,
    pub(crate) producer: Producer,
    /// The offer this end has out: its place plus one.
    pub(crate) offer: AtomicU32,
    pub(crate) offered_at: AtomicU64,
    pub(crate) offer_looks: AtomicU32,
    /// The program's `TCP_NODELAY`, while ours is on for the doorbells' sake.
    pub(crate) nodelay: AtomicU32,
    /// When the kernel socket was last asked whether it is still open.
    checked_at: AtomicU64,
    /// Larger rings could not be had.
    pub(crate) no_room: AtomicU32,
    /// Threads of ours between deciding on a doorbell and having sent it. The peer sees a copy (`WriterLine::ringing`).
    pub(crate) ringing: AtomicU32,
    /// Nanoseconds spent waiting for the peer to finish something.
    pub(crate) waited: AtomicU64,
    /// Where the last large receive went.
    pub(crate) large_at: AtomicUsize,
    /// How often the sender found the ring full.
    pub(crate) fulls: AtomicU32,
    /// How often a nonblocking send was refused: the edges of `EPOLLOUT`.
    pub(crate) refusals: AtomicU32,
    /// Since when a sender has found it full, or waited for it to have room, 0 while it does not.
    pub(crate) full_since: AtomicU64,
    /// Whether a send was refused since the last one that was not.
    pub(crate) refused: AtomicU32,
}

impl Session {
    /// Becomes no session.
    pub(crate) fn clear(&self) {
        for word in [
            &self.lease,
            &self.rx,
            &self.tx,
            &self.offer,
            &self.no_room,
            &self.fulls,
            &self.refusals,
            &self.refused,
            &self.offer_looks,
            &self.ringing,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.pos, &self.swallowed, &self.checked_at, &self.full_since, &self.waited] {
            word.store(0, Ordering::Relaxed);
        }
        self.slot.store(core::ptr::null_mut(), Ordering::Relaxed);
    }

    /// Takes a slot of `lease` as side 0 or 1 and opens our sending ring in it.
    pub(crate) fn open(&self, lease: &Lease, slot_index: u32, side: usize) -> Option<&Slot> {
        self.clear();
        let slot = lease.slot(slot_index)?;
        self.slot_index.store(slot_index, Ordering::Relaxed);
        self.side.store(side as u32, Ordering::Relaxed);
        self.lease.store(lease.index() + 1, Ordering::Relaxed);
        self.slot.store(slot.cast_mut(), Ordering::Release);
        let slot = self.slot()?;
        self.producer.open(&slot.dir[side], lease.arena().small_block(slot_index, side));
        Some(slot)
    }

    /// The slot, while there is one.
    #[inline]
    pub(crate) fn slot(&self) -> Option<&Slot> {
        // SAFETY: set from a lease in which this session is counted; the lease keeps its arena mapped until `release` uncounts it,
        // which happens when no hook uses the socket any more (see `Sock::free_if_unused` and `retire`).
        unsafe { self.slot.load(Ordering::Acquire).as_ref() }
    }

    /// The lease the slot is in.
    pub(crate) fn lease(&self) -> Option<&'static Lease> {
        arenas::by_index(self.lease.load(Ordering::Relaxed).checked_sub(1)?)
    }

    /// Our side's number.
    pub(crate) fn side(&self) -> usize {
        self.side.load(Ordering::Relaxed) as usize & 1
    }

    /// The slot's generation and stage belong to this slot number.
    pub(crate) fn slot_index(&self) -> u32 {
        self.slot_index.load(Ordering::Relaxed)
    }

    pub(crate) fn rx(&self) -> u32 {
        self.rx.load(Ordering::Acquire)
    }

    pub(crate) fn tx(&self) -> u32 {
        self.tx.load(Ordering::SeqCst)
    }
}

/// A view of a live session: the lines, by their role for this side.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) s: &'a Sock,
    /// The direction we send in.
    pub(crate) out: &'a Direction,
    /// The direction we receive in.
    pub(crate) inn: &'a Direction,
    pub(crate) own: &'a SideLine,
    pub(crate) peer: &'a SideLine,
    pub(crate) mem: Memory,
}

/// The session of a socket in mode SESSION.
#[inline]
pub(crate) fn view(s: &Sock) -> Option<View<'_>> {
    let slot = s.session.slot()?;
    let side = s.session.side();
    let mem = s.session.lease()?.arena().memory();
    let (out, inn) = (&slot.dir[side], &slot.dir[1 - side]);
    Some(View { s, out, inn, own: &slot.side[side], peer: &slot.side[1 - side], mem })
}

/// The peer is to know what it means if this process dies.
pub(crate) fn tell_linger(s: &Sock) {
    if let Some(v) = view(s) {
        v.out.w.resets.store(u32::from(s.has(flag::LINGER0)), Ordering::Release);
    }
}

impl View<'_> {
    /// The receiving end's operations.
    pub(crate) const CONSUMER: Consumer = Consumer;

    /// Doorbells the peer says it has sent and we have not taken yet.
    pub(crate) fn bells_due(&self) -> u64 {
        self.inn.w.bells.load(Ordering::Acquire).wrapping_sub(self.s.session.swallowed.load(Ordering::Relaxed))
    }

    /// Takes doorbells out of the kernel socket, unless one of them is meant for a thread asleep on the socket that has what it
    /// waits for: then it stays, and the answer is false. Only under the receive lock in phase RING, where nothing else can be in
    /// the kernel's queue: a sender goes back to kernel bytes only after its last doorbell is counted. Whoever takes a doorbell
    /// puts the token back, if somebody else may sleep on this socket (see [`crate::epoll`]).
    pub(crate) fn swallow(&self, fd: c_int, me: Me) -> bool {
        // Read before the check: a doorbell that comes after it stays.
        let due = self.bells_due();
        if due == 0 {
            return true;
        }
        let mine = !self.is_for_another(me);
        if mine {
            self.discard(fd, due);
        }
        mine
    }

    /// Whether a thread asleep on this socket, other than the caller, has what it waits for.
    fn is_for_another(&self, me: Me) -> bool {
        let writers = self.s.tx_sleepers.load(Ordering::SeqCst).saturating_sub(u32::from(me == Me::Writer));
        let all = self.s.sleepers.load(Ordering::SeqCst).saturating_sub(u32::from(me != Me::Awake));
        let room = || self.s.session.producer.has_room(self.out, &self.mem, crate::send::wanted(self));
        all > writers && Self::CONSUMER.stirred(self.inn) || writers > 0 && room()
    }

    /// Takes doorbells out whoever they are for.
    pub(crate) fn swallow_any(&self, fd: c_int) {
        let due = self.bells_due();
        if due > 0 {
            self.discard(fd, due);
        }
    }

    fn discard(&self, fd: c_int, due: u64) {
        match raw::discard(fd, usize::try_from(due.min(1 << 20)).unwrap_or(0)) {
            Ok(0) => self.saw_end(),
            Ok(n) => {
                self.s.session.swallowed.fetch_add(n as u64, Ordering::Relaxed);
                if self.others_may_sleep() {
                    let _ = Self::CONSUMER.arm(self.inn);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => self.saw_error(e),
        }
    }

    /// Whether a thread other than this one may be asleep waiting for this socket.
    pub(crate) fn others_may_sleep(&self) -> bool {
        self.s.sleepers.load(Ordering::SeqCst) > 0 || self.s.members.iter().any(Member::is_used)
    }

    /// The kernel said end of stream.
    pub(crate) fn saw_end(&self) {
        self.s.kernel_events.fetch_or(libc::EPOLLRDHUP as u32 | ASKED, Ordering::Relaxed);
    }

    /// The kernel reported an error, which it does once. A close with unread doorbells makes it report a reset, and a crash too:
    /// what counts is whether the other side left bytes unread.
    pub(crate) fn saw_error(&self, e: Errno) {
        if e == Errno::CONNRESET && !self.is_reset_meant() {
            self.s.set_flag(flag::KILLED, self.inn.w.fate.load(Ordering::Acquire) == fate::OPEN);
            return self.saw_end();
        }
        self.s.error.store(e.raw_os_error() as u32, Ordering::Relaxed);
        let bits = (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP) as u32;
        self.s.kernel_events.fetch_or(bits | ASKED, Ordering::Relaxed);
    }

    /// Whether the kernel socket has told of its end.
    pub(crate) fn ended(&self) -> bool {
        self.s.kernel_events.load(Ordering::Relaxed) & (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
    }

    /// Whether it is known how the kernel socket ended: an event set only tells that it did.
    pub(crate) fn end_is_known(&self) -> bool {
        self.s.kernel_events.load(Ordering::Relaxed) & ASKED != 0
    }

    /// Asks the kernel socket, behind the doorbells, whether it is still open. At most once a millisecond unless `now`.
    pub(crate) fn check_open(&self, fd: c_int, now: bool) {
        let clock = time::now_ns();
        let fresh = clock.saturating_sub(self.s.session.checked_at.load(Ordering::Relaxed)) < TRUST_NS;
        if fresh && !now && self.inn.w.fate.load(Ordering::Relaxed) == fate::OPEN {
            return;
        }
        self.s.session.checked_at.store(clock, Ordering::Relaxed);
        if !self.swallow(fd, Me::Awake) {
            return;
        }
        match raw::peek(fd, libc::MSG_DONTWAIT) {
            Ok(0) => self.saw_end(),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => self.saw_error(e),
        }
    }

    /// After a sleep that a byte ended: one that was never counted as a doorbell, under a ring that is open, is the work of a peer
    /// that wrote over its count. Nobody would ever take it, and every sleep would end at once.
    pub(crate) fn check_strays(&self, fd: c_int) {
        if self.bells_due() > 0 || self.is_sealed() {
            return;
        }
        let Some(_lock) = self.s.rlock.try_lock() else { return };
        let queued = self.s.session.rx() == phase::RING && matches!(raw::peek(fd, libc::MSG_DONTWAIT), Ok(1..));
        // Counts come before bytes, and a seal before bytes of the kernel's: read again, behind the byte that was seen.
        if queued && self.bells_due() == 0 && !self.is_sealed() {
            crate::recv::spoil(self, fd);
        }
    }

    /// Whether the direction we receive in is sealed.
    fn is_sealed(&self) -> bool {
        self.inn.w.tail.load(Ordering::SeqCst) & SEALED != 0
    }

    /// What a reader sees once the ring is drained and the kernel socket has ended: end of stream, or the error TCP would show.
    pub(crate) fn ending(&self) -> Result<usize, Errno> {
        let code = self.s.error.swap(0, Ordering::Relaxed);
        if code == 0 {
            return Ok(0);
        }
        // Told once, as the kernel does.
        self.s.kernel_events.fetch_and(!(libc::EPOLLERR as u32), Ordering::Relaxed);
        Err(Errno::from_raw_os_error(code as i32))
    }

    /// Whether a reset is one that the peer wanted us to see.
    fn is_reset_meant(&self) -> bool {
        match self.inn.w.fate.load(Ordering::Acquire) {
            fate::CLOSED => false,
            fate::RESET => true,
            _ if self.inn.w.resets.load(Ordering::Acquire) != 0 => true,
            _ => self.s.session.producer.unread(self.out, &self.mem).is_ok_and(|n| n > 0),
        }
    }

    /// What poll(2) shows of the end: a reset that the peer did not mean looks like an end of stream.
    pub(crate) fn end_events(&self) -> u32 {
        let events =
            self.s.kernel_events.load(Ordering::Relaxed) & (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
        let unmeant = events & libc::EPOLLERR as u32 != 0 && self.inn.w.fate.load(Ordering::Acquire) == fate::CLOSED;
        if unmeant { libc::EPOLLRDHUP as u32 } else { events }
    }

    /// Where the peer ran when it last sent, for those who wait for bytes.
    pub(crate) fn writer_is(&self) -> Peer {
        where_is(self.inn.w.cpu.load(Ordering::Relaxed))
    }

    /// Where the peer ran when it last read, for those who wait for space.
    pub(crate) fn reader_is(&self) -> Peer {
        where_is(self.out.r.cpu.load(Ordering::Relaxed))
    }

    /// Rings the peer's doorbell: one byte on the kernel socket, counted before it is sent.
    pub(crate) fn ring(&self, fd: c_int) {
        // SYNC: SeqCst with the seal: either we see it and send nothing, or whoever sealed sees `ringing` and waits for the count.
        self.begin_ringing();
        let ours = self.may_ring();
        if ours {
            self.ring_now(fd);
        }
        self.end_ringing();
    }

    /// Wakes whoever a publication found armed. Of all connections of a sleeping event set only one rings: see [`Sleeper::Set`].
    pub(crate) fn wake(&self, fd: c_int, sleeper: Sleeper) {
        if sleeper == Sleeper::Nobody {
            return;
        }
        // SYNC: as in `ring`. The set's word is taken inside: who takes it is sure to ring.
        self.begin_ringing();
        let ours = self.may_ring();
        if ours && self.is_due(sleeper) {
            self.ring_now(fd);
        }
        self.end_ringing();
    }

    fn is_due(&self, sleeper: Sleeper) -> bool {
        let (Sleeper::Set(index), Some(lease)) = (sleeper, self.s.session.lease()) else { return true };
        let word = lease.arena().sleep_word(1 - self.s.session.side(), index);
        // SYNC: SeqCst with `epoll::sleep`: the word is set before the directions are armed with it.
        word.load(Ordering::SeqCst) != 0 && word.swap(0, Ordering::SeqCst) != 0
    }

    /// Whether a doorbell would be understood: not by a sealed direction, nor by a peer that closes. Only while counted in `ringing`.
    pub(crate) fn may_ring(&self) -> bool {
        // SYNC: SeqCst with `close::end_session`: a doorbell it does not wait for is one that is not sent.
        self.out.w.state.load(Ordering::SeqCst) == state::RING
            && !self.s.session.producer.is_sealed(self.out)
            && self.inn.w.fate.load(Ordering::SeqCst) == fate::OPEN
    }

    /// From now on a seal of ours waits for us, and a peer that sees it knows that a doorbell may follow.
    pub(crate) fn begin_ringing(&self) {
        self.s.session.ringing.fetch_add(1, Ordering::SeqCst);
        self.out.w.ringing.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn end_ringing(&self) {
        self.out.w.ringing.fetch_sub(1, Ordering::SeqCst);
        self.s.session.ringing.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sends a doorbell. Only while counted in `ringing`.
    pub(crate) fn ring_now(&self, fd: c_int) {
        self.out.w.bells.fetch_add(1, Ordering::SeqCst);
        if let Some(record) = self.s.record() {
            record.bells.store(record.bells.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        match raw::send_bytes(fd, &[0]) {
            Ok(_) => {}
            Err(e) => {
                self.out.w.bells.fetch_sub(1, Ordering::SeqCst);
                if e != Errno::AGAIN {
                    // The connection is gone: let readers and waiters look.
                    self.s.session.checked_at.store(0, Ordering::Relaxed);
                    self.s.kernel_events.fetch_or((libc::EPOLLHUP | libc::EPOLLRDHUP) as u32, Ordering::Relaxed);
                }
            }
        }
    }

    /// After consuming: rings if the writer waits for the space there is now.
    #[inline]
    pub(crate) fn pay_space(&self, fd: c_int) {
        if Self::CONSUMER.owes_space(self.inn) {
            self.ring(fd);
        }
    }

    /// A nonblocking sender found the ring full.
    pub(crate) fn note_full(&self) {
        self.s.session.refusals.fetch_add(1, Ordering::Relaxed);
        self.s.session.refused.store(1, Ordering::Relaxed);
        self.note_wait();
    }

    /// A sender begins to wait for space, if it did not before.
    pub(crate) fn note_wait(&self) {
        let since = &self.s.session.full_since;
        if since.load(Ordering::Relaxed) == 0 {
            let _ = since.compare_exchange(0, time::now_ns(), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// What a sender that waits may go on with: one that has not been refused finds any space good enough.
    pub(crate) fn enough(&self) -> u32 {
        if self.s.session.refused.load(Ordering::Relaxed) == 0 { want::HALF } else { crate::send::wanted(self) }
    }

    /// Whether a sender has found the ring full for so long that TCP's buffers should take over.
    pub(crate) fn is_stalled(&self) -> bool {
        let since = self.s.session.full_since.load(Ordering::Relaxed);
        since != 0
            && time::now_ns() > since + crate::send::STALL_NS
            && !self.s.session.producer.has_room(self.out, &self.mem, self.enough())
    }

    /// Our published block, to be replaced by a larger one.
    pub(crate) fn block(&self) -> Option<Block> {
        self.s.session.producer.block(&self.mem)
    }
}

/// What a processor published in a direction's line, its number plus one, means to this thread.
fn where_is(cpu_plus_one: u32) -> Peer {
    match cpu_plus_one {
        0 => Peer::Unknown,
        n if n == cpu::current() + 1 => Peer::Here,
        _ => Peer::Elsewhere,
    }
}
