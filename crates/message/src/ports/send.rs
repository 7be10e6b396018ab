//! Send ports, and messages as they are written.

use std::sync::Arc;

use madrigal_sys::piece::Piece;

use super::address::PortAddress;
use super::elements::{Element, Number, Order, reorder};
use super::error::PortError;
use super::hub::Hub;
use super::kinds::PortType;
use super::wire::{ALONE, ARRAY, BEGIN, BULK, END, LONGEST_HEAD, MOST_ALONE, TEXT, bulk_tag, message_tag};
use crate::Endpoint;
use crate::endpoint::{Kind, PeerId, PostError, Posted, Send, Status};
use crate::memory::lend;

/// Bytes of a short message.
const FEW: usize = 128;

/// A port from which messages go to all receive ports that it is connected to. Dropped, it leaves them.
pub struct SendPort {
    hub: Arc<Hub>,
    name: String,
    kind: PortType,
    connections: Vec<Outgoing>,
    lost: Vec<(PortAddress, PortError)>,
    /// How many connections of all send ports were closed when it looked last.
    closed: usize,
}

/// A connection of a send port.
struct Outgoing {
    to: PortAddress,
    peer: PeerId,
    /// The numbers that the receiver gave.
    connection: u32,
    port: u32,
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    /// To how many receive ports it went.
    pub receivers: usize,
    /// How many bytes it has.
    pub bytes: usize,
}

impl SendPort {
    pub(super) fn new(hub: Arc<Hub>, name: &str, kind: &PortType) -> Self {
        Self { hub, name: name.to_owned(), kind: kind.clone(), connections: Vec::new(), lost: Vec::new(), closed: 0 }
    }

    /// Connects to a receive port of the same type. Waits for its process to answer until `deadline` (nanoseconds of the monotonic clock).
    /// A connection that is there already is no error.
    pub fn connect(&mut self, to: &PortAddress, deadline: Option<u64>) -> Result<(), PortError> {
        self.drop_closed();
        if self.connections.iter().any(|connection| connection.to == *to) {
            return Ok(());
        }
        if !self.kind.shape().to_many && !self.connections.is_empty() {
            return Err(PortError::One(self.kind.get("connection").unwrap_or_default().to_owned()));
        }
        self.hub.leads(&self.kind, to)?;
        let connected = self.hub.connect(to, &self.name, &self.kind, deadline);
        self.hub.raise();
        let (peer, connection, port) = connected?;
        self.connections.push(Outgoing { to: to.clone(), peer, connection, port });
        Ok(())
    }

    /// Leaves a receive port, which still gets everything that was sent.
    pub fn disconnect(&mut self, to: &PortAddress) -> Result<(), PortError> {
        self.drop_closed();
        let at = self.connections.iter().position(|connection| connection.to == *to);
        let at = at.ok_or_else(|| PortError::NotConnected(to.name.clone()))?;
        self.connections.swap_remove(at).leave(&self.hub);
        Ok(())
    }

    /// The receive ports that it is connected to.
    pub fn connected(&mut self) -> Vec<PortAddress> {
        self.drop_closed();
        self.connections.iter().map(|connection| connection.to.clone()).collect()
    }

    /// Receive ports that were lost since the last call, and why.
    pub fn take_lost(&mut self) -> Vec<(PortAddress, PortError)> {
        self.drop_closed();
        core::mem::take(&mut self.lost)
    }

    /// A new message, empty.
    pub fn message<'d>(&self) -> WriteMessage<'d> {
        WriteMessage::new(self.hub.order)
    }

    /// Sends a message to every receive port, and waits until all have its arrays of more than [`BULK`] bytes. One that is lost meanwhile is
    /// no error as long as another one is left: [`SendPort::take_lost`] names it.
    pub fn send(&mut self, message: &WriteMessage<'_>) -> Result<Finished, PortError> {
        if message.head.len() > LONGEST_HEAD {
            return Err(PortError::TooLong(message.head.len()));
        }
        self.hub.handle_calls();
        if self.hub.closed() != self.closed {
            self.drop_closed();
        }
        let posted = self.connections.iter().map(|connection| (connection.key(), connection.post(&self.hub, message)));
        // Of a short message to receivers with room nothing is.
        let under_way: Vec<_> = posted.filter(|(_, posted)| !posted.is_done()).collect();
        let lost = |(connection, posted): (Key, UnderWay)| (!posted.arrives(&self.hub)).then_some(connection);
        let has_waited = !under_way.is_empty();
        let lost: Vec<Key> = under_way.into_iter().filter_map(lost).collect();
        if has_waited {
            // Nothing of it is lent any more.
            self.hub.raise();
        }
        self.drop_lost(&lost);
        if self.connections.is_empty() {
            let nobody = || PortError::NotConnected("any receive port".to_owned());
            return Err(self.lost.last().map_or_else(nobody, |lost| lost.1.clone()));
        }
        Ok(Finished { receivers: self.connections.len(), bytes: message.len() })
    }

    /// Takes out connections that did not take a message.
    fn drop_lost(&mut self, connections: &[Key]) {
        if connections.is_empty() {
            return;
        }
        let (hub, lost) = (&self.hub, &mut self.lost);
        self.connections.retain(|connection| {
            let is_lost = connections.contains(&connection.key());
            if is_lost {
                connection.leave(hub);
                lost.push((connection.to.clone(), hub.lost(connection.peer, &connection.to.name)));
            }
            !is_lost
        });
    }

    /// Takes out connections whose receivers are closed or gone.
    fn drop_closed(&mut self) {
        self.hub.handle();
        self.closed = self.hub.closed();
        let (hub, lost) = (&self.hub, &mut self.lost);
        self.connections.retain(|connection| {
            let is_closed = hub.is_closed(connection.peer, connection.connection);
            let why = match hub.filing.endpoint().why(connection.peer) {
                Some(_) => hub.lost(connection.peer, &connection.to.name),
                None if is_closed => {
                    PortError::Refused { to: connection.to.name.clone(), why: "the receive port is closed".to_owned() }
                }
                None => return true,
            };
            connection.leave(hub);
            lost.push((connection.to.clone(), why));
            false
        });
    }
}

impl Drop for SendPort {
    fn drop(&mut self) {
        self.connections.iter().for_each(|connection| connection.leave(&self.hub));
    }
}

/// Names a connection: receivers give numbers each for itself.
type Key = (PeerId, u32);

impl Outgoing {
    fn key(&self) -> Key {
        (self.peer, self.connection)
    }

    /// A receiver that is gone need not know.
    fn leave(&self, hub: &Hub) {
        hub.leave(self.peer, self.connection, self.port);
    }
}

/// A message that is written, item by item, for [`SendPort::send`]; for that of several ports, too.
pub struct WriteMessage<'d> {
    order: Order,
    head: Vec<u8>,
    alone: Vec<Alone<'d>>,
}

/// An array that travels alone.
enum Alone<'d> {
    Lent(&'d [u8]),
    Own(Vec<u8>),
}

impl<'d> WriteMessage<'d> {
    pub(super) fn new(order: Order) -> Self {
        Self { order, head: Vec::with_capacity(FEW), alone: Vec::new() }
    }

    /// A number.
    pub fn write<T: Element>(&mut self, value: T) {
        self.write_number(T::NUMBER, bytemuck::bytes_of(&value));
    }

    /// A number of that kind, of which these are the bytes: as many as it has, or it is not written.
    pub fn write_number(&mut self, number: Number, bytes: &[u8]) {
        if bytes.len() == number.size() {
            self.head.push(number as u8);
            self.append(number, bytes);
        }
    }

    /// An array of numbers. One of more than [`BULK`] bytes is borrowed, and is sent from where it lies.
    pub fn write_array<T: Element>(&mut self, values: &'d [T]) {
        self.write_array_of(T::NUMBER, bytemuck::cast_slice(values));
    }

    /// An array of numbers of that kind, of which these are the bytes: those of whole numbers.
    pub fn write_array_of(&mut self, number: Number, bytes: &'d [u8]) {
        let bytes = whole(number, bytes);
        if self.goes_alone(bytes) && self.order == Order::NATIVE {
            self.lead(number, bytes);
            self.alone.push(Alone::Lent(bytes));
        } else {
            self.write_copy_of(number, bytes);
        }
    }

    /// As [`WriteMessage::write_array`], of numbers that may change as soon as this returns.
    pub fn write_copy<T: Element>(&mut self, values: &[T]) {
        self.write_copy_of(T::NUMBER, bytemuck::cast_slice(values));
    }

    /// As [`WriteMessage::write_array_of`], of bytes that may change as soon as this returns.
    pub fn write_copy_of(&mut self, number: Number, bytes: &[u8]) {
        let bytes = whole(number, bytes);
        self.lead(number, bytes);
        if self.goes_alone(bytes) {
            let mut copy = bytes.to_vec();
            reorder(&mut copy, number, self.order);
            self.alone.push(Alone::Own(copy));
        } else {
            self.append(number, bytes);
        }
    }

    fn append(&mut self, number: Number, bytes: &[u8]) {
        let from = self.head.len();
        self.head.extend_from_slice(bytes);
        reorder(self.head.get_mut(from..).unwrap_or_default(), number, self.order);
    }

    /// A text. Texts, numbers and short arrays of a message have 64 MiB together.
    pub fn write_text(&mut self, text: &str) {
        let text = text.get(..text.floor_char_boundary(u32::MAX as usize)).unwrap_or_default();
        self.head.push(TEXT);
        self.head.extend(u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
        self.head.extend_from_slice(text.as_bytes());
    }

    /// The beginning of a record: what follows belongs together, up to its end. Records may lie in records.
    pub fn begin_record(&mut self) {
        self.head.push(BEGIN);
    }

    /// The end of a record.
    pub fn end_record(&mut self) {
        self.head.push(END);
    }

    /// How many bytes it has by now.
    pub fn len(&self) -> usize {
        self.head.len() + self.alone.iter().map(|one| one.bytes().len()).sum::<usize>()
    }

    /// Whether it has no item.
    pub fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    /// An array's front.
    fn lead(&mut self, number: Number, bytes: &[u8]) {
        self.head.push(number as u8 | if self.goes_alone(bytes) { ALONE } else { ARRAY });
        self.head.extend(((bytes.len() / number.size()) as u64).to_le_bytes());
    }

    fn goes_alone(&self, bytes: &[u8]) -> bool {
        bytes.len() > BULK && self.alone.len() < MOST_ALONE
    }
}

/// The bytes of whole numbers.
fn whole(number: Number, bytes: &[u8]) -> &[u8] {
    bytes.get(..bytes.len() - bytes.len() % number.size()).unwrap_or_default()
}

impl Alone<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Own(bytes) => bytes,
        }
    }
}

/// What of a message is under way to one receiver.
struct UnderWay {
    tokens: Vec<u64>,
    /// Something was refused.
    failed: bool,
    /// There was no room at first, so that upcalls may have run.
    waited: bool,
}

impl Outgoing {
    /// Posts a message to one receiver.
    fn post(&self, hub: &Hub, message: &WriteMessage<'_>) -> UnderWay {
        let mut under_way = UnderWay { tokens: Vec::new(), failed: false, waited: false };
        under_way.post(hub, self.peer, (message_tag(self.port), Some(u64::from(self.connection))), lend(&message.head));
        for one in &message.alone {
            if !under_way.failed {
                under_way.post(hub, self.peer, (bulk_tag(self.connection), None), lend(one.bytes()));
            }
        }
        under_way
    }
}

impl UnderWay {
    fn post(&mut self, hub: &Hub, to: PeerId, (tag, data): (u64, Option<u64>), piece: Piece) {
        let (token, parts) = (hub.filing.token(), [piece]);
        let inject = data.is_some() && piece.len() <= Endpoint::INJECT;
        let send = Send { to, tag: Some(tag), data, parts: &parts, token, inject, delivery: false };
        loop {
            match hub.filing.endpoint().send(&send) {
                Err(PostError::Again) => self.wait_for_room(hub, to),
                Ok(Posted::Done) => return,
                Ok(Posted::Pending) => return self.tokens.push(token),
                Err(_) => return self.failed = true,
            }
        }
    }

    /// Does what is due until there is room: the receiver may wait for the same of us.
    #[cold]
    fn wait_for_room(&mut self, hub: &Hub, to: PeerId) {
        self.waited = true;
        while !hub.filing.endpoint().has_room(to) {
            if hub.handle() == 0 {
                hub.idle();
            }
        }
    }

    /// Whether nothing of it is lent, and all is well.
    fn is_done(&self) -> bool {
        self.tokens.is_empty() && !self.failed && !self.waited
    }

    /// Waits for all of it, whatever happens: the memory is free then. Whether the receiver has it.
    fn arrives(self, hub: &Hub) -> bool {
        let waited: Vec<bool> =
            self.tokens.into_iter().map(|token| hub.wait(Kind::Sent, token).status == Status::Ok).collect();
        !self.failed && waited.iter().all(|is_there| *is_there)
    }
}
