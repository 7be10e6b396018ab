//! A place in a pool, as several threads use it.

use std::path::PathBuf;
use std::sync::Arc;

use madrigal::pools::{Change, Membership, PoolError, Refusal, Told, Wish};
use madrigal::{config::Settings, time};
use serde_json::{Map, Value, json};

use crate::codes::*;
use crate::failure::Failure;
use crate::runtime::{Runtime, deadline};

/// How long the daemon of this host has to answer, where the caller does not wait.
const DAEMON_NS: u64 = 10_000_000_000;

/// A place in a pool.
pub(crate) struct Pool {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) api: Membership,
}

impl Pool {
    /// Asks to join; waits for all that is to be waited for, unless the time is 0.
    pub(crate) fn join(runtime: &Arc<Runtime>, wish: Wish, timeout_ns: i64) -> Result<Self, Failure> {
        let (settings, _) = Settings::from_pairs(std::env::vars_os().filter_map(pair));
        let directories: Vec<PathBuf> = madrigal::daemons(&settings).into_iter().map(PathBuf::from).collect();
        let until = deadline(timeout_ns);
        let api = match timeout_ns {
            0 => Membership::begin(&directories, wish, Some(time::now_ns().saturating_add(DAEMON_NS)))?,
            _ => Membership::join(&directories, wish, until)?,
        };
        Ok(Self { runtime: Arc::clone(runtime), api })
    }

    /// The next event; an error if none came in time.
    pub(crate) fn next(&self, timeout_ns: i64) -> Result<Happened, Failure> {
        let told = self.call(|api| api.next_event(deadline(timeout_ns)))?;
        let told = told.ok_or_else(|| Failure::new(MDG_ETIMEDOUT, "nothing has changed in the pool in time"))?;
        Ok(Happened::of(told))
    }

    /// What is known of it.
    pub(crate) fn described(&self) -> Value {
        let id = self.api.id();
        self.api.view(|view| {
            let members = view.members.iter().map(
                |(id, member)| json!({"id": id, "location": member.location, "rank": member.rank, "blob": member.blob.len()}),
            );
            let winners: Map<String, Value> =
                view.elections.iter().map(|(name, one)| (name.clone(), json!(one.winner))).collect();
            json!({
                "kind": "pool", "pool": self.api.pool(), "id": id, "size": view.size, "closed": view.closed,
                "terminated": view.terminated, "members": members.collect::<Vec<_>>(), "elections": winners,
            })
        })
    }

    /// A call, whose failure is [`MDG_ECLOSED`] if the handle was closed meanwhile.
    pub(crate) fn call<R>(&self, call: impl FnOnce(&Membership) -> Result<R, PoolError>) -> Result<R, Failure> {
        call(&self.api).map_err(|error| match error {
            PoolError::Lost(_) if self.api.is_closed() => Failure::new(MDG_ECLOSED, "the pool was closed here"),
            error => error.into(),
        })
    }
}

fn pair((name, value): (std::ffi::OsString, std::ffi::OsString)) -> Option<(String, String)> {
    Some((name.into_string().ok()?, value.into_string().ok()?))
}

/// An event, as C has it: its kind is the number of a constant of the border.
pub(crate) struct Happened {
    pub(crate) kind: i32,
    pub(crate) number: u64,
    pub(crate) member: i64,
    pub(crate) count: u64,
    pub(crate) text: String,
}

impl Happened {
    fn of(told: Told) -> Self {
        let event = match told {
            Told::Event(event) => event,
            Told::Missed(count) => return Self { kind: 10, number: 0, member: -1, count, text: String::new() },
        };
        let id = |member: u64| i64::try_from(member).unwrap_or(i64::MAX);
        let (kind, member, text) = match event.change {
            Change::Joined { member, details } => (1, id(member), details.location),
            Change::Closed => (2, -1, String::new()),
            Change::Left { member } => (3, id(member), String::new()),
            Change::Died { member } => (4, id(member), String::new()),
            Change::Elected { name, winner, .. } => (5, id(winner), name),
            Change::Vacant { name } => (6, -1, name),
            Change::Set { of, key, .. } => (7, of.map_or(-1, id), key),
            Change::Signal { from, text } => (8, id(from), text),
            Change::Terminated { by } => (9, id(by), String::new()),
        };
        Self { kind, number: event.number, member, count: 0, text }
    }
}

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Self {
        let code = match &error {
            PoolError::NoDaemon | PoolError::Daemon(_) => MDG_EUNUSABLE,
            PoolError::Refused(Refusal::Invalid(_)) | PoolError::Invalid(_) => MDG_EINVAL,
            PoolError::Refused(Refusal::NoMember(_)) => MDG_EGONE,
            PoolError::Refused(Refusal::Rank { .. }) => MDG_ERANK,
            PoolError::Refused(Refusal::OtherKind { .. } | Refusal::OtherRule { .. }) => MDG_EMISMATCH,
            PoolError::Refused(Refusal::Full(_)) => MDG_EBUSY,
            PoolError::Refused(Refusal::Store(_)) => MDG_ELOST,
            PoolError::Refused(_) => MDG_EREFUSED,
            PoolError::TimedOut(_) => MDG_ETIMEDOUT,
            PoolError::Lost(_) => MDG_ELOST,
            PoolError::System { what, errno } => return Self::system(errno.raw_os_error(), what),
            _ => MDG_EINTERNAL,
        };
        Self::new(code, error.to_string())
    }
}
