//! Long messages on a host: whether the sender puts them through the rings, or the receiver copies them out of its memory.
//!
//! Through a ring one process writes while the other reads, and the data stays in their caches. A copy is a system call that looks up every
//! page, but it needs no help of the sender. So the receiver requests the bytes, unless there are so many that the copy is faster, or the
//! sender is likely not to run now. If nothing comes for a while it copies them after all. A sender that got a request keeps the message
//! where it is until it receives the end.

use madrigal_progress::message::{LinkIndex, SingleCopy};
use madrigal_report::ranks;
use madrigal_sys::time;

use super::Core;
use super::state::{Come, Does, Op, State, Take};
use crate::endpoint::wire::Ended;
use crate::slab::Key;

/// Messages of at least so many bytes are copied. For 1 MiB the rings by themselves are faster (45 to 70 us against
/// 114 to 132, docs/drivers/shm.md); beyond that the two were not compared.
pub(super) const COPY_FROM: usize = 4 << 20;
/// Bytes copied in one go, so that other traffic does not wait for longer.
const PULL: usize = 4 << 20;
/// If nothing came from a sender for so long (nanoseconds), it is not waited for.
const PATIENCE_NS: u64 = 30_000;
/// Polls that found nothing between two reads of the clock.
const POLLS: u32 = 16;

impl State {
    /// Gets what an operation takes, in the way that is likely to be the fastest. `near`: it may be copied.
    pub(crate) fn take_long(&mut self, key: Key, len: usize, near: bool) {
        if near && (len >= COPY_FROM || self.idle.is_crowded()) {
            self.pulls.push_back(key);
            return;
        }
        if near {
            self.asked.push_back((key, time::now_ns()));
        }
        self.ask_for(key);
    }

    /// Single copies were refused, and are not tried again with that node.
    #[cold]
    pub(crate) fn refused_copies(&mut self, node: u32) {
        self.nodes[node as usize].copies = false;
        self.stale.push(node);
    }

    /// Call it after a poll that found nothing, while requests are pending.
    #[inline]
    pub(crate) fn impatient(&mut self) {
        self.waits = self.waits.wrapping_add(1);
        if self.waits.is_multiple_of(POLLS) {
            self.overdue();
        }
    }

    /// Starts the copy of messages of which nothing came for long.
    #[cold]
    fn overdue(&mut self) {
        let now = time::now_ns();
        while let Some(&(key, since)) = self.asked.front() {
            let waits = self.take(key).is_some_and(|take| take.come == Come::Asked);
            if waits && now.saturating_sub(since) < PATIENCE_NS {
                return;
            }
            self.asked.pop_front();
            if waits {
                self.pulls.push_back(key);
            }
        }
    }

    /// What an operation takes.
    fn take(&mut self, key: Key) -> Option<&mut Take> {
        match &mut self.ops.get(key)?.does {
            Does::Take(take) => Some(take),
            _ => None,
        }
    }
}

impl Core {
    /// Pulls messages by rendezvous, a bounded number of bytes.
    #[cold]
    pub(super) fn pull(&mut self) -> usize {
        let mut left = PULL;
        let mut count = 0;
        while left > 0
            && let Some(&key) = self.state.pulls.front()
        {
            count += 1;
            let (done, more) = self.pull_some(key, left).unwrap_or_default();
            left = left.saturating_sub(done);
            if !more {
                self.state.pulls.pop_front();
            }
        }
        count
    }

    /// Pulls some bytes of a message; how many, and whether more of it must be pulled.
    fn pull_some(&mut self, key: Key, most: usize) -> Option<(usize, bool)> {
        let Op { node, does: Does::Take(take), .. } = self.state.ops.get(key)? else { return None };
        if take.come == Come::Frames {
            // The sender was only late.
            return None;
        }
        let node = *node;
        let (local, len) = take.pieces.part(take.got, most.min(take.want - take.got), 64);
        let remote = remote_part(&take.remote, take.got, len);
        let local: Vec<_> = local.all().iter().map(|piece| (piece.at() as u64, piece.len())).collect();
        let (port, link) = take.via;
        match self.ports[port].port.pull(link, &remote, &local) {
            SingleCopy::Done => {
                take.come = Come::Copies;
                take.got += len;
                ranks::add(&self.state.nodes[node as usize].counters().copied_in, len as u64);
                if take.got < take.want {
                    return Some((len, true));
                }
                self.state.finish_take(key, Ended::Well);
            }
            SingleCopy::No => {
                let asked = take.come == Come::Asked;
                take.got = 0;
                self.state.refused_copies(node);
                if !asked {
                    self.state.ask_for(key);
                }
            }
            SingleCopy::Failed => self.state.finish_take(key, Ended::Failed),
        }
        Some((len, false))
    }
}

/// The part of remote pieces that begins behind `skip` bytes and has `len`.
fn remote_part(pieces: &[(u64, usize)], mut skip: usize, mut len: usize) -> Vec<(u64, usize)> {
    let mut part = Vec::with_capacity(pieces.len());
    for &(at, all) in pieces {
        let begin = skip.min(all);
        let now = len.min(all - begin);
        skip -= begin;
        len -= now;
        if now > 0 {
            part.push((at.wrapping_add(begin as u64), now));
        }
    }
    part
}

impl Take {
    /// Bytes for us of no rendezvous.
    pub(crate) fn asked(pieces: crate::memory::Pieces) -> Self {
        let want = pieces.len();
        let (remote, via) = (Vec::new(), (0, LinkIndex(0)));
        Self { pieces, want, got: 0, theirs: None, remote, via, many: None, come: Come::Asked }
    }
}

#[cfg(test)]
mod tests {
    use super::remote_part;

    #[test]
    fn parts_of_remote_pieces() {
        let pieces = [(100, 10), (200, 0), (300, 5)];
        assert_eq!(remote_part(&pieces, 0, 15), [(100, 10), (300, 5)]);
        assert_eq!(remote_part(&pieces, 4, 8), [(104, 6), (300, 2)]);
        assert_eq!(remote_part(&pieces, 12, 1), [(302, 1)]);
        assert_eq!(remote_part(&pieces, 15, 1), []);
    }
}
