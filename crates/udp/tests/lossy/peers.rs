//! Who is let in, and who is not; peers that are hostile, or killed.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use madrigal_base::error::ReadError;
use madrigal_progress::engine::Engine;
use madrigal_quic::{Admission, Carrier, Event, Key, QuicEndpoint};
use madrigal_seeds::Random;
use madrigal_sys::time;
use madrigal_udp::lossy::{Class, LossyAcceptor, LossyLink, Received};
use madrigal_udp::{Udp, What};

use crate::bed::{Grid, SECOND, Turned, anywhere, class, connect, messages, place, shown, within};

pub(crate) static CASES: &[(&str, fn())] = &[
    ("certificates_of_another_grid_are_refused_with_the_reason", another_grid),
    ("another_user_is_refused_with_the_reason", another_user),
    ("ends_that_want_different_things_are_refused_with_the_reason", different),
    ("nobody_listens_is_told_at_once", nobody),
    ("noise_is_dropped_and_links_go_on", noise),
    ("a_peer_that_breaks_the_protocol_loses_its_link_and_no_other", breaks),
    ("silent_peers_keep_nobody_waiting", silent),
    ("a_killed_peer_is_told_in_time", killed),
    ("an_idle_link_costs_nothing", idle),
];

/// The variable with the task of a started copy.
pub(crate) const TASK: &str = "_MADRIGAL_UDP_TASK";

/// An end that listens, turned by a thread of its own.
struct Far {
    acceptor: LossyAcceptor,
    _turned: Turned,
}

impl Far {
    fn new(dir: &Path, classes: &[Class]) -> Self {
        let turned = Turned::new();
        let by = messages(&turned.engine, &shown(dir), classes);
        Self { acceptor: LossyAcceptor::listen(&by, &anywhere()).expect("listens"), _turned: turned }
    }

    fn at(&self) -> SocketAddr {
        place(&self.acceptor)
    }

    fn accept(&self) -> LossyLink {
        self.acceptor.accept(within(200 * SECOND)).expect("accepts").expect("in time")
    }

    fn has_nobody(&self) {
        assert!(self.acceptor.accept(within(SECOND / 5)).expect("accepts").is_none(), "nobody was let in");
    }
}

/// Tries to connect; why not.
fn refused(by: &Udp, to: SocketAddr) -> String {
    connect(by, to).map(|link| link.peer().clone()).expect_err("is refused").to_string()
}

fn another_grid() {
    let (grid, other) = (Grid::new(), Grid::new());
    let far = Far::new(&grid.host("b1"), &[class(0)]);
    let engine = Engine::new().expect("an engine");
    let why = refused(&messages(&engine, &shown(&other.host("a1")), &[class(0)]), far.at());
    assert!(why.contains("not signed by the CA of grid test") || why.contains("unknown_ca"), "{why}");
    far.has_nobody();
}

fn another_user() {
    let (grid, turned) = (Grid::new(), Turned::new());
    let by = messages(&turned.engine, &grid.user("ann"), &[class(0)]);
    let acceptor = LossyAcceptor::listen(&by, &anywhere()).expect("listens");
    let engine = Engine::new().expect("an engine");
    let why = refused(&messages(&engine, &grid.user("bob"), &[class(0)]), place(&acceptor));
    assert!(why.contains("another user: the peer is user ann of grid test, and this is user bob"), "{why}");
    assert!(acceptor.accept(within(SECOND / 5)).expect("accepts").is_none());
    let own = connect(&messages(&engine, &grid.user("ann"), &[class(0)]), place(&acceptor));
    assert!(own.is_ok(), "{own:?}");
}

fn different() {
    let grid = Grid::new();
    let far = Far::new(&grid.host("b1"), &[class(100)]);
    let (engine, shown) = (Engine::new().expect("an engine"), shown(&grid.host("a1")));
    let why = refused(&messages(&engine, &shown, &[class(50)]), far.at());
    assert!(
        why.contains("the other end refuses: ") && why.contains("tolerance 50") && why.contains("tolerance 100"),
        "{why}"
    );
    let why = refused(&messages(&engine, &shown, &[class(100), class(0)]), far.at());
    assert!(why.contains("tolerance 0"), "{why}");
    let why = refused(&Udp::new(&engine, shown.clone(), What::stream()), far.at());
    assert!(why.contains("a stream of bytes"), "{why}");
    far.has_nobody();
}

fn nobody() {
    let grid = Grid::new();
    let gone = UdpSocket::bind("127.0.0.1:0").expect("a socket").local_addr().expect("is bound");
    let engine = Engine::new().expect("an engine");
    let by = messages(&engine, &shown(&grid.host("a1")), &[class(0)]);
    assert!(refused(&by, gone).contains("nobody listens there"));
    // A listener that is closed, whose links go on.
    let far = Far::new(&grid.host("b1"), &[class(0)]);
    let near = connect(&by, far.at()).expect("connects");
    let its = far.accept();
    far.acceptor.close();
    assert!(refused(&by, far.at()).contains("nobody listens there"));
    assert_eq!(near.send(0, b"still".to_vec(), None), Ok(0));
    assert!(matches!(its.receive(within(200 * SECOND)), Ok(Received::Message(message)) if message.bytes == b"still"));
}

fn noise() {
    let grid = Grid::new();
    let far = Far::new(&grid.host("b1"), &[class(0)]);
    let here = Turned::new();
    let near = connect(&messages(&here.engine, &shown(&grid.host("a1")), &[class(0)]), far.at()).expect("connects");
    let (its, socket) = (far.accept(), UdpSocket::bind("127.0.0.1:0").expect("a socket"));
    let (mut random, mut buffer) = (Random::new(11), vec![0; 2000]);
    for count in 0..20_000 {
        let len = 1 + random.below(1500) as usize;
        buffer.iter_mut().for_each(|byte| *byte = random.any() as u8);
        // Half of them look like the beginning of a connection.
        if count % 2 == 0 {
            buffer[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
        }
        let _ = socket.send_to(&buffer[..len], far.at());
    }
    assert_eq!(near.send(0, vec![7; 100_000], None), Ok(0));
    assert!(
        matches!(its.receive(within(200 * SECOND)), Ok(Received::Message(message)) if message.bytes == [7; 100_000])
    );
    far.has_nobody();
}

/// A peer with a certificate that speaks QUIC, and no more by itself.
struct Speaker {
    quic: QuicEndpoint,
    socket: madrigal_sys::udp::UdpSocket,
    to: SocketAddr,
    buffer: Vec<u8>,
    out: Vec<u8>,
}

impl Speaker {
    fn new(dir: &Path, to: SocketAddr) -> Self {
        let shown = shown(dir);
        let quic = QuicEndpoint::new(shown.client(), shown.server()).expect("TLS 1.3");
        let socket = madrigal_sys::udp::UdpSocket::connect(to).expect("a socket");
        Self { quic, socket, to, buffer: vec![0; 65536], out: Vec::new() }
    }

    fn dial(&mut self) -> Key {
        self.quic.connect(time::now_ns(), self.to).expect("an address")
    }

    /// Passes on what came and what goes, and waits a moment.
    fn turn(&mut self, mut handle: impl FnMut(Event)) {
        let Self { quic, socket, buffer, out, .. } = self;
        let now = time::now_ns();
        while let Ok(got) = socket.receive(buffer) {
            for datagram in buffer[..got.len].chunks(got.segment) {
                quic.receive(now, (got.from, None), datagram, |_| Admission::Drop);
            }
        }
        quic.handle_time(now);
        while let Some(event) = quic.event() {
            handle(event);
        }
        while let Some(outgoing) = quic.transmit(now, out) {
            let _ = socket.send(outgoing.to, None, outgoing.segment, out);
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }

    /// Says that on the control stream, until it is closed for that.
    fn say(mut self, words: &[u8]) {
        let (key, mut closed, mut said) = (self.dial(), false, false);
        while !closed {
            self.turn(|event| closed |= matches!(event, Event::Closed { .. }));
            if let Some(connection) = self.quic.connection(key).filter(|_| !said) {
                said = connection.write(words) > 0;
            }
        }
    }
}

fn breaks() {
    let grid = Grid::new();
    let far = Far::new(&grid.host("b1"), &[class(0)]);
    let (bad, here) = (grid.host("c1"), Turned::new());
    let near = connect(&messages(&here.engine, &shown(&grid.host("a1")), &[class(0)]), far.at()).expect("connects");
    let its = far.accept();
    for say in [&[0xff; 50][..], &[2, 0], &[1, 1], &[9; 3]] {
        Speaker::new(&bad, far.at()).say(say);
    }
    far.has_nobody();
    assert_eq!(near.send(0, vec![7; 10], None), Ok(0));
    assert!(matches!(its.receive(within(200 * SECOND)), Ok(Received::Message(_))));
}

/// Peers with certificates that connect and say nothing, more than are let wait: the oldest ones end, and others still come in.
fn silent() {
    let grid = Grid::new();
    let far = Far::new(&grid.host("b1"), &[class(0)]);
    let (idle, over) = (grid.host("c1"), AtomicBool::new(false));
    let [stand, ended] = [(); 2].map(|()| AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| stand_silent(&idle, far.at(), [&stand, &ended], &over));
        while stand.load(Ordering::Relaxed) < SILENT {
            std::thread::yield_now();
        }
        let here = Turned::new();
        let near = connect(&messages(&here.engine, &shown(&grid.host("a1")), &[class(0)]), far.at());
        let accepted = near.as_ref().map(|_| far.accept());
        while accepted.is_ok() && ended.load(Ordering::Relaxed) < SILENT - MOST_SILENT {
            std::thread::yield_now();
        }
        over.store(true, Ordering::Relaxed);
        assert!(accepted.is_ok(), "{near:?}");
    });
}

/// How many peers are silent, and how many may be.
const SILENT: usize = 300;
const MOST_SILENT: usize = 256;

/// So many connections of one peer that say nothing: counts those that stood, and those that the other end has ended.
fn stand_silent(dir: &Path, to: SocketAddr, [stand, ended]: [&AtomicUsize; 2], over: &AtomicBool) {
    let (mut speaker, mut begun) = (Speaker::new(dir, to), 0);
    while !over.load(Ordering::Relaxed) {
        // A few at a time, so that no datagram is lost for want of room.
        while begun < SILENT.min(stand.load(Ordering::Relaxed) + 8) {
            speaker.dial();
            begun += 1;
        }
        speaker.turn(|event| match event {
            Event::Connected { .. } => _ = stand.fetch_add(1, Ordering::Relaxed),
            Event::Closed { .. } => _ = ended.fetch_add(1, Ordering::Relaxed),
            Event::Seen { .. } => {}
        });
    }
}

/// The other process: connects, sends a message, says so, and waits to be killed.
pub(crate) fn child(task: &OsStr) {
    let task = task.to_str().expect("a task");
    let (to, dir) = task.split_once(' ').expect("a task");
    let turned = Turned::new();
    let by = messages(&turned.engine, &shown(Path::new(dir)), &[class(0)]);
    let link = connect(&by, to.parse().expect("an address")).expect("connects");
    link.send(0, b"last words".to_vec(), None).expect("sends");
    assert_eq!(link.flush(within(200 * SECOND)), Ok(true));
    println!("sent");
    std::thread::sleep(std::time::Duration::from_secs(600));
}

/// The other process, killed on drop.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn killed() {
    let grid = Grid::new();
    let far = Far::new(&grid.host("b1"), &[class(0)]);
    let task = format!("{} {}", far.at(), grid.host("a1").display());
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let mut other = Other(command.env(TASK, task).stdout(Stdio::piped()).spawn().expect("starts"));
    let its = far.accept();
    let mut line = String::new();
    BufReader::new(other.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("reads");
    assert_eq!(line, "sent\n");
    drop(other);
    // What it had sent is still there; then it is told, by a keep-alive and ICMP: long before a minute of silence.
    let began = time::now_ns();
    assert!(
        matches!(its.receive(within(200 * SECOND)), Ok(Received::Message(message)) if message.bytes == b"last words")
    );
    let told = its.receive(within(200 * SECOND));
    assert!(matches!(told, Err(ReadError::Reset { .. })), "{told:?}");
    let waited = (time::now_ns() - began) / SECOND;
    assert!(waited < 58, "after {waited} s: for its silence");
}

/// For a time in which keep-alives go, the engine hardly ever has something to do.
fn idle() {
    let grid = Grid::new();
    let engine = Engine::new().expect("an engine");
    let by = |host: &str| messages(&engine, &shown(&grid.host(host)), &[class(0)]);
    let acceptor = LossyAcceptor::listen(&by("b1"), &anywhere()).expect("listens");
    let near: Vec<LossyLink> = (0..20).map(|_| connect(&by("a1"), place(&acceptor)).expect("connects")).collect();
    let far: Vec<LossyLink> =
        (0..20).map(|_| acceptor.accept(within(200 * SECOND)).expect("accepts").expect("in time")).collect();
    let class = engine.class("udp");
    // What the handshakes left.
    engine.wait_until(&Default::default(), within(2 * SECOND), || false);
    let (before, used) = (engine.work_done(class), processor());
    engine.wait_until(&Default::default(), within(6 * SECOND), || false);
    let (works, used) = (engine.work_done(class) - before, processor() - used);
    // A keep-alive, its answer, and probes of the path's longest datagram: a few of each link.
    assert!(works < 20 * 40, "{works} works for 20 idle links in 6 s");
    assert!(used < SECOND / 2, "{used} ns of a processor");
    assert_eq!((near.len(), far.len()), (20, 20));
}

fn processor() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}
