//! What processes with mailboxes say to each other.
//!
//! A call is a plain message: the version, a kind, and its fields, all numbers little endian. A *line* joins a sender's mailbox with a
//! receiver's: each side has a number for it. *Data* are what a process keeps for others, by a key.
//!
//! ```text
//!   1 open     line (4) to, from                       9 fetch     key (8) token (8)
//!   2 opened   line (4) theirs (4) places (4)         10 missing   token (8)
//!   3 refused  line (4) why                           11 release   key (8)
//!   4 header   theirs (4) kind policy (1, 1)          12 store     request (8) size (8) data, holders: count (2), addresses (64 each)
//!              tag sequence size (8, 8, 8) data       13 stored    request (8) data, load
//!   5 taken    line (4) kind (1) count (4)            14 full      request (8) load, why
//!   6 waits    theirs (4) kind (1)                    15 sent      key (8) count (2), numbers (2 each) of holders that did not get it
//!   7 closed   line (4)                               16 holds
//!   8 leaves   theirs (4)                               17 over
//! ```
//! Of a header, data are: 0 and the bytes; 1, at the sender, key (8), buffer; 2, elsewhere, address (64), key (8), buffer. A buffer is 0,
//! none; or 1, pid (4) descriptor (4) number (8). A load is what is offered, held and asked for (8 each). What is fetched comes as a
//! message that is matched by [`data_tag`].

use madrigal_base::node::NodeAddress;
use madrigal_sys::sealed::Found;

use super::header::{Kind, Load, Policy};
use crate::fields::{Reader, write_text};

/// Data of at most so many bytes come with the header, where they are to lie at the receiver.
pub const INLINE: usize = 4 << 10;
/// The most receivers of one message.
pub(super) const MOST_RECEIVERS: usize = 512;
/// Every receiver of a message.
pub(super) const ALL: [u16; MOST_RECEIVERS] = {
    let (mut all, mut at) = ([0; MOST_RECEIVERS], 0);
    while at < MOST_RECEIVERS {
        all[at] = at as u16;
        at += 1;
    }
    all
};
/// The version of this format.
const VERSION: u8 = 1;

/// Of the message with what was fetched.
pub(super) fn data_tag(token: u64) -> u64 {
    token
}

/// Data that a process keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Kept {
    pub(super) key: u64,
    /// Where a process of the same host finds them without a copy.
    pub(super) shared: Option<Found>,
}

/// Where the data of a header are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Lies {
    Inline(Vec<u8>),
    AtSender(Kept),
    Elsewhere(NodeAddress, Kept),
}

/// A header on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Envelope {
    pub(super) kind: Kind,
    pub(super) policy: Policy,
    pub(super) tag: u64,
    pub(super) sequence: u64,
    pub(super) size: u64,
    pub(super) lies: Lies,
}

/// A call of one process to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Open {
        line: u32,
        to: String,
        from: String,
    },
    Opened {
        line: u32,
        theirs: u32,
        places: u32,
    },
    Refused {
        line: u32,
        why: String,
    },
    Header {
        theirs: u32,
        envelope: Envelope,
    },
    Taken {
        line: u32,
        kind: Kind,
        count: u32,
    },
    Waits {
        theirs: u32,
        kind: Kind,
    },
    Closed {
        line: u32,
    },
    Leaves {
        theirs: u32,
    },
    Fetch {
        key: u64,
        token: u64,
    },
    Missing {
        token: u64,
    },
    Release {
        key: u64,
    },
    Store {
        request: u64,
        size: u64,
        data: Kept,
        holders: Vec<NodeAddress>,
    },
    Stored {
        request: u64,
        data: Kept,
        load: Load,
    },
    Full {
        request: u64,
        load: Load,
        why: String,
    },
    Sent {
        key: u64,
        missed: Vec<u16>,
    },
    /// Whoever keeps data for a process sees by this that it is there.
    Holds,
    /// The process has no mailboxes any more, and keeps no data.
    Over,
}

impl Call {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.code()];
        match self {
            Self::Open { line, to, from } => {
                bytes.extend(line.to_le_bytes());
                write_text(&mut bytes, to);
                write_text(&mut bytes, from);
            }
            Self::Opened { line, theirs, places } => {
                [line, theirs, places].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            }
            Self::Refused { line, why } => {
                bytes.extend(line.to_le_bytes());
                write_text(&mut bytes, why);
            }
            Self::Header { theirs, envelope } => {
                bytes.extend(theirs.to_le_bytes());
                envelope.write(&mut bytes);
            }
            Self::Taken { line, kind, count } => {
                bytes.extend(line.to_le_bytes());
                bytes.push(*kind as u8);
                bytes.extend(count.to_le_bytes());
            }
            Self::Waits { theirs, kind } => {
                bytes.extend(theirs.to_le_bytes());
                bytes.push(*kind as u8);
            }
            Self::Closed { line: number } | Self::Leaves { theirs: number } => bytes.extend(number.to_le_bytes()),
            Self::Fetch { key, token } => [key, token].iter().for_each(|number| bytes.extend(number.to_le_bytes())),
            Self::Missing { token: number } | Self::Release { key: number } => bytes.extend(number.to_le_bytes()),
            Self::Store { .. } | Self::Stored { .. } | Self::Full { .. } | Self::Sent { .. } => {
                self.write_storage(&mut bytes);
            }
            Self::Holds | Self::Over => {}
        }
        bytes
    }

    fn code(&self) -> u8 {
        match self {
            Self::Open { .. } => 1,
            Self::Opened { .. } => 2,
            Self::Refused { .. } => 3,
            Self::Header { .. } => 4,
            Self::Taken { .. } => 5,
            Self::Waits { .. } => 6,
            Self::Closed { .. } => 7,
            Self::Leaves { .. } => 8,
            Self::Fetch { .. } => 9,
            Self::Missing { .. } => 10,
            Self::Release { .. } => 11,
            Self::Store { .. } => 12,
            Self::Stored { .. } => 13,
            Self::Full { .. } => 14,
            Self::Sent { .. } => 15,
            Self::Holds => 16,
            Self::Over => 17,
        }
    }

    fn write_storage(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Store { request, size, data, holders } => {
                [request, size].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
                data.write(bytes);
                write_count(bytes, holders.len());
                holders.iter().for_each(|holder| bytes.extend(holder.encode(NodeAddress::LONG)));
            }
            Self::Stored { request, data, load } => {
                bytes.extend(request.to_le_bytes());
                data.write(bytes);
                write_load(bytes, load);
            }
            Self::Full { request, load, why } => {
                bytes.extend(request.to_le_bytes());
                write_load(bytes, load);
                write_text(bytes, why);
            }
            Self::Sent { key, missed } => {
                bytes.extend(key.to_le_bytes());
                write_count(bytes, missed.len());
                missed.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            }
            _ => {}
        }
    }

    /// `None`: it is no call of this version.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        let [VERSION, code] = rest.array()? else { return None };
        let call = match code {
            1 => Self::Open { line: rest.u32()?, to: rest.short_text()?, from: rest.short_text()? },
            2 => Self::Opened { line: rest.u32()?, theirs: rest.u32()?, places: rest.u32()? },
            3 => Self::Refused { line: rest.u32()?, why: rest.short_text()? },
            4 => Self::Header { theirs: rest.u32()?, envelope: Envelope::read(&mut rest)? },
            5 => Self::Taken { line: rest.u32()?, kind: read_kind(&mut rest)?, count: rest.u32()? },
            6 => Self::Waits { theirs: rest.u32()?, kind: read_kind(&mut rest)? },
            7 => Self::Closed { line: rest.u32()? },
            8 => Self::Leaves { theirs: rest.u32()? },
            9 => Self::Fetch { key: rest.u64()?, token: rest.u64()? },
            10 => Self::Missing { token: rest.u64()? },
            11 => Self::Release { key: rest.u64()? },
            16 => Self::Holds,
            17 => Self::Over,
            _ => Self::read_storage(code, &mut rest)?,
        };
        rest.is_empty().then_some(call)
    }

    fn read_storage(code: u8, rest: &mut Reader<'_>) -> Option<Self> {
        Some(match code {
            12 => {
                let (request, size, data) = (rest.u64()?, rest.u64()?, Kept::read(rest)?);
                let count = read_count(rest)?;
                let holders = (0..count).map(|_| read_address(rest)).collect::<Option<_>>()?;
                Self::Store { request, size, data, holders }
            }
            13 => Self::Stored { request: rest.u64()?, data: Kept::read(rest)?, load: read_load(rest)? },
            14 => Self::Full { request: rest.u64()?, load: read_load(rest)?, why: rest.short_text()? },
            15 => {
                let (key, count) = (rest.u64()?, read_count(rest)?);
                let missed = (0..count).map(|_| rest.array().map(u16::from_le_bytes)).collect::<Option<_>>()?;
                Self::Sent { key, missed }
            }
            _ => return None,
        })
    }
}

impl Envelope {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend([self.kind as u8, self.policy as u8]);
        [self.tag, self.sequence, self.size].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        match &self.lies {
            Lies::Inline(data) => {
                bytes.push(0);
                bytes.extend(data);
            }
            Lies::AtSender(kept) => {
                bytes.push(1);
                kept.write(bytes);
            }
            Lies::Elsewhere(holder, kept) => {
                bytes.push(2);
                bytes.extend(holder.encode(NodeAddress::LONG));
                kept.write(bytes);
            }
        }
    }

    fn read(rest: &mut Reader<'_>) -> Option<Self> {
        let [kind, policy] = rest.array()?;
        let (kind, policy) = (Kind::of_code(kind)?, Policy::of_code(policy)?);
        let (tag, sequence, size) = (rest.u64()?, rest.u64()?, rest.u64()?);
        let lies = match rest.array()? {
            [0] if size <= INLINE as u64 => Lies::Inline(rest.bytes(usize::try_from(size).ok()?)?.to_vec()),
            [1] => Lies::AtSender(Kept::read(rest)?),
            [2] => Lies::Elsewhere(read_address(rest)?, Kept::read(rest)?),
            _ => return None,
        };
        Some(Self { kind, policy, tag, sequence, size, lies })
    }
}

impl Kept {
    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.key.to_le_bytes());
        bytes.push(u8::from(self.shared.is_some()));
        if let Some(Found { pid, fd, id }) = self.shared {
            bytes.extend(pid.to_le_bytes());
            bytes.extend(fd.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
    }

    fn read(rest: &mut Reader<'_>) -> Option<Self> {
        let key = rest.u64()?;
        let shared = match rest.array()? {
            [0] => None,
            [1] => Some(Found { pid: rest.u32()?, fd: i32::from_le_bytes(rest.array()?), id: rest.u64()? }),
            _ => return None,
        };
        Some(Self { key, shared })
    }
}

fn read_kind(rest: &mut Reader<'_>) -> Option<Kind> {
    let [code] = rest.array()?;
    Kind::of_code(code)
}

fn read_address(rest: &mut Reader<'_>) -> Option<NodeAddress> {
    NodeAddress::decode(rest.bytes(NodeAddress::LONG)?).ok()
}

fn write_count(bytes: &mut Vec<u8>, count: usize) {
    bytes.extend(u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
}

fn read_count(rest: &mut Reader<'_>) -> Option<usize> {
    let count = usize::from(u16::from_le_bytes(rest.array()?));
    (count <= MOST_RECEIVERS).then_some(count)
}

fn write_load(bytes: &mut Vec<u8>, load: &Load) {
    [load.offers, load.held, load.asked].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
}

fn read_load(rest: &mut Reader<'_>) -> Option<Load> {
    Some(Load { offers: rest.u64()?, held: rest.u64()?, asked: rest.u64()? })
}

#[cfg(test)]
mod tests {
    use madrigal_base::node::NodeId;
    use proptest::prelude::*;

    use super::*;

    fn calls() -> Vec<Call> {
        let node = NodeAddress::bare(NodeId::new(77).expect("a number"));
        let kept = Kept { key: 1 << 40, shared: Some(Found { pid: 9, fd: -1, id: 3 }) };
        let bare = Kept { key: 5, shared: None };
        let load = Load { offers: 10, held: 3, asked: u64::MAX };
        let header = |size, lies| {
            let (kind, policy) = (Kind::Management, Policy::Elsewhere);
            Call::Header { theirs: 4, envelope: Envelope { kind, policy, tag: u64::MAX, sequence: 7, size, lies } }
        };
        vec![
            Call::Open { line: 1, to: "in".to_owned(), from: "é".to_owned() },
            Call::Opened { line: 1, theirs: 2, places: 3 },
            Call::Refused { line: 1, why: "no".to_owned() },
            header(3, Lies::Inline(vec![1, 2, 3])),
            header(u64::MAX, Lies::AtSender(kept.clone())),
            header(9, Lies::Elsewhere(node.clone(), bare.clone())),
            Call::Taken { line: 1, kind: Kind::Urgent, count: 2 },
            Call::Waits { theirs: 1, kind: Kind::Data },
            Call::Closed { line: 6 },
            Call::Leaves { theirs: 7 },
            Call::Fetch { key: 1, token: 2 },
            Call::Missing { token: 2 },
            Call::Release { key: 3 },
            Call::Store { request: 1, size: 2, data: kept.clone(), holders: vec![node.clone(), node] },
            Call::Stored { request: 1, data: bare, load },
            Call::Full { request: 1, load, why: "full".to_owned() },
            Call::Sent { key: 8, missed: vec![0, 511] },
            Call::Holds,
            Call::Over,
        ]
    }

    #[test]
    fn calls_come_out_as_they_went_in() {
        for call in calls() {
            let bytes = call.bytes();
            assert_eq!(Call::read(&bytes).as_ref(), Some(&call));
            assert_eq!(Call::read(&bytes[..bytes.len() - 1]), None, "{call:?}");
            assert_eq!(Call::read(&[&bytes[..], &[0]].concat()), None, "{call:?}");
        }
    }

    #[test]
    fn what_claims_more_than_there_may_be_is_no_call() {
        let many = vec![NodeAddress::bare(NodeId::new(1).expect("a number")); MOST_RECEIVERS + 1];
        let store = Call::Store { request: 1, size: 1, data: Kept { key: 1, shared: None }, holders: many };
        assert_eq!(Call::read(&store.bytes()), None);
        let data = Lies::Inline(vec![0; INLINE + 1]);
        let (kind, policy, size) = (Kind::Data, Policy::Receiver, INLINE as u64 + 1);
        let envelope = Envelope { kind, policy, tag: 0, sequence: 1, size, lies: data };
        assert_eq!(Call::read(&Call::Header { theirs: 1, envelope }.bytes()), None);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_a_call_or_none(code in 0u8..19, rest: Vec<u8>) {
            let bytes = [&[VERSION, code][..], &rest].concat();
            if let Some(call) = Call::read(&bytes) {
                // Addresses may come in other forms than ours.
                prop_assert_eq!(Call::read(&call.bytes()), Some(call));
            }
        }

        #[test]
        fn a_call_with_a_byte_changed_is_a_call_or_none(which in 0usize..19, at: usize, byte: u8) {
            let mut bytes = calls()[which].bytes();
            let len = bytes.len();
            bytes[at % len] = byte;
            let _ = Call::read(&bytes);
        }
    }
}
