//! The contracts of `progress::driver`, for any driver: endpoints, listeners and signals without engine or links.
//!
//! Features (docs/features.md): A4, A8, B3; over `loopback` B12.

use std::io::IoSlice;
use std::sync::Arc;

use madrigal_base::error::{ConnectError, ListenError, ReadError, WriteError};
use madrigal_base::locator::{Address, Locator};
use madrigal_progress::driver::{
    Connecting, Connection, Driver, Ends, Listener, Packet, Place, Read, Signal, Watched, Wrote,
};
use madrigal_stream::adapter::{self, Stream};
use rustix::event::{PollFd, PollFlags, poll};

use crate::noise::{self, Noise};
use crate::{Case, place};

/// What a case gets: a driver and where it runs.
pub struct Context {
    driver: &'static dyn Driver,
    place: Place,
}

/// Makes the context for a driver.
pub fn context(driver: &'static dyn Driver) -> Context {
    Context { driver, place: place() }
}

/// The suite.
pub static CASES: &[Case<Context>] = &[
    Case { name: "is_usable_here", run: usable },
    Case { name: "connects_and_carries_both_ways", run: both_ways },
    Case { name: "what_is_written_before_accept_waits", run: before_accept },
    Case { name: "what_is_written_and_closed_before_accept_is_read", run: closed_before_accept },
    Case { name: "refuses_where_nobody_listens", run: refuses },
    Case { name: "takes_its_own_form_of_address_only", run: forms },
    Case { name: "a_place_is_listened_at_once", run: in_use },
    Case { name: "reads_everything_before_the_end", run: the_end },
    Case { name: "closing_with_bytes_unread_resets", run: reset },
    Case { name: "a_reset_that_a_write_met_is_one_to_the_reader", run: reset_met_by_a_write },
    Case { name: "writing_to_a_peer_that_is_gone_fails", run: gone },
    Case { name: "a_full_connection_takes_no_more_until_read", run: back_pressure },
    Case { name: "any_split_and_merge_is_one_stream", run: split_and_merge },
    Case { name: "sleepers_are_woken", run: sleepers },
    Case { name: "gathers_writes", run: gathers },
    Case { name: "carries_many_connections", run: many },
];

/// The suite of drivers whose ends are packets, beside [`CASES`].
pub static PACKETS: &[Case<Context>] = &[Case { name: "keeps_packets_whole", run: packets }];

/// Whether a driver's ends are packets, not streams.
pub fn has_packets(driver: &'static dyn Driver) -> bool {
    let c = context(driver);
    let listener = c.listen();
    c.connect(listener.locator()).is_ok_and(|near| matches!(near.ends, Ends::Packets(..)))
}

impl Context {
    fn name(&self) -> String {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        format!("suite-{}", COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }

    fn address(&self) -> Locator {
        self.driver.address_for(&self.name()).expect("the driver has an address for every name")
    }

    fn listen(&self) -> Box<dyn Listener> {
        self.driver.listen(&self.address(), &self.place).expect("listens")
    }

    fn connect(&self, to: &Locator) -> Result<Connection, ConnectError> {
        match self.driver.connect(to, &self.place)? {
            Connecting::Done(endpoint) => Ok(endpoint),
            Connecting::Pending(mut pending) => loop {
                if let Some(endpoint) = pending.poll()? {
                    return Ok(endpoint);
                }
                sleep(&*pending.signal());
            },
        }
    }

    fn pair_on(&self, listener: &mut dyn Listener) -> (Stream, Stream) {
        let near = self.connect(listener.locator()).expect("connects");
        (stream(near), stream(accept(listener)))
    }

    fn pair(&self) -> (Stream, Stream) {
        self.pair_on(&mut *self.listen())
    }
}

fn stream(endpoint: Connection) -> Stream {
    adapter::adapt(endpoint).expect("an adapter for every paradigm")
}

fn accept(listener: &mut dyn Listener) -> Connection {
    loop {
        if let Some(endpoint) = listener.accept().expect("accepts") {
            return endpoint;
        }
        sleep(&*listener.signal());
    }
}

/// Sleeps until the signal is reported, and a while at most: descriptors are level-triggered here.
fn sleep(signal: &dyn Signal) {
    let output = if signal.by_output() { PollFlags::OUT } else { PollFlags::empty() };
    let descriptor = signal.descriptor();
    let mut fds = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN | output)];
    poll(&mut fds, None).expect("polls");
    signal.woken();
}

/// Sleeps for an end, unless arming finds something.
fn sleep_for(end: &mut (impl Watched + ?Sized), signal: &dyn Signal) {
    if !end.arm() {
        sleep(signal);
    }
}

fn read(stream: &mut Stream, buf: &mut [u8]) -> Result<usize, ReadError> {
    loop {
        match stream.rx.read(buf)? {
            Read::Bytes(n) => return Ok(n),
            Read::End => return Ok(0),
            Read::WouldBlock => sleep_for(&mut *stream.rx, &*stream.signal),
        }
    }
}

fn write(stream: &mut Stream, mut bytes: &[u8]) -> Result<(), WriteError> {
    while !bytes.is_empty() {
        match stream.tx.write(&[IoSlice::new(bytes)])? {
            Wrote::Bytes(n) => bytes = &bytes[n..],
            Wrote::WouldBlock => sleep_for(&mut *stream.tx, &*stream.signal),
        }
    }
    Ok(())
}

/// Reads to the end; what was read.
fn drain(stream: &mut Stream) -> Result<Vec<u8>, (Vec<u8>, ReadError)> {
    let (mut all, mut buf) = (Vec::new(), [0; 777]);
    loop {
        match read(stream, &mut buf) {
            Ok(0) => return Ok(all),
            Ok(n) => all.extend_from_slice(&buf[..n]),
            Err(error) => return Err((all, error)),
        }
    }
}

fn expect(stream: &mut Stream, wanted: &[u8]) {
    let (mut got, mut buf) = (Vec::new(), vec![0; wanted.len()]);
    while got.len() < wanted.len() {
        let room = wanted.len() - got.len();
        let n = read(stream, &mut buf[..room]).expect("reads");
        assert_ne!(n, 0, "the end came early");
        got.extend_from_slice(&buf[..n]);
    }
    assert_eq!(got, wanted);
}

fn usable(c: &Context) {
    assert_eq!(c.driver.usable(&c.place), Ok(()));
    assert!(c.driver.facts().takes.starts_with(c.driver.name()));
}

fn both_ways(c: &Context) {
    let (mut near, mut far) = c.pair();
    for round in 0..100u32 {
        write(&mut near, &round.to_le_bytes()).unwrap();
        expect(&mut far, &round.to_le_bytes());
        write(&mut far, &(!round).to_le_bytes()).unwrap();
        expect(&mut near, &(!round).to_le_bytes());
    }
    assert_eq!(near.peer.scheme(), c.driver.name());
    let mut empty: [u8; 0] = [];
    assert_eq!(near.rx.read(&mut empty), Ok(Read::Bytes(0)));
    assert_eq!(near.tx.write(&[IoSlice::new(&empty)]), Ok(Wrote::Bytes(0)));
}

fn before_accept(c: &Context) {
    let mut listener = c.listen();
    let mut near = stream(c.connect(listener.locator()).unwrap());
    write(&mut near, b"early").unwrap();
    let mut far = stream(accept(&mut *listener));
    drop(listener);
    expect(&mut far, b"early");
    write(&mut far, b"late").unwrap();
    expect(&mut near, b"late");
}

fn closed_before_accept(c: &Context) {
    let mut listener = c.listen();
    // Short enough to wait in any driver.
    for len in [0, 1, 24, 25, 1000, 4000] {
        let sent = noise::Stream::new(len as u64).take(len);
        let early: Vec<_> = (0..3).map(|_| stream(c.connect(listener.locator()).unwrap())).collect();
        for mut near in early {
            write(&mut near, &sent).unwrap();
        }
        for _ in 0..3 {
            let mut far = stream(accept(&mut *listener));
            assert_eq!(drain(&mut far).unwrap(), sent);
            assert_eq!(far.rx.read(&mut [0; 4]), Ok(Read::End), "the end stays");
        }
    }
    // Nobody ever accepts the last one.
    let mut near = stream(c.connect(listener.locator()).unwrap());
    write(&mut near, b"never read").unwrap();
    drop(near);
}

fn refuses(c: &Context) {
    let listener = c.listen();
    let at = listener.locator().clone();
    drop(listener);
    match c.connect(&at) {
        Err(ConnectError::Refused { to }) => assert_eq!(to, at),
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("connected to nobody"),
    }
}

fn forms(c: &Context) {
    let has_port = matches!(c.address().address(), Address::Inet(_));
    let other = if has_port { "name" } else { "127.0.0.1:1" };
    let wrong: Locator = format!("{}://{other}", c.driver.name()).parse().unwrap();
    assert!(matches!(c.driver.listen(&wrong, &c.place), Err(ListenError::BadAddress { .. })));
    assert!(matches!(c.connect(&wrong), Err(ConnectError::BadAddress { .. })));
}

fn in_use(c: &Context) {
    let listener = c.listen();
    let at = listener.locator().clone();
    assert!(matches!(c.driver.listen(&at, &c.place), Err(ListenError::InUse { .. })));
    drop(listener);
    assert!(c.driver.listen(&at, &c.place).is_ok());
}

fn the_end(c: &Context) {
    for len in [0, 1, 24, 25, 1000, 100_000] {
        let (mut near, mut far) = c.pair();
        let sent = noise::Stream::new(len as u64).take(len);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                write(&mut near, &sent).unwrap();
                drop(near);
            });
            assert_eq!(drain(&mut far).unwrap(), sent);
        });
        assert_eq!(far.rx.read(&mut [0; 4]), Ok(Read::End), "the end stays");
    }
}

fn reset(c: &Context) {
    let (mut near, mut far) = c.pair();
    write(&mut far, b"never read").unwrap();
    write(&mut near, b"last words").unwrap();
    // It has arrived: only then is it unread.
    while !near.rx.arm() && !readable(&*near.signal) {}
    drop(near);
    let (all, error) = drain(&mut far).unwrap_err();
    assert_eq!(all, b"last words");
    assert!(matches!(error, ReadError::Reset { .. }), "{error}");
}

/// Whoever reads must not take what was cut off for whole, whichever end of the connection was told first.
fn reset_met_by_a_write(c: &Context) {
    let (mut near, mut far) = c.pair();
    write(&mut far, b"never read").unwrap();
    while !near.rx.arm() && !readable(&*near.signal) {}
    drop(near);
    while write(&mut far, &[1; 64]).is_ok() {
        std::thread::yield_now();
    }
    let (_, error) = drain(&mut far).expect_err("bytes were dropped unread");
    assert!(matches!(error, ReadError::Reset { .. }), "{error}");
}

fn readable(signal: &dyn Signal) -> bool {
    let descriptor = signal.descriptor();
    let mut fds = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let second = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut fds, Some(&second)).expect("polls") > 0
}

fn gone(c: &Context) {
    let (mut near, far) = c.pair();
    drop(far);
    let error = loop {
        match write(&mut near, &[1; 64]) {
            Ok(()) => std::thread::yield_now(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, WriteError::PeerGone { .. }), "{error}");
    assert_eq!(error.errno(), 32);
}

fn back_pressure(c: &Context) {
    let (mut near, mut far) = c.pair();
    let (mut sent, mut received) = (noise::Stream::new(1), noise::Stream::new(1));
    for _ in 0..3 {
        loop {
            let mut rest = &sent.clone().take(10_000)[..];
            let begun = sent.at;
            while let Ok(Wrote::Bytes(n)) = near.tx.write(&[IoSlice::new(rest)]) {
                sent.take(n);
                rest = &rest[n..];
                if rest.is_empty() {
                    break;
                }
            }
            assert!(sent.at < 1 << 30, "takes everything, reads nothing");
            if sent.at < begun + 10_000 {
                break;
            }
        }
        // A byte may still find a place; not many do.
        let full = sent.at;
        while near.tx.write(&[IoSlice::new(&sent.clone().take(1))]) == Ok(Wrote::Bytes(1)) {
            sent.take(1);
        }
        assert!(sent.at < full + 100);
        while received.at < sent.at {
            let mut buf = [0; 50_000];
            let n = read(&mut far, &mut buf).unwrap();
            received.check(&buf[..n]);
        }
    }
}

fn split_and_merge(c: &Context) {
    const TOTAL: u64 = 3_000_000;
    let (mut near, mut far) = c.pair();
    let pump = |stream: &mut Stream, out: u64, back: u64, seed: u64| {
        let (mut sizes, mut sent, mut received) = (Noise::new(seed), noise::Stream::new(out), noise::Stream::new(back));
        let mut buf = vec![0; 100_000];
        let mut rest: Vec<u8> = Vec::new();
        while sent.at < TOTAL || !rest.is_empty() || received.at < TOTAL {
            let mut moved = false;
            if rest.is_empty() && sent.at < TOTAL {
                rest = sent.take(sizes.size(100_000).min((TOTAL - sent.at) as usize));
            }
            if let Wrote::Bytes(n) = stream.tx.write(&[IoSlice::new(&rest)]).unwrap() {
                moved |= n > 0;
                rest.drain(..n);
            }
            let len = sizes.size(100_000);
            if let Read::Bytes(n) = stream.rx.read(&mut buf[..len]).unwrap() {
                moved |= n > 0;
                received.check(&buf[..n]);
            }
            let ready = moved | stream.rx.arm() | (!rest.is_empty() && stream.tx.arm());
            if !ready && received.at < TOTAL {
                sleep(&*stream.signal);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| pump(&mut near, 1, 2, 3));
        pump(&mut far, 2, 1, 4);
    });
}

fn sleepers(c: &Context) {
    let (mut near, mut far) = c.pair();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..200u8 {
                expect(&mut far, &[i]);
                if i.is_multiple_of(3) {
                    std::thread::yield_now();
                }
                write(&mut far, &[i]).unwrap();
            }
            assert_eq!(drain(&mut far).unwrap(), b"");
        });
        for i in 0..200u8 {
            write(&mut near, &[i]).unwrap();
            expect(&mut near, &[i]);
        }
        drop(near);
    });
}

fn gathers(c: &Context) {
    let (mut near, mut far) = c.pair();
    let parts = [&b"one"[..], b"", b"two", b"three"].map(IoSlice::new);
    assert_eq!(near.tx.write(&parts), Ok(Wrote::Bytes(11)));
    expect(&mut far, b"onetwothree");
}

fn many(c: &Context) {
    const COUNT: usize = 300;
    let mut listener = c.listen();
    let mut nears: Vec<_> = (0..COUNT).map(|_| stream(c.connect(listener.locator()).unwrap())).collect();
    for (i, near) in nears.iter_mut().enumerate() {
        write(near, &(i as u32).to_le_bytes()).unwrap();
    }
    let mut fars: Vec<_> = (0..COUNT).map(|_| stream(accept(&mut *listener))).collect();
    let mut seen = vec![false; COUNT];
    for far in &mut fars {
        let mut number = [0; 4];
        let mut done = 0;
        while done < 4 {
            done += read(far, &mut number[done..]).unwrap();
        }
        let number = u32::from_le_bytes(number) as usize;
        assert!(!std::mem::replace(&mut seen[number], true));
        write(far, &(number as u32).to_le_bytes()).unwrap();
    }
    for (i, near) in nears.iter_mut().enumerate() {
        expect(near, &(i as u32).to_le_bytes());
    }
    drop(fars);
    nears.iter_mut().for_each(|near| assert_eq!(drain(near).unwrap(), b""));
}

/// For packet drivers only; a byte driver has none.
fn packets(c: &Context) {
    let mut listener = c.listen();
    let near = c.connect(listener.locator()).unwrap();
    let far = accept(&mut *listener);
    let (Ends::Packets(_near_rx, mut tx), Ends::Packets(mut rx, _far_tx)) = (near.ends, far.ends) else {
        panic!("its ends are streams")
    };
    let signal: Arc<dyn Signal> = far.signal;
    let max = tx.max();
    for len in [0, 1, max] {
        let sent = noise::Stream::new(9).take(len);
        assert_eq!(tx.send(&[IoSlice::new(&sent[..len / 2]), IoSlice::new(&sent[len / 2..])]), Ok(Wrote::Bytes(len)));
        for _ in 0..2 {
            while rx.packet() == Ok(Packet::WouldBlock) {
                sleep_for(&mut *rx, &*signal);
            }
            assert_eq!(rx.packet(), Ok(Packet::Bytes(&sent)), "the same until it is released");
        }
        rx.release();
        assert_eq!(rx.packet(), Ok(Packet::WouldBlock));
    }
    let long = vec![0; max + 1];
    assert!(matches!(tx.send(&[IoSlice::new(&long)]), Err(WriteError::TooLong { .. })));
    rx.release();
}
