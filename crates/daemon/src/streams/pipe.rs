//! A pipe joins two ends, each a socket or a stream of a link. It carries bytes, and the end of each direction, both ways. Between a read and
//! its write it holds what one read gave, so a slow reader holds up its own stream only. The bytes of a resumable stream are counted, and
//! retained until the other end has them; so it can migrate (`migrations.rs`).

use std::ops::Range;
use std::os::fd::OwnedFd;

use madrigal_proto::resumable::{Nonsense, Received, Resumable};
use rustix::io::Errno;

use crate::local::libc_socket;
use crate::poll::Token;
use crate::streams::origin::Origin;
use crate::streams::record::Record;
use crate::streams::stream::Stream;

/// Bytes of one read.
pub(crate) const PIECE: usize = 32 << 10;

/// One of two.
pub(crate) enum End {
    /// A socket of this host.
    Socket {
        /// The socket.
        socket: OwnedFd,
        /// Its token.
        token: Token,
        /// It is TCP: a broken stream shows as a reset.
        is_tcp: bool,
    },
    /// A stream of a link.
    Stream(Stream),
    /// Nobody: what comes there is dropped, and nothing comes from there but what is staged.
    Nobody,
    /// The stream broke, and there is no other one yet.
    FailingOver,
}

/// Where what comes on a stream goes.
pub(crate) enum Beyond {
    /// To a socket.
    Socket,
    /// To another stream.
    Stream(Stream),
    /// It waits.
    Later,
}

/// An end, and what was read from it.
pub(crate) struct Side {
    pub(crate) end: End,
    /// Read, not yet written to the other end.
    pub(crate) staged: Vec<u8>,
    /// It has nothing more.
    pub(crate) ended: bool,
    /// The other end knows.
    pub(crate) finished: bool,
    /// Of a stream that can go on by another way.
    pub(crate) resumable: Option<Box<Resumable>>,
    /// What was wrong as it was last read, or written to the other end.
    pub(crate) wrong: Option<Errno>,
    /// Bytes that came from it.
    pub(crate) came: u64,
}

/// Two ends that are joined.
pub(crate) struct Pipe {
    pub(crate) sides: [Side; 2],
    /// For a stream that can go on by another way.
    pub(crate) origin: Option<Origin>,
    /// What is kept for that.
    pub(crate) held: usize,
    /// For the log.
    pub(crate) record: Option<Record>,
}

impl Pipe {
    /// The side that can go on by another way.
    pub(crate) fn far(&mut self) -> Option<&mut Side> {
        self.sides.iter_mut().find(|side| side.resumable.is_some())
    }

    /// Where what comes on a stream can go at once.
    pub(crate) fn beyond(&self, stream: Stream) -> Beyond {
        let (from, to) = match &self.sides {
            [one, other] if one.is_of(stream) => (one, other),
            [one, other] if other.is_of(stream) => (other, one),
            _ => return Beyond::Later,
        };
        match &to.end {
            _ if !from.staged.is_empty() || from.wrong.is_some() => Beyond::Later,
            End::Socket { .. } if from.resumable.is_some() => Beyond::Socket,
            End::Stream(to) if from.resumable.is_none() => Beyond::Stream(*to),
            _ => Beyond::Later,
        }
    }

    /// Takes what came on a counted stream; what is for the socket at the other end is added to `batch`. How much was taken.
    pub(crate) fn handle(&mut self, stream: Stream, bytes: &[u8], batch: &mut Vec<u8>) -> usize {
        let Some(from) = self.sides.iter_mut().find(|side| side.is_of(stream)) else { return 0 };
        let before = batch.len();
        from.wrong = from.take_in(bytes, batch).err();
        from.came += (batch.len() - before) as u64;
        bytes.len()
    }

    /// So many bytes went from a stream to the other end at once.
    pub(crate) fn went(&mut self, stream: Stream, count: usize) {
        if let Some(from) = self.sides.iter_mut().find(|side| side.is_of(stream)) {
            from.came += count as u64;
        }
    }

    /// How many bytes came from either end.
    pub(crate) fn carried(&self) -> [u64; 2] {
        self.sides.each_ref().map(|side| side.came)
    }

    /// Brings that to the socket. What it has no room for is staged.
    pub(crate) fn bring(&mut self, bytes: &[u8]) {
        let [one, other] = &mut self.sides;
        let (from, to) = if one.resumable.is_some() { (one, other) } else { (other, one) };
        let End::Socket { socket, .. } = &to.end else { return };
        let sent = if from.staged.is_empty() { send(socket, bytes) } else { Ok(0) };
        match sent {
            Ok(sent) => from.staged.extend_from_slice(bytes.get(sent..).unwrap_or_default()),
            Err(errno) => from.wrong = from.wrong.or(Some(errno)),
        }
    }

    /// Whether both ends have said all there is to say.
    pub(crate) fn is_over(&self) -> bool {
        self.sides.iter().all(|side| side.finished)
    }

    /// Whether nobody needs it any more.
    pub(crate) fn is_done(&self) -> bool {
        self.is_over()
            && self.sides.iter().all(|side| side.resumable.as_ref().is_none_or(|resumable| resumable.is_done()))
    }
}

impl Side {
    /// An end, from which something may have been read already.
    pub(crate) fn new(end: End, staged: Vec<u8>) -> Self {
        let came = staged.len() as u64;
        Self { end, staged, ended: false, finished: false, resumable: None, wrong: None, came }
    }

    /// Its bytes are counted from now on.
    pub(crate) fn count(&mut self) -> Result<(), Errno> {
        let mut resumable = Box::new(Resumable::new());
        let new = read_counted(&mut resumable, &mut self.staged, &mut self.ended)?;
        self.staged.truncate(new.end);
        self.staged.drain(..new.start);
        self.came = self.staged.len() as u64;
        self.resumable = Some(resumable);
        Ok(())
    }

    fn is_of(&self, stream: Stream) -> bool {
        matches!(self.end, End::Stream(own) if own == stream)
    }

    /// Takes what came by a counted stream, and adds what was not here before to `batch`.
    fn take_in(&mut self, mut bytes: &[u8], batch: &mut Vec<u8>) -> Result<(), Errno> {
        let Some(resumable) = &mut self.resumable else { return Ok(()) };
        while !bytes.is_empty() {
            let (received, taken) = resumable.handle(bytes).map_err(|Nonsense| Errno::PROTO)?;
            match received {
                Received::Bytes(new) => batch.extend_from_slice(new),
                Received::End => self.ended = true,
                Received::Nothing => {}
            }
            bytes = bytes.get(taken..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Writes to a socket until it takes no more: only then are we told when it does.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match libc_socket::send(socket, rest)? {
            0 => break,
            count => written += count,
        }
    }
    Ok(written)
}

/// Reads what came by a counted stream: where in the buffer the new bytes lie then, all together.
pub(crate) fn read_counted(
    resumable: &mut Resumable,
    buffer: &mut [u8],
    ended: &mut bool,
) -> Result<Range<usize>, Errno> {
    let (mut at, mut new) = (0, 0..0);
    while let Some(rest) = buffer.get(at..).filter(|rest| !rest.is_empty()) {
        let (received, taken) = resumable.handle(rest).map_err(|Nonsense| Errno::PROTO)?;
        at += taken;
        match received {
            // They are the last of what was taken.
            Received::Bytes(bytes) if new.is_empty() => new = at - bytes.len()..at,
            Received::Bytes(bytes) => {
                let count = bytes.len();
                buffer.copy_within(at - count..at, new.end);
                new.end += count;
            }
            Received::End => *ended = true,
            Received::Nothing => {}
        }
    }
    Ok(new)
}
