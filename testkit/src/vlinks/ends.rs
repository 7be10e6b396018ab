//! How links end: by a close, by a drop, at once; what was written before, and what nobody reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use madrigal::error::{ReadError, WriteError};
use madrigal::{Filled, Handler, VLink};

use super::common::{ReadOutcome, drain, receive, send};
use super::context::Context;
use crate::noise::Stream;

pub(super) fn the_end(c: &Context) {
    for len in [0, 5, 5_000, 300_000] {
        let (near, far) = c.pair();
        let sent = Stream::new(1).take(len);
        let write = near.write(sent.clone());
        let reader = {
            let far = far.clone();
            std::thread::spawn(move || drain(&far))
        };
        write.wait().unwrap();
        near.close().wait();
        assert_eq!(reader.join().unwrap().unwrap(), sent);
        assert_eq!(far.read(vec![0; 1]).wait().unwrap().len, 0, "the end stays");
    }
}

/// Both come at once, which the kernel reports once.
pub(super) fn last_and_end(c: &Context) {
    let (near, far) = c.pair();
    let (read, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    fn post(link: &VLink, read: &Arc<AtomicUsize>, ended: &Arc<AtomicBool>) {
        let (count, tell) = (Arc::clone(read), Arc::clone(ended));
        let handler =
            Handler::new(move |link: &VLink, outcome: ReadOutcome| match outcome.expect("bytes or the end") {
                Filled { len: 0, .. } => tell.store(true, Ordering::Relaxed),
                Filled { len, .. } => {
                    count.fetch_add(len, Ordering::Relaxed);
                    post(link, &count, &tell);
                }
            });
        link.read_with(vec![0; 64], handler);
    }
    post(&far, &read, &ended);
    send(&near, b"first");
    c.until(|| read.load(Ordering::Relaxed) == 5);
    send(&near, b"last");
    drop(near);
    c.until(|| ended.load(Ordering::Relaxed));
    assert_eq!(read.load(Ordering::Relaxed), 9);
}

pub(super) fn close_flushes(c: &Context) {
    let (near, far) = c.pair();
    let mut stream = Stream::new(6);
    let posted: Vec<_> = (0..100).map(|_| near.write(stream.take(50_000))).collect();
    let mut closed = near.close();
    let mut check = Stream::new(6);
    while check.at < stream.at {
        let filled = far.read(vec![0; 60_000]).wait().unwrap();
        assert_ne!(filled.len, 0, "the end came before what was posted");
        check.check(filled.bytes());
    }
    posted.into_iter().for_each(|op| drop(op.wait().unwrap()));
    assert!(closed.wait_until(None).is_ready());
    assert_eq!(drain(&far).unwrap(), b"");
}

pub(super) fn after_close(c: &Context) {
    let (near, _far) = c.pair();
    let waiting = near.read(vec![0; 1]);
    let called = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&called);
    near.close_with(Handler::new(move |_: &(), ()| _ = count.fetch_add(1, Ordering::Relaxed)));
    assert!(matches!(waiting.wait(), Err(ReadError::Closed { .. })));
    assert!(matches!(near.read(vec![0; 1]).wait(), Err(ReadError::Closed { .. })));
    assert!(matches!(near.write(vec![0; 1]).wait(), Err(WriteError::Closed { .. })));
    let (reads, writes) = (Arc::clone(&called), Arc::clone(&called));
    near.read_with(
        vec![0; 1],
        Handler::new(move |_: &VLink, outcome: ReadOutcome| {
            assert!(matches!(outcome, Err(ReadError::Closed { .. })));
            reads.fetch_add(1, Ordering::Relaxed);
        }),
    );
    near.write_with(
        vec![0; 1],
        Handler::new(move |_: &VLink, outcome: Result<Vec<u8>, WriteError>| {
            assert!(matches!(outcome, Err(WriteError::Closed { .. })));
            writes.fetch_add(1, Ordering::Relaxed);
        }),
    );
    c.until(|| called.load(Ordering::Relaxed) == 3);
    near.close().wait();
}

pub(super) fn dropped(c: &Context) {
    let (near, far) = c.pair();
    send(&near, b"last");
    drop(near);
    assert_eq!(drain(&far).unwrap(), b"last");
    let error = loop {
        match far.write(vec![0; 100]).wait() {
            Ok(_) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, WriteError::PeerGone { .. }), "{error}");
}

/// Nobody reads what the other end sent before it ended.
pub(super) fn gone_unread(c: &Context) {
    let (near, far) = c.pair();
    let posted: Vec<_> = (0..100).map(|_| far.write(vec![7; 65_536])).collect();
    send(&near, b"so that both ends are up");
    for _ in 0..100 {
        c.runtime.do_work();
    }
    drop(posted);
    far.abort();
    let error = loop {
        match near.write(vec![0; 10_000]).wait() {
            Ok(_) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, WriteError::PeerGone { .. }), "{error}");
}

pub(super) fn dropped_read(c: &Context) {
    let (near, far) = c.pair();
    drop(far.read(vec![0; 4]));
    send(&near, b"kept");
    assert_eq!(receive(&far, 4), b"kept");
}
