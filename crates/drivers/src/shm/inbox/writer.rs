//! The sending end of a direction: which frames go into the line both sides write in turn, which into cells, which through the
//! bulk ring.

use core::sync::atomic::Ordering;
use std::io::IoSlice;

use madrigal_progress::message::{MAX_HEAD, Sent};
use madrigal_sys::cpu;

use super::bulk::Ring;
use super::bytes::Pace;
use super::layout::{CELLS, Cell, INLINE, Key, Kind, MOST, ONE, WORDS, Word};
use super::pair::Pair;

/// Bodies up to this many bytes are short: a chunk of the smallest bulk ring.
pub(super) const SHORT: usize = 8 << 10;
/// The most of a long body that is put at once, so that the reader copies one piece while the next is written.
const CHUNK: usize = 16 << 10;
/// A bulk ring found full this often makes room for a larger one.
const OFTEN_FULL: u32 = 3;
/// How many cells ahead of the one written the line is prefetched.
const AHEAD: u64 = 3;

/// Why nothing was sent and nothing can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Broken {
    /// The peer wrote what it cannot have meant.
    Nonsense(&'static str),
    /// The machine has no memory for a bulk ring.
    NoMemory,
}

/// This process's memory of a direction it writes. Nothing of it is ever read back from shared memory.
pub(super) struct Writer {
    direction: usize,
    key: Key,
    /// Cells used so far, and how many of them the reader had taken at our last read.
    cells: u64,
    taken: u64,
    ring: Ring,
    /// The reader's position in the bulk ring at our last read.
    read: u64,
    full: u32,
    /// There can be no larger ring.
    largest: bool,
    pace: Pace,
}

impl Writer {
    /// The sending end of direction `direction`; nothing was sent yet.
    pub(super) fn new(direction: usize) -> Self {
        let (key, ring) = (Key::first(direction), Ring::default());
        Self { direction, key, cells: 0, taken: 0, ring, read: 0, full: 0, largest: false, pace: Pace::default() }
    }

    /// Sends as [`Port::send`] specifies. `has_line`: whether the common line is ours to write; it is the peer's afterwards if it was used.
    ///
    /// [`Port::send`]: madrigal_progress::message::Port::send
    #[inline]
    pub(super) fn send(
        &mut self,
        pair: &Pair,
        has_line: &mut bool,
        head: &[u8],
        body: &[IoSlice<'_>],
        skip: usize,
    ) -> Result<Sent, Broken> {
        let len: usize = body.iter().map(|piece| piece.len()).sum();
        let head = head.get(..MAX_HEAD).unwrap_or(head);
        if skip == 0 && head.len() + len <= ONE {
            return self.send_one(pair, has_line, head, body, len);
        }
        if skip == 0 && head.len() + len <= INLINE {
            return self.send_inline(pair, head, body, len);
        }
        self.send_bulk(pair, head, body, len, skip)
    }

    /// A frame of one cell.
    #[inline]
    fn send_one(
        &mut self,
        pair: &Pair,
        has_line: &mut bool,
        head: &[u8],
        body: &[IoSlice<'_>],
        len: usize,
    ) -> Result<Sent, Broken> {
        let cell = if *has_line {
            *has_line = false;
            &pair.lines().alternate
        } else {
            if !self.has_cells(pair, 1)? {
                return Ok(Sent::Part(0));
            }
            self.next_cell(pair)
        };
        let total = head.len() + len;
        cell.fill(&words_of(head, body), total.div_ceil(8));
        self.publish(cell, Kind::Whole, head.len(), total);
        Ok(Sent::All)
    }

    /// A frame of several cells.
    fn send_inline(&mut self, pair: &Pair, head: &[u8], body: &[IoSlice<'_>], len: usize) -> Result<Sent, Broken> {
        if !self.has_cells(pair, (head.len() + len).div_ceil(ONE))? {
            return Ok(Sent::Part(0));
        }
        let mut bytes = [0u8; INLINE];
        let total = pack(&mut bytes, head, body);
        self.put_cells(pair, Kind::Whole, head.len(), &bytes[..total.min(INLINE)]);
        Ok(Sent::All)
    }

    /// A frame whose body goes through the bulk ring, or the rest of one.
    fn send_bulk(
        &mut self,
        pair: &Pair,
        head: &[u8],
        body: &[IoSlice<'_>],
        len: usize,
        skip: usize,
    ) -> Result<Sent, Broken> {
        let mut done = skip.saturating_sub(head.len());
        while done < len || skip == 0 && done == 0 {
            let begin = skip == 0 && done == 0;
            if !self.has_cells(pair, MOST)? || !self.has_ring(pair)? {
                break;
            }
            let most = if len <= SHORT { SHORT } else { CHUNK.min(self.ring.longest()) };
            let chunk = most.min(len - done);
            let Some(at) = self.bulk_room(pair, chunk)? else { break };
            copy_in(&mut self.pace, body, done, at, chunk);
            let (mut bytes, size) = ([0u8; 16 + MAX_HEAD], if begin { 16 + head.len() } else { 8 });
            let (first, second) = if begin { (len, chunk) } else { (chunk, 0) };
            bytes[..8].copy_from_slice(&(first as u64).to_ne_bytes());
            bytes[8..16].copy_from_slice(&(second as u64).to_ne_bytes());
            bytes[16..16 + head.len()].copy_from_slice(head);
            let kind = if begin { Kind::Begin } else { Kind::More };
            self.put_cells(pair, kind, if begin { head.len() } else { 0 }, &bytes[..size]);
            done += chunk;
        }
        Ok(match done {
            done if done >= len => Sent::All,
            0 => Sent::Part(0),
            done => Sent::Part(head.len() + done - skip),
        })
    }

    /// Room for a chunk of the bulk ring, which it is then used up to; `None`: none now.
    fn bulk_room(&mut self, pair: &Pair, chunk: usize) -> Result<Option<*mut u8>, Broken> {
        let nonsense = Broken::Nonsense("an impossible position in the bulk ring");
        let (at, behind) = self.ring.chunk(chunk).ok_or(nonsense)?;
        if self.ring.has_room(behind, self.read) != Some(true) {
            // SYNC: SeqCst for `want` (see `notice`); the Acquire part pairs with the store in `Reader::ack_bulk`: those bytes were read.
            self.read = pair.direction(self.direction).read.bulk.load(Ordering::SeqCst);
            if !self.ring.has_room(behind, self.read).ok_or(nonsense)? {
                self.full += 1;
                return Ok(None);
            }
        }
        let to = pair.bulk(self.ring, self.direction, at, chunk).ok_or(nonsense)?;
        self.ring = behind;
        Ok(Some(to))
    }

    /// Whether there is a bulk ring; makes the first and, where the present one was full often, the next. False: not now.
    fn has_ring(&mut self, pair: &Pair) -> Result<bool, Broken> {
        let first = self.ring.class() == 0;
        if !first && (self.largest || self.full < OFTEN_FULL) {
            return Ok(true);
        }
        let Some(next) = Ring::new(self.ring.class() + 1).filter(|next| pair.reserve(*next, self.direction).is_ok())
        else {
            self.largest = true;
            return if first { Err(Broken::NoMemory) } else { Ok(true) };
        };
        self.ring = next;
        self.full = 0;
        self.put_cells(pair, Kind::Grow, 0, &u64::from(next.class()).to_ne_bytes());
        // The frame itself needs as many again.
        self.has_cells(pair, MOST)
    }

    /// Whether so many cells are free.
    #[inline]
    fn has_cells(&mut self, pair: &Pair, count: usize) -> Result<bool, Broken> {
        let end = self.cells + count as u64;
        if end.wrapping_sub(self.taken) <= CELLS as u64 {
            return Ok(true);
        }
        // SYNC: SeqCst for `want` (see `notice`); the Acquire part pairs with the store in `Reader::send_ack`: those cells were read.
        let taken = pair.direction(self.direction).read.cells.load(Ordering::SeqCst);
        if self.cells.wrapping_sub(taken) > CELLS as u64 {
            return Err(Broken::Nonsense("more cells taken than were sent"));
        }
        self.taken = taken;
        Ok(end.wrapping_sub(taken) <= CELLS as u64)
    }

    /// Whether a frame of any size may find room, as of now; also true if the peer wrote nonsense, which a send will report.
    pub(super) fn has_room(&mut self, pair: &Pair) -> bool {
        self.taken = self.cells.wrapping_sub(CELLS as u64);
        if !matches!(self.has_cells(pair, MOST), Ok(true) | Err(_)) {
            return false;
        }
        let Some((_, behind)) = self.ring.chunk(CHUNK.min(self.ring.longest())) else { return true };
        self.read = pair.direction(self.direction).read.bulk.load(Ordering::SeqCst);
        self.ring.has_room(behind, self.read) != Some(false)
    }

    #[inline]
    fn next_cell<'a>(&mut self, pair: &'a Pair) -> &'a Cell {
        let cells = pair.cells(self.direction);
        let cell = &cells[self.cells as usize % CELLS];
        cpu::claim(&cells[(self.cells + AHEAD) as usize % CELLS]);
        self.cells += 1;
        cell
    }

    /// Puts bytes into as many cells as they need, which are free; the first one's word comes last.
    fn put_cells(&mut self, pair: &Pair, kind: Kind, head: usize, bytes: &[u8]) {
        let first = self.next_cell(pair);
        for (i, part) in bytes.chunks(ONE).enumerate() {
            let cell = if i == 0 { first } else { self.next_cell(pair) };
            let mut whole = [0; ONE];
            whole[..part.len()].copy_from_slice(part);
            cell.fill(&words(&whole), part.len().div_ceil(8));
        }
        self.publish(first, kind, head, bytes.len());
    }

    #[inline]
    fn publish(&mut self, cell: &Cell, kind: Kind, head: usize, len: usize) {
        // SYNC: SeqCst, so that the frame is published before `notice` is read; the Release part pairs with `Reader::peek`. An exchange
        // costs half of a store and a fence.
        cell.word.swap(Word::new(kind, head, len, self.key).bits(), Ordering::SeqCst);
        self.key = self.key.next();
    }
}

/// Head and body, one behind the other; how many bytes.
#[inline]
fn pack(to: &mut [u8], head: &[u8], body: &[IoSlice<'_>]) -> usize {
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        if let Some(room) = to.get_mut(at..at + bytes.len()) {
            room.copy_from_slice(bytes);
            at += bytes.len();
        }
    };
    put(head);
    body.iter().for_each(|piece| put(piece));
    at
}

/// Head and body, which fit one cell.
#[inline]
fn words_of(head: &[u8], body: &[IoSlice<'_>]) -> [u64; WORDS] {
    let (begin, odd) = head.as_chunks::<8>();
    if let [body] = body
        && odd.is_empty()
    {
        // The usual case: whole words, and one piece behind them.
        let (middle, end) = body.as_chunks::<8>();
        let mut words = [0; WORDS];
        let mut places = words.iter_mut();
        begin.iter().zip(&mut places).for_each(|(bytes, to)| *to = u64::from_ne_bytes(*bytes));
        middle.iter().zip(&mut places).for_each(|(bytes, to)| *to = u64::from_ne_bytes(*bytes));
        if !end.is_empty()
            && let Some(to) = places.next()
        {
            let mut bytes = [0; 8];
            bytes[..end.len()].copy_from_slice(end);
            *to = u64::from_ne_bytes(bytes);
        }
        return words;
    }
    let mut bytes = [0u8; ONE];
    pack(&mut bytes, head, body);
    words(&bytes)
}

#[inline]
fn words(bytes: &[u8; ONE]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// Copies `len` bytes of `body`, from byte `skip` on, to `to`.
fn copy_in(pace: &mut Pace, body: &[IoSlice<'_>], mut skip: usize, to: *mut u8, len: usize) {
    let mut done = 0;
    for piece in body {
        let part = piece.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(piece.len());
        let n = part.len().min(len - done);
        // SAFETY: `part` is readable for `n` bytes; `to` is room of `len` bytes in the bulk ring, just given by `bulk_room`. Only a hostile
        // peer writes there too, and it spoils its own messages only.
        unsafe { pace.copy_in(part.as_ptr(), to.wrapping_add(done), n) };
        done += n;
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// However head and body are cut, the words of a cell hold one behind the other.
        #[test]
        fn words_hold_head_and_body(bytes in prop::collection::vec(any::<u8>(), 0..=ONE), cuts in any::<[usize; 2]>()) {
            let mut cuts = cuts.map(|cut| cut % (bytes.len() + 1));
            cuts.sort_unstable();
            for at in [cuts[0], cuts[0] & !7] {
                let (head, body) = bytes.split_at(at);
                let (one, two) = body.split_at(cuts[1] - cuts[0]);
                let mut whole = [0; ONE];
                whole[..bytes.len()].copy_from_slice(&bytes);
                prop_assert_eq!(words_of(head, &[IoSlice::new(body)]), words(&whole));
                prop_assert_eq!(words_of(head, &[IoSlice::new(one), IoSlice::new(two)]), words(&whole));
            }
        }
    }
}
