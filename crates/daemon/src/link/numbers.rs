//! Numbers of connections, each once: whoever has seen how a connection joined cannot join by the same again. As RFC 4303, section 3.4.3, has
//! it: of the highest number and those below it that fit into a word it is known whether they were there; lower ones count as if they were.

/// The numbers that there were. That of a link's first connection, 0, was there.
#[derive(Debug)]
pub(crate) struct Numbers {
    highest: u32,
    /// Bit n: the one that is lower by n.
    seen: u64,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { highest: 0, seen: 1 }
    }
}

impl Numbers {
    /// Whether a number may come.
    pub(crate) fn is_fresh(&self, number: u32) -> bool {
        match self.highest.checked_sub(number) {
            None => true,
            Some(below) => below < u64::BITS && self.seen & (1 << below) == 0,
        }
    }

    /// A fresh number came. Returns whether it was fresh.
    pub(crate) fn take(&mut self, number: u32) -> bool {
        let fresh = self.is_fresh(number);
        if let Some(above) = number.checked_sub(self.highest).filter(|above| *above > 0) {
            self.seen = self.seen.checked_shl(above).unwrap_or(0) | 1;
            self.highest = number;
        } else if fresh {
            self.seen |= 1 << (self.highest - number);
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_connection_is_there() {
        let mut numbers = Numbers::default();
        assert!(!numbers.take(0) && numbers.take(1) && !numbers.take(1));
    }

    proptest! {
        /// None is taken twice, whatever the order; each that is not far below the highest is taken once.
        #[test]
        fn each_is_taken_once(wanted in prop::collection::vec(prop_oneof![0u32..200, any::<u32>()], 1..200)) {
            let (mut numbers, mut taken, mut highest) = (Numbers::default(), BTreeSet::from([0]), 0);
            for number in wanted {
                let came = numbers.take(number);
                prop_assert!(!came || !taken.contains(&number), "{number} twice");
                prop_assert!(came || taken.contains(&number) || number + 63 < highest, "{number} refused");
                if came {
                    taken.insert(number);
                }
                highest = highest.max(number);
            }
        }
    }
}
