//! The generator's model of its program: processes and actors, their descriptors, unread bytes.

use crate::op::{Family, Slot};

/// The most bytes that are left unread in a direction: a plain socket takes them all at once with any tuning of the kernel.
pub(crate) const UNREAD: u64 = 24 << 10;

/// What an actor does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    /// It waits for a step.
    Free,
    /// It sleeps, likely until something comes for this end.
    Asleep(u8, u8),
    /// It is gone, or not there yet.
    Gone,
}

/// An end of a connection.
#[derive(Clone, Default, Debug)]
pub(super) struct End {
    /// Whether calls do not wait.
    pub(super) nonblock: bool,
    /// Bytes that have come and were not read.
    pub(super) unread: u64,
    /// Nothing more will come.
    pub(super) ended: bool,
    /// It will send nothing more.
    pub(super) shut: bool,
    /// Its buffers are too small for single calls.
    pub(super) tiny: bool,
    /// Its bytes are of several lanes.
    pub(super) mixed: bool,
    /// A FILE reads, or writes; no other call should beside it.
    pub(super) reads_file: bool,
    pub(super) writes_file: bool,
    /// How much came is not known any more.
    pub(super) vague: bool,
    /// Its sends have a time-out.
    pub(super) impatient: bool,
    /// A call sleeps for room: no actor may read.
    pub(super) jammed: bool,
    /// A receive slept, and so its low-water mark was not reset: a call that waits for less may sleep for ever, or not.
    pub(super) marked: bool,
    /// The kernel has made its buffers larger.
    pub(super) grown: bool,
    /// The connection was reset.
    pub(super) reset: bool,
}

/// A process.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    pub(super) alive: bool,
    pub(super) stopped: bool,
    pub(super) slots: Vec<Slot>,
}

/// A set and what is in it.
#[derive(Clone, Debug)]
pub(super) struct Set {
    pub(super) slot: Slot,
    pub(super) members: Vec<(Slot, u64)>,
}

/// What is known.
#[derive(Clone, Default, Debug)]
pub(super) struct Model {
    pub(super) ends: Vec<[End; 2]>,
    pub(super) processes: Vec<Holder>,
    pub(super) actors: Vec<Life>,
    pub(super) sets: Vec<Set>,
    /// Listeners: slot, whether it does not wait, which family.
    pub(super) listeners: Vec<(Slot, bool, Family)>,
    /// FILEs: slot, whether it reads, whether it writes.
    pub(super) files: Vec<(Slot, bool, bool)>,
    /// Unix sockets that are connected: pairs of slots.
    pub(super) unix: Vec<(Slot, Slot)>,
    pub(super) next_data: u64,
}
