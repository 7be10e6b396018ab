//! Finds the rule, if any, that allows a difference between a step of a wrapped run and of the plain one. `rules` has the reasons.

use crate::op::{Ctl, Memory, Op, Opt, Request, Slot, Time};
use crate::program::Program;
use crate::rules::Rule;
use crate::run::{Entry, Fate};
use crate::share::Seen;

mod killed;
mod room;
use killed::{
    is_file_of_killed, is_left_beside, is_left_registered, is_named_anew, is_reported_elsewhere, is_reset_by_bells,
    is_unnoticed, wakes_by_reset,
};
#[cfg(test)]
pub(crate) use room::MOST;
use room::{
    is_end_behind_room, is_end_behind_room_in_set, is_large, is_left_by_bulk, is_named_before_room,
    is_open_behind_room, is_overfull, is_room_in_set, is_room_of_handler, is_short_of_room, peeks_more_than_fits,
    wakes_by_end,
};

/// The rule that lets a step end at another time, or sleep on; the runs diverge from here.
pub(crate) fn fate(program: &Program, number: usize, plain: &Entry, wrapped: &Entry) -> Option<Rule> {
    if [plain, wrapped].into_iter().any(|entry| ended_by_fault(program, number, entry)) {
        return Some(Rule::FaultSplit);
    }
    if plain.fate == Fate::Skipped {
        return None;
    }
    match () {
        () if is_reported_again(program, number, &[], wrapped) => Some(Rule::EdgeAgain),
        () if wakes_by_sets(program, number, wrapped) => Some(Rule::EdgeAgain),
        () if wakes_by_end(program, number, wrapped) => Some(Rule::BufferRoom),
        () if peeks_more_than_fits(program, number, plain, wrapped) => Some(Rule::BufferRoom),
        () if is_for_nothing(program, number, plain, wrapped) => Some(Rule::ForNothing),
        () if wakes_by_reset(program, number, wrapped) => Some(Rule::LastBell),
        () => None,
    }
}

/// Whether it is a receive of no bytes, which ended by itself in both runs.
fn is_for_nothing(program: &Program, number: usize, plain: &Entry, wrapped: &Entry) -> bool {
    let ends = |entry: &Entry| matches!(entry.fate, Fate::Done(_)) && entry.seen.ret == 0;
    matches!(&program.steps[number].op, Op::Recv(data) if data.len == 0) && ends(plain) && ends(wrapped)
}

/// The rule that allows another result, and whether the runs diverge from here.
pub(crate) fn result(program: &Program, number: usize, plain: &Entry, wrapped: &Entry) -> Option<(Rule, bool)> {
    let (was, is) = (&plain.seen, &wrapped.seen);
    match () {
        () if is_unnoticed(program, number, was, is) => Some((Rule::Unnoticed, true)),
        () if is_reported_elsewhere(program, number, was, is) => Some((Rule::ToldOnce, true)),
        () if is_reset_by_bells(program, number, was, is) => Some((Rule::LastBell, true)),
        () if is_file_of_killed(program, number, was, is) => Some((Rule::LastBell, true)),
        () if is_named_anew(program, number, was, is) => Some((Rule::PortTaken, false)),
        () if is_left_beside(program, number, was, is) => Some((Rule::LeftBeside, true)),
        () if is_left_registered(program, number, was, is) => Some((Rule::LeftBeside, true)),
        () if is_mark_behind_fault(program, number, was, is) => Some((Rule::FaultSplit, true)),
        () if is_urgent_alone(program, number, was, is) => Some((Rule::UrgentAlone, false)),
        () if is_unasked(program, number, was, is) => Some((Rule::Asleep, false)),
        () if is_short_of_room(program, number, was, is) => Some((Rule::BufferRoom, true)),
        () if is_room_in_set(program, number, was, is) => Some((Rule::BufferRoom, true)),
        () if is_named_before_room(program, number, was, is) => Some((Rule::BufferRoom, true)),
        () if reports_sets_again(program, number, was, is) => Some((Rule::EdgeAgain, false)),
        () if !kept_for_next(program, number, was, is).is_empty() => Some((Rule::KernelTurn, false)),
        () if was.ret >= 0 && is_reported_again(program, number, &was.aux, wrapped) => {
            Some((Rule::EdgeAgain, is_reported_as_oneshot(program, number, &was.aux, &is.aux)))
        }
        () => of_call(program, number, was, is),
    }
}

/// The rule for the result of a call by itself, and whether the runs diverge from here.
fn of_call(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> Option<(Rule, bool)> {
    match &program.steps[number].op {
        Op::Ioctl { slot, request: Request::FionRead } if is_left_by_bulk(program, number, *slot, plain, wrapped) => {
            Some((Rule::BufferRoom, false))
        }
        Op::Drain { slot, .. } if is_overfull(program, *slot) => Some((Rule::BufferRoom, true)),
        Op::Recv(data) if is_overfull(program, data.slot) && wrapped.ret >= 0 => Some((Rule::BufferRoom, true)),
        Op::Send(data) if data.memory == Memory::Good => {
            let less = wrapped.ret.min(plain.ret);
            let full = |seen: &Seen| seen.ret >= 0 || seen.errno == libc::EAGAIN;
            (is_large(program, number, (data.slot, data.len)) && full(plain) && full(wrapped) && less < data.len as i64)
                .then_some((Rule::BufferRoom, true))
        }
        Op::Send(data) if matches!(data.memory, Memory::Half(_)) => fault(data.memory, plain, wrapped),
        Op::Recv(data) if matches!(data.memory, Memory::Half(_)) => fault(data.memory, plain, wrapped),
        Op::Poll { entries, .. } if is_end_behind_room(program, number, entries, plain, wrapped) => {
            Some((Rule::BufferRoom, true))
        }
        Op::EpollWait { .. } if is_end_behind_room_in_set(program, number, plain, wrapped) => {
            Some((Rule::BufferRoom, true))
        }
        Op::GetOption { slot, option: Opt::Info } if is_open_behind_room(program, *slot, plain, wrapped) => {
            Some((Rule::BufferRoom, true))
        }
        Op::Signals if is_room_of_handler(program, number, plain, wrapped) => Some((Rule::BufferRoom, true)),
        Op::Timed { slot, us, .. } if is_about_its_time(program, number, (*slot, *us), plain, wrapped) => {
            Some((Rule::Tick, true))
        }
        Op::GetOption { option: Opt::SndBuf | Opt::RcvBuf, .. } if wrapped.ret == 0 => Some((Rule::BufferSize, false)),
        _ => None,
    }
}

/// Whether the only difference is the report of an urgent byte that a receive into a bad page has passed: the kernel forgets such a byte
/// only if it was the last of a segment.
fn is_mark_behind_fault(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let Op::Poll { entries, .. } = &program.steps[number].op else { return false };
    let &[(slot, _)] = &entries[..] else { return false };
    let incoming = program.incoming(slot);
    let passed = |op: &Op| match op {
        Op::Recv(data) => data.memory != Memory::Good && program.incoming(data.slot) == incoming,
        _ => false,
    };
    let shown = |seen: &Seen| seen.aux.first().copied().unwrap_or(0) & !(libc::POLLPRI as u64);
    let before = &program.steps[..number];
    urgent_at(program, number, slot).is_some_and(|mark| before[mark..].iter().any(|step| passed(&step.op)))
        && shown(plain) == shown(wrapped)
        && (plain.errno, plain.signals) == (wrapped.errno, wrapped.signals)
}

/// The step that sent the first urgent byte that comes by a socket.
fn urgent_at(program: &Program, number: usize, slot: Slot) -> Option<usize> {
    let sends = |op: &Op| match op {
        Op::Send(data) => data.flags & libc::MSG_OOB != 0 && program.out(data.slot) == program.incoming(slot),
        _ => false,
    };
    program.steps[..number].iter().position(|step| sends(&step.op))
}

/// Whether the only difference is the readability of sockets with an urgent byte: the next receive shows what can be read.
fn is_urgent_alone(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let Op::Poll { entries, .. } = &program.steps[number].op else { return false };
    let readable = (libc::POLLIN | libc::POLLRDNORM) as u64;
    let fits = |((plain, wrapped), (slot, _)): ((&u64, &u64), &(Slot, i16))| {
        plain == wrapped || plain & !readable == wrapped & !readable && urgent_at(program, number, *slot).is_some()
    };
    (plain.ret, plain.errno, plain.signals) == (wrapped.ret, wrapped.errno, wrapped.signals)
        && (plain.aux.len(), entries.len()) == (wrapped.aux.len(), plain.aux.len())
        && plain.aux.iter().zip(&wrapped.aux).zip(entries).all(fits)
}

/// Whether the only difference is a SIGIO of a socket by which a thread has received while the other end sent.
fn is_unasked(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    /// Its place in the result of [`Op::Signals`].
    const SIGIO: usize = 4;
    let but_that = |seen: &Seen| {
        let mut seen = seen.clone();
        seen.aux.get_mut(SIGIO).into_iter().for_each(|count| *count = 0);
        // How long it took is the run's own.
        seen.took_ns = 0;
        seen
    };
    let before = || program.steps[..number].iter().enumerate();
    let asked = before().filter_map(|(at, step)| match step.op {
        Op::Ioctl { slot, request: Request::FioAsync(true) } => Some((at, program.incoming(slot))),
        _ => None,
    });
    let received = |(asked, stream): (usize, u8)| {
        before().skip(asked).any(|(_, step)| match step.op {
            Op::Exchange { slot, .. } | Op::RecvAll { slot, .. } | Op::RecvToEnd { slot, .. } => {
                program.incoming(slot) == stream
            }
            _ => false,
        })
    };
    matches!(program.steps[number].op, Op::Signals)
        && but_that(plain) == but_that(wrapped)
        && asked.into_iter().any(received)
}

/// Whether a sleep ended by a send from a bad page: the number of bytes that it sent is open.
fn ended_by_fault(program: &Program, number: usize, entry: &Entry) -> bool {
    let Fate::Done(at) = entry.fate else { return false };
    let half = |op: &Op| matches!(op, Op::Send(data) if matches!(data.memory, Memory::Half(_)));
    at != number && half(&program.steps[at].op)
}

/// Whether a slot is an event set with edge-triggered registrations, or one around such a set.
fn has_edges(program: &Program, number: usize, slot: Slot) -> bool {
    has_edges_within(program, number, slot, DEEPEST)
}

fn has_edges_within(program: &Program, number: usize, slot: Slot, deep: u32) -> bool {
    let edges = |op: &Op| match op {
        Op::EpollCtl { set, slot: inner, events, .. } if *set == slot => {
            events & libc::EPOLLET as u32 != 0 || deep > 0 && has_edges_within(program, number, *inner, deep - 1)
        }
        _ => false,
    };
    program.steps[..number].iter().any(|step| edges(&step.op))
}

/// The kernel's limit on sets inside sets.
const DEEPEST: u32 = 4;

/// Whether a poll, which sleeps in the plain run, reported only event sets with edge-triggered registrations.
fn wakes_by_sets(program: &Program, number: usize, wrapped: &Entry) -> bool {
    let Op::Poll { entries, .. } = &program.steps[number].op else { return false };
    let told = entries.iter().zip(&wrapped.seen.aux);
    wrapped.seen.ret > 0
        && entries.len() == wrapped.seen.aux.len()
        && told.into_iter().all(|((slot, _), told)| *told == 0 || has_edges(program, number, *slot))
}

/// The events that a wait with a time on an event set left for the next wait; [`not_reported`] checks them. Empty if the results also
/// differ in another way.
fn kept_for_next(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> Vec<[u64; 2]> {
    let lasts = matches!(program.steps[number].op, Op::EpollWait { time: Time::Ms(_) | Time::Forever, .. });
    let told = |seen: &Seen| -> Vec<[u64; 2]> { seen.aux.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect() };
    let (all, some) = (told(plain), told(wrapped));
    let fits =
        lasts && wrapped.ret > 0 && plain.signals == wrapped.signals && some.iter().all(|pair| all.contains(pair));
    if fits { all.into_iter().filter(|pair| !some.contains(pair)).collect() } else { Vec::new() }
}

/// An event that a wait left for the next one on the same set, and that the next one does not report: the step of the latter, and the data.
/// It is checked only if no step between them received, closed or changed anything, so that the report is still due.
pub(crate) fn not_reported(program: &Program, plain: &[Entry], wrapped: &[Entry]) -> Option<(usize, u64)> {
    let steps = program.steps.iter().zip(plain).zip(wrapped).enumerate();
    steps
        .filter_map(|(number, ((step, plain), one))| {
            let Op::EpollWait { set, .. } = step.op else { return None };
            let left = kept_for_next(program, number, &plain.seen, &one.seen);
            if left.is_empty() {
                return None;
            }
            let keeps = |op: &Op| matches!(op, Op::Send(_) | Op::Poll { .. } | Op::GetOption { .. } | Op::Sleep { .. });
            let (next, _) = program.steps.iter().enumerate().skip(number + 1).find(|(_, step)| !keeps(&step.op))?;
            let Op::EpollWait { set: same, max, .. } = program.steps[next].op else { return None };
            let then = wrapped.get(next).filter(|then| same == set && matches!(then.fate, Fate::Done(_)))?;
            let tells = |data: u64| then.seen.aux.chunks_exact(2).any(|pair| pair[0] == data);
            let full = then.seen.ret >= i64::from(max);
            left.into_iter().find(|pair| !full && !tells(pair[0])).map(|pair| (next, pair[0]))
        })
        .next()
}

/// Whether a poll reported what the plain one did, and besides only event sets with edge-triggered registrations.
fn reports_sets_again(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
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

/// Whether a wait on an event set reported what `plain` did, and besides only edge-triggered registrations.
fn is_reported_again(program: &Program, number: usize, plain: &[u64], wrapped: &Entry) -> bool {
    if !matches!(program.steps[number].op, Op::EpollWait { .. }) || wrapped.seen.ret <= 0 {
        return false;
    }
    let told = |list: &[u64], pair: &[u64]| list.chunks_exact(2).any(|other| other == pair);
    let (edge, once) = (libc::EPOLLET as u32, libc::EPOLLONESHOT as u32);
    // A set in the set is reported again with its members.
    let by_edge = |(slot, events)| events & (edge | once) == edge || has_edges(program, number, slot);
    let by_edge = |data: u64| registered(program, number, data).into_iter().any(by_edge);
    let aux = &wrapped.seen.aux;
    aux.len() == 2 * wrapped.seen.ret as usize
        && plain.chunks_exact(2).all(|pair| told(aux, pair))
        && aux.chunks_exact(2).all(|pair| told(plain, pair) || by_edge(pair[0]))
}

/// Whether an additional report is one-shot: then it is missing when the plain run reports it.
fn is_reported_as_oneshot(program: &Program, number: usize, plain: &[u64], wrapped: &[u64]) -> bool {
    let once = |(_, events)| events & libc::EPOLLONESHOT as u32 != 0;
    let mut besides = wrapped.chunks_exact(2).filter(|pair| plain.chunks_exact(2).all(|other| other != *pair));
    besides.any(|pair| registered(program, number, pair[0]).into_iter().any(once))
}

/// The registrations in sets with that data, the last first, back to the add. A change may have been refused: then an earlier one holds.
fn registered(program: &Program, number: usize, data: u64) -> Vec<(Slot, u32)> {
    let before = program.steps[..number].iter().rev();
    let asked = before.filter_map(|step| match step.op {
        Op::EpollCtl { what: what @ (Ctl::Add | Ctl::Mod), slot, events, data: of, .. } if of == data => {
            Some((what, slot, events))
        }
        _ => None,
    });
    let mut is_added = false;
    let holds = asked.take_while(|(what, ..)| !core::mem::replace(&mut is_added, *what == Ctl::Add));
    holds.map(|(_, slot, events)| (slot, events)).collect()
}

/// Whether a receive on a socket with a time-out ended by it, or by a timer: the time-out is shorter than `us` and two ticks.
fn is_about_its_time(program: &Program, number: usize, (slot, us): (Slot, u32), plain: &Seen, wrapped: &Seen) -> bool {
    /// Two ticks of a kernel that has 250 a second.
    const TICKS_US: i64 = 8_000;
    let limits = |op: &Op| match op {
        Op::SetOption { slot: of, option: Opt::RcvTimeo, value: ms } => {
            *ms != 0
                && i64::from(*ms) * 1_000 < i64::from(us) + TICKS_US
                && program.incoming(*of) == program.incoming(slot)
        }
        _ => false,
    };
    let ended = |seen: &Seen| seen.ret == -1 && matches!(seen.errno, libc::EINTR | libc::EAGAIN);
    program.steps[..number].iter().any(|step| limits(&step.op)) && ended(plain) && ended(wrapped)
}

/// A transfer that meets a bad page: any part of the good memory, or `EFAULT`.
fn fault(memory: Memory, plain: &Seen, wrapped: &Seen) -> Option<(Rule, bool)> {
    let Memory::Half(good) = memory else { return None };
    let fits = |seen: &Seen| {
        if seen.ret < 0 { seen.errno == libc::EFAULT } else { seen.ret > 0 && seen.ret <= i64::from(good) }
    };
    (fits(plain) && fits(wrapped)).then_some((Rule::FaultSplit, true))
}
