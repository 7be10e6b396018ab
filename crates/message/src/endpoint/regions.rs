//! Regions of memory: our own, and those of peers as they told us.

use super::types::Region;

/// A region of ours.
pub(crate) struct Exposed {
    pub(crate) region: Region,
    /// Who was told where it lies: node, its channel, ours.
    pub(crate) holders: Vec<(u32, u16, u16)>,
}

/// A region of a peer, as it told us.
#[derive(Clone, Copy)]
pub(crate) enum Known {
    /// It was asked.
    Asked,
    /// There.
    At { base: u64, len: u64, origin: u64, read: bool, write: bool },
    /// It has none of that key that could be reached.
    Nowhere,
}

impl Exposed {
    pub(crate) fn new(region: Region) -> Self {
        Self { region, holders: Vec::new() }
    }
}

impl Known {
    /// The peer's address of a place, if the region reaches so far and allows that.
    pub(crate) fn address(&self, at: u64, len: usize, writes: bool) -> Option<u64> {
        let Self::At { base, len: all, origin, read, write } = *self else { return None };
        let offset = at.checked_sub(origin)?;
        let fits = offset.checked_add(len as u64)? <= all && if writes { write } else { read };
        fits.then(|| base.checked_add(offset)).flatten()
    }
}
