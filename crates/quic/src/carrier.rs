//! What loss-tolerant messages need of a connection.

/// A connection with datagrams, and one reliable stream each way, the control stream.
pub trait Carrier {
    /// The longest datagram it takes now. `None`: it takes none yet.
    fn longest(&mut self) -> Option<usize>;

    /// The time of what follows.
    fn set_time(&mut self, now: u64);

    /// When it takes the next datagram, if it is a matter of time alone; else `u64::MAX`.
    fn ready_at(&self) -> u64;

    /// Takes a datagram, to be sent as soon as congestion control lets it; gives it back: not now. Few wait: what waits cannot be taken
    /// back. One that is too long by now is taken, and lost.
    fn send(&mut self, datagram: Vec<u8>) -> Result<(), Vec<u8>>;

    /// A datagram that came.
    fn receive(&mut self) -> Option<Vec<u8>>;

    /// Takes bytes of the control stream; how many.
    fn write(&mut self, bytes: &[u8]) -> usize;

    /// Adds what came by the control stream.
    fn read(&mut self, out: &mut Vec<u8>);

    /// Nanoseconds that a datagram and its answer take.
    fn round_trip(&self) -> u64;
}
