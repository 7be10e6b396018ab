//! The life of a slot, step by step.

use super::*;

fn tag(number: u64) -> Tag {
    Tag::fresh(number << 8)
}

#[test]
fn an_offer_is_claimed_or_withdrawn() {
    let life = Life::default();
    let lent = life.offer(tag(1));
    assert_eq!(life.offered(), Some(lent));
    assert!(life.claim(lent) && !life.withdraw(lent) && !life.claim(lent));
    assert!(!life.is_attached(lent) && life.attach(lent) && life.is_attached(lent));
    let other = Life::default();
    let lent = other.offer(tag(2));
    assert!(other.withdraw(lent) && other.is_off(lent) && !other.claim(lent) && other.recycle());
}

#[test]
fn who_comes_late_is_refused() {
    let life = Life::default();
    let old = life.offer(tag(1));
    assert!(life.withdraw(old) && life.recycle() && !life.recycle());
    let new = life.offer(tag(2));
    assert!(!life.claim(old) && !life.withdraw(old));
    assert!(life.claim(new));
    life.decline(old);
    assert!(!life.attach(old) && life.attach(new), "what is said of an old use changes nothing");
    assert_eq!(life.leave(0, old, || panic!("not ours")), Err(Contradiction));
    assert!(life.is_attached(new));
}

#[test]
fn a_session_of_another_number_leaves_nothing() {
    let life = Life::default();
    let lent = life.offer(tag(1));
    assert!(!life.claim(Lent { session: tag(2), ..lent }));
    assert!(life.claim(lent) && life.attach(lent));
    let wrong = Lent { session: tag(2), ..lent };
    assert_eq!(life.leave(1, wrong, || panic!("not ours")), Err(Contradiction));
    assert_eq!(life.leave(1, lent, || panic!("the other is there")), Ok(Left::First));
    assert_eq!(life.leave(1, lent, || panic!("we have left")), Err(Contradiction));
}

#[test]
fn a_creator_that_leaves_early_is_noticed() {
    let life = Life::default();
    let lent = life.offer(tag(1));
    assert!(!life.leave_early(lent) && life.claim(lent) && life.leave_early(lent));
    assert!(!life.recycle(), "the other side is writing its part");
    assert!(!life.attach(lent));
    assert!(life.recycle());
}

#[test]
fn the_dead_are_left_behind() {
    let life = Life::default();
    let lent = life.offer(tag(1));
    assert!(life.claim(lent) && life.attach(lent));
    let mut freed = false;
    life.abandon(0, lent, || freed = true).unwrap();
    assert!(freed && life.recycle());
}
