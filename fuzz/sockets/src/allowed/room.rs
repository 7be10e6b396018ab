//! Differences because each implementation has its own room for unread bytes.

use super::killed::{FAILED, is_killed};
use crate::generate::UNREAD;
use crate::op::{ActorId, Ctl, Data, Handler, Op, Opt, Slot};
use crate::program::Program;
use crate::run::{Entry, Fate};
use crate::share::Seen;

/// More than a connection has room for.
pub(crate) const MOST: u32 = 1 << 20;

/// Bytes that always fit into a connection without unread bytes.
const SURE: i64 = 16 << 10;
/// With at most so many unread bytes a ring has room for [`SURE`].
const RING: i64 = 48 << 10;

/// Whether a send may find less room than it needs: it is large, or unread bytes before it fill most of a ring.
pub(super) fn is_large(program: &Program, number: usize, (slot, len): (Slot, u32)) -> bool {
    let stream = program.out(slot);
    let unread = program.steps[..number].iter().fold(0, |unread: i64, step| match &step.op {
        Op::Send(data) if program.out(data.slot) == stream => unread + data.len as i64,
        Op::SendAll { slot, len, .. } if program.out(*slot) == stream => unread + *len as i64,
        Op::RecvAll { slot, len, .. } if program.incoming(*slot) == stream => (unread - *len as i64).max(0),
        Op::Drain { slot, .. } if program.incoming(*slot) == stream => 0,
        _ => unread,
    });
    i64::from(len) > SURE || unread > RING
}

/// Whether two waits differ only in room to write, and a buffer was made so small that a few doorbells fill it, or bytes that the peer's
/// kernel acknowledges late.
pub(super) fn is_short_of_room(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    const TINY: i32 = 4096;
    let tiny = |op: &Op| matches!(op, Op::SetOption { option: Opt::SndBuf, value, .. } if *value <= TINY);
    if plain.ret < 0 || wrapped.ret < 0 || !program.steps[..number].iter().any(|step| tiny(&step.op)) {
        return false;
    }
    let room = libc::POLLOUT as u64;
    let sent = program.steps[..number].iter().any(|step| matches!(step.op, Op::Send(_) | Op::SendAll { .. }));
    let same = |plain: u64, wrapped: u64| wrapped & !room == plain & !room && (sent || wrapped & room <= plain & room);
    match &program.steps[number].op {
        Op::EpollWait { .. } => {
            let told = |list: &[u64], data: u64| {
                list.chunks_exact(2).filter(|pair| pair[0] == data).fold(0, |all, pair| all | pair[1])
            };
            let of_both = plain.aux.chunks_exact(2).chain(wrapped.aux.chunks_exact(2));
            of_both.map(|pair| pair[0]).all(|data| same(told(&plain.aux, data), told(&wrapped.aux, data)))
        }
        Op::Poll { entries, .. } => {
            entries.len() == plain.aux.len()
                && plain.aux.len() == wrapped.aux.len()
                && plain.aux.iter().zip(&wrapped.aux).all(|(plain, wrapped)| same(*plain, *wrapped))
        }
        _ => false,
    }
}

/// Whether more was sent to this end than fits for certain, so that an unknown part of it may not have come.
pub(super) fn is_overfull(program: &Program, slot: Slot) -> bool {
    program.steps.iter().any(|step| match &step.op {
        Op::Send(data) => data.len > MOST && program.out(data.slot) == program.incoming(slot),
        _ => false,
    })
}

/// Whether a count of unread bytes is that of a transfer, in one call or in many, that was not received since the descriptor was closed. In
/// the plain run a part of it waits at the sender for the window to open. Only such a transfer leaves so many bytes, and no more can be
/// unread than was sent.
pub(super) fn is_left_by_bulk(program: &Program, number: usize, slot: Slot, plain: &Seen, wrapped: &Seen) -> bool {
    let sent = |op: &Op| match op {
        Op::SendAll { slot: from, len, .. } | Op::Send(Data { slot: from, len, .. })
            if program.out(*from) == program.incoming(slot) =>
        {
            u64::from(*len)
        }
        _ => 0,
    };
    let most = UNREAD + program.steps[..number].iter().map(|step| sent(&step.op)).sum::<u64>();
    [plain, wrapped].into_iter().all(|seen| seen.ret == 0 && matches!(seen.aux[..], [n] if n > UNREAD && n <= most))
}

/// Whether the only difference is the end of overfull streams: in the plain run the end is behind bytes that have no room yet.
pub(super) fn is_end_behind_room(
    program: &Program,
    number: usize,
    entries: &[(Slot, i16)],
    plain: &Seen,
    wrapped: &Seen,
) -> bool {
    let before = &program.steps[..number];
    // An entry without other events counts because of its end.
    let counted = |seen: &Seen| seen.ret == seen.aux.iter().filter(|word| **word != 0).count() as i64;
    let same = (plain.errno, plain.signals) == (wrapped.errno, wrapped.signals) && counted(plain) && counted(wrapped);
    let words = plain.aux.iter().zip(&wrapped.aux).zip(entries);
    let deaf = |op: &Op, slot: Slot| match op {
        Op::Shutdown { slot: shut, how } => *how != libc::SHUT_WR && program.incoming(*shut) == program.incoming(slot),
        _ => false,
    };
    let fit = |((plain, wrapped), (slot, _)): ((&u64, &u64), &(Slot, i16))| {
        let (end, error) = ((libc::POLLRDHUP | libc::POLLHUP) as u64, libc::POLLERR as u64);
        // Bytes that come to a socket that is shut for receiving reset it: in the plain run those that had no room before.
        let reset = plain & error != 0 && before.iter().any(|step| deaf(&step.op, *slot));
        let plain_end = if reset { plain & !error } else { *plain };
        let later = plain_end & !end == wrapped & !end && plain_end & wrapped == plain_end;
        plain == wrapped || later && is_overfull(program, *slot)
    };
    same && plain.aux.len() == wrapped.aux.len() && words.into_iter().all(fit)
}

/// The same for an event set, by the sockets that are registered there.
pub(super) fn is_end_behind_room_in_set(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let Op::EpollWait { set, .. } = program.steps[number].op else { return false };
    let is_overfull_by = |data: u64| {
        program.steps[..number].iter().any(|step| match step.op {
            Op::EpollCtl { set: to, what: Ctl::Add | Ctl::Mod, slot, data: of, .. } => {
                to == set && of == data && is_overfull(program, slot)
            }
            _ => false,
        })
    };
    let end = (libc::POLLRDHUP | libc::POLLHUP) as u64;
    let of = |seen: &Seen, data: u64| seen.aux.chunks_exact(2).find(|pair| pair[0] == data).map(|pair| pair[1]);
    let fits = |pair: &[u64]| {
        let told = of(plain, pair[0]).unwrap_or(0);
        let later = told & !end == pair[1] & !end && told & pair[1] == told;
        told == pair[1] || later && is_overfull_by(pair[0])
    };
    let counted = |seen: &Seen| seen.ret == seen.aux.chunks_exact(2).len() as i64;
    (plain.errno, plain.signals) == (wrapped.errno, wrapped.signals)
        && counted(plain)
        && counted(wrapped)
        && plain.aux.chunks_exact(2).all(|pair| of(wrapped, pair[0]).is_some())
        && wrapped.aux.chunks_exact(2).all(fits)
}

/// Whether a connection still has the name of its peer, which was killed with unread bytes. They were in its ring, so its kernel does not
/// reset the connection, and the end is behind bytes that have no room. A receiver of these bytes gets the reset after them.
pub(super) fn is_named_before_room(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let Op::Names { slot } = program.steps[number].op else { return false };
    // The second of the two names.
    let parts = |seen: &Seen| Some((seen.aux.get(..4)?.to_vec(), *seen.aux.get(4)?));
    let (Some((own, none)), Some((same, told))) = (parts(plain), parts(wrapped)) else { return false };
    let lost_its_name = own == same && (none, told) == (FAILED + libc::ENOTCONN as u64, 0);
    lost_its_name && is_killed(program, number) && is_overfull(program, slot)
}

/// Whether a connection is still open because its end is behind bytes that have no room.
pub(super) fn is_open_behind_room(program: &Program, slot: Slot, plain: &Seen, wrapped: &Seen) -> bool {
    // States of linux/tcp_states.h.
    const ESTABLISHED: u64 = 1;
    const CLOSE_WAIT: u64 = 8;
    (&plain.aux[..], &wrapped.aux[..]) == (&[ESTABLISHED], &[CLOSE_WAIT]) && is_overfull(program, slot)
}

/// Whether a wait, which sleeps in the plain run, reported only such an end.
pub(super) fn wakes_by_end(program: &Program, number: usize, wrapped: &Entry) -> bool {
    let only_ends = match &program.steps[number].op {
        Op::Poll { entries, .. } => {
            let silent = Seen { aux: vec![0; wrapped.seen.aux.len()], ..Seen::default() };
            is_end_behind_room(program, number, entries, &silent, &wrapped.seen)
        }
        _ => is_end_behind_room_in_set(program, number, &Seen::default(), &wrapped.seen),
    };
    wrapped.seen.ret > 0 && only_ends
}

/// Whether a peek waits for more bytes than the kernel buffers for a reader that reads none. The plain one sleeps for ever, however many
/// were sent (the first window is half of `tcp_rmem`'s default, and grows as bytes are read).
pub(super) fn peeks_more_than_fits(program: &Program, number: usize, plain: &Entry, wrapped: &Entry) -> bool {
    const WINDOW: u32 = 65_535;
    const ALL: i32 = libc::MSG_PEEK | libc::MSG_WAITALL;
    let Op::Recv(data) = &program.steps[number].op else { return false };
    let has_all = matches!(wrapped.fate, Fate::Done(_)) && wrapped.seen.ret == i64::from(data.len);
    data.flags & ALL == ALL && data.len > WINDOW && plain.fate == Fate::Blocked && has_all
}

/// Whether the only difference is that event sets report room on connections into which more is being sent than fits. When the ring ends
/// the kernel has room for a moment, until the sender takes it.
pub(super) fn is_room_in_set(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    let before = &program.steps[..number];
    let is_fed = |slot: Slot| {
        let fits =
            |op: &Op| !matches!(op, Op::Send(data) if data.len > MOST && program.out(data.slot) == program.out(slot));
        before.iter().any(|step| !fits(&step.op))
    };
    let asks = |set: Slot, of: Option<u64>| {
        before.iter().any(|step| match step.op {
            Op::EpollCtl { set: to, what: Ctl::Add | Ctl::Mod, slot, events, data } => {
                let is_meant = to == set && of.is_none_or(|of| of == data);
                is_meant && events & libc::EPOLLOUT as u32 != 0 && is_fed(slot)
            }
            _ => false,
        })
    };
    let differs = |plain: u64, wrapped: u64, room: i32| plain & !(room as u64) == wrapped & !(room as u64);
    match &program.steps[number].op {
        Op::Poll { entries, .. } => {
            let counted = |seen: &Seen| seen.ret == seen.aux.iter().filter(|word| **word != 0).count() as i64;
            let is_room = |((slot, _), (plain, wrapped)): (&(Slot, i16), (&u64, &u64))| {
                plain == wrapped || differs(*plain, *wrapped, libc::POLLIN.into()) && asks(*slot, None)
            };
            let words = plain.aux.iter().zip(&wrapped.aux);
            let same = (plain.errno, plain.signals, plain.aux.len()) == (wrapped.errno, wrapped.signals, entries.len());
            same && counted(plain)
                && counted(wrapped)
                && words.len() == entries.len()
                && entries.iter().zip(words).all(is_room)
        }
        Op::EpollWait { set, .. } => {
            let of = |seen: &Seen, data: u64| {
                seen.aux.chunks_exact(2).filter(|pair| pair[0] == data).fold(0, |all, pair| all | pair[1])
            };
            let both = plain.aux.chunks_exact(2).chain(wrapped.aux.chunks_exact(2)).map(|pair| pair[0]);
            let is_room = |data: u64| {
                let (plain, wrapped) = (of(plain, data), of(wrapped, data));
                plain == wrapped || differs(plain, wrapped, libc::EPOLLOUT) && asks(*set, Some(data))
            };
            plain.ret >= 0 && wrapped.ret >= 0 && both.into_iter().all(is_room)
        }
        _ => false,
    }
}

/// Whether the only difference is whether a signal handler's send, which does not wait, found room behind one that fills the connection.
pub(super) fn is_room_of_handler(program: &Program, number: usize, plain: &Seen, wrapped: &Seen) -> bool {
    const ANSWER: usize = 5;
    let process = |actor: ActorId| program.actors[actor as usize].process;
    let own = process(program.steps[number].actor);
    let handlers = program.steps[..number].iter().filter(|step| process(step.actor) == own);
    let sends = handlers.filter_map(|step| match step.op {
        Op::Handle(Handler::Send(slot, len)) => Some((slot, u32::from(len))),
        _ => None,
    });
    let full = (libc::EAGAIN as u64) << 32;
    // None, a part, or all of it.
    let answer = |seen: &Seen, len: u32| {
        seen.aux.get(ANSWER).is_some_and(|word| *word == full || (2..=u64::from(len) + 1).contains(word))
    };
    let fits =
        |(slot, len): (Slot, u32)| answer(plain, len) && answer(wrapped, len) && is_large(program, number, (slot, len));
    matches!(program.steps[number].op, Op::Signals)
        && (plain.ret, plain.aux.len()) == (wrapped.ret, wrapped.aux.len())
        && plain.aux.iter().zip(&wrapped.aux).enumerate().all(|(at, (plain, wrapped))| at == ANSWER || plain == wrapped)
        && sends.into_iter().any(fits)
}
