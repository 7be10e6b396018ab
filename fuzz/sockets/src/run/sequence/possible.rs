//! Which steps can be made: the actor is free, and so are the streams and slots that it needs.

use super::{Phase, Sequence};
use crate::op::{ActorId, Op};
use crate::program::Need;

impl Sequence<'_, '_> {
    /// Whether a step can be made: its actor is free, and so are the streams and slots that it needs.
    pub(super) fn is_runnable(&self, step: usize) -> bool {
        let what = &self.program.steps[step];
        if what.op.is_sequencers() {
            return self.is_possible(&what.op);
        }
        let actor = &self.program.actors[what.actor as usize];
        if self.phases[what.actor as usize] != Phase::Idle || self.stopped[actor.process as usize] {
            return false;
        }
        if let Op::Cancel { actor } = what.op {
            let Phase::Blocked(step) = self.phases[actor as usize] else { return false };
            return self.program.steps[step].op.can_be_cancelled();
        }
        if let Op::WaitChild { actor } = what.op {
            return self.phases[actor as usize] == Phase::Dead;
        }
        if what.op.starts().is_some_and(|actor| self.phases[actor as usize] != Phase::Absent) {
            return false;
        }
        let needs = self.program.needs(&what.op);
        self.blocked().all(|(other, blocked)| {
            let held = self.program.needs(&self.program.steps[blocked].op);
            // Every wake-up ends a receive of no bytes: a change of an option, and the end of the other direction, too.
            let nothing = matches!(&self.program.steps[blocked].op, Op::Recv(data) if data.len == 0);
            if nothing && matches!(what.op, Op::SetOption { .. } | Op::Shutdown { how: libc::SHUT_WR, .. }) {
                return false;
            }
            let disturbs = what.op.blocks_signals() && self.same_process(what.actor, other);
            !(disturbs || clash(&held, &needs, &what.op) || self.pulls_away(what.actor, &what.op, other, blocked))
        })
    }

    /// Whether a step closes, in the same process, what a blocked one uses.
    fn pulls_away(&self, actor: ActorId, op: &Op, other: ActorId, blocked: usize) -> bool {
        let (Op::Close { slot, .. }
        | Op::DupOver { over: slot, .. }
        | Op::FileClose { file: slot }
        | Op::Fdopen { slot, .. }) = op
        else {
            return false;
        };
        self.same_process(actor, other) && self.program.steps[blocked].op.slots().contains(slot)
    }

    /// Whether the result of a step is random: the receiving direction is shut while a send sleeps for room in it, or has left bytes that
    /// wait for room. Further bytes are answered with a reset, which ends the send; but none may come, since the window may have no room
    /// for one more byte.
    pub(super) fn is_left_to_chance(&self, step: usize) -> bool {
        let Op::Shutdown { slot, how: libc::SHUT_RD | libc::SHUT_RDWR } = self.program.steps[step].op else {
            return false;
        };
        let conns = &self.bench.map.conns;
        let held = |end: (u8, u8)| conns.get(usize::from(end.0)).is_some_and(|ports| self.bench.quiet.is_held(ports));
        if self.program.end(slot).is_some_and(held) {
            return true;
        }
        let fills = Need::Produce(self.program.incoming(slot));
        self.blocked().any(|(_, blocked)| self.program.needs(&self.program.steps[blocked].op).contains(&fills))
    }

    fn is_possible(&self, op: &Op) -> bool {
        let lives = |actor: ActorId| {
            let process = self.program.actors[actor as usize].process;
            self.program
                .main_of(process)
                .is_some_and(|main| !matches!(self.phases[main as usize], Phase::Absent | Phase::Dead))
        };
        match *op {
            Op::Kill { actor, .. } => lives(actor),
            Op::Stop { actor } => {
                let process = self.program.actors[actor as usize].process;
                lives(actor) && !self.stopped[process as usize] && !self.is_amid_transfer(process)
            }
            Op::Continue { actor } => {
                lives(actor) && self.stopped[self.program.actors[actor as usize].process as usize]
            }
            Op::Signal { actor, .. } => {
                let process = self.program.actors[actor as usize].process;
                matches!(self.phases[actor as usize], Phase::Blocked(_)) && !self.stopped[process as usize]
            }
            _ => true,
        }
    }

    /// Whether a process sleeps behind a part of a transfer: the kernel ends that short when the process is stopped and goes on, with no
    /// handler that could be seen; ours sends the rest ([`crate::rules`]).
    fn is_amid_transfer(&self, process: u8) -> bool {
        self.blocked().any(|(actor, step)| {
            let whole = |op: &Op| matches!(op, Op::Send(_) | Op::SendAll { .. } | Op::Exchange { .. } | Op::Recv(_));
            self.program.actors[actor as usize].process == process && whole(&self.program.steps[step].op)
        })
    }
}

/// Whether a step cannot begin beside a blocked one, because it would be random which of them gets the bytes.
fn clash(held: &[Need], wanted: &[Need], op: &Op) -> bool {
    let never_waits = matches!(op, Op::Recv(data) if data.flags & libc::MSG_DONTWAIT != 0);
    held.iter().any(|held| {
        wanted.iter().any(|wanted| match (held, wanted) {
            (Need::Produce(a), Need::Produce(b)) => a == b,
            (Need::Watch(a), Need::Consume(b)) => a == b && !never_waits,
            (Need::Consume(a), Need::Consume(b) | Need::Watch(b)) => a == b,
            (Need::Take(a), Need::Take(b)) | (Need::Wait(a), Need::Wait(b)) => a == b,
            _ => false,
        })
    })
}
