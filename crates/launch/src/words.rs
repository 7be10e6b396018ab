//! What a launcher and an agent send each other.

use serde::{Deserialize, Serialize};

/// Of these words; another one is not understood.
pub(crate) const VERSION: u32 = 1;

/// How often both send something, and how long one may be silent before it counts as lost, in seconds.
pub(crate) const BEAT: u64 = 2;
pub(crate) const SILENCE: u64 = 10;

/// From the launcher.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToAgent {
    /// What must be started: report whether it can be.
    Check(Part),
    /// All agents can: go.
    Start,
    /// A line for a rank that speaks PMI.
    Pmi {
        rank: u32,
        line: String,
    },
    /// Nothing more comes for its standard input.
    InputEnd {
        rank: u32,
    },
    /// For every rank, by its number on Linux.
    Signal(i32),
    /// End everything at once: whatever is left is killed.
    Kill,
    /// The launcher is about to stop, or has gone on: its silence means nothing, or something again.
    Quiet(bool),
    Beat,
}

/// From an agent.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToLauncher {
    Hello {
        version: u32,
        madrigal: String,
        host: String,
    },
    /// Everything is there.
    Able,
    /// Something is not, in the agent's own words; the status that a shell would give.
    Unable {
        text: String,
        status: i32,
    },
    Started {
        pids: Vec<(u32, u32)>,
    },
    Pmi {
        rank: u32,
        line: String,
    },
    /// A rank has taken what it was sent of the standard input.
    InputTaken {
        rank: u32,
    },
    Exited {
        rank: u32,
        end: End,
    },
    /// Every rank has ended, and left nothing behind.
    Over,
    Beat,
}

/// How a process ended.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself, with this status.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl End {
    /// As a shell reports it: 128 and the signal.
    pub fn status(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

/// What one agent must start.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Part {
    /// What each of the agent's ranks runs.
    pub(crate) ranks: Vec<Rank>,
    pub(crate) apps: Vec<App>,
    /// Ranks of the whole job.
    pub(crate) size: u32,
    /// Which agent this is.
    pub(crate) node: u32,
    /// What torchrun would set is set, too: where the first rank is.
    pub(crate) torch: Option<String>,
}

/// One process.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rank {
    pub(crate) rank: u32,
    /// Among those of its agent.
    pub(crate) local: u32,
    pub(crate) app: u32,
}

/// One program of a job.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, Default)]
pub struct App {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Variables, besides those of the agent's own environment.
    pub env: Vec<(String, String)>,
    /// Its folder; without, the launcher's, where a host has that, and the user's own elsewhere.
    pub folder: Option<String>,
    /// How many processes run it; without, one for each slot.
    pub count: Option<u32>,
    /// Run as it is, not by `madrigal exec`.
    pub plain: bool,
}
