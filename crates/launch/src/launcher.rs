//! The launcher: one loop over the agents of a job, the terminal and the clock.

mod ending;
mod host;
mod input;
mod output;
mod plain;
mod signals;

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::agent::NOT_STARTED;
use crate::command_line::Typed;
use crate::frame::{Channel, Frame};
use crate::job::{JobError, Place};
use crate::pmi::{self, Effect};
use crate::words::{End, Part, Rank, ToAgent, ToLauncher, VERSION};
use ending::Ending;
use host::{Host, State};
use input::Stdin;
use output::Output;
use plain::plain;
use signals::{Meant, Signals};

/// Why no job ran.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// It cannot be laid out.
    #[error(transparent)]
    Job(#[from] JobError),
    /// What leads to a host cannot be started.
    #[error("{0}: {1}")]
    Host(String, String),
    /// A system call failed.
    #[error("{0}: {1}")]
    Call(&'static str, Errno),
}

/// Runs the job; its exit status. `own`: the command whose `agent` is an agent. `print`: a line for the user.
pub fn run(typed: &Typed, own: PathBuf, print: fn(&str)) -> Result<i32, LaunchError> {
    let places = typed.job.places()?;
    let mut launcher = Launcher::new(typed, &places, own, print)?;
    while !launcher.is_over() {
        launcher.run_once()?;
    }
    Ok(launcher.conclude())
}

/// What is known of a process.
struct Process {
    host: usize,
    joined: bool,
    finalized: bool,
    end: Option<End>,
}

#[derive(Clone, Copy)]
enum Source {
    Agent(usize),
    Errors(usize),
    Room(usize),
    Signals,
    Input,
}

struct Launcher<'t> {
    typed: &'t Typed,
    print: fn(&str),
    hosts: Vec<Host>,
    processes: Vec<Process>,
    pmi: pmi::Server,
    output: Output,
    input: Stdin,
    signals: Signals,
    ending: Ending,
    began: Instant,
    running: bool,
}

impl<'t> Launcher<'t> {
    fn new(typed: &'t Typed, places: &[Place], own: PathBuf, print: fn(&str)) -> Result<Self, LaunchError> {
        let signals = Signals::take().map_err(|errno| LaunchError::Call("signalfd", errno))?;
        let names = typed.job.hosts_or_here();
        let used = |h: usize| places.iter().any(|place| place.host as usize == h);
        let used: Vec<usize> = (0..names.len()).filter(|&h| used(h)).collect();
        let node = |place: &Place| used.iter().position(|&h| h == place.host as usize).unwrap_or(0);
        let mut hosts = Vec::new();
        for (n, &h) in used.iter().enumerate() {
            let part = part(typed, places, n, |place| node(place) == n);
            let host = Host::contact(&names[h].name, typed.agent.as_deref(), &own, part);
            hosts.push(
                host.map_err(|(command, error)| {
                    LaunchError::Host(names[h].name.clone(), format!("{command}: {error}"))
                })?,
            );
        }
        let nodes: Vec<u32> = places.iter().map(|place| node(place) as u32).collect();
        let processes =
            places.iter().map(|place| Process { host: node(place), joined: false, finalized: false, end: None });
        Ok(Self {
            typed,
            print,
            hosts,
            processes: processes.collect(),
            pmi: pmi::Server::new(name(), places.iter().map(|place| place.app).collect(), pmi::mapping(&nodes)),
            output: Output::new(typed, places.len()),
            input: Stdin::new(typed.input, places.len()),
            signals,
            ending: Ending::default(),
            began: Instant::now(),
            running: false,
        })
    }

    fn is_over(&self) -> bool {
        self.hosts.iter().all(|host| host.is_over()) || self.ending.is_given_up()
    }

    fn run_once(&mut self) -> Result<(), LaunchError> {
        for source in self.wait()? {
            match source {
                Source::Agent(h) => self.receive(h),
                Source::Errors(h) => self.hosts[h].read_errors(),
                Source::Room(h) => self.hosts[h].flush(),
                Source::Signals => self.take_signals(),
                Source::Input => self.take_input(),
            }
        }
        self.keep_time();
        self.hosts.iter_mut().for_each(Host::flush);
        Ok(())
    }

    fn wait(&self) -> Result<Vec<Source>, LaunchError> {
        let mut sources: Vec<(Source, BorrowedFd<'_>, PollFlags)> =
            vec![(Source::Signals, self.signals.fd(), PollFlags::IN)];
        let has_room = self.output.has_room();
        for (host, h) in self.hosts.iter().zip(0..) {
            let agent = host.from.as_ref().filter(|_| has_room).map(|fd| (Source::Agent(h), fd.as_fd(), PollFlags::IN));
            let errors = host.errors.as_ref().map(|fd| (Source::Errors(h), fd.as_fd(), PollFlags::IN));
            let room =
                host.to.as_ref().filter(|_| host.has_more()).map(|fd| (Source::Room(h), fd.as_fd(), PollFlags::OUT));
            sources.extend([agent, errors, room].into_iter().flatten());
        }
        if self.running && self.input.is_wanted() {
            sources.push((Source::Input, rustix::stdio::stdin(), PollFlags::IN));
        }
        let mut fds: Vec<_> = sources.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let soon = !has_room || self.ending.is_under_way();
        let pause = Timespec { tv_sec: 0, tv_nsec: if soon { 20_000_000 } else { 500_000_000 } };
        match poll(&mut fds, Some(&pause)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(LaunchError::Call("poll", errno)),
        }
        Ok(fds
            .iter()
            .zip(&sources)
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, (source, ..))| *source)
            .collect())
    }

    fn receive(&mut self, h: usize) {
        if !self.hosts[h].read() {
            return self.lose(h);
        }
        loop {
            match self.hosts[h].incoming.next() {
                Ok(Some(Frame::Words(words))) => self.learn(h, words),
                Ok(Some(Frame::Bytes { channel, rank, bytes })) => {
                    if self.is_of(rank, h) && channel != Channel::Input {
                        self.output.take(rank, channel, &bytes);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    self.hosts[h].words = error.to_string();
                    return self.lose(h);
                }
            }
        }
    }

    /// Whether a rank runs on a host, which may then report about it.
    fn is_of(&self, rank: u32, h: usize) -> bool {
        self.processes.get(rank as usize).is_some_and(|process| process.host == h)
    }

    fn learn(&mut self, h: usize, words: ToLauncher) {
        let state = self.hosts[h].state;
        match words {
            ToLauncher::Hello { version, madrigal, host } if state == State::Contacting => {
                self.greet(h, version, &madrigal, &host)
            }
            ToLauncher::Able if state == State::Checking => {
                self.hosts[h].enter(State::Able);
                if self.hosts.iter().all(|host| host.state == State::Able) && !self.ending.is_under_way() {
                    self.hosts.iter_mut().for_each(|host| host.start());
                }
            }
            ToLauncher::Unable { text, status } => {
                (self.print)(&format!("{}: {text}", self.hosts[h].name));
                self.end(status, libc::SIGKILL);
            }
            ToLauncher::Started { pids } if state == State::Starting => self.note_start(h, &pids),
            ToLauncher::Pmi { rank, line } if self.is_of(rank, h) => self.speak_pmi(rank, &line),
            ToLauncher::InputTaken { rank } => self.input.taken(rank),
            ToLauncher::Exited { rank, end } if self.is_of(rank, h) => self.note_end(rank, end),
            ToLauncher::Over => self.hosts[h].enter(State::Over),
            // A beat; or a message not allowed now, or not for this rank.
            _ => {}
        }
    }

    fn greet(&mut self, h: usize, version: u32, madrigal: &str, name: &str) {
        let host = &mut self.hosts[h];
        if version != VERSION {
            let text = format!("its madrigal {madrigal} does not speak with this one: install the same on both");
            (self.print)(&format!("{}: {text}", host.name));
            return self.end(NOT_STARTED, libc::SIGKILL);
        }
        if self.typed.verbose {
            (self.print)(&format!("{}: an agent answers on {}", host.name, plain(name)));
        }
        host.check();
    }

    fn note_start(&mut self, h: usize, pids: &[(u32, u32)]) {
        self.hosts[h].enter(State::Running);
        if self.typed.verbose {
            let text: Vec<_> = pids.iter().map(|(rank, pid)| format!("rank {rank} is process {pid}")).collect();
            (self.print)(&format!("{}: {}", self.hosts[h].name, text.join(", ")));
        }
        if self.hosts.iter().all(|host| matches!(host.state, State::Running | State::Over)) {
            self.running = true;
            for rank in self.input.others() {
                self.send(rank, &ToAgent::InputEnd { rank });
            }
        }
    }

    fn send(&mut self, rank: u32, words: &ToAgent) {
        if let Some(process) = self.processes.get(rank as usize) {
            self.hosts[process.host].outgoing.words(words);
        }
    }

    fn send_all(&mut self, words: &ToAgent) {
        for host in &mut self.hosts {
            host.outgoing.words(words);
            host.flush();
        }
    }

    fn speak_pmi(&mut self, rank: u32, line: &str) {
        for effect in self.pmi.line(rank, line) {
            match effect {
                Effect::Answer(rank, line) => self.send(rank, &ToAgent::Pmi { rank, line }),
                Effect::Joined(rank) => self.processes[rank as usize].joined = true,
                Effect::Finalized(rank) => self.processes[rank as usize].finalized = true,
                Effect::Abort { rank, status, message } => {
                    let host = &self.hosts[self.processes[rank as usize].host].name;
                    (self.print)(&format!("rank {rank} on {host} ended the job with {status}: {}", plain(&message)));
                    self.end(status & 255, libc::SIGTERM);
                }
                Effect::Broken(rank, text) => (self.print)(&format!("rank {rank}: {text}")),
            }
        }
    }

    fn note_end(&mut self, rank: u32, end: End) {
        let process = &mut self.processes[rank as usize];
        process.end = Some(end);
        let host = &self.hosts[process.host].name;
        let (alone, bad) = (!process.finalized, end.status() != 0);
        self.output.finish(rank);
        if bad && !self.ending.is_under_way() {
            let last = self.output.last_words(rank).map(|text| format!(": {}", plain(text))).unwrap_or_default();
            (self.print)(&format!("rank {rank} on {host} {}{last}", ended(end)));
            self.ending.status.get_or_insert(end.status());
        }
        let awaited = !bad && alone && self.pmi.awaited().contains(&rank);
        if awaited {
            (self.print)(&format!(
                "rank {rank} on {host} has ended, and others wait for it: it did not take part in their MPI job"
            ));
        }
        if (bad && alone) || awaited {
            self.end(if bad { end.status() } else { 1 }, libc::SIGTERM);
        }
    }

    /// Ends the job: `first` is what its processes are sent at once.
    fn end(&mut self, status: i32, first: i32) {
        self.ending.begin(status);
        self.strike(first);
    }

    fn strike(&mut self, signal: i32) {
        if signal == libc::SIGKILL {
            self.ending.killed();
            self.send_all(&ToAgent::Kill);
            // A host that has not answered yet has nothing to end.
            self.hosts.iter_mut().filter(|host| host.state == State::Contacting).for_each(Host::drop_link);
        } else {
            self.send_all(&ToAgent::Signal(signal));
        }
    }

    /// An agent's link is broken.
    fn lose(&mut self, h: usize) {
        let host = &mut self.hosts[h];
        host.drop_link();
        if host.state == State::Over {
            return;
        }
        let before = host.state;
        host.enter(State::Over);
        if !self.ending.is_under_way() {
            (self.print)(&format!("{}: {}", host.name, host.complaint(before)));
            self.end(if before == State::Running { 1 } else { NOT_STARTED }, libc::SIGTERM);
        }
    }

    fn take_signals(&mut self) {
        for meant in self.signals.read() {
            match meant {
                Meant::End(signal) if self.running => {
                    self.ending.begin(128 + signal);
                    let again = self.ending.interrupted_twice();
                    self.strike(if again { libc::SIGKILL } else { signal });
                }
                Meant::End(signal) => self.end(128 + signal, libc::SIGKILL),
                Meant::Forward(signal) => self.send_all(&ToAgent::Signal(signal)),
                Meant::Stop => {
                    self.send_all(&ToAgent::Signal(libc::SIGTSTP));
                    self.send_all(&ToAgent::Quiet(true));
                    signals::stop();
                    self.send_all(&ToAgent::Quiet(false));
                    self.send_all(&ToAgent::Signal(libc::SIGCONT));
                    self.hosts.iter_mut().for_each(|host| host.last_received = Instant::now());
                }
            }
        }
    }

    fn take_input(&mut self) {
        let (targets, bytes) = self.input.read();
        for rank in targets {
            let host = &mut self.hosts[self.processes[rank as usize].host];
            match bytes.is_empty() {
                true => host.outgoing.words(&ToAgent::InputEnd { rank }),
                false => host.outgoing.bytes(Channel::Input, rank, &bytes),
            }
        }
    }

    fn keep_time(&mut self) {
        if let Some(signal) = self.ending.due() {
            self.strike(signal);
        }
        if let Some(limit) = self.typed.limit.filter(|limit| self.began.elapsed() > *limit)
            && !self.ending.is_under_way()
        {
            (self.print)(&format!("the job has taken longer than {} s, and is ended", limit.as_secs()));
            self.end(ending::TIME_IS_UP, libc::SIGTERM);
        }
        if self.output.is_unread() && !self.ending.is_under_way() {
            self.end(128 + libc::SIGPIPE, libc::SIGTERM);
        }
        if !self.output.has_room() {
            // Nothing is read from them meanwhile.
            self.hosts.iter_mut().for_each(|host| host.last_received = Instant::now());
        }
        for h in 0..self.hosts.len() {
            self.hosts[h].beat();
            if self.hosts[h].is_late() {
                self.lose(h);
            }
        }
    }

    /// Everything has ended: the status of the job.
    fn conclude(mut self) -> i32 {
        self.output.close();
        for host in self.hosts.iter().filter(|host| host.state != State::Over) {
            (self.print)(&format!("{}: its agent has not said that everything there is ended: look there", host.name));
        }
        self.ending.status.unwrap_or(0)
    }
}

/// What a host must start.
fn part(typed: &Typed, places: &[Place], node: usize, here: impl Fn(&Place) -> bool) -> Part {
    let ranks = places.iter().zip(0..).filter(|(place, _)| here(place)).zip(0..);
    let ranks = ranks.map(|((place, rank), local)| Rank { rank, local, app: place.app }).collect();
    let torch = typed.torch.then(|| host::meeting_point(&typed.job));
    Part { ranks, apps: typed.job.apps.clone(), size: places.len() as u32, node: node as u32, torch }
}

/// Of this job alone, on every host.
fn name() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    format!("madrigal-{:x}-{}-{:x}", since.as_nanos(), std::process::id(), madrigal_sys::process::random())
}

fn ended(end: End) -> String {
    match end {
        End::Code(code) => format!("ended with status {code}"),
        End::Signal(signal) => format!("was ended by signal {signal}"),
    }
}
