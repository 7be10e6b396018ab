//! Things with numbers that go over the wire and come back: a number that is out of date, or made up, finds nothing.

/// A thing's number: where it lies, and how often something lay there before. Never 0.
pub(crate) type Key = u64;

/// The things.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    age: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Adds a thing.
    pub(crate) fn add(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { age: 0, value: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.age = slot.age.wrapping_add(1).max(1);
        slot.value = Some(value);
        u64::from(slot.age) << 32 | u64::from(index)
    }

    fn slot(&mut self, key: Key) -> Option<&mut Slot<T>> {
        self.slots.get_mut(key as u32 as usize).filter(|slot| u64::from(slot.age) == key >> 32)
    }

    /// The thing of that number.
    pub(crate) fn get(&mut self, key: Key) -> Option<&mut T> {
        self.slot(key)?.value.as_mut()
    }

    /// Takes it out.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let value = self.slot(key)?.value.take()?;
        self.free.push(key as u32);
        Some(value)
    }

    /// The numbers of those that are meant.
    pub(crate) fn keys(&self, meant: impl Fn(&T) -> bool) -> Vec<Key> {
        let key = |(index, slot): (usize, &Slot<T>)| {
            let value = slot.value.as_ref()?;
            meant(value).then_some(u64::from(slot.age) << 32 | index as u64)
        };
        self.slots.iter().enumerate().filter_map(key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_made_up_numbers_find_nothing() {
        let mut slab = Slab::default();
        let a = slab.add("a");
        assert_ne!(a, 0);
        assert_eq!(slab.get(a), Some(&mut "a"));
        assert_eq!((slab.remove(a), slab.remove(a)), (Some("a"), None));
        let b = slab.add("b");
        assert_ne!(a, b);
        assert!([a, 0, u64::MAX].into_iter().all(|key| slab.get(key).is_none()));
        assert_eq!(slab.keys(|_| true), [b]);
    }
}
