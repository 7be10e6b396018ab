//! Layer 2: the choice of a path between two processes, and the reasons.
//!
//! [`select`] is a pure function: what is known of the pair and what the user prefers in, the best path and every rejected candidate with
//! its reason out. Nothing is probed, remembered or logged here; the caller gathers the facts. [`route`] does the same for two hosts.
//!
//! ```
//! use madrigal_base::{config::Methods, ids::Reach};
//! use madrigal_selector::{Candidate, Pair, Preferences, select};
//!
//! let candidates = [Candidate::new("shm", Reach::Host, true), Candidate::new("tcp", Reach::Network, false)];
//! let pair = Pair { same_process: false, same_host: false, same_user: true };
//! let choice = select(pair, &candidates, &Preferences::default()).unwrap();
//! assert_eq!(choice.path.to_string(), "tcp");
//! assert_eq!(choice.to_string(), "tcp, because it is the best of 1 possible; not shm: the processes are on different hosts");
//! ```
#![forbid(unsafe_code)]

pub mod route;

use core::fmt;

use madrigal_base::config::Methods;
use madrigal_base::ids::Reach;
use madrigal_base::locator::Path;

/// What is known of two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// They are one process.
    pub same_process: bool,
    /// They share a kernel and a shared directory.
    pub same_host: bool,
    /// They belong to one user.
    pub same_user: bool,
}

/// A driver both sides may have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Its name.
    pub driver: String,
    /// How far it carries.
    pub reach: Reach,
    /// Whether it joins processes of one user only.
    pub one_user: bool,
    /// Why it cannot work on our side, in its own words; `None`: it can.
    pub unusable: Option<String>,
    /// Whether the peer listens by it.
    pub offered: bool,
}

impl Candidate {
    /// A driver that works here and is offered by the peer.
    pub fn new(driver: &str, reach: Reach, one_user: bool) -> Self {
        Self { driver: driver.to_owned(), reach, one_user, unusable: None, offered: true }
    }
}

/// What the user prefers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Preferences {
    /// Methods that may be used, and their order.
    pub methods: Methods,
}

impl Default for Preferences {
    /// Everything may be used, nearest first.
    fn default() -> Self {
        Self { methods: Methods::Except(Vec::new()) }
    }
}

/// Why a candidate was not chosen.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The user forbade it.
    #[error("the preferences forbid it")]
    Forbidden,
    /// It works inside one process only.
    #[error("the processes are different")]
    OtherProcess,
    /// It works on one host only.
    #[error("the processes are on different hosts")]
    OtherHost,
    /// It joins processes of one user only.
    #[error("the processes belong to different users")]
    OtherUser,
    /// It cannot work here; the driver has the reason.
    #[error("it cannot work here: {0}")]
    Unusable(String),
    /// The peer does not listen by it.
    #[error("the peer does not offer it")]
    NotOffered,
    /// It would do, but another is better.
    #[error("{0} is better")]
    Worse(String),
}

/// A candidate that was not chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rejected {
    /// Which driver.
    pub driver: String,
    /// Why not.
    pub reason: Reason,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not {}: {}", self.driver, self.reason)
    }
}

/// What was chosen, and what was not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The path.
    pub path: Path,
    /// How many candidates would have done.
    pub possible: usize,
    /// Every other candidate, in the order given.
    pub rejected: Vec<Rejected>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, because it is the best of {} possible", self.path, self.possible)?;
        self.rejected.iter().try_for_each(|rejected| write!(f, "; {rejected}"))
    }
}

/// No candidate will do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoPath {
    /// Every candidate, in the order given.
    pub rejected: Vec<Rejected>,
}

impl core::error::Error for NoPath {}

impl fmt::Display for NoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no path")?;
        self.rejected.iter().try_for_each(|rejected| write!(f, "; {rejected}"))
    }
}

/// Chooses a path. Among the candidates that will do, the user's order decides; where the user gave none, the nearest reach; where
/// that is the same, the order given.
pub fn select(pair: Pair, candidates: &[Candidate], preferences: &Preferences) -> Result<Choice, NoPath> {
    let verdicts: Vec<_> =
        candidates.iter().map(|candidate| (candidate, verdict(pair, candidate, preferences))).collect();
    let possible = verdicts.iter().filter(|(_, verdict)| verdict.is_ok()).count();
    let rank = |candidate: &Candidate| (preferences.methods.rank(&candidate.driver), candidate.reach);
    let fit = verdicts.iter().enumerate().filter(|(_, (_, verdict))| verdict.is_ok());
    let best = fit
        .min_by_key(|(_, (candidate, _))| rank(candidate))
        .map(|(at, (candidate, _))| (at, candidate.driver.clone()));
    let reject = |(at, (candidate, verdict)): (usize, (&Candidate, Result<(), Reason>))| {
        let reason = match (verdict, &best) {
            (Err(reason), _) => reason,
            (Ok(()), Some((best, driver))) if *best != at => Reason::Worse(driver.clone()),
            (Ok(()), _) => return None,
        };
        Some(Rejected { driver: candidate.driver.clone(), reason })
    };
    let rejected = verdicts.into_iter().enumerate().filter_map(reject).collect();
    match best {
        Some((_, driver)) => Ok(Choice { path: Path::of_driver(&driver), possible, rejected }),
        None => Err(NoPath { rejected }),
    }
}

/// Whether a candidate will do: first by the user's settings, then by what cannot be changed, then by what might be.
fn verdict(pair: Pair, candidate: &Candidate, preferences: &Preferences) -> Result<(), Reason> {
    if !preferences.methods.allows(&candidate.driver) {
        return Err(Reason::Forbidden);
    }
    match candidate.reach {
        Reach::Process if !pair.same_process => return Err(Reason::OtherProcess),
        Reach::Host if !pair.same_host => return Err(Reason::OtherHost),
        _ => {}
    }
    if candidate.one_user && !pair.same_user {
        return Err(Reason::OtherUser);
    }
    if let Some(why) = &candidate.unusable {
        return Err(Reason::Unusable(why.clone()));
    }
    if candidate.offered { Ok(()) } else { Err(Reason::NotOffered) }
}

#[cfg(test)]
mod tests;
