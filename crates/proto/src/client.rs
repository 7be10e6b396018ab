//! What programs request of the daemon of their host on its Unix socket, and what it answers: the kinds of frames. A frame's head is its
//! kind; the bodies are described in `daemon/src/wire.rs`: a `Target` for `CONNECT`, a `ProgramTarget` for `ROUTE`.

/// A client wants its connection to become a stream to a host and port.
pub const CONNECT: u8 = 18;
/// A program wants its own socket, which comes along, connected; the answer has the ports on which it must wait.
pub const ROUTE: u8 = 21;
/// A program requests why its socket, of the cookie in the body, was not connected.
pub const VERDICT: u8 = 23;
/// A program wants to join a pool: behind the answer come the frames of `pools/src/wire.rs`.
pub const POOL: u8 = 25;
/// It was done; the body is the answer: of a connection, how it goes.
pub const DONE: u8 = 32;
/// It was not; the body has the reason.
pub const FAILED: u8 = 33;
