//! Measurements between two processes: a ping-pong over a VLink or a Circuit, against the fastest two processors can exchange anything at all.
//!
//! The yardstick is one cache line two processes write in turn, measured in the same run, round by round; so the ratio means the same
//! on every machine and under every load. How far a line is from both processors depends on where it lies in the cache, by up to a
//! third; so each round has a line and a link of its own. The caller's program is its own peer: it is started once more, and its `main` must begin
//! with [`peer`].
//!
//! ```no_run
//! use madrigal::perf;
//!
//! fn main() -> Result<(), perf::PerfError> {
//!     if perf::peer()? {
//!         return Ok(());
//!     }
//!     println!("{}", perf::vlink("shm", 8, 100_000)?);
//!     Ok(())
//! }
//! ```

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Poll;
use std::os::fd::AsRawFd;
use std::process::{Child, Command};

use madrigal_base::config::Settings;
use madrigal_base::error::{AcceptError, ConnectError, ListenError, Os, ReadError, WriteError};
use madrigal_base::locator::Locator;
use madrigal_drivers::shm::arena::Arena;
use madrigal_links::{Acceptor, VLink};
use madrigal_sys::{process, time};

use crate::{Runtime, StartError};

mod channel;
mod circuit;
mod crowd;

pub use circuit::circuit;
pub use crowd::{Crowd, crowd};

/// How often the whole is repeated; the report gives medians.
pub const ROUNDS: usize = 25;

/// Tells a started copy what to do.
const ASKED: &str = "_MADRIGAL_PERF_PEER";
/// What is asked of its memory at most.
const LONGEST: usize = 1 << 30;
/// How long the copy may take to start and connect.
const START_NS: u64 = 15_000_000_000;
/// A round ends after this time even if not all its exchanges were done, ...
const ROUND_NS: u64 = 200_000_000;
/// ... looked at once in so many exchanges.
const LATE_EVERY: u32 = 64;
/// Looks at the bare line before it is somebody else's turn, and the root of those between two looks whether the peer lives.
const LOOKS: u32 = 1 << 11;
/// A bare line that takes longer is not waited for by two running processors.
const QUIET_NS: f64 = 1_000.0;
/// Set on the bare line with the last question.
const LAST: u64 = 1 << 63;

/// What was measured: one-way nanoseconds of a message, half of a ping-pong.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The driver.
    pub method: String,
    /// Bytes of a message.
    pub size: usize,
    /// Ping-pongs a round, at most.
    pub iterations: u32,
    /// One round each, the VLink's.
    pub link_ns: Vec<f64>,
    /// One round each, the bare line's.
    pub bare_ns: Vec<f64>,
    /// One round each, that of the driver with nothing above it; of a Circuit only, and only of messages that are frames of their own.
    pub channel_ns: Vec<f64>,
}

impl Report {
    fn of(method: &str, job: Job) -> Self {
        let (link_ns, bare_ns, channel_ns) = (vec![], vec![], vec![]);
        Self { method: method.to_owned(), size: job.size, iterations: job.iterations, link_ns, bare_ns, channel_ns }
    }

    /// Median of the VLink.
    pub fn link(&self) -> f64 {
        median(&self.link_ns)
    }

    /// Median of the bare line.
    pub fn bare(&self) -> f64 {
        median(&self.bare_ns)
    }

    /// Median of the driver alone, where it was measured.
    pub fn channel(&self) -> Option<f64> {
        (!self.channel_ns.is_empty()).then(|| median(&self.channel_ns))
    }

    /// How many bare exchanges a message costs.
    pub fn ratio(&self) -> f64 {
        self.link() / self.bare()
    }

    /// Whether both processes had a processor of their own nearly all the time. If not, the figures say how busy the machine was, and
    /// nothing else.
    pub fn is_quiet(&self) -> bool {
        self.bare() < QUIET_NS && steady(&self.bare_ns) && steady(&self.link_ns)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} B: {:.0} ns one way (best {:.0}); bare line {:.0} ns (best {:.0}); ratio {:.2} ({} rounds of {})",
            self.method,
            self.size,
            self.link(),
            best(&self.link_ns),
            self.bare(),
            best(&self.bare_ns),
            self.ratio(),
            self.link_ns.len(),
            self.iterations,
        )?;
        if let Some(channel) = self.channel() {
            let (best, more) = (best(&self.channel_ns), self.link() - channel);
            write!(f, "; the driver alone {channel:.0} ns (best {best:.0}): multiplexing adds {more:.0}")?;
        }
        if self.is_quiet() { Ok(()) } else { f.write_str("; the machine was busy") }
    }
}

/// Why nothing could be measured.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// The runtime did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The method cannot join two processes of this host.
    #[error("`{method}` joins no two processes here")]
    Method {
        /// Its name.
        method: String,
    },
    /// The program could not be started again, or shared memory could not be had.
    #[error("cannot start a peer: {0}")]
    Peer(Os),
    /// The peer died or never came.
    #[error("the peer is gone")]
    Gone,
    /// The peer was told something it does not understand.
    #[error("`{0}` tells a peer nothing")]
    Told(String),
    /// Peers that were to be idle are not linked by TCP.
    #[error("only {up} of {wanted} idle peers are connected by tcp")]
    Peers {
        /// How many are.
        up: usize,
        /// How many were to be.
        wanted: usize,
    },
    /// No driver of messages could be opened.
    #[error(transparent)]
    Worker(#[from] madrigal_links::worker::OpenError),
    /// A message was lost.
    #[error(transparent)]
    Circuit(#[from] madrigal_links::circuit::CircuitError),
    /// An operation failed.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// An operation failed.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// An operation failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// An operation failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// An operation failed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Measures a ping-pong of `size` bytes (at least 1) over a VLink by `method`, and the bare line, in turn. Blocks until done; starts
/// this program once more meanwhile.
pub fn vlink(method: &str, size: usize, iterations: u32) -> Result<Report, PerfError> {
    let unfit = || PerfError::Method { method: method.to_owned() };
    let runtime = Runtime::with_settings(&Settings::default())?;
    let name = format!("perf-{}-{:x}", process::own_pid(), process::random() as u32);
    let driver = madrigal_drivers::driver(method).filter(|driver| driver.name() != "loopback");
    let at = driver.and_then(|driver| driver.address_for(&name)).ok_or_else(unfit)?;
    let acceptor = runtime.listen(&at)?;
    let (arena, fd) = Arena::create().map_err(os)?;
    let job = Job { size: size.max(1), iterations: iterations.max(1) };
    let told = format!(
        "{} {} {} {} {} {}",
        process::own_pid(),
        fd.as_raw_fd(),
        arena.id(),
        job.size,
        job.iterations,
        acceptor.locator()
    );
    for _ in 0..ROUNDS {
        arena.take_slot().map_err(os)?;
    }
    let mut peer = Peer::start(&told)?;
    let mut links = (0..ROUNDS).map(|_| accept(&acceptor)).collect::<Result<Vec<_>, _>>()?;
    links.sort_by_key(|(round, _)| *round);
    let mut report = Report::of(method, job);
    for (round, (_, link)) in links.iter().enumerate() {
        let line = line(&arena, round)?;
        report.bare_ns.push(job.ask_bare(line, || peer.is_alive())?);
        report.link_ns.push(job.ask(link)?);
    }
    Ok(report)
}

/// To be called first in `main` of a program that measures: does the peer's part if this process was started for it. True: it was,
/// and the program should end.
pub fn peer() -> Result<bool, PerfError> {
    let Ok(told) = std::env::var(ASKED) else { return Ok(false) };
    // Who measures may be killed; nobody else would end this process then.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(os)?;
    if let Some(told) = told.strip_prefix(circuit::ASKED) {
        return circuit::peer(told).map(|()| true);
    }
    if let Some(told) = told.strip_prefix(crowd::ASKED) {
        return crowd::peer(told).map(|()| true);
    }
    if let Some(told) = told.strip_prefix(crowd::IDLE) {
        return crowd::idle(told).map(|()| true);
    }
    let unclear = || PerfError::Told(told.clone());
    let words: Vec<&str> = told.split(' ').collect();
    let [pid, fd, id, size, iterations, to] = words[..] else { return Err(unclear()) };
    let number = |text: &str| text.parse::<u64>().map_err(|_| unclear());
    let job = Job { size: (number(size)? as usize).max(1), iterations: number(iterations)? as u32 };
    let (parent, arena_fd) = (number(pid)? as u32, number(fd)? as i32);
    let arena = Arena::attach_from(parent, arena_fd, number(id)?).map_err(os)?;
    let born = process::start_time(parent).ok_or(PerfError::Gone)?;
    let runtime = Runtime::with_settings(&Settings::default())?;
    let to = to.parse().map_err(|_| unclear())?;
    let links = (0..ROUNDS as u8).map(|round| connect(&runtime, &to, round)).collect::<Result<Vec<_>, _>>()?;
    for (round, link) in links.iter().enumerate() {
        job.answer_bare(line(&arena, round)?, || process::alive(parent, born))?;
        job.answer(link)?;
    }
    Ok(true)
}

/// A link, and the round it is for: links need not be accepted in the order they were made.
fn accept(acceptor: &Acceptor) -> Result<(u8, VLink), PerfError> {
    let deadline = Some(time::now_ns() + START_NS);
    let Poll::Ready(link) = acceptor.accept().wait_until(deadline) else { return Err(PerfError::Gone) };
    let link = link?;
    let Poll::Ready(round) = link.read(vec![0]).wait_until(deadline) else { return Err(PerfError::Gone) };
    Ok((*round?.bytes().first().ok_or(PerfError::Gone)?, link))
}

fn connect(runtime: &Runtime, to: &Locator, round: u8) -> Result<VLink, PerfError> {
    let link = runtime.connect(to).wait()?;
    link.write(vec![round]).wait()?;
    Ok(link)
}

/// The bare line of a round.
fn line(arena: &Arena, round: usize) -> Result<&AtomicU64, PerfError> {
    Ok(&arena.slot(round as u32).ok_or(PerfError::Gone)?.side[0].cookie)
}

/// What both sides do in a round. The side that asks ends it, early on a machine that is too busy.
#[derive(Clone, Copy)]
struct Job {
    size: usize,
    iterations: u32,
}

impl Job {
    /// Nanoseconds one way of a round of `exchange`s behind the first, which are told whether they are the last.
    fn timed(self, mut exchange: impl FnMut(bool) -> Result<(), PerfError>) -> Result<f64, PerfError> {
        // The other end may not have come to this round yet.
        exchange(false)?;
        let begun = time::now_ns();
        let mut done = 0;
        loop {
            done += 1;
            let late = done % LATE_EVERY == 0 && time::now_ns() > begun + ROUND_NS;
            let last = late || done >= self.iterations;
            exchange(last)?;
            if last {
                return Ok((time::now_ns() - begun) as f64 / (2.0 * f64::from(done)));
            }
        }
    }

    fn ask_bare(self, line: &AtomicU64, mut alive: impl FnMut() -> bool) -> Result<f64, PerfError> {
        let mut count = 0;
        self.timed(|last| {
            count += 2;
            line.store((count - 1) | if last { LAST } else { 0 }, Ordering::Release);
            wait_for(line, count, &mut alive).map(drop)
        })
    }

    fn answer_bare(self, line: &AtomicU64, mut alive: impl FnMut() -> bool) -> Result<(), PerfError> {
        let mut count = 0;
        loop {
            count += 2;
            let asked = wait_for(line, count - 1, &mut alive)?;
            line.store(count, Ordering::Release);
            if asked & LAST != 0 {
                return Ok(());
            }
        }
    }

    fn ask(self, link: &VLink) -> Result<f64, PerfError> {
        let (mut out, mut back) = (vec![0; self.size], vec![0; self.size]);
        self.timed(|last| {
            out[0] = u8::from(last);
            out = link.write(core::mem::take(&mut out)).wait()?;
            back = self.read(link, core::mem::take(&mut back))?.0;
            Ok(())
        })
    }

    fn answer(self, link: &VLink) -> Result<(), PerfError> {
        let (mut out, mut back) = (vec![0; self.size], vec![0; self.size]);
        loop {
            let last;
            (back, last) = self.read(link, back)?;
            out = link.write(out).wait()?;
            if last {
                return Ok(());
            }
        }
    }

    /// Reads one message; the buffer comes back, and whether the message says that it is the last.
    #[inline]
    fn read(self, link: &VLink, buf: Vec<u8>) -> Result<(Vec<u8>, bool), PerfError> {
        let mut filled = link.read(buf).wait()?;
        let last = filled.buf[0] != 0;
        let mut done = filled.len;
        while done < self.size {
            if filled.len == 0 {
                return Err(PerfError::Gone);
            }
            filled.buf.truncate(self.size - done);
            filled = link.read(filled.buf).wait()?;
            done += filled.len;
        }
        filled.buf.resize(self.size, 0);
        Ok((filled.buf, last))
    }
}

/// Looks at the bare line until it holds `count`; what it holds besides.
fn wait_for(line: &AtomicU64, count: u64, alive: &mut impl FnMut() -> bool) -> Result<u64, PerfError> {
    let mut looks = 0u32;
    loop {
        let seen = line.load(Ordering::Acquire);
        if seen & !LAST == count {
            return Ok(seen);
        }
        core::hint::spin_loop();
        looks += 1;
        if looks.is_multiple_of(LOOKS) {
            // On a busy machine both may share a processor.
            std::thread::yield_now();
            if looks.is_multiple_of(LOOKS * LOOKS) && !alive() {
                return Err(PerfError::Gone);
            }
        }
    }
}

/// The started copy; killed on drop if it did not end by itself.
struct Peer(Child);

impl Peer {
    fn start(told: &str) -> Result<Self, PerfError> {
        let started = Command::new("/proc/self/exe").env(ASKED, told).spawn();
        started.map(Self).map_err(|error| PerfError::Peer(Os(error.raw_os_error().unwrap_or(0))))
    }

    fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It is dead already, or dies now; nothing else is wanted of it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn median(all: &[f64]) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Whether nothing but the program itself took part most of the time.
fn steady(all: &[f64]) -> bool {
    median(all) < 2.0 * best(all)
}

fn best(all: &[f64]) -> f64 {
    all.iter().copied().fold(f64::INFINITY, f64::min)
}

fn os(errno: madrigal_sys::Errno) -> PerfError {
    PerfError::Peer(Os(errno.raw_os_error()))
}
