//! What is taken out of the kernel's queue of a socket, in memory of our own.

use madrigal_sys::{Errno, raw, tcp};

use crate::state::session::Aside;
use crate::state::slab::zeroed_pages;
use crate::state::socket::Socket;

/// More than any socket's queues hold.
const MOST_IN_KERNEL: usize = 64 << 20;

/// Memory for what is taken out of the queue.
#[derive(Default)]
pub(super) struct Queue {
    memory: Option<(*mut u8, usize)>,
    len: usize,
    urgent: Option<(usize, u8)>,
}

/// Takes what there is out of the kernel's queue (`HandBack::take`).
pub(super) fn take_queued(from: Socket<'_>, aside: &mut Queue) -> Result<usize, Errno> {
    if from.s.session.may_meet_urgent() && aside.urgent.is_none() {
        aside.urgent = tcp::urgent_here(from.fd).map(|byte| (aside.len, byte));
    }
    // Never past the mark: a receive stops there.
    let waiting = raw::ioctl_int(from.fd, libc::FIONREAD).unwrap_or(0).max(1) as usize;
    let to = aside.room(waiting)?;
    // SAFETY: `room` gave memory of our own for so many bytes.
    let n = unsafe { raw::recv(from.fd, to.cast(), waiting, libc::MSG_DONTWAIT) }?;
    aside.len += n;
    Ok(n)
}

impl Queue {
    /// Room for `more` bytes behind those there are.
    fn room(&mut self, more: usize) -> Result<*mut u8, Errno> {
        let wanted = self.len.checked_add(more).filter(|&size| size <= MOST_IN_KERNEL).ok_or(Errno::NOMEM)?;
        let size = self.memory.map_or(0, |(_, size)| size);
        if wanted > size {
            let size = wanted.next_power_of_two().max(64 << 10);
            let larger = zeroed_pages(size).ok_or(Errno::NOMEM)?;
            // SAFETY: two mappings of our own; the new one is larger.
            unsafe { core::ptr::copy_nonoverlapping(self.bytes().as_ptr(), larger, self.len) };
            let old = core::mem::replace(self, Self { memory: Some((larger, size)), ..*self });
            drop(old);
        }
        Ok(self.memory.map_or(core::ptr::null_mut(), |(ptr, _)| ptr.wrapping_add(self.len)))
    }
}

impl Aside for Queue {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the first `len` bytes of our own mapping were written by the kernel.
        self.memory.map_or(&[], |(ptr, _)| unsafe { core::slice::from_raw_parts(ptr, self.len) })
    }

    fn cut(&mut self, at: usize, n: usize) {
        let (Some((ptr, _)), Some(behind)) = (self.memory, self.len.checked_sub(at + n)) else { return };
        // SAFETY: both ranges lie inside the first `len` bytes of our own mapping.
        unsafe { core::ptr::copy(ptr.wrapping_add(at + n), ptr.wrapping_add(at), behind) };
        self.len -= n;
        self.urgent =
            self.urgent.map(|(mark, byte)| (if mark > at { mark.saturating_sub(n).max(at) } else { mark }, byte));
    }

    fn put(&mut self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        let (n, behind) = (bytes.len(), self.len.checked_sub(at).ok_or(Errno::INVAL)?);
        let end = self.room(n)?;
        let place = end.wrapping_sub(behind);
        // SAFETY: `room` gave memory of our own behind the first `len` bytes, of which `place` is one or the end; the program's are others.
        unsafe {
            core::ptr::copy(place, place.wrapping_add(n), behind);
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), place, n);
        }
        self.len += n;
        self.urgent = self.urgent.map(|(mark, byte)| (if mark >= at { mark + n } else { mark }, byte));
        Ok(())
    }

    fn urgent(&self) -> Option<(usize, u8)> {
        self.urgent
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some((ptr, size)) = self.memory {
            // SAFETY: our own mapping, which is no longer used.
            let _ = unsafe { rustix::mm::munmap(ptr.cast(), size) };
        }
    }
}
