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
    /// The waiters, in order.
    wanted: VecDeque<Then<Arrival>>,
    /// Links without a waiter.
    arrived: VecDeque<Arrival>,
    /// For each acceptor, whether an accept is posted.
    posted: Vec<bool>,
    closed: bool,
}

impl Listeners {
    pub(crate) fn new(runtime: Arc<Runtime>, address: String, acceptors: Vec<Acceptor>) -> Arc<Self> {
        let queue = Mutex::new(Queue { posted: vec![false; acceptors.len()], ..Queue::default() });
        Arc::new(Self { runtime, address, acceptors, queue })
    }

    /// The next link goes to `then`.
    pub(crate) fn accept(self: &Arc<Self>, then: Then<Arrival>) {
        let mut queue = lock(&self.queue);
        if queue.closed {
            drop(queue);
            then.complete(Err(self.closed()));
            return;
        }
        queue.wanted.push_back(then);
        drop(queue);
        self.post();
        self.serve();
    }

    /// Closes the acceptors, the links without a waiter, and the waiting accepts.
    pub(crate) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        let (wanted, arrived) = (core::mem::take(&mut queue.wanted), core::mem::take(&mut queue.arrived));
        drop(queue);
        self.acceptors.iter().for_each(Acceptor::close);
        drop(arrived);
        wanted.into_iter().for_each(|then| drop(then.complete(Err(self.closed()))));
        self.runtime.engine().call_all();
    }

    /// The waiter with that slot gives up. Returns a link that it got already.
    pub(crate) fn give_up(&self, slot: &Arc<Slot<Arrival>>) -> Option<Arrival> {
        let is_his = |then: &Then<Arrival>| matches!(then, Then::Keep(his) if Arc::ptr_eq(his, slot));
        lock(&self.queue).wanted.retain(|then| !is_his(then));
        slot.give_up()
    }

    /// A link whose waiter has given up goes to the next one.
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

    /// Posts an accept at every acceptor while there is a waiter.
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

    /// Gives links to waiters, both in order.
    fn serve(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let Some(arrival) = queue.arrived.pop_front() else { return };
            let Some(then) = queue.wanted.pop_front() else {
                queue.arrived.push_front(arrival);
                return;
            };
            drop(queue);
            if let Some(back) = then.complete(arrival) {
                // The waiter has given up: the next one gets it.
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
