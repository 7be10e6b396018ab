//! Measurements between two processes: a ping-pong over a VLink or a Circuit, between ports or mailboxes, against the fastest two processors
//! can exchange anything at all; and one of messages of which a part may be lost, against a stream by the same driver.
//!
//! The yardstick is one cache line two processes write in turn, measured in the same run, round by round; so the ratio means the same
//! on every machine and under every load. How far a line is from both processors depends on where it lies in the cache, by up to a
//! third; so each round has a line and a link of its own. The caller's program is its own peer: it is started once more, and its `main`
//! must begin with [`peer`].
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

use core::task::Poll;
use std::os::fd::AsRawFd;

use madrigal_base::config::Settings;
use madrigal_shm_ring::arena::Arena;
use madrigal_stream::{Acceptor, VLink};
use madrigal_sys::{process, time};

use crate::{Address, Runtime, grid_tls};

mod channel;
mod circuit;
mod crowd;
mod job;
mod lossy;
mod mailbox;
mod port;
mod report;

pub use circuit::circuit;
pub use crowd::{Crowd, crowd};
pub use job::ROUNDS;
pub use lossy::{LossyReport, lossy};
pub use mailbox::{MailboxReport, mailbox};
pub use port::{PortReport, port};
pub use report::{PerfError, Report};

use job::{ASKED, Job, Peer, START_NS, line};
use report::os;

/// Measures a ping-pong of `size` bytes (at least 1) over a VLink by `method`, a driver with a stack in front of it or without
/// (`stripe(2)/tcp`), and the bare line, in turn. Blocks until done; starts this program once more meanwhile.
pub fn vlink(method: &str, size: usize, iterations: u32) -> Result<Report, PerfError> {
    let unfit = || PerfError::Method { method: method.to_owned() };
    let mut runtime = Runtime::with_settings(&Settings::default())?;
    runtime.set_tls(grid_tls());
    let name = format!("perf-{}-{:x}", process::own_pid(), process::random() as u32);
    let (above, driver) = method.split_at(method.rfind('/').map_or(0, |at| at + 1));
    let at = if driver == "udp" {
        "udp://127.0.0.1:0".to_owned()
    } else {
        let driver = madrigal_drivers::driver(driver).filter(|driver| driver.name() != "loopback");
        driver.and_then(|driver| driver.address_for(&name)).ok_or_else(unfit)?.to_string()
    };
    let at: Address = format!("{above}{at}").parse().map_err(|_| unfit())?;
    let acceptor = runtime.listen_at(&at)?;
    let (arena, fd) = Arena::create().map_err(os)?;
    let job = Job { size: size.max(1), iterations: iterations.max(1) };
    let asked = format!(
        "{} {} {} {} {} {}",
        process::own_pid(),
        fd.as_raw_fd(),
        arena.id(),
        job.size,
        job.iterations,
        Address { locator: acceptor.locator().clone(), ..at }
    );
    for _ in 0..ROUNDS {
        arena.take_slot().map_err(os)?;
    }
    let mut peer = Peer::start(&asked)?;
    let mut links = (0..ROUNDS).map(|_| accept(&acceptor)).collect::<Result<Vec<_>, _>>()?;
    links.sort_by_key(|(round, _)| *round);
    let mut report = Report::of(method, job.size, job.iterations);
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
    let Ok(asked) = std::env::var(ASKED) else { return Ok(false) };
    // The measuring process may be killed; nothing else would end this process then.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(os)?;
    if let Some(asked) = asked.strip_prefix(circuit::ASKED) {
        return circuit::peer(asked).map(|()| true);
    }
    if let Some(asked) = asked.strip_prefix(crowd::ASKED) {
        return crowd::peer(asked).map(|()| true);
    }
    if let Some(asked) = asked.strip_prefix(crowd::IDLE) {
        return crowd::idle(asked).map(|()| true);
    }
    if let Some(asked) = asked.strip_prefix(mailbox::ASKED) {
        return mailbox::peer(asked).map(|()| true);
    }
    if let Some(asked) = asked.strip_prefix(port::ASKED) {
        return port::peer(asked).map(|()| true);
    }
    if let Some(asked) = asked.strip_prefix(lossy::ASKED) {
        return lossy::peer(asked).map(|()| true);
    }
    let unclear = || PerfError::Unclear(asked.clone());
    let words: Vec<&str> = asked.split(' ').collect();
    let [pid, fd, id, size, iterations, to] = words[..] else { return Err(unclear()) };
    let number = |text: &str| text.parse::<u64>().map_err(|_| unclear());
    let job = Job { size: (number(size)? as usize).max(1), iterations: number(iterations)? as u32 };
    let (parent, arena_fd) = (number(pid)? as u32, number(fd)? as i32);
    let arena = Arena::attach_from(parent, arena_fd, number(id)?).map_err(os)?;
    let born = process::start_time(parent).ok_or(PerfError::Gone)?;
    let mut runtime = Runtime::with_settings(&Settings::default())?;
    runtime.set_tls(grid_tls());
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

fn connect(runtime: &Runtime, to: &Address, round: u8) -> Result<VLink, PerfError> {
    let link = runtime.connect_at(to).wait()?;
    link.write(vec![round]).wait()?;
    Ok(link)
}
