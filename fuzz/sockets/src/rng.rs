//! Random choices that can be repeated: everything a seed decides comes from here.

/// splitmix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The choices of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.number() % n
    }

    /// A number from `low` to `high`, both included.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `percent` of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    pub fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize].clone()
    }

    /// One of these, each as often as its weight says; not all weights are 0.
    pub fn weighted<T: Clone>(&mut self, list: &[(u32, T)]) -> T {
        let total: u64 = list.iter().map(|(weight, _)| u64::from(*weight)).sum();
        let mut at = self.below(total.max(1));
        for (weight, value) in list {
            if at < u64::from(*weight) {
                return value.clone();
            }
            at -= u64::from(*weight);
        }
        list[0].1.clone()
    }
}

/// Spreads a number over all 64 bits.
pub fn mix(number: u64) -> u64 {
    let mut z = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
