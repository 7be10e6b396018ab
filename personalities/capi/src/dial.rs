//! Connecting: to an address by the driver it names, or to a process by its card and the best path there is.

use std::sync::{Arc, Mutex};

use madrigal::error::ConnectError;
use madrigal::locator::Locator;
use madrigal::{Card, Choice, Handler, VLink};

use crate::failure::Failure;
use crate::runtime::Runtime;
use crate::slot::{Then, lock};

/// A link that was made, and why it goes the way it goes, where that was chosen.
pub(crate) type Made = Result<(VLink, Option<Choice>), Failure>;

/// Connects to a locator or a card, and tells `then`. An error at once: the text is neither.
pub(crate) fn dial(runtime: &Arc<Runtime>, to: &str, then: Then<Made>) -> Result<(), Failure> {
    if to.starts_with("madrigal:") {
        reach(runtime, to.parse::<Card>()?, None, then);
        return Ok(());
    }
    let to: Locator = to.parse()?;
    let then = once(move |outcome: Result<VLink, ConnectError>| {
        then.tell(outcome.map(|link| (link, None)).map_err(Failure::from));
    });
    runtime.api.connect_with(&to, then)?;
    Ok(())
}

/// Tries the best path to a process; if it fails, the next best. `failed`: what the last one tried gave.
fn reach(runtime: &Arc<Runtime>, card: Card, failed: Option<Failure>, then: Then<Made>) {
    let choice = match runtime.api.choose(&card) {
        Ok(choice) => choice,
        Err(error) => {
            then.tell(Err(failed.unwrap_or_else(|| Failure::from(error))));
            return;
        }
    };
    let by = choice.path.driver().to_owned();
    let Some(to) = card.locators.iter().find(|locator| locator.scheme() == by).cloned() else {
        then.tell(Err(failed.unwrap_or_else(|| Failure::new(crate::codes::MDG_ENOPATH, format!("no {by} in {card}")))));
        return;
    };
    let again = Arc::clone(runtime);
    let handler = once(move |outcome: Result<VLink, ConnectError>| match outcome {
        Ok(link) => drop(then.tell(Ok((link, Some(choice))))),
        Err(error) => {
            let mut rest = card;
            rest.locators.retain(|locator| locator.scheme() != by);
            reach(&again, rest, Some(Failure::from(error)), then);
        }
    });
    // The card has only addresses of drivers there are: `choose` names no other.
    let _ = runtime.api.connect_with(&to, handler);
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
