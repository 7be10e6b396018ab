//! Datagrams of programs, carried to a port of another host: `madrigal forward --udp`.
//!
//! ```text
//!   programs --UDP--> [ near end ] === stream of a link ==================== [ far end ] --UDP--> program
//!                     [          ] === QUIC, as loss-tolerant messages ===== [         ]
//! ```
//! A tunnel begins as a stream, by whatever way there is: so whoever may not connect to a port sends it no datagrams either, and they go where
//! UDP does not. The far end says on it at which port it speaks QUIC, and a secret. Where the near end can connect there, each shows its
//! certificate, the near end the secret, too, and datagrams go by QUIC from then on; when that connection ends, by the stream again.
//!
//! No port of UDP is open but while there is a tunnel.
//!
//! Each address that sends to the near end is a flow, with a socket of its own at the far end. A datagram for which there is no room is
//! dropped, and counted, as any network does it.

use std::collections::HashMap;

use crate::datagrams::quic::Quic;
use crate::datagrams::tunnel::Tunnel;
use crate::poll::Token;

mod deliver;
pub(crate) mod far;
pub(crate) mod flows;
pub(crate) mod frame;
pub(crate) mod near;
pub(crate) mod quic;
pub(crate) mod quic_events;
mod status;
pub(crate) mod tunnel;
pub(crate) mod udp;

/// The daemon's tunnels.
#[derive(Default)]
pub(crate) struct Datagrams {
    pub(crate) tunnels: HashMap<Token, Tunnel>,
    /// The connections by which they go, while there are tunnels; none without a certificate.
    pub(crate) quic: Option<Quic>,
}
