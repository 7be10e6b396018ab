//! Streams: what goes over links. A call opens one; an egress ends it at a port; a pipe joins two ends and carries the bytes.
//!
//! ```text
//!  stream, io, batch    a stream of a link: its owner, reads and writes
//!  pipe, pump, join     two ends that are joined; record: the log line at its end; path: its hosts
//!  call, calls          a stream that is opened here; attempts: by one way after another
//!  cap                  what streams carry together at most
//!  requests             streams that peers open; egress, egresses: those that end at a port of this host
//!  migration(s), resume a stream goes on by another way, at the calling and at the target end
//!  failover, origin     when it does; its identity
//! ```

mod attempts;
pub(crate) mod batch;
pub(crate) mod call;
mod calls;
pub(crate) mod cap;
pub(crate) mod egress;
mod egresses;
pub(crate) mod failover;
mod io;
mod join;
pub(crate) mod migration;
mod migrations;
pub(crate) mod origin;
mod path;
pub(crate) mod pipe;
mod pump;
pub(crate) mod record;
mod requests;
mod resume;
pub(crate) mod stream;
