//! The buffer of a posted operation: the only place of this crate that dereferences a piece.

use madrigal_sys::piece::Piece;

/// The buffer of a posted read or write.
pub(crate) enum Buffer {
    /// It comes back with the outcome.
    Own(Vec<u8>),
    /// Memory that is lent until the operation completes.
    Lent(Piece),
}

impl Buffer {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(buf) => buf,
            Self::Lent(piece) => piece.bytes(),
        }
    }

    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(buf) => buf,
            Self::Lent(piece) if piece.is_empty() => &mut [],
            // SAFETY: writable and used by no other code until the read completes, by the promise of `Piece::lend`; the queue then drops
            // the buffer, and lends it to one caller at a time.
            Self::Lent(piece) => unsafe { core::slice::from_raw_parts_mut(piece.at(), piece.len()) },
        }
    }

    /// What comes back; nothing of lent memory.
    #[inline]
    pub(crate) fn take(&mut self) -> Vec<u8> {
        match self {
            Self::Own(buf) => core::mem::take(buf),
            Self::Lent(_) => Vec::new(),
        }
    }
}
