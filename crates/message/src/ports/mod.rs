//! Send ports and receive ports (NetIbis, section 3): messages of typed items, one way, between ports of one type.
//!
//! ```text
//!   SendPort --connect--> ReceivePort          one to one, one to many, many to one, many to many
//!   message, write, write_array, finish        receive, read, read_array, finish
//! ```
//! * A [`Ports`] is an endpoint of a worker, with any number of ports. A receive port has a name there; its [`PortAddress`] goes to others
//!   by any way.
//! * Types ([`PortType`]) are compared when ports connect: where they differ there is no connection, and the reason names the key.
//! * A type may name a stack of adapters ([`PortType`]): its ports are reached, and reach, by links with that stack only.
//! * Messages of one connection arrive in order. A message to several receive ports is complete when all have it.
//! * Numbers go as they lie in the sender's memory, and are changed by a receiver with another order of bytes only.
//! * Arrays above [`BULK`] travel alone, straight from memory to memory. Like a message that its receiver has no room for, they wait for
//!   the receiver.
//!
//! Nothing happens while no thread of the process calls anything here: [`Ports::turn`] does what is due. Bytes of others are judged: a
//! message that is none ends its connection, with the reason.

mod address;
mod carried;
mod elements;
mod error;
mod hub;
mod kinds;
mod process;
mod receive;
mod send;
mod state;
mod take;
mod wire;

pub(crate) use address::is_name;
pub use address::{AddressError, PortAddress};
pub use elements::{Element, Number, Order};
pub use error::PortError;
pub use kinds::{PortType, TypeError};
pub use process::Ports;
pub use receive::{ReadMessage, ReceivePort};
pub use send::{Finished, SendPort, WriteMessage};
pub use state::Change;
pub use wire::{BULK, Item};
