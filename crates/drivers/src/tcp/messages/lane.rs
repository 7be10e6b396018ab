//! A connection that is up: frames out and in.
//!
//! Out: a frame is one vectored send from the caller's memory. Of a short frame that the kernel takes in part the rest is copied and
//! sent when there is room; a long one is continued by the caller. In: one read takes as many frames as have come; a frame cut off at
//! the end of a read is kept; a long body is read straight to where it goes, and with its end the beginning of what follows.

mod leave;
mod long;
mod resuming;

use std::io::IoSlice;

use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::message::{LinkError, LinkIndex, MAX_HEAD, Placement, Sent, Sink, gather};
use madrigal_proto::frame::{self, Front, PREFIX};
use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};

use super::super::socket::os;
use super::place;
use super::resumption::{Note, Resumption, Stage, WORD};

/// Bodies up to this are sent whole and received with other frames.
pub(super) const SHORT: usize = 16 << 10;
/// How much is read at once where no long body is on its way.
const AT_ONCE: usize = 64 << 10;
/// The buffer of a port: what was cut off before, and a read.
pub(super) const BUFFER: usize = SPACE + SHORT + AT_ONCE;
/// How much is read where a long frame may come next, so that little of its body must be copied.
const SIP: usize = place::USUAL;
/// Frames that may be in between.
const SIPS: u8 = 4;
/// Bodies from this on are worth it.
const BULK: u64 = 32 << 10;
/// Reads in one visit.
const READS: usize = 8;
/// Frames up to this are copied to be sent: cheaper than a vector.
const TINY: usize = 256;
/// Bodies from this on are worth padding.
const PADDED: usize = 2 << 10;
/// The most bytes before a body that is not copied, and with one that is.
const SPACE: usize = frame::MAX_PADDING + PREFIX + MAX_HEAD;
const _: () = assert!(SPACE >= PREFIX + MAX_HEAD + TINY && PADDED > TINY);
/// Pieces in one send.
const PIECES: usize = 64;
const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// One of them.
pub(super) struct Lane {
    pub(super) socket: Fd,
    pub(super) node: NodeId,
    /// The rest of a frame that was taken, and how much of it is sent.
    rest: Vec<u8>,
    rest_sent: usize,
    /// The kernel had no room; it will report when it has.
    pub(super) full: bool,
    /// Sending failed: the link is down once what has come is read.
    broken: Option<Errno>,
    /// The beginning of a frame that has not come whole, and how many bytes are needed to parse more of it.
    begun: Vec<u8>,
    needs: usize,
    long: Option<Long>,
    placement: Placement,
    sips: u8,
    /// It is among those to be visited.
    pub(super) queued: bool,
    /// The kernel reported an end: reading must go on up to it.
    pub(super) ending: bool,
    /// The link can go on over another connection.
    pub(super) resumption: Option<Box<Resumption>>,
    /// The connection before this one.
    before: Option<Fd>,
    /// How to dial the peer, where it has sent that.
    pub(super) about: Option<Box<NodeAddress>>,
    /// Bytes of the stream that were sent before it could be resumed, and that have come.
    sent: u64,
    received: u64,
    /// The rest of a long frame is the caller's to send next.
    open: bool,
    /// It was reported as silent.
    pub(super) silent: bool,
}

/// A long body on its way in.
struct Long {
    head: [u8; MAX_HEAD],
    head_len: usize,
    /// Bytes that have not come.
    left: usize,
    /// Bytes in the placement.
    at: usize,
}

/// What a visit found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Visit {
    /// Frames and parts of frames.
    pub(super) found: usize,
    /// There may be more.
    pub(super) again: bool,
}

impl Lane {
    pub(super) fn new(socket: Fd, node: NodeId) -> Self {
        Self {
            socket,
            node,
            rest: Vec::new(),
            rest_sent: 0,
            full: false,
            broken: None,
            begun: Vec::new(),
            needs: PREFIX,
            long: None,
            placement: Placement::new(),
            sips: 0,
            queued: false,
            ending: false,
            resumption: None,
            before: None,
            about: None,
            sent: 0,
            received: 0,
            open: false,
            silent: false,
        }
    }

    fn gone(&self, why: impl ToString) -> LinkError {
        LinkError::Gone { node: self.node, why: why.to_string() }
    }

    /// The kernel gave the connection up: because the peer does not answer, or because it was ended.
    fn lost(&self, errno: Errno) -> LinkError {
        match errno {
            Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN => {
                let tried = format!("no answer from its host: {}", os(errno));
                LinkError::Unreachable { node: self.node, tried, absent: false }
            }
            errno => self.gone(os(errno)),
        }
    }

    /// Sends a frame or the rest of one ([`madrigal_progress::message::Port::send`]).
    #[inline]
    pub(super) fn send(&mut self, head: &[u8], body: &[IoSlice<'_>], skip: usize) -> Result<Sent, LinkError> {
        if self.resumption.is_some() {
            return self.send_kept(head, body, skip);
        }
        if self.full || !self.rest.is_empty() || self.broken.is_some() {
            self.flush();
            if let Some(errno) = self.broken {
                return Err(self.lost(errno));
            }
            if self.full || !self.rest.is_empty() {
                return Ok(Sent::Part(0));
            }
        }
        let len = body.iter().map(|piece| piece.len()).sum::<usize>();
        if skip > 0 {
            return self.proceed(head.len(), body, skip, len);
        }
        let Some(prefix) = frame::prefix(head.len(), len as u64) else {
            return Err(LinkError::Corrupt { node: self.node, what: "a frame too long for any stream".to_owned() });
        };
        let mut front = [0u8; SPACE];
        let padding = if len >= PADDED { place::padding(PREFIX + head.len(), body) } else { 0 };
        let mut used = 0;
        let mut put = |bytes: &[u8]| {
            if let Some(place) = front.get_mut(used..used + bytes.len()) {
                place.copy_from_slice(bytes);
                used += bytes.len();
            }
        };
        if let Some(begin) = frame::padding(padding) {
            put(&begin);
            put(place::ZEROS.get(begin.len()..padding).unwrap_or_default());
        }
        put(&prefix);
        put(head);
        if len <= TINY {
            body.iter().for_each(|piece| put(piece));
            let front = front.get(..used).unwrap_or_default();
            let sent = self.taken(rustix::net::send(&self.socket, front, FLAGS))?;
            return Ok(self.settle(front, &[], sent));
        }
        let front = front.get(..used).unwrap_or_default();
        if len <= SHORT {
            let sent = self.gather(front, body, 0)?;
            return Ok(self.settle(front, body, sent));
        }
        let sent = self.gather(front, body, 0)?;
        Ok(self.begin(front, body, sent, (head.len(), len)))
    }

    /// Of a short frame `sent` bytes went: the rest is kept.
    #[inline]
    fn settle(&mut self, front: &[u8], body: &[IoSlice<'_>], sent: usize) -> Sent {
        let len = front.len() + body.iter().map(|piece| piece.len()).sum::<usize>();
        if sent == len {
            return Sent::All;
        }
        if sent == 0 {
            return Sent::Part(0);
        }
        let mut skip = sent;
        for piece in core::iter::once(front).chain(body.iter().map(|piece| &piece[..])) {
            self.rest.extend(piece.get(skip..).unwrap_or_default());
            skip = skip.saturating_sub(piece.len());
        }
        self.flush();
        Sent::All
    }

    /// A long frame began with `sent` bytes, those of the front among them: a front that did not go whole is kept, and with it the
    /// first byte of the body, so that the caller knows that it has begun.
    fn begin(&mut self, front: &[u8], body: &[IoSlice<'_>], sent: usize, (head, len): (usize, usize)) -> Sent {
        if sent == 0 {
            return Sent::Part(0);
        }
        let mut took = (head + sent).saturating_sub(front.len());
        if sent < front.len() {
            self.rest.extend(front.get(sent..).unwrap_or_default());
            self.rest.extend(body.iter().find_map(|piece| piece.first()));
            took = head + 1;
            self.flush();
        }
        self.open = took < head + len;
        if self.open { Sent::Part(took) } else { Sent::All }
    }

    /// Goes on with a long frame.
    fn proceed(&mut self, head: usize, body: &[IoSlice<'_>], skip: usize, len: usize) -> Result<Sent, LinkError> {
        let done = skip.saturating_sub(head);
        let sent = self.gather(&[], body, done)?;
        self.open = done + sent < len;
        Ok(if self.open { Sent::Part(sent) } else { Sent::All })
    }

    /// One vectored send of `front` and the pieces behind the first `skip` bytes of them.
    fn gather(&mut self, front: &[u8], body: &[IoSlice<'_>], skip: usize) -> Result<usize, LinkError> {
        let mut list = [IoSlice::new(&[]); PIECES];
        let used = gather(front, body, skip, &mut list);
        let list = list.get(..used).unwrap_or_default();
        self.taken(rustix::net::sendmsg(&self.socket, list, &mut SendAncillaryBuffer::default(), FLAGS))
    }

    /// How many bytes the kernel took; 0 where it has no room.
    #[inline]
    fn taken(&mut self, sent: Result<usize, Errno>) -> Result<usize, LinkError> {
        match sent {
            Ok(n) => {
                self.sent += n as u64;
                Ok(n)
            }
            Err(Errno::AGAIN) => {
                self.full = true;
                Ok(0)
            }
            Err(Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => Ok(0),
            Err(errno) => {
                self.broken = Some(errno);
                Err(self.lost(errno))
            }
        }
    }

    /// Sends what is left of a frame that was taken, if there is room; whether all is sent.
    pub(super) fn flush(&mut self) -> bool {
        if self.resumption.is_some() {
            return self.flush_kept();
        }
        while self.rest_sent < self.rest.len() && !self.full && self.broken.is_none() {
            let rest = self.rest.get(self.rest_sent..).unwrap_or_default();
            let sent = rustix::net::send(&self.socket, rest, FLAGS);
            match self.taken(sent) {
                Ok(n) if n > 0 => self.rest_sent += n,
                _ => break,
            }
        }
        if self.rest_sent >= self.rest.len() {
            self.rest.clear();
            self.rest_sent = 0;
        }
        self.rest.is_empty()
    }

    /// Whether sending has failed.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Reads what has come and delivers it, bounded. `Err`: no more will ever come.
    pub(super) fn receive(
        &mut self,
        link: LinkIndex,
        buffer: &mut [u8],
        sink: &mut dyn Sink,
    ) -> Result<Visit, LinkError> {
        let mut visit = Visit::default();
        if self.resumption.is_some() && !self.handle_word()? {
            return Ok(visit);
        }
        for _ in 0..READS {
            let (asked, got) = match self.long.take() {
                Some(long) => self.read_long(link, long, buffer, sink, &mut visit)?,
                None => self.read_frames(link, buffer, sink, &mut visit)?,
            };
            self.received += got as u64;
            // A read shorter than asked has emptied the socket. Only if an end was reported must reading go on.
            if got == 0 || (got < asked && !self.ending) {
                visit.again = false;
                return Ok(visit);
            }
            visit.again = true;
        }
        Ok(visit)
    }

    /// What came of a read: bytes, 0 where there is nothing now.
    #[inline]
    fn came(&self, read: Result<usize, Errno>) -> Result<usize, LinkError> {
        match read {
            Ok(0) if self.long.is_some() || !self.begun.is_empty() => {
                Err(self.gone("it closed the connection in the middle of a frame"))
            }
            Ok(0) => Err(self.gone("it closed the connection")),
            Ok(n) => Ok(n),
            Err(Errno::AGAIN | Errno::INTR) => match self.broken {
                Some(errno) => Err(self.lost(errno)),
                None => Ok(0),
            },
            Err(errno) => Err(self.lost(errno)),
        }
    }

    /// Reads while no long body is on its way: how much was asked for, and how much came.
    fn read_frames(
        &mut self,
        link: LinkIndex,
        buffer: &mut [u8],
        sink: &mut dyn Sink,
        visit: &mut Visit,
    ) -> Result<(usize, usize), LinkError> {
        let begun = self.begun.len();
        let most = if self.sips > 0 { SIP.max(self.needs) } else { begun + AT_ONCE };
        if let Some(place) = buffer.get_mut(..begun) {
            place.copy_from_slice(&self.begun);
        }
        let room = buffer.get_mut(begun..most).unwrap_or_default();
        let asked = room.len();
        let got = self.came(rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT).map(|(n, _)| n))?;
        if got > 0 {
            self.begun.clear();
            self.cut(link, buffer.get(..begun + got).unwrap_or_default(), sink, visit)?;
        }
        Ok((asked, got))
    }

    /// Delivers the frames that lie one after the other in `bytes`, and keeps what is left.
    fn cut(
        &mut self,
        link: LinkIndex,
        mut bytes: &[u8],
        sink: &mut dyn Sink,
        visit: &mut Visit,
    ) -> Result<(), LinkError> {
        if self.resumption.is_some() {
            self.judge(bytes);
        }
        loop {
            match frame::padded(bytes) {
                Ok(0) => {}
                Ok(padding) => bytes = bytes.get(padding..).unwrap_or_default(),
                Err(needs) => {
                    self.keep(bytes, needs);
                    return Ok(());
                }
            }
            match frame::noted(bytes) {
                Ok(None) => {}
                Ok(Some((taken, note))) => {
                    self.handle_note(note)?;
                    bytes = bytes.get(taken..).unwrap_or_default();
                    continue;
                }
                Err(needs) => {
                    self.keep(bytes, needs);
                    return Ok(());
                }
            }
            let front = frame::front(bytes, SHORT)
                .map_err(|nonsense| LinkError::Corrupt { node: self.node, what: nonsense.to_string() })?;
            let behind = bytes.get(front.taken()..).unwrap_or_default();
            match front {
                Front::More(needs) => {
                    self.keep(bytes, needs);
                    return Ok(());
                }
                Front::Whole { head, body } => {
                    self.sips = self.sips.saturating_sub(1);
                    visit.found += 1;
                    sink.frame(link, head, body);
                    bytes = behind;
                }
                Front::Long { head, len } => {
                    visit.found += 1;
                    let Some(rest) = self.place(link, head, len, behind, sink)? else { return Ok(()) };
                    bytes = rest;
                }
            }
        }
    }

    /// Keeps what was cut off, until `needs` bytes are there.
    #[inline]
    fn keep(&mut self, bytes: &[u8], needs: usize) {
        self.needs = needs;
        self.begun.extend(bytes);
    }
}
