//! Bytes that were sent and may have to be sent again: a ring that grows, filled in place.

/// The least memory, once there is any.
const LEAST: usize = 4 << 10;
/// So many times its size must pass through the ring before its size is reconsidered.
const A_WHILE: usize = 16;

/// A ring of bytes.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// A power of two of bytes, or none.
    room: Vec<u8>,
    /// Where the first byte is, and how many there are.
    first: usize,
    len: usize,
    /// The most bytes it held since that was last compared with its size, and how many were forgotten since.
    peak: usize,
    forgotten: usize,
}

impl Kept {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn capacity(&self) -> usize {
        self.room.len()
    }

    /// Where up to `most` more bytes may be written; fewer where the ring wraps. [`Kept::grew`] takes how many were.
    pub(super) fn space(&mut self, most: usize) -> &mut [u8] {
        if self.len == self.room.len() && most > 0 {
            self.make_room(most);
        }
        let at = self.place(self.len);
        let end = if at < self.first { self.first } else { self.room.len() };
        self.room.get_mut(at..end.min(at + most)).unwrap_or_default()
    }

    /// So many bytes were written into [`Kept::space`].
    pub(super) fn grew(&mut self, count: usize) {
        self.len = self.room.len().min(self.len + count);
        self.peak = self.peak.max(self.len);
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let space = self.space(bytes.len());
            let (now, later) = bytes.split_at(space.len().min(bytes.len()));
            space.copy_from_slice(now);
            self.grew(now.len());
            bytes = later;
        }
    }

    /// What lies in one piece behind the first `skip` bytes.
    pub(super) fn piece(&self, skip: usize) -> &[u8] {
        if skip >= self.len {
            return &[];
        }
        let at = self.place(skip);
        self.room.get(at..self.room.len().min(at + self.len - skip)).unwrap_or_default()
    }

    /// Forgets the first `count` bytes.
    pub(super) fn drop_front(&mut self, count: usize) {
        let count = count.min(self.len);
        self.first = self.place(count);
        self.len -= count;
        self.forgotten += count;
        if self.len == 0 {
            // What comes next is in one piece.
            self.first = 0;
        }
    }

    /// Gives back memory that nothing needed for a while. Not sooner: a stream with many bytes one moment and few the next would have its
    /// memory made, and cleared, again and again.
    pub(super) fn settle(&mut self) {
        if self.len == 0 {
            *self = Self::default();
        } else if self.forgotten >= A_WHILE * self.room.len() {
            if self.peak * 4 <= self.room.len() {
                self.make_room(self.peak - self.len);
            }
            (self.peak, self.forgotten) = (self.len, 0);
        }
    }

    /// Gives memory back for which there are no bytes.
    pub(super) fn shrink(&mut self) {
        if self.len == 0 {
            *self = Self::default();
        } else if self.len.next_power_of_two().max(LEAST) < self.room.len() {
            self.make_room(0);
        }
    }

    fn place(&self, at: usize) -> usize {
        (self.first + at) & self.room.len().saturating_sub(1)
    }

    fn make_room(&mut self, more: usize) {
        let mut room = vec![0; (self.len + more).next_power_of_two().max(LEAST)];
        let (mut at, mut piece) = (0, self.piece(0));
        while let Some(place) = room.get_mut(at..at + piece.len()).filter(|place| !place.is_empty()) {
            place.copy_from_slice(piece);
            at += piece.len();
            piece = self.piece(at);
        }
        (self.room, self.first) = (room, 0);
    }
}
