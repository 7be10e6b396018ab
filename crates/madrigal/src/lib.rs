//! Madrigal's public Rust API, and the assembly of the two lower layers.
//!
//! A [`Runtime`] is an engine, the table of drivers and the selector. It listens and connects; what arrives is a [`VLink`], a stream
//! of bytes whatever carries it. Nothing blocks but `wait`, and there is no thread but the caller's.
//!
//! ```
//! use madrigal::Runtime;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = Runtime::new()?;
//! let acceptor = runtime.listen(&"loopback://hello".parse()?)?;
//!
//! let client = runtime.connect(&"loopback://hello".parse()?).wait()?;
//! client.write(b"who is there?".to_vec()).wait()?;
//!
//! let server = acceptor.accept().wait()?;
//! let question = server.read(vec![0; 64]).wait()?;
//! assert_eq!(question.bytes(), b"who is there?");
//! # Ok(())
//! # }
//! ```
//!
//! The same with `shm://hello` joins two processes of one user, with `tcp://127.0.0.1:9000` two hosts. To let the runtime choose, a process
//! [serves](Runtime::serve) by every driver it may and hands out its [`Card`]; an owner of the card [dials](Runtime::dial), and [`Choice`]
//! explains which path was taken and why.
//!
//! An [`Address`] may have a stack of adapters above its driver: a link of `adoc/stripe(4)/tcp://10.2.0.2:9000` is compressed where that makes
//! it faster, and has four connections. Both ends name the same one ([`Runtime::listen_at`], [`Runtime::connect_at`]). With `tls` in it a link is
//! enciphered, between processes with certificates of one grid and one user ([`Runtime::set_tls`]); so is one of `vrp/udp://10.2.0.2:9000`, by
//! QUIC. [`lossy`] has links of messages of which a part may be lost ([`Runtime::lossy_listen`], [`Runtime::lossy_connect`]).
#![forbid(unsafe_code)]

mod address;
mod card;
mod certificates;
mod parallel;
pub mod perf;
mod runtime;

pub use address::{Address, AddressError};
pub use card::{Card, CardError};
pub use certificates::{GridTls, grid_tls, grid_tls_in};
pub use madrigal_adapters::stack;
pub use madrigal_base::{config, error, ids, locator, network};
pub use madrigal_drivers::{DRIVERS, MESSAGE_DRIVERS, added, driver, drivers, fabric, message_driver};
pub use madrigal_message::{Circuit, Endpoint, Worker, circuit, endpoint, mailbox, ports, worker as workers};
pub use madrigal_progress::{engine, wait};
pub use madrigal_stream::{
    Acceptor, Attempting, Filled, Handler, MakeTls, Op, ReadOp, StackRefused, StackedMessages, VLink, WriteOp,
};

/// Drivers of messages: the trait, and the place where one runs.
pub mod message {
    pub use madrigal_progress::driver::Place;
    pub use madrigal_progress::message::MessageDriver;
}
pub use madrigal_pools as pools;
pub use madrigal_selector::{Choice, NoPath, Pair, Reason, Rejected};
pub use madrigal_sys::time;
pub use madrigal_udp::lossy;
pub use parallel::{daemons, stacked_messages, stacked_worker, worker, worker_with};
pub use runtime::{Runtime, Server, StartError, Usable};
