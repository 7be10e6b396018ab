//! Frames between a program and its daemon, and between daemons: those of [`madrigal_proto::frame`], with a head of one byte ([`POOL`]) and
//! a body by postcard.
//!
//! ```text
//!   program to daemon   POOL with an empty body; DONE or FAILED comes back; then Requests, the first one Join
//!   daemon to program   Replies
//! ```

use madrigal_proto::client::POOL;
use madrigal_proto::frame::{self, Front};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::record::{Entry, Refusal};
use crate::view::{Event, MemberId, View};

/// The longest request of a program.
pub const LONGEST_REQUEST: usize = 64 << 10;
/// The longest reply to a program, and the longest frame between daemons: a snapshot of a full pool fits.
pub const LONGEST_REPLY: usize = 4 << 20;

/// A request of a program.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Chosen by the program, not 0; it is in the answer.
    pub number: u64,
    /// The pool that a join is for; else empty.
    pub pool: String,
    /// The location of a join is left empty: the daemon knows it. Entries that only daemons write are refused.
    pub entry: Entry,
}

/// What a daemon tells a program.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// It is a member; the pool as it is then. All events behind that follow.
    Welcome {
        /// Its id.
        me: MemberId,
        /// The pool.
        view: View,
    },
    /// Something changed.
    Event(Event),
    /// So many events were left out, for the program has read none for long: the pool as it is now.
    Missed {
        /// How many.
        count: u64,
        /// The pool.
        view: View,
    },
    /// A request was done, all its events were told; or it was refused.
    Answer {
        /// The request's number.
        number: u64,
        /// How it went.
        result: Result<(), Refusal>,
    },
    /// It is no member any more, for this reason: others were told that it died.
    Dead {
        /// Why.
        why: String,
    },
}

/// A frame with this content.
pub fn encode(content: &impl Serialize) -> Vec<u8> {
    // Numbers, texts and lists of them: this cannot fail.
    let body = postcard::to_stdvec(content).unwrap_or_default();
    // A body fits in memory, so its length fits in a prefix.
    let prefix = frame::prefix(1, body.len() as u64).unwrap_or_default();
    [&prefix[..], &[POOL], &body].concat()
}

/// Takes a frame off the front of `bytes`; `None`: it is not complete. An error is the peer's, which breaks the protocol.
pub fn decode<T: DeserializeOwned>(bytes: &[u8], longest: usize) -> Result<Option<(T, usize)>, String> {
    let front = frame::front(bytes, longest).map_err(|nonsense| nonsense.to_string())?;
    match front {
        Front::More(_) => Ok(None),
        Front::Whole { head: &[POOL], body } => match postcard::take_from_bytes(body) {
            Ok((content, [])) => Ok(Some((content, front.taken()))),
            Ok(_) => Err("a frame with bytes behind its content".to_owned()),
            Err(error) => Err(error.to_string()),
        },
        Front::Whole { head, .. } => Err(format!("a frame of kind {head:?}")),
        Front::Long { len, .. } => Err(format!("a frame of {len} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any bytes in a frame are a content or an error, and need no more memory than they have.
        #[test]
        fn any_body_is_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let prefix = frame::prefix(1, body.len() as u64).unwrap();
            let framed = [&prefix[..], &[POOL], &body].concat();
            if let Ok(Some((reply, whole))) = decode::<Reply>(&framed, LONGEST_REPLY) {
                prop_assert_eq!(whole, framed.len());
                let again = decode::<Reply>(&encode(&reply), LONGEST_REPLY).unwrap();
                prop_assert_eq!(again.map(|(again, _)| again), Some(reply));
            }
            let _ = decode::<Request>(&framed, LONGEST_REQUEST);
        }
    }

    #[test]
    fn a_request_has_the_same_bytes_for_ever() {
        let elect = Entry::Elect { name: "m".to_owned(), for_life: true };
        let request = Request { number: 3, pool: String::new(), entry: elect };
        assert_eq!(encode(&request), [0xA7, 1, 6, 0, 0, 0, 0, 0, POOL, 3, 0, 3, 1, b'm', 1]);
        assert_eq!(decode(&encode(&request), LONGEST_REQUEST), Ok(Some((request, 15))));
    }
}
