//! QUIC (RFC 9000) as a state machine, for what TCP cannot do: datagrams that come or do not (RFC 9221), and loss-tolerant messages over
//! them ([`madrigal_adapters::vrp`]). No socket, no clock: datagrams of UDP and the time go in, datagrams and a deadline come out.
//!
//! ```text
//!   program --> [ Messages ] --> [ Carrier: a connection of an QuicEndpoint ] --> datagrams of UDP
//! ```
//! * [`Carrier`]: what messages need of a connection, eight calls; so that another implementation of QUIC can take the place of noq-proto.
//! * [`QuicEndpoint`]: connections, dialled and accepted, over one UDP socket. The certificates of its TLS decide which peers may connect.
//! * [`Messages`]: both directions of loss-tolerant messages over one carrier.
//!
//! Congestion is controlled by the rate at which bytes arrive, as BBR does it: a loss is not taken for a full queue.
#![forbid(unsafe_code)]

mod carrier;
mod connection;
mod ended;
mod endpoint;
mod messages;
mod pace;
mod rate;

pub use carrier::Carrier;
pub use connection::Connection;
pub use ended::Ended;
pub use endpoint::{Admission, ConnectError, Event, Key, Limits, Outgoing, QuicEndpoint};
pub use messages::{Broken, Messages};
