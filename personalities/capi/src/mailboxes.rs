//! Mailboxes and buffers, as several threads use them.

use core::ffi::c_void;
use std::sync::{Arc, Mutex};

use madrigal::mailbox::{Buffer as Bytes, Draft, MailError, Mailbox as ApiMailbox, PortAddress};
use madrigal_sys::Errno;
use serde_json::{Value, json};

use crate::codes::*;
use crate::failure::Failure;
use crate::ports::{address, as_json, tell_changes};
use crate::runtime::{Runtime, deadline};
use crate::slot::{lock, lock_or_busy};

/// The longest wait at once: between two, it is checked whether the runtime was closed.
const AT_ONCE_NS: u64 = 50_000_000;

/// A mailbox.
pub(crate) struct Mailbox {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) api: ApiMailbox,
    /// Changes that were not told yet.
    untold: Mutex<Vec<Value>>,
}

/// A buffer. It belongs to no runtime.
pub(crate) struct Buffer(Mutex<State>);

enum State {
    /// It is written.
    Draft(Draft),
    /// Nobody writes it any more.
    Sealed(Bytes),
    /// It could not be sealed.
    Lost,
}

impl Mailbox {
    pub(crate) fn open(runtime: &Arc<Runtime>, name: &str, places: u32) -> Result<Self, Failure> {
        let api = runtime.mailboxes()?.mailbox(name, places)?;
        Ok(Self { runtime: Arc::clone(runtime), api, untold: Mutex::default() })
    }

    pub(crate) fn add_store(&self, at: &str) -> Result<(), Failure> {
        self.runtime.mailboxes()?.add_store(&address(at)?);
        Ok(())
    }

    /// Does what is due until the time has passed.
    pub(crate) fn turn(&self, timeout_ns: i64) -> Result<(), Failure> {
        let all = self.runtime.mailboxes()?;
        self.in_slices(timeout_ns, |until| {
            all.turn(Some(until));
            false
        })
        .or_else(|failure| if failure.code == MDG_ETIMEDOUT { Ok(()) } else { Err(failure) })
    }

    /// Waits until what was sent has left, and data of this process's were read.
    pub(crate) fn flush(&self, timeout_ns: i64) -> Result<(), Failure> {
        let all = self.runtime.mailboxes()?;
        self.in_slices(timeout_ns, |until| all.flush(Some(until)))
    }

    fn in_slices(&self, timeout_ns: i64, run: impl Fn(u64) -> bool) -> Result<(), Failure> {
        let deadline = deadline(timeout_ns);
        loop {
            let at_once = madrigal::time::now_ns().saturating_add(AT_ONCE_NS);
            if run(deadline.map_or(at_once, |deadline| deadline.min(at_once))) {
                return Ok(());
            }
            if self.runtime.is_shut() {
                return Err(Failure::new(MDG_ECLOSED, "the runtime is closed"));
            }
            if deadline.is_some_and(|deadline| madrigal::time::now_ns() >= deadline) {
                let text = "not everything that was put into mailboxes was read in time";
                return Err(Failure::new(MDG_ETIMEDOUT, text));
            }
        }
    }

    /// Tells what became of those who send to it since it was told last, as JSON; see [`tell_changes`].
    pub(crate) fn changes(&self, tell: impl FnOnce(&str) -> Result<bool, Failure>) -> Result<(), Failure> {
        tell_changes(&self.untold, self.api.changes().into_iter().map(as_json), tell)
    }

    pub(crate) fn why(&self) -> Value {
        let Ok(all) = self.runtime.mailboxes() else { return Value::Null };
        let (held, loads) = (all.held(), all.loads());
        let store = |(at, load): (PortAddress, madrigal::mailbox::Load)| json!({"address": at.to_string(), "offers": load.offers, "held": load.held, "asked": load.asked});
        json!({
            "kind": "mailbox",
            "address": self.api.address().to_string(),
            "held": {"own": held.own, "received": held.received, "offered": held.offered},
            "stores": loads.into_iter().map(store).collect::<Vec<_>>(),
        })
    }
}

impl Buffer {
    pub(crate) fn draft(len: usize) -> Result<Self, Failure> {
        let failed = |error: Errno| match error {
            Errno::INVAL => Failure::new(MDG_EINVAL, "a buffer has at least one byte"),
            error => Failure::system(error.raw_os_error(), &format!("no buffer of {len} bytes")),
        };
        Ok(Self(Mutex::new(State::Draft(Draft::new(len).map_err(failed)?))))
    }

    pub(crate) fn of(bytes: Bytes) -> Self {
        Self(Mutex::new(State::Sealed(bytes)))
    }

    /// From now on nobody writes it. Of one that is sealed, nothing.
    pub(crate) fn seal(&self) -> Result<(), Failure> {
        let mut state = lock_or_busy(&self.0, "this buffer")?;
        match core::mem::replace(&mut *state, State::Lost) {
            State::Draft(draft) => {
                let sealed = draft.seal();
                let sealed = sealed.map_err(|error| Failure::system(error.raw_os_error(), "it cannot be sealed"))?;
                *state = State::Sealed(sealed.into());
            }
            other => *state = other,
        }
        Ok(())
    }

    /// Where it lies, and how many bytes it has.
    pub(crate) fn place(&self) -> Result<(*mut c_void, usize), Failure> {
        match &*lock(&self.0) {
            State::Draft(draft) => Ok((draft.at().cast(), draft.len())),
            State::Sealed(bytes) => Ok((bytes.as_ptr().cast_mut().cast(), bytes.len())),
            State::Lost => Err(lost()),
        }
    }

    /// Its bytes, of one that is sealed.
    pub(crate) fn bytes(&self) -> Result<Bytes, Failure> {
        match &*lock(&self.0) {
            State::Draft(_) => Err(Failure::new(MDG_EBUSY, "the buffer is being written: seal it first")),
            State::Sealed(bytes) => Ok(bytes.clone()),
            State::Lost => Err(lost()),
        }
    }

    pub(crate) fn why(&self) -> Value {
        let (len, state) = match &*lock(&self.0) {
            State::Draft(draft) => (draft.len(), "written"),
            State::Sealed(bytes) => (bytes.len(), if bytes.is_shared() { "shared" } else { "own" }),
            State::Lost => (0, "lost"),
        };
        json!({"kind": "buffer", "bytes": len, "memory": state})
    }
}

fn lost() -> Failure {
    Failure::new(MDG_ECLOSED, "the buffer could not be sealed, and is lost")
}

impl From<MailError> for Failure {
    fn from(error: MailError) -> Self {
        let code = match &error {
            MailError::Name(_) | MailError::Places(_) | MailError::Receivers { .. } => MDG_EINVAL,
            MailError::InUse(_) => MDG_EINUSE,
            MailError::Refused { .. } => MDG_EREFUSED,
            MailError::Silent(_) | MailError::Full { .. } | MailError::NoRoom { .. } => MDG_ETIMEDOUT,
            MailError::NoStorage { .. } | MailError::Late { .. } => MDG_ETIMEDOUT,
            MailError::NoStore(_) => MDG_EUNUSABLE,
            MailError::Gone(_) => MDG_EGONE,
            MailError::DataLost { .. } | MailError::Lost { .. } => MDG_ELOST,
            MailError::NoMemory(_) => MDG_ETOOLONG,
            MailError::Closed => MDG_ECLOSED,
            _ => MDG_EINTERNAL,
        };
        Self::new(code, error.to_string())
    }
}
