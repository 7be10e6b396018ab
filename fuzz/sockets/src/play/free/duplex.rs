//! Both directions at once by an event loop: sends all it has, half-closes, and receives until the end.

use core::sync::atomic::Ordering;

use madrigal_fuzz_sockets::op::Slot;
use madrigal_fuzz_sockets::pattern::{self, LANES};
use madrigal_fuzz_sockets::via::FreeWait;

use super::watch::{Ready, Watch};
use crate::context::{Answer, StepContext, count, ending};
use crate::{c, state};

struct Duplex {
    fd: i32,
    /// The stream that is sent, and the one that is received.
    streams: (u32, u32),
    /// Where the stream that is sent begins.
    begin: u64,
    len: usize,
    sent: usize,
    got: usize,
    positions: [u64; LANES],
    shut: bool,
}

/// Sends `len` bytes and receives until the end.
pub(super) fn run(context: &StepContext, slot: Slot, len: usize, wait: FreeWait, echo: bool) {
    let (fd, program) = (state::fd(slot), &state::state().program);
    if fd < 0 {
        // The process that should have connected was killed before.
        return context.keep(Answer { ret: -1, errno: libc::EBADF });
    }
    // SAFETY: no memory is passed.
    unsafe { c::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    let out = u32::from(program.out(slot));
    let incoming = if echo { out } else { u32::from(program.incoming(slot)) };
    let streams = &state::state().region.streams;
    let begin = streams[out as usize].sent[0].load(Ordering::SeqCst);
    let before = &streams[usize::from(program.incoming(slot))];
    let mut positions = [0; LANES];
    positions[0] = if echo { begin } else { before.got[0].load(Ordering::SeqCst) };
    let mut duplex = Duplex { fd, streams: (out, incoming), begin, len, sent: 0, got: 0, positions, shut: false };
    let mut watch = Watch::new(wait);
    watch.add(fd, 5, true, true);
    let end = loop {
        let mut end = None;
        for ready in watch.wait() {
            end = duplex.go_on(context, ready, &watch);
            watch.change(fd, true, duplex.sent < len);
        }
        if let Some(end) = end {
            break end;
        }
    };
    context.keep(Answer { ret: duplex.got as i64, errno: 0 });
    context.record.add(end);
    context.record.add(duplex.sent as u64);
}

impl Duplex {
    fn go_on(&mut self, context: &StepContext, ready: Ready, watch: &Watch) -> Option<u64> {
        if ready.output
            && let Err(end) = self.put(watch.is_edge())
        {
            return Some(end);
        }
        if self.sent == self.len && !self.shut {
            self.shut = true;
            // SAFETY: no memory is passed.
            unsafe { c::shutdown(self.fd, libc::SHUT_WR) };
        }
        if ready.input { self.take(context, watch.is_edge()) } else { None }
    }

    fn put(&mut self, all: bool) -> Result<(), u64> {
        let mut data = [0u8; 16384];
        while self.sent < self.len {
            let data = &mut data[..16384.min(self.len - self.sent)];
            pattern::fill(self.streams.0, 0, self.begin + self.sent as u64, data);
            // SAFETY: memory of our own.
            let put = count(|| unsafe { c::send(self.fd, data.as_ptr().cast(), data.len(), libc::MSG_NOSIGNAL) });
            match (put.ret, put.errno) {
                (-1, libc::EINTR) => {}
                (-1, libc::EAGAIN) => break,
                (-1, errno) => return Err(ending::ERROR + errno as u64),
                (n, _) => {
                    self.sent += n as usize;
                    if !all {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, context: &StepContext, all: bool) -> Option<u64> {
        let mut room = [0u8; 16384];
        loop {
            // SAFETY: memory of our own.
            let got = count(|| unsafe { c::recv(self.fd, room.as_mut_ptr().cast(), room.len(), 0) });
            match (got.ret, got.errno) {
                (0, _) => {
                    // What is still to be sent may go on.
                    return if self.shut { Some(ending::END) } else { self.rest() };
                }
                (-1, libc::EAGAIN | libc::EINTR) => return None,
                (-1, errno) => return Some(ending::ERROR + errno as u64),
                (n, _) => {
                    self.got += n as usize;
                    let wrong = pattern::first_wrong(self.streams.1, &mut self.positions, &room[..n as usize]);
                    if let Some(wrong) = wrong {
                        let _ = context.record.wrong.compare_exchange(
                            0,
                            wrong as u64 + 1,
                            Ordering::Relaxed,
                            Ordering::Relaxed,
                        );
                    }
                    if !all {
                        return None;
                    }
                }
            }
        }
    }

    /// The other end has half-closed first: the rest is sent without polling for input.
    fn rest(&mut self) -> Option<u64> {
        while self.sent < self.len {
            if let Err(end) = self.put(true) {
                return Some(end);
            }
            if self.sent < self.len {
                crate::loops::wait_for(self.fd, libc::POLLOUT);
            }
        }
        // SAFETY: no memory is passed.
        unsafe { c::shutdown(self.fd, libc::SHUT_WR) };
        self.shut = true;
        Some(ending::END)
    }
}
