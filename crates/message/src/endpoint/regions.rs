//! Regions of memory: our own, and those of peers as they reported them.

use super::types::Region;

/// A region of ours.
pub(crate) struct Exposed {
    pub(crate) region: Region,
    /// The peers that were sent its place: node, its channel, ours.
    pub(crate) holders: Vec<(u32, u16, u16)>,
}

/// A region of a peer, as it reported it.
#[derive(Clone, Copy)]
pub(crate) enum Known {
    /// A request was sent.
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
