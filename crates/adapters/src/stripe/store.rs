//! Bytes of a link by their position: those that may have to be sent again, or came before others. Memory is there for those that are.

use std::collections::VecDeque;

/// Memory comes and goes by so much.
pub(super) const CHUNK: usize = 64 << 10;
/// Chunks that are kept when nothing needs them: making one means clearing it.
const SPARE: usize = 8;

/// Bytes from a position on, in chunks; those that hold nothing are not there.
#[derive(Default, Debug)]
pub(super) struct Store {
    /// Which chunk is the first.
    first: u64,
    chunks: VecDeque<Option<Box<[u8]>>>,
    spare: Vec<Box<[u8]>>,
    used: usize,
}

impl Store {
    /// Puts bytes at a position; before [`Store::drop_until`] there are none.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) {
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let (chunk, place) = split(at);
            let (now, later) = rest.split_at(rest.len().min(CHUNK - place));
            if let Some(index) = chunk.checked_sub(self.first).and_then(|index| usize::try_from(index).ok())
                && let Some(room) = self.chunk(index).get_mut(place..place + now.len())
            {
                room.copy_from_slice(now);
            }
            at += now.len() as u64;
            rest = later;
        }
    }

    /// The bytes at a position, as far as they lie in one piece; at most so many. Those that were not written are anything.
    pub(super) fn read(&self, at: u64, most: u64) -> &[u8] {
        let (chunk, place) = split(at);
        let index = chunk.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let chunk = index.and_then(|index| self.chunks.get(index)?.as_deref());
        let most = usize::try_from(most).unwrap_or(CHUNK).min(CHUNK - place);
        chunk.and_then(|chunk| chunk.get(place..place + most)).unwrap_or_default()
    }

    /// Nobody needs what lies before a position.
    pub(super) fn drop_until(&mut self, at: u64) {
        let (chunk, _) = split(at);
        while self.first < chunk && !self.chunks.is_empty() {
            if let Some(chunk) = self.chunks.pop_front().flatten() {
                self.used -= 1;
                if self.spare.len() < SPARE {
                    self.spare.push(chunk);
                }
            }
            self.first += 1;
        }
        self.first = self.first.max(chunk);
    }

    /// Bytes of memory.
    pub(super) fn held(&self) -> usize {
        (self.used + self.spare.len()) * CHUNK
    }

    fn chunk(&mut self, index: usize) -> &mut [u8] {
        if self.chunks.len() <= index {
            self.chunks.resize_with(index + 1, || None);
        }
        let Some(place) = self.chunks.get_mut(index) else { return &mut [] };
        place.get_or_insert_with(|| {
            self.used += 1;
            self.spare.pop().unwrap_or_else(|| vec![0; CHUNK].into())
        })
    }
}

fn split(at: u64) -> (u64, usize) {
    (at / CHUNK as u64, (at % CHUNK as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads whatever pieces there are.
    fn all(store: &Store, from: u64, to: u64) -> Vec<u8> {
        let (mut at, mut out) = (from, Vec::new());
        while at < to {
            let piece = store.read(at, to - at);
            assert!(!piece.is_empty());
            out.extend_from_slice(piece);
            at += piece.len() as u64;
        }
        out
    }

    #[test]
    fn bytes_stay_where_they_were_put_and_memory_goes_with_them() {
        let (mut store, chunk) = (Store::default(), CHUNK as u64);
        let bytes: Vec<u8> = (0..3 * CHUNK).map(|at| (at * 7 + at / 251) as u8).collect();
        store.write(10 * chunk + 5, &bytes);
        assert_eq!(all(&store, 10 * chunk + 5, 13 * chunk + 5), bytes);
        assert_eq!(store.held(), 4 * CHUNK);
        store.drop_until(12 * chunk + 1);
        assert_eq!(store.read(11 * chunk, 10), []);
        assert_eq!(all(&store, 12 * chunk + 1, 13 * chunk + 5), bytes[2 * CHUNK - 4..]);
        // What lies before is not taken; what is far ahead takes one chunk.
        store.write(chunk, &bytes[..10]);
        store.write(30 * chunk, &bytes[..10]);
        assert_eq!(store.held(), 4 * CHUNK);
        store.drop_until(100 * chunk);
        assert!(store.held() <= SPARE * CHUNK && store.read(30 * chunk, 10).is_empty());
    }
}
