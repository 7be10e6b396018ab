//! A peer that receives nothing is not flooded: its unexpected messages are bounded, and none is lost or out of order once it receives.

use madrigal::endpoint::{Kind, PeerId, PostError, Posted, Send, Status, Wanted};
use madrigal_sys::piece::Piece;

use super::party::{Context, Lent, Party, until, wait_for};

const LEN: usize = 4096;
/// 160 MiB, far more than a peer keeps unasked.
const MESSAGES: u64 = 40_000;
/// More than is kept in any case, and less than all.
const MOST: u64 = (80 << 20) / LEN as u64;

fn send(party: &Party, to: PeerId, number: u64, piece: Piece, inject: bool) -> Result<Posted, PostError> {
    let send = Send { to, tag: Some(1), data: Some(number), parts: &[piece], token: number, inject, delivery: false };
    party.endpoint.send(&send)
}

/// The same, not injected, once there is room for one more.
fn send_when_taken(parties: &mut [Party], to: PeerId, number: u64, piece: Piece) -> Posted {
    loop {
        match send(&parties[0], to, number, piece, false) {
            Ok(posted) => return posted,
            Err(error) => assert_eq!(error, PostError::Again),
        }
        parties.iter_mut().for_each(Party::poll);
    }
}

/// Takes the next message, which must have that number.
fn take(parties: &mut [Party], from: PeerId, room: Piece, number: u64) {
    parties[1].receive(Some(from), 1, room, number);
    let done = wait_for(parties, 1, Kind::Received, number);
    assert_eq!((done.status, done.len, done.data), (Status::Ok, LEN, Some(number)));
}

pub(super) fn rendezvous(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, [to_b, to_a]) = at.pair();
    let (piece, room) = (lent.bytes(&[7; LEN]), lent.room(LEN));
    let mut at_once = 0;
    for number in 0..MESSAGES {
        let posted = send_when_taken(&mut parties, to_b, number, piece);
        at_once += u64::from(posted == Posted::Done);
        parties.iter_mut().for_each(Party::poll);
    }
    let sent = |parties: &[Party]| at_once + parties[0].done.len() as u64;
    assert!(sent(&parties) > 0 && sent(&parties) <= MOST, "{} of {MESSAGES} were sent", sent(&parties));
    for number in 0..MESSAGES {
        take(&mut parties, to_a, room, number);
    }
    until(&mut parties, |parties| sent(parties) == MESSAGES);
    assert!(parties[0].done.iter().all(|done| done.status == Status::Ok));
}

pub(super) fn injected(at: &Context) {
    let mut lent = Lent::default();
    let (mut parties, [to_b, to_a]) = at.pair();
    let (piece, room) = (lent.bytes(&[7; LEN]), lent.room(LEN));
    let (mut first, mut next) = (0, 0);
    for _round in 0..2 {
        let full = next + MOST;
        // Too much may be on its way for a moment, too; what counts is that it ends.
        let mut refused = 0;
        while refused < 1000 {
            match send(&parties[0], to_b, next, piece, true) {
                Ok(posted) => {
                    assert_eq!(posted, Posted::Done);
                    (next, refused) = (next + 1, 0);
                }
                Err(error) => {
                    assert_eq!(error, PostError::Again);
                    refused += 1;
                }
            }
            assert!(next <= full, "{next} were taken");
            parties.iter_mut().for_each(Party::poll);
        }
        while first < next {
            take(&mut parties, to_a, room, first);
            first += 1;
        }
    }
    // What a closed endpoint kept counts no more.
    while send(&parties[0], to_b, next, piece, true) == Ok(Posted::Done) {
        parties.iter_mut().for_each(Party::poll);
    }
    let [a, b] = parties;
    let (worker, mut parties) = (std::sync::Arc::clone(b.endpoint.worker()), vec![a]);
    drop(b);
    let again = worker.endpoint(worker.space()).expect("a channel");
    parties.push(Party { endpoint: again, done: Vec::new() });
    let (to_b, to_a) = (parties[0].peer(&parties[1]), parties[1].peer(&parties[0]));
    until(&mut parties, |parties| send(&parties[0], to_b, 0, piece, true) == Ok(Posted::Done));
    take(&mut parties, to_a, room, 0);
}

pub(super) fn long(at: &Context) {
    /// Longer than anything that is sent without asking.
    const LONG: usize = (1 << 20) + 1;
    /// More announcements than are kept.
    const MOST: u64 = 100_000;
    let mut lent = Lent::default();
    let (mut parties, [to_b, to_a]) = at.pair();
    let piece = lent.bytes(&vec![7; LONG]);
    let (mut count, mut refused) = (0, 0);
    while refused < 1000 {
        match send(&parties[0], to_b, count, piece, false) {
            Ok(posted) => {
                assert_eq!(posted, Posted::Pending);
                (count, refused) = (count + 1, 0);
            }
            Err(error) => {
                assert_eq!(error, PostError::Again);
                refused += 1;
                parties.iter_mut().for_each(Party::poll);
            }
        }
        assert!(count < MOST, "{count} were announced");
    }
    // Nothing is lost, and there is room again.
    let wanted = Wanted { from: Some(to_a), tag: Some(1), ignore: 0 };
    for number in 0..count {
        let mut claimed = None;
        until(&mut parties, |parties| {
            claimed = parties[1].endpoint.claim(&wanted);
            claimed.is_some()
        });
        let (seen, claim) = claimed.expect("was waited for");
        assert_eq!((seen.len, seen.data), (LONG, Some(number)));
        parties[1].endpoint.discard(claim).expect("was claimed");
    }
    until(&mut parties, |parties| parties[0].done.len() as u64 == count);
    assert_eq!(send(&parties[0], to_b, count, piece, false), Ok(Posted::Pending));
    until(&mut parties, |parties| parties[1].endpoint.peek(&wanted).is_some());
}
