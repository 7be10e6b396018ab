//! The connecting end: the first connection, on which both ends agree; and the further ones, which join it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use madrigal_adapters::contract::Lane;
use madrigal_adapters::stack::{Offer, agree};
use madrigal_adapters::tls::Role;
use madrigal_base::error::{ConnectError, Os};
use madrigal_base::locator::Locator;
use madrigal_progress::bell::Bell;
use madrigal_progress::driver::{Connection, Pending, Place, Signal};
use madrigal_progress::engine::Engine;
use madrigal_sys::{process, time};

use super::below::Below;
use super::ends::Made;
use super::greeting::{Greeting, Id, receive, send};
use super::link::{Further, Link};
use super::made_of::MadeOf;
use crate::connect::{Attempting, connect_with};
use crate::op::Handler;
use crate::vlink::VLink;

/// How long the other end may take to let a further connection in.
const PATIENCE: u64 = 15_000_000_000;
/// Where so many in a row are lost within this time, the next one waits: something on the way cuts them.
const LIVED: u64 = 1_000_000_000;
/// See [`LIVED`].
const MOST_SHORT: u32 = 16;
/// The pause after a further connection could not be made; twice as long each time, up to the second one.
const PAUSES: (u64, u64) = (1_000_000_000, 60_000_000_000);

/// Where the other end is, and how it is reached.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) engine: Arc<Engine>,
    pub(super) below: Below,
    pub(super) to: Locator,
    pub(super) place: Place,
}

impl Way {
    fn connect(&self, then: impl Fn(Result<VLink, ConnectError>) + Send + Sync + 'static) -> Attempting {
        connect_with(
            &self.engine,
            &*self.below,
            &self.to,
            &self.place,
            Handler::new(move |_: &(), outcome| then(outcome)),
        )
    }
}

/// An attempt to connect.
pub(super) struct Dial {
    bell: Arc<Bell>,
    to: Locator,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    outcome: Option<Result<Made, ConnectError>>,
    /// What ends with the attempt.
    attempting: Option<Attempting>,
    greeting: Option<VLink>,
    /// The link, until the other end is known.
    link: Option<Arc<Link>>,
    given_up: bool,
    /// The first connection is there: what is waited for is the process at its other end.
    stands: bool,
}

impl Dial {
    pub(super) fn begin(way: Way, made_of: MadeOf) -> Result<Ours, ConnectError> {
        let to = way.to.clone();
        let bell = Bell::new().map_err(|errno| ConnectError::System { to, os: Os(errno.raw_os_error()) })?;
        let dial = Arc::new(Self { bell: Arc::new(bell), to: way.to.clone(), inner: Mutex::default() });
        let (its, by) = (Arc::clone(&dial), way.clone());
        let attempting = way.connect(move |outcome| match outcome {
            Ok(link) => its.greet(&by, &made_of, &link),
            Err(error) => its.decide(Err(error)),
        });
        dial.lock().attempting = Some(attempting);
        Ok(Ours(dial))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn greet(self: &Arc<Self>, way: &Way, made_of: &MadeOf, link: &VLink) {
        let mut inner = self.lock();
        if inner.given_up {
            return;
        }
        (inner.greeting, inner.stands) = (Some(link.clone()), true);
        drop(inner);
        self.bell.ring();
        let id = Id(u128::from(process::random()) << 64 | u128::from(process::random()));
        send(link, &Greeting::Link(Some(id), made_of.offer.clone()));
        let (its, way, made_of) = (Arc::clone(self), way.clone(), made_of.clone());
        receive(
            link,
            Box::new(move |link, answer| {
                let made = match answer {
                    Ok(Greeting::Link(None, theirs)) => make(&way, id, (&made_of, &theirs), link),
                    Ok(Greeting::No(why)) => Err(format!("the other end refuses: {why}")),
                    Ok(_) => Err("the other end answers with another greeting than a link's".to_owned()),
                    Err(why) => Err(why),
                };
                let no_path = move |why| ConnectError::NoPath { to: way.to.to_string(), why };
                match made {
                    Ok(made) => its.wait(made, no_path),
                    Err(why) => its.decide(Err(no_path(why))),
                }
            }),
        );
    }

    /// Waits until the other end is known.
    fn wait(self: &Arc<Self>, made: Arc<Link>, no_path: impl FnOnce(String) -> ConnectError + Send + 'static) {
        let mut inner = self.lock();
        if inner.given_up {
            drop(inner);
            return made.end();
        }
        inner.link = Some(Arc::clone(&made));
        drop(inner);
        let its = Arc::clone(self);
        made.when_ready(Box::new(move |ready| {
            let link = its.lock().link.take();
            let Some(link) = link else { return };
            match ready {
                Ok(()) => its.decide(Ok(Made::new(&link))),
                Err(why) => {
                    link.end();
                    its.decide(Err(no_path(why)));
                }
            }
        }));
    }

    fn decide(&self, outcome: Result<Made, ConnectError>) {
        let mut inner = self.lock();
        inner.outcome = Some(outcome);
        let greeting = inner.greeting.take();
        drop(inner);
        drop(greeting);
        self.bell.ring();
    }
}

/// A link that both ends agreed on.
fn make(way: &Way, id: Id, (ours, theirs): (&MadeOf, &Offer), first: &VLink) -> Result<Arc<Link>, String> {
    let agreed = agree(&ours.offer, theirs).map_err(|refusal| refusal.to_string())?;
    let adapters = (ours.adapters(&agreed.stack, Role::Connecting)?, ours.linger);
    let most = usize::from(agreed.stack.streams().unwrap_or(1));
    let making = Arc::default();
    let further = Missing {
        way: way.clone(),
        id,
        most,
        making,
        dialling: 0,
        next: 1,
        pause: 0,
        wait: PAUSES.0,
        made_at: 0,
        short: 0,
    };
    let link =
        Link::new((&way.engine, way.engine.class(way.below.name())), adapters, first.clone(), Some(Box::new(further)));
    link.map_err(|errno| errno.to_string())
}

/// The attempt, as its owner has it: dropped, it is given up.
pub(super) struct Ours(Arc<Dial>);

impl Ours {
    /// The link, once it is decided.
    pub(super) fn made(&self) -> Result<Option<Made>, ConnectError> {
        self.0.lock().outcome.take().transpose()
    }

    /// Whether its first connection is there, so that only the process at the other end is waited for.
    pub(super) fn stands(&self) -> bool {
        self.0.lock().stands
    }
}

impl Pending for Ours {
    fn poll(&mut self) -> Result<Option<Connection>, ConnectError> {
        let connection = self.made()?.map(Made::connection).transpose();
        connection.map_err(|errno| ConnectError::System { to: self.0.to.clone(), os: Os(errno.raw_os_error()) })
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.0.bell) as Arc<dyn Signal>
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.given_up = true;
        let (attempting, greeting, outcome) = (inner.attempting.take(), inner.greeting.take(), inner.outcome.take());
        let link = inner.link.take();
        drop(inner);
        if let Some(link) = link {
            link.end();
        }
        if let Some(attempting) = attempting {
            attempting.cancel();
        }
        if let Some(greeting) = greeting {
            greeting.abort();
        }
        drop(outcome);
    }
}

/// The connections of a link beside its first one: as many as were agreed on, and new ones for those that are lost.
struct Missing {
    way: Way,
    id: Id,
    most: usize,
    making: Arc<Making>,
    /// How many are being made.
    dialling: usize,
    /// The number of the next one.
    next: u32,
    /// None is made before this time.
    pause: u64,
    /// The length of the next pause.
    wait: u64,
    /// When the last one was made, and how many in a row were lost soon after that.
    made_at: u64,
    short: u32,
}

impl Further for Missing {
    fn deadline(&self) -> u64 {
        let pause = if self.pause > 0 { self.pause } else { u64::MAX };
        pause.min(self.making.late_at())
    }

    fn not_made(&mut self, now: u64) {
        self.dialling = self.dialling.saturating_sub(1);
        self.rest(now);
    }

    fn dial(&mut self, now: u64, has: usize, link: &Arc<Link>) {
        self.making.end_late(now);
        if now < self.pause || has + self.dialling >= self.most {
            return;
        }
        self.pause = 0;
        if self.made_at > 0 {
            self.short = if now < self.made_at + LIVED { self.short + 1 } else { 0 };
            self.made_at = 0;
        }
        if self.short > MOST_SHORT {
            self.short = 0;
            return self.rest(now);
        }
        while has + self.dialling < self.most {
            self.dialling += 1;
            let (lane, id, link) = (Lane(self.next), self.id, Arc::downgrade(link));
            let making = Arc::clone(&self.making);
            self.next += 1;
            let attempting = self.way.connect(move |outcome| {
                let Some(link) = link.upgrade() else { return };
                match outcome {
                    Ok(by) if making.asks(lane, &by) => ask(&by, (id, lane), &link, &making),
                    _ => {
                        making.is_over(lane);
                        link.not_made();
                    }
                }
            });
            self.making.connects(lane, attempting);
        }
    }

    fn made(&mut self, now: u64) {
        self.dialling = self.dialling.saturating_sub(1);
        if self.short == 0 {
            self.wait = PAUSES.0;
        }
        self.made_at = now;
    }
}

impl Missing {
    /// None is made for a while.
    fn rest(&mut self, now: u64) {
        self.pause = now + self.wait;
        self.wait = (2 * self.wait).min(PAUSES.1);
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        self.making.give_up();
    }
}

/// Connections on their way to be one of a link's.
#[derive(Default)]
struct Making(Mutex<Underway>);

#[derive(Default)]
struct Underway {
    all: HashMap<Lane, Step>,
    given_up: bool,
}

enum Step {
    Connecting(Attempting),
    /// The other end is asked to take it, and must answer before that time.
    Asking(VLink, u64),
}

impl Making {
    fn lock(&self) -> MutexGuard<'_, Underway> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt was begun, which may have got further already.
    fn connects(&self, lane: Lane, attempting: Attempting) {
        self.lock().all.entry(lane).or_insert(Step::Connecting(attempting));
    }

    /// The connection is there. Whether it is still wanted.
    fn asks(&self, lane: Lane, by: &VLink) -> bool {
        let mut underway = self.lock();
        if !underway.given_up {
            underway.all.insert(lane, Step::Asking(by.clone(), time::now_ns() + PATIENCE));
        }
        !underway.given_up
    }

    /// The other end has answered, or is gone.
    fn is_over(&self, lane: Lane) {
        self.lock().all.remove(&lane);
    }

    /// Ends all, and those that are still to come.
    fn give_up(&self) {
        let mut underway = self.lock();
        underway.given_up = true;
        let all = std::mem::take(&mut underway.all);
        drop(underway);
        for step in all.into_values() {
            match step {
                Step::Connecting(attempting) => attempting.cancel(),
                Step::Asking(by, _) => by.abort(),
            }
        }
    }

    /// When the first answer is late; never: `u64::MAX`.
    fn late_at(&self) -> u64 {
        let until = |step: &Step| if let Step::Asking(_, until) = step { *until } else { u64::MAX };
        self.lock().all.values().map(until).min().unwrap_or(u64::MAX)
    }

    /// Closes connections whose other ends do not answer: what waits for the answer says that they are not made.
    fn end_late(&self, now: u64) {
        for step in self.lock().all.values_mut() {
            if let Step::Asking(by, until) = step
                && *until <= now
            {
                *until = u64::MAX;
                by.abort();
            }
        }
    }
}

/// Asks the other end to take a connection into a link.
fn ask(by: &VLink, (id, lane): (Id, Lane), link: &Arc<Link>, making: &Arc<Making>) {
    send(by, &Greeting::Join(Some((id, lane))));
    let (link, making) = (Arc::downgrade(link), Arc::clone(making));
    receive(
        by,
        Box::new(move |by, answer| {
            making.is_over(lane);
            let Some(link) = link.upgrade() else { return };
            match answer {
                Ok(Greeting::Join(None)) => link.made(lane, by.clone()),
                _ => link.not_made(),
            }
        }),
    );
}
