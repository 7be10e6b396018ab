//! The `tcp` driver of messages: frames between the processes of a job, one connection for each pair of them that talks.
//!
//! ```text
//!   port --- handshakes: listener, dialling, authentication (proto::reach)  interfaces: under which addresses others may reach us
//!     |                '--- sites: this host's daemon, which leads to hosts of other sites
//!     |----- lane, lane, ...: a connection that is up (proto::frame)
//!     |----- flow: how the kernel sends     place: where bodies lie in its memory
//!     |----- resumption: what lets a link by the daemon go on over another connection
//!     '----- pace: when to read
//! ```
//! A process publishes every address it has. A peer tries all of them. Both sides must prove their node id, whatever path the connection
//! takes. Either side may open, and of several connections between two processes exactly one is kept.

mod events;
mod flow;
mod handshakes;
pub(super) mod interfaces;
mod lane;
mod listener;
mod pace;
mod place;
mod port;
mod resumption;

use madrigal_base::ids::Reach;
use madrigal_base::node::NodeId;
use madrigal_progress::driver::{Driver, Facts, Place};
use madrigal_progress::message::{MessageDriver, Port};

use super::Tcp;
use super::sites::Sites;
use super::socket::NAME;

impl MessageDriver for Tcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn facts(&self) -> Facts {
        Facts { reach: Reach::Network, one_user: false, takes: "addresses and a port" }
    }

    fn usable(&self, place: &Place) -> Result<(), String> {
        Driver::usable(self, place)
    }

    fn open(&self, me: NodeId, place: &Place) -> Result<Box<dyn Port>, String> {
        let sites = Sites::find(&place.daemons, madrigal_sys::time::now_ns());
        let addresses = interfaces::addresses(&place.network.nets);
        Ok(Box::new(port::TcpPort::new(me, &place.network, addresses, sites)?))
    }
}
