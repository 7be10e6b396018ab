//! What a message is packed into.

use madrigal_sys::piece::Piece;

/// A piece of the packet: lent, or copied to the scratch.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Lent(Piece),
    Copy { from: usize, len: usize },
}

/// A piece that travels alone.
pub(super) enum Bulk {
    Lent(Piece),
    Copy(Vec<u8>),
}
