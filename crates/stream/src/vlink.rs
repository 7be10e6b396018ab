//! [`VLink`] and the descriptors of its reads and writes.

use core::fmt;
use core::ops::Deref;
use core::task::Poll;
use std::sync::Arc;

use madrigal_base::error::{Os, ReadError, WriteError};
use madrigal_base::ids::LinkId;
use madrigal_base::locator::Locator;
use madrigal_progress::engine::{Class, Engine};
use madrigal_sys::piece::Piece;

use crate::adapter::Stream;
use crate::buffer::Buffer;
use crate::core::Core;
use crate::half::{Filled, Outgoing, Rx, Tx};
use crate::lane::{Half, Lane, Then as LaneThen};
use crate::op::{Handler, Op, Then};

/// A stream of bytes between two processes.
///
/// Cloning gives another handle of the same link. When the last handle and the last operation posted with a handler are gone the
/// link closes as by [`VLink::close`]. All methods may be called from any thread and from handlers; none blocks.
#[derive(Clone)]
pub struct VLink(Arc<Handle>);

struct Handle {
    core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.close(None, true);
    }
}

impl VLink {
    /// A link over a stream an adapter made. Its share of the engine is that of `class`. Fails when the kernel watches no more
    /// descriptors.
    pub fn new(engine: &Arc<Engine>, class: Class, stream: Stream) -> Result<Self, Os> {
        Core::new(engine, class, stream).map(|core| Self(Arc::new(Handle { core })))
    }

    /// From now on the peer's system is asked now and then whether it is there ([`VLink::unanswered_s`]).
    pub(crate) fn ask_after(&self) {
        if let Some(end) = self.0.core.rx.lock().end() {
            end.ask_after();
        }
    }

    /// For how many seconds nothing has come from the peer's system, though it was asked again and again.
    pub(crate) fn unanswered_s(&self) -> u64 {
        self.0.core.rx.lock().end().map_or(0, |end| end.unanswered_s())
    }

    /// Posts a read into `buf`, up to its length. The buffer is the link's until the operation completes, and comes back with it;
    /// a descriptor dropped before that takes the read back.
    #[inline]
    pub fn read(&self, buf: Vec<u8>) -> ReadOp<'_> {
        self.post_read(Buffer::Own(buf))
    }

    /// As [`VLink::read`], into memory that was lent. It is free once the operation completed or was taken back.
    #[inline]
    pub fn read_lent(&self, piece: Piece) -> ReadOp<'_> {
        self.post_read(Buffer::Lent(piece))
    }

    #[inline]
    fn post_read(&self, mut buf: Buffer) -> ReadOp<'_> {
        let core = &self.0.core;
        let mut half = core.rx.lock();
        if let Some(outcome) = half.try_now(buf.bytes_mut()) {
            return ReadOp(LinkOp::done(outcome.map(|len| Filled { buf: buf.take(), len })));
        }
        let id = half.queue().post(buf, LaneThen::Keep { sleeping: false });
        ReadOp(LinkOp::posted(core, id))
    }

    /// Posts a read whose outcome a handler gets, with the link.
    pub fn read_with(&self, buf: Vec<u8>, handler: Handler<Self, Result<Filled, ReadError>>) {
        self.0.core.rx.lock().queue().post(Buffer::Own(buf), self.call(handler));
    }

    /// As [`VLink::read_with`], into memory that was lent; it is free when the handler is called.
    pub fn read_lent_with(&self, piece: Piece, handler: Handler<Self, Result<Filled, ReadError>>) {
        self.0.core.rx.lock().queue().post(Buffer::Lent(piece), self.call(handler));
    }

    /// Posts a write of all of `buf`. It completes when every byte was taken, and gives the buffer back. A write that fails gives
    /// nothing back; those posted after it fail alike. A descriptor dropped before leaves the write to itself.
    #[inline]
    pub fn write(&self, buf: Vec<u8>) -> WriteOp<'_> {
        self.post_write(Buffer::Own(buf))
    }

    /// As [`VLink::write`], of memory that was lent. It is free once the operation completed or was taken back: dropping the
    /// descriptor does not free it.
    #[inline]
    pub fn write_lent(&self, piece: Piece) -> WriteOp<'_> {
        self.post_write(Buffer::Lent(piece))
    }

    #[inline]
    fn post_write(&self, mut buf: Buffer) -> WriteOp<'_> {
        let core = &self.0.core;
        let mut half = core.tx.lock();
        let at = match half.try_now(buf.bytes()) {
            Ok(taken) if taken == buf.bytes().len() && half.queue().is_empty() => {
                return WriteOp(LinkOp::done(Ok(buf.take())));
            }
            Ok(taken) => taken,
            Err(error) => return WriteOp(LinkOp::done(Err(error))),
        };
        let id = half.queue().post(Outgoing { buf, at, refused: false }, LaneThen::Keep { sleeping: false });
        WriteOp(LinkOp::posted(core, id))
    }

    /// Writes at once what there is room for; how much. Nothing where writes are posted.
    pub(crate) fn write_now(&self, bytes: &[u8]) -> Result<usize, WriteError> {
        self.0.core.tx.lock().try_now(bytes)
    }

    /// Posts a write whose outcome a handler gets, with the link.
    pub fn write_with(&self, buf: Vec<u8>, handler: Handler<Self, Result<Vec<u8>, WriteError>>) {
        self.post_write_with(Buffer::Own(buf), handler);
    }

    /// As [`VLink::write_with`], of memory that was lent; it is free when the handler is called.
    pub fn write_lent_with(&self, piece: Piece, handler: Handler<Self, Result<Vec<u8>, WriteError>>) {
        self.post_write_with(Buffer::Lent(piece), handler);
    }

    fn post_write_with(&self, buf: Buffer, handler: Handler<Self, Result<Vec<u8>, WriteError>>) {
        let mut half = self.0.core.tx.lock();
        let refused = half.closing;
        half.queue().post(Outgoing { buf, at: 0, refused }, self.call(handler));
    }

    /// The handler will be called with a handle of its own, so that the link lives until then.
    fn call<T: 'static>(&self, handler: Handler<Self, T>) -> LaneThen<T> {
        let link = self.clone();
        LaneThen::Call(Box::new(move |outcome| handler.call(&link, outcome)))
    }

    /// Posts the end: reads posted before complete with [`ReadError::Closed`], writes posted before are written, then the peer sees the end
    /// of the stream. Later posts fail. Completes when the link is closed on this side. Bytes the peer sent that were not read are dropped;
    /// the peer sees a reset.
    pub fn close(&self) -> Op<()> {
        let (op, completer) = Op::new(Arc::clone(&self.0.core.engine));
        self.0.core.close(Some(Then::Tell(completer)), false);
        op
    }

    /// As [`VLink::close`], completing by handler.
    pub fn close_with(&self, handler: Handler<(), ()>) {
        self.0.core.close(Some(Then::Call(handler)), false);
    }

    /// Posted and later operations fail with [`ReadError::Closed`] and [`WriteError::Closed`]. The peer is notified by [`VLink::abort`],
    /// which must follow. For a caller that ends several links that may be each other's ends: none sees the end of another.
    pub fn refuse(&self) {
        self.0.core.refuse();
    }

    /// Ends the link at once: as [`VLink::close`], but posted writes fail with [`WriteError::Closed`], too. From now on the buffers of
    /// posted operations are not read, though their outcomes are reported as always.
    pub fn abort(&self) {
        self.0.core.abort();
    }

    /// Whether it is closed on this side, with nothing left that is posted. Does not block.
    pub fn is_over(&self) -> bool {
        self.0.core.is_over()
    }

    /// Number of this link in its process.
    pub fn id(&self) -> LinkId {
        self.0.core.id
    }

    /// Our own address, as far as the driver knows it.
    pub fn local(&self) -> &Locator {
        &self.0.core.local
    }

    /// The peer's address, as far as the driver knows it.
    pub fn peer(&self) -> &Locator {
        &self.0.core.peer
    }

    /// The adapter between this link and its driver.
    pub fn adapter(&self) -> &'static str {
        self.0.core.adapter
    }

    /// The engine that runs this link.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.0.core.engine
    }
}

impl fmt::Debug for VLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VLink {} {} -> {}", self.id(), self.local(), self.peer())
    }
}

/// The descriptor of a posted read.
pub struct ReadOp<'l>(LinkOp<'l, Rx>);

impl ReadOp<'_> {
    /// The same descriptor, no longer tied to the handle it was posted on.
    pub fn into_owned(self) -> ReadOp<'static> {
        ReadOp(self.0.into_owned())
    }

    /// Checks whether the read completed, trying it if it is the first in line. Does not block. `Ready` once; after that `Pending` for
    /// ever.
    #[inline]
    pub fn poll(&mut self) -> Poll<Result<Filled, ReadError>> {
        self.0.poll()
    }

    /// Waits until the read completed; spins as the wait policy allows, then sleeps. Other links go on meanwhile.
    #[inline]
    pub fn wait(mut self) -> Result<Filled, ReadError> {
        self.0.wait()
    }

    /// Waits no longer than the deadline, in nanoseconds of [`madrigal_sys::time::now_ns`].
    pub fn wait_until(&mut self, deadline: Option<u64>) -> Poll<Result<Filled, ReadError>> {
        self.0.wait_until(deadline)
    }

    /// Takes the read back: the buffer is free. If it had completed, returns the outcome, so that no byte is lost.
    pub fn cancel(mut self) -> Option<Result<Filled, ReadError>> {
        match self.0.cancel() {
            Canceled::Over(outcome) => Some(outcome),
            Canceled::Withdrawn(_) | Canceled::Nothing => None,
        }
    }
}

/// The descriptor of a posted write.
pub struct WriteOp<'l>(LinkOp<'l, Tx>);

impl WriteOp<'_> {
    /// The same descriptor, no longer tied to the handle it was posted on.
    pub fn into_owned(self) -> WriteOp<'static> {
        WriteOp(self.0.into_owned())
    }

    /// Checks whether the write completed, trying it if it is the first in line. Does not block. `Ready` once; after that `Pending` for
    /// ever.
    #[inline]
    pub fn poll(&mut self) -> Poll<Result<Vec<u8>, WriteError>> {
        self.0.poll()
    }

    /// Waits until the write completed; spins as the wait policy allows, then sleeps. Other links go on meanwhile.
    #[inline]
    pub fn wait(mut self) -> Result<Vec<u8>, WriteError> {
        self.0.wait()
    }

    /// Waits no longer than the deadline, in nanoseconds of [`madrigal_sys::time::now_ns`].
    pub fn wait_until(&mut self, deadline: Option<u64>) -> Poll<Result<Vec<u8>, WriteError>> {
        self.0.wait_until(deadline)
    }

    /// Takes the write back: the buffer is free. How many of its bytes were taken before; `None`: all of them, for it had completed.
    pub fn cancel(mut self) -> Result<Option<usize>, WriteError> {
        match self.0.cancel() {
            Canceled::Over(outcome) => outcome.map(|_| None),
            Canceled::Withdrawn(body) => Ok(Some(body.at)),
            Canceled::Nothing => Ok(Some(0)),
        }
    }
}

/// A half that knows where it is in a link.
pub(crate) trait InLink: Half {
    fn lane(core: &Core) -> &Lane<Self>;
}

impl InLink for Rx {
    fn lane(core: &Core) -> &Lane<Self> {
        &core.rx
    }
}

impl InLink for Tx {
    fn lane(core: &Core) -> &Lane<Self> {
        &core.tx
    }
}

/// The link of a descriptor. Counting one reference more for each costs as much as a lock.
enum Ref<'l> {
    Lent(&'l Arc<Core>),
    Own(Arc<Core>),
}

impl Ref<'_> {
    fn into_owned(self) -> Ref<'static> {
        match self {
            Self::Lent(core) => Ref::Own(Arc::clone(core)),
            Self::Own(core) => Ref::Own(core),
        }
    }
}

impl Deref for Ref<'_> {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        match self {
            Self::Lent(core) => core,
            Self::Own(core) => core,
        }
    }
}

/// An operation of one direction, as its poster sees it. Once its outcome was given both are `None`.
struct LinkOp<'l, H: InLink> {
    /// Its outcome, if it completed when it was posted.
    outcome: Option<H::Outcome>,
    /// Its link and its number in the queue.
    posted: Option<(Ref<'l>, u64)>,
}

/// What taking an operation back found.
enum Canceled<H: Half> {
    /// It was over.
    Over(H::Outcome),
    /// It was not.
    Withdrawn(H::Body),
    /// Its outcome was given before.
    Nothing,
}

impl<'l, H: InLink> LinkOp<'l, H> {
    #[inline]
    fn done(outcome: H::Outcome) -> Self {
        Self { outcome: Some(outcome), posted: None }
    }

    #[inline]
    fn posted(core: &'l Arc<Core>, id: u64) -> Self {
        Self { outcome: None, posted: Some((Ref::Lent(core), id)) }
    }

    fn into_owned(mut self) -> LinkOp<'static, H> {
        let posted = self.posted.take().map(|(core, id)| (core.into_owned(), id));
        LinkOp { outcome: self.outcome.take(), posted }
    }

    #[inline]
    fn poll(&mut self) -> Poll<H::Outcome> {
        self.ask(|core, id| H::lane(core).poll(id, &core.engine))
    }

    #[inline]
    fn wait(&mut self) -> H::Outcome {
        loop {
            if let Poll::Ready(outcome) = self.wait_until(None) {
                return outcome;
            }
        }
    }

    #[inline]
    fn wait_until(&mut self, deadline: Option<u64>) -> Poll<H::Outcome> {
        self.ask(|core, id| H::lane(core).wait(id, &core.engine, deadline))
    }

    fn cancel(&mut self) -> Canceled<H> {
        if let Some(outcome) = self.outcome.take() {
            return Canceled::Over(outcome);
        }
        let Some((core, id)) = self.posted.take() else { return Canceled::Nothing };
        let mut half = H::lane(&core).lock();
        let queue = half.queue();
        match queue.withdraw(id) {
            Some(body) => Canceled::Withdrawn(body),
            None => queue.take(id).map_or(Canceled::Nothing, Canceled::Over),
        }
    }

    #[inline]
    fn ask(&mut self, poll: impl FnOnce(&Core, u64) -> Option<H::Outcome>) -> Poll<H::Outcome> {
        let Some((core, id)) = &self.posted else {
            return self.outcome.take().map_or(Poll::Pending, Poll::Ready);
        };
        let Some(outcome) = poll(core, *id) else { return Poll::Pending };
        self.posted = None;
        Poll::Ready(outcome)
    }
}

impl<H: InLink> Drop for LinkOp<'_, H> {
    #[inline]
    fn drop(&mut self) {
        if let Some((core, id)) = &self.posted {
            H::lane(core).lock().queue().forget(*id, H::GOES_ON);
        }
    }
}

#[cfg(test)]
mod tests;
