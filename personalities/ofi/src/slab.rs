//! Things by small numbers, which are used again.

/// A slab.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// The first free slot, `NONE` if there is none.
    free: usize,
}

enum Slot<T> {
    Taken(T),
    /// And the next free one.
    Free(usize),
}

const NONE: usize = usize::MAX;

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: NONE }
    }
}

impl<T> Slab<T> {
    /// Keeps it; its number.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> usize {
        match self.slots.get_mut(self.free) {
            Some(slot) => {
                let at = self.free;
                self.free = if let Slot::Free(next) = slot { *next } else { NONE };
                *slot = Slot::Taken(value);
                at
            }
            None => {
                self.slots.push(Slot::Taken(value));
                self.slots.len() - 1
            }
        }
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        match self.slots.get(at)? {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        match self.slots.get_mut(at)? {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// Takes it out.
    #[inline]
    pub(crate) fn remove(&mut self, at: usize) -> Option<T> {
        let slot = self.slots.get_mut(at)?;
        if let Slot::Free(_) = slot {
            return None;
        }
        let slot = core::mem::replace(slot, Slot::Free(self.free));
        self.free = at;
        match slot {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// All of them with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| match slot {
            Slot::Taken(value) => Some((at, value)),
            Slot::Free(_) => None,
        })
    }

    /// All of them.
    #[inline]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| match slot {
            Slot::Taken(value) => Some(value),
            Slot::Free(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again() {
        let mut slab = Slab::default();
        let numbers: Vec<_> = (0..4).map(|i| slab.insert(i * 10)).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        assert_eq!(slab.remove(1), Some(10));
        assert_eq!(slab.remove(1), None);
        assert_eq!(slab.remove(3), Some(30));
        assert_eq!((slab.insert(7), slab.insert(8), slab.insert(9)), (3, 1, 4));
        assert_eq!((slab.get(1), slab.get(3), slab.get(9)), (Some(&8), Some(&7), None));
        assert_eq!(
            slab.iter().map(|(at, value)| (at, *value)).collect::<Vec<_>>(),
            [(0, 0), (1, 8), (2, 20), (3, 7), (4, 9)]
        );
    }
}
