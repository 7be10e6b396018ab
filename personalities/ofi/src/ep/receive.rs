//! Receives messages, and probes for them.

use madrigal_message::endpoint::{Claim, Receive, Seen, Wanted};
use madrigal_sys::piece::Piece;

use super::Ep;
use crate::abi::errno::{EINVAL, EMSGSIZE, ENOMSG};
use crate::abi::flags::{CLAIM, COMPLETION, DISCARD, MSG, MULTI_RECV, PEEK, RECV, REMOTE_CQ_DATA, TAGGED};
use crate::abi::queue::CqEntry;
use crate::abi::{ADDR_UNSPEC, Addr};
use crate::state::{EpState, Role};
use crate::state::{Failure, Queues, Request};

/// A message on its way in.
pub(super) struct Incoming {
    pub(super) from: Addr,
    /// `None` for a plain message.
    pub(super) tag: Option<u64>,
    pub(super) ignore: u64,
    pub(super) context: usize,
    pub(super) flags: u64,
}

impl Ep {
    /// Posts a buffer, or probes for a message, by the flags.
    #[inline]
    pub(super) fn receive(&self, message: &Incoming, parts: &[Piece]) -> Result<(), i32> {
        if message.flags & (PEEK | CLAIM | DISCARD) != 0 {
            return self.inspect(message, parts);
        }
        self.with(|it, _| it.receive(message, parts))
    }

    #[cold]
    fn inspect(&self, message: &Incoming, parts: &[Piece]) -> Result<(), i32> {
        if message.flags & PEEK == 0 {
            return self.with(|it, queues| it.finish_claim(message, parts, queues));
        }
        self.with(|it, queues| it.peek(message, queues))
    }
}

impl EpState {
    #[inline]
    fn receive(&mut self, message: &Incoming, parts: &[Piece]) -> Result<(), i32> {
        let from = self.source(message.from)?;
        let multi = message.flags & MULTI_RECV != 0;
        if multi && parts.len() != 1 {
            return Err(EINVAL);
        }
        let request = self.request(message);
        let token = self.keep(request);
        let receive = Receive {
            from,
            tag: message.tag,
            ignore: message.ignore,
            parts,
            token,
            multi: multi.then_some(self.min_multi),
        };
        self.link.receive(&receive).map_err(|_| {
            self.bindings.requests.remove(token as usize);
            EMSGSIZE
        })
    }

    fn request(&self, message: &Incoming) -> Request {
        let kind = if message.tag.is_some() { TAGGED } else { MSG };
        Request {
            context: message.context,
            flags: RECV | kind | message.flags & MULTI_RECV,
            tell: !self.rx_selective || message.flags & COMPLETION != 0,
            role: Role::Recv,
        }
    }

    /// Probes for a message, and reports the result.
    fn peek(&mut self, message: &Incoming, queues: &mut Queues) -> Result<(), i32> {
        let wanted = Wanted { from: self.source(message.from)?, tag: message.tag, ignore: message.ignore };
        let seen = if message.flags & (CLAIM | DISCARD) != 0 {
            self.link.claim(&wanted).map(|(seen, claim)| {
                if message.flags & DISCARD != 0 {
                    // It was there a moment ago, and we hold it.
                    let _ = self.link.discard(claim);
                } else {
                    self.claims.push((message.context, claim.into_number()));
                }
                seen
            })
        } else {
            self.link.peek(&wanted)
        };
        match seen {
            Some(seen) => self.report_seen(message, &seen, queues),
            None => self.report_none(message, queues),
        }
        Ok(())
    }

    fn report_seen(&mut self, message: &Incoming, seen: &Seen, queues: &mut Queues) {
        let data = if seen.data.is_some() { REMOTE_CQ_DATA } else { 0 };
        let completion = CqEntry {
            op_context: message.context,
            flags: self.request(message).flags | data,
            len: seen.len,
            buf: 0,
            data: seen.data.unwrap_or(0),
            tag: seen.tag,
        };
        let from = self.bindings.names.get(seen.from.0 as usize).copied().unwrap_or(ADDR_UNSPEC);
        self.bindings.file_peek(completion, from, None, queues);
    }

    fn report_none(&mut self, message: &Incoming, queues: &mut Queues) {
        let completion = CqEntry {
            op_context: message.context,
            flags: self.request(message).flags,
            tag: message.tag.unwrap_or(0),
            ..CqEntry::default()
        };
        self.bindings.file_peek(
            completion,
            ADDR_UNSPEC,
            Some(Failure { errno: ENOMSG, detail: ENOMSG, overflow: 0 }),
            queues,
        );
    }

    /// Receives or discards what was claimed with this context.
    fn finish_claim(&mut self, message: &Incoming, parts: &[Piece], queues: &mut Queues) -> Result<(), i32> {
        let at = self.claims.iter().position(|(context, _)| *context == message.context).ok_or(EINVAL)?;
        let claim = Claim::from_number(self.claims.swap_remove(at).1);
        let request = self.request(message);
        if message.flags & DISCARD != 0 {
            self.link.discard(claim).map_err(|_| EINVAL)?;
            let completion = CqEntry {
                op_context: message.context,
                flags: request.flags,
                tag: message.tag.unwrap_or(0),
                ..CqEntry::default()
            };
            self.bindings.file_peek(completion, ADDR_UNSPEC, None, queues);
            return Ok(());
        }
        let token = self.keep(request);
        let receive = Receive { from: None, tag: message.tag, ignore: message.ignore, parts, token, multi: None };
        self.link.receive_claimed(claim, &receive).map_err(|_| {
            self.bindings.requests.remove(token as usize);
            EINVAL
        })
    }
}
