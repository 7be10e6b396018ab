//! select(2) as a poll(2).

use core::ffi::c_int;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, fd_set, pollfd};
use madrigal_sys::{Errno, fault};

use super::fds::Fds;
use super::rings::is_ours;

/// The three sets of a select(2); any may be null.
#[derive(Clone, Copy)]
pub(crate) struct Sets {
    pub(crate) read: *mut fd_set,
    pub(crate) write: *mut fd_set,
    pub(crate) except: *mut fd_set,
}

const WORD: usize = usize::BITS as usize;
/// In `events`, with a meaning that no kernel has ever given it (`POLLREMOVE`): the descriptor was open as the call began.
const OPEN: i16 = 0x1000;
/// More than any process can have open.
const MOST: c_int = 1 << 20;

/// A word of each set.
#[derive(Clone, Copy)]
struct Words {
    first: usize,
    read: usize,
    write: usize,
    except: usize,
}

impl Words {
    /// The descriptors in it, and what is asked of each.
    fn wanted(self) -> impl Iterator<Item = (c_int, i16)> {
        let any = self.read | self.write | self.except;
        (0..WORD).filter(move |bit| any >> bit & 1 != 0).map(move |bit| {
            let event = |word: usize, event| if word >> bit & 1 != 0 { event } else { 0 };
            let events = event(self.read, POLLIN) | event(self.write, POLLOUT) | event(self.except, POLLPRI);
            ((self.first + bit) as c_int, events)
        })
    }
}

/// What is asked for in each set, and what makes its bit (the kernel's `POLLIN_SET` and its kin).
const READ: (i16, i16) = (POLLIN, POLLIN | POLLHUP | POLLERR);
const WRITE: (i16, i16) = (POLLOUT, POLLOUT | POLLERR);
const EXCEPT: (i16, i16) = (POLLPRI, POLLPRI);

fn is_reported(p: &pollfd) -> bool {
    p.revents & POLLNVAL != 0 || [READ, WRITE, EXCEPT].into_iter().any(|set| has_bit(p, set))
}

/// Whether a descriptor's bit is set: one that was closed meanwhile is ready for everything.
fn has_bit(p: &pollfd, (asked, means): (i16, i16)) -> bool {
    p.events & asked != 0 && p.revents & (means | POLLNVAL) != 0
}

/// Whether select(2) would report anything of what poll(2) found.
pub(crate) fn reports_any(fds: &[pollfd]) -> bool {
    fds.iter().any(is_reported)
}

/// Takes out what poll(2) reports and select(2) does not.
pub(crate) fn mute(fds: &mut [pollfd]) {
    for p in fds.iter_mut().filter(|p| p.fd >= 0 && p.revents != 0) {
        (p.fd, p.revents) = (!p.fd, 0);
    }
}

/// Puts everything back.
pub(crate) fn unmute(fds: &mut [pollfd]) {
    for p in fds.iter_mut().filter(|p| p.fd < 0) {
        (p.fd, p.revents) = (!p.fd, 0);
    }
}

impl Sets {
    /// The words of descriptors below `n`. `None`: an address is bad.
    ///
    /// # Safety
    /// What is mapped of the sets, for `n` bits each, is the program's (it may pass larger sets than `FD_SETSIZE`).
    unsafe fn word(self, n: usize, i: usize) -> Option<Words> {
        let inside = if n - i * WORD < WORD { (1 << (n - i * WORD)) - 1 } else { usize::MAX };
        let word = |set: *mut fd_set| match set.is_null() {
            true => Some(0),
            // SAFETY: the caller's contract; an fd_set is an array of words.
            false => unsafe { fault::read(set.cast::<usize>().wrapping_add(i)) }.map(|word| word & inside),
        };
        Some(Words { first: i * WORD, read: word(self.read)?, write: word(self.write)?, except: word(self.except)? })
    }

    /// The descriptors of the sets below `n`, if something of ours is among them. `None`: it is not, or the kernel has to judge them.
    ///
    /// # Safety
    /// As for select(2), but for addresses that are bad.
    pub(crate) unsafe fn fds(self, n: c_int) -> Option<Fds> {
        if !(1..=MOST).contains(&n) {
            return None;
        }
        let n = n as usize;
        let (mut count, mut ours) = (0, false);
        for i in 0..n.div_ceil(WORD) {
            // SAFETY: the caller's contract.
            for (fd, _) in unsafe { self.word(n, i) }?.wanted() {
                count += 1;
                ours |= is_ours(fd);
            }
        }
        if !ours {
            return None;
        }
        let mut fds = Fds::new(count)?;
        let mut places = fds.of().iter_mut();
        for i in 0..n.div_ceil(WORD) {
            // SAFETY: as above.
            let Some(words) = (unsafe { self.word(n, i) }) else { break };
            // Another thread may write to the sets meanwhile: no more than were counted.
            for ((fd, events), place) in words.wanted().zip(&mut places) {
                let open = if is_ours(fd) { OPEN } else { 0 };
                *place = pollfd { fd, events: events | open, revents: 0 };
            }
        }
        Some(fds)
    }

    /// Writes the answers of a poll(2) into the sets; how many bits are set.
    ///
    /// # Safety
    /// As for [`Sets::fds`].
    pub(crate) unsafe fn write_answers(self, n: c_int, fds: &[pollfd]) -> Result<usize, Errno> {
        if fds.iter().any(|p| p.revents & POLLNVAL != 0 && p.events & OPEN == 0) {
            return Err(Errno::BADF);
        }
        let mut bits = 0;
        let answers = [(self.read, READ), (self.write, WRITE), (self.except, EXCEPT)];
        for (set, wish) in answers.into_iter().filter(|(set, _)| !set.is_null()) {
            for i in 0..(n as usize).div_ceil(WORD) {
                let inside = |p: &&pollfd| p.fd >= 0 && p.fd as usize / WORD == i;
                let word = fds
                    .iter()
                    .filter(inside)
                    .filter(|p| has_bit(p, wish))
                    .fold(0, |word, p| word | 1 << (p.fd as usize % WORD));
                bits += usize::count_ones(word) as usize;
                // SAFETY: the caller's contract.
                if !unsafe { fault::write(set.cast::<usize>().wrapping_add(i), word) } {
                    return Err(Errno::FAULT);
                }
            }
        }
        Ok(bits)
    }
}
