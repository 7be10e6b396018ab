//! Waits until an actor is done, or sleeps, or has ended, and until what was sent has arrived.

use core::sync::atomic::Ordering;

use super::{Phase, SOON_NS, Sequence, Step};
use crate::op::{ActorId, Op};
use crate::raw;
use crate::run::{Fate, Trouble, tasks};

/// After so long a wait a thread's state is read.
const STATE_NS: u64 = 80_000;
/// A plain thread that sleeps in two reads so far apart sleeps in its call.
const ASLEEP_NS: u64 = 30_000;
/// A wrapped one polls for longer before it sleeps.
const ASLEEP_WRAPPED_NS: u64 = 600_000;
/// A plain run in which all have been asleep for so long will not go on: nothing in a program takes longer,
const STILL_NS: u64 = 400_000_000;
/// but a linger of a second.
const LINGER_NS: u64 = 1_300_000_000;
/// How often that is checked.
const CHECK_NS: u64 = 20_000_000;

impl Sequence<'_, '_> {
    /// Waits until an actor has done something. `sleepy`: until then, or until it sleeps. True when done.
    pub(super) fn await_done(
        &mut self,
        actor: ActorId,
        command: u32,
        sleepy: bool,
        step: usize,
    ) -> Result<bool, Trouble> {
        let begin = raw::now();
        let (mut asleep_since, mut still_since) = (0, begin);
        let (mut spins, mut last, mut waited, mut checked) = (0, begin, 0, begin);
        loop {
            let bell = self.bench.map.bell.load(Ordering::SeqCst);
            if self.cell(actor).done.load(Ordering::SeqCst) == command {
                return Ok(true);
            }
            spins += 1;
            if !self.program.one_cpu && spins < 200 {
                core::hint::spin_loop();
                continue;
            }
            let now = raw::now();
            // A machine that stood still meanwhile must not count.
            waited += (now - last).min(10_000_000);
            last = now;
            if sleepy && now - begin > STATE_NS && self.is_asleep(actor, now, &mut asleep_since) {
                return Ok(false);
            }
            if waited > 20_000_000 && self.is_gone(actor) {
                return Err(Trouble::Died { step, process: self.program.actors[actor as usize].process });
            }
            if waited > self.patience() || tasks::stopped() {
                return Err(self.stuck(step));
            }
            if self.plain.is_none() && waited > STILL_NS / 4 && now - checked > CHECK_NS {
                checked = now;
                if self.is_still(now, &mut still_since) {
                    return Err(self.stuck(step));
                }
            }
            let ns = if sleepy { STATE_NS } else { 5_000_000 };
            raw::futex_wait(&self.bench.map.bell, bell, ns);
        }
    }

    /// As [`Self::await_done`], but without the time that a call needs to fall asleep: it sleeps already.
    pub(super) fn await_done_or_still(
        &mut self,
        actor: ActorId,
        blocked: usize,
        sleepy: bool,
    ) -> Result<bool, Trouble> {
        let command = blocked as u32 + 1;
        if sleepy && self.cell(actor).done.load(Ordering::SeqCst) != command {
            let state = self.state(actor);
            if matches!(state, b'S' | b'T') && self.cell(actor).done.load(Ordering::SeqCst) != command {
                return Ok(false);
            }
        }
        self.await_done(actor, command, sleepy, blocked)
    }

    /// Waits until an actor waits for steps.
    pub(super) fn await_begin(&mut self, actor: ActorId, step: usize) -> Step {
        self.crew.await_begin(self.bench, self.program, actor, step)?;
        self.phases[actor as usize] = Phase::Idle;
        Ok(())
    }

    /// Waits until the process of an actor has ended.
    pub(super) fn await_death(&mut self, actor: ActorId, step: usize) -> Step {
        let ms = (self.patience() / 1_000_000) as i32;
        if !tasks::await_end(self.process_of(actor), ms) {
            return Err(self.stuck(step));
        }
        self.bury(self.program.actors[actor as usize].process, None);
        self.entries[step].fate = Fate::Done(step);
        Ok(())
    }

    /// Waits until what a step sent has arrived.
    pub(super) fn settle(&mut self, step: usize) {
        let op = &self.program.steps[step].op;
        let ends: Vec<_> = op.slots().iter().filter_map(|slot| self.program.end(*slot)).collect();
        for (conn, ports) in self.bench.map.conns.iter().enumerate() {
            if op.touches_all() || ends.iter().any(|end| end.0 as usize == conn) {
                let quiet = self.bench.quiet.wait(ports, false);
                if quiet && matches!(op, Op::Shutdown { .. }) && self.program.has_edges() {
                    // That the peer's kernel has acknowledged the FIN, 40 ms later perhaps, is an edge.
                    self.bench.quiet.wait(ports, true);
                }
                if !quiet {
                    self.be_restless(step);
                }
            }
        }
    }

    /// The state of an actor's thread.
    fn state(&mut self, actor: ActorId) -> u8 {
        let cell = self.cell(actor);
        let (process, thread) = (cell.process.load(Ordering::SeqCst), cell.thread.load(Ordering::SeqCst));
        self.eyes[actor as usize].state(process, thread)
    }

    /// Whether a thread has been asleep for long enough.
    fn is_asleep(&mut self, actor: ActorId, now: u64, since: &mut u64) -> bool {
        let state = self.state(actor);
        if !matches!(state, b'S' | b'T') {
            *since = 0;
            return false;
        }
        if *since == 0 {
            *since = now;
        }
        now - *since >= if self.plain.is_some() { ASLEEP_WRAPPED_NS } else { ASLEEP_NS }
    }

    /// Whether every thread of every process has been asleep for long.
    fn is_still(&self, now: u64, since: &mut u64) -> bool {
        let awake = (0..self.phases.len() as ActorId)
            .map(|actor| self.process_of(actor))
            .any(|process| process != 0 && tasks::lives(process) && tasks::is_awake(process));
        if awake {
            *since = now;
        }
        now - *since > if self.lingers { LINGER_NS } else { STILL_NS }
    }

    fn is_gone(&mut self, actor: ActorId) -> bool {
        let process = self.program.actors[actor as usize].process;
        self.crew.ended(process) || !tasks::lives(self.process_of(actor))
    }

    pub(super) fn patience(&self) -> u64 {
        if self.plain.is_some() { (self.bench.place.patience * 1e9) as u64 } else { SOON_NS }
    }

    pub(super) fn stuck(&self, step: usize) -> Trouble {
        let mut seen = Vec::new();
        let mut threads = String::new();
        for actor in 0..self.phases.len() {
            let process = self.process_of(actor as ActorId);
            if process != 0 && !seen.contains(&process) {
                seen.push(process);
                threads += &tasks::describe(process);
            }
        }
        Trouble::Stuck { step, threads }
    }
}
