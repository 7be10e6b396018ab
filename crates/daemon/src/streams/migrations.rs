//! Migration: a stream goes on by another way, because a better one was found or its own one broke. Its bytes are counted
//! ([`madrigal_proto::resumable`]), and retained until the other end has them. The calling end opens a second stream on the new way, with the
//! id of the first and its position. The target answers with its own position, and both go on from there.
//!
//! ```text
//!  a1                            b1
//!   |== first stream, by r =====|      data both ways; then r fails
//!   |-- second: ID, 4711 ------>|      a1 has 4711 bytes
//!   |<---------- connected, 815 |      b1 has 815, and sends what follows 4711
//!   |-- what follows 815 ------>|
//! ```
//! `failover.rs` decides when the calling end tries a way, and when either end gives up. `resume.rs` is the target end.

use madrigal_proto::mux::Mux;
use madrigal_selector::route::Way;

use crate::daemon::Daemon;
use crate::link::Link;
use crate::poll::Token;
use crate::routing::table::MOST_RELAYS;
use crate::socket::Recv;
use crate::streams::failover::Action;
use crate::streams::migration::{Migration, ResumeAttempt};
use crate::streams::origin::{Origin, Role};
use crate::streams::pipe::End;
use crate::streams::stream::{Stream, StreamOwner};
use crate::wire::{ConnectReply, ConnectRequest, ResetCause, Resume, StreamHeader};

/// Why a stream cannot go on by another way: more is on its way than is retained of one stream.
pub(crate) const NOT_KEPT: &str = "what the other end has not got is kept no longer";

impl Daemon {
    /// There is a new connection with a host: streams that reach it another way may migrate to it.
    pub(crate) fn try_better_ways(&mut self, host: usize) {
        let to = |origin: &Origin| matches!(origin.role, Role::Caller { host: there, .. } if there == host);
        let pipes: Vec<Token> =
            self.pipes.iter().filter(|(_, pipe)| pipe.origin.as_ref().is_some_and(to)).map(|(t, _)| *t).collect();
        for pipe in pipes {
            if let Some(migration) = self.migrations.get_mut(&pipe) {
                migration.failover.clear_refusals();
            }
            self.try_better_way(pipe);
        }
    }

    /// Begins a migration to the best way, if that is a direct connection, and the stream's own way is none; or to another link of
    /// the same way, which is for such streams.
    pub(crate) fn try_better_way(&mut self, token: Token) {
        let Some(pipe) = self.pipes.get(&token).filter(|pipe| !pipe.is_over()) else { return };
        let Some(Origin { role: Role::Caller { host, port, way }, .. }) = pipe.origin.clone() else { return };
        let Some((link, best)) = self.ways_to(host, Some(port)).into_iter().next() else { return };
        let better = [Way::Direct, Way::Reverse].contains(&best) && !["direct", "reverse"].contains(&way.as_str());
        if self.migrations.get(&token).is_some_and(|migration| !migration.failover.may_migrate()) {
            return;
        }
        if better {
            self.migrations.entry(token).or_insert_with(Migration::new);
            self.open_resumed(token, link, best.to_string());
        } else if let Some((link, way)) = self.other_link(token) {
            self.migrations.entry(token).or_insert_with(Migration::new);
            self.open_resumed(token, link, way);
        } else {
            self.migrations.remove(&token);
        }
    }

    /// The stream of a pipe lost its way. If it is resumable it waits for another one, else the pipe ends.
    pub(crate) fn handle_way_lost(&mut self, token: Token, cause: ResetCause) {
        let now = self.now;
        let Some(pipe) = self.pipes.get_mut(&token) else { return };
        let is_caller = pipe.origin.as_ref().map(|origin| matches!(origin.role, Role::Caller { .. }));
        let (Some(is_caller), Some(side)) = (is_caller, pipe.resumable_side().filter(|_| cause != ResetCause::Ended))
        else {
            return self.abort_pipe(token, cause);
        };
        let before = std::mem::replace(&mut side.end, End::Disconnected);
        let migration = self.migrations.entry(token).or_insert_with(Migration::new);
        migration.failover.way_lost(now, is_caller, cause == ResetCause::LinkSilent);
        if let End::Stream(stream) = before {
            self.streams.remove(&stream);
        }
    }

    /// There may be a new way: streams without one try it.
    pub(crate) fn wake_migrations(&mut self) {
        let now = self.now;
        self.migrations.values_mut().for_each(|one| one.failover.wake(now));
    }

    /// A deadline of a migration.
    pub(crate) fn migration_timer(&mut self, token: Token) {
        let Some(migration) = self.migrations.get_mut(&token) else { return };
        match migration.failover.action(self.now) {
            Action::None => {}
            Action::GiveUp => self.abandon(token, "no other way in time"),
            Action::AttemptTimedOut => self.resume_failed(token, "no answer"),
            Action::TryBetter => {
                migration.failover.begin_better();
                self.try_better_way(token);
            }
            Action::TryAny => self.try_any_way(token),
        }
    }

    /// Tries the best way of a stream that has none.
    fn try_any_way(&mut self, token: Token) {
        let now = self.now;
        let role = self.pipes.get(&token).and_then(|pipe| pipe.origin.as_ref()).map(|origin| origin.role.clone());
        let Some(Role::Caller { host, port, .. }) = role else { return };
        let (links, ways): (Vec<_>, Vec<_>) =
            self.ways_to(host, Some(port)).into_iter().map(|(link, way)| (link, way.to_string())).unzip();
        let Some(migration) = self.migrations.get_mut(&token) else { return };
        let chosen = migration.failover.choose(now, &ways);
        match chosen.and_then(|at| Some((*links.get(at)?, ways.get(at)?.clone()))) {
            Some((link, way)) => self.open_resumed(token, link, way),
            None => self.dial_soon(host),
        }
    }

    /// Opens a stream on a way, with a request to resume the pipe's stream on it.
    fn open_resumed(&mut self, token: Token, link: Token, way: String) {
        let (now, from) = (self.now, self.own().name.clone());
        let Some(pipe) = self.pipes.get_mut(&token) else { return };
        let Some(position) =
            pipe.resumable_side().and_then(|side| side.resumable.as_ref()).map(|resumable| resumable.got())
        else {
            return;
        };
        let Some(Origin { id, epoch, role: Role::Caller { host, port, .. } }) = &mut pipe.origin else { return };
        *epoch += 1;
        let (id, epoch, host, port) = (id.clone(), *epoch, *host, *port);
        let request = ConnectRequest {
            host: self.name(host).to_owned(),
            port,
            hops: MOST_RELAYS,
            from,
            source: None,
            through: Vec::new(),
            question: None,
            id: Some(id),
            resume: Some(Resume { epoch, got: position }),
        };
        let header = StreamHeader::Connect(request).bytes();
        let class = self.grid.class(host, port);
        let link = self.link_for(link, class);
        let mux: Option<&mut Mux> = self.links.get_mut(&link).and_then(Link::mux);
        let opened = mux.and_then(|mux| mux.open(class, &header).ok());
        let Some(migration) = self.migrations.get_mut(&token) else { return };
        migration.failover.begin_attempt(now, way.clone());
        let Some(stream) = opened else { return self.resume_failed(token, "its link takes no further stream") };
        let stream = (link, stream);
        migration.attempt = Some(ResumeAttempt { stream, way, position, received: Vec::new() });
        self.streams.insert(stream, StreamOwner::Migration(token));
        self.unflushed.insert(link);
    }

    /// The target's reply comes, or a part of it.
    pub(crate) fn handle_resume_reply(&mut self, token: Token, new: Stream) {
        let reply = loop {
            let Some(attempt) = self.migrations.get_mut(&token).and_then(|migration| migration.attempt.as_mut()) else {
                return;
            };
            let reply = ConnectReply::read(&attempt.received);
            let Ok(None) = reply else { break reply };
            // Not a byte more than the reply: counted bytes follow.
            let missing = match attempt.received[..] {
                [_, low, high, ..] => 3 + usize::from(u16::from_le_bytes([low, high])) - attempt.received.len(),
                _ => 3 - attempt.received.len(),
            };
            let mut bytes = vec![0; missing];
            match self.read_stream(new, &mut bytes) {
                Ok(Recv::Bytes(count)) => {
                    let Some(attempt) =
                        self.migrations.get_mut(&token).and_then(|migration| migration.attempt.as_mut())
                    else {
                        return;
                    };
                    attempt.received.extend_from_slice(bytes.get(..count).unwrap_or_default());
                }
                Ok(Recv::WouldBlock) => return,
                Ok(Recv::End) | Err(_) => return self.resume_failed(token, "it ended without a word"),
            }
        };
        match reply {
            Ok(Some((ConnectReply::Connected, theirs, _))) => self.complete_migration(token, new, theirs.parse().ok()),
            // The target has no such stream any more.
            Ok(Some((ConnectReply::Refused, why, _))) if self.is_disconnected(token) => {
                self.abandon(token, &format!("refused: {why}"));
            }
            Ok(Some((_, why, _))) => self.resume_failed(token, &why),
            _ => self.resume_failed(token, "it answered nonsense"),
        }
    }

    fn is_disconnected(&self, token: Token) -> bool {
        self.migrations.get(&token).is_some_and(|migration| migration.failover.is_disconnected())
    }

    /// The target resumed the stream; `theirs` is its position.
    fn complete_migration(&mut self, token: Token, new: Stream, theirs: Option<u64>) {
        let Some(attempt) = self.migrations.remove(&token).and_then(|migration| migration.attempt) else { return };
        let Some(pipe) = self.pipes.get_mut(&token) else { return self.reset_stream(new) };
        let Some(side) = pipe.resumable_side() else { return };
        let resumed = theirs
            .zip(side.resumable.as_mut())
            .is_some_and(|(theirs, resumable)| resumable.resume(attempt.position, theirs));
        let before = std::mem::replace(&mut side.end, End::Stream(new));
        if let Some(Origin { role: Role::Caller { way, .. }, .. }) = &mut pipe.origin {
            way.clone_from(&attempt.way);
        }
        let stream = pipe.origin.as_ref().map(Origin::describe).unwrap_or_default();
        self.streams.insert(new, StreamOwner::Pipe(token));
        if let End::Stream(old) = before {
            self.reset_stream_as(old, ResetCause::LinkLost);
        }
        if !resumed {
            return self.abandon(token, NOT_KEPT);
        }
        self.log_line(&format!("moved: {stream}"));
        self.connection_migrated(token, new, &attempt.way);
        self.pump(token);
    }

    /// Ends the pipe of a stream that cannot go on.
    fn abandon(&mut self, token: Token, why: &str) {
        let stream = self.pipes.get(&token).and_then(|pipe| pipe.origin.as_ref()).map(Origin::describe);
        self.log_line(&format!("cannot go on: {}: {why}", stream.unwrap_or_default()));
        self.abort_pipe(token, ResetCause::Ended);
    }

    /// A way refused the stream, did not answer, or failed.
    pub(crate) fn resume_failed(&mut self, token: Token, why: &str) {
        let now = self.now;
        let Some(migration) = self.migrations.get_mut(&token) else { return };
        let stays = migration.failover.attempt_failed(now, why);
        if let Some(attempt) = migration.attempt.take() {
            // If the target agrees after all, it waits for the next attempt.
            self.reset_stream_as(attempt.stream, ResetCause::LinkLost);
        }
        if stays {
            let reason = self.stays(token).unwrap_or_default();
            self.log_line(&format!("not moved: {reason}"));
        }
    }

    /// Ends the migration of a pipe that has a way, or ends.
    pub(crate) fn cancel_migration(&mut self, token: Token) {
        if let Some(attempt) = self.migrations.remove(&token).and_then(|migration| migration.attempt) {
            self.reset_stream(attempt.stream);
        }
    }

    /// Why a stream stays on its way though there is a better one, in words.
    pub(crate) fn stays(&self, pipe: Token) -> Option<String> {
        let why = self.migrations.get(&pipe)?.failover.stays()?;
        let origin = self.pipes.get(&pipe)?.origin.as_ref()?;
        Some(format!("{}: {why}", origin.describe()))
    }

    /// The same for all streams to a host.
    pub(crate) fn staying(&self, host: usize) -> Vec<String> {
        let to = |pipe: &Token| {
            let role = self.pipes.get(pipe).and_then(|pipe| pipe.origin.as_ref()).map(|origin| &origin.role);
            matches!(role, Some(Role::Caller { host: there, .. }) if *there == host)
        };
        self.migrations.keys().filter(|pipe| to(pipe)).filter_map(|pipe| self.stays(*pipe)).collect()
    }
}
