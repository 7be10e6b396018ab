//! Reconnects a socket whose peer is gone, while the kernel's socket does not show what TCP's would: unread bytes lie in the ring,
//! doorbells have made a reset, an error is pending. No process has the peer's end any more, so a reader that knows nothing of rings would
//! not get this. But if this process is the socket's only holder, the socket may be connected again, to an end of ours. That end sends what
//! is unread and ends as the peer did.

use core::cell::OnceCell;
use std::os::fd::{AsRawFd, RawFd};

use madrigal_sys::anew::{self, Place};
use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, raw, tcp};

use super::queue::{Queue, take_queued};
use crate::state::session::{HandBack, PeerEnd, View, Wire};
use crate::state::sock::flag;
use crate::state::socket::Socket;

/// Lets the kernel's socket speak for itself, if that can be. False: nothing has changed. Behind the seal, under both locks.
#[cold]
pub(super) fn connect(v: &View<'_, Socket<'_>>) -> bool {
    if !v.has_no_peer() || !v.wire.s.is_sole() {
        return false;
    }
    let Ok(place) = Place::of(v.wire.fd) else { return false };
    // What the peer is to have back went with it.
    v.finish_sending();
    v.save_kernel_end();
    // A reset is seen only once everything before it has arrived.
    let _deep = tcp::deepen(v.wire.fd, v.inbound());
    let end = End { place: &place, v, end: OnceCell::new() };
    match v.hand_back_by(&end, &end).map(|()| end.end.into_inner()) {
        Ok(Some(end)) => {
            anew::shut(v.wire.fd, v.is_deaf(), v.is_mute());
            anew::end(v.wire.fd, end, v.ending_for_kernel());
            v.wire.s.set_flag(flag::RECONNECTED, true);
        }
        _ => give_up(v),
    }
    true
}

/// Bytes would be lost: the connection is reset instead, which everybody sees.
pub(super) fn give_up(v: &View<'_, Socket<'_>>) {
    v.wire.cut_off();
    v.saw_end();
}

/// The end in the peer's place, made as soon as the kernel's queue is empty.
struct End<'a> {
    place: &'a Place,
    v: &'a View<'a, Socket<'a>>,
    end: OnceCell<Fd>,
}

impl HandBack for End<'_> {
    type Peer = Self;
    type Aside = Queue;

    fn peer(&self) -> Result<Self, Errno> {
        Err(Errno::SRCH)
    }

    fn may_ask(&self) -> bool {
        false
    }

    fn aside(&self) -> Result<Queue, Errno> {
        Ok(Queue::default())
    }

    fn take(&self, aside: &mut Queue) -> Result<usize, Errno> {
        match take_queued(self.v.wire, aside) {
            Err(e) if !matches!(e, Errno::AGAIN | Errno::INTR | Errno::NOMEM) => {
                self.v.saw_error(e);
                Ok(0)
            }
            took => took,
        }
    }
}

impl PeerEnd for End<'_> {
    type Wide = Option<tcp::Wide>;

    fn widen(&self, n: u64) -> Option<tcp::Wide> {
        let end = self.place.connect(self.v.wire.fd).ok()?;
        tcp::widen(self.end.get_or_init(|| end).as_raw_fd(), n)
    }

    fn room_for(&self, n: u64) -> bool {
        self.number().is_ok_and(|end| tcp::room_for(end, n))
    }

    fn is_mute(&self) -> bool {
        false
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        raw::send_bytes(self.number()?, bytes)
    }

    fn send_urgent(&self, byte: u8) -> Result<(), Errno> {
        raw::send_urgent(self.number()?, byte)
    }

    fn given(&self) -> Result<u64, Errno> {
        match self.number() {
            Ok(end) => tcp::bytes_written(end),
            // What has not come by now never will.
            Err(_) => self.v.wire.taken(),
        }
    }

    fn sent(&self) -> Result<u64, Errno> {
        tcp::bytes_sent(self.number()?)
    }
}

impl End<'_> {
    fn number(&self) -> Result<RawFd, Errno> {
        self.end.get().map(AsRawFd::as_raw_fd).ok_or(Errno::CONNRESET)
    }
}
