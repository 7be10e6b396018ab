//! The conversation of two processes that meet: which are let in, and which learn nothing.
#![allow(missing_docs)]

use madrigal_base::node::NodeId;
use madrigal_proto::talk::{LONG, Next, STEP, Talk, Unauthenticated};
use proptest::prelude::*;

fn node(number: u64) -> NodeId {
    NodeId::new(number).unwrap()
}

/// Gives bytes in two pieces.
fn handle(talk: &mut Talk, bytes: &[u8], cut: usize, out: &mut Vec<u8>) -> Result<Next, Unauthenticated> {
    assert_eq!(talk.wants(), bytes.len());
    let (first, rest) = bytes.split_at(cut.min(bytes.len() - 1));
    assert_eq!(talk.take(first, out), Ok(Next::Wait));
    talk.take(rest, out)
}

/// A callee that was called.
fn introduced(caller: u64, callee: u64) -> (Talk, Talk) {
    let (call, hello) = Talk::call(node(caller), node(callee), 11);
    let mut listen = Talk::listen(node(callee), 22);
    assert_eq!(handle(&mut listen, &hello, 5, &mut Vec::new()), Ok(Next::Caller(node(caller))));
    (call, listen)
}

#[test]
fn a_leading_caller_says_go_to_the_answer() {
    let (mut call, mut listen) = introduced(9, 5);
    let (mut answer, mut out, mut go) = (vec![], vec![], vec![]);
    listen.welcome(false, &mut answer);
    assert_eq!(handle(&mut call, &answer, 31, &mut out), Ok(Next::Choose));
    call.go(&mut go);
    assert_eq!((go.len(), out.len()), (STEP, 0));
    assert_eq!(handle(&mut listen, &go, 1, &mut out), Ok(Next::Chosen));
    assert_eq!((listen.wants(), call.wants()), (0, 0));
}

#[test]
fn a_leading_callee_waits_for_proof_that_the_caller_lives() {
    let (mut call, mut listen) = introduced(5, 9);
    let (mut answer, mut ready, mut go) = (vec![], vec![], vec![]);
    listen.welcome(false, &mut answer);
    assert_eq!(handle(&mut call, &answer, 0, &mut ready), Ok(Next::Answered));
    assert_eq!(handle(&mut listen, &ready, 8, &mut vec![]), Ok(Next::Choose));
    listen.go(&mut go);
    assert_eq!(handle(&mut call, &go, 8, &mut vec![]), Ok(Next::Chosen));
}

#[test]
fn a_callee_that_has_a_connection_says_so() {
    let (mut call, mut listen) = introduced(5, 9);
    let mut answer = vec![];
    listen.welcome(true, &mut answer);
    assert_eq!(handle(&mut call, &answer, 3, &mut vec![]), Ok(Next::Taken));
    assert_eq!((listen.wants(), call.wants()), (0, 0));
}

#[test]
fn another_node_gives_no_answer() {
    let (_, hello) = Talk::call(node(9), node(5), 11);
    assert_eq!(Talk::listen(node(6), 22).take(&hello, &mut vec![]), Err(Unauthenticated));
    // Our own listener, met behind an address that both hosts have.
    assert_eq!(Talk::listen(node(9), 22).take(&hello, &mut vec![]), Err(Unauthenticated));
}

#[test]
fn a_hello_does_not_show_the_node_ids() {
    let (mine, other) = (0xA1B2_C3D4_E5F6, 0x1122_3344_5566);
    let (_, hello) = Talk::call(node(mine), node(other), 11);
    for id in [mine, other] {
        assert!(hello.windows(6).all(|window| window != &id.to_le_bytes()[..6]), "{id:x}");
    }
}

#[test]
fn what_was_heard_before_proves_nothing() {
    let (mut call, mut listen) = introduced(9, 5);
    let (mut answer, mut go) = (vec![], vec![]);
    listen.welcome(false, &mut answer);
    handle(&mut call, &answer, 1, &mut vec![]).unwrap();
    call.go(&mut go);
    // All of the caller's messages once more, to the same callee with another nonce.
    let (_, hello) = Talk::call(node(9), node(5), 11);
    let mut again = Talk::listen(node(5), 23);
    assert_eq!(handle(&mut again, &hello, 1, &mut vec![]), Ok(Next::Caller(node(9))));
    again.welcome(false, &mut vec![]);
    assert_eq!(handle(&mut again, &go, 1, &mut vec![]), Err(Unauthenticated));
}

proptest! {
    #[test]
    fn one_wrong_bit_anywhere_is_refused(bit in 0usize..LONG * 8, step in 0usize..STEP * 8, lead: bool) {
        let (low, high) = (5, 9);
        let (caller, callee) = if lead { (high, low) } else { (low, high) };
        let (_, mut hello) = Talk::call(node(caller), node(callee), 11);
        hello[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(Talk::listen(node(callee), 22).take(&hello, &mut vec![]), Err(Unauthenticated));

        let (mut call, mut listen) = introduced(caller, callee);
        let (mut answer, mut ready, mut go) = (vec![], vec![], vec![]);
        listen.welcome(false, &mut answer);
        let mut bent = answer.clone();
        bent[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(call.take(&bent, &mut vec![]), Err(Unauthenticated));

        let (mut call, mut listen) = introduced(caller, callee);
        listen.welcome(false, &mut vec![]);
        call.take(&answer, &mut ready).unwrap();
        if lead { call.go(&mut go) } else { go = ready }
        go[step / 8] ^= 1 << (step % 8);
        prop_assert_eq!(listen.take(&go, &mut vec![]), Err(Unauthenticated));
    }

    #[test]
    fn garbage_is_refused_and_answered_by_nothing(bytes in prop::collection::vec(any::<u8>(), 0..=LONG + 8)) {
        let (mut listen, mut out) = (Talk::listen(node(5), 22), vec![]);
        let (mut call, _) = Talk::call(node(9), node(5), 11);
        for talk in [&mut listen, &mut call] {
            let taken = talk.take(&bytes, &mut out);
            prop_assert_eq!(taken.is_err(), bytes.len() >= LONG);
        }
        prop_assert!(out.is_empty());
    }
}
