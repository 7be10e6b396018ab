//! Connections that break, of any driver, and what a link with a stripe promises over them, and messages over such a link.
//! Features (docs/features.md): B6, B8.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use madrigal::circuit::{Packs, Unpacks};
use madrigal::config::Settings;
use madrigal::endpoint::Send;
use madrigal::error::{ConnectError, ListenError, ReadError, WriteError};
use madrigal::locator::Locator;
use madrigal::network::Nets;
use madrigal::wait::Waiter;
use madrigal::workers::Options;
use madrigal::{Acceptor, Circuit, Endpoint, Runtime, VLink, Worker, time};
use madrigal_progress::bell::Bell;
use madrigal_progress::driver::{
    ByteRx, ByteTx, Connecting, Connection, Driver, Ends, Facts, Listener, Pending, Place, Read, Signal, Watched, Wrote,
};
use madrigal_stream::{Below, Stacked, adapter, connect};
use madrigal_sys::piece::Piece;
use rustix::event::{Timespec, epoll};

use crate::noise::{Noise, Stream};
use crate::vlinks::{certificates, receive, send};
use crate::{Case, place};

/// The suite.
pub static CASES: &[Case<&'static dyn Driver>] = &[
    Case { name: "a_stripe_loses_nothing_with_its_connections", run: |below| transfers(*below, "stripe(4)/tcp", 4) },
    Case { name: "compressed_neither", run: |below| transfers(*below, "adoc/stripe(3)/tcp", 3) },
    Case { name: "enciphered_neither", run: |below| transfers(*below, "tls/stripe(4)/tcp", 4) },
    Case { name: "without_a_connection_there_is_no_link", run: all_lost },
];

/// The suite of messages.
pub static MESSAGE_CASES: &[Case<&'static dyn Driver>] = &[
    Case { name: "stripe_loses_no_message_with_its_connections", run: |below| messages(*below, "stripe(4)/tcp", 4) },
    Case { name: "adoc_tls_stripe_neither", run: |below| messages(*below, "adoc/tls/stripe(3)/tcp", 3) },
    Case { name: "without_a_connection_both_learn_that_the_peer_is_gone", run: all_lost_messages },
];

/// Bytes each way.
const TOTAL: u64 = 6_000_000;

fn runtime() -> Runtime {
    Runtime::with_settings(&Settings { dir: place().directory, ..Settings::default() }).expect("starts")
}

/// Two ends over such connections.
fn pair(runtime: &Runtime, below: &'static Flaky, stack: &str) -> (VLink, VLink) {
    let stack = stack.parse().expect("a stack");
    let stacked = Stacked::new(runtime.engine(), Below::Known(below), stack, Some(certificates().ends()))
        .expect("a stack of links");
    let at = below.address_for(&format!("flaky-{}", time::now_ns())).expect("an address");
    let acceptor = Acceptor::listen(runtime.engine(), &stacked, &at, &place()).expect("listens");
    let accept = acceptor.accept();
    let near = connect(runtime.engine(), &stacked, acceptor.locator(), &place()).wait().expect("connects");
    let far = accept.wait().expect("accepts");
    // Connections that join come while it listens.
    std::mem::forget(acceptor);
    (near, far)
}

/// Every byte comes, both ways, while each connection but the second one breaks, the first one too, and new ones take their places.
fn transfers(below: &'static dyn Driver, stack: &str, streams: u8) {
    let flaky = all_but_the_second(below);
    let runtime = runtime();
    let (near, far) = pair(&runtime, flaky, stack);
    runtime.engine().wait_until(&Waiter::default(), Some(time::now_ns() + 200_000_000), || false);
    thread::scope(|scope| {
        let writers = [(&near, 1), (&far, 2)].map(|(link, seed)| {
            scope.spawn(move || {
                let (mut sizes, mut stream) = (Noise::new(seed), Stream::new(seed));
                while stream.at < TOTAL {
                    let length = sizes.size(70_000).min((TOTAL - stream.at) as usize);
                    send(link, &stream.take(length));
                }
            })
        });
        for (link, seed) in [(&near, 2), (&far, 1)] {
            scope.spawn(move || {
                let mut stream = Stream::new(seed);
                while stream.at < TOTAL {
                    let filled = link.read(vec![0; 50_000]).wait().expect("reads");
                    assert_ne!(filled.len, 0, "the end came early");
                    stream.check(filled.bytes());
                }
            });
        }
        drop(writers.map(thread::ScopedJoinHandle::join));
    });
    near.close().wait();
    assert_eq!(far.read(vec![0; 1]).wait().expect("the end").len, 0);
    let made = flaky.made.load(Ordering::Relaxed);
    assert!(made > usize::from(streams), "{made} connections were made");
}

/// Each connection but the second one breaks.
fn all_but_the_second(below: &'static dyn Driver) -> &'static Flaky {
    let lives = |count| match count {
        1 => usize::MAX,
        count => 20_000 + Noise::new(count as u64).below(400_000),
    };
    Box::leak(Box::new(Flaky { below, made: AtomicUsize::new(0), lives }))
}

/// Two endpoints whose messages go over such connections, all at one address, so that one link is dialled once.
fn endpoints(flaky: &'static Flaky, stack: &str) -> [Endpoint; 2] {
    let driver = crate::stacked::messages_over(stack, flaky);
    let mut place = place();
    place.network.nets = Nets::parse("127.0.0.0/8").expect("a list");
    [(); 2].map(|()| {
        let worker = Worker::open(&Options { drivers: &[driver], place: place.clone(), max_spin_ns: 50_000 });
        Circuit::endpoint(&worker.expect("opens")).expect("a channel")
    })
}

/// Every message of a Circuit comes, once and in order, both ways, though each connection but the second one breaks, the first one too.
fn messages(below: &'static dyn Driver, stack: &str, streams: u8) {
    const COUNT: u64 = 300;
    let flaky = all_but_the_second(below);
    let endpoints = endpoints(flaky, stack);
    let members: Vec<_> = endpoints.iter().map(Endpoint::address).collect();
    thread::scope(|scope| {
        for (me, endpoint) in endpoints.into_iter().enumerate() {
            let members = &members;
            scope.spawn(move || {
                let mut circuit = Circuit::join(endpoint, members).expect("joins");
                let (mut out, mut back) = (Noise::new(me as u64 + 1), Noise::new(2 - me as u64));
                let sized = |noise: &mut Noise, number: u64| vec![number as u8; 1 + noise.size(60_000)];
                for number in 0..COUNT {
                    // One of them dials; then both send at once.
                    if me == 0 || number > 0 {
                        send_by(&mut circuit, 1 - me, &sized(&mut out, number));
                    }
                    let expected = sized(&mut back, number);
                    let mut room = vec![0; expected.len()];
                    let mut unpacking = circuit.begin_unpacking().expect("a message");
                    unpacking.unpack(&mut room, Unpacks::Cheaper).expect("its bytes");
                    unpacking.end().expect("the end");
                    assert!(room == expected, "message {number} of {}", 1 - me);
                    if me == 1 && number == 0 {
                        send_by(&mut circuit, 0, &sized(&mut out, number));
                    }
                }
                circuit.flush();
            });
        }
    });
    let made = flaky.made.load(Ordering::Relaxed);
    assert!(made > usize::from(streams), "{made} connections were made");
}

fn send_by(circuit: &mut Circuit, to: usize, bytes: &[u8]) {
    let mut packing = circuit.begin_packing(to).expect("packs");
    packing.pack(bytes, Packs::Cheaper);
    packing.end().expect("is sent");
}

/// Where the only connection breaks, the link ends at both sides, with the reason.
fn all_lost_messages(below: &&'static dyn Driver) {
    let flaky = Box::leak(Box::new(Flaky { below: *below, made: AtomicUsize::new(0), lives: |_| 50_000 }));
    let [near, far] = endpoints(flaky, "stripe(1)/tcp");
    let to = near.peer(&far.address());
    let bytes = [7; 1000];
    let mut whys = [None::<String>, None];
    while whys.iter().any(Option::is_none) {
        // SAFETY: injected, so read during the call only.
        #[allow(unsafe_code)]
        let piece = unsafe { Piece::lend(bytes.as_ptr(), bytes.len()) };
        let send = Send { to, tag: Some(1), data: None, parts: &[piece], token: 0, inject: true, delivery: false };
        let _ = near.send(&send);
        for (why, endpoint) in whys.iter_mut().zip([&near, &far]) {
            endpoint.worker().progress();
            let all = endpoint.worker().reached().into_iter().find_map(|reached| reached.why);
            *why = all.map(|why| why.to_string()).or(why.take());
        }
    }
    assert!(whys.iter().flatten().all(|why| why.contains("is gone")), "{whys:?}");
}

/// Both ends learn of it.
fn all_lost(below: &&'static dyn Driver) {
    let flaky: &'static Flaky =
        Box::leak(Box::new(Flaky { below: *below, made: AtomicUsize::new(0), lives: |_| 50_000 }));
    let runtime = runtime();
    let (near, far) = pair(&runtime, flaky, "stripe(1)/tcp");
    send(&near, b"first");
    assert_eq!(receive(&far, 5), b"first");
    let sent = near.write(vec![0; 1 << 20]).wait();
    let read = near.read(vec![0; 1]).wait();
    assert!(matches!(read, Err(ReadError::Reset { .. })), "{read:?} behind {:?}", sent.map(|bytes| bytes.len()));
    let failed = loop {
        match near.write(vec![0; 1000]).wait() {
            Ok(_) => thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(failed, WriteError::PeerGone { .. }), "{failed}");
    let lost = loop {
        match far.read(vec![0; 100_000]).wait() {
            Ok(filled) => assert_ne!(filled.len, 0, "a proper end"),
            Err(error) => break error,
        }
    };
    assert!(matches!(lost, ReadError::Reset { .. }), "{lost}");
}

/// A driver whose connections break, at the end that connected, once they have carried so many bytes.
struct Flaky {
    below: &'static dyn Driver,
    made: AtomicUsize,
    /// How many bytes the connection of a number lives for.
    lives: fn(usize) -> usize,
}

impl Driver for Flaky {
    fn name(&self) -> &'static str {
        self.below.name()
    }

    fn facts(&self) -> Facts {
        self.below.facts()
    }

    fn usable(&self, place: &Place) -> Result<(), String> {
        self.below.usable(place)
    }

    fn address_for(&self, name: &str) -> Option<Locator> {
        self.below.address_for(name)
    }

    fn addresses(&self, place: &Place) -> Vec<IpAddr> {
        self.below.addresses(place)
    }

    fn listen(&self, at: &Locator, place: &Place) -> Result<Box<dyn Listener>, ListenError> {
        self.below.listen(at, place)
    }

    fn connect(&self, to: &Locator, place: &Place) -> Result<Connecting, ConnectError> {
        let left = Arc::new(AtomicUsize::new((self.lives)(self.made.fetch_add(1, Ordering::Relaxed))));
        Ok(match self.below.connect(to, place)? {
            Connecting::Done(connection) => Connecting::Done(breaking(connection, &left)),
            Connecting::Pending(pending) => Connecting::Pending(Box::new(Attempt { pending, left })),
        })
    }
}

struct Attempt {
    pending: Box<dyn Pending>,
    left: Arc<AtomicUsize>,
}

impl Pending for Attempt {
    fn poll(&mut self) -> Result<Option<Connection>, ConnectError> {
        Ok(self.pending.poll()?.map(|connection| breaking(connection, &self.left)))
    }

    fn signal(&self) -> Arc<dyn Signal> {
        self.pending.signal()
    }
}

fn breaking(connection: Connection, left: &Arc<AtomicUsize>) -> Connection {
    let stream = adapter::adapt(connection).expect("a stream of any endpoint");
    let adapter::Stream { rx, tx, signal, local, peer, .. } = stream;
    let signal = Arc::new(Either::new(signal));
    let life = Life { left: Arc::clone(left), signal: Arc::clone(&signal), peer: peer.clone() };
    let (rx, tx) = (Box::new(Rx { end: rx, life: life.clone() }), Box::new(Tx { end: tx, life }));
    Connection { ends: Ends::Bytes(rx, tx), signal, local, peer }
}

/// The signal of the driver below, or that of the break, which both ends are to see.
struct Either {
    below: Arc<dyn Signal>,
    broken: Bell,
    both: rustix::fd::OwnedFd,
    /// The one below has come to its end.
    ended: AtomicBool,
}

impl Either {
    fn new(below: Arc<dyn Signal>) -> Self {
        let both = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let broken = Bell::new().expect("a descriptor");
        let output = if below.by_output() { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&both, below.descriptor(), epoll::EventData::new_u64(0), flags | output).expect("an entry");
        epoll::add(&both, broken.descriptor(), epoll::EventData::new_u64(1), flags).expect("an entry");
        Self { below, broken, both, ended: AtomicBool::new(false) }
    }
}

impl Signal for Either {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }

    fn ended(&self) {
        self.below.ended();
    }

    fn woken(&self) {
        let mut events = [MaybeUninit::uninit(); 4];
        let (events, _) = epoll::wait(&self.both, &mut events, Some(&Timespec::default())).expect("events");
        let has_ended = |event: &epoll::Event| {
            let flags = event.flags;
            flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR)
        };
        if events.iter().any(has_ended) {
            self.below.ended();
            self.ended.store(true, Ordering::Relaxed);
        }
        self.below.woken();
    }
}

/// How long a connection lives.
#[derive(Clone)]
struct Life {
    left: Arc<AtomicUsize>,
    signal: Arc<Either>,
    peer: Locator,
}

impl Life {
    fn is_over(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    /// Counts down. True: it is broken now.
    fn count(&self, bytes: usize) -> bool {
        let less = |left: usize| Some(left.saturating_sub(bytes));
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let is_over = before.is_ok_and(|before| before <= bytes);
        if is_over {
            self.signal.broken.ring();
        }
        is_over
    }
}

struct Rx {
    end: Box<dyn ByteRx>,
    life: Life,
}

impl Watched for Rx {
    fn arm(&mut self) -> bool {
        self.life.is_over() || self.life.signal.ended.load(Ordering::Relaxed) || self.end.arm()
    }

    fn cheap(&self) -> bool {
        self.end.cheap()
    }
}

impl ByteRx for Rx {
    fn read(&mut self, buf: &mut [u8]) -> Result<Read, ReadError> {
        let reset = || ReadError::Reset { peer: self.life.peer.clone() };
        if self.life.is_over() {
            return Err(reset());
        }
        match self.end.read(buf)? {
            // What was read is lost, too, where it was one too many.
            Read::Bytes(bytes) if self.life.count(bytes) => Err(reset()),
            read => Ok(read),
        }
    }
}

struct Tx {
    end: Box<dyn ByteTx>,
    life: Life,
}

impl Watched for Tx {
    fn arm(&mut self) -> bool {
        self.life.is_over() || self.end.arm()
    }

    fn cheap(&self) -> bool {
        self.end.cheap()
    }
}

impl ByteTx for Tx {
    fn write(&mut self, bufs: &[IoSlice<'_>]) -> Result<Wrote, WriteError> {
        if self.life.is_over() {
            return Err(WriteError::PeerGone { peer: self.life.peer.clone() });
        }
        let wrote = self.end.write(bufs)?;
        if let Wrote::Bytes(bytes) = wrote {
            self.life.count(bytes);
        }
        Ok(wrote)
    }
}
