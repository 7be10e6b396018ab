//! What holds when etcd, or the way to it, fails now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use madrigal_pools::client::Told;
use madrigal_pools::{Change, Membership, Wish};
use madrigal_tests::trials;
use serde_json::{Value, json};

use crate::bed::{Bed, Kind, etcdctl, soon, until};
use crate::proxy::{Act, puts};

/// Of etcd.
pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_record_whose_answer_is_lost_is_not_added_twice", a_record_whose_answer_is_lost_is_not_added_twice),
    ("members_outlive_requests_that_fail_for_now", members_outlive_requests_that_fail_for_now),
    ("an_idle_pool_outlives_a_compaction", an_idle_pool_outlives_a_compaction),
    ("a_watch_that_is_refused_is_made_again", a_watch_that_is_refused_is_made_again),
    ("nonsense_in_a_log_is_passed_over", nonsense_in_a_log_is_passed_over),
    ("a_pool_that_cannot_be_read_is_refused_alone", a_pool_that_cannot_be_read_is_refused_alone),
    ("a_pool_whose_reading_fails_is_refused_alone", a_pool_whose_reading_fails_is_refused_alone),
    ("a_log_is_replaced_though_that_failed_once", a_log_is_replaced_though_that_failed_once),
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

fn an_idle_pool_outlives_a_compaction() {
    trials::need("etcdctl");
    let watches = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&watches);
    let bed = Bed::behind(1, move |_| {
        Box::new(move |path: &str, _: &Value| {
            count.fetch_add(usize::from(path == "/v3/watch"), Ordering::Relaxed);
            Act::Pass
        })
    });
    let member = bed.join(0, "p");
    until("the member is watched", || watches.load(Ordering::Relaxed) == 1);
    for _ in 0..20 {
        bed.etcdctl(&["put", "/foreign", "x"]);
    }
    let status = bed.etcdctl(&["get", "/foreign", "--write-out=json"]);
    let revision = serde_json::from_str::<Value>(&status).unwrap()["header"]["revision"].as_u64().unwrap();
    bed.etcdctl(&["compact", &revision.to_string()]);
    until("the watch was made anew", || watches.load(Ordering::Relaxed) > 1);
    member.signal(&[], "here", soon()).unwrap();
    assert_eq!(signals(&member, "here"), ["here"]);
}

fn a_watch_that_is_refused_is_made_again() {
    let count = AtomicUsize::new(0);
    let bed = Bed::behind(1, move |_| {
        Box::new(move |path: &str, _: &Value| match path {
            "/v3/watch" if count.fetch_add(1, Ordering::Relaxed) < 5 => {
                Act::Answer(r#"{"result":{"canceled":true,"cancel_reason":"rpc error: permission denied"}}"#)
            }
            _ => Act::Pass,
        })
    });
    let member = bed.join(0, "p");
    member.signal(&[], "here", soon()).unwrap();
}

fn nonsense_in_a_log_is_passed_over() {
    trials::need("etcdctl");
    let bed = Bed::new(Kind::Etcd, 2);
    let first = bed.join(0, "p");
    bed.etcdctl(&["put", "/a-test/pools/p/log/0-0", "what is that?"]);
    first.set(false, "a", Some(b"1"), soon()).unwrap();
    let second = bed.join(1, "p");
    second.set(false, "b", Some(b"2"), soon()).unwrap();
    assert_eq!(second.view(|view| (view.members.len(), view.attributes.len())), (2, 2));
    first.leave(soon()).unwrap();
    second.leave(soon()).unwrap();
    until("nothing is left", || bed.keys("/a-test/pools/") == 0);
}

fn a_pool_that_cannot_be_read_is_refused_alone() {
    trials::need("etcdctl");
    let bed = Bed::new(Kind::Etcd, 1);
    let member = bed.join(0, "p");
    bed.etcdctl(&["put", "/a-test/pools/q/snap", "what is that?"]);
    let refused = bed.try_join(0, Wish { pool: "q".to_owned(), ..Wish::default() }).unwrap_err();
    assert!(refused.to_string().starts_with("pool q in etcd cannot be read: "), "{refused}");
    member.signal(&[], "here", soon()).unwrap();
    // Nothing was added to it meanwhile.
    assert_eq!(bed.keys("/a-test/pools/q/"), 1);
    bed.etcdctl(&["del", "/a-test/pools/q/snap"]);
    bed.join(0, "q");
}

fn a_pool_whose_reading_fails_is_refused_alone() {
    let bed = Bed::behind(1, |_| {
        // The key of its snapshot, `/a-test/pools/q/snap`.
        let key = json!("L2EtdGVzdC9wb29scy9xL3NuYXA=");
        Box::new(move |_: &str, body: &Value| match body["success"][0]["request_range"]["key"] == key {
            true => Act::Refuse(503, "etcdserver: request timed out"),
            false => Act::Pass,
        })
    });
    let member = bed.join(0, "p");
    let refused = bed.try_join(0, Wish { pool: "q".to_owned(), ..Wish::default() }).unwrap_err().to_string();
    assert!(refused.contains("pool q in etcd cannot be read: http://127.0.0.1:"), "{refused}");
    assert!(refused.ends_with(": etcdserver: request timed out"), "{refused}");
    member.signal(&[], "here", soon()).unwrap();
}

fn a_log_is_replaced_though_that_failed_once() {
    trials::need("etcdctl");
    let count = AtomicUsize::new(0);
    let bed = Bed::behind(1, move |_| {
        Box::new(move |_: &str, body: &Value| {
            let is_snapshot = puts(body).iter().any(|(key, _)| key.ends_with("/snap"));
            if is_snapshot && count.fetch_add(1, Ordering::Relaxed) == 0 {
                return Act::Answer(r#"{"header":{"revision":"9"},"responses":[]}"#);
            }
            Act::Pass
        })
    });
    let member = bed.join(0, "p");
    for round in 0..700u32 {
        member.set(true, "round", Some(&round.to_le_bytes()), soon()).unwrap();
    }
    until("the log is replaced", || bed.keys("/a-test/pools/p/log/") < 512);
}
