//! The result of a run: each step, and how the processes ended.

use serde::{Deserialize, Serialize};

use crate::share::Seen;

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
        /// The state of every thread.
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
    /// The steps from here on were not made: in the plain run they wait for something that never comes.
    pub cut: Option<usize>,
    /// From this step on it is unknown what has arrived, since the kernel holds something back.
    pub restless: Option<usize>,
    /// It went another way than the plain one, by a rule.
    pub apart: bool,
    /// What ended it before its time.
    pub trouble: Option<Trouble>,
}
