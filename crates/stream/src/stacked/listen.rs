//! The accepting end: connections that greet become links, or join one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use madrigal_adapters::contract::Lane;
use madrigal_adapters::stack::{Offer, agree};
use madrigal_adapters::tls::Role;
use madrigal_base::error::{AcceptError, ListenError, Os};
use madrigal_base::locator::Locator;
use madrigal_progress::bell::Bell;
use madrigal_progress::driver::{Connection, Driver, Listener, Place, Signal};
use madrigal_progress::engine::Engine;
use madrigal_sys::time;

use super::ends::Made;
use super::greeting::{Greeting, Id, receive, send};
use super::link::Link;
use super::made_of::MadeOf;
use crate::acceptor::Acceptor;
use crate::op::Handler;
use crate::vlink::VLink;

/// The most connections that have not greeted: where there are more, the oldest one is closed.
const MOST_SILENT: usize = 1024;
/// The most links that nobody has accepted: then no connection is taken, as a kernel does it.
const MOST_READY: usize = 128;
/// One that has not greeted after this time is closed when another one comes.
const PATIENCE: u64 = 10_000_000_000;

/// Accepts the connections of links, and makes links of them.
pub(super) struct Greeter {
    engine: Arc<Engine>,
    class: &'static str,
    made_of: MadeOf,
    bell: Arc<Bell>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Links, or errors of the listener, that nobody has accepted.
    ready: VecDeque<Result<Made, AcceptError>>,
    /// Links that more connections may join.
    links: HashMap<Id, Weak<Link>>,
    /// Connections that have not greeted, and those of links whose other end is not known; oldest first, and since when.
    silent: VecDeque<(u64, VLink)>,
    /// No accept is posted, for there are too many.
    paused: bool,
    closed: bool,
}

impl Greeter {
    pub(super) fn listen(
        engine: &Arc<Engine>,
        below: &dyn Driver,
        (at, place): (&Locator, &Place),
        made_of: MadeOf,
    ) -> Result<Ours, ListenError> {
        let failed = |errno: madrigal_sys::Errno| ListenError::System { at: at.clone(), os: Os(errno.raw_os_error()) };
        let bell = Arc::new(Bell::new().map_err(failed)?);
        let acceptor = Acceptor::listen(engine, below, at, place)?;
        let at = acceptor.locator().clone();
        let (engine, class, inner) = (Arc::clone(engine), below.name(), Mutex::default());
        let greeter = Arc::new(Self { engine, class, made_of, bell, inner });
        greeter.post(&acceptor);
        Ok(Ours { greeter, acceptor, at })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next connection when it comes, and so on.
    fn post(self: &Arc<Self>, acceptor: &Acceptor) {
        let its = Arc::downgrade(self);
        acceptor.accept_with(Handler::new(move |acceptor: &Acceptor, outcome: Result<VLink, AcceptError>| {
            let Some(its) = its.upgrade() else { return };
            match outcome {
                Ok(link) => its.receive(&link),
                Err(AcceptError::Closed { .. }) => return,
                Err(error) => its.ready(Err(error)),
            }
            let mut inner = its.lock();
            inner.paused = inner.ready.len() >= MOST_READY;
            let goes_on = !inner.paused;
            drop(inner);
            if goes_on {
                its.post(acceptor);
            }
        }));
    }

    fn ready(&self, outcome: Result<Made, AcceptError>) {
        self.lock().ready.push_back(outcome);
        self.bell.ring();
    }

    fn receive(self: &Arc<Self>, link: &VLink) {
        if !self.wait_for(link) {
            return;
        }
        let its = Arc::downgrade(self);
        receive(
            link,
            Box::new(move |link, greeting| {
                if let Some(its) = its.upgrade() {
                    its.greeted(link, greeting);
                }
            }),
        );
    }

    /// Keeps a connection until its other end is known, for a time. Whether there is somebody to wait for it.
    fn wait_for(&self, link: &VLink) -> bool {
        let (mut inner, now) = (self.lock(), time::now_ns());
        if inner.closed {
            return false;
        }
        inner.silent.push_back((now, link.clone()));
        let is_late = |(since, _): &(u64, VLink), count: usize| count > MOST_SILENT || since + PATIENCE < now;
        let mut late = Vec::new();
        while inner.silent.front().is_some_and(|front| is_late(front, inner.silent.len())) {
            late.extend(inner.silent.pop_front());
        }
        drop(inner);
        late.iter().for_each(|(_, link)| link.abort());
        true
    }

    /// Whether a connection has waited, and not for too long. It waits no longer.
    fn has_waited(&self, link: &VLink) -> bool {
        let mut inner = self.lock();
        let before = inner.silent.len();
        inner.silent.retain(|(_, silent)| silent.id() != link.id());
        inner.silent.len() < before && !inner.closed
    }

    fn greeted(self: &Arc<Self>, link: &VLink, greeting: Result<Greeting, String>) {
        // One that was late is closed already.
        let is_welcome = self.has_waited(link);
        match greeting {
            Ok(Greeting::Link(Some(id), offer)) if is_welcome => self.begin(link, id, &offer),
            Ok(Greeting::Join(Some((id, lane)))) if is_welcome => self.join(link, id, lane),
            Err(why) if is_welcome => refuse(link, why),
            _ => link.abort(),
        }
    }

    /// A new link, if both ends agree on what it is made of; it is to be had once the other end is known.
    fn begin(self: &Arc<Self>, first: &VLink, id: Id, theirs: &Offer) {
        let agreed = match agree(&self.made_of.offer, theirs) {
            Ok(agreed) => agreed,
            Err(refusal) => return refuse(first, refusal.to_string()),
        };
        let adapters = match self.made_of.adapters(&agreed.stack, Role::Accepting) {
            Ok(adapters) => adapters,
            Err(why) => return refuse(first, why),
        };
        if !self.wait_for(first) {
            return first.abort();
        }
        // Connections that join may come as soon as the other end has the answer, and wait for this lock.
        let mut inner = self.lock();
        send(first, &Greeting::Link(None, self.made_of.offer.clone()));
        let adapters = (adapters, self.made_of.linger);
        let made = Link::new((&self.engine, self.engine.class(self.class)), adapters, first.clone(), None);
        let Ok(link) = made else { return first.abort() };
        inner.links.retain(|_, link| link.strong_count() > 0);
        inner.links.insert(id, Arc::downgrade(&link));
        drop(inner);
        let (its, first, made) = (Arc::downgrade(self), first.clone(), Arc::clone(&link));
        link.when_ready(Box::new(move |ready| {
            let its = its.upgrade().filter(|its| its.has_waited(&first));
            match (its, ready) {
                (Some(its), Ok(())) => its.ready(Ok(Made::new(&made))),
                _ => made.end(),
            }
        }));
    }

    fn join(&self, by: &VLink, id: Id, lane: Lane) {
        let link = self.lock().links.get(&id).and_then(Weak::upgrade);
        match link {
            Some(link) if link.can_join(lane) => {
                send(by, &Greeting::Join(None));
                link.join(lane, by.clone());
            }
            Some(_) => refuse(by, "the link takes no such connection now".to_owned()),
            None => refuse(by, "there is no such link".to_owned()),
        }
    }
}

/// Says why not, and closes.
fn refuse(link: &VLink, why: String) {
    send(link, &Greeting::No(why));
    drop(link.close());
}

/// The listener, as its owner has it.
pub(super) struct Ours {
    greeter: Arc<Greeter>,
    acceptor: Acceptor,
    at: Locator,
}

impl Ours {
    /// The next link that nobody has accepted.
    pub(super) fn next(&self) -> Result<Option<Made>, AcceptError> {
        let mut inner = self.greeter.lock();
        let front = inner.ready.pop_front();
        let goes_on = std::mem::take(&mut inner.paused);
        drop(inner);
        if goes_on {
            self.greeter.post(&self.acceptor);
        }
        front.transpose()
    }

    /// Listens no more; links that nobody has accepted end.
    pub(super) fn close(&self) {
        self.acceptor.close();
        let mut inner = self.greeter.lock();
        inner.closed = true;
        let (ready, silent) = (std::mem::take(&mut inner.ready), std::mem::take(&mut inner.silent));
        drop(inner);
        silent.iter().for_each(|(_, link)| link.abort());
        drop(ready);
    }
}

impl Listener for Ours {
    fn accept(&mut self) -> Result<Option<Connection>, AcceptError> {
        let connection = self.next()?.map(Made::connection).transpose();
        connection.map_err(|errno| AcceptError::System { at: self.at.clone(), os: Os(errno.raw_os_error()) })
    }

    fn locator(&self) -> &Locator {
        &self.at
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.greeter.bell) as Arc<dyn Signal>
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.close();
    }
}
