//! The promises of mailboxes, over any driver of messages: processes are workers, each turned by a thread of its own.
//!
//! Features (docs/features.md): L3, L4, L6, L10, L11, L13.

mod common;
mod hostile;
mod storage;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use madrigal::mailbox::{Change, Data, Filter, Kind, Letter, MailError, Mailbox, Policy};

use crate::Case;
use crate::noise::Noise;
use common::{Process, after, bytes, got, letter, next, soon};

pub use common::{Context, context};

/// The suite.
pub static CASES: &[Case<Context>] = &[
    Case { name: "data_lie_where_they_are_told_to", run: storage::policies },
    Case { name: "one_copy_serves_all_and_the_last_one_frees_it", run: storage::one_copy },
    Case { name: "a_third_process_is_the_one_with_the_least_load", run: storage::least_load },
    Case { name: "data_of_those_who_go_are_lost_with_a_word", run: storage::keepers_go },
    Case { name: "data_that_are_dropped_on_their_way_stay_nowhere", run: storage::dropped_on_the_way },
    Case { name: "what_a_process_keeps_is_bounded", run: storage::bounded },
    Case { name: "a_shared_buffer_is_one_memory", run: storage::shared },
    Case { name: "receivers_choose_by_headers_and_the_urgent_pass", run: choose },
    Case { name: "a_full_mailbox_stops_its_senders", run: full },
    Case { name: "many_senders_each_in_order", run: order },
    Case { name: "random_messages_among_all", run: random },
    Case { name: "what_cannot_be_is_an_error", run: misuse },
    Case { name: "a_third_process_that_says_nothing_is_passed_over", run: hostile::says_nothing },
    Case { name: "what_is_closed_is_an_error", run: closed },
    Case { name: "a_mailbox_that_closes_while_many_put_is_told_to_each", run: closes_meanwhile },
    Case { name: "nonsense_harms_nobody_else", run: hostile::nonsense },
    Case { name: "who_takes_no_answers_leaves_others_theirs", run: hostile::takes_nothing },
    Case { name: "who_has_no_name_is_told", run: hostile::has_no_name },
];

fn choose(c: &Context) {
    let [sender, receiver] = c.processes();
    let (out, other, into) = (sender.mailbox("out", 16), sender.mailbox("other", 16), receiver.mailbox("in", 16));
    let to = [into.address()];
    let put = |from: &Mailbox, tag, kind| {
        let letter = Letter { tag, kind, policy: Policy::Sender };
        assert_eq!(from.put(&to, letter, Data::Bytes(&bytes(tag, 9000)), soon()), Ok(1));
    };
    put(&out, 1, Kind::Data);
    put(&other, 2, Kind::Data);
    put(&out, 3, Kind::Management);
    put(&out, 4, Kind::Urgent);
    put(&out, 1, Kind::Data);
    put(&other, 6, Kind::Urgent);
    while into.list(&Filter::default(), 99).len() < 6 {}
    let tags = |filter: &Filter| into.list(filter, 99).iter().map(|header| header.tag).collect::<Vec<_>>();
    let urgent = tags(&Filter { kind: Some(Kind::Urgent), ..Filter::default() });
    assert_eq!(urgent.len(), 2);
    assert_eq!(tags(&Filter::default())[..2], urgent[..]);
    assert_eq!(tags(&Filter { source: Some(out.address()), ..Filter::default() }), [4, 1, 3, 1]);
    assert_eq!(tags(&Filter { tag: Some(1), ..Filter::default() }), [1, 1]);
    assert_eq!(tags(&Filter { tag: Some(2), source: Some(out.address()), kind: None }), [0u64; 0]);
    assert_eq!(into.list(&Filter::default(), 3).len(), 3);
    let of = |tag| into.wait(&Filter { tag: Some(tag), ..Filter::default() }, soon()).expect("open").expect("there");
    let sequences: Vec<u64> = into
        .list(&Filter { source: Some(out.address()), ..Filter::default() }, 9)
        .iter()
        .map(|it| it.sequence)
        .collect();
    assert_eq!(sequences, [3, 1, 2, 4]);
    // Out of their order, some got and some dropped; none of that moved another's data.
    assert_eq!(into.get(of(3).id, soon()).as_deref().ok(), Some(&bytes(3, 9000)[..]));
    into.discard(of(2).id).expect("it is there");
    assert_eq!(into.get(of(6).id, soon()).as_deref().ok(), Some(&bytes(6, 9000)[..]));
    assert_eq!(tags(&Filter::default()), [4, 1, 1]);
    let none = into.wait(&Filter { tag: Some(2), ..Filter::default() }, after(1_000_000));
    assert_eq!(none, Ok(None));
}

fn full(c: &Context) {
    let [sender, receiver] = c.processes();
    let (out, into) = (sender.mailbox("out", 1), receiver.mailbox("in", 3));
    let put = |kind, deadline| {
        let letter = Letter { tag: 0, kind, policy: Policy::Receiver };
        out.put(&[into.address()], letter, Data::Bytes(b"x"), deadline)
    };
    for _ in 0..3 {
        assert_eq!(put(Kind::Data, soon()), Ok(1));
    }
    let told = put(Kind::Data, after(20_000_000)).expect_err("it is full");
    assert_eq!(told, MailError::Full { to: "in".to_owned(), unread: 3, kind: Kind::Data });
    assert!(told.to_string().contains("its program must get or drop them"));
    // The urgent have places of their own.
    assert_eq!(put(Kind::Urgent, soon()), Ok(1));
    let urgent = Filter { kind: Some(Kind::Urgent), ..Filter::default() };
    let urgent = into.wait(&urgent, soon()).expect("open").expect("there");
    assert_eq!(next(&into), urgent, "and are found first");
    for _ in 0..20 {
        assert_eq!(put(Kind::Data, after(0)).err(), Some(told.clone()));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| put(Kind::Data, soon()));
            let filter = Filter { kind: Some(Kind::Data), ..Filter::default() };
            let header = into.wait(&filter, soon()).expect("open").expect("there");
            into.discard(header.id).expect("it is there");
            assert_eq!(waiting.join().expect("ends"), Ok(1));
        });
    }
    while into.list(&Filter { kind: Some(Kind::Data), ..Filter::default() }, 99).len() < 3 {}
    thread::scope(|scope| {
        let waiting = scope.spawn(|| put(Kind::Data, soon()));
        into.close();
        let told = waiting.join().expect("ends").expect_err("it is closed");
        assert!(matches!(&told, MailError::Refused { why, .. } if why == "it is closed"), "{told}");
    });
    let told = put(Kind::Data, soon()).expect_err("it is closed");
    assert!(matches!(&told, MailError::Refused { why, .. } if why == "there is no mailbox `in`"), "{told}");
}

const SENDERS: u64 = 8;
const MESSAGES: u64 = 60;

/// Into a small mailbox, so that all of them wait for places.
fn order(c: &Context) {
    let receiver = c.process();
    let into = receiver.mailbox("in", 2);
    let to = [into.address()];
    thread::scope(|scope| {
        for sender in 0..SENDERS {
            let (process, to) = (c.process(), &to);
            scope.spawn(move || {
                let out = process.mailbox(&format!("out{sender}"), 1);
                let mut noise = Noise::new(sender + 1);
                for number in 0..MESSAGES {
                    let policy = [Policy::Receiver, Policy::Sender][noise.below(2)];
                    let data = bytes(sender ^ number, noise.size(20_000));
                    assert_eq!(out.put(to, letter(number, policy), Data::Bytes(&data), soon()), Ok(1));
                }
                assert!(process.all.flush(soon()));
            });
        }
        let mut next = [0; SENDERS as usize];
        for _ in 0..SENDERS * MESSAGES {
            let (header, data) = got(&into);
            let sender: u64 = header.source.name["out".len()..].parse().expect("a number");
            assert_eq!(header.tag, next[sender as usize]);
            assert_eq!(header.sequence, header.tag + 1);
            assert_eq!(&data[..], &bytes(sender ^ header.tag, data.len()));
            next[sender as usize] += 1;
        }
    });
    receiver.comes_to_hold_nothing();
    let changes = into.changes();
    let count = |meant: fn(&Change) -> bool| changes.iter().filter(|change| meant(change)).count() as u64;
    assert_eq!(count(|change| matches!(change, Change::Connected { .. })), SENDERS);
    assert_eq!(count(|change| matches!(change, Change::Lost { .. })), 0);
}

/// Every process sends to some of the others by any policy, and gets or drops what comes: in the end nothing lies anywhere.
fn random(c: &Context) {
    let processes: [Process; 4] = c.processes();
    let boxes: Vec<Mailbox> = processes.iter().map(|process| process.mailbox("box", 4)).collect();
    for (process, own) in processes.iter().zip(&boxes) {
        process.all.offer(2 << 20);
        let others = boxes.iter().filter(|other| other.address() != own.address());
        others.for_each(|other| process.all.add_store(&other.address()));
    }
    let (sent, taken) = (AtomicU64::new(0), AtomicU64::new(0));
    let is_put = AtomicU64::new(0);
    thread::scope(|scope| {
        for at in 0..boxes.len() {
            let (boxes, sent, is_put) = (&boxes, &sent, &is_put);
            scope.spawn(move || {
                let mut noise = Noise::new(at as u64 + 5);
                let others = boxes.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other);
                for _ in 0..MESSAGES {
                    let to: Vec<_> =
                        others.clone().filter(|_| noise.below(3) == 0).take(2).map(Mailbox::address).collect();
                    let policy = [Policy::Receiver, Policy::Sender, Policy::Elsewhere][noise.below(3)];
                    let kind = Kind::ALL[noise.below(3)];
                    let (tag, data) = (noise.next_u64(), noise.size(200_000));
                    if to.is_empty() {
                        continue;
                    }
                    let put = boxes[at].put(&to, Letter { tag, kind, policy }, Data::Bytes(&bytes(tag, data)), soon());
                    assert_eq!(put, Ok(to.len()));
                    sent.fetch_add(to.len() as u64, Ordering::SeqCst);
                }
                is_put.fetch_add(1, Ordering::SeqCst);
            });
            let (taken, of) = (&taken, boxes.len() as u64);
            scope.spawn(move || {
                let mut noise = Noise::new(at as u64 + 50);
                while is_put.load(Ordering::SeqCst) < of || taken.load(Ordering::SeqCst) < sent.load(Ordering::SeqCst) {
                    let Ok(Some(header)) = boxes[at].wait(&Filter::default(), after(5_000_000)) else { continue };
                    if noise.below(4) == 0 {
                        boxes[at].discard(header.id).expect("nobody else takes it");
                    } else {
                        let data = boxes[at].get(header.id, soon()).expect("its data");
                        assert_eq!(&data[..], &bytes(header.tag, header.size as usize));
                    }
                    taken.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(sent.into_inner(), taken.into_inner());
    processes.iter().for_each(Process::comes_to_hold_nothing);
}

fn misuse(c: &Context) {
    let [sender, receiver] = c.processes();
    let (out, into) = (sender.mailbox("out", 4), receiver.mailbox("in", 4));
    let name = |name: &str, places| receiver.all.mailbox(name, places).err();
    assert_eq!(name("in", 4), Some(MailError::InUse("in".to_owned())));
    assert!(matches!(name("a\nb", 4), Some(MailError::Name(_))) && matches!(name("", 4), Some(MailError::Name(_))));
    assert_eq!((name("x", 0), name("x", 65_537)), (Some(MailError::Places(0)), Some(MailError::Places(65_537))));
    let put = |to: &[_], deadline| out.put(to, letter(1, Policy::Sender), Data::Bytes(&[1; 9000]), deadline);
    assert!(matches!(put(&[], soon()), Err(MailError::Receivers { .. })));
    assert!(matches!(put(&[into.address(), into.address()], soon()), Err(MailError::Receivers { .. })));
    let mut nobody = into.address();
    nobody.name = "nobody".to_owned();
    assert!(matches!(put(&[into.address(), nobody], soon()), Err(MailError::Refused { .. })));
    assert_eq!(sender.all.held().own, 0, "nobody has anything of it");
    assert_eq!(put(&[into.address()], soon()), Ok(1));
    let header = next(&into);
    assert_eq!(header.sequence, 1);
    assert!(into.get(header.id, soon()).is_ok());
    assert_eq!(into.get(header.id, soon()).err(), Some(MailError::Gone(header.id)), "twice");
    assert_eq!(into.discard(header.id), Err(MailError::Gone(header.id)));
    assert_eq!(put(&[into.address()], soon()), Ok(1));
    let header = next(&into);
    assert_eq!((into.discard(header.id), into.discard(header.id)), (Ok(()), Err(MailError::Gone(header.id))));
    sender.comes_to_hold_nothing();
}

/// Several threads put into a mailbox that closes meanwhile: each learns that it is not its own one.
fn closes_meanwhile(c: &Context) {
    let [sender, receiver] = c.processes();
    let (out, data) = (sender.mailbox("out", 4), bytes(1, 2 << 20));
    for round in 0..30u64 {
        let into = receiver.mailbox(&format!("in{round}"), 64);
        let to = [into.address()];
        assert_eq!(out.put(&to, letter(1, Policy::Sender), Data::Bytes(b"x"), soon()), Ok(1));
        thread::scope(|scope| {
            let put = || out.put(&to, letter(1, Policy::Sender), Data::Bytes(&data), soon());
            let all = [0; 3].map(|_| scope.spawn(put));
            while sender.all.held().own < data.len() as u64 {}
            into.close();
            for told in all.map(|one| one.join().expect("ends")) {
                let is_meant = matches!(told, Ok(1) | Err(MailError::Refused { .. } | MailError::Lost { .. }));
                assert!(is_meant, "{told:?}");
            }
        });
    }
}

fn closed(c: &Context) {
    let [sender, receiver] = c.processes();
    let (out, into) = (sender.mailbox("out", 4), receiver.mailbox("in", 4));
    assert_eq!(out.put(&[into.address()], letter(1, Policy::Sender), Data::Bytes(&[1; 9000]), soon()), Ok(1));
    next(&into);
    into.close();
    into.close();
    assert_eq!(into.wait(&Filter::default(), None), Err(MailError::Closed));
    assert_eq!(into.get(1, None).err(), Some(MailError::Closed));
    assert!(into.list(&Filter::default(), 9).is_empty() && into.discard(1) == Err(MailError::Closed));
    assert_eq!(
        into.put(&[out.address()], letter(1, Policy::Receiver), Data::Bytes(b""), soon()),
        Err(MailError::Closed)
    );
    // Its name is free again, whether its senders have left or not.
    drop(receiver.mailbox("in", 1));
    sender.comes_to_hold_nothing();
    // All of a process: threads that wait return.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| out.wait(&Filter::default(), None));
        let turning = scope.spawn(|| sender.all.turn(None));
        sender.all.close();
        turning.join().expect("ends");
        assert_eq!(waiting.join().expect("ends"), Err(MailError::Closed));
    });
}
