//! What the engine of a port reports: the listener, attempts, links. It reports while it is run, by this port's thread or, for a link that
//! is written to, by the one that sends; the port takes the reports at its next poll.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use madrigal_progress::driver::{Signal, Waker};
use madrigal_progress::engine::{Class, Engine, Next, Registration, Source, Work};
use madrigal_proto::reach::Key;
use madrigal_sys::Errno;

/// The object of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whom {
    /// The listener.
    Listener,
    /// A connection that is not up.
    Half(Key),
    /// The link of that number.
    Link(u32),
}

/// Reports that were not taken yet.
#[derive(Default)]
pub(super) struct Reports(Mutex<VecDeque<Whom>>);

impl Reports {
    pub(super) fn take(&self) -> Option<Whom> {
        lock(&self.0).pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }
}

/// Something that is reported, until it is dropped.
pub(super) struct Watch {
    registration: Arc<Registration>,
    reported: Arc<Reported>,
}

struct Reported {
    whom: Mutex<Whom>,
    to: Arc<Reports>,
}

impl Watch {
    /// Reports whenever the signal does, if there is one.
    pub(super) fn new(
        (engine, class): (&Arc<Engine>, Class),
        signal: Option<Arc<dyn Signal>>,
        whom: Whom,
        to: &Arc<Reports>,
    ) -> Result<Self, Errno> {
        let reported = Arc::new(Reported { whom: Mutex::new(whom), to: Arc::clone(to) });
        let source = Arc::clone(&reported) as Arc<dyn Source>;
        Ok(Self { registration: Arc::new(engine.register(class, signal, source)?), reported })
    }

    /// What reports it, too.
    pub(super) fn waker(&self) -> Waker {
        let registration = Arc::downgrade(&self.registration);
        Arc::new(move || {
            if let Some(registration) = registration.upgrade() {
                registration.wake();
            }
        })
    }

    /// It is called otherwise from now on.
    pub(super) fn rename(&self, whom: Whom) {
        *lock(&self.reported.whom) = whom;
    }
}

impl Source for Reported {
    fn work(&self, _budget: u32) -> Work {
        let whom = *lock(&self.whom);
        lock(&self.to.0).push_back(whom);
        Work { count: 1, next: Next::Park }
    }

    fn arm(&self) -> bool {
        false
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
