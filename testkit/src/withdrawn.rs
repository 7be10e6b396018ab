//! The promises of operations of a `VLink` that are taken back, or cut off with it, over any driver.
//! Features (docs/features.md): B1.

use std::sync::Arc;

use madrigal::engine::{Next, Source, Work};
use madrigal::error::{ReadError, WriteError};
use madrigal::time;

use crate::Case;
use crate::noise::Stream;
use crate::vlinks::{Context, receive, send};

/// The suite.
pub static CASES: &[Case<Context>] = &[
    Case { name: "what_is_taken_back_loses_nothing", run: taken_back },
    Case { name: "a_deadline_holds_beside_a_busy_engine", run: beside_busy },
    Case { name: "an_aborted_link_fails_what_is_posted", run: aborted },
];

fn taken_back(c: &Context) {
    let (near, far) = c.pair();
    assert_eq!(far.read(vec![0; 8]).cancel(), None);
    send(&near, b"kept");
    assert_eq!(receive(&far, 4), b"kept");
    let sent = Stream::new(7).take(4 << 20);
    let taken = near.write(sent.clone()).cancel().expect("nothing fails").unwrap_or(sent.len());
    assert!(receive(&far, taken) == sent[..taken]);
    send(&near, b"behind it");
    assert_eq!(receive(&far, 9), b"behind it");
}

/// There is always something to do.
struct Busy;

impl Source for Busy {
    fn work(&self, _budget: u32) -> Work {
        Work { count: 1, next: Next::Again }
    }

    fn arm(&self) -> bool {
        true
    }
}

fn beside_busy(c: &Context) {
    let (near, far) = c.pair();
    let engine = far.engine();
    let busy = engine.register(engine.class("busy"), None, Arc::new(Busy)).expect("is registered");
    busy.wake();
    let (mut first, mut second) = (far.read(vec![0; 1]), far.read(vec![0; 1]));
    for read in [&mut second, &mut first] {
        assert!(read.wait_until(Some(time::now_ns() + 1_000_000)).is_pending());
    }
    send(&near, b"ab");
    let got = [first.wait(), second.wait()].map(|read| read.expect("reads").bytes().to_vec());
    assert_eq!(got, [b"a", b"b"]);
}

fn aborted(c: &Context) {
    let (near, _far) = c.pair();
    let (write, read) = (near.write(vec![1; 64 << 20]), near.read(vec![0; 8]));
    near.abort();
    assert!(matches!(write.wait(), Err(WriteError::Closed { .. })));
    assert!(matches!(read.wait(), Err(ReadError::Closed { .. })));
    assert!(matches!(near.write(vec![1]).wait(), Err(WriteError::Closed { .. })));
}
