//! How frames lie in a stream of bytes: eight bytes with the lengths of head and body, then both.
//!
//! ```text
//!   0 mark   1 length of the head   2 length of the body, 48 bits, little end first   8 head   body
//! ```
//! Where both sides agree on it there may be padding between frames. It begins with another mark and means nothing; a sender uses it to
//! choose where a body lies. There may also be notes between the two ends that carry the frames.

/// Bytes before a head.
pub const PREFIX: usize = 8;
/// The longest head.
pub const MAX_HEAD: usize = 64;
/// The longest body: more than any memory.
pub const MAX_BODY: u64 = (1 << 47) - 1;

const MARK: u8 = 0xA7;
/// Before padding: this byte, one with the number that follow, and those.
const PADDING: u8 = 0xA8;
/// The least and the most bytes of padding.
pub const MIN_PADDING: usize = 2;
/// See [`MIN_PADDING`].
pub const MAX_PADDING: usize = MIN_PADDING + u8::MAX as usize;

/// Before a note: this byte, one with the number that follow, and those.
const NOTE: u8 = 0xA9;

/// The bytes that go before a head; `None` where one of the two is too long.
pub fn prefix(head: usize, body: u64) -> Option<[u8; PREFIX]> {
    let fits = head <= MAX_HEAD && body <= MAX_BODY;
    fits.then(|| (u64::from(MARK) | (head as u64) << 8 | body << 16).to_le_bytes())
}

/// Padding of so many bytes begins with these, and the rest are zeros; `None` where it cannot be that short or long.
pub fn padding(len: usize) -> Option<[u8; MIN_PADDING]> {
    let more = u8::try_from(len.checked_sub(MIN_PADDING)?).ok()?;
    Some([PADDING, more])
}

/// A note with these bytes; `None` where it cannot be that long.
pub fn note(body: &[u8]) -> Option<Vec<u8>> {
    let len = u8::try_from(body.len()).ok()?;
    Some([&[NOTE, len][..], body].concat())
}

/// What a stream that is no sequence of frames has instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Nonsense {
    /// Other bytes where a frame should begin.
    #[error("no frame begins with the byte {mark:#04x}")]
    Mark {
        /// The first of them.
        mark: u8,
    },
    /// A length that no sender may use.
    #[error("a head of {head} and a body of {body} bytes")]
    Length {
        /// Of the head.
        head: usize,
        /// Of the body.
        body: u64,
    },
}

/// What lies at the front of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front<'a> {
    /// Less than one needs to see: at least so many bytes must be there.
    More(usize),
    /// A whole frame.
    Whole {
        /// Its head.
        head: &'a [u8],
        /// Its body.
        body: &'a [u8],
    },
    /// The head of a frame with a long body, `PREFIX` and the head's length into the stream.
    Long {
        /// The head.
        head: &'a [u8],
        /// Bytes of the body.
        len: u64,
    },
}

impl Front<'_> {
    /// How many bytes it takes from the stream; of a long frame all but the body.
    pub fn taken(&self) -> usize {
        match self {
            Self::More(_) => 0,
            Self::Whole { head, body } => PREFIX + head.len() + body.len(),
            Self::Long { head, .. } => PREFIX + head.len(),
        }
    }
}

/// Parses the front of a stream. Bodies of more than `short` bytes are long.
#[inline]
pub fn front(bytes: &[u8], short: usize) -> Result<Front<'_>, Nonsense> {
    let Some((first, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        return match bytes.first() {
            Some(&mark) if mark != MARK => Err(Nonsense::Mark { mark }),
            _ => Ok(Front::More(PREFIX)),
        };
    };
    let word = u64::from_le_bytes(*first);
    let (mark, head, body) = (word as u8, usize::from((word >> 8) as u8), word >> 16);
    if mark != MARK {
        return Err(Nonsense::Mark { mark });
    }
    if head > MAX_HEAD || body > MAX_BODY {
        return Err(Nonsense::Length { head, body });
    }
    let Some((head_bytes, rest)) = rest.split_at_checked(head) else { return Ok(Front::More(PREFIX + head)) };
    match usize::try_from(body) {
        Ok(len) if len <= short => match rest.get(..len) {
            Some(body) => Ok(Front::Whole { head: head_bytes, body }),
            None => Ok(Front::More(PREFIX + head + len)),
        },
        _ => Ok(Front::Long { head: head_bytes, len: body }),
    }
}

/// How many bytes of padding a stream begins with, 0 where a frame begins; `Err`: at least so many bytes must be there.
#[inline]
pub fn padded(bytes: &[u8]) -> Result<usize, usize> {
    let [PADDING, rest @ ..] = bytes else { return Ok(0) };
    let Some((&more, zeros)) = rest.split_first() else { return Err(MIN_PADDING) };
    let len = MIN_PADDING + usize::from(more);
    if zeros.len() < usize::from(more) { Err(len) } else { Ok(len) }
}

/// The note a stream begins with: bytes taken, and its text; `Ok(None)` where none begins. `Err`: at least so many bytes are needed.
#[inline]
pub fn noted(bytes: &[u8]) -> Result<Option<(usize, &[u8])>, usize> {
    let [NOTE, rest @ ..] = bytes else { return Ok(None) };
    let Some((&len, body)) = rest.split_first() else { return Err(2) };
    let taken = 2 + usize::from(len);
    body.get(..usize::from(len)).map(|body| Some((taken, body))).ok_or(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(head: &[u8], body: &[u8]) -> Vec<u8> {
        [&prefix(head.len(), body.len() as u64).unwrap()[..], head, body].concat()
    }

    #[test]
    fn the_bytes_are_fixed() {
        assert_eq!(prefix(3, 0x0102_0304_0506), Some([0xA7, 3, 6, 5, 4, 3, 2, 1]));
        assert_eq!((prefix(65, 0), prefix(0, 1 << 47)), (None, None));
        assert_eq!(prefix(64, MAX_BODY), Some([0xA7, 64, 255, 255, 255, 255, 255, 127]));
    }

    #[test]
    fn padding_means_nothing() {
        assert_eq!(
            (padding(1), padding(2), padding(257), padding(258)),
            (None, Some([0xA8, 0]), Some([0xA8, 255]), None)
        );
        for len in [MIN_PADDING, 3, 100, MAX_PADDING] {
            let bytes = [&padding(len).unwrap()[..], &vec![0; len - MIN_PADDING], &frame(b"head", b"body")].concat();
            assert_eq!(padded(&bytes), Ok(len));
            assert_eq!(padded(&bytes[len..]), Ok(0));
            for cut in 1..len {
                assert_eq!(padded(&bytes[..cut]), Err(if cut == 1 { MIN_PADDING } else { len }));
            }
        }
        assert_eq!(padded(&[]), Ok(0));
    }

    #[test]
    fn a_note_comes_out_as_it_went_in() {
        let bytes = [note(b"abc").unwrap(), frame(b"head", b"body")].concat();
        assert_eq!(noted(&bytes), Ok(Some((5, &b"abc"[..]))));
        assert_eq!(noted(&bytes[5..]), Ok(None));
        assert_eq!((noted(&bytes[..1]), noted(&bytes[..4]), noted(&[])), (Err(2), Err(5), Ok(None)));
        assert_eq!((note(&[0; 256]), bytes[0]), (None, 0xA9));
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(
            frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..=64), prop::collection::vec(any::<u8>(), 0..200)), 1..20),
            short in 0usize..150,
        ) {
            let stream: Vec<u8> = frames.iter().flat_map(|(head, body)| frame(head, body)).collect();
            let mut rest = &stream[..];
            for (head, body) in &frames {
                let seen = front(rest, short).unwrap();
                let whole = Front::Whole { head, body };
                let long = Front::Long { head, len: body.len() as u64 };
                prop_assert_eq!(seen, if body.len() <= short { whole } else { long });
                let len = PREFIX + head.len() + body.len();
                // Every shorter piece requires more, and no more than there will be.
                let (begin, needed) = (&rest[..len], seen.taken());
                for cut in 0..needed {
                    match front(&begin[..cut], short).unwrap() {
                        Front::More(wanted) => prop_assert!(cut < wanted && wanted <= needed),
                        other => prop_assert!(false, "{:?} of {} bytes", other, cut),
                    }
                }
                rest = &rest[len..];
            }
            prop_assert_eq!(front(rest, short), Ok(Front::More(PREFIX)));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes: Vec<u8>, short in 0usize..300) {
            match front(&bytes, short) {
                Ok(Front::More(wanted)) => prop_assert!(wanted > bytes.len() && wanted <= PREFIX + MAX_HEAD + short),
                Ok(seen) => prop_assert!(seen.taken() <= bytes.len()),
                Err(_) => {}
            }
        }

        #[test]
        fn any_lengths_are_taken_or_refused(head: u8, body in 0u64..1 << 48, short in 0usize..300) {
            let word = u64::from(MARK) | u64::from(head) << 8 | body << 16;
            let mut bytes = word.to_le_bytes().to_vec();
            bytes.extend([0; 64]);
            let refused = front(&bytes, short).is_err();
            prop_assert_eq!(refused, usize::from(head) > MAX_HEAD || body > MAX_BODY);
        }
    }
}
