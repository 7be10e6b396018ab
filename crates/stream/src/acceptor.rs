//! The accept primitive: [`Acceptor`], a place where links arrive.

use core::fmt;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use madrigal_base::error::{AcceptError, ListenError, Os};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{Connection, Driver, Listener, Place};
use madrigal_progress::engine::{Class, Engine, Next, Registration, Source, Work};

use crate::adapter;
use crate::op::{Completer, Handler, Op};
use crate::vlink::VLink;

/// Accepts links. Cloning gives another handle. Listening ends when the last handle and the last accept posted with a handler are gone. All
/// methods may be called from any thread and from handlers; none blocks.
#[derive(Clone)]
pub struct Acceptor(Arc<Handle>);

struct Handle {
    accepts: Arc<Accepts>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.accepts.close();
        let registration = self.accepts.lock().registration.take();
        // Only accepts posted by descriptor are left: those posted with a handler hold a handle.
        self.accepts.work(u32::MAX);
        drop(registration);
    }
}

impl Acceptor {
    /// Begins to listen at `at` by `driver`: links can arrive as soon as this returns, and wait until they are accepted.
    pub fn listen(engine: &Arc<Engine>, driver: &dyn Driver, at: &Locator, place: &Place) -> Result<Self, ListenError> {
        let listener = driver.listen(at, place)?;
        let (at, signal) = (listener.locator().clone(), listener.signal());
        let class = engine.class(driver.name());
        let inner = Inner { listener: Some(listener), posted: VecDeque::new(), registration: None };
        let accepts = Arc::new(Accepts { engine: Arc::clone(engine), class, at, inner: Mutex::new(inner) });
        let registered = engine.register(class, Some(signal), Arc::clone(&accepts) as Arc<dyn Source>);
        let failed = |errno: madrigal_sys::Errno| Os(errno.raw_os_error());
        let registration =
            registered.map_err(|errno| ListenError::System { at: accepts.at.clone(), os: failed(errno) })?;
        accepts.lock().registration = Some(registration);
        Ok(Self(Arc::new(Handle { accepts })))
    }

    /// Where it really listens: a port left open is filled in.
    pub fn locator(&self) -> &Locator {
        &self.0.accepts.at
    }

    /// Posts an accept: it completes with the next link that arrives. Accepts complete in the order they were posted.
    pub fn accept(&self) -> Op<Result<VLink, AcceptError>> {
        let (op, completer) = Op::new(Arc::clone(&self.0.accepts.engine));
        self.post(Posted::Tell(completer));
        op
    }

    /// Posts an accept whose link a handler gets, with the acceptor.
    pub fn accept_with(&self, handler: Handler<Self, Result<VLink, AcceptError>>) {
        self.post(Posted::Call(handler, self.clone()));
    }

    /// Stops listening. Accepts posted complete with [`AcceptError::Closed`]; links that wait are refused.
    pub fn close(&self) {
        self.0.accepts.close();
    }

    fn post(&self, posted: Posted) {
        let mut inner = self.0.accepts.lock();
        inner.posted.push_back(posted);
        if let Some(registration) = &inner.registration {
            registration.schedule();
        }
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Acceptor at {}", self.locator())
    }
}

/// An acceptor, as the engine sees it.
struct Accepts {
    engine: Arc<Engine>,
    class: Class,
    at: Locator,
    inner: Mutex<Inner>,
}

struct Inner {
    /// `None` once our side closed.
    listener: Option<Box<dyn Listener>>,
    posted: VecDeque<Posted>,
    registration: Option<Registration>,
}

/// A posted accept.
enum Posted {
    Tell(Completer<Result<VLink, AcceptError>>),
    Call(Handler<Acceptor, Result<VLink, AcceptError>>, Acceptor),
}

impl Accepts {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listening ends; posted accepts complete with that.
    fn close(&self) {
        let mut inner = self.lock();
        let listener = inner.listener.take();
        if let Some(registration) = &inner.registration {
            registration.silence();
            registration.wake();
        }
        drop(inner);
        drop(listener);
    }

    /// The next accept that can complete, and how.
    fn next(&self) -> Option<(Posted, Result<Connection, AcceptError>)> {
        let mut inner = self.lock();
        while matches!(inner.posted.front(), Some(Posted::Tell(completer)) if completer.is_orphan()) {
            inner.posted.pop_front();
        }
        inner.posted.front()?;
        let arrived = match &mut inner.listener {
            None => Err(AcceptError::Closed { at: self.at.clone() }),
            Some(listener) => match listener.accept() {
                Ok(None) => return None,
                Ok(Some(endpoint)) => Ok(endpoint),
                Err(error) => Err(error),
            },
        };
        Some((inner.posted.pop_front()?, arrived))
    }

    fn link(&self, endpoint: Connection) -> Result<VLink, AcceptError> {
        let failed = |os| AcceptError::System { at: self.at.clone(), os };
        let stream = adapter::adapt(endpoint).ok_or_else(|| AcceptError::Closed { at: self.at.clone() })?;
        VLink::new(&self.engine, self.class, stream).map_err(failed)
    }
}

impl Source for Accepts {
    fn work(&self, budget: u32) -> Work {
        let mut count = 0;
        while count < budget {
            let Some((posted, arrived)) = self.next() else { return Work { count, next: Next::Park } };
            count += 1;
            let outcome = arrived.and_then(|endpoint| self.link(endpoint));
            match posted {
                Posted::Tell(completer) => completer.complete(outcome),
                Posted::Call(handler, acceptor) => handler.call(&acceptor, outcome),
            }
        }
        Work { count, next: Next::Again }
    }

    fn arm(&self) -> bool {
        false
    }
}
