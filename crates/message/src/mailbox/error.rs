//! Why something of a mailbox was not done.

use crate::ports::is_name;

/// Why something was not done. Names are those of mailboxes; a process is named by its node.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MailError {
    /// A name that is none.
    #[error("`{0}` is no name of a mailbox: one to 256 bytes without control characters")]
    Name(String),
    /// There is a mailbox of that name.
    #[error("this process has a mailbox `{0}` already")]
    InUse(String),
    /// More than a mailbox has.
    #[error("a mailbox has 1 to 65536 places for each sender, not {0}")]
    Places(u32),
    /// It does not take the sender's messages, and says why.
    #[error("`{to}` takes no message: {why}")]
    Refused {
        /// The mailbox.
        to: String,
        /// Its process's words.
        why: String,
    },
    /// Its process did not answer.
    #[error("the process of `{0}` has not answered in the time given: no thread of it is in a call of its mailboxes")]
    Silent(String),
    /// It is full.
    #[error(
        "`{to}` is full: {unread} {kind} messages of this sender lie there unread; its program must get or drop them"
    )]
    Full {
        /// The mailbox.
        to: String,
        /// How many.
        unread: u32,
        /// Of which kind.
        kind: super::Kind,
    },
    /// There is no room for more data of our own.
    #[error("{size} bytes, and {held} of {most} bytes of this process wait to be read, those of `{to}` among them")]
    NoRoom {
        /// Bytes of the message.
        size: u64,
        /// Bytes that wait.
        held: u64,
        /// Bytes that may.
        most: u64,
        /// Who is to read.
        to: String,
    },
    /// No process is known that might keep the data: sender and receivers do not count.
    #[error("no process but the sender and its receivers is known to offer memory, and {0} bytes are to lie elsewhere")]
    NoStore(u64),
    /// No other process takes the data: each was asked until the time had passed.
    #[error("no process offers memory for {size} bytes: {tried}")]
    NoStorage {
        /// Bytes of the message.
        size: u64,
        /// Those that were asked, and their answers.
        tried: String,
    },
    /// There is no such message: it was got or dropped before, or never was.
    #[error("no message {0} is in the mailbox: it was got or dropped, or never was")]
    Gone(u64),
    /// Data did not come in time.
    #[error(
        "the data of message {id} have not come in the time given: they lie in {holder}, of which no thread may be in a call of its mailboxes"
    )]
    Late {
        /// The message.
        id: u64,
        /// The process that has them.
        holder: String,
    },
    /// Data are lost with the process that had them, or that one has them no more.
    #[error("the data of message {id} are lost: they lay in {holder}, and {why}")]
    DataLost {
        /// The message.
        id: u64,
        /// The process that had them.
        holder: String,
        /// What is known of it.
        why: String,
    },
    /// There is no memory for the data.
    #[error("there is no memory for {0} bytes")]
    NoMemory(u64),
    /// The receiver's process cannot be reached, or is gone.
    #[error("the process of `{to}` is lost: {why}")]
    Lost {
        /// The mailbox.
        to: String,
        /// What is known.
        why: String,
    },
    /// No or too many receivers.
    #[error("a message goes to 1 to {most} mailboxes, each of them once")]
    Receivers {
        /// How many it may be.
        most: usize,
    },
    /// The mailbox was closed here.
    #[error("the mailbox is closed")]
    Closed,
}

pub(super) fn check_name(name: &str) -> Result<(), MailError> {
    if is_name(name) { Ok(()) } else { Err(MailError::Name(name.escape_debug().to_string())) }
}
