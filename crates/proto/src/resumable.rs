//! One connection over several streams, one after another. What goes out is numbered and kept until the other end has it. If the stream
//! breaks, both ends report how far they are, and go on from there on another one: no byte is lost, none comes twice.
//!
//! ```text
//!   push, end --> [ Resumable ] --> output, took: bytes for the stream     data 1  length, 2  bytes      ack 2  position, 8      end 3
//!                 [           ] <-- handle:       bytes of the stream
//! ```
//! A position is a number of bytes from the beginning; the end counts as one more. Numbers have their little end first. No I/O, no clock.
//! Whatever a peer sends, nothing here panics or grows: the caller of `push` bounds what is kept, and may also have it forgotten.

mod kept;

use kept::Kept;

use crate::mux::QUANTUM;

/// The most bytes of one record: with its head they fill two quanta of a stream.
pub const LONGEST: usize = 2 * QUANTUM - 3;
/// So many bytes are taken before they are acknowledged, unless there is something else to send; the second number is for a stream that has
/// carried more than a hundred times as much.
const EVERY: (u64, u64) = (16 << 10, 256 << 10);
const MANY: u64 = 100 * EVERY.1;
/// More memory than this is given back when nothing is kept: thousands of streams may be open and idle.
const SPARE: usize = 64 << 10;

const DATA: u8 = 1;
const ACK: u8 = 2;
const END: u8 = 3;

/// What no peer may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer's count of a stream makes no sense")]
pub struct Nonsense;

/// What came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received<'a> {
    /// Bytes that were not here before.
    Bytes(&'a [u8]),
    /// Nothing more will come.
    End,
    /// Nothing to read.
    Nothing,
}

/// One end of a connection.
#[derive(Debug, Default)]
pub struct Resumable {
    /// Bytes that the other end may not have; the position of the first one.
    kept: Kept,
    base: u64,
    /// The position that goes next on this stream, and the highest that ever went.
    next: u64,
    highest: u64,
    acked: u64,
    ended: bool,
    /// A head that must be written, from `at` on, and the bytes that follow it.
    head: [u8; 12],
    at: usize,
    len: usize,
    body: usize,
    /// The position that came, and the one that was acknowledged.
    got: u64,
    acked_here: u64,
    over: bool,
    /// What comes again.
    skip: u64,
    /// A head, as far as it came, and the bytes that follow it.
    front: [u8; 9],
    filled: usize,
    left: usize,
}

impl Resumable {
    /// An end of a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// More to be sent.
    pub fn push(&mut self, bytes: &[u8]) {
        if !self.ended {
            self.kept.push(bytes);
        }
    }

    /// Where up to `most` more bytes to be sent may be written, which [`Resumable::pushed`] counts; fewer now and then.
    pub fn space(&mut self, most: usize) -> &mut [u8] {
        if self.ended { &mut [] } else { self.kept.space(most) }
    }

    /// So many bytes were written into [`Resumable::space`].
    pub fn pushed(&mut self, count: usize) {
        if !self.ended {
            self.kept.grew(count);
        }
    }

    /// Nothing more will be pushed.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// The position that came from the other end.
    pub fn got(&self) -> u64 {
        self.got
    }

    /// The position that the other end has acknowledged.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Memory for what is kept.
    pub fn held(&self) -> usize {
        self.kept.capacity()
    }

    /// Whether each end has all of the other's, and knows that the other has.
    pub fn is_done(&self) -> bool {
        let idle = self.at == self.len && self.body == 0;
        idle && self.ended && self.acked > self.total() && self.over && self.acked_here == self.got
    }

    /// Keeps no longer what was sent: it cannot be sent again.
    pub fn forget(&mut self) {
        self.drop_until(self.next);
        self.kept.shrink();
    }

    /// What must be written to the stream next, in two pieces; the first may be empty.
    pub fn output(&mut self) -> Option<[&[u8]; 2]> {
        if self.at == self.len && self.body == 0 {
            self.begin();
        }
        let head = self.head.get(self.at..self.len).unwrap_or_default();
        let at = usize::try_from(self.next.saturating_sub(self.base)).unwrap_or(usize::MAX);
        let rest = if self.body == 0 { &[] } else { self.kept.piece(at) };
        let body = rest.get(..self.body.min(rest.len())).unwrap_or_default();
        (!head.is_empty() || !body.is_empty()).then_some([head, body])
    }

    /// So much of it was written.
    pub fn took(&mut self, count: usize) {
        let head = count.min(self.len - self.at);
        self.at += head;
        let count = (count - head).min(self.body);
        self.body -= count;
        self.next += count as u64;
        self.highest = self.highest.max(self.next);
    }

    /// Takes the front of what came by the stream: its meaning, and how many bytes it was.
    pub fn handle<'a>(&mut self, bytes: &'a [u8]) -> Result<(Received<'a>, usize), Nonsense> {
        if self.left > 0 {
            let count = self.left.min(bytes.len());
            self.left -= count;
            let again = usize::try_from(self.skip).unwrap_or(usize::MAX).min(count);
            self.skip -= again as u64;
            if self.over && again < count {
                return Err(Nonsense);
            }
            self.got += (count - again) as u64;
            return Ok((Received::Bytes(bytes.get(again..count).unwrap_or_default()), count));
        }
        let Some(kind) = self.front.first().copied().filter(|_| self.filled > 0).or(bytes.first().copied()) else {
            return Ok((Received::Nothing, 0));
        };
        let wanted = match kind {
            DATA => 3,
            ACK => 9,
            END => 1,
            _ => return Err(Nonsense),
        };
        let count = (wanted - self.filled).min(bytes.len());
        if let (Some(room), Some(more)) = (self.front.get_mut(self.filled..self.filled + count), bytes.get(..count)) {
            room.copy_from_slice(more);
        }
        self.filled += count;
        if self.filled < wanted {
            return Ok((Received::Nothing, count));
        }
        self.filled = 0;
        self.handle_head().map(|received| (received, count))
    }

    /// The connection goes on by another stream, from its beginning. The other end has `theirs`, and was sent `ours`. Returns whether what
    /// it lacks is still kept; if not, nothing has changed.
    pub fn resume(&mut self, ours: u64, theirs: u64) -> bool {
        if theirs < self.base || theirs < self.acked || theirs > self.highest || ours > self.got {
            return false;
        }
        self.ack(theirs);
        self.next = theirs;
        (self.at, self.len, self.body) = (0, 0, 0);
        (self.filled, self.left) = (0, 0);
        (self.acked_here, self.skip) = (ours, self.got - ours);
        true
    }

    /// The position of the end, if it were now.
    fn total(&self) -> u64 {
        self.base + self.kept.len() as u64
    }

    /// Begins what goes next: what the other end has to know, and more of what there is.
    fn begin(&mut self) {
        (self.at, self.len) = (0, 0);
        let unsent = self.total().saturating_sub(self.next);
        let ends = self.ended && self.next == self.total();
        // What comes again has not come yet, by this stream.
        let here = self.got - self.skip;
        let new = here.saturating_sub(self.acked_here);
        let enough = if self.got < MANY { EVERY.0 } else { EVERY.1 };
        if new > 0 && (new >= enough || self.over || unsent > 0 || ends) {
            self.acked_here = here;
            self.add(ACK, &here.to_le_bytes());
        }
        if unsent > 0 {
            self.body = LONGEST.min(usize::try_from(unsent).unwrap_or(LONGEST));
            self.add(DATA, &(self.body as u16).to_le_bytes());
        } else if ends {
            self.add(END, &[]);
            self.next += 1;
            self.highest = self.highest.max(self.next);
        }
    }

    fn add(&mut self, kind: u8, rest: &[u8]) {
        for byte in [kind].iter().chain(rest) {
            if let Some(place) = self.head.get_mut(self.len) {
                (*place, self.len) = (*byte, self.len + 1);
            }
        }
    }

    fn handle_head(&mut self) -> Result<Received<'static>, Nonsense> {
        let [kind, rest @ ..] = self.front;
        match kind {
            DATA => {
                self.left = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
                if self.left == 0 || (self.over && self.skip == 0) { Err(Nonsense) } else { Ok(Received::Nothing) }
            }
            ACK => {
                let position = u64::from_le_bytes(rest);
                if position < self.acked || position > self.next {
                    return Err(Nonsense);
                }
                self.ack(position);
                Ok(Received::Nothing)
            }
            _ if self.skip > 0 => {
                self.skip -= 1;
                Ok(Received::Nothing)
            }
            _ if self.over => Err(Nonsense),
            _ => {
                (self.over, self.got) = (true, self.got + 1);
                Ok(Received::End)
            }
        }
    }

    fn ack(&mut self, position: u64) {
        self.acked = self.acked.max(position);
        self.drop_until(position);
        if self.kept.capacity() > SPARE {
            self.kept.settle();
        }
    }

    fn drop_until(&mut self, position: u64) {
        let count = position.saturating_sub(self.base).min(self.kept.len() as u64);
        self.kept.drop_front(usize::try_from(count).unwrap_or(0));
        self.base += count;
    }
}

#[cfg(test)]
mod tests;
