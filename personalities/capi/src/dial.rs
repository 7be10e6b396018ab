//! Connecting: to an address by the driver and the adapters it names, or to a process by its card and the best path there is.

use std::sync::{Arc, Mutex, Weak};

use madrigal::error::ConnectError;
use madrigal::{Address, Attempting, Card, Choice, Handler, VLink};

use crate::codes::{MDG_ECLOSED, MDG_ENOPATH};
use crate::failure::Failure;
use crate::runtime::{Pending, Runtime};
use crate::slot::{Slot, Then, lock};

/// A link that was made, and the choice of its path, if there was one.
pub(crate) type Made = Result<(VLink, Option<Choice>), Failure>;

/// A connect under way: one attempt, or one after the other where there are several paths.
pub(crate) struct Dial {
    runtime: Arc<Runtime>,
    /// The receiver of the result; `None` once it was notified, or gave up.
    then: Mutex<Option<Then<Made>>>,
    /// What was tried; at most one of them is not over.
    attempts: Mutex<Vec<Attempting>>,
}

/// Connects to a locator or a card, and passes the result to `then`. Returns an error if the text is neither, or the runtime is closed.
pub(crate) fn dial(runtime: &Arc<Runtime>, to: &str, then: Then<Made>) -> Result<Arc<Dial>, Failure> {
    let dial = Dial { runtime: Arc::clone(runtime), then: Mutex::new(Some(then)), attempts: Mutex::default() };
    let dial = Arc::new(dial);
    if to.starts_with("madrigal:") {
        let card = to.parse()?;
        runtime.begins(pending(&dial))?;
        dial.reach(card, None);
        return Ok(dial);
    }
    let to: Address = to.parse()?;
    runtime.begins(pending(&dial))?;
    let its = Arc::clone(&dial);
    dial.attempt(&to, move |outcome| its.complete(outcome.map(|link| (link, None)).map_err(Failure::from)))?;
    Ok(dial)
}

impl Dial {
    /// The waiter with that slot gives up, and the attempts end. Returns a result that is there already.
    pub(crate) fn give_up(&self, slot: &Slot<Made>) -> Option<Made> {
        let then = lock(&self.then).take();
        drop(then);
        self.stop();
        slot.give_up()
    }

    fn complete(&self, made: Made) {
        let then = lock(&self.then).take();
        // If the waiter has given up, the link is closed.
        drop(then.map(|then| then.complete(made)));
    }

    fn stop(&self) {
        let attempts = core::mem::take(&mut *lock(&self.attempts));
        attempts.iter().for_each(Attempting::cancel);
    }

    fn is_over(&self) -> bool {
        lock(&self.then).is_none()
    }

    /// Tries one path; `then` is called once.
    fn attempt(
        &self,
        to: &Address,
        then: impl FnOnce(Result<VLink, ConnectError>) + Send + 'static,
    ) -> Result<(), Failure> {
        let attempt = self.runtime.api.connect_with(to, once(then))?;
        lock(&self.attempts).push(attempt);
        // A waiter that gave up meanwhile did not see this attempt.
        if self.is_over() {
            self.stop();
        }
        Ok(())
    }

    /// Tries the best path to a process; if it fails, the next best. `failed`: the error of the last attempt.
    fn reach(self: &Arc<Self>, card: Card, failed: Option<Failure>) {
        if self.is_over() {
            return;
        }
        let choice = match self.runtime.api.choose(&card) {
            Ok(choice) => choice,
            Err(error) => return self.complete(Err(failed.unwrap_or_else(|| Failure::from(error)))),
        };
        let by = choice.path.driver().to_owned();
        let Some(to) = card.locators.iter().find(|locator| locator.scheme() == by).cloned() else {
            let none = || Failure::new(MDG_ENOPATH, format!("no {by} in {card}"));
            return self.complete(Err(failed.unwrap_or_else(none)));
        };
        let its = Arc::clone(self);
        let outcome = self.attempt(&Address::from(to), move |outcome| match outcome {
            Ok(link) => its.complete(Ok((link, Some(choice)))),
            Err(error) => {
                let mut rest = card;
                rest.locators.retain(|locator| locator.scheme() != by);
                its.reach(rest, Some(Failure::from(error)));
            }
        });
        // The card has only addresses of drivers there are: `choose` names no other.
        if let Err(failure) = outcome {
            self.complete(Err(failure));
        }
    }
}

impl Pending for Dial {
    fn close(&self) {
        self.complete(Err(Failure::new(MDG_ECLOSED, "cannot connect: the runtime is closed")));
        self.stop();
    }
}

/// What the runtime keeps of a connect.
fn pending(dial: &Arc<Dial>) -> Weak<dyn Pending> {
    let dial: Weak<Dial> = Arc::downgrade(dial);
    dial
}

/// A handler that is called once.
fn once<T: 'static>(call: impl FnOnce(T) + Send + 'static) -> Handler<(), T> {
    let call = Mutex::new(Some(call));
    Handler::new(move |(), outcome| {
        let call = lock(&call).take();
        if let Some(call) = call {
            call(outcome);
        }
    })
}
