//! The listening socket of a process.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use madrigal_base::network::Network;
use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use rustix::net::{SocketFlags, sockopt};

use super::super::socket::os;
use super::super::{family, own, socket};
use super::flow;

/// Connections the kernel queues until they are accepted (listen(2) lowers it to the system's limit).
const BACKLOG: i32 = 4096;
/// A peer whose bytes are not acknowledged for so long is cut off.
const CUT_OFF: Duration = Duration::from_secs(20);
/// A peer that has been quiet for so long is probed, and then so often.
const QUIET: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_secs(3);
const ASK_TIMES: u32 = 4;

/// A listening socket.
pub(super) struct Listener {
    /// The socket.
    pub(super) fd: Fd,
    /// Its port.
    pub(super) port: u16,
    /// Only IPv4 comes in.
    pub(super) v4_only: bool,
}

impl Listener {
    /// Listens on every address, of both families where there are both, at a port the user allows.
    pub(super) fn open(network: &Network) -> Result<Self, String> {
        let mut last = Errno::ADDRINUSE;
        for port in network.ports.search(madrigal_sys::process::random()) {
            match Self::at(port) {
                Ok(listener) => return Ok(listener),
                Err(errno) => last = errno,
            }
        }
        let whence = if network.ports.ranges().is_empty() { "" } else { " at any port that MADRIGAL_PORTS allows" };
        Err(format!("cannot listen{whence}: {}", os(last)))
    }

    fn at(port: u16) -> Result<Self, Errno> {
        let both = Self::bound(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
        match both {
            Err(Errno::ADDRINUSE | Errno::ACCESS) => both,
            Err(_) => Self::bound(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
            Ok(listener) => Ok(listener),
        }
    }

    fn bound(at: SocketAddr) -> Result<Self, Errno> {
        let fd = socket(family(at))?;
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, false)?;
        }
        sockopt::set_socket_reuseaddr(&fd, true)?;
        // Accepted connections inherit the congestion control.
        flow::begin(&fd);
        rustix::net::bind(&fd, &at)?;
        rustix::net::listen(&fd, BACKLOG)?;
        let port = own(&fd).ok_or(Errno::INVAL)?.port();
        Ok(Self { fd, port, v4_only: at.is_ipv4() })
    }

    /// The next accepted connection; `None`: there is none.
    pub(super) fn accept(&self) -> Result<Option<Fd>, Errno> {
        loop {
            match rustix::net::accept_with(&self.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(fd) => return Ok(Some(prepared(Fd::from(fd)))),
                Err(Errno::AGAIN) => return Ok(None),
                // Too many descriptors or no memory: the connection waits.
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => return Err(errno),
                // An attempt that failed on the way (accept(2), "Error handling"): the next one.
                Err(_) => {}
            }
        }
    }
}

/// Begins to connect.
pub(super) fn dial(to: SocketAddr) -> Result<Fd, Errno> {
    let fd = prepared(socket(family(to))?);
    flow::begin(&fd);
    match rustix::net::connect(&fd, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

/// A socket that sends at once and notices a peer that was cut off. Without these options everything works, only not as well.
fn prepared(fd: Fd) -> Fd {
    let _ = sockopt::set_tcp_nodelay(&fd, true);
    let _ = sockopt::set_socket_keepalive(&fd, true);
    let _ = sockopt::set_tcp_keepidle(&fd, QUIET);
    let _ = sockopt::set_tcp_keepintvl(&fd, ASK_AGAIN);
    let _ = sockopt::set_tcp_keepcnt(&fd, ASK_TIMES);
    let _ = sockopt::set_tcp_user_timeout(&fd, CUT_OFF.as_millis() as u32);
    fd
}
