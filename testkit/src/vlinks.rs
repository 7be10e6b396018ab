//! The promises of `VLink`, over any driver: posted operations, completion by descriptor and by handler.
//! Features (docs/features.md): A1, A2, A6, A9, A13, B1, B2, B3; over `loopback` B12.

mod common;
mod context;
mod ends;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use madrigal::error::{AcceptError, ConnectError, WriteError};
use madrigal::{Acceptor, Filled, Handler, VLink, time};

pub(crate) use common::{receive, send};
pub(crate) use context::certificates;
pub use context::{Context, context, stacked};

use crate::Case;
use crate::noise::{Noise, Stream};
use common::{ReadOutcome, drain};

/// The suite.
pub static CASES: &[Case<Context>] = &[
    Case { name: "carries_by_descriptor", run: by_descriptor },
    Case { name: "carries_by_handler", run: by_handler },
    Case { name: "posts_complete_in_order", run: in_order },
    Case { name: "any_split_and_merge_is_one_stream", run: split_and_merge },
    Case { name: "many_posted_writes_wait_for_a_slow_reader", run: back_pressure },
    Case { name: "reads_everything_before_the_end", run: ends::the_end },
    Case { name: "a_handler_reads_the_end_behind_the_last_bytes", run: ends::last_and_end },
    Case { name: "close_writes_what_was_posted_first", run: ends::close_flushes },
    Case { name: "posts_after_close_fail", run: ends::after_close },
    Case { name: "a_dropped_link_is_closed", run: ends::dropped },
    Case { name: "a_writer_learns_that_the_peer_is_gone_though_much_is_unread", run: ends::gone_unread },
    Case { name: "a_dropped_read_takes_nothing", run: ends::dropped_read },
    Case { name: "refused_connects_fail", run: refused },
    Case { name: "a_closed_acceptor_fails_posted_accepts", run: closed_acceptor },
    Case { name: "waits_have_deadlines", run: deadlines },
    Case { name: "handlers_may_post_wait_and_close", run: reentrant },
    Case { name: "many_links_call_back_once_per_message", run: thousand },
    Case { name: "links_come_and_go", run: come_and_go },
    Case { name: "eight_threads_share_an_engine", run: threads },
    Case { name: "an_idle_wait_takes_no_processor", run: idle },
    Case { name: "a_waiting_thread_does_not_starve_handlers", run: no_starvation },
];

fn by_descriptor(c: &Context) {
    let (near, far) = c.pair();
    for size in [1, 8, 24, 25, 512, 513, 2048, 65_536] {
        let sent = Stream::new(size as u64).take(size);
        send(&near, &sent);
        assert_eq!(receive(&far, size), sent);
    }
    let mut read = near.read(vec![0; 8]);
    assert!(read.poll().is_pending());
    send(&far, b"polled");
    let filled = loop {
        if let Poll::Ready(filled) = read.poll() {
            break filled.unwrap();
        }
    };
    assert_eq!(filled.bytes(), b"polled");
    assert!(read.poll().is_pending(), "an outcome is given once");
    assert!(near.id() != far.id() && near.peer().scheme() == c.driver.name());
}

/// An echo made of handlers only: each read posts the write, each write posts the next read.
fn echo(link: &VLink) {
    let on_read = Handler::new(|link: &VLink, outcome: ReadOutcome| {
        let Ok(Filled { mut buf, len }) = outcome else { return };
        if len > 0 {
            buf.truncate(len);
            link.write_with(
                buf,
                Handler::new(|link: &VLink, wrote: Result<Vec<u8>, WriteError>| {
                    if wrote.is_ok() {
                        echo(link);
                    }
                }),
            );
        }
    });
    link.read_with(vec![0; 4096], on_read);
}

fn by_handler(c: &Context) {
    let acceptor = c.listen();
    let accepted = Handler::new(|acceptor: &Acceptor, link: Result<VLink, AcceptError>| {
        if let Ok(link) = link {
            echo(&link);
            drop(acceptor.accept());
        }
    });
    acceptor.accept_with(accepted);
    let connected = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&connected);
    let handler = Handler::new(move |_: &(), link: Result<VLink, ConnectError>| *keep.lock().unwrap() = link.ok());
    c.runtime.connect_with(&c.at(acceptor.locator()), handler).unwrap();
    c.until(|| connected.lock().unwrap().is_some());
    let near = connected.lock().unwrap().take().unwrap();
    for size in [1, 24, 1000, 4096, 30_000] {
        let sent = Stream::new(size as u64).take(size);
        send(&near, &sent);
        assert_eq!(receive(&near, size), sent);
    }
}

fn in_order(c: &Context) {
    let (near, far) = c.pair();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut ops = Vec::new();
    for i in 0..10u8 {
        if i.is_multiple_of(2) {
            let seen = Arc::clone(&seen);
            let handler = Handler::new(move |_: &VLink, outcome: ReadOutcome| {
                seen.lock().unwrap().push(outcome.unwrap().bytes()[0]);
            });
            far.read_with(vec![0; 1], handler);
        } else {
            ops.push((i, far.read(vec![0; 1])));
        }
    }
    send(&near, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    for (i, op) in ops.into_iter().rev() {
        assert_eq!(op.wait().unwrap().bytes(), [i]);
    }
    c.until(|| seen.lock().unwrap().len() == 5);
    assert_eq!(*seen.lock().unwrap(), [0, 2, 4, 6, 8]);
}

fn split_and_merge(c: &Context) {
    const TOTAL: u64 = 2_000_000;
    let (near, far) = c.pair();
    let write = |link: &VLink, seed: u64| {
        let (mut sizes, mut stream) = (Noise::new(seed), Stream::new(seed));
        let mut posted = Vec::new();
        while stream.at < TOTAL {
            let len = sizes.size(70_000).min((TOTAL - stream.at) as usize);
            posted.push(link.write(stream.take(len)));
            if posted.len() > sizes.below(12) {
                posted.drain(..).for_each(|op| drop(op.wait().unwrap()));
            }
        }
        posted.drain(..).for_each(|op| drop(op.wait().unwrap()));
    };
    let read = |link: &VLink, seed: u64| {
        let (mut sizes, mut stream) = (Noise::new(!seed), Stream::new(seed));
        while stream.at < TOTAL {
            let filled = link.read(vec![0; sizes.size(70_000)]).wait().unwrap();
            assert_ne!(filled.len, 0);
            stream.check(filled.bytes());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| write(&near, 1));
        scope.spawn(|| write(&far, 2));
        scope.spawn(|| read(&near, 2));
        read(&far, 1);
    });
}

fn back_pressure(c: &Context) {
    let (near, far) = c.pair();
    let mut stream = Stream::new(5);
    let posted: Vec<_> = (0..200).map(|_| near.write(stream.take(65_536))).collect();
    c.runtime.do_work();
    let mut check = Stream::new(5);
    while check.at < stream.at {
        let filled = far.read(vec![0; 100_000]).wait().unwrap();
        check.check(filled.bytes());
    }
    posted.into_iter().for_each(|op| assert_eq!(op.wait().unwrap().len(), 65_536));
}

fn refused(c: &Context) {
    let at = c.listen().locator().clone();
    let refused = c.runtime.connect_at(&c.at(&at)).wait();
    assert!(matches!(refused, Err(ConnectError::Refused { .. })), "{refused:?}");
    let told = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&told);
    let handler = Handler::new(move |_: &(), outcome: Result<VLink, ConnectError>| {
        tell.store(outcome.is_err(), Ordering::Relaxed);
    });
    c.runtime.connect_with(&c.at(&at), handler).unwrap();
    c.until(|| told.load(Ordering::Relaxed));
}

fn closed_acceptor(c: &Context) {
    let acceptor = c.listen();
    let posted = acceptor.accept();
    let called = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&called);
    acceptor.accept_with(Handler::new(move |_: &Acceptor, outcome: Result<VLink, AcceptError>| {
        tell.store(matches!(outcome, Err(AcceptError::Closed { .. })), Ordering::Relaxed);
    }));
    acceptor.close();
    assert!(matches!(posted.wait(), Err(AcceptError::Closed { .. })));
    c.until(|| called.load(Ordering::Relaxed));
    assert!(matches!(acceptor.accept().wait(), Err(AcceptError::Closed { .. })));
    // A dropped acceptor answers what was posted by descriptor.
    let other = c.listen();
    let posted = other.accept();
    drop(other);
    assert!(matches!(posted.wait(), Err(AcceptError::Closed { .. })));
}

fn deadlines(c: &Context) {
    let (near, far) = c.pair();
    let mut read = near.read(vec![0; 1]);
    let at = time::now_ns() + 5_000_000;
    assert!(read.wait_until(Some(at)).is_pending());
    assert!(time::now_ns() >= at);
    send(&far, b"x");
    assert!(matches!(read.wait_until(None), Poll::Ready(Ok(filled)) if filled.bytes() == b"x"));
    let acceptor = c.listen();
    assert!(acceptor.accept().wait_until(Some(time::now_ns() + 1_000_000)).is_pending());
    // The accept was taken back: the link that comes is for the next one.
    let (near, far) = c.pair_on(&acceptor);
    send(&near, b"y");
    assert_eq!(receive(&far, 1), b"y");
}

fn reentrant(c: &Context) {
    let (near, far) = c.pair();
    let (other_near, other_far) = c.pair();
    let done = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&done);
    let handler = Handler::new(move |link: &VLink, outcome: ReadOutcome| {
        assert_eq!(outcome.unwrap().bytes(), b"1");
        // Waits for another link, whose bytes come by a handler below this one.
        let inner = other_near.clone();
        other_far.read_with(
            vec![0; 1],
            Handler::new(move |link: &VLink, outcome: ReadOutcome| {
                assert_eq!(outcome.unwrap().bytes(), b"2");
                drop(link.write(b"3".to_vec()));
            }),
        );
        send(&inner, b"2");
        assert_eq!(receive(&inner, 1), b"3");
        // Waits for its own link.
        assert_eq!(receive(link, 1), b"4");
        link.close().wait();
        tell.store(true, Ordering::Relaxed);
    });
    far.read_with(vec![0; 1], handler);
    send(&near, b"1");
    send(&near, b"4");
    c.until(|| done.load(Ordering::Relaxed));
    assert_eq!(drain(&near).unwrap(), b"");
}

fn thousand(c: &Context) {
    // Each connection of a link has descriptors.
    let count = if c.has_stack() { 100 } else { 1_000 };
    let acceptor = c.listen();
    let calls: Arc<Vec<AtomicU64>> = Arc::new((0..count).map(|_| AtomicU64::new(0)).collect());
    let total = Arc::new(AtomicU64::new(0));
    let pairs: Vec<_> = (0..count).map(|_| c.pair_on(&acceptor)).collect();
    fn listen(link: &VLink, i: usize, calls: &Arc<Vec<AtomicU64>>, total: &Arc<AtomicU64>) {
        let (more_calls, more_total) = (Arc::clone(calls), Arc::clone(total));
        link.read_with(
            vec![0; 16],
            Handler::new(move |link: &VLink, outcome: ReadOutcome| {
                if outcome.is_ok_and(|filled| filled.len == 1) {
                    more_calls[i].fetch_add(1, Ordering::Relaxed);
                    more_total.fetch_add(1, Ordering::Relaxed);
                    listen(link, i, &more_calls, &more_total);
                }
            }),
        );
    }
    for (i, (_, far)) in pairs.iter().enumerate() {
        listen(far, i, &calls, &total);
    }
    for round in 1..=5 {
        for (near, _) in &pairs {
            send(near, &[1]);
        }
        c.until(|| total.load(Ordering::Relaxed) == round * count as u64);
        assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == round));
    }
}

fn come_and_go(c: &Context) {
    let acceptor = c.listen();
    let rounds: u32 = if c.has_stack() { 200 } else { 1_000 };
    for i in 0..rounds {
        let (near, far) = c.pair_on(&acceptor);
        send(&near, &i.to_le_bytes());
        assert_eq!(receive(&far, 4), i.to_le_bytes());
        if i.is_multiple_of(2) {
            near.close().wait();
        }
    }
}

fn threads(c: &Context) {
    let messages: u32 = if c.has_stack() { 1_000 } else { 20_000 };
    let acceptor = c.listen();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (near, far) = c.pair_on(&acceptor);
            scope.spawn(move || {
                for i in 0..messages {
                    assert_eq!(receive(&far, 4), i.to_le_bytes());
                    send(&far, &i.to_le_bytes());
                }
            });
            scope.spawn(move || {
                for i in 0..messages {
                    send(&near, &i.to_le_bytes());
                    assert_eq!(receive(&near, 4), i.to_le_bytes());
                }
            });
        }
    });
}

fn idle(c: &Context) {
    let (near, _far) = c.pair();
    let used = || {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    };
    let begun = used();
    let mut read = near.read(vec![0; 1]);
    assert!(read.wait_until(Some(time::now_ns() + 300_000_000)).is_pending());
    assert!(used() - begun < 300_000_000 / 20, "{} ns of processor for 300 ms of waiting", used() - begun);
}

fn no_starvation(c: &Context) {
    let (near, far) = c.pair();
    let (quiet_near, quiet_far) = c.pair();
    let called = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&called);
    quiet_far.read_with(vec![0; 1], Handler::new(move |_: &VLink, _| tell.store(true, Ordering::Relaxed)));
    std::thread::scope(|scope| {
        let stop = AtomicBool::new(false);
        let stop = &stop;
        let echo = scope.spawn(move || {
            loop {
                let byte = receive(&far, 1);
                send(&far, &byte);
                if byte == [0] {
                    break;
                }
            }
        });
        send(&quiet_near, b"!");
        // Only the threads that wait for their own link run the engine.
        while !called.load(Ordering::Relaxed) {
            send(&near, &[1]);
            assert_eq!(receive(&near, 1), [1]);
        }
        stop.store(true, Ordering::Relaxed);
        send(&near, &[0]);
        assert_eq!(receive(&near, 1), [0]);
        echo.join().unwrap();
    });
}
