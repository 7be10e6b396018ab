//! Everything of a domain that changes, behind the domain's lock; and what is done with the ends of operations.

use std::collections::VecDeque;
use std::sync::Arc;

use madrigal_links::endpoint::{Completion, Endpoint, Kind, PeerId, Region, Status};

use crate::abi::errno::{ECANCELED, EHOSTUNREACH, ENOKEY, ETRUNC};
use crate::abi::flags::{MULTI_RECV, REMOTE_CQ_DATA, REMOTE_WRITE, RMA};
use crate::abi::queue::CqEntry;
use crate::abi::{ADDR_UNSPEC, Addr};
use crate::av::AvState;
use crate::bell::Bell;
use crate::ep::{EpState, Role};
use crate::slab::Slab;
use crate::worker;

/// The state of a domain.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) avs: Slab<AvState>,
    pub(crate) queues: Queues,
    pub(crate) eps: Slab<EpState>,
    /// The regions every endpoint exposes.
    pub(crate) regions: Vec<Region>,
    pub(crate) next_key: u64,
    /// An address vector waits to hear who lives at a place.
    pub(crate) asking: bool,
    /// The ports were told that nobody looks.
    pub(crate) armed: bool,
}

/// Where the ends of operations are told.
#[derive(Default)]
pub(crate) struct Queues {
    pub(crate) cqs: Slab<CqState>,
    pub(crate) cntrs: Slab<CntrState>,
}

/// A completion queue.
pub(crate) struct CqState {
    pub(crate) entries: VecDeque<Entry>,
    /// Endpoints bound to it.
    pub(crate) users: usize,
    /// Somebody asked that whoever waits returns.
    pub(crate) signaled: bool,
    /// What somebody may sleep on, ...
    pub(crate) bell: Option<Arc<Bell>>,
    /// ... and whether he does.
    pub(crate) sleeping: bool,
}

impl CqState {
    /// Ends the sleep of whoever waits for the descriptor.
    #[cold]
    pub(crate) fn wake(&mut self) {
        self.sleeping = false;
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

/// What a completion queue tells.
pub(crate) struct Entry {
    pub(crate) told: CqEntry,
    pub(crate) from: Addr,
    pub(crate) failure: Option<Failure>,
}

/// How an operation failed.
#[derive(Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) errno: i32,
    /// The number of what the user was told, else the same.
    pub(crate) detail: i32,
    /// Bytes that did not fit.
    pub(crate) overflow: usize,
}

/// A counter.
#[derive(Default)]
pub(crate) struct CntrState {
    pub(crate) value: u64,
    pub(crate) errors: u64,
    pub(crate) users: usize,
    /// What a poll set saw last.
    pub(crate) seen: u64,
}

/// An operation under way.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) context: usize,
    /// Flags of its completion.
    pub(crate) flags: u64,
    /// Whether success is told by the completion queue; failure always is.
    pub(crate) tell: bool,
    pub(crate) role: Role,
}

/// The token of operations of which we want to hear nothing.
pub(crate) const NO_REQUEST: u64 = u64::MAX;

impl State {
    /// Polls every endpoint and files what they tell; how much there was.
    #[inline]
    pub(crate) fn progress(&mut self) -> usize {
        let Self { avs, queues, eps, asking, armed, .. } = self;
        if *asking {
            *asking = avs.iter_mut().fold(false, |more, av| av.handle() | more);
        }
        let mut count = 0;
        // One look at the peers serves all endpoints.
        let mut look = true;
        for ep in eps.iter_mut().filter(|ep| ep.enabled) {
            ep.sync(avs);
            let EpState { link, bindings, done, server, .. } = ep;
            if std::mem::take(armed) {
                link.worker().woken();
            }
            count += link.drain(done, look);
            for done in done.drain(..) {
                if done.status == Status::Gone {
                    bindings.why = why(link, done.from);
                }
                bindings.file(&done, queues);
            }
            look = false;
            if let Some(server) = server {
                server.answer(|| link.address());
            }
        }
        count
    }
}

/// The number of what the user was told of a peer that is lost.
#[cold]
fn why(link: &Endpoint, peer: Option<PeerId>) -> Option<i32> {
    let peer = peer?;
    worker::explain(link.address().id, &link.who(peer)?, &link.why(peer)?)
}

impl Queues {
    /// Adds to a completion queue, where there is one.
    #[inline]
    pub(crate) fn push(&mut self, cq: Option<usize>, entry: Entry) {
        if let Some(cq) = cq.and_then(|at| self.cqs.get_mut(at)) {
            cq.entries.push_back(entry);
            if cq.sleeping {
                cq.wake();
            }
        }
    }

    /// Counts, where there is a counter.
    #[inline]
    pub(crate) fn count(&mut self, cntr: Option<usize>, failed: bool) {
        if let Some(cntr) = cntr.and_then(|at| self.cntrs.get_mut(at)) {
            if failed {
                cntr.errors += 1;
            } else {
                cntr.value = cntr.value.wrapping_add(1);
            }
        }
    }
}

/// What an endpoint must know to file the end of an operation.
pub(crate) struct Bindings {
    pub(crate) requests: Slab<Request>,
    /// Operations under way that others can see: all but receives.
    pub(crate) outgoing: usize,
    /// Where the address of a peer stands in the address vector.
    pub(crate) names: Vec<Addr>,
    /// Completion queues of each direction.
    pub(crate) tx_cq: Option<usize>,
    pub(crate) rx_cq: Option<usize>,
    /// Counters by [`Role`].
    pub(crate) cntrs: [Option<usize>; Role::COUNT],
    /// The number of what the user was told of the peer that was lost last.
    pub(crate) why: Option<i32>,
}

impl Bindings {
    /// Files the end of an operation.
    fn file(&mut self, done: &Completion, queues: &mut Queues) {
        if done.kind == Kind::RemotePut {
            return self.file_remote(done, queues);
        }
        let at = done.token as usize;
        let Some(&request) = self.requests.get(at) else { return };
        if done.last {
            self.requests.remove(at);
            self.outgoing -= usize::from(request.role != Role::Recv);
        }
        let failure = self.failure(done);
        queues.count(self.cntrs[request.role as usize], failure.is_some());
        if !request.tell && failure.is_none() {
            return;
        }
        let mut flags = request.flags;
        if request.flags & MULTI_RECV != 0 && !done.last {
            flags &= !MULTI_RECV;
        }
        if done.data.is_some() && done.kind == Kind::Received {
            flags |= REMOTE_CQ_DATA;
        }
        let told = CqEntry {
            op_context: request.context,
            flags,
            len: done.len,
            buf: done.at as usize,
            data: done.data.unwrap_or(0),
            tag: done.tag,
        };
        let cq = if request.role == Role::Recv { self.rx_cq } else { self.tx_cq };
        queues.push(cq, Entry { told, from: self.name(done), failure });
    }

    /// A peer wrote into our memory.
    #[cold]
    fn file_remote(&mut self, done: &Completion, queues: &mut Queues) {
        queues.count(self.cntrs[Role::RemoteWrite as usize], false);
        let Some(data) = done.data else { return };
        let told = CqEntry { flags: RMA | REMOTE_WRITE | REMOTE_CQ_DATA, len: done.len, data, ..CqEntry::default() };
        queues.push(self.rx_cq, Entry { told, from: self.name(done), failure: None });
    }

    /// A message was looked for: found or not.
    pub(crate) fn file_peek(&mut self, told: CqEntry, from: Addr, failure: Option<Failure>, queues: &mut Queues) {
        queues.push(self.rx_cq, Entry { told, from, failure });
    }

    #[inline]
    fn name(&self, done: &Completion) -> Addr {
        done.from.and_then(|peer| self.names.get(peer.0 as usize)).copied().unwrap_or(ADDR_UNSPEC)
    }

    #[inline]
    fn failure(&self, done: &Completion) -> Option<Failure> {
        let (errno, overflow) = match done.status {
            Status::Ok => return None,
            Status::Truncated(len) => (ETRUNC, len.saturating_sub(done.len)),
            Status::Canceled => (ECANCELED, 0),
            Status::Denied => (ENOKEY, 0),
            Status::Gone => (EHOSTUNREACH, 0),
        };
        let detail = self.why.filter(|_| done.status == Status::Gone).unwrap_or(errno);
        Some(Failure { errno, detail, overflow })
    }
}
