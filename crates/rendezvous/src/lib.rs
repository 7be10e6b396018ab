//! The rendezvous: one small file in the shared directory where connecting ends leave offers and accepting ends find them.
//!
//! ```text
//!  Directory --open--> Table { ports on which wrapped programs listen, users, offers by Tuple }
//!            --check--> a Reason, if connections cannot meet there
//!            --tidy---> tables of dead processes are removed
//! ```
//! The file is named after the network namespace, so that a 4-tuple in it names one connection. It is memory to its users: a
//! bitmap of ports, a hash table of offers, and a list of the processes using it, so that the last one to leave removes it.
//! Whatever stands in it may have been written by any process of this user: numbers are bounded, and what an offer says is proven
//! by the nonces of the connection's own handshake.
//!
//! Where it stands: below SysWrap (which runs inside host programs: nothing here allocates, panics, prints or goes through libc)
//! and the command line (which checks and tidies).

mod directory;
mod table;
mod tuple;
mod users;

pub use directory::{Directory, Opened, TableFile};
pub use table::{Offer, Table, stage};
pub use tuple::{Tuple, port_of};
