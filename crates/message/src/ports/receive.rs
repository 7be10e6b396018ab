//! Receive ports, and messages as they are read.

use std::sync::Arc;

use madrigal_base::node::NodeAddress;
use madrigal_sys::time;

use super::address::PortAddress;
use super::elements::{Element, Number, reorder};
use super::error::PortError;
use super::hub::Hub;
use super::kinds::PortType;
use super::state::{Arrived, Change, Found, ThrowAway};
use super::wire::{Front, Item, MOST_ALONE, bulk_tag};
use crate::endpoint::{Kind, Receive, Status};
use crate::memory::lend_mut;

/// Polls between two reads of the clock. A poll in vain may end in a sleep of some milliseconds.
const CLOCK_POLLS: u32 = 8;

/// A named port where messages arrive. Dropped, it is closed: its senders are told, and what they have sent is thrown away.
pub struct ReceivePort {
    hub: Arc<Hub>,
    number: u32,
    address: PortAddress,
}

impl ReceivePort {
    pub(super) fn open(hub: Arc<Hub>, (name, kind): (&str, &PortType), node: NodeAddress) -> Result<Self, PortError> {
        let its = Arc::downgrade(&hub);
        let throw_away = |port| -> ThrowAway {
            Arc::new(move |arrived| drop(its.upgrade().map(|hub| ReadMessage::new(&hub, port, arrived))))
        };
        let number = hub.lock().add(name, kind, throw_away)?;
        let port = Self { hub, number, address: PortAddress { name: name.to_owned(), node } };
        port.set_enabled(true);
        Ok(port)
    }

    /// What send ports connect to.
    pub fn address(&self) -> PortAddress {
        self.address.clone()
    }

    /// Whether send ports may connect from now on; those that have stay.
    pub fn set_enabled(&self, enabled: bool) {
        if let Some(port) = self.hub.lock().ports.get_mut(&self.number) {
            port.is_enabled = enabled;
        }
    }

    /// The names of the send ports that are connected.
    pub fn connected(&self) -> Vec<String> {
        let state = self.hub.lock();
        let port = state.ports.get(&self.number);
        port.into_iter().flat_map(|port| port.connections.values().map(|from| from.from.to_string())).collect()
    }

    /// What became of connections since the last call.
    pub fn changes(&self) -> Vec<Change> {
        self.hub.handle();
        self.hub.raise();
        let mut state = self.hub.lock();
        state.ports.get_mut(&self.number).map(|port| port.changes.drain(..).collect()).unwrap_or_default()
    }

    /// The next message, of any send port; those of one send port come in the order in which they were sent. Waits until `deadline`
    /// (nanoseconds of the monotonic clock; 0: only looks); `None`: nothing came. One message at a time is read: while one is,
    /// [`PortError::Busy`]. [`PortError::Closed`]: another thread has closed it, or all ports.
    pub fn receive(&self, deadline: Option<u64>) -> Result<Option<ReadMessage>, PortError> {
        let mut polls = 0u32;
        loop {
            let calls = match self.hub.take(self.number)? {
                Found::Message(arrived) => return Ok(Some(ReadMessage::new(&self.hub, self.number, arrived))),
                Found::Calls => true,
                Found::Nothing => false,
            };
            let handled = if calls || self.hub.tends() { self.hub.handle() } else { 0 };
            if handled > 0 {
                self.hub.raise();
            }
            if polls.is_multiple_of(CLOCK_POLLS) {
                if self.is_closed() {
                    return Err(PortError::Closed);
                }
                if deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
                    return Ok(None);
                }
                self.hub.look_for_the_gone();
                self.hub.pay();
            }
            polls = polls.wrapping_add(1);
            if handled == 0 {
                self.hub.filing.endpoint().worker().idle();
            }
        }
    }

    /// Closes it, as dropping it does: its senders are told, and what they have sent is thrown away. More than once is nothing.
    pub fn close(&self) {
        self.hub.close(self.number);
    }

    fn is_closed(&self) -> bool {
        self.hub.is_shut() || self.hub.lock().ports.get(&self.number).is_none_or(|port| port.name.is_none())
    }

    /// From now on `read` is given each message, by a thread of this process that calls anything of [`Ports`](super::Ports): one
    /// after the other, and no other is begun before it returns. It may send, and must not wait for a message of this port. Where it panics, it
    /// is not called again, and the call that it ran in, or a later one, goes on with the panic.
    pub fn on_message(&self, mut read: impl FnMut(ReadMessage) + Send + 'static) {
        let (its, port) = (Arc::downgrade(&self.hub), self.number);
        let upcall = move |arrived| {
            if let Some(hub) = its.upgrade() {
                read(ReadMessage::new(&hub, port, arrived));
            }
        };
        self.hub.set_upcall(self.number, Box::new(upcall));
    }
}

impl Drop for ReceivePort {
    fn drop(&mut self) {
        self.close();
    }
}

/// A message that is read, item by item, in the order in which it was written. Dropped, what was not read is thrown away.
pub struct ReadMessage {
    hub: Arc<Hub>,
    port: u32,
    arrived: Arrived,
    at: usize,
    /// What came is no message, or its rest will not come.
    broken: bool,
}

impl ReadMessage {
    pub(super) fn new(hub: &Arc<Hub>, port: u32, arrived: Arrived) -> Self {
        Self { hub: Arc::clone(hub), port, arrived, at: 0, broken: false }
    }

    /// The name of the send port.
    pub fn from(&self) -> &str {
        &self.arrived.from.from
    }

    /// Which message of that send port's it is; the first one is 1.
    pub fn number(&self) -> u64 {
        self.arrived.from.received
    }

    /// What comes next.
    pub fn peek(&mut self) -> Result<Item, PortError> {
        self.front().map(|front| front.item)
    }

    /// A number.
    pub fn read<T: Element>(&mut self) -> Result<T, PortError> {
        let mut value = T::zeroed();
        self.read_number_into(T::NUMBER, bytemuck::bytes_of_mut(&mut value))?;
        Ok(value)
    }

    /// A number of that kind, to as many bytes as it has.
    pub fn read_number_into(&mut self, number: Number, to: &mut [u8]) -> Result<(), PortError> {
        let front = self.front()?;
        if front.item != Item::Number(number) || to.len() != number.size() {
            return Err(mismatch(&format!("one {}", number.name()), front.item));
        }
        self.copy_inside(&front, to);
        reorder(to, number, self.arrived.from.order);
        Ok(())
    }

    /// An array of as many numbers as there are in `values`. A long one is received there, without a copy: this waits until its sender has
    /// given it, or is gone, however long that takes.
    pub fn read_array<T: Element>(&mut self, values: &mut [T]) -> Result<(), PortError> {
        self.read_array_into(T::NUMBER, bytemuck::cast_slice_mut(values))
    }

    /// An array of that kind, to as many bytes as it has.
    pub fn read_array_into(&mut self, number: Number, to: &mut [u8]) -> Result<(), PortError> {
        let (front, count) = (self.front()?, to.len() / number.size());
        if front.item != Item::Array(number, count as u64) || !to.len().is_multiple_of(number.size()) {
            return Err(mismatch(&format!("an array of {count} {}", number.name()), front.item));
        }
        match front.alone {
            None => self.copy_inside(&front, to),
            Some(_) => self.receive_alone(&front, to)?,
        }
        reorder(to, number, self.arrived.from.order);
        Ok(())
    }

    /// An array, however long. Its length is the sender's word ([`ReadMessage::peek`]): who does not trust that looks before.
    pub fn read_vec<T: Element>(&mut self) -> Result<Vec<T>, PortError> {
        let front = self.front()?;
        let Item::Array(_, count) = front.item else {
            return Err(mismatch(&format!("an array of {}", T::NUMBER.name()), front.item));
        };
        // Memory that the kernel gives as it is written to: of what does not come, none.
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let Ok(values) = bytemuck::allocation::try_zeroed_slice_box::<T>(count) else {
            return Err(mismatch("an array there is memory for", front.item));
        };
        let mut values = values.into_vec();
        self.read_array(&mut values)?;
        Ok(values)
    }

    /// A text.
    pub fn read_text(&mut self) -> Result<String, PortError> {
        let front = self.front()?;
        let Item::Text(length) = front.item else {
            return Err(mismatch("a text", front.item));
        };
        let mut bytes = vec![0; length];
        self.copy_inside(&front, &mut bytes);
        String::from_utf8(bytes).map_err(|_| self.corrupt())
    }

    /// The beginning of a record.
    pub fn begin_record(&mut self) -> Result<(), PortError> {
        self.mark(Item::Begin)
    }

    /// Its end.
    pub fn end_record(&mut self) -> Result<(), PortError> {
        self.mark(Item::End)
    }

    /// The end of the message. An error if something was not read; it is thrown away either way.
    pub fn finish(mut self) -> Result<(), PortError> {
        match self.front()?.item {
            Item::Nothing => Ok(()),
            here => Err(mismatch(&Item::Nothing.to_string(), here)),
        }
    }

    fn mark(&mut self, wanted: Item) -> Result<(), PortError> {
        let front = self.front()?;
        if front.item != wanted {
            return Err(mismatch(&wanted.to_string(), front.item));
        }
        self.at += front.lead;
        Ok(())
    }

    fn front(&mut self) -> Result<Front, PortError> {
        let rest = self.arrived.head.get(self.at..).unwrap_or_default();
        let front = Front::read(rest).filter(|_| !self.broken);
        front.ok_or_else(|| self.corrupt())
    }

    fn corrupt(&mut self) -> PortError {
        if !core::mem::replace(&mut self.broken, true) {
            self.hub.end(self.port, self.arrived.connection, "it sent what is no message");
        }
        PortError::Corrupt(self.from().to_owned())
    }

    /// Takes an item whose content is in the head.
    fn copy_inside(&mut self, front: &Front, to: &mut [u8]) {
        let from = self.at + front.lead;
        to.copy_from_slice(self.arrived.head.get(from..from + front.inside).unwrap_or_default());
        self.at = from + front.inside;
    }

    /// Receives the array of an item, as soon as its sender gives it. Whatever happens, the memory is no longer written when this returns.
    fn receive_alone(&mut self, front: &Front, to: &mut [u8]) -> Result<(), PortError> {
        self.at += front.lead;
        let token = self.hub.filing.token();
        let parts = [lend_mut(to)];
        if self.post(&parts, token) {
            let done = self.hub.filing.wait(Kind::Received, token);
            match done.status {
                Status::Ok if done.len == to.len() => return Ok(()),
                Status::Ok | Status::Truncated(_) => return Err(self.corrupt()),
                _ => {}
            }
        }
        self.broken = true;
        Err(self.hub.lost(self.arrived.from.peer, self.from()))
    }

    fn post(&self, parts: &[madrigal_sys::piece::Piece], token: u64) -> bool {
        let (from, tag) = (Some(self.arrived.from.peer), Some(bulk_tag(self.arrived.connection)));
        self.hub.filing.endpoint().receive(&Receive { from, tag, ignore: 0, parts, token, multi: None }).is_ok()
    }
}

impl ReadMessage {
    /// Arrays that were not read are received into no memory.
    fn skip_rest(&mut self) {
        let mut alone = 0;
        while !self.broken {
            let rest = self.arrived.head.get(self.at..).unwrap_or_default();
            match Front::read(rest) {
                None => drop(self.corrupt()),
                Some(_) if alone > MOST_ALONE => drop(self.corrupt()),
                Some(Front { item: Item::Nothing, .. }) => return,
                Some(front) => {
                    self.at += front.lead + front.inside;
                    alone += usize::from(front.alone.is_some());
                    let token = self.hub.filing.token();
                    if front.alone.is_some() && self.post(&[], token) {
                        self.hub.filing.forget(token);
                    }
                }
            }
        }
    }
}

impl Drop for ReadMessage {
    fn drop(&mut self) {
        self.skip_rest();
        self.hub.is_read(self.port);
    }
}

fn mismatch(asked: &str, here: Item) -> PortError {
    PortError::Mismatch { asked: asked.to_owned(), here: here.to_string() }
}
