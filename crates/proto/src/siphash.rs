//! SipHash-2-4 (Aumasson, Bernstein 2012): a short tag of a short message that only an owner of the key can make.

/// The tag of the words' bytes, little end first.
pub(crate) fn tag(key: [u64; 2], words: &[u64]) -> u64 {
    let mut state = State {
        v: [
            key[0] ^ 0x736f_6d65_7073_6575,
            key[1] ^ 0x646f_7261_6e64_6f6d,
            key[0] ^ 0x6c79_6765_6e65_7261,
            key[1] ^ 0x7465_6462_7974_6573,
        ],
    };
    for &word in words {
        state.take(word);
    }
    // The last block of a message of whole words holds its length and nothing else.
    state.take(((words.len() as u64 * 8) & 0xff) << 56);
    state.v[2] ^= 0xff;
    state.rounds(4);
    state.v.iter().fold(0, |a, b| a ^ b)
}

struct State {
    v: [u64; 4],
}

impl State {
    fn take(&mut self, word: u64) {
        self.v[3] ^= word;
        self.rounds(2);
        self.v[0] ^= word;
    }

    fn rounds(&mut self, count: u32) {
        let [mut a, mut b, mut c, mut d] = self.v;
        for _ in 0..count {
            a = a.wrapping_add(b);
            b = b.rotate_left(13) ^ a;
            a = a.rotate_left(32);
            c = c.wrapping_add(d);
            d = d.rotate_left(16) ^ c;
            a = a.wrapping_add(d);
            d = d.rotate_left(21) ^ a;
            c = c.wrapping_add(b);
            b = b.rotate_left(17) ^ c;
            c = c.rotate_left(32);
        }
        self.v = [a, b, c, d];
    }
}

#[cfg(test)]
mod tests {
    use super::tag;
    use proptest::prelude::*;

    proptest! {
        #[test]
        #[allow(deprecated)]
        fn it_is_the_hash_of_the_standard_library_of_old(key: [u64; 2], words: Vec<u64>) {
            use std::hash::{Hasher as _, SipHasher};
            let mut known = SipHasher::new_with_keys(key[0], key[1]);
            words.iter().for_each(|word| known.write(&word.to_le_bytes()));
            prop_assert_eq!(tag(key, &words), known.finish());
        }
    }
}
