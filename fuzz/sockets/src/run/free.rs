//! Programs that run freely: all actors go through their own steps at once.

use core::sync::atomic::Ordering;

use super::bench::{Bench, Judge};
use super::crew::Crew;
use super::tasks;
use super::transcript::{Entry, Fate, Transcript, Trouble};
use crate::compare::Verdict;
use crate::op::Op;
use crate::program::Program;
use crate::raw;
use crate::share::{EXIT, FREE};

/// How much longer a plain run may take.
const PLAIN: f64 = 7.5;

/// Runs a program freely.
pub(super) fn run(
    bench: &Bench,
    program: &Program,
    crew: &mut Crew,
    plain: Option<&Transcript>,
    judge: &mut Judge<'_>,
) -> Transcript {
    let trouble = go(bench, program, crew, plain.is_some()).err();
    let mut transcript = Transcript { trouble, ..Transcript::default() };
    for number in 0..program.steps.len() {
        let made = bench.map.records[number].took_ns.load(Ordering::Relaxed) > 0;
        let fate = if made { Fate::Done(number) } else { Fate::Skipped };
        let entry = Entry { fate, seen: bench.map.records[number].read() };
        if transcript.trouble.is_none()
            && let Verdict::Differs(how) = judge(number, &entry)
        {
            transcript.trouble = Some(Trouble::Differs { step: number, how });
        }
        transcript.entries.push(entry);
    }
    if transcript.trouble.is_none() {
        for process in 0..program.processes.len() as u8 {
            let Some(main) = program.main_of(process) else { continue };
            let cell = &bench.map.cells[main as usize];
            let number = cell.process.load(Ordering::SeqCst);
            if number != 0 && cell.done.load(Ordering::SeqCst) == FREE && tasks::lives(number) {
                crew.leaving.push((process, number));
                cell.command(EXIT);
            }
        }
    }
    transcript
}

/// Starts all actors when all are there, and waits until they are done.
fn go(bench: &Bench, program: &Program, crew: &mut Crew, hurry: bool) -> Result<(), Trouble> {
    crew.await_all(bench, program)?;
    bench.map.cells[..program.actors.len()].iter().for_each(|cell| cell.command(FREE));
    watch(bench, program, crew, hurry)
}

/// Processes that the sequencer has to signal: the time, the process, the signal.
fn signals(program: &Program) -> Vec<(u64, u8, i32)> {
    let mut list: Vec<_> = program
        .steps
        .iter()
        .filter_map(|step| match step.op {
            Op::KillAfter { actor, signal, us } => Some((u64::from(us) * 1000, actor, signal)),
            _ => None,
        })
        .collect();
    list.sort_unstable();
    list
}

/// Waits until all have done their steps.
fn watch(bench: &Bench, program: &Program, crew: &mut Crew, hurry: bool) -> Result<(), Trouble> {
    let begin = raw::now();
    let limit = (bench.place.patience * if hurry { 3e9 } else { PLAIN * 1e9 }) as u64;
    let mut signals = signals(program);
    let mut killed = Vec::new();
    let mut checked = begin;
    loop {
        let bell = bench.map.bell.load(Ordering::SeqCst);
        let now = raw::now();
        while let Some((when, actor, signal)) = signals.first().copied()
            && now - begin >= when
        {
            signals.remove(0);
            let process = program.actors[actor as usize].process;
            let number = bench.map.cells[actor as usize].process.load(Ordering::SeqCst);
            if number > 0 {
                tasks::kill(number, signal);
                if matches!(signal, libc::SIGKILL | libc::SIGTERM) {
                    bench.map.killed.store(1, Ordering::SeqCst);
                    killed.push(process);
                }
            }
        }
        let left: Vec<usize> = (0..program.actors.len())
            .filter(|actor| program.begins(*actor as u8))
            .filter(|actor| !killed.contains(&program.actors[*actor].process))
            .filter(|actor| bench.map.cells[*actor].done.load(Ordering::SeqCst) != FREE)
            .collect();
        // A process with the command to end gets no signal before it has ended.
        if left.is_empty() && signals.is_empty() && !killed.iter().any(|process| crew.lives(*process)) {
            return Ok(());
        }
        if now - checked > 20_000_000 {
            checked = now;
            if !killed.is_empty() {
                nudge(bench, program, &left);
            }
            for actor in &left {
                let number = bench.map.cells[*actor].process.load(Ordering::SeqCst);
                let process = program.actors[*actor].process;
                if number > 0 && !tasks::lives(number) || crew.ended(process) {
                    return Err(Trouble::Died { step: step_of(bench, *actor), process });
                }
            }
        }
        if now - begin > limit || tasks::stopped() {
            return Err(stuck(bench, &left));
        }
        let next =
            signals.first().map_or(5_000_000, |(when, ..)| (begin + when).saturating_sub(now).clamp(1, 5_000_000));
        raw::futex_wait(&bench.map.bell, bell, next);
    }
}

/// Servers that wait for clients of a process that was killed check.
fn nudge(bench: &Bench, program: &Program, left: &[usize]) {
    for actor in left {
        let cell = &bench.map.cells[*actor];
        if matches!(program.steps[step_of(bench, *actor)].op, Op::Server { .. } | Op::Events { .. } | Op::Accept { .. })
        {
            let (process, thread) = (cell.process.load(Ordering::SeqCst), cell.thread.load(Ordering::SeqCst));
            tasks::kill_thread(process, thread, libc::SIGUSR2);
        }
    }
}

fn step_of(bench: &Bench, actor: usize) -> usize {
    (bench.map.cells[actor].at.load(Ordering::SeqCst) as usize).saturating_sub(1)
}

fn stuck(bench: &Bench, left: &[usize]) -> Trouble {
    let mut threads = String::new();
    let mut seen = Vec::new();
    for actor in left {
        threads += &format!("  actor {actor} is at step {}\n", step_of(bench, *actor));
        let process = bench.map.cells[*actor].process.load(Ordering::SeqCst);
        if process != 0 && !seen.contains(&process) {
            seen.push(process);
            threads += &tasks::describe(process);
        }
    }
    Trouble::Stuck { step: left.first().map_or(0, |actor| step_of(bench, *actor)), threads }
}
