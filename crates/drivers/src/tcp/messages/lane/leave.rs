//! The end of a connection whose port goes: what was taken still arrives.

use std::os::fd::AsRawFd as _;

use madrigal_sys::{Errno, raw};

use super::{AT_ONCE, Lane};

impl Lane {
    /// For the end: sends what was taken, sends the close, and drops what will not be read. Whether the peer has everything.
    pub(in super::super) fn leave(&mut self, closed: &mut bool) -> bool {
        self.full = false;
        if !*closed {
            self.send_close();
        }
        if !self.flush() && self.broken.is_none() {
            return false;
        }
        if !*closed {
            *closed = true;
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
        }
        let fd = self.socket.as_raw_fd();
        // Closing with bytes unread would reset the connection, and what is on its way to the peer would be lost.
        let unread = loop {
            match raw::discard(fd, AT_ONCE) {
                Ok(0) => break false,
                Ok(_) => {}
                Err(Errno::AGAIN) => break true,
                Err(_) => return true,
            }
        };
        !unread || raw::ioctl_int(fd, SIOCOUTQ).map_or(true, |left| left == 0)
    }
}

/// How many bytes of a socket are not acknowledged (tcp(7)).
const SIOCOUTQ: u64 = 0x5411;
