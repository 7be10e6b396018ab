//! Streams over UDP as a driver: whatever uses a driver can have them, and stacks of adapters above them.

use std::net::SocketAddr;
use std::sync::Arc;

use madrigal_base::error::{AcceptError, ConnectError, ListenError, Os};
use madrigal_base::ids::Reach;
use madrigal_base::locator::{Address, Locator};
use madrigal_identity::Credentials;
use madrigal_progress::driver::{Connecting, Connection, Driver, Facts, Listener, Pending, Place, Signal};
use madrigal_progress::engine::{Class, Engine};
use madrigal_sys::Errno;

use crate::ends;
use crate::link::{PATIENCE, State, Why};
use crate::port::{NAME, Port};
use crate::traffic::Id;
use crate::what::What;

const TAKES: &str = "vrp/udp://ADDRESS:PORT with a numeric address";

/// Links over UDP, of what they carry, between ends with certificates of one grid.
#[derive(Clone)]
pub struct Udp {
    pub(crate) engine: Arc<Engine>,
    credentials: Credentials,
    what: What,
}

impl Udp {
    /// Links that carry that, by that engine. This end shows these certificates, and lets in whom they admit.
    pub fn new(engine: &Arc<Engine>, credentials: Credentials, what: What) -> Self {
        Self { engine: Arc::clone(engine), credentials, what }
    }

    fn class(&self) -> Class {
        self.engine.class(NAME)
    }

    pub(crate) fn port_at(&self, at: &Locator) -> Result<Arc<Port>, ListenError> {
        let address = inet(at).ok_or_else(|| ListenError::BadAddress { at: at.clone(), takes: TAKES })?;
        let made = Port::listen((&self.engine, self.class()), &self.credentials, &self.what, address);
        made.map_err(|errno| match errno {
            Errno::ADDRINUSE => ListenError::InUse { at: at.clone() },
            errno => ListenError::System { at: at.clone(), os: os(errno) },
        })
    }

    pub(crate) fn begin(&self, to: &Locator) -> Result<Attempt, ConnectError> {
        let address = inet(to).ok_or_else(|| ConnectError::BadAddress { to: to.clone(), takes: TAKES })?;
        let made = Port::dial((&self.engine, self.class()), &self.credentials, &self.what, address);
        let (port, id) = made.map_err(|errno| match errno {
            Errno::CONNREFUSED => ConnectError::Refused { to: to.clone() },
            errno => ConnectError::System { to: to.clone(), os: os(errno) },
        })?;
        Ok(Attempt { port, id, to: to.clone(), kept: false })
    }
}

impl Driver for Udp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn facts(&self) -> Facts {
        Facts { reach: Reach::Network, one_user: false, takes: TAKES }
    }

    fn usable(&self, _place: &Place) -> Result<(), String> {
        Ok(())
    }

    fn address_for(&self, _name: &str) -> Option<Locator> {
        Some(Locator::inet(NAME, SocketAddr::from(([127, 0, 0, 1], 0))))
    }

    fn listen(&self, at: &Locator, _place: &Place) -> Result<Box<dyn Listener>, ListenError> {
        let port = self.port_at(at)?;
        let inner = port.lock();
        let (at, bell) = (Locator::inet(NAME, inner.at()), inner.bell());
        drop(inner);
        let signal = bell.ok_or_else(|| ListenError::Unusable { at: at.clone(), why: "it does not listen".to_owned() });
        Ok(Box::new(UdpListener { signal: signal?, port, at }))
    }

    fn connect(&self, to: &Locator, _place: &Place) -> Result<Connecting, ConnectError> {
        let attempt = self.begin(to)?;
        let signal = attempt.port.lock().link(attempt.id).and_then(|link| link.bell());
        let signal = signal.ok_or_else(|| ConnectError::Refused { to: to.clone() })?;
        Ok(Connecting::Pending(Box::new(Dial { attempt, signal })))
    }
}

struct UdpListener {
    port: Arc<Port>,
    at: Locator,
    signal: Arc<dyn Signal>,
}

impl Listener for UdpListener {
    fn accept(&mut self) -> Result<Option<Connection>, AcceptError> {
        loop {
            let mut inner = self.port.lock();
            let Some(id) = inner.accept() else { return Ok(None) };
            let peer = inner.peer(id);
            drop(inner);
            // One whose connection has ended meanwhile is forgotten.
            let Some(peer) = peer else {
                self.port.abort(id);
                continue;
            };
            if let Some(connection) = ends::of(&self.port, id, Locator::inet(NAME, peer)) {
                return Ok(Some(connection));
            }
        }
    }

    fn locator(&self) -> &Locator {
        &self.at
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.signal)
    }
}

impl Drop for UdpListener {
    fn drop(&mut self) {
        self.port.stop();
    }
}

/// A link that is being made; dropped, it is given up, unless it was kept.
pub(crate) struct Attempt {
    pub(crate) port: Arc<Port>,
    pub(crate) id: Id,
    pub(crate) to: Locator,
    kept: bool,
}

impl Attempt {
    /// Whether there is a link; or why not.
    pub(crate) fn is_open(&self) -> Result<bool, ConnectError> {
        let (to, inner) = (self.to.clone(), self.port.lock());
        match inner.link(self.id).map(|link| &link.state) {
            Some(State::Open) => Ok(true),
            Some(State::Shaking | State::Greeting) => Ok(false),
            Some(State::Over(Why::Forbidden(why))) => {
                Err(ConnectError::NoPath { to: to.to_string(), why: why.clone() })
            }
            Some(State::Over(Why::Corrupt)) => {
                Err(ConnectError::NoPath { to: to.to_string(), why: NO_LINK.to_owned() })
            }
            Some(State::Over(Why::Silent)) => Err(ConnectError::TimedOut { to, waited_ms: PATIENCE / 1_000_000 }),
            Some(State::Over(Why::Refused | Why::Gone)) | None => Err(ConnectError::Refused { to }),
        }
    }

    /// It is somebody else's from now on.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }
}

/// What answers speaks QUIC, and no more.
const NO_LINK: &str = "what answers there is no link over UDP of this version";

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.kept {
            self.port.abort(self.id);
        }
    }
}

struct Dial {
    attempt: Attempt,
    signal: Arc<dyn Signal>,
}

impl Pending for Dial {
    fn poll(&mut self) -> Result<Option<Connection>, ConnectError> {
        if !self.attempt.is_open()? {
            return Ok(None);
        }
        let Attempt { port, id, to, .. } = &self.attempt;
        let connection = ends::of(port, *id, to.clone());
        self.attempt.keep();
        connection.map(Some).ok_or_else(|| ConnectError::Refused { to: self.attempt.to.clone() })
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.signal)
    }
}

fn inet(at: &Locator) -> Option<SocketAddr> {
    if let Address::Inet(address) = at.address() { Some(*address) } else { None }
}

fn os(errno: Errno) -> Os {
    Os(errno.raw_os_error())
}
