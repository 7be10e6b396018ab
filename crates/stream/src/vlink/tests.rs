//! Links over a driver's ends that are played here.

use std::io::IoSlice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use madrigal_progress::bell::Bell;
use madrigal_progress::driver::{ByteRx, ByteTx, Read, Signal, Waker, Watched, Wrote};
use madrigal_progress::wait::Waiter;
use madrigal_sys::time;

use super::*;

/// Bytes, and the end behind them, once they have come.
#[derive(Clone, Default)]
struct Last(Arc<Mutex<Option<Vec<u8>>>>);

impl Watched for Last {
    fn arm(&mut self) -> bool {
        self.0.lock().expect("no panic").is_some()
    }
}

impl ByteRx for Last {
    fn read(&mut self, buf: &mut [u8]) -> Result<Read, ReadError> {
        let mut all = self.0.lock().expect("no panic");
        let Some(left) = &mut *all else { return Ok(Read::WouldBlock) };
        let count = left.len().min(buf.len());
        buf[..count].copy_from_slice(&left[..count]);
        left.drain(..count);
        Ok(if count == 0 { Read::End } else { Read::Bytes(count) })
    }
}

impl ByteTx for Last {
    fn write(&mut self, _bufs: &[IoSlice<'_>]) -> Result<Wrote, WriteError> {
        Ok(Wrote::WouldBlock)
    }

    fn finish(&mut self, _then: &Waker) -> bool {
        true
    }
}

/// A read that gave less than there was room for need not be the last one: the end says so when it is asked, though nothing is reported.
#[test]
fn an_end_that_was_reported_with_the_last_bytes_is_found() {
    let engine = Engine::new().expect("an engine");
    let (ends, bell) = (Last::default(), Arc::new(Bell::new().expect("a bell")));
    let came = Arc::clone(&ends.0);
    let at = Locator::name("played", "a").expect("a name");
    let stream = Stream {
        rx: Box::new(ends.clone()),
        tx: Box::new(ends),
        signal: Arc::clone(&bell) as Arc<dyn Signal>,
        local: at.clone(),
        peer: at,
        adapter: "none",
    };
    let link = VLink::new(&engine, engine.class("played"), stream).expect("a link");
    let (read, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    fn post(link: &VLink, read: &Arc<AtomicUsize>, ends: &Arc<AtomicUsize>) {
        let (count, tell) = (Arc::clone(read), Arc::clone(ends));
        let handler = Handler::new(move |link: &VLink, outcome: Result<Filled, ReadError>| {
            match outcome.expect("bytes, or the end").len {
                0 => _ = tell.fetch_add(1, Ordering::Relaxed),
                len => {
                    count.fetch_add(len, Ordering::Relaxed);
                    post(link, &count, &tell);
                }
            }
        });
        link.read_with(vec![0; 64], handler);
    }
    post(&link, &read, &ends);
    for _ in 0..3 {
        // Nothing has come.
        bell.ring();
        engine.wait_until(&Waiter::default(), Some(time::now_ns() + 5_000_000), || false);
    }
    *came.lock().expect("no panic") = Some(b"last".to_vec());
    bell.ring();
    // Long enough for whatever is to happen; it is at once.
    let deadline = Some(time::now_ns() + 100_000_000_000);
    engine.wait_until(&Waiter::default(), deadline, || ends.load(Ordering::Relaxed) > 0);
    assert_eq!((read.load(Ordering::Relaxed), ends.load(Ordering::Relaxed)), (4, 1));
}
