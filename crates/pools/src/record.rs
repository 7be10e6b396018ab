//! What is in the log of a pool.

use serde::{Deserialize, Serialize};

use crate::view::MemberId;

/// A request of a member, or what a daemon has seen, in the log of a pool.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The daemon that wrote it: a random number of the time during which it was never given up.
    pub daemon: u64,
    /// The program's session with that daemon.
    pub session: u64,
    /// The number of the program's request; 0 of what it did not ask for.
    pub request: u64,
    /// What it is.
    pub entry: Entry,
}

/// The content of a record.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// The session wants to be a member.
    Join {
        /// How many members a closed pool is to have; `None`: it is open.
        size: Option<u32>,
        /// The rank that it has from its launcher.
        rank: Option<u32>,
        /// Its host and site.
        location: String,
        /// What it brings along.
        blob: Vec<u8>,
    },
    /// It leaves.
    Leave,
    /// It died: its socket has ended, or its process.
    Died,
    /// It wants to win an election, or to know who has.
    Elect {
        /// The election.
        name: String,
        /// The winner stays the winner when it has left or died.
        for_life: bool,
    },
    /// It sends a text.
    Signal {
        /// To these; if empty, to all.
        to: Vec<MemberId>,
        /// The text.
        text: String,
    },
    /// It sets an attribute, or takes it away.
    Set {
        /// Of itself; else of the pool.
        own: bool,
        /// Its name.
        key: String,
        /// `None`: it is taken away.
        value: Option<Vec<u8>>,
    },
    /// It believes that a member has died. The daemon of that one answers with [`Entry::Died`] of its session, or with [`Entry::Alive`].
    Suspect {
        /// Which.
        member: MemberId,
    },
    /// The daemon that wrote it is there, and so is the member that was suspected.
    Alive,
    /// It ends the pool for all.
    Terminate,
    /// A daemon was given up: all its members are dead.
    Lost {
        /// Which.
        daemon: u64,
    },
}

/// Why a request is refused.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// All members of a closed pool have joined.
    #[error("the pool is closed: all of its {size} members have joined")]
    Closed {
        /// How many.
        size: u32,
    },
    /// It was terminated.
    #[error("the pool was terminated")]
    Terminated,
    /// Its members have joined it as another kind of pool.
    #[error("the pool is {has}, and {wanted} was asked for")]
    OtherKind {
        /// What it is.
        has: String,
        /// What was wanted.
        wanted: String,
    },
    /// Another member has that rank, or there is no such rank, or others have none.
    #[error("rank {rank} cannot be had: {why}")]
    Rank {
        /// Which.
        rank: u32,
        /// Why.
        why: String,
    },
    /// The name, text or count is none.
    #[error("{0}")]
    Invalid(String),
    /// The pool has no room for it.
    #[error("the pool is full: {0}")]
    Full(String),
    /// The election was begun with another rule.
    #[error("election {name} was begun with another rule: its winner {rule}")]
    OtherRule {
        /// Which.
        name: String,
        /// The rule that it has.
        rule: String,
    },
    /// There is no such member.
    #[error("the pool has no member {0}")]
    NoMember(MemberId),
    /// Who asks is not a member, or not any more.
    #[error("this process is not a member of the pool")]
    NotMember,
    /// The store of the pool cannot be reached, or gave this daemon up.
    #[error("{0}")]
    Store(String),
}
