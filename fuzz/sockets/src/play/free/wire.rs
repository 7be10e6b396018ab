//! A connection of a program that runs freely: what goes out and what must come are functions of one key.

use core::sync::atomic::Ordering;

use madrigal_fuzz_sockets::op::Memory;
use madrigal_fuzz_sockets::pattern::{self, LANES};
use madrigal_fuzz_sockets::via::{RecvVia, SendVia};

use crate::context::{StepContext, ending};
use crate::{loops, memory, receive, transmit};

/// An echo is at the other end: what was sent comes back.
pub(super) struct Wire {
    pub(super) fd: i32,
    key: u32,
    sent: u64,
    got: [u64; LANES],
}

impl Wire {
    /// A new connection's.
    pub(super) fn new(fd: i32, key: u32) -> Self {
        Self { fd, key, sent: 0, got: [0; LANES] }
    }

    /// The next bytes to send.
    pub(super) fn fill(&self, into: &mut [u8]) {
        pattern::fill(self.key, 0, self.sent, into);
    }

    /// So many were sent.
    pub(super) fn sent(&mut self, n: usize) {
        self.sent += n as u64;
    }

    /// Compares what came with what must.
    pub(super) fn check(&mut self, context: &StepContext, data: &[u8]) {
        if let Some(wrong) = pattern::first_wrong(self.key, &mut self.got, data)
            && context.record.wrong.load(Ordering::Relaxed) == 0
        {
            context.record.wrong.store(wrong as u64 + 1, Ordering::Relaxed);
            context.record.bytes.store(data.len() as u64, Ordering::Relaxed);
        }
    }

    /// Sends `len` bytes; else how it ended.
    pub(super) fn send_all(&mut self, context: &StepContext, len: usize, via: SendVia) -> Result<(), u64> {
        let mut left = len;
        while left > 0 {
            let place = memory::place(Memory::Good, left);
            self.fill(place.bytes());
            match transmit::bytes(context, self.fd, place, via) {
                Ok(n) => {
                    self.sent(n);
                    left -= n;
                }
                Err(libc::EAGAIN) => loops::wait_for(self.fd, libc::POLLOUT),
                Err(libc::EINTR) => {}
                Err(errno) => return Err(ending::ERROR + errno as u64),
            }
        }
        Ok(())
    }

    /// Receives `len` bytes; else how it ended.
    pub(super) fn recv_all(&mut self, context: &StepContext, len: usize, via: RecvVia) -> Result<(), u64> {
        let mut left = len;
        while left > 0 {
            match receive::some(context, self.fd, left, via, 0) {
                Ok([]) => return Err(ending::END),
                Ok(data) => {
                    left -= data.len();
                    self.check(context, data);
                }
                Err(libc::EAGAIN) => loops::wait_for(self.fd, libc::POLLIN),
                Err(libc::EINTR) => {}
                Err(errno) => return Err(ending::ERROR + errno as u64),
            }
        }
        Ok(())
    }
}

/// Sends these bytes; else how it ended.
pub(super) fn send_bytes(context: &StepContext, fd: i32, data: &mut [u8], via: SendVia) -> Result<(), u64> {
    let mut at = 0;
    while at < data.len() {
        let rest = &mut data[at..];
        let place = memory::Place { at: rest.as_mut_ptr(), good: rest.len() };
        match transmit::bytes(context, fd, place, via) {
            Ok(n) => at += n,
            Err(libc::EAGAIN) => loops::wait_for(fd, libc::POLLOUT),
            Err(libc::EINTR) => {}
            Err(errno) => return Err(ending::ERROR + errno as u64),
        }
    }
    Ok(())
}

/// Sends what comes back, until the end; how it ended.
pub(super) fn echo(context: &StepContext, fd: i32, via: (SendVia, RecvVia)) -> u64 {
    loop {
        match receive::some(context, fd, 65536, via.1, 0) {
            Ok([]) => return ending::END,
            Ok(data) => {
                if let Err(end) = send_bytes(context, fd, &mut data.to_vec(), via.0) {
                    return end;
                }
            }
            Err(libc::EAGAIN) => loops::wait_for(fd, libc::POLLIN),
            Err(libc::EINTR) => {}
            Err(errno) => return ending::ERROR + errno as u64,
        }
    }
}
