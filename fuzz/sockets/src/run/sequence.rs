//! Programs in sequence: one step at a time, and after each everything comes to rest before the next begins.
//!
//! A plain run decides by the state of its threads whether a call sleeps. A wrapped one takes from the plain run what to wait for, so that
//! a slow library is not taken for a difference, and a late result is not missed.

mod possible;
mod waits;

use core::sync::atomic::Ordering;

use super::bench::{Bench, Judge};
use super::crew::Crew;
use super::tasks;
use super::transcript::{Entry, Fate, Transcript, Trouble};
use crate::compare::Verdict;
use crate::op::{ActorId, Op, Opt, Request, Slot};
use crate::program::{Need, Program};
use crate::raw;
use crate::share::{EXIT, Seen, TOP_UP};

/// How long the kernel gets to start or stop something.
const SOON_NS: u64 = 10_000_000_000;

/// What an actor does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// It has not begun.
    Absent,
    /// It waits for a step.
    Idle,
    /// It sleeps in a step.
    Blocked(usize),
    /// It has ended.
    Dead,
}

struct Sequence<'a, 'j> {
    bench: &'a Bench,
    program: &'a Program,
    crew: &'a mut Crew,
    plain: Option<&'a Transcript>,
    judge: &'a mut Judge<'j>,
    phases: Vec<Phase>,
    stopped: Vec<bool>,
    /// Their threads, inspected.
    eyes: Vec<tasks::Eye>,
    /// Streams with a time-out for receiving from them, or sending to them.
    timed: Vec<Need>,
    entries: Vec<Entry>,
    /// Whether a close may take a second.
    lingers: bool,
    /// See [`Transcript`].
    restless: Option<usize>,
    /// The plain run no longer determines what to expect.
    alone: bool,
}

type Step = Result<(), Trouble>;

/// Runs a program step by step.
pub(super) fn run(
    bench: &Bench,
    program: &Program,
    crew: &mut Crew,
    plain: Option<&Transcript>,
    judge: &mut Judge<'_>,
) -> Transcript {
    let entries = vec![Entry { fate: Fate::Skipped, seen: Seen::default() }; program.steps.len()];
    let mut sequence = Sequence {
        bench,
        program,
        crew,
        plain,
        judge,
        phases: vec![Phase::Absent; program.actors.len()],
        stopped: vec![false; program.processes.len()],
        eyes: program.actors.iter().map(|_| tasks::Eye::default()).collect(),
        timed: Vec::new(),
        entries,
        restless: None,
        lingers: program
            .steps
            .iter()
            .any(|step| matches!(step.op, Op::SetOption { option: Opt::Linger, value: 1.., .. })),
        alone: plain.is_none(),
    };
    let mut trouble = sequence.all().err();
    let mut cut = plain.and_then(|plain| plain.cut);
    if plain.is_none()
        && let Some(Trouble::Stuck { step, .. }) = trouble
    {
        cut = Some(sequence.group_of(step));
        trouble = None;
    }
    if trouble.is_none() && cut.is_none() {
        sequence.dismiss();
    }
    let apart = plain.is_some() && sequence.alone;
    Transcript { entries: sequence.entries, ends: Vec::new(), cut, restless: sequence.restless, apart, trouble }
}

impl Sequence<'_, '_> {
    fn all(&mut self) -> Step {
        for actor in self.crew.await_all(self.bench, self.program)? {
            self.phases[actor as usize] = Phase::Idle;
        }
        let mut at = 0;
        let end = self.plain.and_then(|plain| plain.cut).unwrap_or(self.program.steps.len());
        while at < end {
            let rest = &self.program.steps[at..];
            let together = 1 + rest.iter().take_while(|step| step.together).count().min(rest.len() - 1);
            self.alone |= self.plain.and_then(|plain| plain.restless).is_some_and(|step| step < at + together);
            if (at..at + together).any(|step| self.is_left_to_chance(step)) {
                self.be_restless(at);
            }
            self.group(at, at + together)?;
            at += together;
        }
        let asleep: Vec<usize> = self.blocked().map(|(_, step)| step).collect();
        asleep.into_iter().try_for_each(|step| self.judge_step(step))
    }

    /// From this step on it is unknown what has arrived.
    fn be_restless(&mut self, step: usize) {
        self.restless.get_or_insert(step);
        self.alone = true;
    }

    /// Makes the steps of a group at the same time.
    fn group(&mut self, from: usize, to: usize) -> Step {
        let runnable = (from..to).all(|step| self.is_runnable(step));
        if !runnable {
            // Held steps before it may have woken a thread.
            if from > 0 && self.program.steps[from - 1].held && !self.program.steps[to - 1].held {
                self.settle(from - 1);
                self.check_sleepers(to - 1)?;
            }
            // All or none: alone the others would wait for ever.
            return (from..to).try_for_each(|step| self.judge_step(step));
        }
        let mut begun = Vec::new();
        for step in from..to {
            let what = &self.program.steps[step];
            if what.op.is_sequencers() {
                self.act(step)?;
                self.entries[step].fate = Fate::Done(step);
            } else {
                self.prepare(&what.op);
                self.cell(what.actor).command(step as u32 + 1);
                begun.push(step);
            }
        }
        let alone = begun.len() == 1;
        for step in begun {
            self.finish(step, alone)?;
        }
        if !self.program.steps[to - 1].held {
            (from..to).for_each(|step| self.settle(step));
            self.check_sleepers(to - 1)?;
        }
        // Those that sleep are compared when they are done.
        let awake: Vec<usize> = (from..to).filter(|step| self.entries[*step].fate != Fate::Blocked).collect();
        awake.into_iter().try_for_each(|step| self.judge_step(step))
    }

    /// The first step of the group that a step belongs to.
    fn group_of(&self, step: usize) -> usize {
        let before = self.program.steps[..step].iter().rev();
        step - before.take_while(|step| step.together).count()
    }

    fn cell(&self, actor: ActorId) -> &crate::share::Cell {
        &self.bench.map.cells[actor as usize]
    }

    fn process_of(&self, actor: ActorId) -> i32 {
        self.cell(actor).process.load(Ordering::SeqCst)
    }

    fn same_process(&self, one: ActorId, other: ActorId) -> bool {
        self.program.actors[one as usize].process == self.program.actors[other as usize].process
    }

    fn blocked(&self) -> impl Iterator<Item = (ActorId, usize)> + '_ {
        self.phases.iter().enumerate().filter_map(|(actor, phase)| match phase {
            Phase::Blocked(step) => Some((actor as ActorId, *step)),
            _ => None,
        })
    }

    /// What must be so before a step begins.
    fn prepare(&self, op: &Op) {
        if let Op::Ioctl { slot, request: Request::SiocOutq } | Op::GetOption { slot, option: Opt::Info } = op
            && let Some((conn, _)) = self.program.end(*slot)
        {
            self.bench.quiet.wait(&self.bench.map.conns[conn as usize], true);
        }
    }

    /// Waits until a step is done, or sleeps.
    fn finish(&mut self, step: usize, alone: bool) -> Step {
        let what = &self.program.steps[step];
        let actor = what.actor;
        if what.op.ends_process() {
            return self.await_death(actor, step);
        }
        let expected = self.expected(step);
        let sleepy = match expected {
            _ if !alone => false,
            None => what.op.may_block() && !self.has_timeout(&what.op),
            Some(fate) => fate != Fate::Done(step),
        };
        if self.await_done(actor, step as u32 + 1, sleepy, step)? {
            self.entries[step] = Entry { fate: Fate::Done(step), seen: self.bench.map.records[step].read() };
            if matches!(what.op, Op::Exchange { .. }) && self.plain.is_some() && !self.bench.rings() {
                self.bench.rings.set(tasks::has_rings(self.process_of(actor)));
            }
            self.after(step)
        } else {
            self.phases[actor as usize] = Phase::Blocked(step);
            self.entries[step].fate = Fate::Blocked;
            Ok(())
        }
    }

    fn expected(&self, step: usize) -> Option<Fate> {
        if self.alone { None } else { self.plain.map(|plain| plain.entries[step].fate) }
    }

    fn has_timeout(&self, op: &Op) -> bool {
        self.program.needs(op).iter().any(|need| self.timed.contains(need))
    }

    /// What a time-out is for.
    fn timed_need(&self, slot: Slot, option: Opt) -> Option<Need> {
        self.program.end(slot)?;
        match option {
            Opt::RcvTimeo => Some(Need::Consume(self.program.incoming(slot))),
            Opt::SndTimeo => Some(Need::Produce(self.program.out(slot))),
            _ => None,
        }
    }

    /// What a step that is done changes for those that follow.
    fn after(&mut self, step: usize) -> Step {
        let what = &self.program.steps[step];
        if let Op::SetOption { slot, option, value } = what.op
            && let Some(need) = self.timed_need(slot, option)
        {
            self.timed.retain(|known| *known != need);
            if value > 0 {
                self.timed.push(need);
            }
        }
        let ok = self.entries[step].seen.ret == 0;
        if let Some(actor) = what.op.starts()
            && ok
        {
            self.await_begin(actor, step)?;
        }
        match what.op {
            Op::Cancel { actor } if ok => {
                if let Phase::Blocked(step) = self.phases[actor as usize] {
                    self.blind(step);
                }
                self.phases[actor as usize] = Phase::Dead;
            }
            Op::Exec { .. } => {
                let process = self.program.actors[what.actor as usize].process;
                self.bury(process, Some(what.actor));
            }
            _ => {}
        }
        Ok(())
    }

    /// The threads of a process are gone, but for one.
    fn bury(&mut self, process: u8, but: Option<ActorId>) {
        for (actor, what) in self.program.actors.iter().enumerate() {
            if what.process == process && but != Some(actor as ActorId) && self.phases[actor] != Phase::Absent {
                if let Phase::Blocked(step) = self.phases[actor] {
                    self.blind(step);
                }
                self.phases[actor] = Phase::Dead;
            }
        }
    }

    /// The positions of the streams of a step that was cut off are unknown.
    fn blind(&self, step: usize) {
        for need in self.program.needs(&self.program.steps[step].op) {
            if let Need::Produce(stream) | Need::Consume(stream) = need
                && let Some(stream) = self.bench.map.streams.get(stream as usize)
            {
                stream.blind.store(1, Ordering::SeqCst);
            }
        }
    }

    /// Threads that a step has woken go on; the others still sleep.
    fn check_sleepers(&mut self, step: usize) -> Step {
        for (actor, blocked) in self.blocked().collect::<Vec<_>>() {
            if self.stopped[self.program.actors[actor as usize].process as usize] {
                continue;
            }
            let sleepy = self.expected(blocked) != Some(Fate::Done(step));
            if self.await_done_or_still(actor, blocked, sleepy)? {
                self.phases[actor as usize] = Phase::Idle;
                self.top_up(actor, blocked)?;
                self.entries[blocked] = Entry { fate: Fate::Done(step), seen: self.bench.map.records[blocked].read() };
                self.after(blocked)?;
                self.settle(blocked);
                self.judge_step(blocked)?;
            }
        }
        Ok(())
    }

    /// A call that slept was woken by the first of what came; the rest is there by now.
    fn top_up(&mut self, actor: ActorId, blocked: usize) -> Step {
        let fit = matches!(self.program.steps[blocked].op, Op::Recv(_) | Op::Poll { .. } | Op::EpollWait { .. });
        if fit && self.bench.map.records[blocked].ret.load(Ordering::Relaxed) > 0 {
            self.settle(blocked);
            self.cell(actor).command(TOP_UP);
            self.await_done(actor, TOP_UP, false, blocked)?;
        }
        Ok(())
    }

    /// Does what no process of the program does.
    fn act(&mut self, step: usize) -> Step {
        match self.program.steps[step].op {
            Op::Kill { actor, signal } => {
                tasks::kill(self.process_of(actor), signal);
                self.await_death(actor, step)
            }
            Op::Stop { actor } => self.stop(actor, true),
            Op::Continue { actor } => self.stop(actor, false),
            Op::Signal { actor, restart } => {
                self.signal(actor, if restart { libc::SIGUSR1 } else { libc::SIGUSR2 }, step)
            }
            Op::InterruptAll => self.interrupt_all(step),
            _ => Ok(()),
        }
    }

    /// Signals a thread, and waits until its handler is done, for of two signals at once the kernel makes one.
    fn signal(&mut self, actor: ActorId, signal: i32, step: usize) -> Step {
        let before = self.bench.map.handled.load(Ordering::SeqCst);
        tasks::kill_thread(self.process_of(actor), self.cell(actor).thread.load(Ordering::SeqCst), signal);
        let begin = raw::now();
        while self.bench.map.handled.load(Ordering::SeqCst) == before {
            if raw::now() - begin > self.patience() || tasks::stopped() {
                return Err(self.stuck(step));
            }
            raw::sleep_us(10);
        }
        Ok(())
    }

    fn stop(&mut self, actor: ActorId, stop: bool) -> Step {
        let process = self.process_of(actor);
        tasks::kill(process, if stop { libc::SIGSTOP } else { libc::SIGCONT });
        let begin = raw::now();
        while (tasks::state(process, process) == b'T') != stop {
            if raw::now() - begin > SOON_NS || !tasks::lives(process) {
                return Err(Trouble::Unruly("a process does not stop".to_owned()));
            }
            raw::sleep_us(30);
        }
        self.stopped[self.program.actors[actor as usize].process as usize] = stop;
        Ok(())
    }

    fn interrupt_all(&mut self, step: usize) -> Step {
        for (actor, blocked) in self.blocked().collect::<Vec<_>>() {
            let cell = self.cell(actor);
            if self.stopped[self.program.actors[actor as usize].process as usize] {
                continue;
            }
            let (process, thread) = (cell.process.load(Ordering::SeqCst), cell.thread.load(Ordering::SeqCst));
            tasks::kill_thread(process, thread, libc::SIGUSR2);
            if self.await_done(actor, blocked as u32 + 1, false, blocked)? {
                self.phases[actor as usize] = Phase::Idle;
                self.entries[blocked] = Entry { fate: Fate::Done(step), seen: self.bench.map.records[blocked].read() };
                self.judge_step(blocked)?;
            }
        }
        Ok(())
    }

    fn judge_step(&mut self, step: usize) -> Step {
        if self.alone {
            return Ok(());
        }
        match (self.judge)(step, &self.entries[step]) {
            Verdict::Same => Ok(()),
            Verdict::Apart => {
                self.alone = true;
                Ok(())
            }
            Verdict::Differs(how) => Err(Trouble::Differs { step, how }),
        }
    }

    /// Gives every actor that waits for a step the command to end.
    fn dismiss(&mut self) {
        for process in 0..self.program.processes.len() {
            let Some(main) = self.program.main_of(process as u8) else { continue };
            if self.phases[main as usize] == Phase::Idle && !self.stopped[process] {
                self.crew.leaving.push((process as u8, self.process_of(main)));
                self.cell(main).command(EXIT);
            }
        }
    }
}
