//! A pipe joins two ends, each a socket or a stream of a link. It carries bytes, and the end of each direction, both ways. Between a read and
//! its write it holds what one read gave, so a slow reader holds up its own stream only. The bytes of a resumable stream are counted, and
//! retained until the other end has them; so it can migrate (`migrations.rs`).

use std::ops::Range;
use std::os::fd::OwnedFd;

use madrigal_proto::resumable::{Nonsense, Received, Resumable};
use rustix::io::Errno;

use crate::local::libc_socket;
use crate::poll::Token;
use crate::streams::cap::Way;
use crate::streams::origin::Origin;
use crate::streams::record::Record;
use crate::streams::stream::Stream;

/// The largest read of a pipe.
pub(crate) const PIPE_READ: usize = 32 << 10;

/// An end of a pipe.
pub(crate) enum End {
    /// A socket of this host.
    Socket {
        /// The socket.
        socket: OwnedFd,
        /// Its token.
        token: Token,
        /// It is TCP: when the pipe breaks, the peer sees a reset.
        is_tcp: bool,
    },
    /// A stream of a link.
    Stream(Stream),
    /// Nothing: what is written there is discarded, and only staged bytes come from there.
    Null,
    /// A resumable stream without a way. It waits for another one.
    Disconnected,
}

/// Where bytes that come on a stream go at once, without being staged.
pub(crate) enum FastPath {
    /// To a socket.
    Socket,
    /// To another stream.
    Stream(Stream),
    /// Nowhere: they are read later.
    Blocked,
}

/// An end, and the state of the direction that begins there.
pub(crate) struct Side {
    pub(crate) end: End,
    /// Read, not yet written to the other end.
    pub(crate) staged: Vec<u8>,
    /// The end of its stream was read.
    pub(crate) ended: bool,
    /// That was passed on to the other end.
    pub(crate) finished: bool,
    /// The counted and retained bytes of a resumable stream.
    pub(crate) resumable: Option<Box<Resumable>>,
    /// The error of its last read, or of the last write to the other end.
    pub(crate) error: Option<Errno>,
    /// Bytes received from it.
    pub(crate) received: u64,
}

/// Two ends that are joined.
pub(crate) struct Pipe {
    pub(crate) sides: [Side; 2],
    /// The identity of a resumable stream.
    pub(crate) origin: Option<Origin>,
    /// Bytes that it retains.
    pub(crate) retained: usize,
    /// The rule that caps what it carries.
    pub(crate) cap: Option<String>,
    /// The data of the log line at its end.
    pub(crate) record: Option<Record>,
}

impl Pipe {
    /// The side whose stream is resumable.
    pub(crate) fn resumable_side(&mut self) -> Option<&mut Side> {
        self.sides.iter_mut().find(|side| side.resumable.is_some())
    }

    /// Where bytes that come on a stream can go at once.
    pub(crate) fn fast_path(&self, stream: Stream) -> FastPath {
        let (from, to) = match &self.sides {
            [one, other] if one.is_of(stream) => (one, other),
            [one, other] if other.is_of(stream) => (other, one),
            _ => return FastPath::Blocked,
        };
        match &to.end {
            _ if !from.staged.is_empty() || from.error.is_some() || self.cap.is_some() => FastPath::Blocked,
            End::Socket { .. } if from.resumable.is_some() => FastPath::Socket,
            End::Stream(to) if from.resumable.is_none() => FastPath::Stream(*to),
            _ => FastPath::Blocked,
        }
    }

    /// Takes bytes of a resumable stream. Adds the payload, which is for the socket at the other end, to `batch`. Returns how many it took.
    pub(crate) fn receive(&mut self, stream: Stream, bytes: &[u8], batch: &mut Vec<u8>) -> usize {
        let Some(from) = self.sides.iter_mut().find(|side| side.is_of(stream)) else { return 0 };
        let before = batch.len();
        from.error = from.take_counted(bytes, batch).err();
        from.received += (batch.len() - before) as u64;
        bytes.len()
    }

    /// Counts bytes that went from a stream to the other end at once.
    pub(crate) fn count_forwarded(&mut self, stream: Stream, count: usize) {
        if let Some(from) = self.sides.iter_mut().find(|side| side.is_of(stream)) {
            from.received += count as u64;
        }
    }

    /// The bytes received from each end.
    pub(crate) fn byte_counts(&self) -> [u64; 2] {
        self.sides.each_ref().map(|side| side.received)
    }

    /// Writes payload to the socket. What it has no room for is staged.
    pub(crate) fn write_to_socket(&mut self, bytes: &[u8]) {
        let [one, other] = &mut self.sides;
        let (from, to) = if one.resumable.is_some() { (one, other) } else { (other, one) };
        let End::Socket { socket, .. } = &to.end else { return };
        let sent = if from.staged.is_empty() { send(socket, bytes) } else { Ok(0) };
        match sent {
            Ok(sent) => from.staged.extend_from_slice(bytes.get(sent..).unwrap_or_default()),
            Err(errno) => from.error = from.error.or(Some(errno)),
        }
    }

    /// Whether both directions have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.sides.iter().all(|side| side.finished)
    }

    /// Whether both directions have ended, and the other end of a resumable stream has everything.
    pub(crate) fn is_done(&self) -> bool {
        self.is_over()
            && self.sides.iter().all(|side| side.resumable.as_ref().is_none_or(|resumable| resumable.is_done()))
    }
}

impl Side {
    /// A side; `staged` was read from it already.
    pub(crate) fn new(end: End, staged: Vec<u8>) -> Self {
        let received = staged.len() as u64;
        Self { end, staged, ended: false, finished: false, resumable: None, error: None, received }
    }

    /// Makes its stream resumable: its bytes are counted from now on.
    pub(crate) fn make_resumable(&mut self) -> Result<(), Errno> {
        let mut resumable = Box::new(Resumable::new());
        let new = read_counted(&mut resumable, &mut self.staged, &mut self.ended)?;
        self.staged.truncate(new.end);
        self.staged.drain(..new.start);
        self.received = self.staged.len() as u64;
        self.resumable = Some(resumable);
        Ok(())
    }

    /// Which way bytes go that come from it, at the calling end.
    pub(crate) fn way(&self) -> Way {
        if matches!(self.end, End::Socket { .. }) { Way::Out } else { Way::In }
    }

    fn is_of(&self, stream: Stream) -> bool {
        matches!(self.end, End::Stream(own) if own == stream)
    }

    /// Takes bytes of a resumable stream, and adds the payload that is new to `batch`.
    fn take_counted(&mut self, mut bytes: &[u8], batch: &mut Vec<u8>) -> Result<(), Errno> {
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

/// Writes to a socket until all is written or it would block: the epoll reports room only after that.
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

/// Takes bytes of a resumable stream, and moves the payload that is new together. Returns where in the buffer it lies.
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
            // The payload is the last part of what was taken.
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
