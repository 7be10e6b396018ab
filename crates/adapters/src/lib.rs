//! Adapters: what makes one link of several streams, or a shorter one of a compressible one, as state machines; and the stacks that they
//! are put together in. No unsafe code, no system call, no clock.
//!
//! * [`contract`]: what an adapter is to whoever has sockets and a clock;
//! * [`adoc`]: adaptive compression;
//! * [`stripe`]: several streams as one ordered link;
//! * [`stack`]: `adoc/tls/stripe(8)/tcp`, read, printed, and agreed on by both ends.
#![forbid(unsafe_code)]

pub mod adoc;
pub mod contract;
pub mod stack;
pub mod stripe;
