//! The two directions of a link: what a posted read and a posted write do when they are tried.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use madrigal_base::error::{ReadError, WriteError};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{ByteRx, ByteTx, Read, Signal, Waker, Watched, Wrote};

use crate::buffer::Buffer;
use crate::lane::{Completed, Half, Queue};

/// Writes gathered into one.
const GATHER: usize = 8;

/// What a completed read gives back: the buffer, its length unchanged, and how many bytes at its front are new. None: the peer
/// closed and everything was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filled {
    /// The buffer of the post; empty where memory was lent to it.
    pub buf: Vec<u8>,
    /// Bytes read into it.
    pub len: usize,
}

impl Filled {
    /// The bytes read.
    pub fn bytes(&self) -> &[u8] {
        self.buf.get(..self.len).unwrap_or_default()
    }
}

/// A driver's signal, and for each direction whether it was reported since the last check.
pub(crate) struct Fresh {
    signal: Arc<dyn Signal>,
    rx: AtomicBool,
    tx: AtomicBool,
    ended: AtomicBool,
}

impl Fresh {
    pub(crate) fn new(signal: Arc<dyn Signal>) -> Self {
        Self { signal, rx: AtomicBool::new(true), tx: AtomicBool::new(true), ended: AtomicBool::new(false) }
    }
}

impl Signal for Fresh {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.signal.descriptor()
    }

    fn ended(&self) {
        self.signal.ended();
        // SYNC: Relaxed, for `woken` follows.
        self.ended.store(true, Ordering::Relaxed);
    }

    fn woken(&self) {
        self.signal.woken();
        // SYNC: Release pairs with the swaps of the directions: the read that follows one finds what the report was for.
        self.rx.store(true, Ordering::Release);
        self.tx.store(true, Ordering::Release);
    }

    fn by_output(&self) -> bool {
        self.signal.by_output()
    }
}

/// The reading direction.
pub(crate) struct Rx {
    input: In,
    signal: Option<Arc<Fresh>>,
    queue: Queue<Buffer, Result<Filled, ReadError>>,
}

/// The driver's end, and how it failed.
struct In {
    end: Option<Box<dyn ByteRx>>,
    peer: Locator,
    cheap: bool,
    /// The last read left nothing behind: another one would be a useless system call until the signal is reported.
    dry: bool,
    failed: Option<ReadError>,
}

impl Rx {
    pub(crate) fn new(end: Box<dyn ByteRx>, signal: Arc<Fresh>, peer: Locator) -> Self {
        let cheap = end.cheap();
        let input = In { end: Some(end), peer, cheap, dry: false, failed: None };
        Self { input, signal: Some(signal), queue: Queue::new() }
    }

    /// Reads at once if nothing is posted before, and unless the driver asks to hold back.
    #[inline]
    pub(crate) fn try_now(&mut self, buf: &mut [u8]) -> Option<Result<usize, ReadError>> {
        if !self.queue.is_empty() {
            return None;
        }
        self.queue.patience = self.input.end.as_mut().map_or(0, |end| end.patience_ns());
        if self.queue.patience > 0 {
            return None;
        }
        self.input.read(buf)
    }

    /// Our side closes: posted reads complete with that.
    pub(crate) fn close(&mut self) {
        (self.input.end, self.input.dry, self.signal) = (None, false, None);
    }
}

impl In {
    #[inline]
    fn read(&mut self, buf: &mut [u8]) -> Option<Result<usize, ReadError>> {
        let (Some(end), None) = (&mut self.end, &self.failed) else {
            return Some(Err(self.refusal()));
        };
        let read = end.read(buf);
        if !self.cheap {
            self.dry = matches!(read, Ok(Read::WouldBlock)) || matches!(read, Ok(Read::Bytes(n)) if n < buf.len());
        }
        match read {
            Ok(Read::Bytes(n)) => Some(Ok(n)),
            Ok(Read::WouldBlock) => None,
            Ok(Read::End) => Some(Ok(0)),
            Err(error) => {
                self.failed = Some(error);
                Some(Err(self.refusal()))
            }
        }
    }

    /// Why nothing can be read any more.
    #[cold]
    fn refusal(&self) -> ReadError {
        self.failed.clone().unwrap_or_else(|| ReadError::Closed { peer: self.peer.clone() })
    }
}

impl Half for Rx {
    type Body = Buffer;
    type Outcome = Result<Filled, ReadError>;
    const GOES_ON: bool = false;

    #[inline(always)]
    fn queue(&mut self) -> &mut Queue<Self::Body, Self::Outcome> {
        &mut self.queue
    }

    #[inline(always)]
    fn step(&mut self) -> Option<Completed<Self::Body, Self::Outcome>> {
        let outcome = self.input.read(self.queue.front_mut()?.body.bytes_mut())?;
        let mut op = self.queue.pop()?;
        let buf = op.body.take();
        Some(Completed { op, outcome: outcome.map(|len| Filled { buf, len }) })
    }

    fn end(&mut self) -> Option<&mut dyn Watched> {
        self.input.end.as_mut().map(|end| &mut **end as &mut dyn Watched)
    }

    fn is_dry(&mut self) -> bool {
        let has_ended = self.signal.as_ref().is_some_and(|signal| signal.ended.load(Ordering::Relaxed));
        self.input.dry = self.input.dry && !self.was_reported() && !has_ended;
        self.input.dry
    }

    fn was_reported(&self) -> bool {
        self.signal.as_ref().is_some_and(|signal| signal.rx.swap(false, Ordering::AcqRel))
    }

    fn is_closing(&self) -> bool {
        self.input.end.is_none()
    }
}

/// The writing direction.
pub(crate) struct Tx {
    out: Out,
    signal: Option<Arc<Fresh>>,
    /// Our side closes: no more writes are taken.
    pub(crate) closing: bool,
    /// Nothing of what was written is waited for.
    pub(crate) aborted: bool,
    queue: Queue<Outgoing, Result<Vec<u8>, WriteError>>,
}

/// The driver's end, and how it failed.
struct Out {
    end: Option<Box<dyn ByteTx>>,
    peer: Locator,
    failed: Option<WriteError>,
}

/// A buffer being written.
pub(crate) struct Outgoing {
    pub(crate) buf: Buffer,
    /// Bytes of it that were taken.
    pub(crate) at: usize,
    /// Posted after our side closed, or given up.
    pub(crate) refused: bool,
}

impl Outgoing {
    fn rest(&self) -> &[u8] {
        self.buf.bytes().get(self.at..).unwrap_or_default()
    }
}

impl Tx {
    pub(crate) fn new(end: Box<dyn ByteTx>, signal: Arc<Fresh>, peer: Locator) -> Self {
        let out = Out { end: Some(end), peer, failed: None };
        Self { out, signal: Some(signal), closing: false, aborted: false, queue: Queue::new() }
    }

    /// Writes what it can at once if nothing is posted before; how many bytes were taken.
    #[inline]
    pub(crate) fn try_now(&mut self, buf: &[u8]) -> Result<usize, WriteError> {
        if self.closing {
            return Err(self.out.refusal());
        }
        if !self.queue.is_empty() {
            return Ok(0);
        }
        self.out.write(&[IoSlice::new(buf)])
    }

    /// Whether nothing is lost when our side is closed now. `then`: what is called when that is so.
    pub(crate) fn is_flushed(&mut self, then: impl FnOnce() -> Option<Waker>) -> bool {
        let lingers = !self.aborted && self.out.failed.is_none();
        let Some(end) = self.out.end.as_mut().filter(|end| lingers && end.lingers()) else { return true };
        then().is_none_or(|then| end.finish(&then))
    }

    /// Our side is closed.
    pub(crate) fn close(&mut self) {
        (self.out.end, self.signal) = (None, None);
    }
}

impl Out {
    #[inline]
    fn write(&mut self, bufs: &[IoSlice<'_>]) -> Result<usize, WriteError> {
        let (Some(end), None) = (&mut self.end, &self.failed) else {
            return Err(self.refusal());
        };
        match end.write(bufs) {
            Ok(Wrote::Bytes(n)) => Ok(n),
            Ok(Wrote::WouldBlock) => Ok(0),
            Err(error) => {
                self.failed = Some(error);
                Err(self.refusal())
            }
        }
    }

    /// Why nothing can be written any more.
    #[cold]
    fn refusal(&self) -> WriteError {
        self.failed.clone().unwrap_or_else(|| WriteError::Closed { peer: self.peer.clone() })
    }
}

impl Half for Tx {
    type Body = Outgoing;
    type Outcome = Result<Vec<u8>, WriteError>;
    const GOES_ON: bool = true;

    #[inline]
    fn queue(&mut self) -> &mut Queue<Self::Body, Self::Outcome> {
        &mut self.queue
    }

    fn step(&mut self) -> Option<Completed<Self::Body, Self::Outcome>> {
        let Self { out, queue, .. } = self;
        if queue.front_mut()?.body.refused {
            return Some(Completed { op: queue.pop()?, outcome: Err(out.refusal()) });
        }
        if !queue.front_mut()?.body.rest().is_empty() {
            let mut bufs = [IoSlice::new(&[]); GATHER];
            let posted = queue.iter().map(|op| &op.body).take_while(|body| !body.refused);
            let count = bufs.iter_mut().zip(posted).map(|(buf, body)| *buf = IoSlice::new(body.rest())).count();
            match out.write(&bufs[..count]) {
                Ok(taken) => queue.iter_mut().fold(taken, |left, op| {
                    let n = left.min(op.body.rest().len());
                    op.body.at += n;
                    left - n
                }),
                Err(error) => return Some(Completed { op: queue.pop()?, outcome: Err(error) }),
            };
        }
        if !queue.front_mut()?.body.rest().is_empty() {
            return None;
        }
        let mut op = queue.pop()?;
        let buf = op.body.buf.take();
        Some(Completed { op, outcome: Ok(buf) })
    }

    fn end(&mut self) -> Option<&mut dyn Watched> {
        self.out.end.as_mut().map(|end| &mut **end as &mut dyn Watched)
    }

    fn is_dry(&mut self) -> bool {
        false
    }

    fn was_reported(&self) -> bool {
        self.signal.as_ref().is_some_and(|signal| signal.tx.swap(false, Ordering::AcqRel))
    }

    fn is_closing(&self) -> bool {
        self.closing
    }
}
