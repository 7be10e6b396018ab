//! The memory two linked processes share: made by the side that dials, sealed at its size, mapped by both.

use core::ptr::NonNull;
use std::os::fd::AsFd;

use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use madrigal_sys::mem::{self, SharedMap};

use super::bulk::Ring;
use super::layout::{Cells, Direction, FIRST_BYTES, Lines, NotificationPage, PAGE_BYTES, PAIR_BYTES, cells_at};

/// A mapped pair. The peer may change any byte of it at any time.
pub(super) struct Pair {
    map: SharedMap,
    lines: NonNull<Lines>,
    cells: [NonNull<Cells>; 2],
}

// SAFETY: the pointers are into the map, which we own, and to atomics only.
unsafe impl Send for Pair {}
// SAFETY: as above; bulk rings are only given as addresses.
unsafe impl Sync for Pair {}

impl Pair {
    /// A new pair whose lines and cells have memory, and the descriptor by which the peer maps it.
    pub(super) fn create() -> Result<(Self, Fd), Errno> {
        let fd = mem::sealed_memfd(c"madrigal-pair", PAIR_BYTES)?;
        let pair = Self::map(&fd)?;
        pair.map.reserve(0, FIRST_BYTES)?;
        Ok((pair, fd))
    }

    /// The peer's. `EINVAL`: a file of another size, or one that could become shorter.
    pub(super) fn attach(fd: impl AsFd) -> Result<Self, Errno> {
        mem::check_sealed(&fd, PAIR_BYTES)?;
        let pair = Self::map(fd)?;
        // The peer did so, if it is honest.
        pair.map.reserve(0, FIRST_BYTES)?;
        Ok(pair)
    }

    fn map(fd: impl AsFd) -> Result<Self, Errno> {
        let map = SharedMap::map(fd, PAIR_BYTES, true)?;
        // SAFETY: atomics only; the references become pointers that are followed while `self`, which owns the map, lives.
        let lines = NonNull::from(unsafe { map.shared::<Lines>(0) }.ok_or(Errno::INVAL)?);
        // SAFETY: as above.
        let cells = [0, 1].map(|direction| unsafe { map.shared::<Cells>(cells_at(direction)) });
        let [Some(there), Some(back)] = cells else { return Err(Errno::INVAL) };
        Ok(Self { map, lines, cells: [there.into(), back.into()] })
    }

    /// One that only this process has, for tests; its lines and cells are never freed.
    #[cfg(all(test, feature = "shuttle"))]
    pub(super) fn local() -> Self {
        let cells = || NonNull::from(Box::leak(Box::new(core::array::from_fn(|_| super::layout::Cell::default()))));
        let lines = NonNull::from(Box::leak(Box::<Lines>::default()));
        let pair = Self { map: SharedMap::anonymous(PAIR_BYTES).unwrap(), lines, cells: [cells(), cells()] };
        for direction in [0, 1] {
            pair.direction(direction).wake.notice.store(1, madrigal_base::sync::Ordering::Release);
        }
        pair
    }

    /// The lines.
    #[inline]
    pub(super) fn lines(&self) -> &Lines {
        // SAFETY: points into the map, which lives as long as `self`; atomics only.
        unsafe { self.lines.as_ref() }
    }

    /// The lines of a direction.
    #[inline]
    pub(super) fn direction(&self, direction: usize) -> &Direction {
        &self.lines().directions[direction & 1]
    }

    /// The cells of a direction.
    #[inline]
    pub(super) fn cells(&self, direction: usize) -> &Cells {
        // SAFETY: points into the map, which lives as long as `self`; atomics only.
        unsafe { self.cells[direction & 1].as_ref() }
    }

    /// Bytes of a bulk ring.
    #[inline]
    pub(super) fn bulk(&self, ring: Ring, direction: usize, at: usize, len: usize) -> Option<*mut u8> {
        self.map.at(ring.offset(direction) + at, len)
    }

    /// Makes the pages of a bulk ring exist.
    pub(super) fn reserve(&self, ring: Ring, direction: usize) -> Result<(), Errno> {
        self.map.reserve(ring.offset(direction), ring.size())
    }

    /// Gives back the pages of a bulk ring that is no longer used.
    pub(super) fn give_back(&self, ring: Ring, direction: usize) {
        self.map.give_back(ring.offset(direction), ring.size());
    }
}

/// A mapped notification page, our own or a peer's.
pub(super) struct PageMap {
    page: NonNull<NotificationPage>,
    _map: SharedMap,
}

// SAFETY: the pointer is into the map, which we own, and to atomics only.
unsafe impl Send for PageMap {}

impl PageMap {
    /// A new one, and the descriptor by which peers map it.
    pub(super) fn create() -> Result<(Self, Fd), Errno> {
        let fd = mem::sealed_memfd(c"madrigal-notify", PAGE_BYTES)?;
        Ok((Self::map(&fd)?, fd))
    }

    /// A peer's. `EINVAL`: a file of another size, or one that could become shorter.
    pub(super) fn attach(fd: impl AsFd) -> Result<Self, Errno> {
        mem::check_sealed(&fd, PAGE_BYTES)?;
        Self::map(fd)
    }

    fn map(fd: impl AsFd) -> Result<Self, Errno> {
        let map = SharedMap::map(fd, PAGE_BYTES, true)?;
        map.reserve(0, PAGE_BYTES)?;
        // SAFETY: atomics only; the reference becomes a pointer that is followed while `self`, which owns the map, lives.
        let page = NonNull::from(unsafe { map.shared::<NotificationPage>(0) }.ok_or(Errno::INVAL)?);
        Ok(Self { page, _map: map })
    }

    #[inline]
    pub(super) fn get(&self) -> &NotificationPage {
        // SAFETY: points into the map, which lives as long as `self`; atomics only.
        unsafe { self.page.as_ref() }
    }
}
