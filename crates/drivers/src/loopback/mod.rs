//! The `loopback` driver: packets inside one process, between its threads or between its parts.
//!
//! Each direction is a bounded queue of packets; a name is known to the whole process. Buffers of small packets are used again, so
//! a steady exchange allocates nothing, and an idle connection holds no packet.

mod lock;
mod messages;
mod pipe;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};

use madrigal_base::error::{AcceptError, ConnectError, ListenError, Os};
use madrigal_base::ids::Reach;
use madrigal_base::locator::{Address, Locator};
use madrigal_progress::bell::Bell;
use madrigal_progress::driver::{Connecting, Connection, Driver, Ends, Facts, Listener, Place, Signal};
use madrigal_sys::Errno;

use lock::lock;

/// The driver.
pub(crate) struct Loopback;

const NAME: &str = "loopback";
const TAKES: &str = "loopback://NAME";
/// Connections that may wait to be accepted.
const BACKLOG: usize = 4096;

impl Driver for Loopback {
    fn name(&self) -> &'static str {
        NAME
    }

    fn facts(&self) -> Facts {
        Facts { reach: Reach::Process, one_user: true, takes: TAKES }
    }

    fn usable(&self, _place: &Place) -> Result<(), String> {
        Ok(())
    }

    fn address_for(&self, name: &str) -> Option<Locator> {
        Locator::name(NAME, name).ok()
    }

    fn listen(&self, at: &Locator, _place: &Place) -> Result<Box<dyn Listener>, ListenError> {
        let Address::Name(name) = at.address() else {
            return Err(ListenError::BadAddress { at: at.clone(), takes: TAKES });
        };
        let bell = Bell::new().map_err(|errno| ListenError::System { at: at.clone(), os: os(errno) })?;
        let queue = Arc::new(AcceptQueue { bell: Arc::new(bell), waiting: Mutex::new(Some(VecDeque::new())) });
        let mut listeners = lock(listeners());
        if listeners.contains_key(name) {
            return Err(ListenError::InUse { at: at.clone() });
        }
        listeners.insert(name.clone(), Arc::clone(&queue));
        Ok(Box::new(LoopbackListener { queue, at: at.clone(), name: name.clone() }))
    }

    fn connect(&self, to: &Locator, _place: &Place) -> Result<Connecting, ConnectError> {
        let Address::Name(name) = to.address() else {
            return Err(ConnectError::BadAddress { to: to.clone(), takes: TAKES });
        };
        let queue = lock(listeners()).get(name).cloned().ok_or_else(|| ConnectError::Refused { to: to.clone() })?;
        let (near, far) = pair(to).map_err(|errno| ConnectError::System { to: to.clone(), os: os(errno) })?;
        let mut waiting = lock(&queue.waiting);
        match &mut *waiting {
            None => return Err(ConnectError::Refused { to: to.clone() }),
            Some(queue) if queue.len() >= BACKLOG => return Err(ConnectError::Busy { to: to.clone() }),
            Some(queue) => queue.push_back(far),
        }
        queue.bell.ring();
        Ok(Connecting::Done(near))
    }
}

/// Where connections to one name wait to be accepted; `None` once the listener is gone.
struct AcceptQueue {
    bell: Arc<Bell>,
    waiting: Mutex<Option<VecDeque<Connection>>>,
}

/// The names of this process.
fn listeners() -> &'static Mutex<HashMap<String, Arc<AcceptQueue>>> {
    static LISTENERS: OnceLock<Mutex<HashMap<String, Arc<AcceptQueue>>>> = OnceLock::new();
    LISTENERS.get_or_init(Mutex::default)
}

struct LoopbackListener {
    queue: Arc<AcceptQueue>,
    at: Locator,
    name: String,
}

impl Listener for LoopbackListener {
    fn accept(&mut self) -> Result<Option<Connection>, AcceptError> {
        Ok(lock(&self.queue.waiting).as_mut().and_then(VecDeque::pop_front))
    }

    fn locator(&self) -> &Locator {
        &self.at
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.queue.bell) as Arc<dyn Signal>
    }
}

impl Drop for LoopbackListener {
    fn drop(&mut self) {
        lock(listeners()).remove(&self.name);
        let refused = lock(&self.queue.waiting).take();
        drop(refused);
    }
}

/// The two endpoints of a new connection: the connecting one, the accepted one.
fn pair(name: &Locator) -> Result<(Connection, Connection), Errno> {
    let (near, far) = (Arc::new(Bell::new()?), Arc::new(Bell::new()?));
    let [near_ends, far_ends] = pipe::pair(&near, &far, name);
    let end = |(rx, tx), signal: Arc<Bell>| Connection {
        ends: Ends::Packets(Box::new(rx), Box::new(tx)),
        signal,
        local: name.clone(),
        peer: name.clone(),
    };
    Ok((end(near_ends, near), end(far_ends, far)))
}

fn os(errno: Errno) -> Os {
    Os(errno.raw_os_error())
}
