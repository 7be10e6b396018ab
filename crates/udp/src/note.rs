//! What the two ends of a link tell each other, as messages of a class of its own, of which nothing is lost. Numbers have their little end
//! first.
//!
//! ```text
//!   hello    1   version, 1   kind of the link, 1      the connecting end's first: what it wants
//!   welcome  2                                         the answer: both want the same
//!   end      3   for each class: messages, 4           no more than these were sent
//! ```
//! Who refuses closes the connection, with the reason.

/// The version of all this.
const VERSION: u8 = 1;
const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const END: u8 = 3;

/// A note.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Note {
    /// What kind of link is wanted.
    Hello(u8),
    /// The link is there.
    Welcome,
    /// How many messages there are of each class.
    End(Vec<u32>),
}

impl Note {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Hello(kind) => vec![HELLO, VERSION, *kind],
            Self::Welcome => vec![WELCOME],
            Self::End(counts) => [END].into_iter().chain(counts.iter().flat_map(|count| count.to_le_bytes())).collect(),
        }
    }

    /// Reads one; or says why it is none.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        match bytes {
            [HELLO, VERSION, kind] => Ok(Self::Hello(*kind)),
            [HELLO, version, ..] => Err(format!("it greets by version {version}, and this end by version {VERSION}")),
            [WELCOME] => Ok(Self::Welcome),
            [END, counts @ ..] => {
                let (counts, rest) = counts.as_chunks();
                if rest.is_empty() {
                    return Ok(Self::End(counts.iter().map(|count| u32::from_le_bytes(*count)).collect()));
                }
                Err("an end of half a number".to_owned())
            }
            _ => Err("no note of a link over UDP".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_out_as_they_went_in_and_nothing_else_is_one() {
        for note in [Note::Hello(1), Note::Welcome, Note::End(vec![]), Note::End(vec![7, u32::MAX])] {
            assert_eq!(Note::read(&note.bytes()), Ok(note));
        }
        for (bytes, why) in [
            (&[][..], "no note"),
            (&[HELLO, 2], "version 2"),
            (&[HELLO, VERSION], "version"),
            (&[WELCOME, 0], "no note"),
            (&[END, 1, 0, 0], "half a number"),
            (&[9], "no note"),
        ] {
            let told = Note::read(bytes).unwrap_err();
            assert!(told.contains(why), "{bytes:?}: {told}");
        }
    }
}
