//! The bytes of a stream: a function of the stream, the lane and the position, so that a reader can compute what must come.
//!
//! Several writers of one stream (a thread beside another, a signal handler, urgent data) write in lanes of their own. The lane can
//! be told from the byte, and within a lane positions count up, however the lanes are interleaved.

use crate::rng::mix;

/// Lanes of a stream: the main one, and those of others who write to the same socket.
pub const LANES: usize = 4;
/// The lane of signal handlers.
pub const HANDLER: usize = 1;
/// The lane of urgent bytes.
pub const URGENT: usize = 2;

/// First byte value of each lane; the main lane is printable and has line ends.
const FIRST: [u8; LANES] = [33, 97, 161, 224];
/// What a byte of a lane may add to the first value, as a mask.
const SPREAD: [u8; LANES] = [63, 63, 62, 31];

/// The byte at `position` of a lane.
pub fn byte(stream: u32, lane: usize, position: u64) -> u8 {
    (block(stream, lane, position / 8) >> (position % 8 * 8)) as u8
}

/// Eight bytes of a lane, the first in the lowest place.
fn block(stream: u32, lane: usize, at: u64) -> u64 {
    let raw = mix((u64::from(stream + 1) << 48) ^ ((lane as u64) << 44) ^ at);
    let each = |byte: u8| u64::from_ne_bytes([byte; 8]);
    let word = (raw & each(SPREAD[lane])) + each(FIRST[lane]);
    if lane == 0 && raw >> 60 == 0 {
        let place = (raw >> 57 & 7) * 8;
        return word & !(0xFF << place) | u64::from(b'\n') << place;
    }
    word
}

/// Writes the bytes of a lane from `position` on.
pub fn fill(stream: u32, lane: usize, position: u64, into: &mut [u8]) {
    let skip = (position % 8) as usize;
    let mut at = position / 8;
    let (head, rest) = into.split_at_mut(((8 - skip) % 8).min(into.len()));
    if !head.is_empty() {
        head.copy_from_slice(&block(stream, lane, at).to_le_bytes()[skip..skip + head.len()]);
        at += 1;
    }
    let mut words = rest.chunks_exact_mut(8);
    for word in &mut words {
        word.copy_from_slice(&block(stream, lane, at).to_le_bytes());
        at += 1;
    }
    let tail = words.into_remainder();
    tail.copy_from_slice(&block(stream, lane, at).to_le_bytes()[..tail.len()]);
}

/// The lane a byte belongs to, if any.
pub fn lane(byte: u8) -> Option<usize> {
    match byte {
        b'\n' | 33..97 => Some(0),
        97..161 => Some(1),
        161..224 => Some(2),
        224.. => Some(3),
        _ => None,
    }
}

/// Compares what was read with what must come next in each lane, and counts `positions` up. The first wrong offset, if any.
pub fn first_wrong(stream: u32, positions: &mut [u64; LANES], data: &[u8]) -> Option<usize> {
    let mut expected = [0u8; 4096];
    let mut at = 0;
    // Nearly always all is of the main lane.
    for piece in data.chunks(expected.len()) {
        let expected = &mut expected[..piece.len()];
        fill(stream, 0, positions[0], expected);
        if expected != piece {
            break;
        }
        positions[0] += piece.len() as u64;
        at += piece.len();
    }
    for (offset, &seen) in data.iter().enumerate().skip(at) {
        let Some(lane) = lane(seen) else { return Some(offset) };
        if lane != URGENT && byte(stream, lane, positions[lane]) != seen {
            return Some(offset);
        }
        positions[lane] += 1;
    }
    None
}

/// A number for what was read, the same for the same bytes.
pub fn hash(data: &[u8]) -> u64 {
    let mut sum = 0xCBF2_9CE4_8422_2325u64 ^ data.len() as u64;
    let mut words = data.chunks_exact(8);
    for word in &mut words {
        let word = word.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
        sum = (sum ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }
    for byte in words.remainder() {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
    }
    mix(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_agrees_with_byte() {
        let mut data = [0; 100];
        fill(7, 0, 13, &mut data);
        for (offset, seen) in data.iter().enumerate() {
            assert_eq!(*seen, byte(7, 0, 13 + offset as u64));
        }
        assert_eq!(first_wrong(7, &mut [13, 0, 0, 0], &data), None);
        assert_eq!(first_wrong(7, &mut [12, 0, 0, 0], &data), Some(0));
    }

    #[test]
    fn lanes_are_told_apart() {
        for lane in 0..LANES {
            for position in 0..5000 {
                assert_eq!(super::lane(byte(3, lane, position)), Some(lane));
            }
        }
        let mut data = [0; 9];
        fill(1, 0, 0, &mut data[..4]);
        fill(1, HANDLER, 0, &mut data[4..6]);
        fill(1, 0, 4, &mut data[6..]);
        let mut positions = [0; LANES];
        assert_eq!(first_wrong(1, &mut positions, &data), None);
        assert_eq!(positions, [7, 2, 0, 0]);
        data[8] = 0;
        assert_eq!(first_wrong(1, &mut [0; LANES], &data), Some(8));
    }
}
