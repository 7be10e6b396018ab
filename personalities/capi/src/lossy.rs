//! Links of messages of which a part may be lost, as several threads use them.

use std::sync::{Arc, Mutex};

use madrigal::Address;
use madrigal::lossy::{Arrived, Class, LossyAcceptor, LossyLink, Lost, Received, SendError, Settled};
use madrigal::time;

use crate::codes::*;
use crate::failure::Failure;
use crate::runtime::{Runtime, deadline};
use crate::slot::lock_or_busy;

/// The longest wait at once: between two, it is checked whether the runtime was closed.
const AT_ONCE_NS: u64 = 50_000_000;

/// Where such links arrive.
pub(crate) struct Acceptor {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) address: String,
    pub(crate) api: LossyAcceptor,
}

/// Such a link.
pub(crate) struct Link {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) api: LossyLink,
    /// A message for which there was no room.
    kept: Mutex<Option<Arrived>>,
    /// A report for which there was no room.
    untold: Mutex<Option<Settled>>,
}

/// What is told of a message beside its bytes.
pub(crate) struct About {
    pub(crate) class: u8,
    pub(crate) number: u32,
    /// `None`: it failed.
    pub(crate) lost: Option<Lost>,
}

impl Acceptor {
    pub(crate) fn listen(runtime: Arc<Runtime>, at: &str, classes: &[Class]) -> Result<Self, Failure> {
        let at: Address = at.parse()?;
        let api = runtime.api.lossy_listen(&at, classes)?;
        let address = Address { locator: api.locator().clone(), ..at }.to_string();
        Ok(Self { runtime, address, api })
    }

    pub(crate) fn accept(&self, timeout_ns: i64) -> Result<Link, Failure> {
        let accepted = slices(&self.runtime, timeout_ns, |until| Ok(self.api.accept(until)?))?;
        let late = || Failure::new(MDG_ETIMEDOUT, format!("nobody connected to {} in time", self.address));
        Ok(Link::new(&self.runtime, accepted.ok_or_else(late)?))
    }
}

impl Link {
    fn new(runtime: &Arc<Runtime>, api: LossyLink) -> Self {
        Self { runtime: Arc::clone(runtime), api, kept: Mutex::new(None), untold: Mutex::new(None) }
    }

    pub(crate) fn connect(
        runtime: &Arc<Runtime>,
        to: &str,
        classes: &[Class],
        timeout_ns: i64,
    ) -> Result<Self, Failure> {
        let mut connecting = Some(runtime.api.lossy_connect(&to.parse()?, classes)?);
        let made = slices(runtime, timeout_ns, |until| {
            let Some(begun) = connecting.take() else { return Ok(None) };
            Ok(begun.wait(until)?.map(Some).unwrap_or_else(|goes_on| {
                connecting = Some(goes_on);
                None
            }))
        })?;
        let late = || Failure::new(MDG_ETIMEDOUT, format!("cannot connect to {to}: it was not decided in time"));
        Ok(Self::new(runtime, made.ok_or_else(late)?))
    }

    /// Takes a message, once there is room for it; its number.
    pub(crate) fn send(&self, class: u8, bytes: &[u8], (within_ns, timeout_ns): (i64, i64)) -> Result<u32, Failure> {
        let within = u64::try_from(within_ns).ok();
        let sent = slices(&self.runtime, timeout_ns, |until| match self.api.send(class, bytes.to_vec(), within) {
            Err(SendError::Full { .. }) => {
                self.api.wait_for_room(bytes.len(), until);
                Ok(None)
            }
            done => Ok(Some(done?)),
        })?;
        // There may be room at the end of the last wait.
        sent.map_or_else(|| Ok(self.api.send(class, bytes.to_vec(), within)?), Ok)
    }

    /// Waits for a message, which `give` takes, or leaves where it has no room for it.
    pub(crate) fn receive<R>(
        &self,
        timeout_ns: i64,
        give: impl FnOnce(&[u8], &About) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let mut kept = lock_or_busy(&self.kept, "this link")?;
        if kept.is_none() {
            *kept = slices(&self.runtime, timeout_ns, |until| match self.api.receive(until)? {
                Received::Message(arrived) => Ok(Some(arrived)),
                Received::Nothing => Ok(None),
                Received::End => Err(Failure::new(MDG_EGONE, format!("{} closed, and sent no more", self.api.peer()))),
            })?;
        }
        let Some(Arrived { class, message, bytes, lost }) = &*kept else {
            return Err(Failure::new(MDG_ETIMEDOUT, format!("no message of {} came in time", self.api.peer())));
        };
        let given = give(bytes, &About { class: *class, number: *message, lost: lost.clone() })?;
        *kept = None;
        Ok(given)
    }

    /// Waits for what became of a message, which `give` takes, or leaves where it has no room for it.
    pub(crate) fn settled(
        &self,
        timeout_ns: i64,
        give: impl FnOnce(&About) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut untold = lock_or_busy(&self.untold, "this link")?;
        if untold.is_none() {
            *untold = self.next_settled(timeout_ns)?;
        }
        let late = || Failure::new(MDG_ETIMEDOUT, "of no message it was known in time what became of it");
        let Settled { class, message, lost } = untold.as_ref().ok_or_else(late)?;
        give(&About { class: *class, number: *message, lost: lost.clone() })?;
        *untold = None;
        Ok(())
    }

    fn next_settled(&self, timeout_ns: i64) -> Result<Option<Settled>, Failure> {
        slices(&self.runtime, timeout_ns, |until| match self.api.settled(until) {
            Some(settled) => Ok(Some(settled)),
            // Of a link that is over nothing more is known.
            None => Ok(self.api.flush(Some(0)).map(|_| None)?),
        })
    }

    pub(crate) fn flush(&self, timeout_ns: i64) -> Result<(), Failure> {
        let done = slices(&self.runtime, timeout_ns, |until| Ok(self.api.flush(until)?.then_some(())))?;
        done.ok_or_else(|| Failure::new(MDG_ETIMEDOUT, "not of every message it was known in time what became of it"))
    }
}

/// Waits again and again, until there is something, or the time has passed, or the runtime is closed.
fn slices<T>(
    runtime: &Runtime,
    timeout_ns: i64,
    mut wait: impl FnMut(Option<u64>) -> Result<Option<T>, Failure>,
) -> Result<Option<T>, Failure> {
    let deadline = deadline(timeout_ns);
    loop {
        let at_once = time::now_ns().saturating_add(AT_ONCE_NS);
        if let Some(done) = wait(Some(deadline.map_or(at_once, |deadline| deadline.min(at_once))))? {
            return Ok(Some(done));
        }
        if runtime.is_shut() {
            return Err(Failure::new(MDG_ECLOSED, "the runtime is closed"));
        }
        if deadline.is_some_and(|deadline| time::now_ns() >= deadline) {
            return Ok(None);
        }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        let code = match &error {
            SendError::Full { .. } => MDG_ETIMEDOUT,
            SendError::Gone { .. } => MDG_EGONE,
            SendError::Closed { .. } => MDG_ECLOSED,
            _ => MDG_EINVAL,
        };
        Self::new(code, error.to_string())
    }
}
