//! The ports of a process: where they are opened, and turned.

use std::sync::Arc;

use madrigal_sys::time;

use super::address::is_name;
use super::elements::Order;
use super::error::PortError;
use super::hub::Hub;
use super::kinds::PortType;
use super::receive::ReceivePort;
use super::send::{SendPort, WriteMessage};
use crate::Worker;
use crate::filing::Filing;
use crate::worker::OpenError;

/// The ports of a process, over an endpoint of its own. Clones are the same.
#[derive(Clone)]
pub struct Ports {
    hub: Arc<Hub>,
}

impl Ports {
    /// Opens them; there is no port yet. Does not block.
    pub fn open(worker: &Arc<Worker>) -> Result<Self, OpenError> {
        Self::open_with(worker, Order::NATIVE)
    }

    /// As [`Ports::open`]; the numbers of sent messages have that order, as those of another processor would.
    pub fn open_with(worker: &Arc<Worker>, order: Order) -> Result<Self, OpenError> {
        let filing = Filing::new(worker.endpoint(worker.space())?);
        Ok(Self { hub: Arc::new(Hub::new(filing, order)) })
    }

    /// A receive port of that name. It can be connected to as soon as this returns. The first port whose type names a stack opens what carries
    /// it; a stack that cannot be is refused with its reason ([`PortError::Stack`]).
    pub fn receive_port(&self, name: &str, kind: &PortType) -> Result<ReceivePort, PortError> {
        if !is_name(name) {
            return Err(PortError::Name(name.escape_debug().to_string()));
        }
        let at = self.hub.node_for(kind)?;
        ReceivePort::open(Arc::clone(&self.hub), (name, kind), at)
    }

    /// A send port without connections, with a stack as [`Ports::receive_port`]; its name is for those it connects to.
    pub fn send_port(&self, name: &str, kind: &PortType) -> Result<SendPort, PortError> {
        if !is_name(name) {
            return Err(PortError::Name(name.escape_debug().to_string()));
        }
        self.hub.node_for(kind)?;
        Ok(SendPort::new(Arc::clone(&self.hub), name, kind))
    }

    /// A new message, empty, for any send port.
    pub fn message<'d>(&self) -> WriteMessage<'d> {
        WriteMessage::new(self.hub.order)
    }

    /// Waits until whatever was sent by any port has left this process, or is given up because its receiver is gone. What was sent may wait
    /// for a path or for room, and leaves while a thread calls anything here. False: `deadline` (nanoseconds of the monotonic clock) passed.
    pub fn flush(&self, deadline: Option<u64>) -> bool {
        self.hub.pay_all(deadline) && self.hub.filing.endpoint().worker().flush(deadline)
    }

    /// Threads that wait for a message or an answer return with [`PortError::Closed`], now and from now on.
    pub fn close(&self) {
        self.hub.shut();
    }

    /// Does what is due: answers of others, upcalls. Waits for something to do until `deadline` (nanoseconds of the monotonic clock), or until
    /// all is closed.
    pub fn turn(&self, deadline: Option<u64>) {
        let waits = || !self.hub.is_shut() && deadline.is_none_or(|deadline| time::now_ns() < deadline);
        while self.hub.handle() == 0 && waits() {
            self.hub.idle();
        }
        self.hub.raise();
    }
}
