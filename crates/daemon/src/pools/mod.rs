//! Pools: processes that find each other by a name (`madrigal-pools`). A thread of their own, so that no store holds up what links carry.
//!
//! ```text
//!  doors          the daemon's side: programs and other daemons are handed over; status
//!  service        the thread: one poll(2), the timers
//!  connections    its sockets: frames in, frames out, how much may wait
//!  front          the sessions of this host's programs, and a copy of each pool that has some
//!  store          where the log of a pool is: the interface
//!    keeper link    by default: in the daemon of one host, by a stream to it (link); keeper: that daemon's side
//!    etcd           in etcd
//! ```
//! The daemon gives up what it hands over: from then on a socket is the thread's.

mod connections;
mod doors;
mod etcd;
mod front;
mod keeper;
mod link;
mod service;
mod session;
mod store;

pub(crate) use service::Pools;
