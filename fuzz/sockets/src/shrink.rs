//! Makes a program that fails smaller, as long as it still fails in the same way.
//!
//! First everything behind the failure goes, then steps that are not needed, in ever smaller pieces, then processes without steps;
//! at last the rest is made simpler. Every candidate runs plain first: one that cannot run plain is dropped.

use std::time::{Duration, Instant};

use crate::found::{self, Found};
use crate::hunt;
use crate::op::{Data, Memory, Op, Pieces, Time};
use crate::program::{Program, Step};
use crate::rules::Counts;
use crate::run::{Bench, How, stopped};
use crate::via::{AcceptVia, CloseVia, ConnectHow, EpollVia, PollVia, RecvVia, SendVia};

/// How often a candidate may run without failing before it is given up, where failures are not certain.
const TRIES: u32 = 5;
/// Seconds after which a candidate counts as hanging.
const PATIENCE: f64 = 1.5;

struct Shrink<'a> {
    bench: &'a mut Bench,
    how: How,
    /// The name of the failure.
    name: String,
    tries: u32,
    until: Instant,
    best: Program,
}

/// The smallest program that was found, within this time, to fail as `program` does.
pub fn shrink(bench: &mut Bench, program: &Program, found: &Found, time: Duration) -> Program {
    let patience = bench.place_mut().patience;
    bench.place_mut().patience = patience.min(PATIENCE);
    let mut shrink = Shrink {
        bench,
        how: How { side: found.side, mode: found.mode },
        name: found.failure.name.clone(),
        tries: if found.fails == found.runs { 1 } else { TRIES },
        until: Instant::now() + time,
        best: program.clone(),
    };
    shrink.cut_behind(found.failure.step);
    loop {
        let before = shrink.best.clone();
        shrink.drop_groups();
        shrink.drop_processes();
        shrink.simplify();
        if shrink.best == before || shrink.is_over() {
            break;
        }
    }
    let best = shrink.best;
    bench.place_mut().patience = patience;
    best
}

impl Shrink<'_> {
    fn is_over(&self) -> bool {
        stopped() || Instant::now() >= self.until
    }

    /// Takes a candidate if it fails in the same way.
    fn accept(&mut self, candidate: Program) -> bool {
        if candidate == self.best || self.is_over() || !self.fails(&candidate) {
            return false;
        }
        self.best = candidate;
        true
    }

    fn fails(&mut self, candidate: &Program) -> bool {
        let plain = hunt::plain(self.bench, candidate);
        if found::failure(candidate, None, &plain).is_some() {
            return false;
        }
        let name = self.name.clone();
        (0..self.tries).any(|_| {
            let failure = hunt::wrapped(self.bench, candidate, &plain, self.how, &mut Counts::default());
            failure.is_some_and(|failure| failure.name == name)
        })
    }

    /// Where programs go step by step, what comes behind the failure is not needed.
    fn cut_behind(&mut self, step: Option<usize>) {
        let Some(step) = step.filter(|_| !self.best.free) else { return };
        let together = self.best.steps[step..].iter().take_while(|step| step.together).count();
        let mut candidate = self.best.clone();
        candidate.steps.truncate(step + 1 + together);
        self.accept(candidate);
    }

    /// Leaves steps out, first many at a time.
    fn drop_groups(&mut self) {
        let mut size = groups(&self.best).len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            while at < groups(&self.best).len() && !self.is_over() {
                let mut rest = groups(&self.best);
                let end = (at + size).min(rest.len());
                rest.drain(at..end);
                let candidate = Program { steps: rest.concat(), ..self.best.clone() };
                if !self.accept(tidy(candidate)) {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    /// Processes that do nothing need not be there.
    fn drop_processes(&mut self) {
        for process in 0..self.best.processes.len() {
            let acts =
                self.best.steps.iter().any(|step| self.best.actors[step.actor as usize].process as usize == process);
            if self.best.processes[process].initial && !acts {
                let mut candidate = self.best.clone();
                candidate.processes[process].initial = false;
                self.accept(candidate);
            }
        }
    }

    /// Makes what is left simpler.
    fn simplify(&mut self) {
        let mut at = 0;
        while at < self.best.steps.len() {
            for op in simpler(&self.best.steps[at].op) {
                let mut candidate = self.best.clone();
                candidate.steps[at].op = op;
                match_partner(&mut candidate, at);
                if self.accept(candidate) {
                    break;
                }
            }
            at += 1;
        }
    }
}

/// The steps of a program, those together that are made together.
fn groups(program: &Program) -> Vec<Vec<Step>> {
    program.steps.split_inclusive(|step| !step.together).map(<[Step]>::to_vec).collect()
}

/// Removes the steps of actors that never begin.
fn tidy(mut program: Program) -> Program {
    loop {
        let begun: Vec<bool> = (0..program.actors.len()).map(|actor| program.begins(actor as u8)).collect();
        let fits = |step: &Step| {
            let needs = match step.op {
                Op::Join { actor } | Op::KillAfter { actor, .. } => begun[actor as usize],
                _ => true,
            };
            needs && (begun[step.actor as usize] || step.op.is_sequencers())
        };
        let all = groups(&program);
        let kept: Vec<Step> = all.iter().filter(|group| group.iter().all(fits)).flatten().cloned().collect();
        if kept.len() == program.steps.len() {
            return program;
        }
        program.steps = kept;
    }
}

/// A change that concerns both sides is made at the other side, too.
fn match_partner(program: &mut Program, at: usize) {
    let changed = program.steps[at].op.clone();
    let neighbours = [at.checked_sub(1), Some(at + 1)];
    for near in neighbours.into_iter().flatten() {
        let Some(step) = program.steps.get_mut(near) else { continue };
        match (&changed, &mut step.op) {
            (Op::Exchange { rounds, size, .. }, Op::Exchange { rounds: other, size: same, .. }) => {
                (*other, *same) = (*rounds, *size);
            }
            (Op::SendAll { len, .. }, Op::RecvAll { len: other, .. })
            | (Op::RecvAll { len, .. }, Op::SendAll { len: other, .. }) => *other = *len,
            _ => {}
        }
    }
}

/// Numbers to try instead of one.
fn less(number: u32) -> impl Iterator<Item = u32> {
    [1, 10, 100, number / 4, number / 2, number - number / 4]
        .into_iter()
        .filter(move |less| *less > 0 && *less < number)
}

/// Simpler operations, the simplest first.
fn simpler(op: &Op) -> Vec<Op> {
    match op {
        Op::Send(data) => simpler_data(data, SendVia::Send).into_iter().map(Op::Send).collect(),
        Op::Recv(data) => simpler_data(data, RecvVia::Recv).into_iter().map(Op::Recv).collect(),
        Op::Exchange { slot, first, rounds, size, .. } => {
            let fewer = less(u32::from(*rounds)).map(|rounds| (rounds as u16, *size));
            let shorter = less(*size).map(|size| (*rounds, size));
            let plainest = core::iter::once((*rounds, *size));
            let all = fewer.chain(shorter).chain(plainest);
            all.map(|(rounds, size)| Op::Exchange {
                slot: *slot,
                first: *first,
                rounds,
                size,
                send: SendVia::Send,
                recv: RecvVia::Recv,
            })
            .collect()
        }
        Op::SendAll { slot, len, lane, .. } => {
            let all = less(*len).chain([*len]);
            all.map(|len| Op::SendAll { slot: *slot, len, chunk: len, via: SendVia::Send, lane: *lane }).collect()
        }
        Op::RecvAll { slot, len, .. } => {
            let all = less(*len).chain([*len]);
            all.map(|len| Op::RecvAll { slot: *slot, len, chunk: len, via: RecvVia::Recv }).collect()
        }
        Op::Poll { entries, time, .. } => {
            let fewer = (0..entries.len()).filter(|_| entries.len() > 1).map(|gone| {
                let rest = entries.iter().enumerate().filter(|(at, _)| *at != gone).map(|(_, entry)| *entry);
                rest.collect()
            });
            fewer
                .chain([entries.clone()])
                .map(|entries| Op::Poll { entries, via: PollVia::Poll, time: *time })
                .collect()
        }
        Op::EpollWait { set, max, time, .. } => {
            let times = if *time == Time::Forever { vec![*time] } else { vec![Time::Zero, *time] };
            times.into_iter().map(|time| Op::EpollWait { set: *set, max: *max, via: EpollVia::Wait, time }).collect()
        }
        Op::Connect { slot, to, four, .. } => {
            vec![Op::Connect { slot: *slot, to: *to, how: ConnectHow::Block, four: *four }]
        }
        Op::Accept { slot, from, .. } => vec![Op::Accept { slot: *slot, from: *from, via: AcceptVia::Accept }],
        Op::Close { slot, .. } => vec![Op::Close { slot: *slot, via: CloseVia::Close }],
        Op::Drain { slot, .. } => vec![Op::Drain { slot: *slot, via: RecvVia::Recv }],
        Op::Churn { .. } => simpler_churn(op),
        _ => Vec::new(),
    }
}

fn simpler_churn(op: &Op) -> Vec<Op> {
    let Op::Churn { to, conns, requests, size, .. } = op else { return Vec::new() };
    let shorter = less(*size).map(|size| (*requests, size));
    let fewer = less(u32::from(*requests)).map(|requests| (requests as u16, *size));
    let all = shorter.chain(fewer).chain([(*requests, *size)]);
    let of = |(requests, size)| Op::Churn {
        to: *to,
        conns: *conns,
        requests,
        size,
        send: SendVia::Send,
        recv: RecvVia::Recv,
    };
    all.map(of).collect()
}

fn simpler_data<Via: Copy + PartialEq>(data: &Data<Via>, plainest: Via) -> Vec<Data<Via>> {
    let mut list = Vec::new();
    if data.pieces != Pieces::One {
        list.push(Data { pieces: Pieces::One, ..data.clone() });
    }
    list.push(Data { via: plainest, pieces: Pieces::One, ..data.clone() });
    let bits = (0..31).map(|bit| 1 << bit).filter(|bit| data.flags & bit != 0);
    list.extend(bits.map(|bit| Data { flags: data.flags & !bit, ..data.clone() }));
    if data.memory == Memory::Good {
        list.extend(less(data.len).map(|len| Data { len, ..data.clone() }));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;

    #[test]
    fn tidy_programs_have_no_steps_of_nobody() {
        for seed in 0..300 {
            let mut program = generate::program(seed, None);
            program.steps.retain(|step| step.op.starts().is_none());
            let tidied = tidy(program);
            assert!(tidied.steps.iter().all(|step| step.op.is_sequencers() || tidied.begins(step.actor)));
        }
    }
}
