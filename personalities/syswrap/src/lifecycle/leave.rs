//! Going back to the kernel: what a ring cannot carry (urgent data, stdio, splice, another process, half close, a reader that stalls) ends
//! the session. No byte is lost, and no thread waits, unless the next reader knows nothing of rings. Then what is unread must be put back
//! into the kernel's queue first ([`Back::IntoKernel`]).

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use std::os::fd::AsRawFd;

use madrigal_report::{Path, Reason};
use madrigal_shm_ring::layout::SideLine;
use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, process as proc, raw, tcp};

use super::queue::{Queue, take_queued};
use super::{earn, reconnect};
use crate::state::session::{HandBack, PeerEnd, Session, Unmix, View, Wire};
use crate::state::sock::{SOCKS, Sock, mode};
use crate::state::socket::{Socket, view};
use crate::state::table::{self, Word};
use crate::state::{registration, teardown};

/// Where unread bytes must be when the session is over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Back {
    /// They stay where they are: our hooks read on.
    Lazily,
    /// In the kernel's queue, if that is done at once.
    IfPossible,
    /// In the kernel's queue, for other readers than our hooks are possible. But if the peer sends no more, or no process is found that
    /// holds its end, they stay where they are: this process is more likely to read them.
    Beside,
    /// In the kernel's queue: the next reader knows nothing of rings. If that fails, bytes would be lost: the socket is reconnected if the
    /// peer is gone, and else the connection is reset.
    IntoKernel,
}

/// Leaves the session, if there is one, and never moves again.
pub(crate) fn leave_for_good(s: &Sock, fd: c_int, reason: Reason, back: Back) {
    s.set_never(reason);
    leave(s, fd, reason, back);
}

/// Leaves the session, if there is one. Another thread may close the descriptor at any time, for a thread that makes a child leaves them
/// all.
pub(crate) fn leave(s: &Sock, fd: c_int, reason: Reason, back: Back) {
    if s.mode() == mode::OFFERED {
        let guard = s.session.wlock.lock();
        if !guard.nested()
            && s.mode() == mode::OFFERED
            && let Some(fd) = s.open_fd(fd)
            && !earn::call_off(s)
        {
            earn::begin(s, fd);
        }
    }
    if s.mode() != mode::SESSION {
        return;
    }
    {
        let _sending = s.session.wlock.lock();
        let Some(v) = s.open_fd(fd).and_then(|fd| view(s, fd)) else { return };
        let _receiving = v.reading();
        // If the peer is gone, no other process will know what to report.
        v.learn();
        // Bytes that come again would be answered with a reset.
        let back = if back == Back::IfPossible && v.refuses_bytes() { Back::Lazily } else { back };
        v.seal();
        // A doorbell wakes threads that sleep in a receive; it is left to them.
        if back != Back::Lazily || v.s.rx_sleepers.load(Ordering::SeqCst) == 0 {
            v.finish_receiving();
        }
        if back != Back::Lazily {
            introduce(&v);
            bring_back(&v, back);
        }
        v.finish_sending();
        if reason == Reason::Forked {
            v.s.stop_checks();
            v.s.share();
        }
        teardown::unhook(s);
        if matches!(back, Back::Beside | Back::IntoKernel) {
            teardown::restore_nodelay(s);
        }
    }
    s.record_path(Path::Tcp, Some(reason));
    registration::wake_sets(s);
    teardown::mark_due(s);
}

/// Puts what is unread into the kernel's queue, as far as that can be. Behind the seal, under both locks.
fn bring_back(v: &View<'_, Socket<'_>>, back: Back) {
    let done = v.hand_back(&ByCopy { socket: v.wire, asks: back != Back::IfPossible });
    let is_left = done.is_err() && done != Err(Errno::IO);
    // The kernel has reported a pending error to us.
    let differs = is_left || done.is_ok() && (v.s.is_gone() && !v.s.is_over() || v.s.has_pending_error());
    if matches!(back, Back::IntoKernel | Back::Beside) && differs && reconnect::connect(v) {
        return;
    }
    if v.s.is_over() {
        // By now the same is reported to every holder. It wakes the waiters, which is no new event.
        registration::note_own_wake(v.wire.s);
        madrigal_sys::anew::mark_end_reported(v.wire.fd);
    }
    let Err(e) = done else { return };
    match back {
        Back::Beside if e != Errno::IO || v.is_left() => v.clear_queue(),
        Back::IfPossible if e != Errno::IO => {}
        _ => reconnect::give_up(v),
    }
}

/// Just before the end of the stream: see [`View::unmix`]. Under the send lock.
pub(crate) fn unmix(v: &View<'_, Socket<'_>>) {
    v.unmix(&ByCopy { socket: v.wire, asks: false });
}

/// Of this process and the process that began the session, either may be the reader, or live longer. The descriptor is the one whose close
/// the peer is notified of.
fn introduce(v: &View<'_, Socket<'_>>) {
    let own = &v.slot.side[v.s.side()];
    let (pid, fd) = (proc::own_pid(), v.wire.s.fd() as u32);
    let first = own.pid.load(Ordering::Relaxed);
    if first == pid || held_by(first, own).is_err() {
        own.pid.store(pid, Ordering::Relaxed);
        own.fd.store(fd, Ordering::Relaxed);
    } else if own.fd.load(Ordering::Relaxed) == fd {
        own.child.store(pid, Ordering::Relaxed);
    }
}

/// Our sending direction is over, because the peer has sealed it or is gone. Under the send lock.
pub(crate) fn finish_sending(v: &View<'_, Socket<'_>>, reason: Reason) {
    v.finish_sending();
    v.wire.s.record_path(Path::Tcp, Some(reason));
}

/// A sender whose reader is stalled goes back to TCP. Outside every lock.
pub(crate) fn relieve(s: &Sock, fd: c_int) {
    let Some(v) = view(s, fd) else { return };
    if v.was_full() && s.session.sends() && v.is_stalled() {
        leave(s, fd, Reason::Stalled, Back::Lazily);
    }
}

/// How bytes get back into the kernel's queue: by a copy of the peer's descriptor.
struct ByCopy<'a> {
    socket: Socket<'a>,
    /// Where there is no copy to be had, the peer may be asked, and waited for.
    asks: bool,
}

/// The copy.
struct Copy(Fd);

impl HandBack for ByCopy<'_> {
    type Peer = Copy;
    type Aside = Queue;

    fn peer(&self) -> Result<Copy, Errno> {
        let session = &self.socket.s.session;
        let peer = &session.slot().ok_or(Errno::NOTCONN)?.side[1 - session.side()];
        // It may move its socket to another descriptor between two checks.
        let mut error = Errno::STALE;
        for _ in 0..8 {
            let holders = [&peer.pid, &peer.child].map(|holder| holder.load(Ordering::Relaxed));
            for pid in holders.into_iter().filter(|pid| *pid != 0) {
                match held_by(pid, peer) {
                    Err(e) => error = e,
                    copy => return copy,
                }
            }
            if error != Errno::BADF {
                break;
            }
        }
        let cookie = peer.cookie.load(Ordering::Relaxed);
        own_end(session, cookie).or_else(|| end_of_own(cookie)).ok_or(error)
    }

    fn may_ask(&self) -> bool {
        self.asks
    }

    fn aside(&self) -> Result<Queue, Errno> {
        Ok(Queue::default())
    }

    fn take(&self, aside: &mut Queue) -> Result<usize, Errno> {
        take_queued(self.socket, aside)
    }
}

impl Unmix for ByCopy<'_> {
    fn take_from(&self, peer: &Copy, aside: &mut Queue) -> Result<usize, Errno> {
        take_queued(Socket { fd: peer.0.as_raw_fd(), ..self.socket }, aside)
    }

    fn taken_of(&self, peer: &Copy) -> Result<u64, Errno> {
        Socket { fd: peer.0.as_raw_fd(), ..self.socket }.taken()
    }
}

/// A copy of that descriptor. `EBADF`: it is not this socket's.
fn copy_of(pid: u32, fd: c_int, cookie: u64) -> Result<Copy, Errno> {
    let copy = proc::steal_fd(pid, fd)?;
    if tcp::cookie(copy.as_raw_fd()) == Ok(cookie) { Ok(Copy(copy)) } else { Err(Errno::BADF) }
}

/// A copy of the socket that a side has published, from a process that may have it.
fn held_by(pid: u32, line: &SideLine) -> Result<Copy, Errno> {
    copy_of(pid, line.fd.load(Ordering::Relaxed) as c_int, line.cookie.load(Ordering::Relaxed))
}

/// A copy of the peer's end if this process has it, too: after a fork the process that is on record may have closed it.
fn own_end(session: &Session, cookie: u64) -> Option<Copy> {
    let is_other = |word: Word| {
        let other = SOCKS.get(word.index()).map(|s| &s.session);
        other.is_some_and(|other| other.lent() == session.lent() && other.side() != session.side())
    };
    table::range(0, u32::MAX)
        .filter(|&(_, word)| word.is_socket() && is_other(word))
        .find_map(|(fd, _)| copy_of(proc::own_pid(), fd, cookie).ok())
}

/// The same if it has come from another process, which has closed it since: this process does not know what it is.
fn end_of_own(cookie: u64) -> Option<Copy> {
    table::range(0, u32::MAX)
        .filter(|(_, word)| word.is_socket())
        .find_map(|(fd, _)| copy_of(proc::own_pid(), fd, cookie).ok())
}

impl PeerEnd for Copy {
    type Wide = (Option<tcp::Wide>, Option<tcp::Hasty>);

    fn widen(&self, n: u64) -> Self::Wide {
        let fd = self.0.as_raw_fd();
        // A doorbell may be unacknowledged for 40 ms.
        (tcp::widen(fd, n), tcp::hasten(fd))
    }

    fn room_for(&self, n: u64) -> bool {
        tcp::room_for(self.0.as_raw_fd(), n)
    }

    fn is_mute(&self) -> bool {
        tcp::is_mute(self.0.as_raw_fd())
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        raw::send_bytes(self.0.as_raw_fd(), bytes)
    }

    fn send_urgent(&self, byte: u8) -> Result<(), Errno> {
        raw::send_urgent(self.0.as_raw_fd(), byte)
    }

    fn given(&self) -> Result<u64, Errno> {
        tcp::bytes_written(self.0.as_raw_fd())
    }

    fn sent(&self) -> Result<u64, Errno> {
        tcp::bytes_sent(self.0.as_raw_fd())
    }
}
