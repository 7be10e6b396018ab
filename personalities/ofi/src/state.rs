//! Everything of a domain that changes, behind the domain's lock; and what is done with the ends of operations.

mod addresses;
mod bindings;
mod endpoint;
mod queues;

use madrigal_message::endpoint::{Endpoint, PeerId, Region, Status};

use crate::slab::Slab;
use crate::worker;

pub(crate) use addresses::AvState;
pub(crate) use bindings::{Bindings, NO_REQUEST, Request, Role};
pub(crate) use endpoint::EpState;
pub(crate) use queues::{CntrState, CqState, Entry, Failure, Queues};

/// The state of a domain.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) avs: Slab<AvState>,
    pub(crate) queues: Queues,
    pub(crate) eps: Slab<EpState>,
    /// The regions every endpoint exposes.
    pub(crate) regions: Vec<Region>,
    pub(crate) next_key: u64,
    /// An address vector waits for the node at a place.
    pub(crate) asking: bool,
    /// The ports were notified that no thread polls.
    pub(crate) armed: bool,
}

impl State {
    /// Polls every endpoint and files the completions. Returns how many there were.
    #[inline]
    pub(crate) fn progress(&mut self) -> usize {
        let Self { avs, queues, eps, asking, armed, .. } = self;
        if *asking {
            *asking = avs.iter_mut().fold(false, |more, av| av.handle() | more);
        }
        let mut count = 0;
        // One poll of the peers serves all endpoints.
        let mut first = true;
        for ep in eps.iter_mut().filter(|ep| ep.enabled) {
            ep.sync(avs);
            let EpState { link, bindings, done, server, .. } = ep;
            if std::mem::take(armed) {
                link.worker().woken();
            }
            count += link.drain(done, first);
            for done in done.drain(..) {
                if done.status == Status::Gone {
                    bindings.why = why(link, done.from);
                }
                bindings.file(&done, queues);
            }
            first = false;
            if let Some(server) = server {
                server.answer(|| link.address());
            }
        }
        count
    }
}

/// The number of the text that the user got about a lost peer.
#[cold]
fn why(link: &Endpoint, peer: Option<PeerId>) -> Option<i32> {
    let peer = peer?;
    worker::explain(link.address().id, &link.who(peer)?, &link.why(peer)?)
}
