//! What the generator knows of its program: who is there, who has which descriptor, what is unread.

use super::Build;
use crate::op::{ActorId, Slot};
use crate::program::{Kind, Role};

/// Most bytes that are left unread in a direction: a plain socket takes them all at once, whatever the kernel's tuning.
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
    /// A FILE reads, or writes, beside which nobody else should.
    pub(super) reads_file: bool,
    pub(super) writes_file: bool,
    /// How much came is not known any more.
    pub(super) vague: bool,
    /// Its sends have a time-out.
    pub(super) impatient: bool,
    /// A call sleeps for room: nobody may read.
    pub(super) jammed: bool,
    /// A receive slept, and so its low-water mark was never taken back: whoever waits for less may sleep for ever, or not.
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
    pub(super) listeners: Vec<(Slot, bool, crate::op::Family)>,
    /// FILEs: slot, whether it reads, whether it writes.
    pub(super) files: Vec<(Slot, bool, bool)>,
    /// Unix sockets that are connected: pairs of slots.
    pub(super) unix: Vec<(Slot, Slot)>,
    pub(super) next_data: u64,
}

impl Build {
    /// A new process; its first thread is there, too.
    pub(super) fn process(&mut self, role: Role, initial: bool, slots: Vec<Slot>) -> (u8, ActorId) {
        let process = self.program.processes.len() as u8;
        self.program.processes.push(crate::program::Process { role, initial });
        self.model.processes.push(Holder { alive: true, stopped: false, slots });
        (process, self.actor(process, true))
    }

    /// A new actor.
    pub(super) fn actor(&mut self, process: u8, main: bool) -> ActorId {
        self.program.actors.push(crate::program::Actor { process, main });
        self.model.actors.push(Life::Free);
        (self.program.actors.len() - 1) as ActorId
    }

    /// The process of an actor.
    pub(super) fn process_of(&self, actor: ActorId) -> u8 {
        self.program.actors[actor as usize].process
    }

    /// Actors of a process that wait for a step.
    pub(super) fn free_actors(&self, process: u8) -> Vec<ActorId> {
        let holder = &self.model.processes[process as usize];
        if !holder.alive || holder.stopped {
            return Vec::new();
        }
        let all = self.program.actors.iter().enumerate();
        let free = all.filter(|(at, actor)| actor.process == process && self.model.actors[*at] == Life::Free);
        free.map(|(at, _)| at as ActorId).collect()
    }

    /// Processes that have an actor for a step.
    pub(super) fn ready_processes(&self) -> Vec<u8> {
        (0..self.program.processes.len() as u8).filter(|process| !self.free_actors(*process).is_empty()).collect()
    }

    /// An actor that waits for a step.
    pub(super) fn anybody(&mut self) -> Option<ActorId> {
        let processes = self.ready_processes();
        if processes.is_empty() {
            return None;
        }
        let process = self.rng.pick(&processes);
        self.somebody(process)
    }

    /// An actor of this process that waits for a step.
    pub(super) fn somebody(&mut self, process: u8) -> Option<ActorId> {
        let free = self.free_actors(process);
        if free.is_empty() { None } else { Some(self.rng.pick(&free)) }
    }

    /// Open slots that are ends of connections, with somebody who can use them.
    pub(super) fn open_ends(&self) -> Vec<(u8, Slot)> {
        let ready = self.ready_processes();
        let slots = ready.iter().flat_map(|process| {
            let held = &self.model.processes[*process as usize].slots;
            held.iter().map(|slot| (*process, *slot))
        });
        slots.filter(|(_, slot)| matches!(self.program.slots[*slot as usize], Kind::End(..))).collect()
    }

    /// An end to use: who uses it, the slot, connection and side.
    pub(super) fn any_end(&mut self) -> Option<(ActorId, Slot, u8, u8)> {
        let ends = self.open_ends();
        if ends.is_empty() {
            return None;
        }
        let (process, slot) = self.rng.pick(&ends);
        let (conn, side) = self.program.end(slot)?;
        Some((self.somebody(process)?, slot, conn, side))
    }

    /// An end, preferred if `wanted` says so.
    pub(super) fn end_where(&mut self, wanted: impl Fn(&End) -> bool) -> Option<(ActorId, Slot, u8, u8)> {
        let mut found = self.any_end()?;
        for _ in 0..4 {
            if wanted(self.end(found.2, found.3)) {
                break;
            }
            found = self.any_end()?;
        }
        Some(found)
    }

    /// Somebody at the given side of a connection other than `but`: actor and slot.
    pub(super) fn partner(&mut self, conn: u8, side: u8, but: ActorId) -> Option<(ActorId, Slot)> {
        let mut found = Vec::new();
        for (process, slot) in self.open_ends() {
            if self.program.end(slot) == Some((conn, side)) {
                found.extend(
                    self.free_actors(process).into_iter().filter(|actor| *actor != but).map(|actor| (actor, slot)),
                );
            }
        }
        if found.is_empty() { None } else { Some(self.rng.pick(&found)) }
    }

    /// What is known of an end.
    pub(super) fn end(&self, conn: u8, side: u8) -> &End {
        &self.model.ends[conn as usize][side as usize]
    }

    /// The same, to be changed.
    pub(super) fn end_mut(&mut self, conn: u8, side: u8) -> &mut End {
        &mut self.model.ends[conn as usize][side as usize]
    }

    /// Whether anybody still holds an end.
    pub(super) fn is_held(&self, conn: u8, side: u8) -> bool {
        self.model
            .processes
            .iter()
            .filter(|holder| holder.alive)
            .any(|holder| holder.slots.iter().any(|slot| self.program.end(*slot) == Some((conn, side))))
    }

    /// Bytes were sent by this end.
    pub(super) fn sent(&mut self, conn: u8, side: u8, n: u64) {
        let peer = self.end_mut(conn, 1 - side);
        peer.unread += n;
        if n > 0 {
            self.woken(conn, 1 - side);
        }
    }

    /// Something came for this end.
    pub(super) fn woken(&mut self, conn: u8, side: u8) {
        for life in &mut self.model.actors {
            if *life == Life::Asleep(conn, side) {
                *life = Life::Free;
            }
        }
    }

    /// Whoever held this end last has let it go.
    pub(super) fn released(&mut self, conn: u8, side: u8) {
        if self.is_held(conn, side) {
            return;
        }
        let unread = self.end(conn, side).unread > 0;
        let peer = self.end_mut(conn, 1 - side);
        peer.ended = true;
        peer.reset |= unread;
        self.woken(conn, 1 - side);
    }

    /// A process lost a slot.
    pub(super) fn lost(&mut self, process: u8, slot: Slot) {
        self.model.processes[process as usize].slots.retain(|held| *held != slot);
        if let Some((conn, side)) = self.program.end(slot) {
            self.released(conn, side);
        }
    }

    /// A process has a slot.
    pub(super) fn gained(&mut self, process: u8, slot: Slot) {
        self.model.processes[process as usize].slots.push(slot);
    }

    /// A process is gone.
    pub(super) fn died(&mut self, process: u8) {
        self.model.processes[process as usize].alive = false;
        for (at, actor) in self.program.actors.iter().enumerate() {
            if actor.process == process {
                self.model.actors[at] = Life::Gone;
            }
        }
        for slot in core::mem::take(&mut self.model.processes[process as usize].slots) {
            if let Some((conn, side)) = self.program.end(slot) {
                self.released(conn, side);
            }
        }
    }

    /// Processes that are there.
    pub(super) fn alive(&self) -> Vec<u8> {
        (0..self.model.processes.len() as u8).filter(|process| self.model.processes[*process as usize].alive).collect()
    }
}
