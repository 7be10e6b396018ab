//! Listeners: one acceptor, or one for each driver.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use madrigal::error::AcceptError;
use madrigal::{Acceptor, Handler, VLink};

use crate::codes::MDG_ECLOSED;
use crate::failure::Failure;
use crate::runtime::Runtime;
use crate::slot::{Slot, Then, lock};

/// A link that arrived.
pub(crate) type Arrival = Result<VLink, Failure>;

/// The listeners of an address.
pub(crate) struct Listeners {
    pub(crate) runtime: Arc<Runtime>,
    /// What others connect to: a locator, or a card.
    pub(crate) address: String,
    acceptors: Vec<Acceptor>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Who waits, in order.
    wanted: VecDeque<Then<Arrival>>,
    /// What arrived and nobody waited for any more.
    arrived: VecDeque<Arrival>,
    /// At which acceptors an accept is posted.
    posted: Vec<bool>,
    closed: bool,
}

impl Listeners {
    pub(crate) fn new(runtime: Arc<Runtime>, address: String, acceptors: Vec<Acceptor>) -> Arc<Self> {
        let queue = Mutex::new(Queue { posted: vec![false; acceptors.len()], ..Queue::default() });
        Arc::new(Self { runtime, address, acceptors, queue })
    }

    /// The next link is told to `then`.
    pub(crate) fn accept(self: &Arc<Self>, then: Then<Arrival>) {
        let mut queue = lock(&self.queue);
        if queue.closed {
            drop(queue);
            then.tell(Err(self.closed()));
            return;
        }
        queue.wanted.push_back(then);
        drop(queue);
        self.post();
        self.serve();
    }

    /// Nobody listens any more.
    pub(crate) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        let (wanted, arrived) = (core::mem::take(&mut queue.wanted), core::mem::take(&mut queue.arrived));
        drop(queue);
        self.acceptors.iter().for_each(Acceptor::close);
        drop(arrived);
        wanted.into_iter().for_each(|then| drop(then.tell(Err(self.closed()))));
        self.runtime.engine().call_all();
    }

    /// Who waited with that slot waits no more; what it got all the same.
    pub(crate) fn give_up(&self, slot: &Arc<Slot<Arrival>>) -> Option<Arrival> {
        let is_his = |then: &Then<Arrival>| matches!(then, Then::Keep(his) if Arc::ptr_eq(his, slot));
        lock(&self.queue).wanted.retain(|then| !is_his(then));
        slot.give_up()
    }

    /// What arrived for somebody who does not want it any more is the next one's.
    pub(crate) fn give_back(&self, arrival: Arrival) {
        let mut queue = lock(&self.queue);
        if !queue.closed {
            queue.arrived.push_front(arrival);
        }
        drop(queue);
        self.serve();
    }

    fn closed(&self) -> Failure {
        Failure::new(MDG_ECLOSED, format!("cannot accept at {}: we closed it", self.address))
    }

    /// Sees to it that an accept is posted at every acceptor while somebody waits.
    fn post(self: &Arc<Self>) {
        for (at, acceptor) in self.acceptors.iter().enumerate() {
            let mut queue = lock(&self.queue);
            let is_due = !queue.closed && !queue.wanted.is_empty() && queue.arrived.is_empty();
            let Some(posted) = queue.posted.get_mut(at).filter(|posted| is_due && !**posted) else { continue };
            *posted = true;
            drop(queue);
            let listeners = Arc::downgrade(self);
            acceptor.accept_with(Handler::new(move |_, outcome| arrive(&listeners, at, outcome)));
        }
    }

    /// Brings together who waits and what arrived.
    fn serve(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let Some(arrival) = queue.arrived.pop_front() else { return };
            let Some(then) = queue.wanted.pop_front() else {
                queue.arrived.push_front(arrival);
                return;
            };
            drop(queue);
            if let Some(back) = then.tell(arrival) {
                // He gave up: the next gets it.
                lock(&self.queue).arrived.push_front(back);
            }
        }
    }
}

/// An accept completed at one of the acceptors.
fn arrive(listeners: &Weak<Listeners>, at: usize, outcome: Result<VLink, AcceptError>) {
    let Some(listeners) = listeners.upgrade() else { return };
    let mut queue = lock(&listeners.queue);
    if let Some(posted) = queue.posted.get_mut(at) {
        *posted = false;
    }
    if queue.closed {
        return;
    }
    queue.arrived.push_back(outcome.map_err(Failure::from));
    drop(queue);
    listeners.serve();
    listeners.post();
}
