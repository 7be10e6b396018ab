//! Sends messages; and the first steps of every operation on a peer.

use madrigal_message::endpoint::{PeerId, PostError, Posted, Send};
use madrigal_sys::piece::{self, Piece};

use super::Ep;
use crate::abi::Addr;
use crate::abi::errno::{EAGAIN, EHOSTUNREACH, EINVAL, EMSGSIZE};
use crate::abi::flags::{COMPLETION, DELIVERY_COMPLETE, FENCE, INJECT, MSG, REMOTE_CQ_DATA, SEND, TAGGED};
use crate::abi::queue::CqEntry;
use crate::info;
use crate::state::{Entry, NO_REQUEST, Queues, Request};
use crate::state::{EpState, Role};

/// A message on its way out.
pub(super) struct Outgoing {
    pub(super) to: Addr,
    pub(super) tag: Option<u64>,
    pub(super) data: u64,
    pub(super) context: usize,
    /// Flags of the operation; with [`REMOTE_CQ_DATA`] `data` counts.
    pub(super) flags: u64,
    /// One of the calls that never complete.
    pub(super) silent: bool,
}

impl Ep {
    /// Sends a message.
    #[inline]
    pub(super) fn send(&self, message: &Outgoing, parts: &[Piece]) -> Result<(), i32> {
        self.with(|it, queues| it.send(message, parts, queues))
    }
}

impl EpState {
    #[inline]
    fn send(&mut self, message: &Outgoing, parts: &[Piece], queues: &mut Queues) -> Result<(), i32> {
        let to = self.target(message.to, message.flags)?;
        let inject = message.silent || message.flags & INJECT != 0;
        if inject && piece::total(parts) > info::INJECT {
            return Err(EMSGSIZE);
        }
        let request = Request {
            context: message.context,
            flags: SEND | if message.tag.is_some() { TAGGED } else { MSG },
            tell: !message.silent && (!self.tx_selective || message.flags & COMPLETION != 0),
            role: Role::Send,
        };
        let token = if inject { NO_REQUEST } else { self.keep(request) };
        let send = Send {
            to,
            tag: message.tag,
            data: (message.flags & REMOTE_CQ_DATA != 0).then_some(message.data),
            parts,
            token,
            inject,
            delivery: message.flags & DELIVERY_COMPLETE != 0,
        };
        let posted = self.link.send(&send);
        if posted == Err(PostError::Again) {
            self.report_stall(to);
        }
        self.posted(posted, token, &request, queues)
    }

    /// Reports to the user what waits, once nothing could be sent for long.
    #[cold]
    fn report_stall(&self, to: PeerId) {
        if let Some(stall) = self.link.stalled(to) {
            crate::worker::complain_of(self.link.worker().address().id, &stall);
        }
    }

    /// The peer an operation is for, once those before it are over if it is fenced.
    #[inline]
    pub(super) fn target(&self, at: Addr, flags: u64) -> Result<PeerId, i32> {
        if flags & FENCE != 0 && self.bindings.outgoing > 0 {
            return Err(EAGAIN);
        }
        self.peer(at)
    }

    /// Keeps a request until its completion; its token.
    #[inline]
    pub(super) fn keep(&mut self, request: Request) -> u64 {
        self.bindings.outgoing += usize::from(request.role != Role::Recv);
        self.bindings.requests.insert(request) as u64
    }

    /// Files the result of posting an operation.
    #[inline]
    pub(super) fn posted(
        &mut self,
        posted: Result<Posted, PostError>,
        token: u64,
        request: &Request,
        queues: &mut Queues,
    ) -> Result<(), i32> {
        match posted {
            Ok(Posted::Pending) if token != NO_REQUEST => return Ok(()),
            Ok(_) => {}
            Err(error) => {
                self.forget(token, request.role);
                return Err(errno(error));
            }
        }
        self.forget(token, request.role);
        queues.count(self.bindings.cntrs[request.role as usize], false);
        if request.tell {
            let completion = CqEntry { op_context: request.context, flags: request.flags, ..CqEntry::default() };
            queues.push(self.bindings.tx_cq, Entry { completion, from: crate::abi::ADDR_UNSPEC, failure: None });
        }
        Ok(())
    }

    #[inline]
    fn forget(&mut self, token: u64, role: Role) {
        if token != NO_REQUEST && self.bindings.requests.remove(token as usize).is_some() {
            self.bindings.outgoing -= usize::from(role != Role::Recv);
        }
    }
}

#[cold]
fn errno(error: PostError) -> i32 {
    match error {
        PostError::Again => EAGAIN,
        PostError::TooLong => EMSGSIZE,
        PostError::Unreachable => EHOSTUNREACH,
        _ => EINVAL,
    }
}
