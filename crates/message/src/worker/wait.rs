//! How a worker waits.

use std::os::fd::{AsRawFd, RawFd};

use madrigal_sys::{raw, time};

use super::answers::Polls;
use super::idle::{Next, POLLS};
use super::state::{Node, NodeState};
use super::{Core, Worker};
use crate::endpoint::state::Awaited;

/// Nodes that no receive waits for are sought, too, as long as there are no more links than this.
const FEW: usize = 64;
/// Ports whose descriptors are polled. Further ports are polled after each sleep.
const MAX_PORTS: usize = 8;
impl Worker {
    /// Call it after a poll that found nothing and before the next one: spins, yields or sleeps as is best for all. True: [`Worker::lost`]
    /// has something to report.
    #[inline]
    pub fn idle(&self) -> bool {
        self.wait_once(false)
    }

    /// The same before a return to a program that polls again, and may give the processor away itself.
    #[inline]
    pub fn rest(&self) -> bool {
        self.wait_once(true)
    }

    /// To be called after a poll that found nothing, before a return to a caller that may do much before its next poll. `Some`: an answer
    /// to what was just sent may come so soon that it is worth to keep polling.
    #[inline]
    pub fn expects(&self) -> Option<Polls<'_>> {
        if !self.idle.answers.are_expected() {
            return None;
        }
        if self.policy.was_contended() || self.idle.is_crowded() {
            // A caller that never waits for long would never notice that the others are gone.
            if self.idle.answers.is_time_to_ask() {
                self.idle.read_load(&self.policy, time::now_ns());
            }
            return None;
        }
        if self.policy.max_spin_ns() > 0 { self.idle.answers.polls() } else { None }
    }

    #[inline]
    fn wait_once(&self, caller: bool) -> bool {
        match self.idle.next(&self.policy) {
            Next::Poll => {
                core::hint::spin_loop();
                return false;
            }
            Next::Yield => {
                self.idle.step_aside(caller);
                return false;
            }
            Next::Sleep(ns) => self.sleep(ns),
            Next::Seek(ns, all) => {
                self.core().seek(all);
                self.sleep(ns);
            }
        }
        !self.core().state.lost.is_empty()
    }

    /// Makes progress until something came or `deadline` (nanoseconds of the monotonic clock) passed. True: something came.
    pub fn wait(&self, deadline: Option<u64>) -> bool {
        let mut polls = 0u32;
        loop {
            if self.progress() > 0 {
                return true;
            }
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS) && deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
                return false;
            }
            self.idle();
        }
    }

    /// Makes progress until a port has taken everything that waits to be sent, or `deadline` passed. True: everything was taken.
    pub fn flush(&self, deadline: Option<u64>) -> bool {
        loop {
            self.progress();
            if self.core().state.nodes.iter().all(|node| node.out.is_clear()) {
                return true;
            }
            if deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
                return false;
            }
            self.idle();
        }
    }

    /// The descriptors of the ports, for callers that sleep by other means: the same ones while the worker lives, and one more for each stack
    /// that is asked for ([`Worker::stacked`]).
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.core().ports.iter().filter_map(|slot| slot.port.descriptor().map(|fd| fd.as_raw_fd())).collect()
    }

    /// Arms the ports. `None`: there is something to do first. Else the caller may sleep until one of the descriptors is readable, at most
    /// until the time returned (nanoseconds of the monotonic clock), and must then call [`Worker::woken`].
    pub fn arm(&self) -> Option<u64> {
        let mut core = self.core();
        core.seek(false);
        core.arm(&mut [])
    }

    /// Ends that.
    pub fn woken(&self) {
        self.core().ports.iter_mut().for_each(|slot| slot.port.woken());
    }

    /// Sleeps until a port rings, at most `ns` nanoseconds.
    #[cold]
    fn sleep(&self, ns: u64) {
        let mut fds = [-1; MAX_PORTS];
        let until = time::now_ns() + ns;
        let until = {
            let mut core = self.core();
            match core.arm(&mut fds) {
                Some(deadline) => deadline.min(until),
                None => return,
            }
        };
        raw::wait_readable(&fds, until.saturating_sub(time::now_ns()));
        self.idle.awake();
        self.woken();
    }
}

impl Core {
    /// Nothing came for long. Nodes that a receive waits for may be unable to reach us, so they are sought from here too. Only a sender
    /// needs a way, so it is no failure if none is found. But if no driver takes a node, nothing comes from there either: then a receive
    /// for that node alone fails. After a long time other nodes are sought as well (`all`): the peer of a receive may wait for another
    /// node, which waits for us.
    #[cold]
    fn seek(&mut self, all: bool) {
        let (nodes, me) = (&self.state.nodes, self.id);
        // A node does not seek itself: that would only keep it awake.
        let open = |node: &Node| node.state == NodeState::None && node.address.is_some() && node.id != me;
        if !nodes.iter().any(open) {
            return;
        }
        let mut wanted = vec![Awaited::No; nodes.len()];
        for endpoint in self.state.endpoints.iter().flatten() {
            endpoint.awaited(&mut |node, how| wanted[node as usize] = how.max(wanted[node as usize]));
        }
        let mut linked = nodes.iter().filter(|node| node.state != NodeState::None).count();
        for (node, wanted) in wanted.into_iter().enumerate() {
            let few = all && linked < FEW;
            let to = &self.state.nodes[node];
            if wanted == Awaited::No && !few || !open(to) || !to.out.is_clear() {
                continue;
            }
            linked += 1;
            let untried = to.tried == 0;
            let tried = self.link(node as u32);
            let to = &mut self.state.nodes[node];
            match tried {
                Ok(()) => to.sought = matches!(to.state, NodeState::Linking { .. }),
                Err(why) if untried && wanted == Awaited::Itself => self.state.fail(node as u32, why),
                Err(_) => to.try_anew(),
            }
        }
    }

    /// Arms every port. `None`: there is something to do; else the earliest time one of them must be polled.
    fn arm(&mut self, fds: &mut [i32]) -> Option<u64> {
        // Requested messages may have to be copied soon.
        if !(self.state.pulls.is_empty() && self.state.asked.is_empty() && self.state.pending.is_empty()) {
            return None;
        }
        let mut deadline = u64::MAX;
        for (i, slot) in self.ports.iter_mut().enumerate() {
            if slot.port.arm() {
                return None;
            }
            deadline = deadline.min(slot.port.deadline().unwrap_or(u64::MAX));
            if let (Some(fd), Some(place)) = (slot.port.descriptor(), fds.get_mut(i)) {
                *place = fd.as_raw_fd();
            }
        }
        Some(deadline)
    }
}
