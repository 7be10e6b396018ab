//! Routing: the ways from this host to others. It owns what relays advertised and what is known from earlier runs.
//!
//! ```text
//!  table                   decisions, without links and clocks
//!  advertisements, updates what relays advertised; sends and takes route updates
//!  candidate(s)            a way; all ways to a host, in order
//!  known, remember         ways and figures of earlier runs; writes them to a file
//! ```

pub(crate) mod advertisements;
pub(crate) mod candidate;
mod candidates;
pub(crate) mod known;
mod remember;
pub(crate) mod table;
mod updates;
