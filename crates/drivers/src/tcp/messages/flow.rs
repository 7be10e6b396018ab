//! How fast the kernel sends on a connection: on short ways as fast as it can, on long ones as the system wants.
//!
//! BBR paces: it spreads packets over the time that it estimates. That is right where queues on the path would overflow. But a path of some
//! microseconds is over before it has measured anything, and a long message waits for timers. So where the system would use BBR a
//! connection begins without it, and gets it once it is up if its round trip is long. Every other choice of the system stays. The choice
//! must be made before a connection is up: once BBR has begun to pace, the pacing stays.

use std::os::fd::AsRawFd as _;

use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, tcp};
use rustix::net::{AddressFamily, sockopt};

use super::super::socket::socket;

/// Round trips up to this are short, in microseconds: a room full of hosts, not a site far away.
const SHORT_WAY_US: u32 = 500;
/// What paces begins with this.
const PACING: &str = "bbr";
/// Those that do not pace, the better one first; every user may choose the second one.
const PLAIN: [&str; 2] = ["cubic", "reno"];

/// For a socket that will connect or listen.
pub(super) fn begin(socket: &Fd) {
    if paces(socket) {
        let _ = PLAIN.iter().find(|name| sockopt::set_tcp_congestion(socket, name).is_ok());
    }
}

/// For a connection that is up.
pub(super) fn settle(socket: &Fd) {
    // What is not known counts as long.
    settle_for(socket, tcp::info(socket.as_raw_fd()).map_or(u32::MAX, |info| info.min_rtt));
}

fn settle_for(socket: &Fd, round_trip_us: u32) {
    if round_trip_us > SHORT_WAY_US {
        let _ = restore(socket);
    }
}

/// Gives a connection the congestion control that it would have used without us.
fn restore(connection: &Fd) -> Result<(), Errno> {
    let usual = sockopt::tcp_congestion(socket(AddressFamily::INET)?)?;
    if usual.starts_with(PACING) {
        sockopt::set_tcp_congestion(connection, &usual)?;
    }
    Ok(())
}

fn paces(socket: &Fd) -> bool {
    sockopt::tcp_congestion(socket).is_ok_and(|name| name.starts_with(PACING))
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::tcp::own;

    /// Both ends of a connection that began as ours do.
    fn connection() -> (Fd, Fd) {
        let listener = socket(AddressFamily::INET).unwrap();
        begin(&listener);
        rustix::net::bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let dialled = socket(AddressFamily::INET).unwrap();
        begin(&dialled);
        let _ = rustix::net::connect(&dialled, &own(&listener).unwrap());
        loop {
            match rustix::net::accept(&listener) {
                Ok(accepted) => return (dialled, Fd::from(accepted)),
                Err(errno) => assert_eq!(errno, Errno::AGAIN),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn short_ways_are_not_paced() {
        let (dialled, accepted) = connection();
        for end in [&dialled, &accepted] {
            settle_for(end, SHORT_WAY_US);
            assert!(!paces(end));
        }
    }

    #[test]
    fn long_ways_get_what_the_system_has() {
        let usual = sockopt::tcp_congestion(socket(AddressFamily::INET).unwrap()).unwrap();
        let (dialled, accepted) = connection();
        for end in [&dialled, &accepted] {
            settle_for(end, SHORT_WAY_US + 1);
            assert_eq!(sockopt::tcp_congestion(end).unwrap(), usual);
        }
    }
}
