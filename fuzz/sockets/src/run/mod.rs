//! One run of a program: its processes started, plain or wrapped, and what each step gave.

mod asleep;
mod free;
mod quiet;
mod sequence;
mod tasks;

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::compare::Verdict;
use crate::op::ActorId;
use crate::program::{Program, Role, Side};
use crate::raw;
use crate::share::{Map, Seen};
use quiet::Quiet;

pub use tasks::{adopt_orphans, stop_on_signals, stopped};

/// How soon connections earn their rings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize, clap::ValueEnum)]
pub enum Mode {
    /// As for every program.
    Default,
    /// With the first byte.
    #[value(name = "eager-first")]
    Eager,
    /// With the first byte, sealed and earned again at random points.
    #[value(name = "eager-random")]
    Random,
}

/// Where things are, the same for all runs.
#[derive(Clone, Debug)]
pub struct Place {
    /// The program that is one process of a program.
    pub play: PathBuf,
    /// The library to preload.
    pub library: PathBuf,
    /// Whether the library compares checksums.
    pub check: bool,
    /// Whether processes may write to our standard error.
    pub loud: bool,
    /// Seconds after which what should be done is said to hang.
    pub patience: f64,
}

/// How a program is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct How {
    /// Which processes are wrapped.
    pub side: Side,
    /// How eagerly.
    pub mode: Mode,
}

/// What became of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fate {
    /// Its actor, or what it needs, was not free.
    Skipped,
    /// It was done when the step of this number was.
    Done(usize),
    /// It never was.
    Blocked,
}

/// A step and what it gave.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// What became of it.
    pub fate: Fate,
    /// What it gave.
    pub seen: Seen,
}

/// What ended a run before its time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Trouble {
    /// A step is not done where the plain one is.
    Stuck {
        /// Which.
        step: usize,
        /// What everybody does.
        threads: String,
    },
    /// A process is gone that should be there.
    Died {
        /// During which step.
        step: usize,
        /// Which process.
        process: u8,
    },
    /// Processes do not begin, or do not end.
    Unruly(String),
    /// A step differs from the plain one.
    Differs {
        /// Which.
        step: usize,
        /// How.
        how: String,
    },
}

/// A run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Transcript {
    /// Its steps.
    pub entries: Vec<Entry>,
    /// How the processes ended: exit status, or 1000 and the signal. None for those that were killed at the end.
    pub ends: Vec<Option<i32>>,
    /// The steps from here on were not made: plain they wait for something that never comes.
    pub cut: Option<usize>,
    /// From this step on nobody knows what has arrived, for the kernel holds something back.
    pub restless: Option<usize>,
    /// It went another way than the plain one, by a rule.
    pub apart: bool,
    /// What ended it before its time.
    pub trouble: Option<Trouble>,
}

/// Compares a step that is done with the plain one.
pub type Judge<'a> = dyn FnMut(usize, &Entry) -> Verdict + 'a;

/// One worker's place for runs, one after the other.
pub struct Bench {
    place: Place,
    map: Map,
    region: PathBuf,
    folder: PathBuf,
    quiet: Quiet,
    cpu: usize,
    /// A process of the run had connections in rings.
    rings: Cell<bool>,
}

/// How long a process or thread may take to begin.
const BEGIN_NS: u64 = 10_000_000_000;

static RUNS: AtomicU64 = AtomicU64::new(0);

impl Bench {
    /// A place below a folder of memory files.
    pub fn new(place: Place, cpu: usize) -> io::Result<Self> {
        let base = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        if number == 0 {
            sweep(&base);
        }
        let folder = base.join(format!("{FOLDERS}{}-{number}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let region = folder.join("region");
        let map = Map::create(&region)?;
        Ok(Self { place, map, region, folder, quiet: Quiet::open()?, cpu, rings: Cell::new(false) })
    }

    /// Changes what is known of the place.
    pub fn place_mut(&mut self) -> &mut Place {
        &mut self.place
    }

    /// Whether connections of the last run were in rings.
    pub fn rings(&self) -> bool {
        self.rings.get()
    }

    /// Runs a program. `plain` is what a plain run of it gave: it says for what to wait, and `judge` compares with it.
    pub fn run(
        &mut self,
        program: &Program,
        how: How,
        plain: Option<&Transcript>,
        judge: &mut Judge<'_>,
    ) -> Transcript {
        self.map.clear();
        self.rings.set(false);
        let text = serde_json::to_string(program).unwrap_or_default();
        self.map.set_text(&text);
        let run = (u64::from(std::process::id()) << 32) | RUNS.fetch_add(1, Ordering::Relaxed);
        self.map.run.store(run, Ordering::Relaxed);
        let shared = self.folder.join("shared");
        let _ = fs::remove_dir_all(&shared);
        tasks::pin(program.one_cpu.then_some(self.cpu));
        let mut crew = match Crew::start(self, program, how, &shared) {
            Ok(crew) => crew,
            Err(error) => {
                return Transcript { trouble: Some(Trouble::Unruly(error.to_string())), ..Transcript::default() };
            }
        };
        let mut transcript = if program.free {
            free::run(self, program, &mut crew, plain, judge)
        } else {
            sequence::run(self, program, &mut crew, plain, judge)
        };
        crew.end(self, program.processes.len(), &mut transcript);
        tasks::pin(None);
        transcript
    }
}

/// How the names of all folders begin; then comes a process.
const FOLDERS: &str = "madrigal-fuzz-";

/// Removes what killed fuzzers have left.
fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(FOLDERS)?.split('-').next()?.parse().ok());
        if process.is_some_and(|process| !tasks::lives(process)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The processes of a run.
pub(crate) struct Crew {
    children: Vec<(u8, Child)>,
    group: i32,
    /// Those that were told to end: number and process.
    pub(crate) leaving: Vec<(u8, i32)>,
}

impl Crew {
    fn start(bench: &Bench, program: &Program, how: How, shared: &Path) -> io::Result<Self> {
        let mut crew = Self { children: Vec::new(), group: 0, leaving: Vec::new() };
        for (process, what) in program.processes.iter().enumerate().filter(|(_, what)| what.initial) {
            let Some(actor) = program.main_of(process as u8) else { continue };
            let mut command = Command::new(&bench.place.play);
            command.arg(&bench.region).arg(actor.to_string()).arg("0").arg("-");
            command.env_clear().env("PATH", "/usr/bin:/bin").env("MADRIGAL_DIR", shared);
            if is_wrapped(what.role, how.side) {
                command.env("LD_PRELOAD", &bench.place.library);
                match how.mode {
                    Mode::Default => {}
                    Mode::Eager => drop(command.env("MADRIGAL_EAGER", "first")),
                    Mode::Random => drop(command.env("MADRIGAL_EAGER", format!("random:{}", program.seed))),
                }
                if bench.place.check {
                    command.env("MADRIGAL_CHECK", "1");
                }
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(crew.group);
            command.stderr(if bench.place.loud { Stdio::inherit() } else { Stdio::null() });
            let child = command.spawn()?;
            if crew.group == 0 {
                crew.group = child.id() as i32;
            }
            crew.children.push((process as u8, child));
        }
        Ok(crew)
    }

    /// Whether a process that was there from the start has ended.
    pub(crate) fn ended(&mut self, process: u8) -> bool {
        let child = self.children.iter_mut().find(|(number, _)| *number == process);
        child.is_some_and(|(_, child)| !matches!(child.try_wait(), Ok(None)))
    }

    /// Whether such a process has not ended yet.
    pub(crate) fn lives(&mut self, process: u8) -> bool {
        self.children.iter().any(|(number, _)| *number == process) && !self.ended(process)
    }

    /// Waits until the first thread of a process is there.
    pub(crate) fn await_begin(
        &mut self,
        bench: &Bench,
        program: &Program,
        actor: ActorId,
        step: usize,
    ) -> Result<(), Trouble> {
        let begin = raw::now();
        loop {
            let bell = bench.map.bell.load(Ordering::SeqCst);
            if bench.map.cells[actor as usize].thread.load(Ordering::SeqCst) != 0 {
                return Ok(());
            }
            let process = program.actors[actor as usize].process;
            if self.ended(process) {
                return Err(Trouble::Died { step, process });
            }
            if raw::now() - begin > BEGIN_NS || stopped() {
                return Err(Trouble::Unruly(format!("actor {actor} does not begin")));
            }
            raw::futex_wait(&bench.map.bell, bell, 2_000_000);
        }
    }

    /// Waits until all are there that are from the start.
    pub(crate) fn await_all(&mut self, bench: &Bench, program: &Program) -> Result<Vec<ActorId>, Trouble> {
        let initial = program.processes.iter().enumerate().filter(|(_, what)| what.initial);
        let mains: Vec<_> = initial.filter_map(|(process, _)| program.main_of(process as u8)).collect();
        mains.iter().try_for_each(|actor| self.await_begin(bench, program, *actor, 0))?;
        Ok(mains)
    }

    /// Waits for those that were told to end, ends the others, and notes how all went.
    fn end(&mut self, bench: &Bench, processes: usize, transcript: &mut Transcript) {
        let mut hangs = String::new();
        for (process, number) in &self.leaving {
            if transcript.trouble.is_none() && !tasks::await_end(*number, (bench.place.patience * 1000.0) as i32) {
                hangs += &format!("process {process} does not exit\n{}", tasks::describe(*number));
            }
        }
        tasks::kill(-self.group, libc::SIGKILL);
        transcript.ends = vec![None; processes];
        for (process, child) in &mut self.children {
            let status = child.wait().ok().map(std::os::unix::process::ExitStatusExt::into_raw);
            transcript.ends[*process as usize] = status.map(ending);
        }
        for _ in 0..2000 {
            for (number, status) in tasks::reap(self.group) {
                if let Some((process, _)) = self.leaving.iter().find(|(_, leaving)| *leaving == number) {
                    transcript.ends[*process as usize] = Some(ending(status));
                }
            }
            if !tasks::group_lives(self.group) {
                break;
            }
            raw::sleep_us(50);
        }
        if !hangs.is_empty() {
            transcript.trouble = Some(Trouble::Unruly(hangs));
        }
    }
}

/// A status of wait(2): what was passed to exit, or 1000 and the signal.
fn ending(status: i32) -> i32 {
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 1000 + libc::WTERMSIG(status) }
}

/// Whether a process is wrapped.
fn is_wrapped(role: Role, side: Side) -> bool {
    match side {
        Side::Plain => false,
        Side::Both => true,
        Side::Client => role == Role::Client,
        Side::Server => role == Role::Server,
    }
}
