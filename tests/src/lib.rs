//! Tests of the whole: real programs and real sockets, with and without Madrigal.
//!
//! ```text
//!  tests/*.rs        cargo's tests: start programs plain and wrapped, and compare
//!    |
//!  trials            tests that may find that they cannot run: ignored, with the reason
//!  host              the library to preload, programs and their end, scratch folders, shared directories
//!  bin/semantics     one socket check per run; must pass plain and wrapped
//!  bin/actor         small socket programs for faults and hostile peers
//!    |
//!  net pair          socket calls as any C program makes them, so that a preloaded library sees them all
//! ```
//! The programs under test know nothing of Madrigal, except that they may read their own report to see that a connection really
//! moved. No test asserts a wall-clock time; watchdogs only end what hangs.

pub mod host;
pub mod net;
pub mod pair;
pub mod trials;
