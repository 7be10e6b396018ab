//! Mailboxes (LANDA-HSN, sections 3.2 and 5.1): a message's header goes to its receiver's mailbox, its data lie where they are told to.
//!
//! ```text
//!                  header -----------------------> mailbox     list, wait: nothing moves
//!   put --+                                          |
//!         +-- data: with the header, or kept by   <--+         get: from the one who keeps them; discard: freed there
//!              the receiver, the sender, or a third process
//! ```
//! * A receiver chooses by headers what it wants, and when: by source, tag, kind. Urgent messages pass the others.
//! * A mailbox has so many places for each sender and kind. Who finds it full waits.
//! * One copy of the data serves all receivers of a message. It is freed when the last one has got or dropped its message, or is gone.
//! * A third process is the one with the least load, of those that offer memory: each answer tells its load.
//! * A [`Buffer`] that was made by a [`Draft`] is shared memory: processes of one host map it, and nothing is copied, whatever its size. The
//!   kernel counts who has it.
//!
//! Nothing happens while no thread of the process calls anything here ([`Mailboxes::turn`] does what is due): a process that keeps data has to.
//! Bytes of others are judged: what is no call is nothing, and a sender that breaks the rules of its line loses it.
//!
//! State: `lines` has a line's at both ends, `inbox` a message's, `store` that of data which are kept; `state` is all of it, under one lock.

mod buffer;
mod calls;
mod elsewhere;
mod error;
mod fetch;
mod header;
mod hub;
mod inbox;
mod lines;
mod process;
mod put;
mod receive;
mod state;
mod store;
mod wire;

pub use buffer::Buffer;
pub use error::MailError;
pub use header::{Filter, Header, Held, Kind, Letter, Load, Place, Policy};
pub use madrigal_sys::sealed::{Draft, Sealed};
pub use process::{Limits, Mailboxes};
pub use put::Data;
pub use receive::Mailbox;
pub use wire::INLINE;

pub use crate::ports::{AddressError, Change, PortAddress};
