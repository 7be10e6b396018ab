//! Where data lie, how long, and what becomes of them with those who keep them.

use std::collections::HashMap;

use madrigal::mailbox::{Buffer, Change, Data, Draft, Filter, Held, INLINE, Limits, MailError, Mailbox, Place, Policy};

use super::common::{Context, Process, after, bytes, got, letter, next, soon};

/// Longer than what goes with a header, and than what any driver sends at once.
const LONG: usize = 3 << 20;
/// What keeping a message's data costs a third process beside their bytes.
const EACH: u64 = 4096;

pub(super) fn policies(c: &Context) {
    let [sender, receiver, third] = c.processes();
    third.all.offer(100 << 20);
    let (out, into, store) = (sender.mailbox("out", 8), receiver.mailbox("in", 8), third.mailbox("store", 1));
    sender.all.add_store(&store.address());
    let own = |own| Held { own, ..Held::default() };
    for len in [0, 1, INLINE, INLINE + 1, LONG] {
        let data = bytes(len as u64, len);
        let put = |policy| out.put(&[into.address()], letter(len as u64, policy), Data::Bytes(&data), soon());
        assert_eq!(put(Policy::Receiver), Ok(1));
        if len > INLINE {
            receiver.comes_to_hold(Held { received: len as u64, ..Held::default() });
            sender.comes_to_hold_nothing();
        }
        let header = next(&into);
        while next(&into).place != Place::Here {}
        assert_eq!((header.policy, header.tag, header.size), (Policy::Receiver, len as u64, len as u64));
        assert_eq!((&header.source.name[..], header.source.node.id), ("out", out.address().node.id));
        assert_eq!(&got(&into).1[..], &data);
        receiver.comes_to_hold_nothing();

        assert_eq!(put(Policy::Sender), Ok(1));
        let header = next(&into);
        assert!(matches!(&header.place, Place::At(at) if at.id == out.address().node.id), "{header:?}");
        assert_eq!((sender.all.held(), receiver.all.held()), (own(len as u64), Held::default()));
        assert_eq!(&got(&into).1[..], &data);
        sender.comes_to_hold_nothing();

        assert_eq!(put(Policy::Elsewhere), Ok(1));
        let header = next(&into);
        assert!(matches!(&header.place, Place::At(at) if at.id == store.address().node.id), "{header:?}");
        third.comes_to_hold(Held { offered: len as u64 + EACH, ..Held::default() });
        sender.comes_to_hold_nothing();
        assert_eq!(receiver.all.held(), Held::default());
        assert_eq!(&got(&into).1[..], &data);
        third.comes_to_hold_nothing();
    }
}

/// A copy is there until the last receiver has it, has dropped it, has closed its mailbox, or is no more.
pub(super) fn one_copy(c: &Context) {
    let [sender, third] = c.processes();
    third.all.offer(100 << 20);
    let (out, store) = (sender.mailbox("out", 8), third.mailbox("store", 1));
    sender.all.add_store(&store.address());
    let data = bytes(5, LONG);
    for policy in [Policy::Sender, Policy::Elsewhere] {
        let receivers: [Process; 4] = c.processes();
        let boxes: Vec<Mailbox> = receivers.iter().map(|process| process.mailbox("in", 8)).collect();
        let to: Vec<_> = boxes.iter().map(Mailbox::address).collect();
        let keeper = if policy == Policy::Sender { &sender } else { &third };
        let held = match policy {
            Policy::Sender => Held { own: LONG as u64, ..Held::default() },
            _ => Held { offered: LONG as u64 + EACH, ..Held::default() },
        };
        assert_eq!(out.put(&to, letter(1, policy), Data::Bytes(&data), soon()), Ok(4));
        let [first, second, third, last] = &boxes[..] else { unreachable!("there are four") };
        assert_eq!(&got(first).1[..], &data);
        second.discard(next(second).id).expect("it is there");
        next(third);
        third.close();
        next(last);
        first.put(&[out.address()], letter(2, Policy::Receiver), Data::Bytes(b"x"), soon()).expect("is sent");
        got(&out);
        assert_eq!(keeper.all.held(), held, "the last one has not read it");
        drop(boxes);
        drop(receivers);
        keeper.comes_to_hold_nothing();
    }
    assert!(out.changes().iter().any(|change| matches!(change, Change::Left { .. })));
}

/// Those with the least load are asked first; who has no room says so, and another is asked.
pub(super) fn least_load(c: &Context) {
    let [sender, receiver, small, large] = c.processes();
    let (out, into) = (sender.mailbox("out", 64), receiver.mailbox("in", 64));
    let stores = [&small, &large].map(|process| process.mailbox("store", 1));
    let put = |len: usize, deadline| {
        out.put(&[into.address()], letter(0, Policy::Elsewhere), Data::Bytes(&bytes(1, len)), deadline)
    };
    assert_eq!(out.put(&[into.address()], letter(0, Policy::Receiver), Data::Bytes(b""), soon()), Ok(1));
    got(&into);
    assert_eq!(put(1000, soon()), Err(MailError::NoStore(1000)));
    // The parties themselves are not asked, whatever they offer.
    receiver.all.offer(1 << 30);
    sender.all.add_store(&into.address());
    sender.all.add_store(&out.address());
    assert_eq!(put(1000, soon()), Err(MailError::NoStore(1000)));
    stores.iter().for_each(|store| sender.all.add_store(&store.address()));
    let is_full = |told: &str| told.matches("0 of 0 bytes").count() == 2;
    let mut told = String::new();
    // Until both have answered in the time given.
    while !is_full(&told) {
        told = put(1000, after(200_000_000)).expect_err("they offer nothing").to_string();
    }
    assert!(stores.iter().all(|store| told.contains(&store.address().node.id.to_string())), "{told}");
    small.all.offer(3 * (EACH + 10_000));
    large.all.offer(1 << 30);
    let mut lie: HashMap<_, usize> = HashMap::new();
    for at in 0..20 {
        assert_eq!(put(10_000, soon()), Ok(1));
        let headers = loop {
            let headers = into.list(&Filter::default(), 99);
            if headers.len() > at {
                break headers;
            }
        };
        let Some(Place::At(holder)) = headers.last().map(|header| header.place.clone()) else { panic!("elsewhere") };
        *lie.entry(holder.id).or_default() += 1;
        // In turn, until the small one is full.
        assert!(at >= 6 || lie.values().all(|count| count.abs_diff(at / 2) <= 1), "{lie:?}");
    }
    assert_eq!(lie[&stores[0].address().node.id], 3);
    let loads = sender.all.loads();
    let held = |store: &Mailbox| loads.iter().find(|(at, _)| *at == store.address()).map(|(_, load)| load.held);
    assert_eq!(held(&stores[1]), Some(17 * (EACH + 10_000)));
    while let Some(header) = into.list(&Filter::default(), 1).first() {
        into.discard(header.id).expect("it is there");
    }
    [small, large].iter().for_each(Process::comes_to_hold_nothing);
}

/// Whoever keeps data goes: a get fails with a word of it, the message stays, and can be dropped.
pub(super) fn keepers_go(c: &Context) {
    for policy in [Policy::Sender, Policy::Elsewhere] {
        let [sender, receiver, third] = c.processes();
        third.all.offer(100 << 20);
        let (out, into, store) = (sender.mailbox("out", 8), receiver.mailbox("in", 8), third.mailbox("store", 1));
        sender.all.add_store(&store.address());
        let data = bytes(1, LONG);
        assert_eq!(out.put(&[into.address()], letter(1, policy), Data::Bytes(&data), soon()), Ok(1));
        let header = next(&into);
        let keeper = if policy == Policy::Sender { out.address() } else { store.address() };
        if policy == Policy::Sender {
            drop(out);
            drop(sender);
        } else {
            // It is linked with those that it keeps data for.
            drop(store);
            drop(third);
        }
        let lost = into.get(header.id, soon()).expect_err("nobody has them");
        assert!(matches!(lost, MailError::DataLost { .. }) && lost.to_string().contains(&keeper.node.id.to_string()));
        assert_eq!(next(&into).id, header.id, "it stays");
        into.discard(header.id).expect("it is there");
        assert_eq!(into.get(header.id, soon()).err(), Some(MailError::Gone(header.id)));
        receiver.comes_to_hold_nothing();
    }
}

/// A message is dropped, or its mailbox is closed, when its data may just be on their way: who sends them does not wait for ever.
pub(super) fn dropped_on_the_way(c: &Context) {
    let [sender, receiver] = c.processes();
    let out = sender.mailbox("out", 64);
    for (at, len) in [9000, LONG].into_iter().cycle().take(60).enumerate() {
        let into = receiver.mailbox(&format!("in{at}"), 64);
        let data = bytes(1, len);
        assert_eq!(out.put(&[into.address()], letter(1, Policy::Receiver), Data::Bytes(&data), soon()), Ok(1));
        let header = next(&into);
        if at % 4 < 2 {
            into.discard(header.id).expect("it is there");
        }
        into.close();
        assert!(sender.all.flush(soon()));
        [&sender, &receiver].into_iter().for_each(Process::comes_to_hold_nothing);
    }
}

/// Bytes of a process are bounded: who has too many that are unread waits, and what finds no room at the receiver stays where it is.
pub(super) fn bounded(c: &Context) {
    let (sender, receiver) = (
        c.limited(Limits { own: 100_000, ..Limits::default() }),
        c.limited(Limits { received: 100_000, ..Limits::default() }),
    );
    let (out, into) = (sender.mailbox("out", 64), receiver.mailbox("in", 64));
    let put =
        |policy, deadline| out.put(&[into.address()], letter(0, policy), Data::Bytes(&bytes(1, 40_000)), deadline);
    // Two lie here, two there; there is no room for a fifth.
    for at in 1..=4 {
        assert_eq!(put(Policy::Receiver, soon()), Ok(1));
        let there = 40_000 * at.min(2);
        receiver.comes_to_hold(Held { received: there, ..Held::default() });
        sender.comes_to_hold(Held { own: 40_000 * at - there, ..Held::default() });
    }
    let full = put(Policy::Sender, after(20_000_000)).expect_err("there is no room");
    assert!(matches!(&full, MailError::NoRoom { held: 80_000, most: 100_000, .. }), "{full}");
    // Who does not read is named, also to one who puts to others.
    let other = receiver.mailbox("other", 64);
    let (to, data) = ([other.address()], bytes(1, 40_000));
    let full = loop {
        // The line to it is opened first, which may take a while.
        match out.put(&to, letter(0, Policy::Sender), Data::Bytes(&data), after(20_000_000)).expect_err("no room") {
            MailError::Silent(_) => {}
            full => break full,
        }
    };
    assert!(matches!(&full, MailError::NoRoom { to, .. } if to == "in"), "{full}");
    got(&into);
    assert_eq!(put(Policy::Sender, soon()), Ok(1));
    for _ in 0..4 {
        got(&into);
    }
    // What is larger than all there may be goes alone.
    let large = bytes(3, 300_000);
    assert_eq!(out.put(&[into.address()], letter(0, Policy::Receiver), Data::Bytes(&large), soon()), Ok(1));
    assert_eq!(&got(&into).1[..], &large);
    [&sender, &receiver].into_iter().for_each(Process::comes_to_hold_nothing);
}

/// A shared buffer is the same memory for all who read it, by every policy.
pub(super) fn shared(c: &Context) {
    let [sender, receiver, other, third] = c.processes();
    third.all.offer(100 << 20);
    let (out, store) = (sender.mailbox("out", 8), third.mailbox("store", 1));
    sender.all.add_store(&store.address());
    let boxes = [&receiver, &other].map(|process| process.mailbox("in", 8));
    let to = [boxes[0].address(), boxes[1].address()];
    let mut draft = Draft::new(LONG).expect("memory");
    draft.bytes_mut().copy_from_slice(&bytes(9, LONG));
    let buffer = Buffer::from(draft.seal().expect("seals"));
    for policy in [Policy::Receiver, Policy::Sender, Policy::Elsewhere] {
        assert_eq!(out.put(&to, letter(1, policy), Data::Buffer(&buffer), soon()), Ok(2));
        for into in &boxes {
            let (_, got) = got(into);
            assert!(got.is_shared() && got[..] == buffer[..]);
            // It can be handed on.
            assert_eq!(
                into.put(&[out.address()], letter(2, policy), Data::Buffer(&got), soon()).is_ok(),
                policy != Policy::Elsewhere
            );
        }
        if policy != Policy::Elsewhere {
            for _ in 0..2 {
                assert!(self::got(&out).1.is_shared());
            }
        }
    }
    [&sender, &receiver, &other, &third].into_iter().for_each(Process::comes_to_hold_nothing);
}
