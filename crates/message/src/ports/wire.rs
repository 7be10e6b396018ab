//! What ports send: calls between the processes, and the heads of messages.
//!
//! A call is a plain message: the version, a kind, and its fields; a text behind its length in two bytes. All numbers are little endian.
//!
//! ```text
//!   1 connect   attempt (4) order (1) to, from, type      3 refuse   attempt (4) why
//!   2 accept    attempt (4) connection (4) port (4)       4 closed   connection (4)
//! ```
//! A message of a port is matched by [`message_tag`], and has its connection as its number. Its head is made of items; arrays above
//! [`BULK`] travel alone behind it, matched by [`bulk_tag`] in the order of the head.
//!
//! ```text
//!   01..0a  a number                    20  a text: length (4), bytes        40 | code  an array: count (8), numbers
//!   21, 22  a record begins, ends                                            80 | code  an array that travels alone: count (8)
//! ```

use super::elements::{Number, Order};
use crate::fields::{Reader, write_text};

/// Arrays with more bytes than this travel alone, straight from the sender's memory to the receiver's.
pub const BULK: usize = 4 << 10;
/// The most arrays of a message that travel alone: further ones are in the head, however long.
pub(super) const MOST_ALONE: usize = 1 << 16;
/// The longest head of a message.
pub(super) const LONGEST_HEAD: usize = 64 << 20;
/// The version of this format.
const VERSION: u8 = 1;

/// Bits above the number in a tag.
const MESSAGES: u64 = 1 << 62;
/// See [`MESSAGES`].
const BULKS: u64 = 2 << 62;
/// In the number that comes with a message: the sender leaves, and this is its last one.
pub(super) const LEAVES: u64 = 1 << 63;

/// Of the messages of a receive port.
pub(super) fn message_tag(port: u32) -> u64 {
    MESSAGES | u64::from(port)
}

/// Of the arrays that travel alone, of a connection.
pub(super) fn bulk_tag(connection: u32) -> u64 {
    BULKS | u64::from(connection)
}

/// A call of one process to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Call {
    /// A send port asks for a connection. `order`: of the numbers that it will send.
    Connect { attempt: u32, order: Order, to: String, from: String, kind: String },
    /// The receive port has it.
    Accept { attempt: u32, connection: u32, port: u32 },
    /// It has not.
    Refuse { attempt: u32, why: String },
    /// The receive port takes no more of a connection.
    Closed { connection: u32 },
}

impl Call {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        match self {
            Self::Connect { attempt, order, to, from, kind } => {
                bytes.push(1);
                bytes.extend(attempt.to_le_bytes());
                bytes.push(u8::from(*order == Order::Big));
                [to, from, kind].iter().for_each(|text| write_text(&mut bytes, text));
            }
            Self::Accept { attempt, connection, port } => {
                bytes.push(2);
                [attempt, connection, port].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            }
            Self::Refuse { attempt, why } => {
                bytes.push(3);
                bytes.extend(attempt.to_le_bytes());
                write_text(&mut bytes, why);
            }
            Self::Closed { connection } => {
                bytes.push(4);
                bytes.extend(connection.to_le_bytes());
            }
        }
        bytes
    }

    /// `None`: it is no call of this version.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        let [VERSION, kind] = rest.array()? else { return None };
        let call = match kind {
            1 => {
                let attempt = rest.u32()?;
                let order = match rest.array()? {
                    [0] => Order::Little,
                    [1] => Order::Big,
                    _ => return None,
                };
                Self::Connect {
                    attempt,
                    order,
                    to: rest.short_text()?,
                    from: rest.short_text()?,
                    kind: rest.short_text()?,
                }
            }
            2 => Self::Accept { attempt: rest.u32()?, connection: rest.u32()?, port: rest.u32()? },
            3 => Self::Refuse { attempt: rest.u32()?, why: rest.short_text()? },
            4 => Self::Closed { connection: rest.u32()? },
            _ => return None,
        };
        rest.is_empty().then_some(call)
    }
}

/// An item at the front of what is left of a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item {
    /// A number of that kind.
    Number(Number),
    /// So many numbers of that kind.
    Array(Number, u64),
    /// A text of so many bytes.
    Text(usize),
    /// A record begins.
    Begin,
    /// It ends.
    End,
    /// Nothing more.
    Nothing,
}

impl core::fmt::Display for Item {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Number(kind) => write!(f, "one {}", kind.name()),
            Self::Array(kind, count) => write!(f, "an array of {count} {}", kind.name()),
            Self::Text(bytes) => write!(f, "a text of {bytes} bytes"),
            Self::Begin => f.write_str("the beginning of a record"),
            Self::End => f.write_str("the end of a record"),
            Self::Nothing => f.write_str("the end of the message"),
        }
    }
}

/// How an item begins, and where its numbers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Front {
    pub(super) item: Item,
    /// Bytes of the head in front of its content, and of the content in the head.
    pub(super) lead: usize,
    pub(super) inside: usize,
    /// Bytes that travel alone.
    pub(super) alone: Option<usize>,
}

/// Marks of items that are no numbers.
pub(super) const TEXT: u8 = 0x20;
/// See [`TEXT`].
pub(super) const BEGIN: u8 = 0x21;
/// See [`TEXT`].
pub(super) const END: u8 = 0x22;
/// With the code of an element: an array in the head.
pub(super) const ARRAY: u8 = 0x40;
/// With the code of an element: an array that travels alone.
pub(super) const ALONE: u8 = 0x80;

impl Front {
    /// The item at the front of `rest`. `None`: that is none.
    pub(super) fn read(rest: &[u8]) -> Option<Self> {
        let mark = |item| Self { item, lead: 1, inside: 0, alone: None };
        let mut after = Reader(rest.get(1..).unwrap_or_default());
        let front = match rest.first() {
            None => Self { lead: 0, ..mark(Item::Nothing) },
            Some(&BEGIN) => mark(Item::Begin),
            Some(&END) => mark(Item::End),
            Some(&TEXT) => {
                let length = usize::try_from(after.u32()?).ok()?;
                Self { lead: 5, inside: length, ..mark(Item::Text(length)) }
            }
            Some(&tag) if tag & (ARRAY | ALONE) == 0 => {
                let number = Number::of_code(tag)?;
                Self { inside: number.size(), ..mark(Item::Number(number)) }
            }
            Some(&tag) => {
                let (number, count) = (Number::of_code(tag & !(ARRAY | ALONE))?, after.u64()?);
                let bytes = usize::try_from(count).ok()?.checked_mul(number.size())?;
                let front = Self { lead: 9, ..mark(Item::Array(number, count)) };
                match tag & (ARRAY | ALONE) {
                    ARRAY => Self { inside: bytes, ..front },
                    ALONE if bytes > BULK => Self { alone: Some(bytes), ..front },
                    _ => return None,
                }
            }
        };
        (rest.len().checked_sub(front.lead)? >= front.inside).then_some(front)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn calls_come_out_as_they_went_in() {
        let (to, from, kind) = ("in".to_owned(), "out".to_owned(), "a=1".to_owned());
        for call in [
            Call::Connect { attempt: 7, order: Order::Big, to, from, kind },
            Call::Accept { attempt: 7, connection: 1 << 31, port: 9 },
            Call::Refuse { attempt: u32::MAX, why: "é".to_owned() },
            Call::Closed { connection: 3 },
        ] {
            let bytes = call.bytes();
            assert_eq!(Call::read(&bytes), Some(call));
            assert_eq!(Call::read(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn what_travels_alone_is_long() {
        let array = |count: u64| [&[Number::U8 as u8 | ALONE][..], &count.to_le_bytes()].concat();
        assert_eq!((Front::read(&array(0)), Front::read(&array(BULK as u64))), (None, None));
        assert_eq!(Front::read(&array(BULK as u64 + 1)).and_then(|front| front.alone), Some(BULK + 1));
    }

    proptest! {
        #[test]
        fn whatever_comes_is_a_call_or_none(bytes: Vec<u8>) {
            if let Some(call) = Call::read(&bytes) {
                prop_assert_eq!(call.bytes(), bytes);
            }
        }

        #[test]
        fn an_item_never_reaches_behind_its_head(bytes: Vec<u8>) {
            if let Some(front) = Front::read(&bytes) {
                prop_assert!(front.lead + front.inside <= bytes.len());
            }
        }
    }
}
