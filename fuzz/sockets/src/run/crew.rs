//! The processes of a run, from their start to their end.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;

use super::bench::{Bench, How, Mode};
use super::tasks::{self, stopped};
use super::transcript::{Transcript, Trouble};
use crate::op::ActorId;
use crate::program::{Program, Role, Side};
use crate::raw;

/// How long a process or thread may take to begin.
const BEGIN_NS: u64 = 10_000_000_000;

/// The processes of a run.
pub(super) struct Crew {
    children: Vec<(u8, Child)>,
    group: i32,
    /// Those that got the command to end: number and process.
    pub(super) leaving: Vec<(u8, i32)>,
}

impl Crew {
    pub(super) fn start(bench: &Bench, program: &Program, how: How, shared: &Path) -> io::Result<Self> {
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
    pub(super) fn ended(&mut self, process: u8) -> bool {
        let child = self.children.iter_mut().find(|(number, _)| *number == process);
        child.is_some_and(|(_, child)| !matches!(child.try_wait(), Ok(None)))
    }

    /// Whether such a process has not ended yet.
    pub(super) fn lives(&mut self, process: u8) -> bool {
        self.children.iter().any(|(number, _)| *number == process) && !self.ended(process)
    }

    /// Waits until the first thread of a process is there.
    pub(super) fn await_begin(
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
    pub(super) fn await_all(&mut self, bench: &Bench, program: &Program) -> Result<Vec<ActorId>, Trouble> {
        let initial = program.processes.iter().enumerate().filter(|(_, what)| what.initial);
        let mains: Vec<_> = initial.filter_map(|(process, _)| program.main_of(process as u8)).collect();
        mains.iter().try_for_each(|actor| self.await_begin(bench, program, *actor, 0))?;
        Ok(mains)
    }

    /// Waits for those that got the command to end, ends the others, and records how all ended.
    pub(super) fn end(&mut self, bench: &Bench, processes: usize, transcript: &mut Transcript) {
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
