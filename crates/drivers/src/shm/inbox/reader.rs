//! The receiving end of a direction. Whatever the peer writes, it reads inside the pair and delivers well-formed frames.

use core::sync::atomic::Ordering;

use madrigal_progress::message::{LinkIndex, MAX_HEAD, Placement, Sink};

use super::bulk::Ring;
use super::bytes;
use super::layout::{CELLS, Cell, INLINE, Key, Kind, ONE, Word};
use super::pair::Pair;

/// Bodies up to this many bytes are copied out and delivered whole; longer ones are copied to their placement.
const WHOLE: usize = 1 << 10;
/// Taken cells are reported to the writer once they are so many: it must find room for any frame when everything was taken.
const TELL: u64 = CELLS as u64 / 4;

/// This process's memory of a direction it reads. Nothing of it is ever read back from shared memory.
pub(super) struct Reader {
    direction: usize,
    key: Key,
    /// Cells taken, and how many of them were reported to the writer.
    cells: u64,
    reported: u64,
    ring: Ring,
    long: Option<Long>,
    /// Used again and again, so that no message needs memory of its own.
    spare: Placed,
    /// Room was reported to the writer since this was last read.
    pub(super) gave_room: bool,
}

/// A body that has not all come.
struct Long {
    head: [u8; MAX_HEAD],
    head_len: usize,
    left: usize,
    place: Placed,
}

/// Where a body goes, and how far it is.
#[derive(Default)]
struct Placed {
    placement: Placement,
    piece: usize,
    at: usize,
}

/// A frame that is there.
pub(super) struct Found<'a> {
    cell: &'a Cell,
    word: Word,
    /// It is in the common line.
    pub(super) is_common: bool,
}

type Nonsense = &'static str;

impl Reader {
    /// The receiving end of direction `direction`; nothing was read yet.
    pub(super) fn new(direction: usize) -> Self {
        let (key, ring) = (Key::first(direction), Ring::default());
        Self { direction, key, cells: 0, reported: 0, ring, long: None, spare: Placed::default(), gave_room: false }
    }

    /// The next frame, if it is there. `has_line`: the common line is not read. If it is ours, nothing of the peer is in it.
    #[inline]
    pub(super) fn peek<'a>(&self, pair: &'a Pair, has_line: bool) -> Option<Found<'a>> {
        if !has_line {
            let cell = &pair.lines().alternate;
            // SYNC: Acquire pairs with `Writer::publish`; SeqCst for `listen`, which costs nothing more for a load.
            let word = Word::read(cell.word.load(Ordering::SeqCst));
            if word.is(self.key) {
                return Some(Found { cell, word, is_common: true });
            }
        }
        let cell = &pair.cells(self.direction)[self.cells as usize % CELLS];
        let word = Word::read(cell.word.load(Ordering::SeqCst));
        word.is(self.key).then_some(Found { cell, word, is_common: false })
    }

    /// Takes the frame just found. `Err`: no honest peer sent it; nothing more is read.
    #[inline]
    pub(super) fn take(
        &mut self,
        pair: &Pair,
        found: &Found<'_>,
        has_line: &mut bool,
        link: LinkIndex,
        sink: &mut dyn Sink,
    ) -> Result<(), Nonsense> {
        let (kind, head, len) = found.word.parts().ok_or("a frame of no kind")?;
        if kind == Kind::Whole && len <= ONE {
            let bytes = bytes_of(found.cell);
            self.passed(pair, found, has_line, 1);
            let (head, body) = bytes[..len].split_at(head);
            if head.len() > MAX_HEAD || self.long.is_some() {
                return Err("a frame in the middle of another");
            }
            sink.frame(link, head, body);
            return Ok(());
        }
        self.take_more(pair, found, has_line, (kind, head, len), (link, sink))
    }

    fn take_more(
        &mut self,
        pair: &Pair,
        found: &Found<'_>,
        has_line: &mut bool,
        (kind, head, len): (Kind, usize, usize),
        (link, sink): (LinkIndex, &mut dyn Sink),
    ) -> Result<(), Nonsense> {
        if found.is_common {
            return Err("more than fits the common line");
        }
        let mut bytes = [0; INLINE];
        let cells = pair.cells(self.direction);
        for (i, part) in bytes[..len].chunks_mut(ONE).enumerate() {
            part.copy_from_slice(&bytes_of(&cells[(self.cells as usize + i) % CELLS])[..part.len()]);
        }
        self.passed(pair, found, has_line, len.div_ceil(ONE).max(1));
        let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
        let bytes = &bytes[..len];
        match kind {
            Kind::Whole if self.long.is_some() || head > MAX_HEAD => Err("a frame in the middle of another"),
            Kind::Whole => {
                let (head, body) = bytes.split_at(head);
                sink.frame(link, head, body);
                Ok(())
            }
            Kind::Begin if len == 16 + head && head <= MAX_HEAD => {
                self.begin(pair, &bytes[16..], (word(0), word(8)), (link, sink))
            }
            Kind::More if len == 8 => self.more(pair, word(0), link, sink),
            Kind::Grow if len == 8 => self.grow(pair, word(0)),
            _ => Err("a frame of impossible length"),
        }
    }

    /// The cells of a frame were copied.
    #[inline]
    fn passed(&mut self, pair: &Pair, found: &Found<'_>, has_line: &mut bool, cells: usize) {
        self.key = self.key.next();
        if found.is_common {
            *has_line = true;
            return;
        }
        self.cells += cells as u64;
        if self.cells - self.reported >= TELL {
            self.send_ack(pair);
        }
    }

    /// Reports to the writer how many cells were taken.
    #[cold]
    fn send_ack(&mut self, pair: &Pair) {
        self.reported = self.cells;
        // SYNC: SeqCst for `want` (see `notice`); the Release part pairs with the loads in `Writer`.
        pair.direction(self.direction).read.cells.store(self.cells, Ordering::SeqCst);
        self.gave_room = true;
    }

    /// A frame whose body, or its first part, is in the bulk ring.
    fn begin(
        &mut self,
        pair: &Pair,
        head: &[u8],
        (len, chunk): (u64, u64),
        (link, sink): (LinkIndex, &mut dyn Sink),
    ) -> Result<(), Nonsense> {
        let len = usize::try_from(len).ok().filter(|&len| len <= isize::MAX as usize).ok_or("a body without end")?;
        if self.long.is_some() {
            return Err("a frame in the middle of another");
        }
        let (from, chunk) = self.chunk(pair, chunk, len)?;
        if chunk == len && len <= WHOLE {
            let mut bytes = [0u8; WHOLE];
            // SAFETY: `from` is readable for `chunk` bytes inside the pair, and `bytes` is as long; a peer that writes meanwhile
            // spoils its own message.
            unsafe { bytes::copy_out(from, bytes.as_mut_ptr(), chunk) };
            self.ack_bulk(pair);
            sink.frame(link, head, &bytes[..chunk]);
            return Ok(());
        }
        let mut place = core::mem::take(&mut self.spare).cleared();
        sink.place(link, head, len, &mut place.placement);
        place.copy(from, chunk);
        self.ack_bulk(pair);
        if chunk == len {
            self.spare = place;
            sink.arrived(link, head);
            return Ok(());
        }
        let mut long = Long { head: [0; MAX_HEAD], head_len: head.len(), left: len - chunk, place };
        long.head[..head.len()].copy_from_slice(head);
        self.long = Some(long);
        Ok(())
    }

    /// The next part of a body.
    fn more(&mut self, pair: &Pair, chunk: u64, link: LinkIndex, sink: &mut dyn Sink) -> Result<(), Nonsense> {
        let mut long = self.long.take().ok_or("the rest of nothing")?;
        let (from, chunk) = self.chunk(pair, chunk, long.left)?;
        long.place.copy(from, chunk);
        self.ack_bulk(pair);
        long.left -= chunk;
        if long.left == 0 {
            self.spare = long.place;
            sink.arrived(link, &long.head[..long.head_len]);
        } else {
            self.long = Some(long);
        }
        Ok(())
    }

    fn grow(&mut self, pair: &Pair, class: u64) -> Result<(), Nonsense> {
        let next = u8::try_from(class).ok().and_then(Ring::new).filter(|next| next.class() > self.ring.class());
        let old = self.ring;
        self.ring = next.ok_or("a bulk ring of no size")?;
        if old.class() != 0 {
            pair.give_back(old, self.direction);
        }
        self.ack_bulk(pair);
        Ok(())
    }

    /// The chunk that comes next, of at most `left` bytes; the ring is then behind it.
    fn chunk(&mut self, pair: &Pair, chunk: u64, left: usize) -> Result<(*const u8, usize), Nonsense> {
        let chunk = usize::try_from(chunk).ok().filter(|&n| n <= left && n > 0).ok_or("a part of impossible length")?;
        let (at, behind) = self.ring.chunk(chunk).ok_or("a part that fits no ring")?;
        let from = pair.bulk(self.ring, self.direction, at, chunk).ok_or("a part outside")?;
        self.ring = behind;
        Ok((from, chunk))
    }

    fn ack_bulk(&mut self, pair: &Pair) {
        // SYNC: SeqCst for `want` (see `notice`); the Release part pairs with the loads in `Writer`: the bytes were copied.
        pair.direction(self.direction).read.bulk.store(self.ring.word(), Ordering::SeqCst);
        self.gave_room = true;
    }
}

impl Placed {
    fn cleared(mut self) -> Self {
        self.placement.clear();
        Self { placement: self.placement, piece: 0, at: 0 }
    }

    /// Copies the next `len` bytes of the body to where they belong, as far as they belong anywhere.
    fn copy(&mut self, from: *const u8, len: usize) {
        let mut done = 0;
        while done < len
            && let Some(piece) = self.placement.get(self.piece)
        {
            let to = piece.part(self.at, len - done);
            // SAFETY: `from` is readable for `len` bytes inside the pair; `to` is writable until the body arrived or the link is
            // down (contract of `Sink::place`). A peer that writes meanwhile spoils its own message.
            unsafe { bytes::copy_out(from.wrapping_add(done), to.at(), to.len()) };
            done += to.len();
            self.at += to.len();
            if self.at == piece.len() {
                (self.piece, self.at) = (self.piece + 1, 0);
            }
        }
    }
}

#[inline]
fn bytes_of(cell: &Cell) -> [u8; ONE] {
    let mut bytes = [0; ONE];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(cell.words()) {
        *to = word.to_ne_bytes();
    }
    bytes
}
