//! What a link is made of, as the engine sees it: two directions and the way to its end.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use madrigal_base::error::Os;
use madrigal_base::ids::LinkId;
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{Signal, Waker};
use madrigal_progress::engine::{Class, Engine, Next, Registration, Source, Work};

use crate::adapter::Stream;
use crate::half::{Fresh, Rx, Tx};
use crate::lane::{Half as _, Lane, Rest};
use crate::op::Then;

/// A link, shared by its handles, its operations and the engine.
pub(crate) struct Core {
    pub(crate) id: LinkId,
    pub(crate) engine: Arc<Engine>,
    pub(crate) rx: Lane<Rx>,
    pub(crate) tx: Lane<Tx>,
    pub(crate) local: Locator,
    pub(crate) peer: Locator,
    pub(crate) adapter: &'static str,
    class: Class,
    own: Weak<Self>,
    closing: AtomicBool,
    end: Mutex<End>,
}

/// What waits for the end of a link, and how far it has come.
#[derive(Default)]
struct End {
    closers: Vec<Then<(), ()>>,
    /// No handle is left: the engine forgets the link when it is closed.
    detached: bool,
    registration: Option<Arc<Registration>>,
    /// Of a [`Closer`], where closing has to wait.
    closer: Option<Arc<Registration>>,
}

impl Core {
    /// A link over `stream`, known to the engine. The kernel may refuse to watch one more descriptor.
    pub(crate) fn new(engine: &Arc<Engine>, class: Class, stream: Stream) -> Result<Arc<Self>, Os> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let Stream { rx, tx, signal, local, peer, adapter } = stream;
        let fresh = Arc::new(Fresh::new(signal));
        let core = Arc::new_cyclic(|own| Self {
            id: LinkId(COUNT.fetch_add(1, Ordering::Relaxed) + 1),
            engine: Arc::clone(engine),
            rx: Lane::new(Rx::new(rx, Arc::clone(&fresh), peer.clone())),
            tx: Lane::new(Tx::new(tx, Arc::clone(&fresh), peer.clone())),
            local,
            peer,
            adapter,
            class,
            own: Weak::clone(own),
            closing: AtomicBool::new(false),
            end: Mutex::default(),
        });
        let source = Arc::clone(&core) as Arc<dyn Source>;
        let registered = engine.register(class, Some(fresh as Arc<dyn Signal>), source);
        let registration = Arc::new(registered.map_err(|errno| Os(errno.raw_os_error()))?);
        core.rx.lock().queue().registration = Some(Arc::clone(&registration));
        core.tx.lock().queue().registration = Some(Arc::clone(&registration));
        core.lock_end().registration = Some(registration);
        Ok(core)
    }

    /// Our side closes: posted reads complete with that, posted writes are written first.
    pub(crate) fn close(&self, then: Option<Then<(), ()>>, detach: bool) {
        self.rx.lock().close();
        self.tx.lock().closing = true;
        let mut end = self.lock_end();
        end.closers.extend(then);
        end.detached |= detach;
        let registration = end.registration.clone();
        drop(end);
        // SYNC: Release pairs with the Acquire in `work`; everything above is seen with it.
        self.closing.store(true, Ordering::Release);
        self.finish(false);
        if let Some(registration) = registration {
            registration.wake();
        }
    }

    /// Posted and later operations fail. The peer is not notified.
    pub(crate) fn refuse(&self) {
        self.rx.lock().close();
        let mut tx = self.tx.lock();
        tx.closing = true;
        tx.queue().iter_mut().for_each(|op| op.body.refused = true);
    }

    /// Our side closes at once: posted writes fail, too.
    pub(crate) fn abort(&self) {
        self.refuse();
        self.tx.lock().aborted = true;
        self.close(None, false);
    }

    /// Whether it has ended, and nothing is posted.
    pub(crate) fn is_over(&self) -> bool {
        let mut rx = self.rx.lock();
        let mut tx = self.tx.lock();
        tx.end().is_none() && rx.queue().is_empty() && tx.queue().is_empty()
    }

    /// Ends the link once nothing is posted any more. Handlers are called by the engine only.
    fn finish(&self, by_engine: bool) {
        let mut rx = self.rx.lock();
        let mut tx = self.tx.lock();
        if !rx.queue().is_empty() || !tx.queue().is_empty() || !tx.is_flushed(|| self.closer()) {
            return;
        }
        rx.close();
        tx.close();
        let mut end = self.lock_end();
        if let Some(registration) = &end.registration {
            registration.silence();
        }
        let waits = !by_engine && end.closers.iter().any(|then| matches!(then, Then::Call(_)));
        let closers = if waits { Vec::new() } else { core::mem::take(&mut end.closers) };
        let closer = end.closer.take();
        self.engine.lingering().fetch_sub(usize::from(closer.is_some()), Ordering::Relaxed);
        let gone = if end.detached && !waits { end.registration.take() } else { None };
        if gone.is_some() {
            rx.queue().registration = None;
            tx.queue().registration = None;
        }
        drop((end, tx, rx));
        for then in closers {
            match then {
                Then::Tell(completer) => completer.complete(()),
                Then::Call(handler) => handler.call(&(), ()),
            }
        }
        drop((gone, closer));
    }

    /// What is called when the end of the writing side lets go.
    fn closer(&self) -> Option<Waker> {
        let mut end = self.lock_end();
        if end.closer.is_none() {
            let source = Arc::new(Closer(Weak::clone(&self.own)));
            end.closer = self.engine.register(self.class, None, source).ok().map(Arc::new);
            self.engine.lingering().fetch_add(usize::from(end.closer.is_some()), Ordering::Relaxed);
        }
        let closer = end.closer.clone()?;
        Some(Arc::new(move || closer.wake()))
    }

    fn lock_end(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Core {
    fn work(&self, budget: u32) -> Work {
        let mut left = budget.div_ceil(2);
        let reading = left;
        let rx = self.rx.work(&self.engine, &mut left);
        let mut left = budget - (reading - left);
        let tx = self.tx.work(&self.engine, &mut left);
        if self.closing.load(Ordering::Acquire) {
            self.finish(true);
        }
        let next = match rx.max(tx) {
            Rest::More => Next::Again,
            Rest::Watched => Next::Watch,
            Rest::Parked | Rest::Nothing => Next::Park,
        };
        Work { count: budget - left, next }
    }

    fn arm(&self) -> bool {
        let rx = self.rx.arm();
        self.tx.arm() || rx
    }
}

/// Ends a link whose writing side had to wait: a source of its own, for a handler of the link may be what waits for that.
struct Closer(Weak<Core>);

impl Source for Closer {
    fn work(&self, _budget: u32) -> Work {
        if let Some(core) = self.0.upgrade() {
            core.finish(true);
        }
        Work { count: 1, next: Next::Park }
    }

    fn arm(&self) -> bool {
        false
    }
}
