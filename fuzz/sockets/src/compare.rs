//! A step of a wrapped run beside the same step of the plain one.

use crate::op::{ActorId, Ctl, ExitHow, Memory, Op, Opt, Slot, Time};
use crate::program::Program;
use crate::rules::{Rule, Tally};
use crate::run::{Entry, Fate, Transcript};
use crate::share::Seen;
use crate::via::SendVia;

/// What a comparison says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The same, or as different as a rule allows.
    Same,
    /// A rule allows it, and from here on the runs go different ways: only what holds of any run can still be checked.
    Apart,
    /// A difference: which.
    Differs(String),
}

/// Compares one step; `tally` counts the rules that were used.
pub fn step(program: &Program, number: usize, plain: &Entry, wrapped: &Entry, tally: &mut Tally) -> Verdict {
    let op = &program.steps[number].op;
    if wrapped.seen.wrong != 0 {
        return Verdict::Differs(wrong(&wrapped.seen));
    }
    if plain.fate != wrapped.fate
        && let Some(rule) = fate_rule(program, number, plain, wrapped)
    {
        tally.count(rule);
        return Verdict::Apart;
    }
    if plain.fate != wrapped.fate && !program.is_violent() {
        return Verdict::Differs(format!("{} instead of {}", fate(wrapped, number), fate(plain, number)));
    }
    if program.is_violent() || plain.fate == Fate::Skipped || plain.fate == Fate::Blocked {
        return Verdict::Same;
    }
    let Some(how) = difference(op, &plain.seen, &wrapped.seen) else { return Verdict::Same };
    if is_unnoticed(program, number, &plain.seen, &wrapped.seen) {
        tally.count(Rule::Unnoticed);
        return Verdict::Apart;
    }
    if is_told_elsewhere(program, number, &plain.seen, &wrapped.seen) {
        tally.count(Rule::ToldOnce);
        return Verdict::Apart;
    }
    if is_reset_by_bells(program, number, &plain.seen, &wrapped.seen) {
        tally.count(Rule::LastBell);
        return Verdict::Apart;
    }
    if is_left_beside(program, number, &plain.seen, &wrapped.seen) {
        tally.count(Rule::LeftBeside);
        return Verdict::Apart;
    }
    if tells_again_of_sets(program, number, &plain.seen, &wrapped.seen) {
        tally.count(Rule::EdgeAgain);
        return Verdict::Same;
    }
    if plain.seen.ret >= 0 && is_told_again(program, number, &plain.seen.aux, wrapped) {
        tally.count(Rule::EdgeAgain);
        return Verdict::Same;
    }
    match rule(program, op, &plain.seen, &wrapped.seen) {
        Some((rule, apart)) => {
            tally.count(rule);
            if apart { Verdict::Apart } else { Verdict::Same }
        }
        None => Verdict::Differs(how),
    }
}

/// The rule that lets a step end at another time, or sleep on; the runs go different ways from here.
fn fate_rule(program: &Program, number: usize, plain: &Entry, wrapped: &Entry) -> Option<Rule> {
    if [plain, wrapped].into_iter().any(|entry| ended_by_fault(program, number, entry)) {
        return Some(Rule::FaultSplit);
    }
    if plain.fate == Fate::Skipped {
        return None;
    }
    match () {
        () if is_told_again(program, number, &[], wrapped) => Some(Rule::EdgeAgain),
        () if wakes_by_sets(program, number, wrapped) => Some(Rule::EdgeAgain),
        () if meets_shutdown(program, number, wrapped) => Some(Rule::BufferRoom),
        () if wakes_by_end(program, number, wrapped) => Some(Rule::BufferRoom),
        () => None,
    }
}

/// Compares how processes ended; what differs. Where the runs went different ways, a step that begins or ends a process may have been made in
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

/// Whether a process comes to such an end by the program's steps, or by the end of the run: who is idle then exits, others are killed.
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

/// The rule that allows a difference, and whether the runs go different ways from here.
fn rule(program: &Program, op: &Op, plain: &Seen, wrapped: &Seen) -> Option<(Rule, bool)> {
    match op {
        Op::Drain { slot, .. } if is_overfull(program, *slot) => Some((Rule::BufferRoom, true)),
        Op::Recv(data) if is_overfull(program, data.slot) && wrapped.ret >= 0 => Some((Rule::BufferRoom, true)),
        Op::Send(data) if data.memory == Memory::Good => {
            let (less, some) = (wrapped.ret.min(plain.ret), data.len as i64 > SURE);
            let full = |seen: &Seen| seen.ret >= 0 || seen.errno == libc::EAGAIN;
            (some && full(plain) && full(wrapped) && less < data.len as i64).then_some((Rule::BufferRoom, true))
        }
        Op::Send(data) if matches!(data.memory, Memory::Half(_)) => fault(data.memory, plain, wrapped),
        Op::Recv(data) if matches!(data.memory, Memory::Half(_)) => fault(data.memory, plain, wrapped),
        Op::Poll { entries, .. } if is_end_behind_room(program, entries, plain, wrapped) => {
            Some((Rule::BufferRoom, true))
        }
        Op::GetOption { option: Opt::SndBuf | Opt::RcvBuf, .. } if wrapped.ret == 0 => Some((Rule::BufferSize, false)),
        _ => None,
    }
}

/// Whether a process was killed before, and a call tells of that what TCP would have told had it been killed a moment earlier or later.
fn is_unnoticed(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let killed = |op: &Op| matches!(op, Op::Kill { .. } | Op::Exit { how: ExitHow::Abort, .. });
    if !program.steps[..number].iter().any(|step| killed(&step.op)) {
        return false;
    }
    let gone = |seen: &Seen| seen.ret == -1 && matches!(seen.errno, libc::EPIPE | libc::ECONNRESET);
    let (shows, error) = (|seen: &Seen| seen.aux.first().copied().unwrap_or(0), u64::from(libc::POLLERR as u16));
    match &program.steps[number].op {
        Op::Send(data) => {
            // Of several messages the error of one may have taken a SIGPIPE's place.
            let told = data.via == SendVia::Sendmmsg || [plain, wrapped].into_iter().any(gone);
            told && [plain, wrapped].into_iter().all(|seen| gone(seen) || seen.ret > 0)
        }
        Op::Recv(_) => {
            [plain, wrapped].into_iter().all(|seen| gone(seen) || seen.ret == 0 || seen.errno == libc::EAGAIN)
        }
        Op::Drain { .. } => plain.ret == wrapped.ret && plain.hash == wrapped.hash,
        Op::Poll { entries, .. } if entries.len() == 1 => (shows(plain) | error) & shows(wrapped) == shows(wrapped),
        Op::GetOption { option: Opt::Error, .. } => plain.ret == 0 && wrapped.ret == 0,
        _ => false,
    }
}

/// Whether a program that was executed in a child finds a reset, or one that was spawned no descriptor, where another process still holds
/// what the peer left.
fn is_left_beside(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let process = |actor: ActorId| program.actors[actor as usize].process;
    let own = process(program.steps[number].actor);
    let before = || program.steps[..number].iter();
    let begun = |forked: bool| {
        before().any(|step| matches!(step.op, Op::Spawn { actor, fork, .. } if fork == forked && process(actor) == own))
    };
    let ends = |op: &Op| matches!(op, Op::Exit { .. } | Op::Kill { .. } | Op::Close { .. } | Op::Shutdown { .. });
    let left = before().any(|step| ends(&step.op) && process(step.actor) != own);
    let reset = wrapped.ret == -1 && matches!(wrapped.errno, libc::EPIPE | libc::ECONNRESET);
    let shows = |seen: &Seen, what: i16| seen.aux.first().is_some_and(|told| told & what as u64 != 0);
    let reset = match &program.steps[number].op {
        Op::Recv(_) | Op::Send(_) => reset && plain.ret > 0,
        Op::Poll { entries, .. } => {
            entries.len() == 1
                && shows(plain, libc::POLLIN)
                && shows(wrapped, libc::POLLHUP)
                && !shows(plain, libc::POLLHUP)
        }
        _ => false,
    };
    let missing = wrapped.ret == -1 && wrapped.errno == libc::EBADF;
    left && (begun(true) && reset || begun(false) && missing)
}

/// Whether a program that was executed finds a reset where its peer, which was killed, had read everything but doorbells.
fn is_reset_by_bells(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let process = |actor: ActorId| program.actors[actor as usize].process;
    let own = process(program.steps[number].actor);
    let before = || program.steps[..number].iter();
    let executed = before().any(|step| match step.op {
        Op::Exec { .. } => process(step.actor) == own,
        Op::Spawn { actor, .. } => process(actor) == own,
        _ => false,
    });
    let killed = before().any(|step| matches!(step.op, Op::Kill { .. } | Op::Exit { how: ExitHow::Abort, .. }));
    let reset = wrapped.ret == -1 && matches!(wrapped.errno, libc::EPIPE | libc::ECONNRESET);
    let broken = (libc::POLLHUP | libc::POLLERR) as u64;
    executed
        && killed
        && match &program.steps[number].op {
            Op::Recv(_) => reset && plain.ret == 0,
            Op::Send(_) => reset && plain.ret > 0,
            Op::Poll { entries, .. } => {
                entries.len() == 1
                    && (plain.ret, wrapped.ret) == (1, 1)
                    && plain
                        .aux
                        .iter()
                        .zip(&wrapped.aux)
                        .all(|(plain, wrapped)| plain & libc::POLLRDHUP as u64 != 0 && plain | broken == *wrapped)
            }
            _ => false,
        }
}

/// Whether a program that runs without the library is told of the end of a connection by another error, or by none.
fn is_told_elsewhere(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let process = |actor: ActorId| program.actors[actor as usize].process;
    let own = process(program.steps[number].actor);
    let unwrapped = program.steps[..number].iter().any(|step| match step.op {
        Op::Exec { plain } => plain && process(step.actor) == own,
        Op::Spawn { actor, plain, .. } => plain && process(actor) == own,
        _ => false,
    });
    let gone = |seen: &Seen| seen.ret == -1 && matches!(seen.errno, libc::EPIPE | libc::ECONNRESET);
    unwrapped
        && match &program.steps[number].op {
            Op::Send(_) => gone(plain) && gone(wrapped),
            Op::Recv(_) => gone(plain) && (gone(wrapped) || wrapped.ret == 0),
            _ => false,
        }
}

/// Whether a send that slept for room ended as a receiving direction was shut: a reset comes where the window has room for one byte more.
fn meets_shutdown(program: &Program, number: usize, entry: &Entry) -> bool {
    let Fate::Done(at) = entry.fate else { return false };
    let sends = matches!(program.steps[number].op, Op::Send(_) | Op::SendAll { .. });
    sends && at != number && matches!(program.steps[at].op, Op::Shutdown { how: libc::SHUT_RD | libc::SHUT_RDWR, .. })
}

/// Whether a sleep ended by a send from a bad page: how much of it was sent is open.
fn ended_by_fault(program: &Program, number: usize, entry: &Entry) -> bool {
    let Fate::Done(at) = entry.fate else { return false };
    let half = |op: &Op| matches!(op, Op::Send(data) if matches!(data.memory, Memory::Half(_)));
    at != number && half(&program.steps[at].op)
}

/// Whether a slot is an event set with edge-triggered registrations.
fn has_edges(program: &Program, number: usize, slot: Slot) -> bool {
    let edges =
        |op: &Op| matches!(op, Op::EpollCtl { set, events, .. } if *set == slot && events & libc::EPOLLET as u32 != 0);
    program.steps[..number].iter().any(|step| edges(&step.op))
}

/// Whether a poll that sleeps where it is plain told of event sets with edge-triggered registrations, and of nothing else.
fn wakes_by_sets(program: &Program, number: usize, wrapped: &Entry) -> bool {
    let Op::Poll { entries, .. } = &program.steps[number].op else { return false };
    let told = entries.iter().zip(&wrapped.seen.aux);
    wrapped.seen.ret > 0
        && entries.len() == wrapped.seen.aux.len()
        && told.into_iter().all(|((slot, _), told)| *told == 0 || has_edges(program, number, *slot))
}

/// Whether a poll told what the plain one did, and besides only of event sets with edge-triggered registrations.
fn tells_again_of_sets(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let Op::Poll { entries, .. } = &program.steps[number].op else { return false };
    let readable = |told: u64| told == libc::POLLIN as u64;
    let same = |((slot, _), (plain, wrapped)): (&(Slot, i16), (&u64, &u64))| {
        plain == wrapped || *plain == 0 && readable(*wrapped) && has_edges(program, number, *slot)
    };
    let told = plain.aux.iter().zip(&wrapped.aux);
    plain.ret >= 0
        && wrapped.ret > plain.ret
        && entries.len() == plain.aux.len()
        && plain.aux.len() == wrapped.aux.len()
        && entries.iter().zip(told).all(same)
}

/// Whether a wait on an event set told what `plain` did, and besides only of edge-triggered registrations.
fn is_told_again(program: &Program, number: usize, plain: &[u64], wrapped: &Entry) -> bool {
    if !matches!(program.steps[number].op, Op::EpollWait { .. }) || wrapped.seen.ret <= 0 {
        return false;
    }
    let told = |list: &[u64], pair: &[u64]| list.chunks_exact(2).any(|other| other == pair);
    let by_edge = |data: u64| {
        let before = program.steps[..number].iter().rev();
        let asked = before.filter_map(|step| match step.op {
            Op::EpollCtl { what: Ctl::Add | Ctl::Mod, slot, events, data: of, .. } if of == data => {
                Some((slot, events))
            }
            _ => None,
        });
        let (edge, once) = (libc::EPOLLET as u32, libc::EPOLLONESHOT as u32);
        // A set in the set is told of anew with its members.
        asked.take(1).any(|(slot, events)| events & (edge | once) == edge || has_edges(program, number, slot))
    };
    let aux = &wrapped.seen.aux;
    aux.len() == 2 * wrapped.seen.ret as usize
        && plain.chunks_exact(2).all(|pair| told(aux, pair))
        && aux.chunks_exact(2).all(|pair| told(plain, pair) || by_edge(pair[0]))
}

/// Whether more was sent to this end than can have fitted, so that a part of it, nobody knows how much, may not have come.
fn is_overfull(program: &Program, slot: crate::op::Slot) -> bool {
    program.steps.iter().any(|step| match &step.op {
        Op::Send(data) => data.len > MOST && program.out(data.slot) == program.incoming(slot),
        _ => false,
    })
}

/// Whether all that differs is the end of streams of which more was sent than fits: plain, it stands behind bytes that have no room yet.
fn is_end_behind_room(program: &Program, entries: &[(crate::op::Slot, i16)], plain: &Seen, wrapped: &Seen) -> bool {
    // An entry that has nothing else to tell is counted for its end alone.
    let counted = |seen: &Seen| seen.ret == seen.aux.iter().filter(|word| **word != 0).count() as i64;
    let same = (plain.errno, plain.signals) == (wrapped.errno, wrapped.signals) && counted(plain) && counted(wrapped);
    let words = plain.aux.iter().zip(&wrapped.aux).zip(entries);
    let fit = |((plain, wrapped), (slot, _)): ((&u64, &u64), &(crate::op::Slot, i16))| {
        let end = (libc::POLLRDHUP | libc::POLLHUP) as u64;
        plain == wrapped || plain & !end == wrapped & !end && plain & wrapped == *plain && is_overfull(program, *slot)
    };
    same && plain.aux.len() == wrapped.aux.len() && words.into_iter().all(fit)
}

/// Whether a poll that sleeps where it is plain told of such an end, and of nothing else.
fn wakes_by_end(program: &Program, number: usize, wrapped: &Entry) -> bool {
    let Op::Poll { entries, .. } = &program.steps[number].op else { return false };
    let silent = Seen { aux: vec![0; wrapped.seen.aux.len()], ..Seen::default() };
    wrapped.seen.ret > 0 && is_end_behind_room(program, entries, &silent, &wrapped.seen)
}

/// More than a connection has room for.
const MOST: u32 = 1 << 20;

/// So much always fits into a connection of which nothing is unread.
const SURE: i64 = 16 << 10;

/// A transfer that meets a bad page: any part of the good memory, or `EFAULT`.
fn fault(memory: Memory, plain: &Seen, wrapped: &Seen) -> Option<(Rule, bool)> {
    let Memory::Half(good) = memory else { return None };
    let fits = |seen: &Seen| {
        if seen.ret < 0 { seen.errno == libc::EFAULT } else { seen.ret > 0 && seen.ret <= i64::from(good) }
    };
    (fits(plain) && fits(wrapped)).then_some((Rule::FaultSplit, true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Data, Pieces};
    use crate::program::{Actor, Kind, Process, Role, Step, Theme};
    use crate::via::PollVia;

    /// Two processes with one connection; the second one's end is slot 1.
    fn program(ops: Vec<(ActorId, Op)>) -> Program {
        let step = |(actor, op)| Step { actor, op, together: false, held: false };
        Program {
            seed: 0,
            theme: Theme::Kill,
            free: false,
            one_cpu: true,
            processes: vec![
                Process { role: Role::Server, initial: true },
                Process { role: Role::Client, initial: true },
            ],
            actors: (0..2).map(|process| Actor { process, main: true }).collect(),
            slots: vec![Kind::End(0, 0), Kind::End(0, 1)],
            steps: ops.into_iter().map(step).collect(),
        }
    }

    fn flood(len: u32) -> (ActorId, Op) {
        let via = SendVia::Send;
        (1, Op::Send(Data { slot: 1, len, via, flags: 0, memory: Memory::Good, pieces: Pieces::One }))
    }

    fn poll() -> (ActorId, Op) {
        let entries = vec![(0, libc::POLLRDHUP), (9, libc::POLLIN)];
        (0, Op::Poll { entries, via: PollVia::Poll, time: Time::Forever })
    }

    fn told(fate: Fate, aux: [u64; 2]) -> Entry {
        let ret = aux.iter().filter(|word| **word != 0).count() as i64;
        Entry { fate, seen: Seen { ret, aux: aux.to_vec(), ..Seen::default() } }
    }

    const END: u64 = libc::POLLRDHUP as u64;
    const IN: u64 = libc::POLLIN as u64;

    fn polled(sent: u32, plain: &Entry, wrapped: &Entry) -> bool {
        let program = program(vec![flood(sent), poll()]);
        !matches!(step(&program, 1, plain, wrapped, &mut Tally::default()), Verdict::Differs(_))
    }

    #[test]
    fn an_end_behind_room_is_counted_beside_others() {
        let done = Fate::Done(1);
        assert!(polled(MOST + 1, &told(done, [0, IN]), &told(done, [END, IN])));
        assert!(!polled(1000, &told(done, [0, IN]), &told(done, [END, IN])));
        assert!(!polled(MOST + 1, &told(done, [END, IN]), &told(done, [0, IN])));
        assert!(!polled(MOST + 1, &told(done, [0, IN]), &told(done, [END, 0])));
        assert!(!polled(MOST + 1, &told(done, [0, IN]), &told(done, [IN, IN])));
    }

    #[test]
    fn an_end_behind_room_wakes() {
        let asleep = told(Fate::Blocked, [0, 0]);
        assert!(polled(MOST + 1, &asleep, &told(Fate::Done(1), [END, 0])));
        assert!(!polled(1000, &asleep, &told(Fate::Done(1), [END, 0])));
        assert!(!polled(MOST + 1, &asleep, &told(Fate::Done(1), [END, IN])));
        assert!(!polled(MOST + 1, &told(Fate::Done(1), [END, 0]), &asleep));
    }

    #[test]
    fn apart_only_the_program_ends_processes() {
        let program = program(vec![(0, Op::Kill { actor: 1, signal: libc::SIGTERM })]);
        let run = |end, apart| Transcript { ends: vec![Some(0), end], apart, ..Transcript::default() };
        let differs = |plain, wrapped, apart| ends(&program, &run(plain, false), &run(wrapped, apart)).is_some();
        for (plain, wrapped) in [(None, Some(0)), (Some(0), None), (Some(0), Some(1000 + libc::SIGTERM))] {
            assert!(differs(plain, wrapped, false));
            assert!(!differs(plain, wrapped, true));
        }
        for bad in [libc::SIGSEGV, libc::SIGABRT] {
            assert!(differs(None, Some(1000 + bad), true));
        }
        assert!(differs(Some(0), Some(101), true));
    }
}
