//! Send ports and receive ports, and their messages, as several threads use them.

use std::sync::{Arc, Mutex, MutexGuard};

use madrigal::ports::{
    Change, Finished, PortAddress, PortError, PortType, ReadMessage, ReceivePort as ApiReceivePort,
    SendPort as ApiSendPort, WriteMessage,
};
use serde_json::{Value, json};

use crate::codes::*;
use crate::failure::Failure;
use crate::runtime::{Runtime, deadline};
use crate::slot::{lock, lock_or_busy};

/// The longest wait at once: between two, it is checked whether the runtime was closed.
const AT_ONCE_NS: u64 = 50_000_000;

/// A port that receives.
pub(crate) struct ReceivePort {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) api: ApiReceivePort,
    /// Changes that were not told yet.
    untold: Mutex<Vec<Value>>,
}

/// A port that sends, by one thread at a time.
pub(crate) struct SendPort {
    pub(crate) runtime: Arc<Runtime>,
    api: Mutex<ApiSendPort>,
    /// Changes that were not told yet.
    untold: Mutex<Vec<Value>>,
}

/// A message that is written, by one thread at a time; `None` once it is closed. Arrays that were lent stay until then.
pub(crate) struct Written {
    pub(crate) runtime: Arc<Runtime>,
    message: Mutex<Option<WriteMessage<'static>>>,
}

/// A message that is read, by one thread at a time.
pub(crate) struct Incoming {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) from: String,
    message: Mutex<Option<ReadMessage>>,
}

impl ReceivePort {
    pub(crate) fn open(runtime: &Arc<Runtime>, name: &str, kind: &str) -> Result<Self, Failure> {
        let api = runtime.ports()?.receive_port(name, &kind_of(kind)?)?;
        Ok(Self { runtime: Arc::clone(runtime), api, untold: Mutex::default() })
    }

    /// Waits for a message; an error if none came in time.
    pub(crate) fn receive(&self, timeout_ns: i64) -> Result<Incoming, Failure> {
        let message = self.api.receive(deadline(timeout_ns))?;
        let message = message.ok_or_else(|| Failure::new(MDG_ETIMEDOUT, "no message came in time"))?;
        let (runtime, from) = (Arc::clone(&self.runtime), message.from().to_owned());
        Ok(Incoming { runtime, from, message: Mutex::new(Some(message)) })
    }

    /// Tells what became of its connections since it was told last, as JSON; see [`tell_changes`].
    pub(crate) fn changes(&self, tell: impl FnOnce(&str) -> Result<bool, Failure>) -> Result<(), Failure> {
        tell_changes(&self.untold, self.api.changes().into_iter().map(as_json), tell)
    }
}

impl SendPort {
    pub(crate) fn open(runtime: &Arc<Runtime>, name: &str, kind: &str) -> Result<Self, Failure> {
        let api = runtime.ports()?.send_port(name, &kind_of(kind)?)?;
        Ok(Self { runtime: Arc::clone(runtime), api: Mutex::new(api), untold: Mutex::default() })
    }

    pub(crate) fn connect(&self, to: &str, timeout_ns: i64) -> Result<(), Failure> {
        Ok(lock(&self.api).connect(&address(to)?, deadline(timeout_ns))?)
    }

    pub(crate) fn disconnect(&self, to: &str) -> Result<(), Failure> {
        Ok(lock(&self.api).disconnect(&address(to)?)?)
    }

    pub(crate) fn message(&self) -> Result<Written, Failure> {
        let message = Mutex::new(Some(self.runtime.ports()?.message()));
        Ok(Written { runtime: Arc::clone(&self.runtime), message })
    }

    pub(crate) fn send(&self, written: &Written) -> Result<Finished, Failure> {
        let message = written.rest()?;
        Ok(lock(&self.api).send(message.as_ref().ok_or_else(ended)?)?)
    }

    /// Waits until everything that was sent has left.
    pub(crate) fn flush(&self, timeout_ns: i64) -> Result<(), Failure> {
        let deadline = deadline(timeout_ns);
        loop {
            let at_once = madrigal::time::now_ns().saturating_add(AT_ONCE_NS);
            if self.runtime.ports()?.flush(Some(deadline.map_or(at_once, |deadline| deadline.min(at_once)))) {
                return Ok(());
            }
            if self.runtime.is_shut() {
                return Err(Failure::new(MDG_ECLOSED, "the runtime is closed"));
            }
            if deadline.is_some_and(|deadline| madrigal::time::now_ns() >= deadline) {
                return Err(Failure::new(MDG_ETIMEDOUT, "not everything that was sent has left in time"));
            }
        }
    }

    /// The addresses of the receive ports that it is connected to; nothing is known while another thread uses it.
    pub(crate) fn connected(&self) -> Option<Vec<String>> {
        let mut api = lock_or_busy(&self.api, "this port").ok()?;
        Some(api.connected().iter().map(ToString::to_string).collect())
    }

    /// Tells which receive ports were lost since it was told last, as JSON; see [`tell_changes`]. An error while another thread uses it.
    pub(crate) fn changes(&self, tell: impl FnOnce(&str) -> Result<bool, Failure>) -> Result<(), Failure> {
        let as_json = |(port, why): (PortAddress, PortError)| json!({"change": "lost", "port": port.to_string(), "why": why.to_string()});
        let lost = lock_or_busy(&self.api, "this port")?.take_lost();
        tell_changes(&self.untold, lost.into_iter().map(as_json), tell)
    }
}

/// A change of a receive port's connections, or of a mailbox's.
pub(crate) fn as_json(change: Change) -> Value {
    match change {
        Change::Connected { from } => json!({"change": "connected", "port": from}),
        Change::Left { from } => json!({"change": "left", "port": from}),
        Change::Lost { from, why } => json!({"change": "lost", "port": from, "why": why}),
        _ => json!({"change": "unknown"}),
    }
}

/// Tells changes, those that were not told before first. Those that `tell` had no room for are told again.
pub(crate) fn tell_changes(
    untold: &Mutex<Vec<Value>>,
    new: impl Iterator<Item = Value>,
    tell: impl FnOnce(&str) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let mut untold = lock(untold);
    untold.extend(new);
    if tell(&Value::from(untold.clone()).to_string())? {
        untold.clear();
    }
    Ok(())
}

impl Written {
    /// Writes to it.
    pub(crate) fn write(&self, write: impl FnOnce(&mut WriteMessage<'static>)) -> Result<(), Failure> {
        write(self.rest()?.as_mut().ok_or_else(ended)?);
        Ok(())
    }

    /// All of it, for the thread that closes it: memory that was lent is free with that. An error if another thread is using it.
    pub(crate) fn rest(&self) -> Result<MutexGuard<'_, Option<WriteMessage<'static>>>, Failure> {
        lock_or_busy(&self.message, "this message")
    }
}

impl Incoming {
    /// Reads of it.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&mut ReadMessage) -> Result<R, Failure>) -> Result<R, Failure> {
        read(self.rest()?.as_mut().ok_or_else(ended)?)
    }

    /// What is left of it, for the thread that ends it. An error if another thread is reading it.
    pub(crate) fn rest(&self) -> Result<MutexGuard<'_, Option<ReadMessage>>, Failure> {
        lock_or_busy(&self.message, "this message")
    }
}

fn kind_of(text: &str) -> Result<PortType, Failure> {
    text.parse().map_err(|error: madrigal::ports::TypeError| Failure::new(MDG_EINVAL, error.to_string()))
}

/// The address of a receive port, or of a mailbox.
pub(crate) fn address(text: &str) -> Result<PortAddress, Failure> {
    text.parse().map_err(|error: madrigal::ports::AddressError| Failure::new(MDG_EADDRESS, error.to_string()))
}

pub(crate) fn ended() -> Failure {
    Failure::new(MDG_EHANDLE, "the message has ended")
}

impl From<PortError> for Failure {
    fn from(error: PortError) -> Self {
        let code = match &error {
            PortError::Name(_) => MDG_EINVAL,
            PortError::Stack(_) => MDG_EUNUSABLE,
            PortError::InUse(_) => MDG_EINUSE,
            PortError::Refused { .. } => MDG_EREFUSED,
            PortError::TimedOut(_) => MDG_ETIMEDOUT,
            PortError::Lost { .. } => MDG_ELOST,
            PortError::One(_) | PortError::Busy => MDG_EBUSY,
            PortError::NotConnected(_) => MDG_EGONE,
            PortError::Closed => MDG_ECLOSED,
            PortError::TooLong(_) => MDG_ETOOLONG,
            PortError::Mismatch { .. } => MDG_EMISMATCH,
            PortError::Corrupt(_) => MDG_ECORRUPT,
            _ => MDG_EINTERNAL,
        };
        Self::new(code, error.to_string())
    }
}
