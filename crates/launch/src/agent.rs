//! The agent: what starts a job's processes on one host, carries their output and their PMI, and leaves nothing behind.
//!
//! It talks to its launcher by standard input and output, so whatever leads to a host (ssh, a container's exec) leads to an agent.
//!
//! ```text
//!  greeted --Check--> able or unable --Start--> running --(every rank has ended)--> over
//!                                                  |--(Kill; the launcher is lost)--> everything is killed, over
//! ```
//! One thread, which forks: processes that must die with the agent die with the thread that made them (prctl(2), PR_SET_PDEATHSIG).

mod check;
mod left;
mod rank;
mod source;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use madrigal_sys::fd::Fd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions};

use crate::frame::{Channel, Frame, Incoming, Outgoing};
use crate::words::{BEAT, End, Part, SILENCE, ToAgent, ToLauncher, VERSION};
use rank::Running;
use source::Source;

pub(crate) use check::NOT_STARTED;
pub use check::{Found, Programs};

/// Of what the launcher has not taken, so much is kept; then ranks wait with their output.
const KEPT: usize = 1 << 20;
/// Between a polite end and a kill, where no launcher keeps the time.
const GRACE: Duration = Duration::from_secs(2);
/// How long output of a rank that has ended is waited for, while a child of its own still holds it.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Why an agent did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A terminal is where frames should be.
    #[error("an agent is started by `madrigal run`: its standard input and output lead there")]
    NoLauncher,
    /// A system call failed.
    #[error("{0}: {1}")]
    Call(&'static str, Errno),
}

/// Works until the job has ended. `exec` is the command that runs a program over Madrigal.
pub fn run(exec: PathBuf, programs: Programs) -> Result<(), AgentError> {
    if rustix::termios::isatty(rustix::stdio::stdin()) {
        return Err(AgentError::NoLauncher);
    }
    let mut agent = Agent::new(exec, programs)?;
    agent.send(&ToLauncher::Hello {
        version: VERSION,
        madrigal: env!("CARGO_PKG_VERSION").to_owned(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
    });
    while !agent.is_over() {
        agent.run_once()?;
    }
    Ok(())
}

struct Agent {
    exec: PathBuf,
    programs: Programs,
    signals: Fd,
    incoming: Incoming,
    outgoing: Outgoing,
    part: Part,
    ranks: Vec<Running>,
    started: bool,
    /// When the launcher was lost: the job is then ended, first politely.
    lost: Option<Instant>,
    killed: bool,
    last_received: Instant,
    last_sent: Instant,
    quiet: bool,
    over: bool,
    left: left::Left,
}

impl Agent {
    fn new(exec: PathBuf, programs: Programs) -> Result<Self, AgentError> {
        let failed = |what| move |errno| AgentError::Call(what, errno);
        let mask =
            [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP].iter().fold(0, |m, s| m | 1u64 << (s - 1));
        madrigal_sys::raw::block_signals(mask).map_err(failed("rt_sigprocmask"))?;
        madrigal_sys::raw::signal_disposition(libc::SIGPIPE, libc::SIG_IGN).map_err(failed("rt_sigaction"))?;
        let signals = madrigal_sys::raw::signal_fd(mask).map_err(failed("signalfd"))?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(failed("prctl"))?;
        rustix::io::ioctl_fionbio(rustix::stdio::stdout(), true).map_err(failed("ioctl"))?;
        Ok(Self {
            exec,
            programs,
            signals,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            part: Part::default(),
            ranks: Vec::new(),
            started: false,
            lost: None,
            killed: false,
            last_received: Instant::now(),
            last_sent: Instant::now(),
            quiet: false,
            over: false,
            left: left::Left::now(),
        })
    }

    fn send(&mut self, words: &ToLauncher) {
        if self.lost.is_none() {
            self.outgoing.words(words);
        }
        self.last_sent = Instant::now();
    }

    /// Whether there is nothing more to do, and the launcher was notified.
    fn is_over(&self) -> bool {
        self.over && (self.outgoing.is_empty() || self.lost.is_some())
    }

    fn run_once(&mut self) -> Result<(), AgentError> {
        for source in self.wait()? {
            match source {
                Source::Launcher => self.receive(),
                Source::Room => {}
                Source::Signals => self.take_signals(),
                Source::Output(i) => self.carry(i, Channel::Output),
                Source::Error(i) => self.carry(i, Channel::Error),
                Source::Pmi(i) => self.carry_pmi(i),
                Source::Input(i) => self.feed(i),
            }
        }
        if self.outgoing.flush(rustix::stdio::stdout()).is_err() {
            self.lose_launcher();
        }
        self.keep_time();
        self.report_ends();
        Ok(())
    }

    /// Sleeps until there is something to do.
    fn wait(&self) -> Result<Vec<Source>, AgentError> {
        let stdin = rustix::stdio::stdin();
        let mut sources: Vec<(Source, BorrowedFd<'_>, PollFlags)> =
            vec![(Source::Signals, self.signals.as_fd(), PollFlags::IN)];
        if self.lost.is_none() {
            sources.push((Source::Launcher, stdin, PollFlags::IN));
        }
        if !self.outgoing.is_empty() && self.lost.is_none() {
            sources.push((Source::Room, rustix::stdio::stdout(), PollFlags::OUT));
        }
        let has_room = self.outgoing.len() < KEPT;
        for (rank, i) in self.ranks.iter().zip(0..) {
            sources.extend(rank.sources(has_room).map(|(source, fd, flags)| (source(i), fd, flags)));
        }
        let mut fds: Vec<PollFd<'_>> =
            sources.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let pause = Duration::from_millis(if self.is_ending() { 20 } else { 500 });
        let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: pause.as_nanos() as _ };
        match poll(&mut fds, Some(&pause)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(AgentError::Call("poll", errno)),
        }
        Ok(fds
            .iter()
            .zip(&sources)
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, (source, ..))| *source)
            .collect())
    }

    /// Whether something is due soon that no descriptor reports.
    fn is_ending(&self) -> bool {
        self.killed || self.lost.is_some() || self.ranks.iter().any(|rank| rank.end.is_some() && !rank.reported)
    }

    fn receive(&mut self) {
        let mut bytes = [0; 16 << 10];
        match rustix::io::read(rustix::stdio::stdin(), &mut bytes) {
            Ok(0) => return self.lose_launcher(),
            Ok(n) => self.incoming.push(&bytes[..n]),
            Err(Errno::INTR | Errno::AGAIN) => return,
            Err(_) => return self.lose_launcher(),
        }
        self.last_received = Instant::now();
        loop {
            match self.incoming.next() {
                Ok(Some(Frame::Words(words))) => self.obey(words),
                Ok(Some(Frame::Bytes { rank, bytes, .. })) => {
                    if let Some(running) = self.rank(rank) {
                        running.input.raw(&bytes);
                    }
                }
                Ok(None) => return,
                Err(_) => return self.lose_launcher(),
            }
        }
    }

    fn obey(&mut self, words: ToAgent) {
        match words {
            ToAgent::Check(part) if !self.started => {
                let answer = match check::check(&part, &self.programs) {
                    Ok(()) => ToLauncher::Able,
                    Err((text, status)) => ToLauncher::Unable { text, status },
                };
                self.part = part;
                self.send(&answer);
            }
            ToAgent::Start if !self.started => self.start(),
            ToAgent::Pmi { rank, line } => {
                if let Some(running) = self.rank(rank) {
                    running.answer(&line);
                }
            }
            ToAgent::InputEnd { rank } => {
                if let Some(running) = self.rank(rank) {
                    running.input_ends = true;
                    running.feed();
                }
            }
            ToAgent::Signal(number) => self.signal(number),
            ToAgent::Kill => self.kill(),
            ToAgent::Quiet(quiet) => self.quiet = quiet,
            ToAgent::Check(_) | ToAgent::Start | ToAgent::Beat => {}
        }
    }

    fn rank(&mut self, rank: u32) -> Option<&mut Running> {
        self.ranks.iter_mut().find(|running| running.rank == rank)
    }

    fn start(&mut self) {
        self.started = true;
        for i in 0..self.part.ranks.len() {
            match Running::start(&self.part, &self.part.ranks[i], &self.exec) {
                Ok(running) => self.ranks.push(running),
                Err(text) => {
                    self.send(&ToLauncher::Unable { text, status: check::NOT_STARTED });
                    return self.kill();
                }
            }
        }
        let pids = self.ranks.iter().map(|running| (running.rank, running.pid.as_raw_nonzero().get() as u32)).collect();
        self.send(&ToLauncher::Started { pids });
    }

    fn take_signals(&mut self) {
        let mut info = [0; 128];
        while let Ok(n @ 1..) = rustix::io::read(&self.signals, &mut info) {
            // `signalfd_siginfo` begins with the signal.
            let number = i32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
            if n >= 4 && number != libc::SIGCHLD {
                // Whoever ends the agent ends what it has started.
                self.lose_launcher();
            }
        }
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let end =
                status.exit_status().map_or_else(|| End::Signal(status.terminating_signal().unwrap_or(0)), End::Code);
            if let Some(running) = self.ranks.iter_mut().find(|running| running.pid == pid) {
                running.ended(end);
            }
        }
    }

    fn carry(&mut self, i: usize, channel: Channel) {
        let (rank, bytes) = (self.ranks[i].rank, self.ranks[i].read(channel));
        if !bytes.is_empty() && self.lost.is_none() {
            self.outgoing.bytes(channel, rank, &bytes);
            self.last_sent = Instant::now();
        }
    }

    fn carry_pmi(&mut self, i: usize) {
        let rank = self.ranks[i].rank;
        for line in self.ranks[i].lines() {
            self.send(&ToLauncher::Pmi { rank, line });
        }
    }

    fn feed(&mut self, i: usize) {
        let rank = self.ranks[i].rank;
        if self.ranks[i].feed() {
            self.send(&ToLauncher::InputTaken { rank });
        }
    }

    fn signal(&self, number: i32) {
        // A number that is no signal is ignored.
        let Some(signal) = Signal::from_named_raw(number) else { return };
        for running in self.ranks.iter().filter(|running| running.end.is_none()) {
            // A rank leads a group of its own, with what it has started.
            let _ = rustix::process::kill_process_group(running.pid, signal);
        }
    }

    fn kill(&mut self) {
        self.killed = true;
        self.signal(libc::SIGKILL);
        self.over |= !self.started;
    }

    fn lose_launcher(&mut self) {
        if self.lost.is_none() {
            self.lost = Some(Instant::now());
            self.signal(libc::SIGTERM);
            // A stopped rank must receive it.
            self.signal(libc::SIGCONT);
        }
        self.over |= !self.started;
    }

    fn keep_time(&mut self) {
        if self.lost.is_some_and(|since| since.elapsed() > GRACE) && !self.killed {
            self.kill();
        }
        if self.last_sent.elapsed() > Duration::from_secs(BEAT) {
            self.send(&ToLauncher::Beat);
        }
        if !self.quiet && self.last_received.elapsed() > Duration::from_secs(SILENCE) {
            self.lose_launcher();
        }
    }

    /// Reports ranks that have ended once their output is through; and when all have, that nothing is left.
    fn report_ends(&mut self) {
        for i in 0..self.ranks.len() {
            let running = &mut self.ranks[i];
            let Some((end, since)) = running.end else { continue };
            if running.reported || (!running.is_silent() && since.elapsed() < LAST_WORDS && !self.killed) {
                continue;
            }
            running.reported = true;
            let words = ToLauncher::Exited { rank: running.rank, end };
            self.send(&words);
        }
        let all = self.started && self.ranks.iter().all(|running| running.reported);
        if all && !self.over && (self.killed || self.ranks.len() == self.part.ranks.len()) {
            self.left.remove();
            self.send(&ToLauncher::Over);
            self.over = true;
        }
    }
}
