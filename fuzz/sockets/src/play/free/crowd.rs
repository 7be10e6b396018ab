//! An event loop with many connections at a time: each asks, checks the answer, and asks again.

use libc::c_int;
use madrigal_fuzz_sockets::op::Op;
use madrigal_fuzz_sockets::rng::Rng;

use super::churn::{key, request};
use super::watch::{Ready, Watch};
use super::wire::Wire;
use crate::context::{Answer, StepContext, count, ending};
use crate::{c, connections, state};

/// One connection.
struct Asker {
    wire: Wire,
    /// Bytes of this request that are still to be sent, and of its answer still to come.
    out: usize,
    back: usize,
    /// Requests still to be made.
    left: u16,
    /// It has half-closed, and waits for the end.
    closing: bool,
}

/// Makes `conns` connections and all their requests.
pub(super) fn run(context: &StepContext, op: &Op) {
    let Op::Crowd { to, conns, requests, size, wait } = *op else { return };
    let mut rng = Rng::new(state::state().program.seed ^ context.step as u64);
    let mut watch = Watch::new(wait);
    let mut askers = Vec::new();
    for conn in 0..conns {
        match connections::dial(to, true) {
            Ok(fd) => {
                watch.add(fd, askers.len() as u64, true, true);
                let wire = Wire::new(fd, key(context, conn));
                askers.push(Some(Asker { wire, out: 0, back: 0, left: requests, closing: false }));
            }
            Err(errno) => context.record.add(ending::ERROR + errno as u64),
        }
    }
    let (mut over, mut sum) = (0, 0);
    while over < askers.len() {
        for ready in watch.wait() {
            let Some(place) = askers.get_mut(ready.token as usize) else { continue };
            let Some(asker) = place else { continue };
            if let Some(end) = asker.go_on(context, ready, &mut watch, &mut || request(&mut rng, size), &mut sum) {
                if end != ending::END {
                    context.record.add(end);
                }
                watch.remove(asker.wire.fd);
                // SAFETY: no memory is passed.
                unsafe { c::close(asker.wire.fd) };
                *place = None;
                over += 1;
            }
        }
    }
    context.keep(Answer { ret: over as i64, errno: 0 });
    context.record.add(u64::from(sum > 0));
}

impl Asker {
    /// Does what can be done now; how the connection ended, if it did.
    fn go_on(
        &mut self,
        context: &StepContext,
        ready: Ready,
        watch: &mut Watch,
        next: &mut dyn FnMut() -> usize,
        sum: &mut usize,
    ) -> Option<u64> {
        loop {
            if self.out == 0 && self.back == 0 && self.left > 0 {
                self.left -= 1;
                self.out = next();
                self.back = self.out;
                *sum += self.out;
            }
            if let Err(end) = self.put() {
                return Some(end);
            }
            if self.out == 0 && self.back == 0 && self.left == 0 && !self.closing {
                self.closing = true;
                // SAFETY: no memory is passed.
                unsafe { c::shutdown(self.wire.fd, libc::SHUT_WR) };
            }
            let before = self.back;
            if (ready.input || watch.is_edge())
                && let Some(end) = self.take(context, watch.is_edge())
            {
                return Some(end);
            }
            let answered = before > 0 && self.back == 0 && self.out == 0;
            if !answered {
                break;
            }
        }
        watch.change(self.wire.fd, true, self.out > 0);
        None
    }

    /// Sends what goes.
    fn put(&mut self) -> Result<(), u64> {
        while self.out > 0 {
            let mut data = vec![0; self.out];
            self.wire.fill(&mut data);
            // SAFETY: memory of our own.
            let put = count(|| unsafe { c::send(self.wire.fd, data.as_ptr().cast(), data.len(), libc::MSG_NOSIGNAL) });
            match (put.ret, put.errno) {
                (-1, libc::EINTR) => {}
                (-1, libc::EAGAIN) => break,
                (-1, errno) => return Err(ending::ERROR + errno as u64),
                (n, _) => {
                    self.wire.sent(n as usize);
                    self.out -= n as usize;
                }
            }
        }
        Ok(())
    }

    /// Takes what is there: once, or all.
    fn take(&mut self, context: &StepContext, all: bool) -> Option<u64> {
        let mut room = [0u8; 8192];
        loop {
            let (fd, at): (c_int, _) = (self.wire.fd, room.as_mut_ptr());
            // SAFETY: memory of our own.
            let got = count(|| unsafe { c::recv(fd, at.cast(), room.len(), 0) });
            match (got.ret, got.errno) {
                (0, _) if self.closing => return Some(ending::END),
                // An end that comes too early.
                (0, _) => return Some(ending::EMPTY),
                (-1, libc::EAGAIN | libc::EINTR) => return None,
                (-1, errno) => return Some(ending::ERROR + errno as u64),
                (n, _) => {
                    self.wire.check(context, &room[..n as usize]);
                    self.back = self.back.saturating_sub(n as usize);
                    if !all {
                        return None;
                    }
                }
            }
        }
    }
}
