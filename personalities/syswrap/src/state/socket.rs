//! The program's own socket as the wire of its session.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use madrigal_report::{Path, Reason};
use madrigal_shm_ring::arena::Tag;
use madrigal_shm_ring::layout::{Block, SMALL_RING, SideLine};
use madrigal_sys::signals::Blocked;
use madrigal_sys::{Errno, cpu, process as proc, raw, tcp, time};

use super::arenas::{self, Lease};
use super::registration;
use super::session::{Health, Room, View, Wire};
use super::sock::Sock;

/// How long calls on a closed connection may take to return.
const NOTICE_NS: u64 = 1_000_000_000;

/// A socket, by one of its descriptors.
#[derive(Clone, Copy)]
pub(crate) struct Socket<'a> {
    pub(crate) s: &'a Sock,
    pub(crate) fd: c_int,
}

impl Socket<'_> {
    /// The word of an event set of the peer's.
    fn sleep_word(self, set: u32) -> Option<&'static AtomicU32> {
        self.s.lease().map(|lease| lease.arena().sleep_word(1 - self.s.session.side(), set))
    }

    /// Whether the connection, which is closed, ended without the peer's FIN.
    fn was_cut(self) -> bool {
        // One of these may be returning the error now. All return: nothing waits on a closed connection.
        let end = time::now_ns() + NOTICE_NS;
        if view(self.s, self.fd).is_some_and(|v| v.was_reset_at_once()) {
            return true;
        }
        while !self.s.session.knows_cut() && self.s.session.is_called() && time::now_ns() < end {
            self.pause();
        }
        if let Some(fin) = self.had_fin() {
            return !fin;
        }
        if !self.s.session.knows_cut()
            && let Some(v) = view(self.s, self.fd)
            && let Some(e) = self.take_error()
        {
            v.saw_error(e);
        }
        // An error would have been reported by now.
        self.s.session.assume_fin();
        self.s.session.was_cut()
    }

    /// Whether there was a FIN: it counts as a byte taken out of the queue. The error would show it, too, but stays in the kernel for the
    /// next caller.
    fn had_fin(self) -> Option<bool> {
        let v = view(self.s, self.fd).filter(|_| !self.s.session.knows_cut())?;
        let _lock = v.try_reading()?;
        let counted = v.taken_of_ring()?;
        let taken = tcp::bytes_read(self.fd, self.s.session.may_meet_urgent() || v.is_sealed_in(), || true).ok()?;
        taken.checked_sub(counted).filter(|&fin| fin <= 1).map(|fin| fin == 1)
    }
}

/// The session of a socket, while there is one; by a caller that holds the socket.
#[inline]
pub(crate) fn view(s: &Sock, fd: c_int) -> Option<View<'_, Socket<'_>>> {
    View::of(&s.session, Socket { s, fd })
}

impl Sock {
    /// The lease the slot of its session is in.
    pub(crate) fn lease(&self) -> Option<&'static Lease> {
        arenas::by_index(self.lease.load(Ordering::Relaxed).checked_sub(1)?)
    }

    /// The slot's number.
    pub(crate) fn slot_index(&self) -> u32 {
        self.slot_index.load(Ordering::Relaxed)
    }

    /// What this side publishes about itself in its slot, from the offer on.
    pub(crate) fn own_line(&self) -> Option<&SideLine> {
        let slot = self.lease()?.arena().slot(self.slot_index())?;
        Some(&slot.side[self.session.side()])
    }

    fn number(&self) -> Option<Tag> {
        self.session.lent().map(|lent| lent.session)
    }
}

impl Wire for Socket<'_> {
    type Wide = Option<tcp::Wide>;

    fn queued(self) -> Result<u64, Errno> {
        raw::ioctl_int(self.fd, libc::FIONREAD).map(|n| n.max(0) as u64)
    }

    fn taken(self) -> Result<u64, Errno> {
        // Behind the end of a session anybody may send: a process that the socket was passed to.
        let urgent = self.s.session.may_meet_urgent() || view(self.s, self.fd).is_some_and(|v| v.is_sealed_in());
        tcp::bytes_read(self.fd, urgent, || self.was_cut())
    }

    fn given(self) -> Result<u64, Errno> {
        tcp::bytes_written(self.fd)
    }

    fn discard(self, n: u64) -> Result<u64, Errno> {
        raw::discard(self.fd, usize::try_from(n.min(1 << 20)).unwrap_or(0)).map(|n| n as u64)
    }

    fn peek(self) -> Result<bool, Errno> {
        raw::peek(self.fd, libc::MSG_DONTWAIT).map(|n| n > 0)
    }

    fn health(self) -> Health {
        match raw::poll_now(self.fd, libc::POLLRDHUP) {
            events if events & libc::POLLERR != 0 => Health::Broken,
            events if events & libc::POLLHUP != 0 => Health::Closed,
            events if events & libc::POLLRDHUP != 0 => Health::Ended,
            _ => Health::Open,
        }
    }

    fn has_fin(self) -> bool {
        tcp::has_fin(self.fd)
    }

    fn has_urgent(self) -> bool {
        raw::poll_now(self.fd, libc::POLLPRI) & libc::POLLPRI != 0
    }

    fn keeps_urgent(self) -> bool {
        raw::sockopt_int(self.fd, libc::SOL_SOCKET, libc::SO_OOBINLINE).is_ok_and(|on| on != 0)
    }

    fn take_error(self) -> Option<Errno> {
        let code = raw::sockopt_int(self.fd, libc::SOL_SOCKET, libc::SO_ERROR).ok()?;
        (code != 0).then(|| madrigal_sys::errno_from(code))
    }

    fn undisturbed<T>(self, part: impl FnOnce() -> T) -> T {
        let _blocked = Blocked::handlers();
        part()
    }

    fn bell(self) -> Result<(), Errno> {
        if let Some(record) = self.s.record() {
            let bells = &record.bells;
            bells.store(bells.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        raw::send_bytes(self.fd, &[0]).map(drop)
    }

    fn bell_late(self) -> Result<(), Errno> {
        // SAFETY: one byte of our own.
        unsafe {
            raw::send(self.fd, [0u8].as_ptr().cast(), 1, libc::MSG_MORE | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        }
        .map(drop)
    }

    fn segment(self) -> u32 {
        raw::sockopt_int(self.fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG).unwrap_or(0).max(0) as u32
    }

    fn send(self, bytes: &[u8]) -> Result<usize, Errno> {
        raw::send_bytes(self.fd, bytes)
    }

    fn room_for(self, n: u64) -> bool {
        tcp::room_for(self.fd, n)
    }

    fn widen(self, n: u64) -> Option<tcp::Wide> {
        tcp::widen(self.fd, n)
    }

    fn resets(self) {
        let _ = raw::set_sockopt(self.fd, libc::SOL_SOCKET, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 });
    }

    fn cut_off(self) {
        self.s.set_never(Reason::NoHandBack);
        raw::disconnect(self.fd);
    }

    fn cork(self) {
        let _ = raw::set_sockopt(self.fd, libc::IPPROTO_TCP, libc::TCP_CORK, &1);
    }

    fn hurry(self) {
        let _ = raw::set_sockopt(self.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1);
    }

    fn is_lent(self, block: Block, dir: usize) -> bool {
        let (Some(lease), Some(number)) = (self.s.lease(), self.s.number()) else { return false };
        match block.size {
            SMALL_RING => block == lease.arena().small_block(self.s.slot_index(), dir),
            _ => lease.arena().is_lent(block, number, dir),
        }
    }

    fn peer_lives(self) -> bool {
        self.s.lease().is_some_and(Lease::peer_alive)
    }

    fn own_pid(self) -> u32 {
        proc::own_pid()
    }

    fn lives(self, pid: u32) -> bool {
        proc::start_time(pid).is_some()
    }

    fn sleeps(self, set: u32) -> bool {
        // SYNC: SeqCst with `epoll::sleep`: the word is set before the directions are armed with it.
        self.sleep_word(set).is_none_or(|word| word.load(Ordering::SeqCst) != 0)
    }

    fn wakes(self, set: u32) -> bool {
        // SYNC: as above.
        self.sleep_word(set).is_none_or(|word| word.load(Ordering::SeqCst) != 0 && word.swap(0, Ordering::SeqCst) != 0)
    }

    fn now(self) -> u64 {
        time::now_ns()
    }

    fn tick(self) -> u64 {
        time::tick_ns()
    }

    fn pause(self) {
        sleep_ns(20_000);
    }

    fn cpu(self) -> u32 {
        cpu::current() + 1
    }

    fn switched(self) {
        registration::stop_write_events(self.s);
        if let Some(record) = self.s.record() {
            record.moves.store(record.moves.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            record.set(Path::Shm, None);
        }
    }

    fn spoilt(self) {
        self.s.set_never(Reason::Corrupt);
        if let Some(lease) = self.s.lease() {
            lease.mistrust();
        }
    }
}

/// Sleeps; false when a signal handler ran.
pub(crate) fn sleep_ns(ns: u64) -> bool {
    // SAFETY: no descriptors and no mask: only a sleep.
    unsafe { raw::ppoll(&mut [], Some(time::timespec(ns)), core::ptr::null()) }.is_ok()
}

/// Larger rings from the arena of the socket's session.
impl Room for Socket<'_> {
    fn take(&self, size: usize) -> Option<Block> {
        self.s.lease()?.arena().take_block(size, self.s.number()?, self.s.session.side())
    }

    fn give(&self, block: Block) -> bool {
        let (Some(lease), Some(number)) = (self.s.lease(), self.s.number()) else { return false };
        lease.arena().give_block(block, number, self.s.session.side()).is_ok()
    }
}
