use proptest::prelude::*;

use super::*;

/// Everything that one end has for the other, in pieces of any size, as if a stream took them.
fn drain(resumable: &mut Resumable, piece: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(pieces) = resumable.output() {
        let bytes = pieces.concat();
        let count = bytes.len().min(piece.max(1));
        all.extend_from_slice(&bytes[..count]);
        resumable.took(count);
    }
    all
}

/// Takes bytes; what was new, and whether the end came.
fn feed(resumable: &mut Resumable, mut bytes: &[u8]) -> Result<(Vec<u8>, bool), Nonsense> {
    let (mut new, mut end) = (Vec::new(), false);
    while !bytes.is_empty() {
        let (received, count) = resumable.handle(bytes)?;
        match received {
            Received::Bytes(more) => new.extend_from_slice(more),
            Received::End => end = true,
            Received::Nothing => {}
        }
        bytes = &bytes[count..];
    }
    Ok((new, end))
}

/// Pushes bytes by writing them where there is space.
fn fill(resumable: &mut Resumable, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let space = resumable.space(bytes.len());
        let count = space.len();
        assert!((1..=bytes.len()).contains(&count));
        space.copy_from_slice(&bytes[..count]);
        resumable.pushed(count);
        bytes = &bytes[count..];
    }
}

#[test]
fn bytes_and_ends_go_both_ways() {
    let (mut one, mut other) = (Resumable::new(), Resumable::new());
    one.push(b"hello");
    let sent = drain(&mut one, 2);
    assert_eq!(sent, b"\x01\x05\0hello");
    assert_eq!(feed(&mut other, &sent), Ok((b"hello".to_vec(), false)));
    // Few bytes are not worth an acknowledgement, but it goes with other records.
    assert_eq!(other.output(), None);
    other.push(b"!");
    other.end();
    let back = drain(&mut other, 100);
    assert_eq!(back, b"\x02\x05\0\0\0\0\0\0\0\x01\x01\0!\x03");
    assert_eq!(feed(&mut one, &back), Ok((b"!".to_vec(), true)));
    assert_eq!((one.kept.len(), one.is_done(), other.is_done()), (0, false, false));
    one.end();
    for (n, bytes) in [drain(&mut one, 1), drain(&mut other, 1)].into_iter().enumerate() {
        let to = if n == 0 { &mut other } else { &mut one };
        feed(to, &bytes).unwrap();
    }
    let last = drain(&mut other, 1);
    feed(&mut one, &last).unwrap();
    assert!(one.is_done() && other.is_done());
}

#[test]
fn what_was_lost_is_sent_again_and_nothing_else() {
    let (mut one, mut other) = (Resumable::new(), Resumable::new());
    one.push(&[7; 100_000]);
    let sent = drain(&mut one, usize::MAX);
    assert_eq!(feed(&mut other, &sent[..50_000]).unwrap().0.len(), 50_000 - 2 * 3);
    // It acknowledged more than a part of them, and this was lost.
    assert!(!drain(&mut other, 100).is_empty());
    let (ours, theirs) = (one.got(), other.got());
    assert!(other.resume(theirs, ours) && one.resume(ours, theirs));
    let sent = drain(&mut one, usize::MAX);
    assert!(sent.len() < 50_100);
    assert_eq!(feed(&mut other, &sent).unwrap().0.len(), 100_000 - 49_994);
    // An impossible position is refused, and what is forgotten cannot be sent again.
    assert!(!one.resume(0, 100_001) && !one.resume(1, 100_000));
    one.forget();
    assert!(one.held() == 0 && !one.resume(0, 99_999) && one.resume(0, 100_000));
}

#[test]
fn nonsense_is_refused() {
    for bytes in [&b"\0"[..], b"\x04", b"\x01\0\0", b"\x02\x01\0\0\0\0\0\0\0", b"\x03\x03", b"\x03\x01\x01\0x"] {
        assert_eq!(feed(&mut Resumable::new(), bytes), Err(Nonsense), "{bytes:?}");
    }
    let mut one = Resumable::new();
    one.push(b"hello");
    drain(&mut one, 9);
    feed(&mut one, b"\x02\x04\0\0\0\0\0\0\0").unwrap();
    assert_eq!(feed(&mut one, b"\x02\x03\0\0\0\0\0\0\0"), Err(Nonsense));
}

/// Two ends, the stream between them, and what came out at each.
struct Pair {
    ends: [Resumable; 2],
    wires: [Vec<u8>; 2],
    sent: [Vec<u8>; 2],
    came: [Vec<u8>; 2],
    over: [bool; 2],
}

impl Pair {
    /// Some bytes go on the wire, and some arrive.
    fn go(&mut self, from: usize, out: usize, arrive: usize) {
        for _ in 0..out {
            let Some(bytes) = self.ends[from].output().map(|pieces| pieces.concat()) else { break };
            let count = bytes.len().min(700);
            self.wires[from].extend_from_slice(&bytes[..count]);
            self.ends[from].took(count);
        }
        let count = arrive.min(self.wires[from].len());
        let bytes: Vec<u8> = self.wires[from].drain(..count).collect();
        let (new, end) = feed(&mut self.ends[1 - from], &bytes).unwrap();
        assert!(!self.over[1 - from] || (new.is_empty() && !end), "bytes behind the end");
        self.came[1 - from].extend(new);
        self.over[1 - from] |= end;
    }

    /// The stream breaks, with all that is on it; and a new one is agreed upon. One end begins, while the other may still receive what was
    /// on the old one.
    fn breaks(&mut self, asks: usize, late: usize) {
        let ours = self.ends[asks].got();
        let theirs = self.ends[1 - asks].got();
        assert!(self.ends[1 - asks].resume(theirs, ours));
        self.wires[asks].clear();
        let count = late.min(self.wires[1 - asks].len());
        let bytes: Vec<u8> = self.wires[1 - asks].drain(..count).collect();
        let (new, end) = feed(&mut self.ends[asks], &bytes).unwrap();
        self.came[asks].extend(new);
        self.over[asks] |= end;
        self.wires[1 - asks].clear();
        assert!(self.ends[asks].resume(ours, theirs));
    }
}

proptest! {
    /// Whatever is sent, and wherever streams break: all of it comes, once, in order, and both ends end.
    #[test]
    fn all_bytes_come_once_in_order_whatever_breaks(
        steps in prop::collection::vec((0usize..2, 0usize..5, 0usize..2000, 0usize..3000, 0u8..12), 1..200),
        ends in (0usize..200, 0usize..200),
    ) {
        let mut pair = Pair {
            ends: [Resumable::new(), Resumable::new()],
            wires: Default::default(),
            sent: Default::default(),
            came: Default::default(),
            over: [false; 2],
        };
        for (n, (who, out, arrive, push, what)) in steps.into_iter().enumerate() {
            for (end, at) in [ends.0, ends.1].into_iter().enumerate() {
                if n == at {
                    pair.ends[end].end();
                }
            }
            if n < [ends.0, ends.1][who] {
                let bytes: Vec<u8> = (0..push).map(|at| (pair.sent[who].len() + at) as u8 ^ (at >> 8) as u8).collect();
                if push % 2 == 0 {
                    pair.ends[who].push(&bytes);
                } else {
                    fill(&mut pair.ends[who], &bytes);
                }
                pair.sent[who].extend(bytes);
            }
            pair.go(who, out, arrive);
            if what == 0 {
                pair.breaks(who, arrive);
            }
        }
        pair.ends.iter_mut().for_each(Resumable::end);
        for _ in 0..5 {
            (0..2).for_each(|who| pair.go(who, usize::MAX, usize::MAX));
        }
        prop_assert!(pair.came[1] == pair.sent[0] && pair.came[0] == pair.sent[1]);
        prop_assert!(pair.over == [true; 2] && pair.ends.iter().all(Resumable::is_done));
        prop_assert!(pair.ends.iter().all(|end| end.kept.len() == 0));
    }

    /// Any bytes of a peer are taken or refused, and nothing grows.
    #[test]
    fn any_bytes_are_taken_or_refused(bytes in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..500), cut: prop::sample::Index, count in 0usize..200) {
        let mut end = Resumable::new();
        end.push(&vec![1; count]);
        drain(&mut end, 50);
        let (first, second) = bytes.split_at(cut.index(bytes.len() + 1));
        let received = feed(&mut end, first).and_then(|(one, _)| feed(&mut end, second).map(|(two, _)| one.len() + two.len()));
        if let Ok(received) = received {
            prop_assert!(received <= bytes.len() && end.got() >= received as u64);
        }
        prop_assert!(end.kept.len() <= count);
        prop_assert!(drain(&mut end, 50).len() <= 12);
    }
}
