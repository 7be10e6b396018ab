//! A ring session: the time during which a connection's bytes may travel through a slot.
//!
//! Each direction goes its own way, and only forward:
//!
//! ```text
//!   receiving   KERNEL --ready--> READY --(kernel bytes up to n_kernel are read)--> RING --(sealed, drained, last doorbell out)--> DONE
//!   sending     KERNEL --switch--> RING --(sealed: by us, or by the peer)--> DONE
//! ```
//! * READY: the reader understands doorbells. Kernel bytes up to `n_kernel` come first, then the ring; whatever the kernel's queue holds
//!   behind them is a doorbell.
//! * DONE, receiving: the reader publishes this as `drained`. Until then the writer may be asked to take bytes back ([`handback`]).
//! * DONE, sending: the kernel carries bytes again. Until the reader is drained the writer counts itself at the *gate* while it sends, and
//!   the reader may close the gate.
//!
//! When both are DONE the program's calls go to the kernel's socket only. When the peer is drained as well the session is over, and the
//! connection may earn another. `rx` changes under the receive lock, `tx` under the send lock; both may be read without a lock.
//!
//! | file | what it does |
//! |---|---|
//! | [`switch`] | both directions into the ring |
//! | [`source`] | where the next byte is; what a receive takes, what a peek copies |
//! | [`put`] | space for bytes, growth, publication |
//! | [`sums`] | checksums of what travels in rings |
//! | [`held`] | bytes that the program wants held back |
//! | [`bells`] | doorbells: rung, taken out, counted; whether the kernel socket has ended |
//! | [`gone`] | what is reported to the program after its peer has gone |
//! | [`leave`] | seals; the end of both directions |
//! | [`limit`] | how long a wait may take |
//! | [`reading`] | the right to take bytes, among threads and forked processes |
//! | [`urgent`] | urgent bytes behind doorbells |
//! | [`unmix`] | doorbells out of unread bytes, before the end of the stream goes behind them |
//! | [`handback`] | unread bytes back into the kernel's queue, for readers that know nothing of rings |
//!
//! All of it works on a [`Wire`], the program's socket or a model's; `explored` runs it under a scheduler, with kills at every step.

mod bells;
mod gone;
mod handback;
mod held;
mod leave;
mod limit;
mod put;
mod reading;
mod source;
mod sums;
mod switch;
mod unmix;
mod urgent;
mod wire;

use madrigal_base::sync::{AtomicU32, AtomicU64, Ordering};
use madrigal_shm_ring::arena::Tag;
use madrigal_shm_ring::layout::{Block, Direction, Slot};
use madrigal_shm_ring::ring::{Consumer, Memory, Producer};
use madrigal_shm_ring::slot::Lent;

pub(crate) use bells::{Me, deaths};
pub(crate) use gone::Shut;
pub(crate) use handback::{Aside, HandBack, PeerEnd};
pub(crate) use leave::Passage;
pub(crate) use limit::{HELD_NS, Limit};
pub(crate) use put::{Piece, Put, Room, STALL_NS};
pub(crate) use source::{Source, Taker, Took};
pub(crate) use unmix::Unmix;
pub(crate) use wire::{Health, Wire};

use madrigal_sys::Errno;

use super::lock::Lock;

/// Phases of a direction.
pub(crate) mod phase {
    pub(crate) const KERNEL: u32 = 0;
    pub(crate) const READY: u32 = 1;
    pub(crate) const RING: u32 = 2;
    pub(crate) const DONE: u32 = 3;
    /// The switch is being made.
    pub(crate) const SWITCHING: u32 = 4;
}

/// How a connection broke.
mod cut {
    pub(super) const UNKNOWN: u32 = 0;
    /// Without a FIN: reset, timed out.
    pub(super) const SHORT: u32 = 1;
    /// Behind the peer's FIN.
    pub(super) const AFTER_FIN: u32 = 2;
}

/// Errors by which the kernel reports a broken connection.
const BROKEN: [Errno; 5] =
    [Errno::CONNRESET, Errno::TIMEDOUT, Errno::CONNABORTED, Errno::HOSTUNREACH, Errno::NETUNREACH];

/// This process's part of a session, and what it knows of the kernel's socket. All-zero: none.
#[derive(Default)]
pub(crate) struct Session {
    /// Address of the slot, 0 for none; and of the memory blocks lie in.
    slot: AtomicU64,
    memory: AtomicU64,
    memory_len: AtomicU64,
    /// Which use of the slot it is.
    generation: AtomicU64,
    number: AtomicU64,
    /// 0: connecting side. 1: accepting side.
    side: AtomicU32,
    pub(crate) rx: AtomicU32,
    pub(crate) tx: AtomicU32,
    pub(crate) rlock: Lock,
    pub(crate) wlock: Lock,
    /// Doorbells taken out of the kernel so far.
    swallowed: AtomicU64,
    /// READY: so many of the kernel's next bytes are known to come before the ring. Under the receive lock.
    sure: AtomicU64,
    pub(crate) producer: Producer,
    /// The peer's block that was found to be lent to this session last.
    known_block: AtomicU64,
    /// Threads of ours between deciding on a doorbell and having sent it. The peer sees a copy (`WriterLine::ringing`).
    ringing: AtomicU32,
    /// Both sides keep sums: what was written and read so far.
    checks: AtomicU32,
    sum_out: AtomicU32,
    sum_in: AtomicU32,
    /// Position of `sum_in`, and the next piece whose sum is to be compared.
    summed: AtomicU64,
    piece_in: AtomicU64,
    /// Other processes read, too, since a fork.
    shared: AtomicU32,
    /// When the kernel socket was last queried for its end.
    checked_at: AtomicU64,
    /// When a sender last did so.
    alive_at: AtomicU64,
    /// How many peers had been found killed at the last such query.
    deaths: AtomicU32,
    /// No larger ring was available.
    no_room: AtomicU32,
    /// How often the sender found the ring full.
    fulls: AtomicU32,
    /// How often a nonblocking send was refused, or the kernel reported room again: the edges of `EPOLLOUT`.
    pub(crate) refusals: AtomicU32,
    /// Since when a sender has found the ring full, or waited for room in it; 0 while it does not.
    full_since: AtomicU64,
    /// Whether a send was refused since the last one that was not.
    refused: AtomicU32,
    /// 1: the kernel holds a doorbell back.
    late: AtomicU32,
    /// Length of the kernel's segments; 0 until queried.
    segment: AtomicU32,
    /// Bytes that the kernel would hold back for a peer that has ended, and since when; 0: there are none.
    unsent: AtomicU32,
    unsent_since: AtomicU64,

    // --- What outlives a session. ---
    /// Threads asleep on the socket until there are bytes, not counting those asleep on an event set.
    pub(crate) rx_sleepers: AtomicU32,
    /// Those that sleep until there is space.
    pub(crate) tx_sleepers: AtomicU32,
    /// Event sets the socket is in.
    pub(crate) watchers: AtomicU32,
    /// Threads inside a kernel receive or send of the socket.
    pub(crate) in_recv: AtomicU32,
    pub(crate) in_send: AtomicU32,
    /// `EPOLLRDHUP`, `EPOLLHUP`, `EPOLLERR` once the kernel has reported them.
    pub(crate) kernel_events: AtomicU32,
    /// An error taken from the kernel and pending for the program, outside of a session (else see [`gone`]).
    error: AtomicU32,
    /// Bytes taken back from the peer's reach did not reach it: it died with bytes unread.
    lost: AtomicU32,
    /// How often the switch was put off, since the reader was last found to have read everything.
    put_off: AtomicU32,
    /// How the connection broke, once the kernel has reported it: one of [`cut`].
    cut: AtomicU32,
    /// `TCP_CORK`: nothing moves while it is on.
    pub(crate) corked: AtomicU32,
    /// The last send by the kernel had `MSG_MORE`: nothing moves before one that has not.
    pub(crate) more: AtomicU32,
    /// It may not move (again).
    pub(crate) stays: AtomicU32,
}

/// Where a session takes place.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) slot: &'a Slot,
    pub(crate) memory: Memory,
    pub(crate) lent: Lent,
    /// 0: connecting side. 1: accepting side.
    pub(crate) side: usize,
    /// The ring our direction begins with.
    pub(crate) block: Block,
}

impl Session {
    /// Becomes no session.
    pub(crate) fn clear(&self) {
        self.slot.store(0, Ordering::Release);
        let words = [&self.rx, &self.tx, &self.ringing, &self.checks, &self.sum_out, &self.sum_in, &self.no_room];
        for word in words.into_iter().chain([
            &self.fulls,
            &self.refusals,
            &self.refused,
            &self.shared,
            &self.late,
            &self.segment,
            &self.unsent,
            &self.deaths,
        ]) {
            word.store(0, Ordering::Relaxed);
        }
        let words = [&self.generation, &self.number, &self.swallowed, &self.known_block, &self.summed, &self.piece_in];
        for word in words.into_iter().chain([
            &self.checked_at,
            &self.alive_at,
            &self.full_since,
            &self.sure,
            &self.unsent_since,
        ]) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Forgets what outlives a session, too: another socket begins.
    pub(crate) fn reset(&self) {
        self.clear();
        let words = [&self.rx_sleepers, &self.tx_sleepers, &self.watchers, &self.in_recv, &self.in_send];
        let more = [&self.kernel_events, &self.error, &self.lost, &self.cut, &self.corked, &self.more, &self.stays];
        for word in words.into_iter().chain(more).chain([&self.put_off]) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// The child after fork(2): no other thread exists.
    pub(crate) fn after_fork(&self) {
        for count in [&self.in_recv, &self.in_send, &self.rx_sleepers, &self.tx_sleepers, &self.ringing] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Prepares to take place in a slot, and opens our ring there; [`Session::begin`] follows.
    pub(crate) fn prepare(&self, at: At<'_>) {
        self.clear();
        self.producer.open(&at.slot.dir[at.side], at.block);
        self.side.store(at.side as u32, Ordering::Relaxed);
        self.set_lent(at.lent);
        self.memory.store(at.memory.address() as u64, Ordering::Relaxed);
        self.memory_len.store(at.memory.size() as u64, Ordering::Relaxed);
    }

    /// Which use of the slot it is, for a creator that learns it when it offers the slot.
    pub(crate) fn set_lent(&self, lent: Lent) {
        self.generation.store(lent.generation, Ordering::Relaxed);
        self.number.store(lent.session.get(), Ordering::Relaxed);
    }

    /// Both sides have the slot: from now on there are views of the session. The slot stays where it is until [`Session::clear`].
    pub(crate) fn begin(&self, slot: &Slot) {
        let checks = slot.side.iter().all(|side| side.checks.load(Ordering::Relaxed) != 0);
        self.checks.store(u32::from(checks), Ordering::Relaxed);
        self.slot.store(core::ptr::from_ref(slot).expose_provenance() as u64, Ordering::Release);
    }

    /// Which use of the slot it is.
    pub(crate) fn lent(&self) -> Option<Lent> {
        let session = Tag::new(self.number.load(Ordering::Relaxed))?;
        Some(Lent { generation: self.generation.load(Ordering::Relaxed), session })
    }

    /// The slot, while there is one. By a caller whose hold keeps the session from being released.
    #[inline]
    pub(crate) fn slot(&self) -> Option<&Slot> {
        let slot = core::ptr::with_exposed_provenance::<Slot>(self.slot.load(Ordering::Acquire) as usize);
        // SAFETY: set by `begin` from a slot that stays mapped until `clear`. `clear` runs only while no caller holds the socket (see
        // `use_count`), and this caller holds it.
        unsafe { slot.as_ref() }
    }

    /// Our side's number.
    pub(crate) fn side(&self) -> usize {
        self.side.load(Ordering::Relaxed) as usize & 1
    }

    pub(crate) fn rx(&self) -> u32 {
        self.rx.load(Ordering::SeqCst)
    }

    pub(crate) fn tx(&self) -> u32 {
        self.tx.load(Ordering::SeqCst)
    }

    /// Whether receives belong to the session (true) or to the kernel socket.
    #[inline]
    pub(crate) fn receives(&self) -> bool {
        !matches!(self.rx(), phase::KERNEL | phase::DONE)
    }

    /// Whether sends belong to the session (true) or to the kernel socket.
    #[inline]
    pub(crate) fn sends(&self) -> bool {
        !matches!(self.tx(), phase::KERNEL | phase::DONE)
    }

    /// Whether threads sleep on the socket itself.
    pub(crate) fn has_sleepers(&self) -> bool {
        self.rx_sleepers.load(Ordering::SeqCst) > 0 || self.tx_sleepers.load(Ordering::SeqCst) > 0
    }

    /// A call of the program got this error from the kernel, which reports a broken connection once. Called before that call is counted as
    /// over.
    #[cold]
    pub(crate) fn note_error(&self, e: Errno) {
        if BROKEN.contains(&e) {
            let _ = self.cut.compare_exchange(cut::UNKNOWN, cut::SHORT, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// The same for a call of ours: its error is pending for the program.
    #[cold]
    pub(crate) fn set_pending_if_broken(&self, e: Errno) {
        if BROKEN.contains(&e) {
            self.note_error(e);
            self.set_pending_error(e);
        }
    }

    /// The peer's FIN came: the kernel reports it, or the connection is closed and no call got an error.
    pub(crate) fn assume_fin(&self) {
        let _ = self.cut.compare_exchange(cut::UNKNOWN, cut::AFTER_FIN, Ordering::SeqCst, Ordering::Relaxed);
    }

    /// Whether calls of the program are inside the kernel's socket.
    pub(crate) fn is_called(&self) -> bool {
        self.in_send.load(Ordering::SeqCst) > 0 || self.in_recv.load(Ordering::SeqCst) > 0
    }

    /// Whether the kernel has reported how the connection broke; `was_cut`: whether it broke without the peer's FIN.
    pub(crate) fn knows_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed) != cut::UNKNOWN
    }

    pub(crate) fn was_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed) == cut::SHORT
    }

    /// Whether the program's bytes travel by the kernel again, both ways.
    pub(crate) fn is_done(&self) -> bool {
        self.rx() == phase::DONE && self.tx() == phase::DONE
    }

    /// The kernel reports room for bytes again, as it does when the program changes the buffer size.
    pub(crate) fn note_room(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    /// Sums are kept no more: several processes read.
    pub(crate) fn stop_checks(&self) {
        self.checks.store(0, Ordering::Relaxed);
    }
}

/// A view of a live session: the lines, by their role for this side.
#[derive(Clone, Copy)]
pub(crate) struct View<'a, W> {
    pub(crate) s: &'a Session,
    pub(crate) wire: W,
    pub(crate) slot: &'a Slot,
    /// The direction we send in.
    pub(crate) out: &'a Direction,
    /// The direction we receive in.
    pub(crate) inn: &'a Direction,
    pub(crate) mem: Memory,
}

impl<'a, W: Wire> View<'a, W> {
    /// The view of a session that takes place. By a caller whose hold keeps it from being released.
    #[inline]
    pub(crate) fn of(s: &'a Session, wire: W) -> Option<Self> {
        let slot = s.slot()?;
        let side = s.side();
        let base = core::ptr::with_exposed_provenance_mut(s.memory.load(Ordering::Relaxed) as usize);
        // SAFETY: `prepare` stored base and length of the memory the slot is in, which stays mapped as long as the slot does.
        let mem = unsafe { Memory::new(base, s.memory_len.load(Ordering::Relaxed) as usize) };
        Some(Self { s, wire, slot, out: &slot.dir[side], inn: &slot.dir[1 - side], mem })
    }

    /// The receiving end's operations.
    pub(crate) const CONSUMER: Consumer = Consumer;

    /// The session's number, from our own memory.
    fn number(&self) -> u64 {
        self.s.number.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod explored;
