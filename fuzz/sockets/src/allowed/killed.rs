//! Differences after the end of a peer: the kernel's report of it depends on the doorbells that the peer had not read, and on the process
//! that checks first.

use crate::op::{ActorId, Ctl, Data, ExitHow, Op, Opt};
use crate::program::Program;
use crate::run::Entry;
use crate::share::Seen;
use crate::via::{RecvVia, SendVia};

/// Whether a process was killed before, and the result of a call is one of TCP if it had been killed a moment earlier or later.
pub(super) fn is_unnoticed(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    if !is_killed(program, number) {
        return false;
    }
    let error = u64::from(libc::POLLERR as u16);
    match &program.steps[number].op {
        Op::Send(data) => {
            // Of several messages the error of one may have taken a SIGPIPE's place.
            let told = data.via == SendVia::Sendmmsg || [plain, wrapped].into_iter().any(is_reset);
            told && [plain, wrapped].into_iter().all(|seen| is_reset(seen) || seen.ret > 0)
        }
        Op::Recv(data) => [plain, wrapped]
            .into_iter()
            .all(|seen| is_reset(seen) || is_end(data, seen) || seen.ret == -1 && seen.errno == libc::EAGAIN),
        Op::Drain { .. } => plain.ret == wrapped.ret && plain.hash == wrapped.hash,
        Op::Poll { .. } => {
            let pairs = || plain.aux.iter().zip(&wrapped.aux);
            pairs().all(|(plain, wrapped)| (plain | error) & wrapped == *wrapped)
        }
        Op::GetOption { option: Opt::Error, .. } => plain.ret == 0 && wrapped.ret == 0,
        // As a send, or a receive, in the middle.
        Op::Exchange { size, .. } => {
            let is_over = |seen: &Seen| matches!(seen.aux[..], [END | RESET | PIPE]);
            [plain, wrapped].into_iter().all(is_over) && plain.ret.abs_diff(wrapped.ret) <= u64::from(*size)
        }
        _ => false,
    }
}

/// How a loop ends (`play::context::ending`): by the end of the stream, or by an error.
const END: u64 = 1;
const RESET: u64 = FAILED + libc::ECONNRESET as u64;
const PIPE: u64 = FAILED + libc::EPIPE as u64;

/// Whether a program that was executed in a child finds a reset, or a spawned one no descriptor, and the peer had left a connection before
/// that another process still holds, or may hold.
pub(super) fn is_left_beside(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let process = |actor: ActorId| program.actors[actor as usize].process;
    let own = process(program.steps[number].actor);
    let ends = |op: &Op| matches!(op, Op::Exit { .. } | Op::Kill { .. } | Op::Close { .. } | Op::Shutdown { .. });
    let left = |at: usize| program.steps[..at].iter().any(|step| ends(&step.op) && process(step.actor) != own);
    let begun = |forked: bool| {
        program.steps[..number].iter().enumerate().any(|(at, step)| match step.op {
            Op::Spawn { actor, fork, .. } => fork == forked && process(actor) == own && left(at),
            _ => false,
        })
    };
    // It is unknown whether a program that a child became has ended, or passed the socket on.
    let steps = || program.steps[..number].iter().enumerate().filter(|(_, step)| process(step.actor) == own);
    let child = steps().find(|(at, step)| matches!(step.op, Op::Child { .. }) && left(*at));
    let executed =
        child.is_some_and(|(child, _)| steps().any(|(at, step)| at > child && matches!(step.op, Op::Exec { .. })));
    let reset = match &program.steps[number].op {
        Op::Recv(_) | Op::Send(_) => plain.ret > 0 && is_reset(wrapped),
        Op::Drain { .. } => plain.ret > 0 && wrapped.ret == 0,
        Op::Poll { entries, .. } => entries.len() == 1 && shows_reset(plain, wrapped),
        _ => false,
    };
    let missing = wrapped.ret == -1 && wrapped.errno == libc::EBADF;
    (begun(true) || executed) && reset || begun(false) && missing
}

/// Whether an event set reports the end, and not the reset, of a socket whose peer was killed. The descriptor was closed here, and a child
/// of this process holds the registration: for such a one the kernel reports its own state.
pub(super) fn is_left_registered(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let Op::EpollWait { set, .. } = program.steps[number].op else { return false };
    let process = |actor: ActorId| program.actors[actor as usize].process;
    let own = process(program.steps[number].actor);
    let before = &program.steps[..number];
    let left = |data: u64| {
        let added = |op: &Op| match op {
            Op::EpollCtl { set: to, what: Ctl::Add | Ctl::Mod, slot, data: of, .. } if *to == set && *of == data => {
                Some(*slot)
            }
            _ => None,
        };
        let mut steps = before.iter().filter(|step| process(step.actor) == own);
        let slot = steps.find_map(|step| added(&step.op));
        let forked = steps.any(|step| matches!(step.op, Op::Fork { .. }));
        forked && steps.any(|step| matches!(step.op, Op::Close { slot: closed, .. } if Some(closed) == slot))
    };
    let reset = (libc::POLLHUP | libc::POLLERR) as u64;
    let fits = |(plain, wrapped): (&[u64], &[u64])| {
        plain == wrapped || plain[0] == wrapped[0] && plain[1] == wrapped[1] | reset && left(plain[0])
    };
    is_killed(program, number)
        && (plain.ret, plain.errno, plain.signals) == (wrapped.ret, wrapped.errno, wrapped.signals)
        && plain.aux.len() == wrapped.aux.len()
        && plain.aux.chunks_exact(2).zip(wrapped.aux.chunks_exact(2)).all(fits)
}

/// Whether a call fails because the connection is gone.
fn is_reset(seen: &Seen) -> bool {
    seen.ret == -1 && matches!(seen.errno, libc::EPIPE | libc::ECONNRESET)
}

/// Whether a receive returns the end of the stream: no bytes, or a message of none.
fn is_end(data: &Data<RecvVia>, seen: &Seen) -> bool {
    seen.ret == 0 || data.via == RecvVia::Recvmmsg && seen.ret == 1 && seen.aux.first() == Some(&0)
}

/// Whether a poll shows a reset where bytes are plain.
fn shows_reset(plain: &Seen, wrapped: &Seen) -> bool {
    let [plain, wrapped] = [plain, wrapped].map(|seen| seen.aux.first().copied().unwrap_or(0));
    let reset = (libc::POLLHUP | libc::POLLERR) as u64;
    plain & libc::POLLIN as u64 != 0 && plain & reset == 0 && wrapped & reset == reset
}

/// An error among the further results of a call: this and its errno (`play`'s `ending::ERROR`).
pub(super) const FAILED: u64 = 1000;

/// Whether a FILE, whose writes the C library makes itself, gets another error for a peer that was killed, or gets it one send earlier.
pub(super) fn is_file_of_killed(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let is_end = |word: &u64| [libc::EPIPE, libc::ECONNRESET].iter().any(|&e| *word == FAILED + e as u64);
    let words = plain.aux.iter().zip(&wrapped.aux);
    matches!(program.steps[number].op, Op::FileWrite { .. })
        && is_killed(program, number)
        && (plain.ret, plain.aux.len()) == (wrapped.ret, wrapped.aux.len())
        && words
            .into_iter()
            .all(|(plain, wrapped)| plain == wrapped || (*plain == 0 || is_end(plain)) && is_end(wrapped))
}

/// Whether a program that was executed with a connection whose peer was killed gets other ports. `play` records in the second word of
/// either name whether the ports are the connection's.
pub(super) fn is_named_anew(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let fits =
        |(at, (plain, wrapped)): (usize, (&u64, &u64))| plain == wrapped || at % 4 == 1 && (*plain, *wrapped) == (1, 0);
    matches!(program.steps[number].op, Op::Names { .. })
        && is_executed(program, number)
        && is_killed(program, number)
        && plain.aux.len() == wrapped.aux.len()
        && plain.aux.iter().zip(&wrapped.aux).enumerate().all(fits)
}

/// The bits by which a poll reports a reset.
const BROKEN: u64 = (libc::POLLHUP | libc::POLLERR) as u64;

/// Whether a program that was executed finds a reset where its peer, which was killed, had read everything but doorbells.
pub(super) fn is_reset_by_bells(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let reset = is_reset(wrapped);
    is_executed(program, number)
        && is_killed(program, number)
        && match &program.steps[number].op {
            Op::Recv(data) => reset && is_end(data, plain),
            // A send of no bytes fails, too.
            Op::Send(_) => reset && plain.ret >= 0,
            Op::Poll { entries, .. } => {
                goes_well(plain, wrapped)
                    && entries.len() == plain.aux.len()
                    && plain.aux.len() == wrapped.aux.len()
                    && plain.aux.iter().zip(&wrapped.aux).zip(entries).all(|((plain, wrapped), (_, asked))| {
                        plain == wrapped || shows_reset_for_end(*plain, *wrapped, *asked)
                    })
            }
            Op::EpollWait { .. } => goes_well(plain, wrapped) && reports_resets_for_ends(&plain.aux, &wrapped.aux),
            // A connection that was reset has no peer: the second of the two names.
            Op::Names { .. } => {
                let named = |seen: &Seen| Some((seen.aux.get(..4)?.to_vec(), *seen.aux.get(4)?));
                let (Some((own, at)), Some((same, none))) = (named(plain), named(wrapped)) else { return false };
                own == same && at == 0 && none == FAILED + libc::ENOTCONN as u64
            }
            _ => false,
        }
}

/// Whether two waits succeeded, the wrapped one with at least as many results.
fn goes_well(plain: &Seen, wrapped: &Seen) -> bool {
    (plain.errno, plain.signals) == (wrapped.errno, wrapped.signals) && plain.ret >= 0 && wrapped.ret >= plain.ret
}

/// Whether the events of a socket are a reset in the place of an end. A reset is reported without a request, an end is not.
fn shows_reset_for_end(plain: u64, wrapped: u64, asked: i16) -> bool {
    // An end is `POLLRDHUP`, or `POLLIN` if `POLLRDHUP` was not requested.
    let end = if asked & libc::POLLRDHUP != 0 { libc::POLLRDHUP } else { libc::POLLIN };
    let ended = plain & end as u64 != 0 || !asks_for_end(asked);
    // Another holder of the socket may have got its error.
    ended && plain | BROKEN == wrapped | libc::POLLERR as u64 && wrapped & libc::POLLHUP as u64 != 0
}

/// Whether a set reports what the plain one does, with resets in the place of ends.
fn reports_resets_for_ends(plain: &[u64], wrapped: &[u64]) -> bool {
    let of = |list: &[u64], data: u64| list.chunks_exact(2).find(|pair| pair[0] == data).map(|pair| pair[1]);
    let ends = (libc::POLLIN | libc::POLLRDHUP) as u64;
    let fits = |pair: &[u64]| match of(plain, pair[0]) {
        Some(told) if told == pair[1] => true,
        Some(told) => told & ends != 0 && told | BROKEN == pair[1] | libc::POLLERR as u64,
        None => pair[1] & BROKEN == BROKEN,
    };
    plain.chunks_exact(2).all(|pair| of(wrapped, pair[0]).is_some()) && wrapped.chunks_exact(2).all(fits)
}

/// Whether a wait of a program that was executed is woken only by a reset, and its peer, which was killed, had read everything but
/// doorbells. In the plain run there is an end, which does not wake a wait that requests neither bytes nor the end.
pub(super) fn wakes_by_reset(program: &Program, number: usize, wrapped: &Entry) -> bool {
    let seen = &wrapped.seen;
    let broken = |told: u64| told & BROKEN == BROKEN;
    let only_resets = match &program.steps[number].op {
        Op::Poll { entries, .. } => {
            let told = entries.iter().zip(&seen.aux);
            entries.len() == seen.aux.len()
                && told.into_iter().all(|((_, asked), told)| *told == 0 || !asks_for_end(*asked) && broken(*told))
        }
        Op::EpollWait { .. } => seen.aux.chunks_exact(2).all(|pair| broken(pair[1])),
        _ => false,
    };
    only_resets && seen.ret > 0 && is_executed(program, number) && is_killed(program, number)
}

/// Whether a poll for these events reports an end.
fn asks_for_end(asked: i16) -> bool {
    asked & (libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP) != 0
}

/// Whether a process was killed before a step.
pub(super) fn is_killed(program: &Program, number: usize) -> bool {
    let kills = |op: &Op| matches!(op, Op::Kill { .. } | Op::Exit { how: ExitHow::Abort, .. });
    program.steps[..number].iter().any(|step| kills(&step.op))
}

/// Whether the process of a step was executed by another one, or executed another program.
fn is_executed(program: &Program, number: usize) -> bool {
    let process = |actor: ActorId| program.actors[actor as usize].process;
    let own = process(program.steps[number].actor);
    program.steps[..number].iter().any(|step| match step.op {
        Op::Exec { .. } => process(step.actor) == own,
        Op::Spawn { actor, .. } => process(actor) == own,
        _ => false,
    })
}

/// Whether a program without the library gets another error, or none, at the end of a connection. Its kernel does not know of a reset
/// because of bytes that a killed peer left in its ring, and while another process holds the connection the reset cannot be repeated.
pub(super) fn is_reported_elsewhere(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let process = |actor: ActorId| program.actors[actor as usize].process;
    let own = process(program.steps[number].actor);
    let unwrapped = program.steps[..number].iter().any(|step| match step.op {
        Op::Exec { plain } => plain && process(step.actor) == own,
        Op::Spawn { actor, plain, .. } => plain && process(actor) == own,
        _ => false,
    });
    unwrapped
        && match &program.steps[number].op {
            Op::Send(_) => is_reset(plain) && is_reset(wrapped),
            Op::Recv(data) => is_reset(plain) && (is_reset(wrapped) || is_end(data, wrapped)),
            // With no reset the direction can still be shut.
            Op::Shutdown { .. } => {
                (plain.ret, plain.errno, wrapped.ret) == (-1, libc::ENOTCONN, 0) && is_killed(program, number)
            }
            _ => false,
        }
}
