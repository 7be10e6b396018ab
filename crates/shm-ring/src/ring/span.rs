//! A part of a ring: where bytes are copied to, or from.

/// Up to two pieces of ring memory, in stream order.
#[derive(Clone, Copy)]
pub struct Span {
    /// Stream position of the first byte.
    pub at: u64,
    pieces: [(*mut u8, usize); 2],
}

impl Span {
    #[inline]
    pub(super) fn new(base: *mut u8, size: usize, at: u64, len: usize) -> Self {
        let start = at as usize & (size - 1);
        let first = len.min(size - start);
        Self { at, pieces: [(base.wrapping_add(start), first), (base, len - first)] }
    }

    /// Nothing, at this position.
    pub(super) fn empty(at: u64) -> Self {
        Self { at, pieces: [(core::ptr::null_mut(), 0); 2] }
    }

    /// Bytes in both pieces.
    #[inline]
    pub fn len(&self) -> usize {
        self.pieces[0].1 + self.pieces[1].1
    }

    /// Whether there is nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `n` bytes of it, or all if it has no more.
    #[must_use]
    #[inline]
    pub fn first(&self, n: usize) -> Self {
        let [(a, x), (b, y)] = self.pieces;
        Self { at: self.at, pieces: [(a, x.min(n)), (b, y.min(n - x.min(n)))] }
    }

    /// CRC-32 of `len` bytes from `offset` on, behind bytes whose sum is `sum`.
    #[must_use]
    pub fn sum(&self, sum: u32, offset: usize, len: usize) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(sum);
        self.walk(offset, len, |ptr, _, n| {
            // SAFETY: `walk` gives ranges inside the pieces, which lie in the ring's memory. A peer that writes meanwhile spoils the sum,
            // which is what it is for.
            hasher.update(unsafe { core::slice::from_raw_parts(ptr, n) });
        });
        hasher.finalize()
    }

    /// The pieces, for callers that hand them to the kernel.
    pub fn pieces(&self) -> [(*mut u8, usize); 2] {
        self.pieces
    }

    /// Copies `len` bytes from `src` to `offset` bytes into the span; returns how many fitted.
    ///
    /// # Safety
    /// `src` is readable for `len` bytes, and the span is space just given by [`Producer::space`](super::Producer::space).
    pub unsafe fn copy_in(&self, offset: usize, src: *const u8, len: usize) -> usize {
        // SAFETY: `walk` gives ranges inside the pieces, which lie in the ring's memory; the caller vouches for the source. The
        // peer may read meanwhile, which concerns it alone.
        self.walk(offset, len, |ptr, done, n| unsafe { core::ptr::copy_nonoverlapping(src.add(done), ptr, n) })
    }

    /// Copies up to `len` bytes from `offset` bytes into the span to `dst`; returns how many there were.
    ///
    /// # Safety
    /// `dst` is writable for `len` bytes, and the span is data just given by [`Consumer::data`](super::Consumer::data).
    pub unsafe fn copy_out(&self, offset: usize, dst: *mut u8, len: usize) -> usize {
        // SAFETY: as in `copy_in`, the other way; a hostile peer that writes meanwhile spoils only its own stream.
        self.walk(offset, len, |ptr, done, n| unsafe { core::ptr::copy_nonoverlapping(ptr, dst.add(done), n) })
    }

    /// [`Span::copy_in`] by a function that may copy less than it should, and returns how much: then no more is copied.
    ///
    /// # Safety
    /// As for `copy(to, from, n)`, of pieces of the span and parts of `src`.
    #[inline]
    pub unsafe fn copy_in_by(&self, offset: usize, src: *const u8, len: usize, copy: Copier) -> usize {
        // SAFETY: the caller's contract.
        self.walk_by(offset, len, |ptr, done, n| unsafe { copy(ptr, src.wrapping_add(done), n) })
    }

    /// The same for [`Span::copy_out`].
    ///
    /// # Safety
    /// As for `copy(to, from, n)`, of parts of `dst` and pieces of the span.
    #[inline]
    pub unsafe fn copy_out_by(&self, offset: usize, dst: *mut u8, len: usize, copy: Copier) -> usize {
        // SAFETY: the caller's contract.
        self.walk_by(offset, len, |ptr, done, n| unsafe { copy(dst.wrapping_add(done), ptr, n) })
    }

    fn walk(&self, offset: usize, len: usize, mut f: impl FnMut(*mut u8, usize, usize)) -> usize {
        self.walk_by(offset, len, |ptr, done, n| {
            f(ptr, done, n);
            n
        })
    }

    #[inline]
    fn walk_by(&self, mut offset: usize, len: usize, mut f: impl FnMut(*mut u8, usize, usize) -> usize) -> usize {
        let mut done = 0;
        for (ptr, piece) in self.pieces {
            let skip = offset.min(piece);
            offset -= skip;
            let n = (piece - skip).min(len - done);
            if n > 0 {
                let copied = f(ptr.wrapping_add(skip), done, n);
                done += copied;
                if copied < n {
                    break;
                }
            }
        }
        done
    }
}

/// A function that copies `n` bytes `(to, from, n)`, and returns how many it could.
pub type Copier = unsafe fn(*mut u8, *const u8, usize) -> usize;
