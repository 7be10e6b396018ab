//! The mailboxes of a process: where they are opened, and turned.

use std::sync::Arc;

use madrigal_sys::time;

use super::calls::MOST_PLACES;
use super::error::{MailError, check_name};
use super::header::{Held, Load};
use super::hub::Hub;
use super::receive::Mailbox;
use super::state::State;
use crate::Worker;
use crate::filing::Filing;
use crate::ports::PortAddress;
use crate::worker::OpenError;

/// Bytes of data that a process has for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of its own, until the last receiver has them: who puts more waits. One message may have more, alone.
    pub own: u64,
    /// Of messages to it that were to lie at the receiver: the data of further ones stay at their senders until they are got.
    pub received: u64,
}

impl Default for Limits {
    /// A gibibyte each.
    fn default() -> Self {
        Self { own: 1 << 30, received: 1 << 30 }
    }
}

/// The mailboxes of a process, over an endpoint of its own. Clones are the same. When the last one is dropped, and its mailboxes, the data that
/// lie here are gone: who still wants them is told.
#[derive(Clone)]
pub struct Mailboxes {
    hub: Arc<Hub>,
}

impl Mailboxes {
    /// Opens them; there is none yet. Does not block.
    pub fn open(worker: &Arc<Worker>) -> Result<Self, OpenError> {
        Self::open_with(worker, Limits::default())
    }

    /// As [`Mailboxes::open`], with other limits.
    pub fn open_with(worker: &Arc<Worker>, limits: Limits) -> Result<Self, OpenError> {
        let filing = Filing::new(worker.endpoint(worker.space())?);
        Ok(Self { hub: Arc::new(Hub::new(filing, State::new(limits.own, limits.received))) })
    }

    /// A mailbox of that name, with so many places for each sender and each kind of message (1 to 65536). Others can put messages there as
    /// soon as this returns.
    pub fn mailbox(&self, name: &str, places: u32) -> Result<Mailbox, MailError> {
        check_name(name)?;
        if !(1..=MOST_PLACES).contains(&places) {
            return Err(MailError::Places(places));
        }
        Mailbox::open(Arc::clone(&self.hub), name, places)
    }

    /// Offers so many bytes of memory for data of messages between others. What is there stays where it becomes less.
    pub fn offer(&self, bytes: u64) {
        self.hub.lock().store.offer(bytes);
    }

    /// The process of that mailbox offers memory, as far as is known: messages whose data are to lie elsewhere may use it.
    pub fn add_store(&self, address: &PortAddress) {
        self.hub.add_store(address);
    }

    /// The processes that are known to offer memory, and their loads as these were told last.
    pub fn loads(&self) -> Vec<(PortAddress, Load)> {
        self.hub.lock().loads()
    }

    /// What lies here.
    pub fn held(&self) -> Held {
        let state = self.hub.lock();
        Held { own: state.store.own().0, received: state.received, offered: state.store.load().held }
    }

    /// Does what is due: calls of others, data that they fetch. Waits for something to do until `deadline` (nanoseconds of the monotonic
    /// clock), or until all is closed.
    pub fn turn(&self, deadline: Option<u64>) {
        let waits = || !self.hub.is_shut() && deadline.is_none_or(|deadline| time::now_ns() < deadline);
        while self.hub.handle() == 0 && waits() {
            self.hub.filing.endpoint().worker().idle();
        }
    }

    /// Waits until what was sent has left this process, and its own data were read by all who hold them or are gone. False: `deadline` passed.
    pub fn flush(&self, deadline: Option<u64>) -> bool {
        let is_read =
            |state: &mut State| state.owed.is_empty() && state.sending.is_empty() && state.store.own_is_empty();
        let read = self.hub.until(deadline, |state| Ok(is_read(state).then_some(())));
        matches!(read, Ok(Some(()))) && self.hub.filing.endpoint().worker().flush(deadline)
    }

    /// Threads that wait return with [`MailError::Closed`], now and from now on.
    pub fn close(&self) {
        self.hub.shut();
    }
}
