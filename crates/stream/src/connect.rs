//! The connect primitive: an attempt under way, with a deadline.

use core::mem;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use madrigal_base::error::{ConnectError, Os};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{Connecting, Connection, Driver, Pending, Place};
use madrigal_progress::engine::{Engine, Next, Registration, Source, Work};
use madrigal_sys::time;

use crate::adapter;
use crate::op::{Handler, Op, Then};
use crate::vlink::VLink;

/// How long an attempt may take.
const PATIENCE_MS: u64 = 15_000;

/// Posts a connect to `to` by `driver`. An attempt that is not decided after 15 s fails with [`ConnectError::TimedOut`].
pub fn connect(
    engine: &Arc<Engine>,
    driver: &dyn Driver,
    to: &Locator,
    place: &Place,
) -> Op<Result<VLink, ConnectError>> {
    let (op, completer) = Op::new(Arc::clone(engine));
    begin(engine, driver, to, place, Then::Tell(completer));
    op
}

/// As [`connect()`], completing by handler. What is returned may be dropped: the attempt goes on.
pub fn connect_with(
    engine: &Arc<Engine>,
    driver: &dyn Driver,
    to: &Locator,
    place: &Place,
    handler: Handler<(), Result<VLink, ConnectError>>,
) -> Attempting {
    Attempting(Arc::downgrade(&begin(engine, driver, to, place, Then::Call(handler))))
}

/// A connect that was posted with a handler, for a caller that may want to take it back.
#[derive(Clone)]
pub struct Attempting(Weak<Attempt>);

impl Attempting {
    /// Takes the attempt back, with its descriptor: its handler is called with [`ConnectError::Closed`] before this returns. Nothing
    /// happens once it is decided. Does not block.
    pub fn cancel(&self) {
        if let Some(attempt) = self.0.upgrade() {
            attempt.cancel();
        }
    }
}

impl core::fmt::Debug for Attempting {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(if self.0.strong_count() == 0 { "Attempting, over" } else { "Attempting" })
    }
}

fn begin(engine: &Arc<Engine>, driver: &dyn Driver, to: &Locator, place: &Place, then: Callback) -> Arc<Attempt> {
    let began = time::now_ns();
    let state = match driver.connect(to, place) {
        Ok(Connecting::Pending(pending)) => State::Going(pending),
        Ok(Connecting::Done(endpoint)) => State::Decided(Ok(Box::new(endpoint))),
        Err(error) => State::Decided(Err(error)),
    };
    let inner = Mutex::new(Inner { state, then: Some(then), registration: None });
    let attempt = Arc::new(Attempt { engine: Arc::clone(engine), driver: driver.name(), to: to.clone(), began, inner });
    attempt.start();
    attempt
}

/// What is called with the outcome.
type Callback = Then<(), Result<VLink, ConnectError>>;

/// A connection attempt, as the engine sees it.
struct Attempt {
    engine: Arc<Engine>,
    driver: &'static str,
    to: Locator,
    began: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    state: State,
    /// What is called; `None` once it was.
    then: Option<Callback>,
    registration: Option<Registration>,
}

enum State {
    Going(Box<dyn Pending>),
    Decided(Result<Box<Connection>, ConnectError>),
}

impl Attempt {
    /// The descriptor of a connect that is already decided is notified at once; everything else is the engine's.
    fn start(self: &Arc<Self>) {
        let mut inner = self.lock();
        if matches!((&inner.state, &inner.then), (State::Decided(_), Some(Then::Tell(_)))) {
            drop(inner);
            self.work(1);
            return;
        }
        let signal = match &inner.state {
            State::Going(pending) => Some(pending.signal()),
            State::Decided(_) => None,
        };
        let register =
            |signal| self.engine.register(self.engine.class(self.driver), signal, Arc::clone(self) as Arc<dyn Source>);
        let registered = register(signal).or_else(|errno| {
            // The kernel watches no more. The handler is told by the engine all the same: its caller may hold a lock that it takes.
            let os = Os(errno.raw_os_error());
            inner.state = State::Decided(Err(ConnectError::System { to: self.to.clone(), os }));
            register(None)
        });
        if let Ok(registration) = registered {
            registration.wake_at(self.deadline());
            registration.wake();
            inner.registration = Some(registration);
        }
    }

    fn cancel(&self) {
        let closed = || ConnectError::Closed { to: self.to.clone() };
        let mut inner = self.lock();
        let (then, registration) = (inner.then.take(), inner.registration.take());
        let state = mem::replace(&mut inner.state, State::Decided(Err(closed())));
        drop(inner);
        // The engine forgets the descriptor before it is closed.
        drop(registration);
        drop(state);
        complete(then, Err(closed()));
    }

    fn deadline(&self) -> u64 {
        self.began + PATIENCE_MS * 1_000_000
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has been decided, if anything.
    fn decision(&self, inner: &mut Inner) -> Option<Result<Box<Connection>, ConnectError>> {
        if let State::Going(pending) = &mut inner.state {
            match pending.poll() {
                Ok(Some(endpoint)) => return Some(Ok(Box::new(endpoint))),
                Err(error) => return Some(Err(error)),
                Ok(None) if time::now_ns() < self.deadline() => return None,
                Ok(None) => {}
            }
        }
        let waited_ms = (time::now_ns() - self.began) / 1_000_000;
        let late = State::Decided(Err(ConnectError::TimedOut { to: self.to.clone(), waited_ms }));
        match mem::replace(&mut inner.state, late) {
            State::Decided(decision) => Some(decision),
            State::Going(_) => Some(Err(ConnectError::TimedOut { to: self.to.clone(), waited_ms })),
        }
    }

    fn link(&self, endpoint: Connection) -> Result<VLink, ConnectError> {
        let failed = |os| ConnectError::System { to: self.to.clone(), os };
        let stream = adapter::adapt(endpoint).ok_or_else(|| ConnectError::NoDriver { to: self.to.clone() })?;
        VLink::new(&self.engine, self.engine.class(self.driver), stream).map_err(failed)
    }
}

impl Source for Attempt {
    fn work(&self, _budget: u32) -> Work {
        let nothing = Work { count: 0, next: Next::Park };
        let mut inner = self.lock();
        if inner.then.is_none() {
            return nothing;
        }
        let Some(decision) = self.decision(&mut inner) else { return nothing };
        let (then, registration) = (inner.then.take(), inner.registration.take());
        drop(inner);
        // Before the link is made: it registers the same descriptor.
        drop(registration);
        let outcome = decision.and_then(|endpoint| self.link(*endpoint));
        complete(then, outcome);
        Work { count: 1, next: Next::Park }
    }

    fn arm(&self) -> bool {
        false
    }
}

fn complete(then: Option<Callback>, outcome: Result<VLink, ConnectError>) {
    match then {
        Some(Then::Tell(completer)) => completer.complete(outcome),
        Some(Then::Call(handler)) => handler.call(&(), outcome),
        None => {}
    }
}
