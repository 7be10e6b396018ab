//! A step of a wrapped run beside the same step of the plain one.

use crate::allowed;
use crate::op::{ActorId, ExitHow, Op, Time};
use crate::program::Program;
use crate::rules::Counts;
use crate::run::{Entry, Fate, Transcript};
use crate::share::Seen;

/// The result of a comparison.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The same, or as different as a rule allows.
    Same,
    /// A rule allows it, and from here on the runs diverge: only properties of every run can still be checked.
    Apart,
    /// A difference: which.
    Differs(String),
}

/// Compares one step; `counts` counts the rules that were used.
pub fn step(program: &Program, number: usize, plain: &Entry, wrapped: &Entry, counts: &mut Counts) -> Verdict {
    let op = &program.steps[number].op;
    if wrapped.seen.wrong != 0 {
        return Verdict::Differs(wrong(&wrapped.seen));
    }
    if plain.fate != wrapped.fate
        && let Some(rule) = allowed::fate(program, number, plain, wrapped)
    {
        counts.count(rule);
        return Verdict::Apart;
    }
    if plain.fate != wrapped.fate && !program.is_violent() {
        return Verdict::Differs(format!("{} instead of {}", fate(wrapped, number), fate(plain, number)));
    }
    if program.is_violent() || plain.fate == Fate::Skipped || plain.fate == Fate::Blocked {
        return Verdict::Same;
    }
    let Some(how) = difference(op, &plain.seen, &wrapped.seen) else { return Verdict::Same };
    match allowed::result(program, number, plain, wrapped) {
        Some((rule, apart)) => {
            counts.count(rule);
            if apart { Verdict::Apart } else { Verdict::Same }
        }
        None => Verdict::Differs(how),
    }
}

/// Compares how processes ended. Returns the difference. If the runs diverged, a step that begins or ends a process may have been made in
/// one of them only; any other end is a failure there, too.
pub fn ends(program: &Program, plain: &Transcript, wrapped: &Transcript) -> Option<String> {
    let pairs = plain.ends.iter().zip(&wrapped.ends).enumerate();
    let may = |process: usize, end: Option<i32>| wrapped.apart && is_meant(program, process, end);
    pairs
        .filter(|(_, (plain, wrapped))| plain != wrapped)
        .filter(|(process, (plain, wrapped))| !(may(*process, **plain) && may(*process, **wrapped)))
        .map(|(process, (plain, wrapped))| {
            format!("process {process} ended with {} instead of {}", ending(*wrapped), ending(*plain))
        })
        .next()
}

/// Whether a process ends like this by the program's steps, or by the end of the run: then an idle process exits, others are killed.
fn is_meant(program: &Program, process: usize, end: Option<i32>) -> bool {
    const KILLED: i32 = 1000 + libc::SIGKILL;
    const ABORTED: i32 = 1000 + libc::SIGABRT;
    let of = |actor: ActorId| program.actors[actor as usize].process as usize == process;
    let brings = |end: i32| {
        program.steps.iter().any(|step| match step.op {
            Op::Kill { actor, signal } => of(actor) && end == 1000 + signal,
            Op::Exit { how: ExitHow::Abort } => of(step.actor) && end == ABORTED,
            _ => false,
        })
    };
    match end {
        None | Some(0 | KILLED) => true,
        Some(end) => brings(end),
    }
}

fn ending(end: Option<i32>) -> String {
    match end {
        None => "nothing known".to_owned(),
        Some(status) if status < 1000 => format!("status {status}"),
        Some(status) => format!("signal {}", status - 1000),
    }
}

fn wrong(seen: &Seen) -> String {
    format!("wrong byte at offset {} of {}", seen.wrong - 1, data(seen))
}

fn fate(entry: &Entry, number: usize) -> String {
    match entry.fate {
        Fate::Skipped => "not made".to_owned(),
        Fate::Blocked => "sleeps".to_owned(),
        Fate::Done(at) if at == number => result(&entry.seen),
        Fate::Done(at) => format!("sleeps until step {at}, then {}", result(&entry.seen)),
    }
}

/// A result in words.
pub fn result(seen: &Seen) -> String {
    let mut text = seen.ret.to_string();
    if seen.ret < 0 {
        text += &format!(" ({})", error(seen.errno));
    }
    if seen.bytes > 0 {
        text += &format!(", {}", data(seen));
    }
    if !seen.aux.is_empty() {
        let words: Vec<String> = seen.aux.iter().map(|word| format!("{word:#x}")).collect();
        text += &format!(", [{}]", words.join(" "));
    }
    if seen.signals > 0 {
        text += &format!(", {} signals", seen.signals);
    }
    text
}

/// An errno by its name.
pub fn error(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    text.rsplit_once(" (os error").map_or(text.clone(), |(name, _)| name.to_owned())
}

fn data(seen: &Seen) -> String {
    let bytes = [seen.first[0].to_le_bytes(), seen.first[1].to_le_bytes()].concat();
    if seen.first == [0, 0] {
        return format!("{} bytes", seen.bytes);
    }
    let shown = (seen.bytes as usize).min(bytes.len());
    format!("{} bytes {:?}", seen.bytes, String::from_utf8_lossy(&bytes[..shown]))
}

/// What differs, without any rule.
fn difference(op: &Op, plain: &Seen, wrapped: &Seen) -> Option<String> {
    let same = plain.ret == wrapped.ret
        && plain.errno == wrapped.errno
        && plain.bytes == wrapped.bytes
        && plain.hash == wrapped.hash
        && plain.aux == wrapped.aux
        && plain.signals == wrapped.signals;
    if !same {
        return Some(format!("{} instead of {}", result(wrapped), result(plain)));
    }
    if let Op::Poll { time: Time::Ms(ms), .. } | Op::EpollWait { time: Time::Ms(ms), .. } = op {
        let (least, span) = (u64::from(*ms) * 1_000_000, |ns: u64| format!("{} ms", ns / 1_000_000));
        // The kernel rounds to its clock's tick.
        if wrapped.ret == 0 && wrapped.took_ns + 1_000_000 < least {
            return Some(format!("{} instead of {ms} ms", span(wrapped.took_ns)));
        }
    }
    None
}

#[cfg(test)]
mod tests;
