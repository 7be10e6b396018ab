//! Two ends with certificates, each on an engine that a thread of its own turns, and a line between them that loses datagrams.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use madrigal_base::error::ConnectError;
use madrigal_base::locator::Locator;
use madrigal_identity::{Authority, Credentials, DAY, Kind, Name, Validity, login};
use madrigal_progress::engine::Engine;
use madrigal_seeds::Random;
use madrigal_sys::{process, time};
use madrigal_udp::lossy::{Class, Connecting, LossyAcceptor, LossyLink};
use madrigal_udp::{Udp, What};

pub(crate) const SECOND: u64 = 1_000_000_000;
/// No test takes longer, on any machine.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(120);

/// A time so far ahead.
pub(crate) fn within(time: u64) -> Option<u64> {
    Some(time::now_ns() + time)
}

/// A grid, whose certificates are in folders; removed at the end.
pub(crate) struct Grid {
    pub(crate) dir: PathBuf,
    authority: Authority,
}

impl Grid {
    pub(crate) fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("madrigal-udp-{}-{:x}", process::own_pid(), process::random()));
        let authority = Authority::create(&dir, &name("test"), Validity::seconds(DAY), false).expect("a CA");
        Self { dir, authority }
    }

    /// The folder of a host's certificate.
    pub(crate) fn host(&self, host: &str) -> PathBuf {
        let own = self.dir.join(host);
        let issued = self.authority.issue_host(&name(host), Validity::seconds(DAY)).expect("a certificate");
        issued.install(&own, true).expect("is installed");
        own
    }

    /// What a process of that user shows.
    pub(crate) fn user(&self, user: &str) -> Credentials {
        let own = self.dir.join(user);
        let issued = self.authority.issue_user(&name(user), Validity::seconds(DAY)).expect("an identity");
        issued.install(&own, true).expect("is installed");
        login(&own, None, DAY).expect("logs in");
        Credentials::load_as(&own, Kind::User).expect("is read").expect("is there")
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

/// What a host shows whose certificate is in that folder.
pub(crate) fn shown(dir: &Path) -> Credentials {
    Credentials::load(dir).expect("a certificate")
}

pub(crate) fn class(tolerance: u32) -> Class {
    Class { tolerance, ..Class::default() }
}

pub(crate) fn messages(engine: &Arc<Engine>, shown: &Credentials, classes: &[Class]) -> Udp {
    Udp::new(engine, shown.clone(), What::messages(classes).expect("classes"))
}

pub(crate) fn at(address: SocketAddr) -> Locator {
    format!("udp://{address}").parse().expect("a locator")
}

pub(crate) fn anywhere() -> Locator {
    "udp://127.0.0.1:0".parse().expect("a locator")
}

pub(crate) fn place(acceptor: &LossyAcceptor) -> SocketAddr {
    acceptor.locator().to_string().trim_start_matches("udp://").parse().expect("an address")
}

/// Turns an engine until it is dropped.
pub(crate) struct Turned {
    pub(crate) engine: Arc<Engine>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Turned {
    pub(crate) fn new() -> Self {
        let (engine, stop) = (Engine::new().expect("an engine"), Arc::new(AtomicBool::new(false)));
        let (its, ends) = (Arc::clone(&engine), Arc::clone(&stop));
        let turn = move || {
            while !ends.load(Ordering::Relaxed) {
                its.wait_until(&Default::default(), within(SECOND / 100), || ends.load(Ordering::Relaxed));
            }
        };
        Self { engine, stop, thread: Some(std::thread::spawn(turn)) }
    }
}

impl Drop for Turned {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| thread.join().expect("turns"));
    }
}

/// A line of real sockets to a place, which loses datagrams of both ways.
pub(crate) struct Line {
    pub(crate) at: SocketAddr,
    /// So many of a thousand are lost.
    pub(crate) loss: Arc<AtomicU64>,
    pub(crate) lost: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Line {
    pub(crate) fn to(far: SocketAddr, loss: u64) -> Self {
        let bind = || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            socket.set_read_timeout(Some(Duration::from_millis(20))).expect("is set");
            Arc::new(socket)
        };
        let (near, beyond) = (bind(), bind());
        beyond.connect(far).expect("is connected");
        let (loss, lost) = (Arc::new(AtomicU64::new(loss)), Arc::new(AtomicU64::new(0)));
        let (stop, who) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None::<SocketAddr>)));
        let at = near.local_addr().expect("is bound");
        let carry = |seed: u64, from: &Arc<UdpSocket>, to: &Arc<UdpSocket>| {
            let (from, to, who) = (Arc::clone(from), Arc::clone(to), Arc::clone(&who));
            let (loss, lost, stop) = (Arc::clone(&loss), Arc::clone(&lost), Arc::clone(&stop));
            let there = seed == 1;
            std::thread::spawn(move || {
                let (mut random, mut buffer) = (Random::new(seed), vec![0; 65536]);
                while !stop.load(Ordering::Relaxed) {
                    let Ok((len, sender)) = from.recv_from(&mut buffer) else { continue };
                    if there {
                        *who.lock().expect("a lock") = Some(sender);
                    }
                    if random.below(1000) < loss.load(Ordering::Relaxed) {
                        lost.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    let back = *who.lock().expect("a lock");
                    let _ = match back {
                        Some(back) if !there => to.send_to(&buffer[..len], back),
                        _ => to.send(&buffer[..len]),
                    };
                }
            })
        };
        let threads = vec![carry(1, &near, &beyond), carry(2, &beyond, &near)];
        Self { at, loss, lost, stop, threads }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("carries"));
    }
}

/// Both ends of a link over a line that loses so many of a thousand datagrams.
pub(crate) struct Pair {
    pub(crate) near: LossyLink,
    pub(crate) far: LossyLink,
    pub(crate) line: Line,
    _turned: [Turned; 2],
    _grid: Grid,
}

impl Pair {
    pub(crate) fn new(classes: &[Class], loss: u64) -> Self {
        let (grid, here, there) = (Grid::new(), Turned::new(), Turned::new());
        let (one, other) = (shown(&grid.host("a1")), shown(&grid.host("b1")));
        let acceptor = LossyAcceptor::listen(&messages(&there.engine, &other, classes), &anywhere()).expect("listens");
        let line = Line::to(place(&acceptor), loss);
        let near = connect(&messages(&here.engine, &one, classes), line.at).expect("connects");
        let far = acceptor.accept(within(200 * SECOND)).expect("accepts").expect("in time");
        Self { near, far, line, _turned: [here, there], _grid: grid }
    }
}

pub(crate) fn connect(by: &Udp, to: SocketAddr) -> Result<LossyLink, ConnectError> {
    Ok(Connecting::begin(by, &at(to))?.wait(None)?.unwrap_or_else(|_| panic!("it is decided")))
}
