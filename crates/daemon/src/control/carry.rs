//! `madrigal connect` and `madrigal link`: a connection on standard input and output.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::socket::{self, Recv};

/// Copies standard input to a connection, and the connection to standard output, until the connection has ended.
pub fn carry(socket: &OwnedFd) -> Result<(), Errno> {
    let (input, output) = (rustix::stdio::stdin(), rustix::stdio::stdout());
    let mut there = Direction::default();
    let mut back = Direction::default();
    while !back.is_over() {
        let readable = |way: &Direction| if way.has_room() { PollFlags::IN } else { PollFlags::empty() };
        let writable = |way: &Direction| if way.has_bytes() { PollFlags::OUT } else { PollFlags::empty() };
        // A descriptor without events is left out: poll(2) would report its hang-up again and again.
        let all = [
            (socket.as_fd(), readable(&back) | writable(&there)),
            (input, readable(&there)),
            (output, writable(&back)),
        ];
        let mut seen = [PollFlags::empty(); 3];
        let watched = all.iter().filter(|(_, what)| !what.is_empty());
        let mut polled: Vec<_> = watched.map(|(fd, what)| PollFd::from_borrowed_fd(*fd, *what)).collect();
        match poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let mut results = polled.iter().map(PollFd::revents);
        for (seen, (_, what)) in seen.iter_mut().zip(&all) {
            if !what.is_empty() {
                *seen = results.next().unwrap_or(PollFlags::empty());
            }
        }
        let [net, local, out] = seen;
        if there.has_room() && !local.is_empty() {
            there.fill(|buffer| rustix::io::read(input, buffer))?;
        }
        if there.has_bytes() && net.intersects(PollFlags::OUT | PollFlags::ERR | PollFlags::HUP) {
            there.empty(|bytes| socket::send(socket, bytes))?;
        }
        if there.take_end() {
            socket::shutdown_write(socket);
        }
        if back.has_room() && net.intersects(PollFlags::IN | PollFlags::ERR | PollFlags::HUP) {
            back.fill(|buffer| match socket::recv(socket, buffer)? {
                Recv::Bytes(count) => Ok(count),
                Recv::WouldBlock => Err(Errno::AGAIN),
                Recv::End => Ok(0),
            })?;
        }
        if back.has_bytes() && !out.is_empty() {
            back.empty(|bytes| rustix::io::write(output, bytes.get(..4096).unwrap_or(bytes)))?;
        }
        back.take_end();
    }
    Ok(())
}

/// One direction: what was read and is not written yet.
#[derive(Default)]
struct Direction {
    held: Vec<u8>,
    ended: bool,
    passed_on: bool,
}

impl Direction {
    fn has_room(&self) -> bool {
        self.held.is_empty() && !self.ended
    }

    fn has_bytes(&self) -> bool {
        !self.held.is_empty()
    }

    fn is_over(&self) -> bool {
        self.passed_on
    }

    /// Whether its end is to be passed on now. True once.
    fn take_end(&mut self) -> bool {
        self.ended && self.held.is_empty() && !std::mem::replace(&mut self.passed_on, true)
    }

    fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) -> Result<(), Errno> {
        let mut buffer = vec![0; 64 << 10];
        match read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(count) => {
                buffer.truncate(count);
                self.held = buffer;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    fn empty(&mut self, write: impl FnOnce(&[u8]) -> Result<usize, Errno>) -> Result<(), Errno> {
        match write(&self.held) {
            Ok(count) => drop(self.held.drain(..count)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }
}
