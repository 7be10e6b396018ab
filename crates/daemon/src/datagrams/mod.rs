//! Datagrams of programs, carried to a port of another host: `madrigal forward --udp`.
//!
//! ```text
//!   programs --UDP--> [ near end ] === stream of a link ==================== [ far end ] --UDP--> program
//!                     [          ] === QUIC, as loss-tolerant messages ===== [         ]
//! ```
//! A tunnel begins as a stream, by any way. So the rules for connections to a port hold for its datagrams, too, and datagrams pass where
//! UDP does not. On the stream the far end sends its port of QUIC and a secret. If the near end can connect there, both show their
//! certificates, and the near end shows the secret. From then on datagrams go by QUIC; when that connection ends, by the stream again.
//!
//! Where neither end can connect to the other, both do so at once (`meet.rs`). A port of UDP is open only while there is a tunnel, but for
//! relays, which say at which address they see a host.
//!
//! Each address that sends to the near end is a flow, with a socket of its own at the far end. A datagram for which there is no room is
//! dropped and counted.

use std::collections::HashMap;

use crate::datagrams::quic::Quic;
use crate::datagrams::tunnel::Tunnel;
use crate::poll::Token;

mod deliver;
pub(crate) mod far;
pub(crate) mod flows;
pub(crate) mod frame;
pub(crate) mod meet;
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
