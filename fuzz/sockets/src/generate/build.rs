//! A program being made, with the model of its state: the actors that can do a step next, and what the step changes.

use super::model::{End, Holder, Life, Model};
use crate::op::{ActorId, Op, Slot};
use crate::program::{Actor, Kind, Process, Program, Role, Step};
use crate::rng::Rng;

/// A program being made.
pub(super) struct Build {
    pub(super) rng: Rng,
    pub(super) program: Program,
    pub(super) model: Model,
}

impl Build {
    /// A new process; its first thread is there, too.
    pub(super) fn process(&mut self, role: Role, initial: bool, slots: Vec<Slot>) -> (u8, ActorId) {
        let process = self.program.processes.len() as u8;
        self.program.processes.push(Process { role, initial });
        self.model.processes.push(Holder { alive: true, stopped: false, slots });
        (process, self.actor(process, true))
    }

    /// A new actor.
    pub(super) fn actor(&mut self, process: u8, main: bool) -> ActorId {
        self.program.actors.push(Actor { process, main });
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

    /// Open slots that are ends of connections, each with an actor that can use it.
    pub(super) fn open_ends(&self) -> Vec<(u8, Slot)> {
        let ready = self.ready_processes();
        let slots = ready.iter().flat_map(|process| {
            let held = &self.model.processes[*process as usize].slots;
            held.iter().map(|slot| (*process, *slot))
        });
        slots.filter(|(_, slot)| matches!(self.program.slots[*slot as usize], Kind::End(..))).collect()
    }

    /// An end to use: the actor, the slot, the connection and the side.
    pub(super) fn any_end(&mut self) -> Option<(ActorId, Slot, u8, u8)> {
        let ends = self.open_ends();
        if ends.is_empty() {
            return None;
        }
        let (process, slot) = self.rng.pick(&ends);
        let (conn, side) = self.program.end(slot)?;
        Some((self.somebody(process)?, slot, conn, side))
    }

    /// An end, preferably one for which `wanted` is true.
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

    /// An actor other than `but` at the given side of a connection, and its slot.
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

    /// Whether a process still holds an end.
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

    /// The last process that held this end has closed it.
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

    /// Adds a step.
    pub(super) fn step(&mut self, actor: ActorId, op: Op) {
        self.program.steps.push(Step { actor, op, together: false, held: false });
    }

    /// Adds steps that are made at the same time.
    pub(super) fn together(&mut self, steps: Vec<(ActorId, Op)>) {
        let last = steps.len() - 1;
        for (at, (actor, op)) in steps.into_iter().enumerate() {
            self.program.steps.push(Step { actor, op, together: at < last, held: false });
        }
    }

    /// A new slot.
    pub(super) fn slot(&mut self, kind: Kind) -> Slot {
        self.program.slots.push(kind);
        (self.program.slots.len() - 1) as Slot
    }
}
