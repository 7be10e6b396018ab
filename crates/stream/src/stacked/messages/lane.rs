//! A link that is up: frames out and in.
//!
//! Out: a frame is one write of the caller's memory. Of a short frame that the adapters take in part the rest is copied, and written when
//! there is room; a long one is continued by the caller. In: one read takes as many frames as have come; a frame cut off at the end of a
//! read is kept; a long body is read straight to where it goes.

use std::io::IoSlice;
use std::sync::Arc;

use madrigal_base::error::ReadError;
use madrigal_base::node::NodeId;
use madrigal_progress::driver::{ByteRx as _, ByteTx as _, Read, Wrote};
use madrigal_progress::message::{LinkError, LinkIndex, MAX_HEAD, Placement, Sent, Sink, gather};
use madrigal_proto::frame::{self, Front, PREFIX};
use madrigal_sys::piece;

use super::super::ends::{Rx, Tx};
use super::meeting::Line;
use super::reports::{Watch, Whom};
use crate::buffer::Buffer;

/// Bodies up to this are sent whole and received with other frames.
pub(super) const SHORT: usize = 16 << 10;
/// How much is read at once where no long body is on its way: little, for what of one comes along is copied twice.
const AT_ONCE: usize = 16 << 10;
/// The buffer of a port: a frame that was cut off, and a read.
pub(super) const BUFFER: usize = PREFIX + MAX_HEAD + SHORT + AT_ONCE;
/// Reads in one visit.
const READS: usize = 16;
/// Pieces in one write.
const PIECES: usize = 64;

/// One of them.
pub(super) struct Lane {
    pub(super) node: NodeId,
    /// `None` once nothing is read any more.
    rx: Option<Rx>,
    tx: Tx,
    _watch: Watch,
    /// The rest of a frame that was taken, and how much of it is written.
    rest: Vec<u8>,
    rest_sent: usize,
    /// There was no room; it will be reported when there is.
    pub(super) full: bool,
    /// Writing failed: the link is down once what has come is read.
    broken: Option<String>,
    /// The beginning of a frame that has not come whole.
    begun: Vec<u8>,
    long: Option<Long>,
    placement: Placement,
    /// It is among those to be visited.
    pub(super) queued: bool,
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
#[derive(Clone, Copy, Default)]
pub(super) struct Visit {
    /// Frames and parts of frames.
    pub(super) found: usize,
    /// There may be more.
    pub(super) again: bool,
}

impl Lane {
    pub(super) fn new(line: Line, (link, node): (u32, NodeId)) -> Self {
        line.watch.rename(Whom::Link(link));
        line.made.rx.0.ask_after();
        Self {
            node,
            rx: Some(line.made.rx),
            tx: line.made.tx,
            _watch: line.watch,
            rest: Vec::new(),
            rest_sent: 0,
            full: false,
            broken: None,
            begun: Vec::new(),
            long: None,
            placement: Placement::new(),
            queued: false,
            silent: false,
        }
    }

    /// For how many seconds nothing has come from the peer's system.
    pub(super) fn unanswered_s(&self) -> u64 {
        self.rx.as_ref().map_or(0, |rx| rx.0.unanswered_s())
    }

    /// How it goes, for people.
    pub(super) fn path(&self) -> String {
        let Some(Rx(link)) = &self.rx else { return String::new() };
        let carriers = link.carriers();
        let many = if carriers == 1 { String::new() } else { format!(", {carriers} connections") };
        format!("{} -> {}{many}", address_of(&link.local), address_of(&link.peer))
    }

    fn gone(&self, why: impl ToString) -> LinkError {
        LinkError::Gone { node: self.node, why: why.to_string() }
    }

    /// Sends a frame or the rest of one ([`madrigal_progress::message::Port::send`]).
    pub(super) fn send(&mut self, head: &[u8], body: &[IoSlice<'_>], skip: usize) -> Result<Sent, LinkError> {
        if !self.flush()? {
            return Ok(Sent::Part(0));
        }
        let len = body.iter().map(|piece| piece.len()).sum::<usize>();
        if skip > 0 {
            let done = skip.saturating_sub(head.len());
            let sent = self.write(&[], body, done)?;
            return Ok(if done + sent < len { Sent::Part(sent) } else { Sent::All });
        }
        let Some(prefix) = frame::prefix(head.len(), len as u64) else {
            return Err(LinkError::Corrupt { node: self.node, what: "a frame too long for any stream".to_owned() });
        };
        let mut front = [0u8; PREFIX + MAX_HEAD];
        front[..PREFIX].copy_from_slice(&prefix);
        let used = PREFIX + head.len();
        if let Some(place) = front.get_mut(PREFIX..used) {
            place.copy_from_slice(head);
        }
        let front = front.get(..used).unwrap_or_default();
        let sent = self.write(front, body, 0)?;
        match sent {
            0 => Ok(Sent::Part(0)),
            sent if sent == used + len => Ok(Sent::All),
            sent if len <= SHORT => {
                self.keep_rest(front, body, sent);
                Ok(Sent::All)
            }
            sent if sent < used => {
                // With the first byte of the body, so that the caller knows that the frame has begun.
                let first = body.iter().find_map(|piece| piece.get(..1)).map(IoSlice::new);
                self.keep_rest(front, first.as_slice(), sent);
                Ok(Sent::Part(head.len() + 1))
            }
            sent => Ok(Sent::Part(sent - PREFIX)),
        }
    }

    fn keep_rest(&mut self, front: &[u8], body: &[IoSlice<'_>], mut sent: usize) {
        for piece in core::iter::once(front).chain(body.iter().map(|piece| &piece[..])) {
            self.rest.extend(piece.get(sent..).unwrap_or_default());
            sent = sent.saturating_sub(piece.len());
        }
    }

    /// One write of `front` and the pieces behind the first `skip` bytes of them: how many bytes were taken.
    fn write(&mut self, front: &[u8], body: &[IoSlice<'_>], skip: usize) -> Result<usize, LinkError> {
        let mut list = [IoSlice::new(&[]); PIECES];
        let used = gather(front, body, skip, &mut list);
        let list = list.get(..used).unwrap_or_default();
        let wrote = self.tx.write(list);
        let asked = list.iter().map(|piece| piece.len()).sum();
        self.taken(wrote.map_err(|error| error.to_string()), asked)
    }

    fn taken(&mut self, wrote: Result<Wrote, String>, asked: usize) -> Result<usize, LinkError> {
        match wrote {
            Ok(Wrote::Bytes(n)) => {
                self.full = n < asked;
                Ok(n)
            }
            Ok(Wrote::WouldBlock) => {
                self.full = true;
                Ok(0)
            }
            Err(why) => {
                self.broken = Some(why.clone());
                Err(self.gone(why))
            }
        }
    }

    /// Writes what is left of a frame that was taken, if there is room; whether another one can be taken.
    pub(super) fn flush(&mut self) -> Result<bool, LinkError> {
        if let Some(why) = &self.broken {
            return Err(self.gone(why));
        }
        while self.rest_sent < self.rest.len() && !self.full {
            let rest = self.rest.get(self.rest_sent..).unwrap_or_default();
            let (wrote, asked) = (self.tx.write(&[IoSlice::new(rest)]), rest.len());
            self.rest_sent += self.taken(wrote.map_err(|error| error.to_string()), asked)?;
        }
        if self.rest_sent >= self.rest.len() {
            self.rest.clear();
            self.rest_sent = 0;
        }
        Ok(self.rest.is_empty() && !self.full)
    }

    /// Whether writing has failed.
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
        for _ in 0..READS {
            let got = match self.long.take() {
                Some(long) => self.read_long(link, long, buffer, sink)?,
                None => self.read_frames(link, buffer, sink, &mut visit)?,
            };
            visit.again = got > 0;
            if got == 0 {
                break;
            }
            visit.found += 1;
        }
        Ok(visit)
    }

    /// What came of a read: bytes, 0 where there is nothing now.
    fn came(&self, read: Result<Read, ReadError>, is_between: bool) -> Result<usize, LinkError> {
        match (read, &self.broken) {
            (Ok(Read::Bytes(n)), _) => Ok(n),
            (Ok(Read::WouldBlock), None) => Ok(0),
            (Ok(Read::WouldBlock), Some(why)) => Err(self.gone(why)),
            (Ok(Read::End), _) if is_between => Err(self.gone("it closed the link")),
            (Ok(Read::End), _) => Err(self.gone("it closed the link in the middle of a frame")),
            (Err(ReadError::Corrupt { what, .. }), _) => {
                Err(LinkError::Corrupt { node: self.node, what: format!("what `{what}` cannot read") })
            }
            (Err(error), _) => Err(self.gone(error)),
        }
    }

    fn read(&mut self, room: &mut [u8], is_between: bool) -> Result<usize, LinkError> {
        let read = match &mut self.rx {
            Some(rx) if !room.is_empty() => rx.read(room),
            _ => Ok(Read::WouldBlock),
        };
        self.came(read, is_between)
    }

    /// Reads while no long body is on its way: how much came.
    fn read_frames(
        &mut self,
        link: LinkIndex,
        buffer: &mut [u8],
        sink: &mut dyn Sink,
        visit: &mut Visit,
    ) -> Result<usize, LinkError> {
        let begun = self.begun.len();
        let room = buffer.get_mut(begun..begun + AT_ONCE).unwrap_or_default();
        let got = self.read(room, begun == 0)?;
        if got > 0 {
            if let Some(place) = buffer.get_mut(..begun) {
                place.copy_from_slice(&self.begun);
            }
            self.begun.clear();
            self.cut(link, buffer.get(..begun + got).unwrap_or_default(), sink, visit)?;
        }
        Ok(got)
    }

    /// Delivers the frames that lie one after the other in `bytes`, and keeps what is left.
    fn cut(
        &mut self,
        link: LinkIndex,
        mut bytes: &[u8],
        sink: &mut dyn Sink,
        visit: &mut Visit,
    ) -> Result<(), LinkError> {
        loop {
            let front = frame::front(bytes, SHORT)
                .map_err(|nonsense| LinkError::Corrupt { node: self.node, what: nonsense.to_string() })?;
            let behind = bytes.get(front.taken()..).unwrap_or_default();
            match front {
                Front::More(_) => {
                    self.begun.extend(bytes);
                    return Ok(());
                }
                Front::Whole { head, body } => {
                    visit.found += 1;
                    sink.frame(link, head, body);
                    bytes = behind;
                }
                Front::Long { head, len } => {
                    let Some(rest) = self.place(link, head, len, behind, sink)? else { return Ok(()) };
                    bytes = rest;
                }
            }
        }
    }

    /// Begins a long body, whose first bytes are here; returns what lies behind it if it is here whole.
    fn place<'a>(
        &mut self,
        link: LinkIndex,
        head: &[u8],
        len: u64,
        bytes: &'a [u8],
        sink: &mut dyn Sink,
    ) -> Result<Option<&'a [u8]>, LinkError> {
        let Ok(left) = usize::try_from(len) else {
            return Err(LinkError::Corrupt { node: self.node, what: format!("a body of {len} bytes") });
        };
        self.placement.clear();
        sink.place(link, head, left, &mut self.placement);
        let (here, behind) = bytes.split_at(left.min(bytes.len()));
        piece::scatter(&self.placement, 0, here);
        if here.len() == left {
            sink.arrived(link, head);
            return Ok(Some(behind));
        }
        let mut long = Long { head: [0; MAX_HEAD], head_len: head.len(), left: left - here.len(), at: here.len() };
        if let Some(place) = long.head.get_mut(..head.len()) {
            place.copy_from_slice(head);
        }
        self.long = Some(long);
        Ok(None)
    }

    /// Reads more of a long body, into one piece of its place, or away behind its end.
    fn read_long(
        &mut self,
        link: LinkIndex,
        mut long: Long,
        buffer: &mut [u8],
        sink: &mut dyn Sink,
    ) -> Result<usize, LinkError> {
        let mut skip = long.at;
        let part = self.placement.iter().find_map(|piece| {
            let part = piece.part(skip, long.left);
            skip = skip.saturating_sub(piece.len());
            (!part.is_empty()).then_some(part)
        });
        let got = match part {
            Some(part) => self.read(Buffer::Lent(part).bytes_mut(), false)?,
            None => self.read(buffer.get_mut(..long.left.min(BUFFER)).unwrap_or_default(), false)?,
        };
        (long.left, long.at) = (long.left - got, long.at + got);
        if long.left > 0 {
            self.long = Some(long);
        } else {
            sink.arrived(link, long.head.get(..long.head_len).unwrap_or_default());
        }
        Ok(got)
    }

    /// For the end: writes what was taken, and the end behind it; nothing is read any more. Whether the peer has everything, or will not
    /// take it.
    pub(super) fn leave(&mut self) -> bool {
        self.rx = None;
        self.full = false;
        match self.flush() {
            Ok(_) if !self.rest.is_empty() => false,
            Ok(_) => {
                // Whoever waits looks again after whatever the engine does.
                self.tx.finish(&(Arc::new(|| {}) as _))
            }
            Err(_) => true,
        }
    }
}

/// `10.0.0.1:4000`; an IPv4 address is shown as one.
fn address_of(at: &madrigal_base::locator::Locator) -> String {
    use madrigal_base::locator::Address;
    match at.address() {
        Address::Inet(at) => std::net::SocketAddr::new(at.ip().to_canonical(), at.port()).to_string(),
        _ => at.to_string(),
    }
}
