//! A failure: its text, and a short name under which similar failures are counted.

use serde::{Deserialize, Serialize};

use crate::allowed;
use crate::compare;
use crate::op::Op;
use crate::program::{Program, Side};
use crate::run::{Mode, Transcript, Trouble};
use crate::via::{RecvVia, SendVia};

/// A difference between a plain run and a wrapped one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Its kind and its call: failures of one name may have one cause.
    pub name: String,
    /// At which step.
    pub step: Option<usize>,
    /// The expected and the actual result.
    pub how: String,
}

/// A failure, where it was found, and how often it happens.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// The program's seed.
    pub seed: u64,
    /// Which processes were wrapped.
    pub side: Side,
    /// How eagerly.
    pub mode: Mode,
    /// What it is.
    pub failure: Failure,
    /// In how many of the runs.
    pub fails: u32,
    /// See `fails`.
    pub runs: u32,
}

/// What is wrong with a run, if anything. `plain` is what it is compared with; none: it is a plain one itself.
pub fn failure(program: &Program, plain: Option<&Transcript>, run: &Transcript) -> Option<Failure> {
    match &run.trouble {
        Some(trouble) => Some(of_trouble(program, trouble)),
        None => match plain {
            Some(plain) => {
                let end = compare::ends(program, plain, run);
                let end = end.map(|how| Failure { name: "end of a process".into(), step: None, how });
                end.or_else(|| if run.apart { None } else { unreported(program, plain, run) })
            }
            None => wrong(program, run),
        },
    }
}

/// An event that a wait left for the next one, and that was never reported.
fn unreported(program: &Program, plain: &Transcript, run: &Transcript) -> Option<Failure> {
    let (step, data) = allowed::not_reported(program, &plain.entries, &run.entries)?;
    let how = format!("{data:#x} is told by neither of two waits");
    Some(Failure { name: format!("loses an event: {}", label(&program.steps[step].op)), step: Some(step), how })
}

/// A plain run whose bytes are wrong: the fuzzer's own fault.
fn wrong(program: &Program, run: &Transcript) -> Option<Failure> {
    let step = run.entries.iter().position(|entry| entry.seen.wrong != 0)?;
    let how = format!("wrong byte in a plain run: {}", compare::result(&run.entries[step].seen));
    Some(Failure { name: format!("wrong byte: {}", label(&program.steps[step].op)), step: Some(step), how })
}

fn of_trouble(program: &Program, trouble: &Trouble) -> Failure {
    let call = |step: usize| program.steps.get(step).map_or_else(String::new, |step| label(&step.op));
    match trouble {
        Trouble::Stuck { step, threads } => {
            Failure { name: format!("hangs: {}", call(*step)), step: Some(*step), how: format!("not done\n{threads}") }
        }
        Trouble::Died { step, process } => Failure {
            name: format!("dies: {}", call(*step)),
            step: Some(*step),
            how: format!("process {process} is gone"),
        },
        Trouble::Unruly(how) => Failure { name: "does not end".into(), step: None, how: how.clone() },
        Trouble::Differs { step, how } => {
            Failure { name: format!("{}: {}", kind(how), call(*step)), step: Some(*step), how: how.clone() }
        }
    }
}

/// A word for what differs.
fn kind(how: &str) -> &'static str {
    let (wrapped, plain) = how.split_once(" instead of ").unwrap_or((how, ""));
    let failed = |text: &str| text.starts_with('-');
    let sleeps = |text: &str| text.starts_with("sleeps");
    if how.starts_with("wrong byte") {
        "wrong byte"
    } else if sleeps(wrapped) && !sleeps(plain) {
        "sleeps"
    } else if sleeps(plain) && !sleeps(wrapped) {
        "does not sleep"
    } else if sleeps(plain) {
        "wakes otherwise"
    } else if failed(wrapped) && !failed(plain) {
        "fails"
    } else if failed(plain) && !failed(wrapped) {
        "does not fail"
    } else if failed(plain) {
        "other error"
    } else {
        "other result"
    }
}

/// The name of a step's call.
pub fn label(op: &Op) -> String {
    let text = format!("{op:?}");
    let word = text.split([' ', '(', '{']).next().unwrap_or("").to_lowercase();
    match op {
        Op::Send(data) => {
            let via = match data.via {
                SendVia::Aio
                | SendVia::Lio
                | SendVia::Pwritev2
                | SendVia::Sendmmsg
                | SendVia::Sendfile
                | SendVia::Splice => format!(" {:?}", data.via).to_lowercase(),
                _ => String::new(),
            };
            format!("{word}{via}{}{}", flags(data.flags), memory(data.memory))
        }
        Op::Recv(data) => {
            let via = match data.via {
                RecvVia::Aio | RecvVia::Preadv2 | RecvVia::Recvmmsg | RecvVia::Splice => {
                    format!(" {:?}", data.via).to_lowercase()
                }
                _ => String::new(),
            };
            format!("{word}{via}{}{}", flags(data.flags), memory(data.memory))
        }
        Op::Ioctl { request, .. } => format!("ioctl {request:?}"),
        Op::GetOption { option, .. } | Op::SetOption { option, .. } => format!("{word} {option:?}"),
        Op::Server { serve, .. } => format!("{word} {serve:?}"),
        Op::Events { wait, .. } | Op::Crowd { wait, .. } | Op::Duplex { wait, .. } => format!("{word} {wait:?}"),
        _ => word,
    }
}

fn flags(flags: i32) -> String {
    let named = [
        (libc::MSG_PEEK, " peek"),
        (libc::MSG_WAITALL, " waitall"),
        (libc::MSG_TRUNC, " trunc"),
        (libc::MSG_OOB, " oob"),
        (libc::MSG_MORE, " more"),
        (libc::MSG_ERRQUEUE, " errqueue"),
    ];
    named.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name).collect()
}

fn memory(memory: crate::op::Memory) -> &'static str {
    if memory == crate::op::Memory::Good { "" } else { " (bad memory)" }
}
