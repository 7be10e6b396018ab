//! Streams to hosts of other sites: the socket is connected by this host's daemon, as those of unmodified programs are
//! (`daemon/src/local/park.rs`), and is one as any other then. A daemon that is killed resets it.

use std::sync::Arc;

use madrigal_base::error::ConnectError;
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{Connection, Pending, Signal};
use madrigal_proto::reach::End;
use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use rustix::net::{AddressFamily, sockopt};

use super::ends::connection;
use super::sites::{Ask, Sites};
use super::socket::{Socket, os, peer_of, socket};

/// An attempt under way.
pub(super) struct ByDaemon {
    socket: Arc<Socket>,
    to: Locator,
    /// On which the daemon tells why not.
    told: Fd,
}

impl ByDaemon {
    /// Begins to have the daemon connect to a port of a host. Nothing: there is no daemon.
    pub(super) fn begin(sites: &Sites, host: (&str, u16), to: &Locator) -> Result<Option<Self>, ConnectError> {
        let failed = |errno| ConnectError::System { to: to.clone(), os: os(errno) };
        let socket = socket(AddressFamily::INET).map_err(failed)?;
        let (at, told) = match sites.route(&socket, host, &to.address().to_string()) {
            Ok(route) => route,
            Err(End::NoDaemon) => return Ok(None),
            // Many connect at once.
            Err(End::System(os)) if os.0 == Errno::AGAIN.raw_os_error() => {
                return Err(ConnectError::Busy { to: to.clone() });
            }
            Err(End::System(os)) => return Err(ConnectError::System { to: to.clone(), os }),
            Err(other) => return Err(no_path(to, reason(other))),
        };
        match rustix::net::connect(&socket, &at) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
        Ok(Some(Self { socket: Socket::new(socket), to: to.clone(), told }))
    }

    /// Why the daemon did not connect the socket.
    fn why(&self, errno: Errno) -> ConnectError {
        // First that it tries to, then why it cannot.
        let told = Ask::default().handle(&self.told).and_then(|_| Ask::default().handle(&self.told));
        match told {
            Err(end) => no_path(&self.to, reason(end)),
            Ok(_) => ConnectError::System { to: self.to.clone(), os: os(errno) },
        }
    }
}

impl Pending for ByDaemon {
    fn poll(&mut self) -> Result<Option<Connection>, ConnectError> {
        let error = sockopt::socket_error(&self.socket.fd).and_then(|error| error);
        error.map_err(|errno| self.why(errno))?;
        Ok(peer_of(&self.socket.fd).map(|_| connection(Arc::clone(&self.socket), self.to.clone())))
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.socket) as Arc<dyn Signal>
    }
}

/// There is no way there, in the daemon's words.
fn no_path(to: &Locator, why: String) -> ConnectError {
    ConnectError::NoPath { to: to.to_string(), why }
}

fn reason(end: End) -> String {
    match end {
        End::System(os) => format!("the daemon cannot be asked: {os}"),
        End::Refused(why) => format!("by the daemon of this host: {why}"),
        End::NoDaemon => "no daemon of yours is up".to_owned(),
        End::Closed => "the daemon of this host went away".to_owned(),
    }
}
