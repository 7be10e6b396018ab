//! Where bodies lie in the kernel's memory, so that they are copied there and out again at full speed.
//!
//! The kernel copies by `rep movsb` where the processor reports that it is fast. On AMD's Zen 3 and Zen 4 it is, except where the target
//! lies 1 to 31 bytes behind the source, both counted from the beginning of their pages: then it is ten times slower (2.2 instead of 20 to
//! 38 GB/s were measured). The memory a socket's bytes are copied to is used from the beginning of a page on once its last user is gone.
//! That is so for a sender that waits for an answer before its next message. So the bytes before a body decide where it lies. Large buffers
//! mostly begin 16 bytes behind a page, as malloc(3) returns them. Heads are 16 to 40 bytes long. So the worst case would be the usual one.
//! Some padding makes it rare. Elsewhere it does no harm.

use std::io::IoSlice;

use madrigal_proto::frame;

/// What padding is made of.
pub(super) const ZEROS: [u8; frame::MAX_PADDING] = [0; frame::MAX_PADDING];
/// Where a body should lie: far enough behind all the places where buffers usually begin.
pub(super) const USUAL: usize = 128;
/// Where it should lie if its buffer begins near the former.
const OTHER: usize = 256;
/// What is near: in front of it copying out may be slow, behind it copying in.
const NEAR: usize = 32;
const PAGE: usize = 4096;

/// How much padding goes before `front` bytes and a body.
pub(super) fn padding(front: usize, body: &[IoSlice<'_>]) -> usize {
    let from = body.iter().find(|piece| !piece.is_empty()).map_or(0, |piece| piece.as_ptr().addr() % PAGE);
    let place = if from.abs_diff(USUAL) < NEAR { OTHER } else { USUAL };
    match place.saturating_sub(front) {
        few if few < frame::MIN_PADDING => 0,
        padding => padding.min(frame::MAX_PADDING),
    }
}

/// Where to begin in a buffer of ours, so that what is received into it is copied at full speed.
pub(super) fn offset(buffer: &[u8]) -> usize {
    (PAGE + PAGE / 2 - buffer.as_ptr().addr() % PAGE) % PAGE
}

/// The most that [`offset`] gives.
pub(super) const MOST_OFFSET: usize = PAGE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_lies_far_from_its_buffer_and_from_the_usual_ones() {
        let memory = vec![0u8; 3 * PAGE];
        let begin = memory.as_ptr().addr().next_multiple_of(PAGE) - memory.as_ptr().addr();
        for from in 0..PAGE {
            let body = [IoSlice::new(&[]), IoSlice::new(&memory[begin + from..begin + from + 1000])];
            for front in [16, 32, 48, 72] {
                let place = front + padding(front, &body);
                assert!(place.abs_diff(from) >= NEAR, "{front} bytes before a body of {from}: {place}");
                assert!((USUAL..=OTHER).contains(&place));
            }
        }
        assert_eq!(padding(USUAL - 1, &[]), 0, "one byte is no padding");
    }

    #[test]
    fn a_buffer_begins_in_the_middle_of_a_page() {
        let memory = vec![0u8; 2 * PAGE];
        for skip in [0, 1, 16, 2047, 2048, 2049, 4095] {
            let offset = offset(&memory[skip..]);
            assert!(offset <= MOST_OFFSET);
            assert_eq!((memory.as_ptr().addr() + skip + offset) % PAGE, PAGE / 2);
        }
    }
}
