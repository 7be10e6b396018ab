//! Urgent bytes, which the kernel carries behind the last doorbell.
//!
//! When an urgent byte comes while another one is the first unread byte, the kernel drops the older one from the stream; otherwise that
//! becomes an ordinary byte (tcp_check_urg). Doorbells in front of it are not the program's bytes. The sender, which knows that nothing
//! else is unread, counts the dropped byte as a doorbell for its reader.

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
            // SYNC: before the byte that makes the older one ordinary. If none comes, the next receive would have dropped the older one,
            // too.
            self.out.w.urgent.fetch_add(1, Ordering::SeqCst);
        }
        let sent = send()?;
        // Any process of ours may send the next one.
        self.out.wake.urgent_end.store(self.wire.given().unwrap_or(0), Ordering::SeqCst);
        Ok(sent)
    }

    /// Whether only doorbells are in front of the last urgent byte.
    fn is_last_urgent_first(&self) -> bool {
        let (line, drained) = (&self.out.w, self.s.producer.unread(self.out, &self.mem) == Ok(0));
        let given = line.n_kernel.load(Ordering::Relaxed);
        // A reader that has taken ring bytes had read the kernel's before; one that has not come so far counts what it reads.
        let (head, taken) = (self.out.r.head.load(Ordering::SeqCst), self.out.r.taken.load(Ordering::SeqCst));
        let is_read = drained && (head > 0 || taken >= given);
        let dropped = u64::from(line.urgent.load(Ordering::SeqCst)).saturating_sub(1);
        // The peer can write them, too: a count may be any number.
        let front = given.wrapping_add(line.bells.load(Ordering::SeqCst)).wrapping_add(dropped);
        is_read && self.out.wake.urgent_end.load(Ordering::SeqCst) == front.wrapping_add(1)
    }

    /// The position in the kernel's stream where doorbells, and urgent bytes that count as such, end. Behind a seal.
    pub(super) fn bells_end(&self) -> u64 {
        let line = &self.inn.w;
        let dropped = u64::from(line.urgent.load(Ordering::SeqCst)).saturating_sub(1);
        let dropped = if dropped > 0 && self.wire.keeps_urgent() { 0 } else { dropped };
        let bells = line.bells.load(Ordering::Acquire);
        line.n_kernel.load(Ordering::Acquire).wrapping_add(bells).wrapping_add(dropped)
    }
}
