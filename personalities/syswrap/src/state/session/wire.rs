//! The operations a session needs from the kernel's socket. The program's socket implements them, and so does a model's, so that the same
//! code runs under a scheduler.

use madrigal_shm_ring::layout::Block;
use madrigal_sys::Errno;

/// What has become of a connection, as far as its socket knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Health {
    Open,
    /// The peer sends no more.
    Ended,
    /// Nothing passes either way any more.
    Closed,
    /// The same, and there is an error to report.
    Broken,
}

/// A connected stream socket, and what goes with it.
pub(crate) trait Wire: Copy {
    /// Keeps a send buffer large.
    type Wide;
    /// Bytes in its receive queue, doorbells among them.
    fn queued(self) -> Result<u64, Errno>;
    /// Bytes ever taken out of its receive queue.
    fn taken(self) -> Result<u64, Errno>;
    /// Bytes ever put into it by this end.
    fn given(self) -> Result<u64, Errno>;
    /// Takes up to `n` bytes out of the queue and forgets them. `Ok(0)`: end of stream. `EAGAIN`: there are none.
    fn discard(self, n: u64) -> Result<u64, Errno>;
    /// Whether there is a byte (true) or the end of the stream. `EAGAIN`: neither.
    fn peek(self) -> Result<bool, Errno>;
    /// What has become of the connection. Takes nothing.
    fn health(self) -> Health;
    /// Whether the peer's end has come, or the connection is closed. What this end has shut does not matter.
    fn has_fin(self) -> bool;
    /// Whether an urgent byte is in its queue, which counts as none of [`Wire::queued`].
    fn has_urgent(self) -> bool;
    /// Whether urgent bytes stay in the stream (`SO_OOBINLINE`).
    fn keeps_urgent(self) -> bool;
    /// Takes the socket's error, which is reported once.
    fn take_error(self) -> Option<Errno>;
    /// Runs a part that no signal handler gets into.
    fn undisturbed<T>(self, part: impl FnOnce() -> T) -> T;
    /// Sends one byte without waiting. `EAGAIN`: there is no room.
    fn bell(self) -> Result<(), Errno>;
    /// The same, held back by the kernel for as long as it holds anything back, or until [`Wire::hurry`] or another send.
    fn bell_late(self) -> Result<(), Errno>;
    /// How many bytes a segment has.
    fn segment(self) -> u32;
    /// Sends bytes without waiting; how many.
    fn send(self, bytes: &[u8]) -> Result<usize, Errno>;
    /// Whether it surely takes `n` bytes without waiting.
    fn room_for(self, n: u64) -> bool;
    /// Makes such room, as far as that can be, until what is returned is dropped.
    fn widen(self, n: u64) -> Self::Wide;
    /// Makes the kernel send the peer a reset when the socket is closed.
    fn resets(self);
    /// Ends the connection at once, by a reset, and forgets what its queues hold.
    fn cut_off(self);
    /// Sends small segments without delay, also those already waiting.
    fn hurry(self);
    /// Holds back segments that are not full (`TCP_CORK`).
    fn cork(self);
    /// Whether a block of the shared memory is lent to that direction of this session.
    fn is_lent(self, block: Block, dir: usize) -> bool;
    /// Whether the peer's process lives. Slow.
    fn peer_lives(self) -> bool;
    /// This process's number, and whether the process with that number lives. Slow.
    fn own_pid(self) -> u32;
    fn lives(self, pid: u32) -> bool;
    /// Whether the peer's event set with that number sleeps ([`Sleeper::Set`](madrigal_shm_ring::ring::Sleeper)).
    fn sleeps(self, set: u32) -> bool;
    /// The same, and clears that mark: the caller rings, for all of the set's connections.
    fn wakes(self, set: u32) -> bool;
    /// Nanoseconds of a clock.
    fn now(self) -> u64;
    /// A clock that is cheap to read, for it stands still between the kernel's ticks.
    fn tick(self) -> u64;
    /// Lets a short time pass.
    fn pause(self);
    /// The processor this thread is on, plus one.
    fn cpu(self) -> u32;
    /// What this end sends travels in the ring from now on. Under the send lock.
    fn switched(self);
    /// The peer wrote impossible values.
    fn spoilt(self);
}
