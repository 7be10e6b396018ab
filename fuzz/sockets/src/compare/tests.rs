//! Each rule with a difference that it allows, and one beside it that it does not.

use super::*;
use crate::allowed::MOST;
use crate::op::{Ctl, Data, ExitHow, Handler, Memory, Opt, Pieces, Request};
use crate::program::{Actor, Kind, Process, Role, Step, Theme};
use crate::via::{CloseVia, EpollVia, FileVia, ForkVia, PollVia, RecvVia, SendVia, StormVia};

/// Two processes with one connection; the second one's end is slot 1.
fn program(ops: Vec<(ActorId, Op)>) -> Program {
    let step = |(actor, op)| Step { actor, op, together: false, held: false };
    Program {
        seed: 0,
        theme: Theme::Kill,
        free: false,
        one_cpu: true,
        processes: vec![Process { role: Role::Server, initial: true }, Process { role: Role::Client, initial: true }],
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
    !matches!(step(&program, 1, plain, wrapped, &mut Counts::default()), Verdict::Differs(_))
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
fn an_event_set_tells_of_an_end_behind_room() {
    let differs = |sent: u32, plain: Option<&[u64]>, wrapped: &[u64]| {
        let add = (0, Op::EpollCtl { set: 5, what: Ctl::Add, slot: 0, events: 5, data: 7 });
        let wait = (0, Op::EpollWait { set: 5, max: 4, via: EpollVia::Wait, time: Time::Forever });
        let program = program(vec![flood(sent), add, wait]);
        let told = |fate, aux: &[u64]| Entry {
            fate,
            seen: Seen { ret: aux.len() as i64 / 2, aux: aux.to_vec(), ..Seen::default() },
        };
        let plain = plain.map_or_else(|| told(Fate::Blocked, &[]), |aux| told(Fate::Done(2), aux));
        let verdict = step(&program, 2, &plain, &told(Fate::Done(2), wrapped), &mut Counts::default());
        matches!(verdict, Verdict::Differs(_))
    };
    let (all, gone) = (5, 5 | libc::POLLHUP as u64);
    assert!(!differs(MOST + 1, Some(&[7, all]), &[7, gone]));
    assert!(!differs(MOST + 1, None, &[7, libc::POLLHUP as u64]));
    assert!(differs(1000, Some(&[7, all]), &[7, gone]), "it fits");
    assert!(differs(MOST + 1, Some(&[7, gone]), &[7, all]), "it is told of the end, and was not to be");
    assert!(differs(MOST + 1, Some(&[7, all]), &[7, IN | libc::POLLHUP as u64]), "room is told of, too");
    assert!(differs(MOST + 1, None, &[7, gone]), "bytes are not to be told of");
    assert!(differs(MOST + 1, Some(&[7, all]), &[8, gone]), "another one");
}

#[test]
fn a_registration_that_a_child_holds_tells_of_no_reset() {
    let killed = || (0, Op::Exit { how: ExitHow::Abort });
    let add = || (1, Op::EpollCtl { set: 5, what: Ctl::Add, slot: 1, events: 5, data: 7 });
    let fork = || (1, Op::Fork { actor: 1, via: ForkVia::Fork });
    let close = || (1, Op::Close { slot: 1, via: CloseVia::Close });
    let waited = |before: Vec<(ActorId, Op)>, wrapped: u64| {
        let number = before.len();
        let wait = (1, Op::EpollWait { set: 5, max: 4, via: EpollVia::Wait, time: Time::Zero });
        let program = program([before, vec![wait]].concat());
        let seen = |events| Seen { ret: 1, aux: vec![7, events], ..Seen::default() };
        let [plain, wrapped] = [0x1d, wrapped].map(|events| Entry { fate: Fate::Done(number), seen: seen(events) });
        step(&program, number, &plain, &wrapped, &mut Counts::default())
    };
    assert_eq!(waited(vec![killed(), add(), fork(), close()], 5), Verdict::Apart);
    assert!(matches!(waited(vec![killed(), add(), fork(), close()], 1), Verdict::Differs(_)));
    assert!(matches!(waited(vec![killed(), add(), fork()], 5), Verdict::Differs(_)));
    assert!(matches!(waited(vec![killed(), fork(), close(), add()], 5), Verdict::Differs(_)));
    assert!(matches!(waited(vec![add(), fork(), close()], 5), Verdict::Differs(_)));
}

#[test]
fn a_timer_comes_before_a_time_out_or_behind_it() {
    let timed = |value: i32, wrapped: i32| {
        let limit = (1, Op::SetOption { slot: 1, option: Opt::RcvTimeo, value });
        let program = program(vec![limit, (1, Op::Timed { slot: 1, len: 9, us: 1_100 })]);
        let seen = |errno| Entry { fate: Fate::Done(1), seen: Seen { ret: -1, errno, ..Seen::default() } };
        step(&program, 1, &seen(libc::EINTR), &seen(wrapped), &mut Counts::default())
    };
    assert_eq!(timed(2, libc::EAGAIN), Verdict::Apart);
    assert!(matches!(timed(10, libc::EAGAIN), Verdict::Differs(_)), "a signal that is lost");
    assert!(matches!(timed(0, libc::EAGAIN), Verdict::Differs(_)));
    assert!(matches!(timed(2, libc::ECONNRESET), Verdict::Differs(_)));
}

#[test]
fn bytes_without_room_reset_who_has_shut_receiving() {
    let polled = |len: u32, how: i32| {
        let shut = (0, Op::Shutdown { slot: 0, how });
        let poll = Op::Poll { entries: vec![(0, libc::POLLIN)], via: PollVia::Poll, time: Time::Zero };
        let program = program(vec![flood(len), shut, (0, poll)]);
        let seen = |word| Entry { fate: Fate::Done(2), seen: Seen { ret: 1, aux: vec![word], ..Seen::default() } };
        let (end, error) = (IN | libc::POLLHUP as u64, libc::POLLERR as u64);
        step(&program, 2, &seen(end | error), &seen(end), &mut Counts::default())
    };
    assert_eq!(polled(MOST + 1, libc::SHUT_RDWR), Verdict::Apart);
    assert!(matches!(polled(1000, libc::SHUT_RDWR), Verdict::Differs(_)));
    assert!(matches!(polled(MOST + 1, libc::SHUT_WR), Verdict::Differs(_)));
}

#[test]
fn an_end_behind_room_leaves_a_connection_open() {
    let told = |sent: u32, plain, wrapped| {
        let program = program(vec![flood(sent), (0, Op::GetOption { slot: 0, option: Opt::Info })]);
        let seen = |state| Entry { fate: Fate::Done(1), seen: Seen { aux: vec![state], ..Seen::default() } };
        step(&program, 1, &seen(plain), &seen(wrapped), &mut Counts::default())
    };
    assert_eq!(told(MOST + 1, 1, 8), Verdict::Apart);
    assert!(matches!(told(1000, 1, 8), Verdict::Differs(_)));
    assert!(matches!(told(MOST + 1, 8, 1), Verdict::Differs(_)));
    assert!(matches!(told(MOST + 1, 1, 7), Verdict::Differs(_)));
}

#[test]
fn a_killed_peer_behind_room_has_its_name() {
    let kill = (0, Op::Exit { how: ExitHow::Abort });
    let named = |before: Vec<(ActorId, Op)>, peer: u64| {
        let number = before.len();
        let program = program([before, vec![(0, Op::Names { slot: 0 })]].concat());
        let seen = |peer| Seen { aux: vec![0, 1, 2, 16, peer, 0, 0, 32], ..Seen::default() };
        let done = |peer| Entry { fate: Fate::Done(number), seen: seen(peer) };
        step(&program, number, &done(peer), &done(0), &mut Counts::default())
    };
    let none = 1000 + libc::ENOTCONN as u64;
    assert_eq!(named(vec![flood(MOST + 1), kill.clone()], none), Verdict::Apart);
    assert!(matches!(named(vec![flood(MOST + 1)], none), Verdict::Differs(_)), "nobody was killed");
    assert!(matches!(named(vec![flood(1000), kill.clone()], none), Verdict::Differs(_)), "all of it has room");
    assert!(matches!(named(vec![flood(MOST + 1), kill], 1000 + libc::EBADF as u64), Verdict::Differs(_)));
}

#[test]
fn a_handler_finds_room_or_none_behind_much() {
    let told = |sent: u32, plain: u64, wrapped: u64| {
        let handle = (1, Op::Handle(Handler::Send(1, 377)));
        let program = program(vec![handle, flood(sent), (1, Op::Signals)]);
        let seen = |answer| Seen { aux: vec![1, 0, 0, 0, 0, answer], ..Seen::default() };
        let done = |answer| Entry { fate: Fate::Done(2), seen: seen(answer) };
        step(&program, 2, &done(plain), &done(wrapped), &mut Counts::default())
    };
    let full = (libc::EAGAIN as u64) << 32;
    assert_eq!(told(MOST + 1, full, 378), Verdict::Apart);
    assert_eq!(told(MOST + 1, 378, full), Verdict::Apart);
    assert!(matches!(told(1000, full, 378), Verdict::Differs(_)), "there was room");
    assert_eq!(told(MOST + 1, full, 100), Verdict::Apart, "a part of it");
    assert!(matches!(told(MOST + 1, full, 379), Verdict::Differs(_)), "more than all");
    assert!(matches!(told(MOST + 1, (libc::EPIPE as u64) << 32, 378), Verdict::Differs(_)));
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
fn a_look_at_all_sees_more_than_the_kernel_has_room_for() {
    let peeked = |len: u32, flags: i32, ret: i64| {
        let via = RecvVia::Recv;
        let peek = Op::Recv(Data { slot: 0, len, via, flags, memory: Memory::Good, pieces: Pieces::One });
        let program = program(vec![(0, peek), flood(200_000)]);
        let wrapped = Entry { fate: Fate::Done(1), seen: Seen { ret, ..Seen::default() } };
        let asleep = Entry { fate: Fate::Blocked, seen: Seen::default() };
        let verdict = step(&program, 0, &asleep, &wrapped, &mut Counts::default());
        let slept = step(&program, 0, &wrapped, &asleep, &mut Counts::default());
        assert!(matches!(slept, Verdict::Differs(_)), "it is never to sleep where plain wakes");
        verdict == Verdict::Apart
    };
    const ALL: i32 = libc::MSG_PEEK | libc::MSG_WAITALL;
    assert!(peeked(130_000, ALL, 130_000));
    assert!(!peeked(130_000, ALL, 100_000));
    assert!(!peeked(60_000, ALL, 60_000));
    assert!(!peeked(130_000, libc::MSG_WAITALL, 130_000));
}

#[test]
fn room_is_short_in_tiny_buffers() {
    let waited = |size: i32, plain: &[u64], wrapped: &[u64]| {
        let option = Op::SetOption { slot: 1, option: Opt::SndBuf, value: size };
        let wait = Op::EpollWait { set: 5, max: 4, via: EpollVia::Wait, time: Time::Zero };
        let program = program(vec![(1, option), (1, wait)]);
        let told = |aux: &[u64]| {
            let seen = Seen { ret: aux.len() as i64 / 2, aux: aux.to_vec(), ..Seen::default() };
            Entry { fate: Fate::Done(1), seen }
        };
        step(&program, 1, &told(plain), &told(wrapped), &mut Counts::default()) == Verdict::Apart
    };
    const OUT: u64 = libc::POLLOUT as u64;
    assert!(waited(1, &[7, OUT], &[]));
    assert!(waited(1, &[7, IN | OUT, 8, IN], &[7, IN, 8, IN]));
    assert!(!waited(20_000, &[7, OUT], &[]));
    assert!(!waited(1, &[], &[7, OUT]));
    assert!(!waited(1, &[7, IN | OUT], &[]));
}

#[test]
fn a_set_may_tell_of_room_on_what_more_is_sent_into_than_fits() {
    let add = |events: i32| {
        let events = events as u32;
        (0, Op::EpollCtl { set: 5, what: Ctl::Add, slot: 1, events, data: 7 })
    };
    let peek = (0, Op::Poll { entries: vec![(5, 1), (6, 1)], via: PollVia::Poll, time: Time::Zero });
    let wait = (0, Op::EpollWait { set: 5, max: 4, via: EpollVia::Wait, time: Time::Zero });
    let differs = |len: u32, events: i32, last: &(ActorId, Op), ret: i64, aux: [u64; 2]| {
        let program = program(vec![add(events), flood(len), last.clone()]);
        let nothing = if matches!(last.1, Op::Poll { .. }) { vec![0, 0] } else { vec![] };
        let of = |ret, aux: Vec<u64>| Entry { fate: Fate::Done(2), seen: Seen { ret, aux, ..Seen::default() } };
        let verdict = step(&program, 2, &of(0, nothing), &of(ret, aux.to_vec()), &mut Counts::default());
        matches!(verdict, Verdict::Differs(_))
    };
    let (out, both) = (libc::EPOLLOUT, libc::EPOLLIN | libc::EPOLLOUT);
    assert!(!differs(MOST + 1, out, &peek, 1, [1, 0]) && !differs(MOST + 1, both, &wait, 1, [7, out as u64]));
    assert!(differs(MOST, out, &peek, 1, [1, 0]) && differs(MOST, both, &wait, 1, [7, out as u64]), "it fits");
    assert!(differs(MOST + 1, libc::EPOLLIN, &peek, 1, [1, 0]), "nobody asked for room");
    assert!(differs(MOST + 1, out, &peek, 1, [0, 1]), "another set");
    assert!(differs(MOST + 1, out, &peek, 2, [1, 0]), "miscounted");
    assert!(differs(MOST + 1, both, &wait, 1, [7, both as u64]) && differs(MOST + 1, out, &wait, 1, [8, out as u64]));
}

#[test]
fn a_ring_may_be_full_of_what_is_unread() {
    let all = |slot, len| Op::SendAll { slot, len, chunk: len, via: SendVia::Send, lane: 0 };
    let sent = |before: Vec<(ActorId, Op)>| {
        let number = before.len();
        let program = program(before.into_iter().chain([flood(3_501)]).collect());
        let entry = |ret| Entry { fate: Fate::Done(number), seen: Seen { ret, ..Seen::default() } };
        step(&program, number, &entry(3_501), &entry(2_740), &mut Counts::default()) == Verdict::Apart
    };
    assert!(sent(vec![(1, all(1, 62_796))]));
    assert!(!sent(vec![(1, all(1, 20_000))]));
    assert!(!sent(vec![(0, all(0, 62_796))]), "it went the other way");
    let received = Op::RecvAll { slot: 0, len: 62_796, chunk: 62_796, via: RecvVia::Recv };
    assert!(!sent(vec![(1, all(1, 62_796)), (0, received)]), "nothing is unread");
}

#[test]
fn polls_beside_a_kill_may_be_told_less() {
    let polled = |plain: [u64; 2], wrapped: [u64; 2]| {
        let kill = (0, Op::Kill { actor: 1, signal: libc::SIGKILL });
        let program = program(vec![kill, poll()]);
        let done = Fate::Done(1);
        !matches!(
            step(&program, 1, &told(done, plain), &told(done, wrapped), &mut Counts::default()),
            Verdict::Differs(_)
        )
    };
    assert!(polled([END, IN], [0, IN]));
    assert!(!polled([0, IN], [END, IN]), "nothing is told too much");
}

#[test]
fn an_exchange_with_a_killed_peer_ends_one_way_or_the_other() {
    let (reset, pipe) = (1000 + libc::ECONNRESET as u64, 1000 + libc::EPIPE as u64);
    let (send, recv) = (SendVia::Send, RecvVia::Recv);
    let all = |killed: bool, plain: (i64, u64), wrapped: (i64, u64)| {
        let first = if killed { (0, Op::Exit { how: ExitHow::Abort }) } else { flood(1) };
        let program = program(vec![first, (1, Op::Exchange { slot: 1, first: true, rounds: 3, size: 10, send, recv })]);
        let told = |(ret, end)| Entry { fate: Fate::Done(1), seen: Seen { ret, aux: vec![end], ..Seen::default() } };
        !matches!(step(&program, 1, &told(plain), &told(wrapped), &mut Counts::default()), Verdict::Differs(_))
    };
    assert!(all(true, (0, pipe), (0, reset)));
    assert!(all(true, (10, 1), (0, reset)));
    assert!(!all(true, (20, 1), (0, reset)), "a send at most");
    assert!(!all(true, (0, pipe), (0, 0)));
    assert!(!all(false, (0, pipe), (0, reset)));
}

#[test]
fn a_receive_of_nothing_ends_at_any_time() {
    let ended = |len: u32, at: usize, ret: i64| {
        let data = Data { slot: 0, len, via: RecvVia::Recv, flags: 0, memory: Memory::Good, pieces: Pieces::One };
        let program = program(vec![flood(1), (0, Op::Recv(data)), flood(1)]);
        let entry = |at: usize, ret: i64| Entry { fate: Fate::Done(at), seen: Seen { ret, ..Seen::default() } };
        step(&program, 1, &entry(2, 0), &entry(at, ret), &mut Counts::default())
    };
    assert!(!matches!(ended(0, 1, 0), Verdict::Differs(_)));
    assert!(matches!(ended(0, 1, -1), Verdict::Differs(_)));
    assert!(matches!(ended(1, 1, 0), Verdict::Differs(_)));
}

#[test]
fn a_file_may_be_told_another_end_of_a_killed_peer() {
    let write = (1, Op::FileWrite { file: 3, len: 1, via: FileVia::Character });
    let killed = (0, Op::Exit { how: ExitHow::Abort });
    let wrote = |before: &(ActorId, Op), plain: u64, wrapped: u64| {
        let program = program(vec![before.clone(), write.clone()]);
        let seen = |word| Entry { fate: Fate::Done(1), seen: Seen { ret: 1, aux: vec![word], ..Seen::default() } };
        step(&program, 1, &seen(plain), &seen(wrapped), &mut Counts::default()) == Verdict::Apart
    };
    assert!(wrote(&killed, 1000 + 32, 1000 + 104));
    assert!(wrote(&killed, 0, 1000 + 104), "one send earlier");
    assert!(!wrote(&killed, 1000 + 32, 0));
    assert!(!wrote(&flood(1), 0, 1000 + 104));
}

#[test]
fn a_program_without_the_library_shuts_a_direction_of_a_killed_peer() {
    let shut = |before: Vec<(ActorId, Op)>, plain: (i64, i32), ret: i64| {
        let number = before.len();
        let program = program([before, vec![(1, Op::Shutdown { slot: 1, how: libc::SHUT_RD })]].concat());
        let told = |ret, errno| Entry { fate: Fate::Done(number), seen: Seen { ret, errno, ..Seen::default() } };
        step(&program, number, &told(plain.0, plain.1), &told(ret, 0), &mut Counts::default()) == Verdict::Apart
    };
    let (killed, executed) = ((0, Op::Exit { how: ExitHow::Abort }), |plain| (1, Op::Exec { plain }));
    assert!(shut(vec![killed.clone(), executed(true)], (-1, libc::ENOTCONN), 0));
    assert!(!shut(vec![killed.clone(), executed(false)], (-1, libc::ENOTCONN), 0), "a wrapped one is told");
    assert!(!shut(vec![executed(true)], (-1, libc::ENOTCONN), 0), "nobody was killed");
    assert!(!shut(vec![killed, executed(true)], (-1, libc::EBADF), 0));
}

#[test]
fn doorbells_reset_what_was_executed_where_its_peer_was_killed() {
    const RESET: u64 = (libc::POLLHUP | libc::POLLERR) as u64;
    let (exec, kill) = ((1, Op::Exec { plain: false }), (0, Op::Exit { how: ExitHow::Abort }));
    let waited = |before: &[(ActorId, Op)], wait: Op, plain: &Entry, wrapped: &Entry| {
        let program = program([before, &[(1, wait)]].concat());
        let verdict = step(&program, before.len(), plain, wrapped, &mut Counts::default());
        !matches!(verdict, Verdict::Differs(_))
    };
    let both = [exec.clone(), kill.clone()];
    let done =
        |ret: i64, aux: &[u64]| Entry { fate: Fate::Done(2), seen: Seen { ret, aux: aux.to_vec(), ..Seen::default() } };
    // A poll for urgent bytes sleeps on at an end, and wakes at a reset.
    let poll = |asked| Op::Poll { entries: vec![(1, asked)], via: PollVia::Poll, time: Time::Forever };
    let asleep = Entry { fate: Fate::Blocked, seen: Seen::default() };
    assert!(waited(&both, poll(libc::POLLPRI), &asleep, &done(1, &[RESET])));
    assert!(!waited(&both, poll(libc::POLLIN), &asleep, &done(1, &[RESET])), "an end wakes it");
    assert!(!waited(&both, poll(libc::POLLPRI), &asleep, &done(1, &[libc::POLLPRI as u64])));
    assert!(!waited(&[exec, flood(1)], poll(libc::POLLPRI), &asleep, &done(1, &[RESET])), "nobody was killed");
    // A set reports a reset for an end.
    let wait = || Op::EpollWait { set: 5, max: 4, via: EpollVia::Wait, time: Time::Zero };
    assert!(waited(&both, wait(), &done(1, &[7, IN | END]), &done(1, &[7, IN | END | RESET])));
    assert!(!waited(&both, wait(), &done(1, &[7, IN | END]), &done(0, &[])));
    assert!(!waited(&both, wait(), &done(1, &[7, libc::POLLOUT as u64]), &done(1, &[7, IN])));
    // A send is taken at an end, one of nothing, too, and finds the reset.
    let refused = Seen { ret: -1, errno: libc::ECONNRESET, ..Seen::default() };
    let refused = Entry { fate: Fate::Done(2), seen: refused };
    let sent = |before: &[(ActorId, Op)], len: u32| waited(before, flood(len).1, &done(len.into(), &[]), &refused);
    assert!(sent(&both, 0) && sent(&both, 9));
    assert!(!sent(&both[..1], 0), "nobody was killed");
    // It has no peer any more.
    let named = |peer: u64| done(0, &[0, 1, 2, 16, peer, 0, 0, 32]);
    let asked = |before: &[(ActorId, Op)], peer: u64| waited(before, Op::Names { slot: 1 }, &named(0), &named(peer));
    assert!(asked(&both, 1000 + libc::ENOTCONN as u64) && !asked(&both, 1000 + libc::EBADF as u64));
    assert!(!asked(&both[..1], 1000 + libc::ENOTCONN as u64), "nobody was killed");
}

#[test]
fn ports_may_be_taken_where_a_connection_is_made_anew() {
    let named = |before: Vec<(ActorId, Op)>, wrapped: [u64; 8]| {
        let number = before.len();
        let program = program([before, vec![(1, Op::Names { slot: 1 })]].concat());
        let seen =
            |aux: [u64; 8]| Entry { fate: Fate::Done(number), seen: Seen { aux: aux.to_vec(), ..Seen::default() } };
        step(&program, number, &seen([0, 1, 2, 16, 0, 1, 2, 16]), &seen(wrapped), &mut Counts::default())
    };
    let (exec, kill) = (|| (1, Op::Exec { plain: false }), || (0, Op::Exit { how: ExitHow::Abort }));
    assert_eq!(named(vec![kill(), exec()], [0, 0, 2, 16, 0, 0, 2, 16]), Verdict::Same);
    assert!(matches!(named(vec![kill(), exec()], [0, 1, 10, 28, 0, 1, 2, 16]), Verdict::Differs(_)), "the family");
    assert!(matches!(named(vec![kill()], [0, 0, 2, 16, 0, 1, 2, 16]), Verdict::Differs(_)), "not executed");
    assert!(matches!(named(vec![exec()], [0, 0, 2, 16, 0, 1, 2, 16]), Verdict::Differs(_)), "nobody was killed");
}

#[test]
fn a_lone_urgent_byte_is_readable_or_not() {
    const URGENT: u64 = libc::POLLPRI as u64;
    let polled = |flags: i32, plain: u64, wrapped: u64| {
        let via = SendVia::Send;
        let sent = Op::Send(Data { slot: 1, len: 1, via, flags, memory: Memory::Good, pieces: Pieces::One });
        let poll = Op::Poll { entries: vec![(0, 8199)], via: PollVia::Poll, time: Time::Zero };
        let program = program(vec![(1, sent), (0, poll)]);
        let seen = |word| Entry { fate: Fate::Done(1), seen: Seen { ret: 1, aux: vec![word], ..Seen::default() } };
        step(&program, 1, &seen(plain), &seen(wrapped), &mut Counts::default())
    };
    assert_eq!(polled(libc::MSG_OOB, URGENT, URGENT | IN), Verdict::Same, "what can be read is compared further");
    assert!(matches!(polled(0, URGENT, URGENT | IN), Verdict::Differs(_)));
    assert!(matches!(polled(libc::MSG_OOB, URGENT | IN, IN), Verdict::Differs(_)));
}

#[test]
fn beside_the_holder_of_what_was_left_before() {
    let left = (0, Op::Shutdown { slot: 0, how: libc::SHUT_WR });
    let begun = (0, Op::Spawn { actor: 1, plain: false, fork: true });
    let seen = |shown: i16| told(Fate::Done(2), [shown as u64, 0]);
    let polled = |first: &(ActorId, Op), then: &(ActorId, Op), wrapped: i16| {
        let poll = Op::Poll { entries: vec![(1, libc::POLLIN)], via: PollVia::Poll, time: Time::Zero };
        let program = program(vec![first.clone(), then.clone(), (1, poll)]);
        step(&program, 2, &seen(libc::POLLIN), &seen(wrapped), &mut Counts::default())
    };
    let reset = libc::POLLIN | libc::POLLHUP | libc::POLLERR;
    assert_eq!(polled(&left, &begun, reset), Verdict::Apart);
    let received = |before: &[(ActorId, Op)]| {
        let data = Data { slot: 1, len: 1, via: RecvVia::Recv, flags: 0, memory: Memory::Good, pieces: Pieces::One };
        let program = program([before, &[(1, Op::Recv(data))]].concat());
        let (plain, reset) =
            (Seen { ret: 1, ..Seen::default() }, Seen { ret: -1, errno: libc::ECONNRESET, ..Seen::default() });
        let [plain, wrapped] = [plain, reset].map(|seen| Entry { fate: Fate::Done(before.len()), seen });
        step(&program, before.len(), &plain, &wrapped, &mut Counts::default())
    };
    let (child, exec) = ((1, Op::Child { via: StormVia::ForkExec }), (1, Op::Exec { plain: true }));
    assert_eq!(received(&[left.clone(), child.clone(), exec.clone()]), Verdict::Apart);
    assert!(matches!(received(&[child, left.clone(), exec.clone()]), Verdict::Differs(_)));
    assert!(matches!(received(&[left.clone(), exec]), Verdict::Differs(_)));
    assert!(matches!(polled(&begun, &left, reset), Verdict::Differs(_)));
    assert!(matches!(polled(&left, &begun, 0), Verdict::Differs(_)));
}

#[test]
fn a_transfer_that_nobody_received_is_counted_in_part() {
    let all = |len| (1, Op::SendAll { slot: 1, len, chunk: 4096, via: SendVia::Send, lane: 0 });
    let count = || (0, Op::Ioctl { slot: 0, request: Request::FionRead });
    let counted = |sent: u32, plain: u64, wrapped: u64| {
        let program = program(vec![all(sent), count()]);
        let seen = |n| Entry { fate: Fate::Done(1), seen: Seen { aux: vec![n], ..Seen::default() } };
        step(&program, 1, &seen(plain), &seen(wrapped), &mut Counts::default()) == Verdict::Same
    };
    assert!(counted(80_000, 65_536, 80_000));
    assert!(!counted(80_000, 65_536, 80_000 + (24 << 10) + 1), "more than was sent");
    assert!(!counted(80_000, 1000, 1001), "as little as is left on purpose");
    assert!(!counted(80_000, 65_536, 0));
    let program = program(vec![flood(2 << 20), count()]);
    let seen = |n| Entry { fate: Fate::Done(1), seen: Seen { aux: vec![n], ..Seen::default() } };
    let counted = |plain, wrapped| step(&program, 1, &seen(plain), &seen(wrapped), &mut Counts::default());
    assert_eq!(counted(128_001, 110_592), Verdict::Same, "sent by one call");
    assert_ne!(counted(128_001, 1000), Verdict::Same);
}

#[test]
fn an_executed_program_need_not_ask_for_the_end() {
    let polled = |asked: i16, plain: i16, wrapped: i16| {
        let killed = (0, Op::Exit { how: ExitHow::Abort });
        let begun = (0, Op::Spawn { actor: 1, plain: false, fork: true });
        let poll = Op::Poll { entries: vec![(1, asked)], via: PollVia::Poll, time: Time::Zero };
        let program = program(vec![killed, begun, (1, poll)]);
        let seen = |shown: i16| {
            let seen = Seen { ret: 1, aux: vec![shown as u64], ..Seen::default() };
            Entry { fate: Fate::Done(2), seen }
        };
        !matches!(step(&program, 2, &seen(plain), &seen(wrapped), &mut Counts::default()), Verdict::Differs(_))
    };
    let (readable, half, gone) = (libc::POLLIN, libc::POLLIN | libc::POLLRDHUP, libc::POLLHUP);
    assert!(polled(readable, readable, readable | gone));
    assert!(polled(half, half, half | gone));
    assert!(!polled(half, readable, readable | gone), "no end where it was asked for");
    let room = libc::POLLOUT;
    assert!(polled(room, room, room | gone), "a reset is told of unasked");
    assert!(!polled(room, room, gone), "room is told of, too");
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

#[test]
fn an_edge_is_told_again_where_a_change_was_refused() {
    let ask = |what, events| (0, Op::EpollCtl { set: 5, what, slot: 0, events, data: 7 });
    let (edge, level) = (libc::EPOLLET as u32 | 5, 5);
    let wait = (0, Op::EpollWait { set: 5, max: 4, via: EpollVia::Wait, time: Time::Zero });
    let differs = |ops: Vec<(ActorId, Op)>| {
        let number = ops.len();
        let program = program(ops.into_iter().chain([wait.clone()]).collect());
        let told = |aux: &[u64]| Entry {
            fate: Fate::Done(number),
            seen: Seen { ret: aux.len() as i64 / 2, aux: aux.to_vec(), ..Seen::default() },
        };
        let verdict = step(&program, number, &told(&[1, 5]), &told(&[1, 5, 7, 5]), &mut Counts::default());
        matches!(verdict, Verdict::Differs(_))
    };
    assert!(!differs(vec![ask(Ctl::Add, edge)]));
    assert!(!differs(vec![ask(Ctl::Add, edge), ask(Ctl::Mod, level)]));
    assert!(differs(vec![ask(Ctl::Add, level)]));
    // A registration that was removed since does not count.
    assert!(differs(vec![ask(Ctl::Add, edge), ask(Ctl::Add, level)]));
}

#[test]
fn what_was_told_again_for_once_is_not_told_later() {
    let add = |set, slot, events| (0, Op::EpollCtl { set, what: Ctl::Add, slot, events, data: u64::from(slot) });
    let (edge, once) = (libc::EPOLLET as u32 | 1, libc::EPOLLONESHOT as u32 | 1);
    let verdict = |outer: u32| {
        let wait = (0, Op::EpollWait { set: 6, max: 4, via: EpollVia::Wait, time: Time::Zero });
        let program = program(vec![add(5, 0, edge), add(6, 5, outer), wait]);
        let told = |aux: &[u64]| Entry {
            fate: Fate::Done(2),
            seen: Seen { ret: aux.len() as i64 / 2, aux: aux.to_vec(), ..Seen::default() },
        };
        step(&program, 2, &told(&[]), &told(&[5, 1]), &mut Counts::default())
    };
    assert!(matches!(verdict(once), Verdict::Apart));
    assert!(!matches!(verdict(1), Verdict::Apart | Verdict::Differs(_)));
}

#[test]
fn what_a_wait_leaves_for_the_next_one_is_told_by_it() {
    let wait = |time| (0, Op::EpollWait { set: 5, max: 4, via: EpollVia::Wait, time });
    let told = |aux: &[u64], number| Entry {
        fate: Fate::Done(number),
        seen: Seen { ret: aux.len() as i64 / 2, aux: aux.to_vec(), ..Seen::default() },
    };
    let verdict = |time, wrapped: &[u64]| {
        let program = program(vec![wait(time)]);
        step(&program, 0, &told(&[7, 1, 9, 1], 0), &told(wrapped, 0), &mut Counts::default())
    };
    assert_eq!(verdict(Time::Forever, &[9, 1]), Verdict::Same);
    for (time, wrapped) in [(Time::Zero, &[9, 1][..]), (Time::Forever, &[9, 5]), (Time::Forever, &[])] {
        assert!(matches!(verdict(time, wrapped), Verdict::Differs(_)), "{time:?} {wrapped:?}");
    }
    let lost = |between: Option<(ActorId, Op)>, next: &[u64]| {
        let program =
            program([vec![wait(Time::Forever)], between.into_iter().collect(), vec![wait(Time::Zero)]].concat());
        let last = program.steps.len() - 1;
        let entries = |first: &[u64], next: &[u64]| {
            let mut all = vec![told(&[], 1); last + 1];
            (all[0], all[last]) = (told(first, 0), told(next, last));
            all
        };
        crate::allowed::not_reported(&program, &entries(&[7, 1, 9, 1], &[]), &entries(&[9, 1], next))
    };
    assert_eq!(lost(None, &[7, 1]), None);
    assert_eq!(lost(None, &[]), Some((1, 7)));
    assert_eq!(lost(Some(flood(0)), &[]), Some((2, 7)), "a send changes nothing");
    let change = (0, Op::EpollCtl { set: 5, what: Ctl::Del, slot: 0, events: 0, data: 7 });
    assert_eq!(lost(Some(change), &[]), None, "it may have been taken out");
}

#[test]
fn a_receive_that_is_asleep_asks_for_no_signal() {
    let asks = (0, Op::Ioctl { slot: 0, request: Request::FioAsync(true) });
    let all = (0, Op::RecvAll { slot: 0, len: 10, chunk: 1, via: RecvVia::Recv });
    let differs = |ops: Vec<(ActorId, Op)>, aux: [u64; 2]| {
        let number = ops.len();
        let program = program(ops.into_iter().chain([(0, Op::Signals)]).collect());
        let told = |aux: [u64; 2], took_ns| Entry {
            fate: Fate::Done(number),
            seen: Seen { aux: vec![0, 0, 0, aux[0], aux[1], 0], took_ns, ..Seen::default() },
        };
        let verdict = step(&program, number, &told([0, 1], 10), &told(aux, 20), &mut Counts::default());
        matches!(verdict, Verdict::Differs(_))
    };
    assert!(!differs(vec![asks.clone(), all.clone()], [0, 0]));
    assert!(differs(vec![asks.clone(), all.clone()], [1, 0]));
    assert!(differs(vec![asks], [0, 0]));
    assert!(differs(vec![all], [0, 0]));
}
