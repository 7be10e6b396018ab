//! Layer 2, links of programs over UDP: loss-tolerant messages ([`lossy`]), and streams of bytes ([`Udp`], a driver), by QUIC.
//!
//! ```text
//!   VLink --> ends ---+
//!                     +--> [ Link: messages, notes ] --> [ Traffic: QUIC, one socket ] --> UDP
//!   LossyLink --------+            one for each link       behind the lock of a Port
//! ```
//! A listener has one socket for all links that it accepts, a connecting end one for its link. Both ends show certificates of one grid, as
//! links with `tls` do, and neither has the link before the other one is known. Nothing here blocks but what says that it waits, and there is
//! no thread: datagrams are read, answered and sent again by whoever turns the engine. A process that does not turn it for a minute is taken
//! for gone.
//!
//! A peer that was killed is noticed by ICMP: a keep-alive goes after five seconds in which nothing came, the kernel of a host where nobody
//! has the port answers that, and the link is over if nothing comes within two seconds more. A host that vanished is noticed after a minute.
//!
//! What peers send is bounded: 32 MiB that are not read for each link, 256 connections whose ends are not known, ten seconds for each of them,
//! 128 links that nobody has accepted, 8,192 connections in all; once there are 64 who connects must first prove its address (RFC 9000,
//! section 8.1.2).
#![forbid(unsafe_code)]

mod driver;
mod ends;
mod link;
pub mod lossy;
mod note;
mod port;
mod traffic;
mod what;

pub use driver::Udp;
pub use what::{ClassError, What};
