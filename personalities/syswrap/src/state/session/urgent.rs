//! Urgent bytes, which the kernel carries behind the last doorbell.
//!
//! When one comes, and another one is the first byte that is unread, the kernel drops that one from the stream; otherwise it becomes a byte
//! like any other (tcp_check_urg). Doorbells in front of it are none of the program's bytes: the sender, which knows that nothing else is
//! unread, has its reader take it for one of them.

use madrigal_base::sync::Ordering;
use madrigal_sys::Errno;

use super::{Session, View, Wire};

impl Session {
    /// Urgent data follow by the kernel, where they count as bytes that no receive returns.
    pub(crate) fn announce_urgent(&self) {
        if let Some(slot) = self.slot() {
            slot.dir[self.side()].w.urgent.fetch_max(1, Ordering::SeqCst);
        }
    }

    /// Whether the peer has sent such.
    pub(crate) fn may_meet_urgent(&self) -> bool {
        self.slot().is_some_and(|slot| slot.dir[1 - self.side()].w.urgent.load(Ordering::Acquire) != 0)
    }
}

impl<W: Wire> View<'_, W> {
    /// Makes a send by the kernel whose last byte is urgent. Behind the end of our sending direction.
    pub(crate) fn send_urgent(&self, send: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
        if self.is_last_urgent_first() {
            // SYNC: before the byte that makes an ordinary one of it. If none comes, the next receive would have dropped it, too.
            self.out.w.urgent.fetch_add(1, Ordering::SeqCst);
        }
        let sent = send()?;
        // Whichever process of ours sends the next one.
        self.out.wake.urgent_end.store(self.wire.given().unwrap_or(0), Ordering::SeqCst);
        Ok(sent)
    }

    /// Whether only doorbells are in front of the last urgent byte.
    fn is_last_urgent_first(&self) -> bool {
        let (line, drained) = (&self.out.w, self.s.producer.unread(self.out, &self.mem) == Ok(0));
        let given = line.n_kernel.load(Ordering::Relaxed);
        // A reader that has taken bytes out of the ring had read the kernel's before; one that has not come so far counts what it reads.
        let (head, taken) = (self.out.r.head.load(Ordering::SeqCst), self.out.r.taken.load(Ordering::SeqCst));
        let is_read = drained && (head > 0 || taken >= given);
        let dropped = u64::from(line.urgent.load(Ordering::SeqCst)).saturating_sub(1);
        // The peer can write them, too: a count may be any number.
        let front = given.wrapping_add(line.bells.load(Ordering::SeqCst)).wrapping_add(dropped);
        is_read && self.out.wake.urgent_end.load(Ordering::SeqCst) == front.wrapping_add(1)
    }

    /// Where the doorbells end among the bytes of the kernel's that we receive, and urgent bytes that count as such. Behind a seal.
    pub(super) fn bells_end(&self) -> u64 {
        let line = &self.inn.w;
        let dropped = u64::from(line.urgent.load(Ordering::SeqCst)).saturating_sub(1);
        let dropped = if dropped > 0 && self.wire.keeps_urgent() { 0 } else { dropped };
        let bells = line.bells.load(Ordering::Acquire);
        line.n_kernel.load(Ordering::Acquire).wrapping_add(bells).wrapping_add(dropped)
    }
}
