//! The table of offers: a connecting end posts an offer, the accepting end finds it.
//!
//! ```text
//!  Directory --open--> Register (a small file: processes with the table) --> Table { ports, users, offers by Tuple } (a sealed memfd)
//!            --check--> a Reason, if connections cannot meet there
//!            --tidy---> registers of dead processes are removed
//! ```
//! The register is named after the network namespace, so that a 4-tuple in the table names one connection. The table is memory to its
//! users: a bitmap of ports, a hash table of offers, and a list of the processes using it, so that one of them is always found. Any process
//! of this user may write to it: numbers are bounded, and the contents of an offer are verified by the numbers of the connection's own
//! handshake.
//!
//! Where it stands: below SysWrap (which runs inside host programs: what it calls here does not allocate, panic, print or go through libc)
//! and the command line (which checks, lists and tidies).

mod directory;
mod holder;
mod register;
mod table;
mod tuple;
mod user;
mod users;

pub use directory::{Directory, Opened, TableFile};
pub use table::{Answer, Offer, Place, Standing, Table};
pub use tuple::{Tuple, port_of};
