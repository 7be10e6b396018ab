//! Unread bytes back into the kernel's own queue, for a reader that knows nothing of rings: stdio, splice, another process, io_uring.
//!
//! No call puts bytes in front of a socket's queue. But a copy of the *peer's* descriptor can send, and what it sends arrives behind all
//! there is. So everything is taken out first, doorbells are dropped, and the bytes are sent again in their order. Meanwhile the peer must
//! not send: the gate is closed to it. Where the kernel gives us no copy (`ptrace_scope`, a container) the peer is requested to take its
//! bytes back itself. It can as long as it has not sent any by the kernel.

use madrigal_base::sync::Ordering;
use madrigal_shm_ring::layout::{fate, gate, state};
use madrigal_shm_ring::ring::Trouble;
use madrigal_sys::Errno;

use super::limit::{ASKED_NS, Limit, SHORT_NS};
use super::{View, Wire, phase};

/// How a session's unread bytes get back into the kernel.
pub(crate) trait HandBack {
    /// A wire to the peer's end, on which we may send.
    type Peer: PeerEnd;
    /// Memory for bytes that are taken out for a moment.
    type Aside: Aside;
    /// Gets hold of the peer's end of this connection.
    fn peer(&self) -> Result<Self::Peer, Errno>;
    /// Whether the peer may be waited for: then it is requested to act if no copy of its socket can be made. Else everything is done at
    /// once, or nothing.
    fn may_ask(&self) -> bool;
    /// Such memory, empty.
    fn aside(&self) -> Result<Self::Aside, Errno>;
    /// Takes what there is out of the kernel's queue, behind what `aside` holds; how many bytes. `Ok(0)`: the end. `EAGAIN`: nothing.
    fn take(&self, aside: &mut Self::Aside) -> Result<usize, Errno>;
}

/// The peer's end of the connection.
pub(crate) trait PeerEnd {
    /// Keeps its send buffer large, and sends at once.
    type Wide;
    /// See [`Wire::widen`]; its queue is empty.
    fn widen(&self, n: u64) -> Self::Wide;
    /// Whether so many bytes have room in its send buffer.
    fn room_for(&self, n: u64) -> bool;
    /// Whether its sending direction is shut.
    fn is_mute(&self) -> bool;
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno>;
    fn send_urgent(&self, byte: u8) -> Result<(), Errno>;
    /// Bytes ever sent on this socket, by any process.
    fn given(&self) -> Result<u64, Errno>;
    /// How many of them are on their way or have arrived; the others have no room in the window.
    fn sent(&self) -> Result<u64, Errno>;
}

/// Bytes taken out of the queue.
pub(crate) trait Aside {
    fn bytes(&self) -> &[u8];
    /// Drops `n` bytes from `at` on: they were doorbells.
    fn cut(&mut self, at: usize, n: usize);
    /// Puts more bytes in, before what is `at` that place.
    fn put(&mut self, at: usize, bytes: &[u8]) -> Result<(), Errno>;
    /// The urgent byte, which is none of [`Aside::bytes`], and before which of them it comes.
    fn urgent(&self) -> Option<(usize, u8)>;
}

/// A doorbell that the peer is just ringing may take so long.
const MOMENT_NS: u64 = 10_000_000;
/// How often another sender may interfere.
const ALONE: u32 = 100;
/// How long bytes sent again may be on their way.
const ARRIVAL_NS: u64 = 200_000_000;

impl<W: Wire> View<'_, W> {
    /// Puts all unread bytes into the kernel's queue; the receiving side is DONE then. An error: that was not possible. With `EIO`, bytes
    /// are lost, or doorbells would be read as bytes. Behind the seal, under both locks.
    pub(crate) fn hand_back(&self, by: &impl HandBack) -> Result<(), Errno> {
        // The peer may not check the connection for long.
        self.call_off_last();
        self.finish_receiving();
        if self.s.rx() == phase::DONE {
            return Ok(());
        }
        // A peer that is not found may have gone since the last check.
        match by.peer().inspect_err(|_| self.learn()) {
            Ok(peer) => return self.hand_back_through(&peer, by),
            // The peer is gone, and with it what it had not sent.
            Err(e) if self.ended() && Self::CONSUMER.waiting(self.inn) == 0 => return self.keep_queue(e, by.may_ask()),
            Err(_) if by.may_ask() && (self.s.rx() == phase::RING || self.is_unmixed()) => self.ask_back()?,
            Err(e) => return Err(e),
        }
        self.finish_in();
        Ok(())
    }

    /// The same where the peer is gone, through an end that takes its place as soon as the kernel's queue is empty. Only this process holds
    /// the socket.
    pub(crate) fn hand_back_by<H: HandBack>(&self, place: &H::Peer, by: &H) -> Result<(), Errno> {
        self.close_gate();
        let done = self.put_back(place, by);
        self.finish_in();
        self.open_gate();
        done
    }

    /// No process can send again: the kernel's queue stays as it is, without its first doorbells; `waits` for a doorbell that is just being
    /// rung. An error: more doorbells lie behind unread kernel bytes, where only our hooks can take them out.
    fn keep_queue(&self, e: Errno, waits: bool) -> Result<(), Errno> {
        let mut limit = Limit::new(self.wire, ASKED_NS);
        self.finish_receiving();
        while waits && self.s.rx() == phase::RING && !self.has_rung_last() && !limit.has_passed(self.wire) {
            // Read before the queue: a peer that died has rung its last.
            let lived = self.wire.peer_lives();
            self.finish_receiving();
            if !lived && self.s.rx() == phase::RING && Self::CONSUMER.waiting(self.inn) == 0 {
                self.finish_in();
            }
            self.wire.pause();
        }
        self.finish_receiving();
        if self.s.rx() == phase::DONE { Ok(()) } else { Err(e) }
    }

    fn hand_back_through<H: HandBack>(&self, peer: &H::Peer, by: &H) -> Result<(), Errno> {
        self.close_gate();
        // Nothing can follow a FIN. Checked behind the gate, for a FIN passes the gate, too.
        let done = if self.inn.w.shut.load(Ordering::SeqCst) != 0 || peer.is_mute() {
            self.keep_queue(Errno::PIPE, by.may_ask())
        } else {
            self.hand_back_behind_gate(peer, by)
        };
        self.open_gate();
        done
    }

    fn hand_back_behind_gate<H: HandBack>(&self, peer: &H::Peer, by: &H) -> Result<(), Errno> {
        if !by.may_ask() {
            self.is_done_at_once(peer)?;
        }
        // Even if it fails: the rest is the kernel's, and doorbells cannot be separated from bytes any more.
        let done = self.put_back(peer, by);
        self.finish_in();
        done.map_err(|_| Errno::IO)
    }

    fn close_gate(&self) {
        // SYNC: SeqCst with `pass`: every sender under way is seen, and no other one begins.
        self.inn.wake.gate.fetch_or(gate::CLOSED, Ordering::SeqCst);
    }

    fn open_gate(&self) {
        self.inn.wake.gate.fetch_and(!gate::CLOSED, Ordering::SeqCst);
    }

    /// Whether everything has room, and no sender is under way: it may be stopped, so it is not waited for long. Behind the gate.
    fn is_done_at_once(&self, peer: &impl PeerEnd) -> Result<(), Errno> {
        let mut limit = Limit::new(self.wire, MOMENT_NS);
        while !self.senders_idle() {
            if limit.has_passed(self.wire) {
                return Err(Errno::AGAIN);
            }
            self.wire.pause();
        }
        let queued = peer.given()?.saturating_sub(self.wire.taken()?);
        let all = queued + Self::CONSUMER.waiting(self.inn);
        let _wide = peer.widen(all);
        if peer.room_for(all) { Ok(()) } else { Err(Errno::NOBUFS) }
    }

    /// Whether no thread sends or rings any more. Behind seal and gate.
    fn senders_idle(&self) -> bool {
        self.inn.wake.gate.load(Ordering::SeqCst) & gate::SENDERS == 0 && self.has_rung_last()
    }

    fn put_back<H: HandBack>(&self, peer: &H::Peer, by: &H) -> Result<(), Errno> {
        self.handing(true);
        let done = self.send_again(peer, by).inspect(|()| self.await_arrival(peer));
        self.handing(false);
        done
    }

    fn send_again<H: HandBack>(&self, peer: &H::Peer, by: &H) -> Result<(), Errno> {
        let mut aside = by.aside()?;
        let front = self.empty_queue(peer, &mut aside, by)?;
        self.empty_ring(&mut aside, front)?;
        // No process reads meanwhile: all of it must fit.
        let _wide = peer.widen(aside.bytes().len() as u64);
        let Some((at, byte)) = aside.urgent() else { return self.resend_alone(peer, aside, by) };
        let (before, behind) = aside.bytes().split_at_checked(at).ok_or(Errno::INVAL)?;
        self.resend(peer, before)?;
        peer.send_urgent(byte)?;
        self.resend(peer, behind)
    }

    /// Takes everything out of the ring, which comes before what is `at` that place.
    fn empty_ring(&self, aside: &mut impl Aside, mut at: usize) -> Result<(), Errno> {
        loop {
            let span = match self.data() {
                Ok(span) if !span.is_empty() => span,
                Ok(_) | Err(Trouble::Sealed) => return Ok(()),
                Err(_) => return Err(Errno::CONNRESET),
            };
            // Ours first: a child of ours may read them, too. No writer finds space in a sealed ring (`Producer::space`), or leaves it for
            // a larger one (`View::grow`), so the bytes stay where they are.
            match Self::CONSUMER.advance(self.inn, &span, span.len()) {
                Ok(()) => {}
                Err(Trouble::Raced) => continue,
                Err(_) => return Err(Errno::CONNRESET),
            }
            for (ptr, len) in span.pieces().into_iter().filter(|&(_, len)| len > 0) {
                // SAFETY: bytes of a sealed ring; the peer may spoil them, for itself alone.
                aside.put(at, unsafe { core::slice::from_raw_parts(ptr.cast_const(), len) })?;
                at += len;
            }
            // After the copy: the sum also proves that the bytes did not change.
            let sum = self.sum_up(&span, span.len()).map_err(|_| Errno::CONNRESET)?;
            self.keep_sum(span.at + span.len() as u64, sum);
        }
    }

    /// Sends it again, and makes sure that nothing has come before it or between: the gate holds back neither a FILE of the C library nor a
    /// process that knows nothing of rings. What those send in the same moment belongs behind it.
    fn resend_alone<H: HandBack>(&self, peer: &H::Peer, mut aside: H::Aside, by: &H) -> Result<(), Errno> {
        for _ in 0..ALONE {
            let own = aside.bytes().len();
            // All that had been sent was taken out.
            let begin = self.wire.taken()?;
            self.resend(peer, aside.bytes())?;
            let others = peer.given()?.saturating_sub(begin + own as u64) as usize;
            if others == 0 || own == 0 {
                return Ok(());
            }
            let mut all = by.aside()?;
            self.take_out(own + others, &mut all, by)?;
            aside = in_front(aside.bytes(), all.bytes(), by)?;
        }
        Err(Errno::IO)
    }

    /// Takes so many bytes out of the kernel's queue; they arrive soon.
    fn take_out<H: HandBack>(&self, n: usize, aside: &mut H::Aside, by: &H) -> Result<(), Errno> {
        let mut limit = Limit::new(self.wire, SHORT_NS);
        while aside.bytes().len() < n {
            match by.take(aside) {
                Ok(0) => return Err(Errno::PIPE),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !limit.has_passed(self.wire) => self.wire.pause(),
                Err(e) => return Err(e),
            }
        }
        if aside.urgent().is_some() { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// Takes everything out of the kernel's queue, and the doorbells out of that; returns how many bytes come before the ring. Waits for
    /// senders that were under way when the gate was closed, and for what TCP still holds: both find room, for the queue is emptied.
    fn empty_queue<H: HandBack>(&self, peer: &H::Peer, aside: &mut H::Aside, by: &H) -> Result<usize, Errno> {
        let (begin, mut limit) = (self.wire.taken()?, Limit::new(self.wire, ASKED_NS));
        loop {
            // Read before `given`, so that `given` includes what these senders have sent.
            let idle = self.senders_idle();
            // Our copy of its socket keeps the connection open when the peer dies.
            let idle = idle || !self.wire.peer_lives();
            let given = peer.given()?;
            match by.take(aside) {
                // The peer died before all of it was sent.
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                Err(e) => return Err(e),
            }
            if idle && self.wire.taken()? == given {
                break;
            }
            if limit.has_passed(self.wire) {
                return Err(Errno::TIMEDOUT);
            }
            self.wire.pause();
        }
        if self.s.rx() == phase::DONE {
            return Ok(aside.bytes().len());
        }
        let data = self.inn.w.n_kernel.load(Ordering::Acquire);
        let all = self.bells_end();
        // In phase RING the data are read, and some doorbells are out.
        let front = usize::try_from(data.saturating_sub(begin)).unwrap_or(usize::MAX).min(aside.bytes().len());
        let bells =
            all.checked_sub(begin.max(data)).and_then(|bells| usize::try_from(bells).ok()).ok_or(Errno::INVAL)?;
        aside.cut(front, bells.min(aside.bytes().len() - front));
        Ok(front)
    }

    fn resend(&self, peer: &impl PeerEnd, mut bytes: &[u8]) -> Result<(), Errno> {
        let mut limit = Limit::new(self.wire, SHORT_NS);
        while !bytes.is_empty() {
            match peer.send(bytes) {
                Ok(n) => bytes = bytes.get(n..).unwrap_or(&[]),
                Err(Errno::AGAIN | Errno::INTR) if !limit.has_passed(self.wire) => self.wire.pause(),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// A busy machine delivers later, also to itself, and each piece that comes later is an edge. Bytes without room in the window arrive
    /// when there is some.
    fn await_arrival(&self, peer: &impl PeerEnd) {
        let mut limit = Limit::new(self.wire, ARRIVAL_NS);
        let is_here = || {
            let came = self.wire.taken()?.wrapping_add(self.wire.queued()?);
            peer.sent().map(|sent| came >= sent)
        };
        while is_here() == Ok(false) && !limit.has_passed(self.wire) {
            self.wire.pause();
        }
    }

    /// Requests the peer to take its unread bytes back. It does so when one of its threads next checks the connection; the seal's doorbell
    /// has woken it.
    fn ask_back(&self) -> Result<(), Errno> {
        self.inn.wake.gate.fetch_or(gate::WANTED, Ordering::SeqCst);
        let mut limit = Limit::new(self.wire, ASKED_NS);
        // A peer that already sends by the kernel cannot put anything in front of that. While it sends bytes it took back it is at the
        // gate.
        let may_answer = || {
            if self.is_left() {
                return false;
            }
            let done = self.inn.w.state.load(Ordering::SeqCst) != state::RING;
            !done || self.inn.wake.gate.load(Ordering::SeqCst) & gate::SENDERS != 0
        };
        while Self::CONSUMER.waiting(self.inn) > 0 && !self.ended() && may_answer() && !limit.has_passed(self.wire) {
            self.wire.pause();
            let _ = self.find_end();
        }
        self.inn.wake.gate.fetch_and(!gate::WANTED, Ordering::SeqCst);
        if Self::CONSUMER.waiting(self.inn) > 0 {
            return Err(Errno::TIMEDOUT);
        }
        while self.s.rx() == phase::RING && !self.rung_out() && !self.ended() {
            if limit.has_passed(self.wire) {
                return Err(Errno::TIMEDOUT);
            }
            self.wire.pause();
        }
        Ok(())
    }

    /// Whether the peer has not closed.
    pub(crate) fn peer_is_open(&self) -> bool {
        self.inn.w.fate.load(Ordering::SeqCst) == fate::OPEN
    }

    /// Whether the kernel's queue holds all that is unread, and nothing else. Behind the seal.
    pub(crate) fn is_handed_back(&self) -> bool {
        self.s.rx() == phase::DONE
    }

    /// Whether the next byte is in the ring.
    pub(crate) fn reads_ring_bytes(&self) -> bool {
        self.s.rx() == phase::RING && self.has_ring_bytes()
    }

    /// Whether bytes are unread in the ring.
    pub(crate) fn has_ring_bytes(&self) -> bool {
        Self::CONSUMER.waiting(self.inn) > 0
    }

    /// Whether the peer has closed, or shut its sending direction, or died: then it puts nothing back.
    pub(crate) fn is_left(&self) -> bool {
        !self.peer_is_open() || self.inn.w.shut.load(Ordering::SeqCst) != 0 || !self.wire.peer_lives()
    }

    /// Unread bytes stay in the ring, but other processes may read the kernel's queue: takes out the doorbells at its front. Behind the
    /// seal, under the receive lock.
    pub(crate) fn clear_queue(&self) {
        if self.s.rx() == phase::RING {
            let _ = self.rung_out();
        }
    }

    /// Whether no doorbell lies behind unread kernel bytes, and none will.
    pub(super) fn is_unmixed(&self) -> bool {
        self.has_rung_last() && self.inn.w.bells.load(Ordering::SeqCst) == 0
    }

    /// Whether the peer has requested us to take our unread bytes back: then our sending direction must end now.
    pub(crate) fn is_asked_back(&self) -> bool {
        self.out.wake.gate.load(Ordering::Relaxed) & gate::WANTED != 0
    }
}

/// `all` are our bytes, sent in one piece, and what others have sent before and behind them. Puts those behind ours. `EIO`: it is not
/// certain which are which.
fn in_front<H: HandBack>(own: &[u8], all: &[u8], by: &H) -> Result<H::Aside, Errno> {
    let mut places = (0..=all.len() - own.len()).filter(|&at| all[at..].starts_with(own));
    let first = places.next().ok_or(Errno::IO)?;
    let mut before = first;
    for at in places {
        // The others' bytes are the same for both places if what lies between these is what lies between their ends.
        if all[before..at] != all[before + own.len()..at + own.len()] {
            return Err(Errno::IO);
        }
        before = at;
    }
    let mut put = by.aside()?;
    for part in [own, &all[..first], &all[first + own.len()..]] {
        put.put(put.bytes().len(), part)?;
    }
    Ok(put)
}
