//! The operations of an endpoint that are under way, and the queues and counters for their completions.

use madrigal_message::endpoint::{Completion, Kind, Status};

use super::queues::{Entry, Failure, Queues};
use crate::abi::errno::{ECANCELED, EHOSTUNREACH, ENOKEY, ETRUNC};
use crate::abi::flags::{MULTI_RECV, READ, RECV, REMOTE_CQ_DATA, REMOTE_READ, REMOTE_WRITE, RMA, SEND, WRITE};
use crate::abi::queue::CqEntry;
use crate::abi::{ADDR_UNSPEC, Addr};
use crate::slab::Slab;

/// What an operation is, to count it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Send,
    Recv,
    Read,
    Write,
    RemoteRead,
    RemoteWrite,
}

impl Role {
    /// How many there are.
    pub(crate) const COUNT: usize = 6;
    /// The flag of `fi_ep_bind` for each.
    pub(crate) const FLAGS: [(u64, Self); Self::COUNT] = [
        (SEND, Self::Send),
        (RECV, Self::Recv),
        (READ, Self::Read),
        (WRITE, Self::Write),
        (REMOTE_READ, Self::RemoteRead),
        (REMOTE_WRITE, Self::RemoteWrite),
    ];
}

/// An operation under way.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) context: usize,
    /// Flags of its completion.
    pub(crate) flags: u64,
    /// Whether success is reported by the completion queue; failure always is.
    pub(crate) tell: bool,
    pub(crate) role: Role,
}

/// The token of operations without a completion.
pub(crate) const NO_REQUEST: u64 = u64::MAX;

/// The data of an endpoint that is needed to file the end of an operation.
pub(crate) struct Bindings {
    pub(crate) requests: Slab<Request>,
    /// Operations under way that others can see: all but receives.
    pub(crate) outgoing: usize,
    /// By peer, the place of its address in the address vector.
    pub(crate) names: Vec<Addr>,
    /// Completion queues of each direction.
    pub(crate) tx_cq: Option<usize>,
    pub(crate) rx_cq: Option<usize>,
    /// Counters by [`Role`].
    pub(crate) cntrs: [Option<usize>; Role::COUNT],
    /// The number of the text that the user got about the last lost peer.
    pub(crate) why: Option<i32>,
}

impl Bindings {
    /// Files the end of an operation.
    pub(super) fn file(&mut self, done: &Completion, queues: &mut Queues) {
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
        let completion = CqEntry {
            op_context: request.context,
            flags,
            len: done.len,
            buf: done.at as usize,
            data: done.data.unwrap_or(0),
            tag: done.tag,
        };
        let cq = if request.role == Role::Recv { self.rx_cq } else { self.tx_cq };
        queues.push(cq, Entry { completion, from: self.name(done), failure });
    }

    /// A peer wrote into our memory.
    #[cold]
    fn file_remote(&mut self, done: &Completion, queues: &mut Queues) {
        queues.count(self.cntrs[Role::RemoteWrite as usize], false);
        let Some(data) = done.data else { return };
        let completion =
            CqEntry { flags: RMA | REMOTE_WRITE | REMOTE_CQ_DATA, len: done.len, data, ..CqEntry::default() };
        queues.push(self.rx_cq, Entry { completion, from: self.name(done), failure: None });
    }

    /// The result of a probe for a message.
    pub(crate) fn file_peek(&mut self, completion: CqEntry, from: Addr, failure: Option<Failure>, queues: &mut Queues) {
        queues.push(self.rx_cq, Entry { completion, from, failure });
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
