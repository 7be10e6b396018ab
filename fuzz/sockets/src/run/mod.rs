//! One run of a program: its processes started, plain or wrapped, and what each step gave.

mod asleep;
mod bench;
mod crew;
mod free;
mod quiet;
mod sequence;
mod tasks;
mod transcript;

use std::fs;
use std::sync::atomic::Ordering;

use crate::program::Program;
use bench::RUNS;
use crew::Crew;

pub use bench::{Bench, How, Judge, Mode, Place};
pub use tasks::{adopt_orphans, stop_on_signals, stopped};
pub use transcript::{Entry, Fate, Transcript, Trouble};

impl Bench {
    /// Runs a program. `plain` is the result of a plain run: it decides what to wait for, and `judge` compares with it.
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
