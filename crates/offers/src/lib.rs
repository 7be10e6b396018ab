//! The table of offers: where connecting ends leave offers and accepting ends find them.
//!
//! ```text
//!  Directory --open--> Register (a small file: who has the table) --> Table { ports, users, offers by Tuple } (a sealed memfd)
//!            --check--> a Reason, if connections cannot meet there
//!            --tidy---> registers of dead processes are removed
//! ```
//! The register is named after the network namespace, so that a 4-tuple in the table names one connection. The table is memory to its
//! users: a bitmap of ports, a hash table of offers, and a list of the processes using it, so that one of them is always found.
//! Whatever stands in it may have been written by any process of this user: numbers are bounded, and what an offer says is proven
//! by the numbers of the connection's own handshake.
//!
//! Where it stands: below SysWrap (which runs inside host programs: nothing here allocates, panics, prints or goes through libc)
//! and the command line (which checks and tidies).

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
