//! The contracts between the engine and the drivers. A driver turns a [`Locator`] into [`Connection`]s; it starts no thread, keeps no
//! policy, and never blocks.
//!
//! ```text
//!   Driver --listen--> Listener --accept--> Connection { ends: (rx, tx), signal }
//!          --connect----------------------> Connection
//! ```
//! There are two paradigms. A *byte* driver moves as many bytes as it can now; a *packet* driver moves whole packets up to its
//! maximum. Neither is built on the other: adapters (crate `stream`) translate where a user wants the other one.
//!
//! **Waiting.** Finding nothing to read or no room to write is a value. To sleep until that changes: call `arm` on the end (true means poll
//! again instead), then poll the endpoint's [`Signal`]; when it was reported, call [`Signal::woken`] and poll again. A caller that keeps
//! polling needs neither, so a spinning reader of shared memory makes no system call.
//!
//! **Threads.** An end is used by one thread at a time (`&mut self`); the two ends of an endpoint may be used at the same time.

use std::io::IoSlice;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use madrigal_base::error::{AcceptError, ConnectError, ListenError, ReadError, WriteError};
use madrigal_base::ids::Reach;
use madrigal_base::locator::Locator;
use madrigal_base::network::Network;
use madrigal_base::node::NodeAddress;

use crate::wait::Peer;

/// A way by this host's daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Detour {
    /// Where to connect to by it.
    pub to: Locator,
    /// The grid has connections with that host enciphered, by the daemon: what enciphers nothing itself may not go without it.
    pub is_guarded: bool,
}

/// What a driver knows of the place where it runs.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Place {
    /// The directory through which processes of one user find each other; made by the first process that needs it.
    ///
    /// Listeners of `shm` are called `NAME.sock` in it. Those of another driver need other names: no name of a locator begins with a dot.
    /// A socket that a killed process left is removed only if its name ends with `.sock`. `drivers/src/shm/directory.rs` has what makes a
    /// listener here, takes over its name, and connects to it.
    pub directory: String,
    /// The user's settings of the network.
    pub network: Network,
    /// Directories where this user's daemon may be, likeliest first; none where no daemon is to be used.
    pub daemons: Vec<String>,
}

/// What a driver is, apart from where it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Facts {
    /// How far it carries.
    pub reach: Reach,
    /// Whether it joins processes of one user only.
    pub one_user: bool,
    /// The form of its addresses, for error messages.
    pub takes: &'static str,
}

/// A way to move data between two processes, or inside one.
pub trait Driver: Send + Sync {
    /// Its name, which is the scheme of its locators. Never changes.
    fn name(&self) -> &'static str;

    /// What it is. Never changes.
    fn facts(&self) -> Facts;

    /// Whether it can work here, else one sentence why not. May make system calls, does not block; leaves nothing behind.
    fn usable(&self, place: &Place) -> Result<(), String>;

    /// Where a listener called `name` is on this host unless a place is given; ports are left to the kernel.
    fn address_for(&self, name: &str) -> Option<Locator>;

    /// The addresses of this host at which others may reach a listener at all of them, likeliest first, as the place's settings allow; none
    /// where locators are names.
    fn addresses(&self, _place: &Place) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Adds to the address of this process what others need to reach it by their daemons.
    fn publish(&self, _address: &mut NodeAddress, _place: &Place) {}

    /// How a node is reached by this host's daemon, where the grid has its host. Reads the daemon's file.
    fn detour(&self, _to: &NodeAddress, _place: &Place) -> Option<Detour> {
        None
    }

    /// Begins to listen. Does not block. Other processes can connect as soon as this returns, until the listener is dropped.
    fn listen(&self, at: &Locator, place: &Place) -> Result<Box<dyn Listener>, ListenError>;

    /// Begins to connect. Does not block; gives the endpoint at once where that needs no waiting. The peer may not have accepted
    /// yet: what is written before waits for it.
    fn connect(&self, to: &Locator, place: &Place) -> Result<Connecting, ConnectError>;
}

/// An attempt to connect.
pub enum Connecting {
    /// It succeeded.
    Done(Connection),
    /// It goes on.
    Pending(Box<dyn Pending>),
}

/// A connection attempt that waits for an answer. Dropping it gives up.
pub trait Pending: Send {
    /// Checks whether it is decided; `None`: not yet. Does not block. After the first `Some` or error it must not be called again.
    fn poll(&mut self) -> Result<Option<Connection>, ConnectError>;

    /// The signal that is reported when [`Pending::poll`] may have a result.
    fn signal(&self) -> Arc<dyn Signal>;
}

/// Something that accepts connections. Dropping it ends that; accepted endpoints live on, waiting connections are refused.
pub trait Listener: Send {
    /// The next connection; `None`: none waits. Does not block. Attempts that fail on the way are dropped silently: they are the connecting
    /// side's errors. After an error a later call may succeed.
    fn accept(&mut self) -> Result<Option<Connection>, AcceptError>;

    /// Where it really listens: a port left open is filled in.
    fn locator(&self) -> &Locator;

    /// The signal that is reported when a connection waits. A listener needs no arming.
    fn signal(&self) -> Arc<dyn Signal>;
}

/// One side of a connection.
///
/// Dropping both ends and every clone of the signal closes it. The peer reads what was written before, then the end of the stream, or
/// [`ReadError::Reset`] where bytes it had sent were dropped unread.
pub struct Connection {
    /// The two ends.
    pub ends: Ends,
    /// How a sleeper is woken.
    pub signal: Arc<dyn Signal>,
    /// Our own address, as the peer sees it where the driver knows.
    pub local: Locator,
    /// The peer's address.
    pub peer: Locator,
}

/// The two ends of an endpoint, by paradigm.
pub enum Ends {
    /// A stream of bytes.
    Bytes(Box<dyn ByteRx>, Box<dyn ByteTx>),
    /// A sequence of packets.
    Packets(Box<dyn PacketRx>, Box<dyn PacketTx>),
}

/// How a thread that sleeps for an endpoint, a listener or an attempt is woken.
pub trait Signal: Send + Sync {
    /// The descriptor to poll. It is registered once, edge-triggered, for input and hang-up: an edge is due whenever an armed end
    /// may find something. Valid as long as the signal.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Whether the descriptor is registered for output too, because that is how room to write shows. Never changes.
    fn by_output(&self) -> bool {
        false
    }

    /// The descriptor was reported with the end of the stream, or an error: there is no further report of that, so it must be looked for
    /// behind whatever there is to read. Called before [`Signal::woken`].
    fn ended(&self) {}

    /// Takes out what made the descriptor ready (doorbells), and notes a peer that is gone. To be called after the descriptor was reported
    /// and before polling again. Does not block; from any thread.
    fn woken(&self);
}

/// What both kinds of ends have in common: how one waits for them.
pub trait Watched: Send {
    /// Announces that there is no further poll until the signal is reported. True: something is there; do not sleep.
    fn arm(&mut self) -> bool;

    /// Whether a poll is a read of memory, so that spinning is worth it. Never changes.
    fn cheap(&self) -> bool {
        false
    }

    /// How long polling is not worth it from now on, because an answer cannot be there yet and every poll would hold up the peer that
    /// writes it. Asked once before each wait.
    fn patience_ns(&mut self) -> u64 {
        0
    }

    /// What is known of where the peer runs.
    fn peer(&self) -> Peer {
        Peer::Unknown
    }

    /// From now on the peer's system is asked now and then whether it is there, also while nothing is sent.
    fn ask_after(&mut self) {}

    /// For how many seconds nothing has come from the peer's system, though it was asked again and again; 0 where that is not known.
    fn unanswered_s(&self) -> u64 {
        0
    }
}

/// What a read gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// That many bytes, at least one, unless the buffer was empty.
    Bytes(usize),
    /// Nothing now.
    WouldBlock,
    /// The peer closed and everything was read. Stays so.
    End,
}

/// What a write gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrote {
    /// That many bytes were taken, at least one, unless there was none.
    Bytes(usize),
    /// No room now.
    WouldBlock,
}

/// The reading end of a stream of bytes.
pub trait ByteRx: Watched {
    /// Copies what is there into `buf`, up to its length. Does not block. The buffer is the caller's before and after. Everything the peer
    /// sent is read before the end of the stream or an error is returned.
    fn read(&mut self, buf: &mut [u8]) -> Result<Read, ReadError>;
}

/// What is called, on any thread that runs the engine or uses the other end, when what was waited for has come. It does not block.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The writing end of a stream of bytes.
pub trait ByteTx: Watched {
    /// Takes bytes from the front of `bufs`, as many as there is room for. Does not block. The buffers are the caller's again when it
    /// returns. A count means that the bytes were taken, not that the peer has them.
    fn write(&mut self, bufs: &[IoSlice<'_>]) -> Result<Wrote, WriteError>;

    /// Nothing more will be written, and nothing read. Whether this end can be dropped now without losing what was written; if not, `then`
    /// is called when it can. Does not block.
    fn finish(&mut self, _then: &Waker) -> bool {
        true
    }

    /// Whether [`ByteTx::finish`] may ever say no. Never changes.
    fn lingers(&self) -> bool {
        false
    }
}

/// What a packet driver has.
#[derive(PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// The packet in front, lent by the driver until [`PacketRx::release`]; possibly empty.
    Bytes(&'a [u8]),
    /// None now.
    WouldBlock,
    /// The peer closed and every packet was released. Stays so.
    End,
}

/// The reading end of a sequence of packets.
pub trait PacketRx: Watched {
    /// The packet in front: the same one until it is released. Does not block. The bytes stay the driver's.
    fn packet(&mut self) -> Result<Packet<'_>, ReadError>;

    /// Gives the packet in front back to the driver; without one nothing happens.
    fn release(&mut self);
}

/// The writing end of a sequence of packets.
pub trait PacketTx: Watched {
    /// Sends one packet made of the pieces: all of it or nothing ([`Wrote::WouldBlock`]). Does not block. The buffers are the
    /// caller's again when it returns. A packet above [`PacketTx::max`] is [`WriteError::TooLong`].
    fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<Wrote, WriteError>;

    /// The longest packet. Never changes.
    fn max(&self) -> usize;
}
