//! What holds when etcd, or the way to it, fails now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use madrigal_pools::client::Told;
use madrigal_pools::{Change, Membership};
use madrigal_tests::trials;
use serde_json::Value;

use crate::bed::{Bed, etcdctl, soon};
use crate::proxy::{Act, puts};

/// Of etcd.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_record_whose_answer_is_lost_is_not_added_twice", a_record_whose_answer_is_lost_is_not_added_twice),
    ("members_outlive_requests_that_fail_for_now", members_outlive_requests_that_fail_for_now),
];

/// The texts of the signals that a member is told, up to this one.
fn signals(of: &Membership, last: &str) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.last().is_none_or(|text| text != last) {
        match of.next_event(soon()).unwrap() {
            Some(Told::Event(event)) => {
                if let Change::Signal { text, .. } = event.change {
                    texts.push(text);
                }
            }
            other => panic!("{other:?} behind {texts:?}"),
        }
    }
    texts
}

fn a_record_whose_answer_is_lost_is_not_added_twice() {
    trials::need("etcdctl");
    let lost = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lost);
    let bed = Bed::behind(1, move |etcd| {
        Box::new(move |_: &str, body: &Value| {
            let is_it = |value: &Vec<u8>| value.windows(4).any(|bytes| bytes == b"once");
            if !puts(body).iter().any(|(_, value)| is_it(value)) || count.fetch_add(1, Ordering::Relaxed) > 0 {
                return Act::Pass;
            }
            // Another daemon replaces the log meanwhile.
            let etcd = etcd.clone();
            Act::Lose(Box::new(move || drop(etcdctl(&etcd, &["del", "--prefix", "/a-test/pools/p/log/"]))))
        })
    });
    let member = bed.join(0, "p");
    member.signal(&[], "once", soon()).unwrap();
    member.signal(&[], "last", soon()).unwrap();
    assert_eq!(signals(&member, "last"), ["once", "last"]);
    assert!(lost.load(Ordering::Relaxed) > 1, "it was not tried again");
}

fn members_outlive_requests_that_fail_for_now() {
    let count = AtomicUsize::new(0);
    let bed = Bed::behind(1, move |_| {
        Box::new(move |path: &str, _: &Value| {
            if path != "/v3/kv/txn" {
                return Act::Pass;
            }
            match count.fetch_add(1, Ordering::Relaxed) % 6 {
                0 | 1 => Act::Refuse(503, "etcdserver: no leader"),
                2 | 3 => Act::Refuse(429, "etcdserver: too many requests"),
                4 => Act::Lose(Box::new(|| {})),
                _ => Act::Pass,
            }
        })
    });
    let members = [bed.join(0, "p"), bed.join(0, "p")];
    for text in ["one", "two", "last"] {
        members[0].signal(&[], text, soon()).unwrap();
    }
    assert_eq!(signals(&members[1], "last"), ["one", "two", "last"]);
}
