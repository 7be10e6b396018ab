//! Links of messages of which a part may be lost: for data that is better in time than whole. What that means is in
//! [`madrigal_adapters::vrp`].
//!
//! Both ends name the same [classes](Class), of which each message has one. A message arrives whole but for pieces; both ends are told of the
//! same ones ([`Arrived::lost`], [`Settled::lost`]), and never more is lost than the class's tolerance. One whose deadline passes first fails
//! as a whole, and both ends are told.
//!
//! Calls with a deadline (nanoseconds of [`madrigal_sys::time::now_ns`]; `None`: without end; one that has passed: only look) turn the engine
//! while they wait. The others do not block. All may be called from any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use madrigal_adapters::vrp::{Message, Refused};
use madrigal_base::error::{AcceptError, ConnectError, ListenError, ReadError};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::Waker;
use madrigal_progress::wait::Waiter;
use madrigal_sys::time;

use crate::driver::{Attempt, Udp};
use crate::link::{Link, Why};
use crate::port::{NAME, Port};
use crate::traffic::Id;

pub use madrigal_adapters::vrp::{Arrived, Class, LONGEST, Lost, Settled};

/// How long an attempt to connect may take.
const PATIENCE_MS: u64 = 15_000;
/// What carries it, in errors.
const VRP: &str = "vrp";

/// Why a message was not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There is no such class, or the message is empty or too long, or its class has had all messages that it can have.
    #[error("cannot send to {peer}: {why}")]
    Refused {
        /// The peer.
        peer: Locator,
        /// What is wrong.
        why: Refused,
    },
    /// There is no room now; there is when earlier messages are settled, or too late.
    #[error("cannot send to {peer} now: too much waits to be sent")]
    Full {
        /// The peer.
        peer: Locator,
    },
    /// The peer closed or died.
    #[error("cannot send to {peer}: it closed the link or died")]
    Gone {
        /// The peer.
        peer: Locator,
    },
    /// Our own side closed the link.
    #[error("cannot send to {peer}: we closed the link")]
    Closed {
        /// The peer.
        peer: Locator,
    },
}

/// What a receive gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Received {
    /// A message.
    Message(Arrived),
    /// None came in time.
    Nothing,
    /// The peer closed, and every message was received. Stays so.
    End,
}

/// Accepts links. Dropped, it listens no more; links that it gave live on.
pub struct LossyAcceptor {
    port: Arc<Port>,
    at: Locator,
    waiter: Waiter,
    closed: AtomicBool,
}

impl LossyAcceptor {
    /// Listens at an address: links can arrive as soon as this returns.
    pub fn listen(by: &Udp, at: &Locator) -> Result<Self, ListenError> {
        let port = by.port_at(at)?;
        let at = Locator::inet(NAME, port.lock().at());
        Ok(Self { port, at, waiter: Waiter::default(), closed: AtomicBool::new(false) })
    }

    /// Where it really listens: a port left open is filled in.
    pub fn locator(&self) -> &Locator {
        &self.at
    }

    /// Waits for the next link; `None`: none came in time.
    pub fn accept(&self, deadline: Option<u64>) -> Result<Option<LossyLink>, AcceptError> {
        let (mut accepted, mut closed) = (None, false);
        self.port.engine.wait_until(&self.waiter, deadline, || {
            let mut inner = self.port.lock();
            accepted = accepted.take().or_else(|| inner.accept().map(|id| (id, inner.peer(id))));
            closed = self.closed.load(Ordering::Relaxed);
            accepted.is_some() || closed
        });
        match accepted {
            Some((id, peer)) => {
                // One that has ended already still gives what came.
                let peer = peer.map_or_else(|| self.at.clone(), |at| Locator::inet(NAME, at));
                Ok(Some(LossyLink::new(Arc::clone(&self.port), id, peer)))
            }
            None if closed => Err(AcceptError::Closed { at: self.at.clone() }),
            None => Ok(None),
        }
    }

    /// Listens no more. Accepts that wait fail; links that nobody has accepted are closed.
    pub fn close(&self) {
        if !self.closed.swap(true, Ordering::Relaxed) {
            self.port.stop();
            self.port.engine.call_all();
        }
    }
}

impl Drop for LossyAcceptor {
    fn drop(&mut self) {
        self.close();
    }
}

/// A link that is being made. Dropped, it is given up.
pub struct Connecting {
    attempt: Attempt,
    began: u64,
}

impl Connecting {
    /// Begins to connect.
    pub fn begin(by: &Udp, to: &Locator) -> Result<Self, ConnectError> {
        Ok(Self { attempt: by.begin(to)?, began: time::now_ns() })
    }

    /// Waits until it is decided; gives it back where it was not in time. An attempt that is not decided after 15 s fails.
    pub fn wait(mut self, deadline: Option<u64>) -> Result<Result<LossyLink, Self>, ConnectError> {
        let last = self.began + PATIENCE_MS * 1_000_000;
        let until = deadline.map_or(last, |deadline| deadline.min(last));
        let engine = Arc::clone(&self.attempt.port.engine);
        engine.wait_until(&Waiter::default(), Some(until), || self.attempt.is_open() != Ok(false));
        if self.attempt.is_open()? {
            self.attempt.keep();
            let Attempt { port, id, to, .. } = &self.attempt;
            return Ok(Ok(LossyLink::new(Arc::clone(port), *id, to.clone())));
        }
        let waited_ms = (time::now_ns() - self.began) / 1_000_000;
        if waited_ms < PATIENCE_MS {
            Ok(Err(self))
        } else {
            Err(ConnectError::TimedOut { to: self.attempt.to.clone(), waited_ms })
        }
    }
}

/// A link of messages. Dropped, it is closed; what was sent goes on for as long as the engine is turned.
pub struct LossyLink {
    port: Arc<Port>,
    id: Id,
    peer: Locator,
    /// One for receives, one for reports and for room.
    waiters: [Waiter; 2],
    closed: AtomicBool,
}

impl LossyLink {
    fn new(port: Arc<Port>, id: Id, peer: Locator) -> Self {
        Self { port, id, peer, waiters: Default::default(), closed: AtomicBool::new(false) }
    }

    /// The other end.
    pub fn peer(&self) -> &Locator {
        &self.peer
    }

    /// Takes a message of a class, 1 to [`LONGEST`] bytes, and returns its number in the class, counted from 0. It is to be there within so
    /// many nanoseconds; `None`: it may take any time. [`SendError::Full`] is back-pressure: 16 MiB wait.
    pub fn send(&self, class: u8, bytes: Vec<u8>, within: Option<u64>) -> Result<u32, SendError> {
        let peer = || self.peer.clone();
        if self.closed.load(Ordering::Relaxed) {
            return Err(SendError::Closed { peer: peer() });
        }
        self.port.run(|inner, now| {
            let link =
                inner.stir(self.id).filter(|link| link.is_open()).ok_or_else(|| SendError::Gone { peer: peer() })?;
            let deadline = within.map(|within| now.saturating_add(within));
            link.send(class, Message { bytes, deadline }).map_err(|why| match why {
                Refused::Full(_) => SendError::Full { peer: peer() },
                why => SendError::Refused { peer: peer(), why },
            })
        })
    }

    /// Waits until there is room for so many bytes, or the link is over; false: there was none in time.
    pub fn wait_for_room(&self, bytes: usize, deadline: Option<u64>) -> bool {
        self.wait(1, deadline, |link| link.has_room(bytes) || link.why().is_some())
    }

    /// Waits for the next message: those of a class come in order, those of two do not wait for each other.
    pub fn receive(&self, deadline: Option<u64>) -> Result<Received, ReadError> {
        self.wait(0, deadline, |link| link.is_readable() || link.why().is_some());
        let mut inner = self.port.lock();
        let Some(link) = inner.link_mut(self.id).filter(|_| !self.closed.load(Ordering::Relaxed)) else {
            return Err(ReadError::Closed { peer: self.peer.clone() });
        };
        if let Some(arrived) = link.take_any() {
            let owes = link.owes();
            drop(inner);
            if owes {
                // There is room for more.
                self.port.run(|inner, _| inner.stir(self.id).is_some());
            }
            return Ok(Received::Message(arrived));
        }
        match link.why() {
            _ if link.is_at_end() => Ok(Received::End),
            None => Ok(Received::Nothing),
            Some(Why::Corrupt) => Err(ReadError::Corrupt { peer: self.peer.clone(), what: VRP }),
            Some(_) => Err(ReadError::Reset { peer: self.peer.clone() }),
        }
    }

    /// Waits for what became of a message that was sent; each is told once, and of no more than 65,536 that nobody asked for, the last ones.
    /// `None`: of none in time, or the link is over.
    pub fn settled(&self, deadline: Option<u64>) -> Option<Settled> {
        self.wait(1, deadline, |link| link.has_report() || link.why().is_some());
        self.port.lock().link_mut(self.id)?.report()
    }

    /// Waits until it is known of every message what became of it; false: not in time. An error: it will not be known of some, for the peer
    /// is gone.
    pub fn flush(&self, deadline: Option<u64>) -> Result<bool, ReadError> {
        self.wait(1, deadline, |link| link.is_settled() || link.why().is_some());
        let inner = self.port.lock();
        match inner.link(self.id) {
            Some(link) if link.is_settled() => Ok(true),
            Some(link) if link.why().is_none() => Ok(false),
            _ => Err(ReadError::Reset { peer: self.peer.clone() }),
        }
    }

    /// Sends no more: behind the last message the peer finds the end. What is not settled goes on; what the peer sends is dropped.
    pub fn close(&self) {
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        let engine = Arc::clone(&self.port.engine);
        engine.lingering().fetch_add(1, Ordering::Relaxed);
        let then: Waker = Arc::new(move || _ = engine.lingering().fetch_sub(1, Ordering::Relaxed));
        let left = self.port.run(|inner, _| match inner.stir(self.id) {
            Some(link) => {
                link.finish(Some(then));
                None
            }
            None => Some(then),
        });
        left.into_iter().for_each(|then| then());
        self.port.engine.call_all();
    }

    fn wait(&self, which: usize, deadline: Option<u64>, done: impl Fn(&Link) -> bool) -> bool {
        let Some(waiter) = self.waiters.get(which) else { return false };
        self.port.engine.wait_until(waiter, deadline, || {
            self.closed.load(Ordering::Relaxed) || self.port.lock().link(self.id).is_none_or(&done)
        })
    }
}

impl Drop for LossyLink {
    fn drop(&mut self) {
        self.close();
    }
}

impl core::fmt::Debug for LossyLink {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "LossyLink to {}", self.peer)
    }
}

impl core::fmt::Debug for LossyAcceptor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "LossyAcceptor at {}", self.at)
    }
}
