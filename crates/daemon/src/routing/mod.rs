//! Routing: the ways from this host to others. It owns what relays advertised and what is known from earlier runs.
//!
//! ```text
//!  table       decisions, without links and clocks    known       figures and ways of earlier runs, in a file
//!  ways        a way, and what relays advertised      remember    writes that file
//!  candidates  all ways to a host, in order           updates     sends and takes advertisements
//! ```

mod candidates;
pub(crate) mod known;
mod remember;
pub(crate) mod table;
mod updates;
pub(crate) mod ways;
