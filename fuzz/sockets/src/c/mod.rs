//! A program as C: one file without anything else, to be compiled and run plain and wrapped.
//!
//! Behind what all programs need (`prelude.c`) come the program's steps, each as the calls it makes, and what they gave plain.

mod calls;
mod free;
mod options;

use std::fmt::Write as _;

use crate::compare;
use crate::found::Found;
use crate::op::Op;
use crate::program::{Program, Role, Side};
use crate::run::{Fate, Mode, Transcript};

const PRELUDE: &str = include_str!("prelude.c");

/// The source. `plain` is what a plain run gave, `found` what is wrong with a wrapped one.
pub fn source(program: &Program, plain: &Transcript, found: Option<&Found>) -> String {
    let mut text = head(program, found) + PRELUDE;
    text += "\nstatic const int freely = ";
    let _ = writeln!(
        text,
        "{}, count = {}, actor_count = {};",
        u8::from(program.free),
        program.steps.len(),
        program.actors.len()
    );
    text += &processes(program, found.map_or(Side::Both, |found| found.side));
    text += &steps(program, plain);
    text += "static void make(int step, int actor) {\n    (void)actor;\n    switch (step) {\n";
    for (number, step) in program.steps.iter().enumerate().filter(|(_, step)| !step.op.is_sequencers()) {
        let body = calls::body(program, number, &step.op).or_else(|| free::body(program, number, &step.op));
        let body = body.unwrap_or_else(|| format!("fprintf(stderr, \"step {number} has no form in C\\n\");"));
        let _ = writeln!(text, "    case {number}: {{ {body} break; }}");
    }
    text += "    }\n}\n\n";
    text += &drivers(program);
    text
}

/// How to use it, and what it shows.
fn head(program: &Program, found: Option<&Found>) -> String {
    let eager = match found.map_or(Mode::Default, |found| found.mode) {
        Mode::Default => String::new(),
        Mode::Eager => "MADRIGAL_EAGER=first ".to_owned(),
        Mode::Random => format!("MADRIGAL_EAGER=random:{} ", program.seed),
    };
    let what = found.map_or_else(String::new, |found| {
        let how = found.failure.how.lines().next().unwrap_or("").replace("*/", "* /");
        format!(": {}: {how}\n * Wrapped it fails in {} of {} runs", found.failure.name, found.fails, found.runs)
    });
    format!(
        "/* Seed {}{what}.\n *\n * cc -w -o repro repro.c && ./repro && {eager}MADRIGAL_CHECK=1 madrigal exec -- ./repro\n */\n",
        program.seed
    )
}

fn processes(program: &Program, side: Side) -> String {
    let mut text = "static const struct process processes[] = {\n".to_owned();
    for (number, process) in program.processes.iter().enumerate() {
        let wrapped = match side {
            Side::Plain => false,
            Side::Both => true,
            Side::Client => process.role == Role::Client,
            Side::Server => process.role == Role::Server,
        };
        let main = program.main_of(number as u8).unwrap_or(0);
        let _ = writeln!(text, "    {{{main}, {}, {}}},", u8::from(process.initial), u8::from(wrapped));
    }
    text + "};\nstatic const int process_count = sizeof processes / sizeof *processes;\n"
}

/// The steps' table: who, whether with the next, when it is done, what it gives.
fn steps(program: &Program, plain: &Transcript) -> String {
    let mut text = "static const struct step steps[] = {\n".to_owned();
    for (step, entry) in program.steps.iter().zip(&plain.entries) {
        let fate = match entry.fate {
            Fate::Done(at) => at.to_string(),
            Fate::Blocked => "BLOCKED".to_owned(),
            Fate::Skipped => "SKIPPED".to_owned(),
        };
        let what = format!("{:?}", step.op).replace('"', "'");
        let (seen, together) = (&entry.seen, u8::from(step.together));
        let _ = writeln!(
            text,
            "    {{{}, {together}, {fate}, {}, {}, \"{what}\", {}, {{{}}}}}, // {}",
            step.actor,
            seen.ret,
            seen.errno,
            seen.aux.len(),
            seen.aux.iter().map(|word| format!("{word:#x}U")).collect::<Vec<_>>().join(", "),
            compare::result(seen).replace(['\n', '\\'], ".")
        );
    }
    text + "};\n\n"
}

/// What the first process does to the others.
fn drivers(program: &Program) -> String {
    let all: Vec<(usize, &Op)> = program
        .steps
        .iter()
        .enumerate()
        .filter(|(_, step)| step.op.is_sequencers())
        .map(|(at, step)| (at, &step.op))
        .collect();
    let mut text = "static int is_drivers(int step) {\n    switch (step) {\n".to_owned();
    for (number, _) in &all {
        let _ = writeln!(text, "    case {number}:");
    }
    text += if all.is_empty() {
        "    default: return 0;\n    }\n}\n\n"
    } else {
        "        return 1;\n    default: return 0;\n    }\n}\n\n"
    };
    text += "static void drive(int step) {\n    switch (step) {\n";
    for (number, op) in &all {
        let signal = |actor: u8, signal: i32| format!("kill(shared->pid[{actor}], {signal});");
        let thread = |actor: u8, signal: i32| {
            format!("syscall(SYS_tgkill, shared->pid[{actor}], shared->tid[{actor}], {signal}); usleep(20000);")
        };
        let body = match op {
            Op::Kill { actor, signal: number } => signal(*actor, *number) + " usleep(20000);",
            Op::Stop { actor } => signal(*actor, libc::SIGSTOP) + " usleep(20000);",
            Op::Continue { actor } => signal(*actor, libc::SIGCONT) + " usleep(20000);",
            Op::KillAfter { actor, signal: number, us } => {
                let ends = matches!(*number, libc::SIGKILL | libc::SIGTERM);
                format!("usleep({us}); violent |= {}; {}", u8::from(ends), signal(*actor, *number))
            }
            Op::Signal { actor, restart } => thread(*actor, if *restart { libc::SIGUSR1 } else { libc::SIGUSR2 }),
            // All who sleep; for the others it is one more signal.
            Op::InterruptAll => {
                let all = (0..program.actors.len()).map(|actor| {
                    format!(
                        "if (shared->tid[{actor}] && shared->go[{actor}] != shared->done[{actor}]) {{ {} }}",
                        thread(actor as u8, libc::SIGUSR2)
                    )
                });
                all.collect::<Vec<_>>().join(" ")
            }
            _ => String::new(),
        };
        let _ = writeln!(text, "    case {number}: {body} break;");
    }
    text + "    }\n}\n"
}
