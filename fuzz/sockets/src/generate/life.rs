//! Moves about threads, processes and signals, and descriptors on their way between processes.

use super::build::Build;
use super::model::{End, Life};
use crate::op::{ActorId, ExitHow, Handler, Op, Opt, Slot};
use crate::program::Kind;
use crate::via::{CloseVia, ForkVia, StormVia};

/// The setting on a connection before a process closes it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    TimeOut,
    NonBlocking,
    Option(Opt, i32),
}

/// Long, so that a slow machine does not end a call of the following exchange.
const TIME_OUT: (Opt, i32) = (Opt::RcvTimeo, 150);

impl Build {
    /// One more thread.
    pub(super) fn thread(&mut self) -> Option<()> {
        if self.program.actors.len() > 16 {
            return None;
        }
        let by = self.anybody()?;
        let process = self.process_of(by);
        let threads = self.program.actors.iter().filter(|actor| actor.process == process).count();
        if threads >= 4 {
            return None;
        }
        let actor = self.actor(process, false);
        self.step(by, Op::Thread { actor });
        Some(())
    }

    fn may_multiply(&self) -> bool {
        self.program.processes.len() < 8 && self.program.actors.len() < 24 && self.alive().len() < 5
    }

    /// A child of a process, with the same descriptors.
    fn child_of(&mut self, by: ActorId) -> (u8, ActorId) {
        let parent = self.process_of(by) as usize;
        let role = self.program.processes[parent].role;
        let slots = self.model.processes[parent].slots.clone();
        let files: Vec<Slot> = self.model.files.iter().map(|file| file.0).collect();
        let slots = slots.into_iter().filter(|slot| !files.contains(slot)).collect();
        self.process(role, false, slots)
    }

    /// fork(2); often one of the two processes closes a connection then.
    pub(super) fn fork(&mut self) -> Option<()> {
        if !self.may_multiply() {
            return None;
        }
        let by = self.anybody()?;
        let (child, actor) = self.child_of(by);
        let via = self.rng.weighted(&[(8, ForkVia::Fork), (1, ForkVia::UnderscoreFork), (1, ForkVia::Syscall)]);
        self.step(by, Op::Fork { actor, via });
        self.part(by, child, actor);
        Some(())
    }

    /// One of two processes that share descriptors closes some.
    fn part(&mut self, by: ActorId, child: u8, actor: ActorId) {
        let (who, process) = match self.rng.below(10) {
            0..4 => (by, self.process_of(by)),
            4..7 => (actor, child),
            _ => return,
        };
        let ends = |build: &Self| {
            let held = build.model.processes[child as usize].slots.clone();
            held.into_iter()
                .filter(|slot| matches!(build.program.slots[*slot as usize], Kind::End(..)))
                .collect::<Vec<_>>()
        };
        let stays = if who == by { actor } else { by };
        for slot in ends(self) {
            if self.rng.percent(70) {
                let changed = self.rng.percent(25).then(|| self.leave_set(who, slot)).flatten();
                self.step(who, Op::Close { slot, via: CloseVia::Close });
                self.lost(process, slot);
                if let Some(left) = changed {
                    let _ = self.live_with(left, stays, slot);
                }
            }
        }
    }

    /// A process that is about to close a connection sets an option of it first.
    fn leave_set(&mut self, who: ActorId, slot: Slot) -> Option<Left> {
        let (conn, side) = self.program.end(slot)?;
        let left = self.rng.pick(&[
            Left::TimeOut,
            Left::NonBlocking,
            Left::Option(Opt::Linger, 0),
            Left::Option(Opt::OobInline, 1),
        ]);
        let set = |(option, value)| Op::SetOption { slot, option, value };
        let op = match left {
            Left::NonBlocking => Op::NonBlocking { slot, on: true },
            Left::TimeOut => set(TIME_OUT),
            Left::Option(option, value) => set((option, value)),
        };
        self.end_mut(conn, side).nonblock |= left == Left::NonBlocking;
        self.step(who, op);
        Some(left)
    }

    /// The other one goes on with it: enough for a ring of its own.
    fn live_with(&mut self, left: Left, who: ActorId, slot: Slot) -> Option<()> {
        let (conn, side) = self.program.end(slot)?;
        self.exchange_by(who, slot)?;
        let is_empty = |end: &End| end.unread == 0 && !end.vague;
        if matches!(left, Left::TimeOut | Left::NonBlocking) && is_empty(self.end(conn, side)) {
            self.recv_from(who, slot, conn, side)?;
        }
        if left == Left::TimeOut {
            self.step(who, Op::SetOption { slot, option: TIME_OUT.0, value: 0 });
        }
        Some(())
    }

    /// A child that does nothing with the sockets.
    pub(super) fn child(&mut self) -> Option<()> {
        let by = self.anybody()?;
        let via = self.rng.pick(StormVia::ALL);
        self.step(by, Op::Child { via });
        Some(())
    }

    /// A process goes on as a new image.
    pub(super) fn exec(&mut self) -> Option<()> {
        let by = self.anybody()?;
        let process = self.process_of(by);
        if self.program.main_of(process) != Some(by) {
            return None;
        }
        let plain = self.rng.percent(30);
        self.step(by, Op::Exec { plain });
        for (at, actor) in self.program.actors.iter().enumerate() {
            if actor.process == process && at != by as usize {
                self.model.actors[at] = Life::Gone;
            }
        }
        let files: Vec<Slot> = self.model.files.iter().map(|file| file.0).collect();
        for file in files {
            if self.model.processes[process as usize].slots.contains(&file) {
                self.model.files.retain(|known| known.0 != file);
                self.model.processes[process as usize].slots.retain(|held| *held != file);
            }
        }
        Some(())
    }

    /// A child with a new image.
    pub(super) fn spawn(&mut self) -> Option<()> {
        if !self.may_multiply() {
            return None;
        }
        let by = self.anybody()?;
        let (child, actor) = self.child_of(by);
        let (plain, fork) = (self.rng.percent(30), self.rng.percent(50));
        self.step(by, Op::Spawn { actor, plain, fork });
        self.part(by, child, actor);
        Some(())
    }

    /// A process ends by itself; a parent may wait for it.
    pub(super) fn exit(&mut self) -> Option<()> {
        let alive = self.alive();
        if alive.len() < 2 {
            return None;
        }
        let process = self.rng.pick(&alive);
        let actor = self.somebody(process)?;
        let how = self.rng.weighted(&[
            (5, ExitHow::Exit),
            (4, ExitHow::UnderscoreExit),
            (1, ExitHow::Quick),
            (1, ExitHow::Abort),
        ]);
        self.step(actor, Op::Exit { how });
        self.died(process);
        self.wait_for(process)
    }

    /// A parent waits for a child that has ended.
    fn wait_for(&mut self, process: u8) -> Option<()> {
        let main = self.program.main_of(process)?;
        let begun = |op: &Op| op.starts() == Some(main);
        let by = self.program.steps.iter().find(|step| begun(&step.op))?.actor;
        let waiter = self.somebody(self.process_of(by))?;
        if self.rng.percent(60) {
            self.step(waiter, Op::WaitChild { actor: main });
        }
        Some(())
    }

    /// A process is killed.
    pub(super) fn kill(&mut self) -> Option<()> {
        let alive = self.alive();
        if alive.len() < 2 {
            return None;
        }
        let process = self.rng.pick(&alive);
        let actor = self.program.main_of(process)?;
        let signal = self.rng.weighted(&[(7, libc::SIGKILL), (3, libc::SIGTERM), (1, libc::SIGSEGV)]);
        // Others wait until it goes on.
        let signal = if self.model.processes[process as usize].stopped { libc::SIGKILL } else { signal };
        self.step(0, Op::Kill { actor, signal });
        self.died(process);
        self.wait_for(process)
    }

    /// A process is stopped, or goes on.
    pub(super) fn stop(&mut self) -> Option<()> {
        let alive = self.alive();
        let stopped = alive.iter().copied().find(|process| self.model.processes[*process as usize].stopped);
        if let Some(process) = stopped {
            let actor = self.program.main_of(process)?;
            self.step(0, Op::Continue { actor });
            self.model.processes[process as usize].stopped = false;
            return Some(());
        }
        if alive.len() < 2 {
            return None;
        }
        let process = self.rng.pick(&alive);
        let actor = self.program.main_of(process)?;
        self.step(0, Op::Stop { actor });
        self.model.processes[process as usize].stopped = true;
        Some(())
    }

    fn sleeper(&mut self) -> Option<ActorId> {
        let all = self.model.actors.iter().enumerate();
        let asleep: Vec<ActorId> =
            all.filter(|(_, life)| matches!(life, Life::Asleep(..))).map(|(at, _)| at as ActorId).collect();
        if asleep.is_empty() { None } else { Some(self.rng.pick(&asleep)) }
    }

    /// A thread that sleeps is signalled.
    pub(super) fn signal(&mut self) -> Option<()> {
        let Some(actor) = self.sleeper() else { return self.recv() };
        let restart = self.rng.percent(60);
        self.step(0, Op::Signal { actor, restart });
        if !restart {
            self.model.actors[actor as usize] = Life::Free;
        }
        Some(())
    }

    /// What the handler of SIGUSR1 does.
    pub(super) fn handle(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.any_end()?;
        if self.end(conn, side).tiny || self.end(conn, side).vague {
            return None;
        }
        let len = self.rng.within(1, 900) as u16;
        let handler = match self.rng.below(5) {
            0..3 => {
                self.end_mut(conn, 1 - side).mixed = true;
                Handler::Send(slot, len)
            }
            3 => Handler::Receive(slot, len),
            _ => Handler::Count,
        };
        self.step(actor, Op::Handle(handler));
        Some(())
    }

    /// A receive that a timer interrupts.
    pub(super) fn timed(&mut self) -> Option<()> {
        let (actor, slot, conn, side) = self.any_end()?;
        if self.program.main_of(self.process_of(actor)) != Some(actor)
            || self.end(conn, side).reads_file
            || self.end(conn, side).jammed
        {
            return None;
        }
        let (len, us) = (self.rng.within(1, 2000) as u32, self.rng.within(500, 3000) as u32);
        self.step(actor, Op::Timed { slot, len, us });
        let end = self.end_mut(conn, side);
        end.unread -= end.unread.min(u64::from(len));
        Some(())
    }

    /// A thread that sleeps is cancelled.
    pub(super) fn cancel(&mut self) -> Option<()> {
        let Some(actor) = self.sleeper() else { return self.recv() };
        let process = self.process_of(actor);
        if self.program.actors[actor as usize].main {
            return None;
        }
        let by = self.somebody(process)?;
        self.step(by, Op::Cancel { actor });
        self.model.actors[actor as usize] = Life::Gone;
        Some(())
    }

    /// A descriptor is passed to another process, which goes on with it.
    pub(super) fn pass(&mut self) -> Option<()> {
        if self.model.unix.is_empty() {
            return self.unix();
        }
        let (near, far) = self.rng.pick(&self.model.unix.clone());
        let (through, out) = if self.rng.percent(50) { (near, far) } else { (far, near) };
        let holder = |build: &Self, slot: Slot| {
            build.alive().into_iter().find(|process| build.model.processes[*process as usize].slots.contains(&slot))
        };
        let (from, to) = (holder(self, through)?, holder(self, out)?);
        let (sender, taker) = (self.somebody(from)?, self.somebody(to)?);
        let fit = |slot: &&Slot| matches!(self.program.slots[**slot as usize], Kind::End(..));
        let ends: Vec<Slot> = self.model.processes[from as usize].slots.iter().filter(fit).copied().collect();
        let slot = if ends.is_empty() { return None } else { self.rng.pick(&ends) };
        let (conn, side) = self.program.end(slot)?;
        if self.end(conn, side).reads_file || self.end(conn, side).writes_file {
            return None;
        }
        let new = self.slot(Kind::End(conn, side));
        self.step(sender, Op::Pass { through, slot });
        let early = self.rng.percent(40);
        if early {
            self.step(sender, Op::Close { slot, via: CloseVia::Close });
        }
        self.step(taker, Op::Take { through: out, slot: new });
        self.gained(to, new);
        if early {
            self.lost(from, slot);
        } else if self.rng.percent(50) {
            self.step(sender, Op::Close { slot, via: CloseVia::Close });
            self.lost(from, slot);
        }
        Some(())
    }

    /// A Unix connection between two processes, or within one.
    fn unix(&mut self) -> Option<()> {
        let (one, other) = (self.anybody()?, self.anybody()?);
        let (near, far) = (self.slot(Kind::Unix), self.slot(Kind::Unix));
        if self.process_of(one) == self.process_of(other) {
            self.step(one, Op::UnixPair { slot: near, other: far });
        } else {
            let listener = self.slot(Kind::Unix);
            self.step(one, Op::UnixListen { slot: listener });
            self.step(other, Op::UnixConnect { slot: far, to: listener });
            self.step(one, Op::UnixAccept { slot: near, from: listener });
            self.gained(self.process_of(one), listener);
        }
        self.gained(self.process_of(one), near);
        self.gained(self.process_of(other), far);
        self.model.unix.push((near, far));
        Some(())
    }
}
