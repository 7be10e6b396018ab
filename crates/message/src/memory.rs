//! Memory that ports write to or read from while it is not borrowed: the only place of this crate that makes pieces, or dereferences them.

use core::cell::Cell;
use std::io::IoSlice;

use madrigal_sys::piece::{self, Piece};

/// As many pieces as one call of a port gets.
pub(crate) const GATHER: usize = 16;

/// The pieces of one operation. One piece is the usual case and needs no memory of its own.
#[derive(Clone, Debug)]
pub(crate) enum Pieces {
    One(Piece),
    Many(Box<[Piece]>),
}

impl Pieces {
    #[inline]
    pub(crate) fn new(parts: &[Piece]) -> Self {
        match parts {
            [] => Self::One(Piece::EMPTY),
            [one] => Self::One(*one),
            many => Self::Many(many.into()),
        }
    }

    #[inline]
    pub(crate) fn all(&self) -> &[Piece] {
        match self {
            Self::One(one) => core::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    pub(crate) fn len(&self) -> usize {
        piece::total(self.all())
    }

    /// Where the first one lies.
    #[inline]
    pub(crate) fn at(&self) -> u64 {
        self.all().first().map_or(0, |piece| piece.at() as u64)
    }

    /// The bytes from `skip` on, at most `len` of them and at most `most` pieces; how many bytes those are.
    pub(crate) fn part(&self, mut skip: usize, len: usize, most: usize) -> (Self, usize) {
        if let Self::One(one) = self {
            let part = one.part(skip, len);
            return (Self::One(part), part.len());
        }
        let (mut parts, mut left) = (Vec::new(), len);
        for piece in self.all() {
            let part = piece.part(skip, left);
            skip = skip.saturating_sub(piece.len());
            left -= part.len();
            if !part.is_empty() {
                parts.push(part);
            }
            if left == 0 || parts.len() == most {
                break;
            }
        }
        (Self::new(&parts), len - left)
    }
}

/// Copies everything into memory of our own.
pub(crate) fn gather(parts: &[Piece]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(piece::total(parts));
    parts.iter().for_each(|part| bytes.extend_from_slice(part.bytes()));
    bytes
}

/// What a port is given to send. `parts` are at most [`GATHER`].
#[inline]
pub(crate) fn slices<'a>(parts: &[Piece]) -> ([IoSlice<'a>; GATHER], usize) {
    let mut all = [IoSlice::new(&[]); GATHER];
    let mut count = 0;
    for (place, part) in all.iter_mut().zip(parts) {
        *place = part.slice();
        count += 1;
    }
    (all, count)
}

/// Memory of our own that a port writes to.
pub(crate) struct Block(Box<[u8]>);

impl Block {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![0; len].into_boxed_slice())
    }

    /// As [`Block::new`], of a length that a peer has told: no memory is taken before it is written. `None`: there is not so much.
    pub(crate) fn try_new(len: u64) -> Option<Self> {
        bytemuck::allocation::try_zeroed_slice_box(usize::try_from(len).ok()?).ok().map(Self)
    }

    /// The memory, lent until the block is dropped: the lender keeps the block until the port is done with it.
    #[allow(unsafe_code)]
    pub(crate) fn piece(&mut self) -> Piece {
        // SAFETY: the bytes stay where they are until the block is dropped. `Placed` keeps a block until the port reported `arrived` or
        // `down`, after which no port uses the piece; no code reads the bytes before.
        unsafe { Piece::lend(self.0.as_mut_ptr(), self.0.len()) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, once no port uses the memory any more.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0.into_vec()
    }
}

/// Lends borrowed bytes to an operation that only reads and is over before the borrow is: one that is injected or copied at once, or
/// that the borrower waits for.
#[allow(unsafe_code)]
pub(crate) fn lend(bytes: &[u8]) -> Piece {
    // SAFETY: readable and unchanged while borrowed; callers ensure that the operation is over by then (`Packing` holds the borrow and
    // `Packing::end` waits, whatever happens).
    unsafe { Piece::lend(bytes.as_ptr(), bytes.len()) }
}

/// The same for bytes that may change until the operation begins.
#[allow(unsafe_code)]
pub(crate) fn lend_cells(bytes: &[Cell<u8>]) -> Piece {
    // SAFETY: as in `lend`; cells belong to one thread, which does not change them while it waits for the operation.
    unsafe { Piece::lend(bytes.as_ptr().cast(), bytes.len()) }
}

/// Lends bytes to an operation that writes, and that is over before the borrow is: the borrower waits for it, whatever happens.
#[allow(unsafe_code)]
pub(crate) fn lend_mut(bytes: &mut [u8]) -> Piece {
    // SAFETY: writable and exclusively ours while borrowed; `Unpacking::receive` and `Circuit::receive_long` wait for every operation they
    // begin before they return.
    unsafe { Piece::lend(bytes.as_mut_ptr(), bytes.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_many_pieces() {
        let bytes = *b"abcdefghij";
        let pieces = Pieces::new(&[lend(&bytes[..3]), lend(&bytes[3..3]), lend(&bytes[3..7]), lend(&bytes[7..])]);
        assert_eq!((pieces.len(), pieces.at()), (10, bytes.as_ptr() as u64));
        let part = |skip, len, most| {
            let (part, len) = pieces.part(skip, len, most);
            assert_eq!(part.len(), len);
            String::from_utf8(gather(part.all())).unwrap()
        };
        assert_eq!(part(0, 10, 16), "abcdefghij");
        assert_eq!(part(2, 6, 16), "cdefgh");
        assert_eq!(part(2, 6, 2), "cdefg");
        assert_eq!(part(8, 99, 16), "ij");
        assert_eq!(part(10, 1, 16), "");
    }
}
