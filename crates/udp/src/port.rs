//! A socket of UDP with the links that go by it, as one source of the engine.
//!
//! Everything is done by [`Port::run`], under one lock: by the engine, when datagrams came or a time has come; and by whoever sends, reads or
//! closes. A listener's port has all links that it accepted, a connecting end's has one. The engine knows the port as long as anybody uses it,
//! or a link of it still closes.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use madrigal_identity::Credentials;
use madrigal_progress::engine::{Class, Engine, Next, Source, Work};
use madrigal_sys::udp::UdpSocket;
use madrigal_sys::{Errno, time};

use crate::traffic::{Id, Traffic};
use crate::what::What;

/// The scheme of addresses, and the class of the engine.
pub(crate) const NAME: &str = "udp";

/// A socket with its links.
pub(crate) struct Port {
    pub(crate) engine: Arc<Engine>,
    traffic: Mutex<Traffic>,
}

impl Port {
    /// A port at which connections arrive.
    pub(crate) fn listen(
        (engine, class): (&Arc<Engine>, Class),
        credentials: &Credentials,
        what: &What,
        at: SocketAddr,
    ) -> Result<Arc<Self>, Errno> {
        let socket = UdpSocket::bind(at)?;
        socket.watch_errors();
        Self::new((engine, class), Traffic::accepting(credentials, what, socket)?)
    }

    /// A port of one link, to that address, which begins to connect.
    pub(crate) fn dial(
        (engine, class): (&Arc<Engine>, Class),
        credentials: &Credentials,
        what: &What,
        to: SocketAddr,
    ) -> Result<(Arc<Self>, Id), Errno> {
        let traffic = Traffic::dialling(credentials, what, UdpSocket::connect(to)?)?;
        let port = Self::new((engine, class), traffic)?;
        let begun = port.run(|traffic, now| traffic.dial(now, to));
        begun.map(|id| (port, id))
    }

    fn new((engine, class): (&Arc<Engine>, Class), traffic: Traffic) -> Result<Arc<Self>, Errno> {
        let signal = traffic.signal();
        let port = Arc::new(Self { engine: Arc::clone(engine), traffic: Mutex::new(traffic) });
        let registration = engine.register(class, Some(signal), Arc::clone(&port) as Arc<dyn Source>)?;
        port.lock().keep(registration);
        Ok(port)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with what is guarded, and passes on what comes of it.
    pub(crate) fn run<R>(&self, run: impl FnOnce(&mut Traffic, u64) -> R) -> R {
        let mut traffic = self.lock();
        let now = time::now_ns();
        let result = run(&mut traffic, now);
        guarded(&mut traffic, 0, |traffic| traffic.settle(now));
        if traffic.set_timer(now) {
            traffic.schedule();
        }
        self.leave(traffic);
        result
    }

    /// Wakes whoever waits for the end of a link, and leaves the engine, where nobody needs the port any more. Without the lock.
    fn leave(&self, mut traffic: MutexGuard<'_, Traffic>) {
        let (wakers, registration) = traffic.over();
        drop(traffic);
        drop(registration);
        wakers.iter().for_each(|then| then());
    }

    /// Ends a link at once: its end is not waited for.
    pub(crate) fn abort(&self, id: Id) {
        self.run(|traffic, now| traffic.drop_link(now, id));
    }

    /// Accepts no more: links that nobody has accepted are closed.
    pub(crate) fn stop(&self) {
        self.run(Traffic::stop);
    }
}

impl Source for Port {
    fn work(&self, budget: u32) -> Work {
        let mut traffic = self.lock();
        let now = time::now_ns();
        let (count, is_drained) = guarded(&mut traffic, (0, true), |traffic| {
            let (came, is_drained) = traffic.receive(now, budget);
            traffic.handle_time(now, is_drained);
            (came + traffic.settle(now), is_drained)
        });
        let due = traffic.set_timer(now);
        self.leave(traffic);
        Work { count, next: if due || !is_drained { Next::Again } else { Next::Park } }
    }

    fn arm(&self) -> bool {
        false
    }
}

/// What speaks QUIC is not ours, and must not end the program: where it panics, the links of its port are over.
fn guarded<R>(traffic: &mut Traffic, instead: R, run: impl FnOnce(&mut Traffic) -> R) -> R {
    let done = catch_unwind(AssertUnwindSafe(|| run(traffic)));
    done.unwrap_or_else(|_| {
        traffic.fail();
        instead
    })
}
