//! A connection whose link can go on over another one: what it sends is kept, and between its frames there are notes.

use std::io::IoSlice;

use madrigal_base::node::NodeAddress;
use madrigal_progress::message::{LinkError, Sent};
use madrigal_proto::frame;
use madrigal_sys::fd::Fd;
use rustix::net::RecvFlags;

use super::{FLAGS, Lane, Note, Resumption, Stage, WORD};

impl Lane {
    /// We have dialled by the daemon, and can be dialled there ourselves.
    pub(in super::super) fn make_resumable(&mut self, own: NodeAddress) {
        self.begin_keeping();
        self.enqueue(&Note::About(own));
    }

    /// The peer may have dialled by the daemon.
    pub(in super::super) fn suspect(&mut self) {
        self.begin_keeping();
        self.resumption.iter_mut().for_each(|resumption| resumption.suspect());
    }

    /// The peer's first bytes show whether it dialled by the daemon.
    pub(super) fn judge(&mut self, bytes: &[u8]) {
        if let Some(resumption) = self.resumption.as_mut().filter(|resumption| resumption.is_unsure())
            && !bytes.is_empty()
            && matches!(frame::noted(bytes), Ok(None))
        {
            resumption.settle(false);
            self.flush_kept();
        }
    }

    fn begin_keeping(&mut self) {
        if self.resumption.is_none() {
            let mut resumption = Box::new(Resumption::new(self.sent));
            resumption.keep(self.rest.get(self.rest_sent..).unwrap_or_default());
            self.rest = Vec::new();
            self.rest_sent = 0;
            self.resumption = Some(resumption);
        }
    }

    /// As [`Lane::send`]: a frame that begins is taken whole, if there is room for one more.
    pub(super) fn send_kept(&mut self, head: &[u8], body: &[IoSlice<'_>], skip: usize) -> Result<Sent, LinkError> {
        let Some(resumption) = self.resumption.as_mut() else { return Ok(Sent::Part(0)) };
        if skip > 0 {
            resumption.keep_pieces(body, skip.saturating_sub(head.len()));
            self.open = false;
        } else if resumption.has_room() {
            let len = body.iter().map(|piece| piece.len()).sum::<usize>();
            let Some(prefix) = frame::prefix(head.len(), len as u64) else {
                return Err(LinkError::Corrupt { node: self.node, what: "a frame too long for any stream".to_owned() });
            };
            resumption.keep(&prefix);
            resumption.keep(head);
            resumption.keep_pieces(body, 0);
        } else {
            // A peer that sent nothing for so long is taken for one that keeps nothing.
            resumption.settle(false);
            self.flush_kept();
            return Ok(Sent::Part(0));
        }
        self.flush_kept();
        Ok(Sent::All)
    }

    /// As [`Lane::flush`].
    pub(super) fn flush_kept(&mut self) -> bool {
        while let Some(resumption) = self.resumption.as_ref().filter(|_| !self.full && self.broken.is_none()) {
            let next = resumption.next();
            if next.is_empty() {
                break;
            }
            let sent = rustix::net::send(&self.socket, next, FLAGS);
            match self.taken(sent) {
                Ok(count) if count > 0 => self.resumption.iter_mut().for_each(|resumption| resumption.went(count)),
                _ => break,
            }
        }
        if self.resumption.as_ref().is_some_and(|resumption| resumption.is_over()) {
            self.resumption = None;
        }
        self.resumption.as_ref().is_none_or(|resumption| resumption.next().is_empty())
    }

    /// Reads how much the peer has, where a connection begins with that. False: that has not come yet.
    pub(super) fn handle_word(&mut self) -> Result<bool, LinkError> {
        loop {
            let Some(resumption) = self.resumption.as_ref() else { return Ok(true) };
            let wants = resumption.wants();
            if wants == 0 {
                return Ok(resumption.stage == Stage::Together);
            }
            let mut bytes = [0; WORD];
            let room = bytes.get_mut(..wants).unwrap_or_default();
            let got = self.came(rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT).map(|(count, _)| count))?;
            if got == 0 {
                return Ok(false);
            }
            let handled =
                self.resumption.as_mut().map(|resumption| resumption.handle_word(bytes.get(..got).unwrap_or_default()));
            if let Some(Err(why)) = handled {
                return Err(LinkError::Corrupt { node: self.node, what: why });
            }
            if self.resumption.as_ref().is_some_and(|resumption| resumption.stage == Stage::Together) {
                self.before = None;
                self.flush_kept();
            }
        }
    }

    /// A note came.
    pub(super) fn handle_note(&mut self, body: &[u8]) -> Result<(), LinkError> {
        let well = match Note::read(body) {
            Some(Note::About(address)) if address.id == self.node => {
                self.begin_keeping();
                self.resumption.iter_mut().for_each(|resumption| resumption.settle(true));
                self.about = Some(Box::new(address));
                true
            }
            Some(Note::Have(bytes)) => self.resumption.as_mut().is_none_or(|resumption| resumption.handle_have(bytes)),
            Some(Note::Bye) => {
                self.resumption.iter_mut().for_each(|resumption| resumption.bye = true);
                true
            }
            _ => false,
        };
        let nonsense = || LinkError::Corrupt { node: self.node, what: "a note that makes no sense".to_owned() };
        if well { Ok(()) } else { Err(nonsense()) }
    }

    /// Acknowledges what has come, if it is time.
    pub(in super::super) fn send_ack(&mut self) {
        let received = self.received;
        let due = self.resumption.as_mut().filter(|_| !self.open).and_then(|resumption| resumption.have(received));
        due.iter().for_each(|note| self.enqueue(note));
    }

    /// Nothing more comes, on any connection.
    pub(in super::super) fn send_close(&mut self) {
        self.enqueue(&Note::Bye);
    }

    /// Puts a note between frames.
    fn enqueue(&mut self, note: &Note) {
        if let Some(resumption) = self.resumption.as_mut().filter(|_| !self.open) {
            resumption.keep(&note.bytes());
            self.flush_kept();
        }
    }

    /// Whether the link can go on if this connection is lost.
    pub(in super::super) fn can_go_on(&self) -> bool {
        self.resumption.as_ref().is_some_and(|resumption| resumption.can_go_on())
    }

    /// Whether it has no connection.
    pub(in super::super) fn is_away(&self) -> bool {
        self.resumption.as_ref().is_some_and(|resumption| resumption.stage == Stage::Away)
    }

    /// Whether a direct connection would be better.
    pub(in super::super) fn is_makeshift(&self) -> bool {
        self.resumption.as_ref().is_some_and(|resumption| resumption.is_makeshift())
    }

    /// The connection is lost.
    pub(in super::super) fn part(&mut self) {
        self.resumption.iter_mut().for_each(|resumption| resumption.part());
        self.before = None;
        self.forget_socket();
    }

    /// The link goes on over this one. The one before stays open until the peer is here too, or the peer would take it for lost.
    pub(in super::super) fn go_on(&mut self, socket: Fd, by_daemon: bool) {
        let received = self.received;
        let Some(word) = self.resumption.as_mut().map(|resumption| resumption.meet(received, by_daemon)) else {
            return;
        };
        self.forget_socket();
        self.before = Some(core::mem::replace(&mut self.socket, socket));
        // These are the first bytes on it: there is room, or it is broken, which shows when it is read.
        let _ = self.taken(rustix::net::send(&self.socket, &word, FLAGS));
    }

    fn forget_socket(&mut self) {
        (self.full, self.broken, self.ending, self.queued) = (false, None, false, false);
    }
}
