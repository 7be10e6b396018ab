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

use madrigal_proto::mux::{Class, Mux};
use madrigal_selector::route::Way;

use crate::daemon::Daemon;
use crate::link::Link;
use crate::poll::Token;
use crate::routing::table::HOPS;
use crate::socket::Got;
use crate::streams::failover::Due;
use crate::streams::migration::{Ask, FailingOver};
use crate::streams::origin::{Origin, Role};
use crate::streams::pipe::End;
use crate::streams::stream::{Holder, Stream};
use crate::wire::{About, Gone, Order, Resume, Verdict};

impl Daemon {
    /// There is a new connection with a host: streams to it that go another way may move.
    pub(crate) fn move_all(&mut self, host: usize) {
        let to = |origin: &Origin| matches!(origin.role, Role::Caller { host: there, .. } if there == host);
        let pipes: Vec<Token> =
            self.pipes.iter().filter(|(_, pipe)| pipe.origin.as_ref().is_some_and(to)).map(|(t, _)| *t).collect();
        for pipe in pipes {
            if let Some(failing_over) = self.failing_over.get_mut(&pipe) {
                failing_over.failover.forgive();
            }
            self.move_one(pipe);
        }
    }

    /// Asks the far daemon to move a stream, if its best way is a connection now, and was not.
    fn move_one(&mut self, token: Token) {
        let Some(pipe) = self.pipes.get(&token).filter(|pipe| !pipe.is_over()) else { return };
        let Some(Origin { role: Role::Caller { host, port, way }, .. }) = pipe.origin.clone() else { return };
        let Some((link, best)) = self.ways_to(host, Some(port)).into_iter().next() else { return };
        let better = [Way::Direct, Way::Reverse].contains(&best) && !["direct", "reverse"].contains(&way.as_str());
        if self.failing_over.get(&token).is_some_and(|failing_over| !failing_over.failover.may_move()) {
            return;
        }
        if better {
            self.failing_over.entry(token).or_insert_with(FailingOver::new);
            self.ask_to_go_on(token, link, best.to_string());
        } else {
            self.failing_over.remove(&token);
        }
    }

    /// The way of a pipe's stream is no more: it waits for another one.
    pub(crate) fn lose_way(&mut self, token: Token, why: Gone) {
        let now = self.now;
        let Some(pipe) = self.pipes.get_mut(&token) else { return };
        let is_caller = pipe.origin.as_ref().map(|origin| matches!(origin.role, Role::Caller { .. }));
        let (Some(is_caller), Some(far)) = (is_caller, pipe.far().filter(|_| why != Gone::Ended)) else {
            return self.break_pipe(token, why);
        };
        let before = std::mem::replace(&mut far.end, End::FailingOver);
        let failing_over = self.failing_over.entry(token).or_insert_with(FailingOver::new);
        failing_over.failover.lose(now, is_caller, why == Gone::Silent);
        if let End::Stream(stream) = before {
            self.streams.remove(&stream);
        }
    }

    /// All that wait for a way may have one now.
    pub(crate) fn wake_failovers(&mut self) {
        let now = self.now;
        self.failing_over.values_mut().for_each(|one| one.failover.wake(now));
    }

    /// A stream without a way is due, or one that might have a better way.
    pub(crate) fn failover_due(&mut self, token: Token) {
        let Some(failing_over) = self.failing_over.get_mut(&token) else { return };
        match failing_over.failover.due(self.now) {
            Due::Nothing => {}
            Due::Over => self.break_pipe(token, Gone::Ended),
            Due::Unanswered => self.way_failed(token, "no answer"),
            Due::Better => {
                failing_over.failover.look_for_better();
                self.move_one(token);
            }
            Due::Look => self.look_for_way(token),
        }
    }

    fn look_for_way(&mut self, token: Token) {
        let now = self.now;
        let role = self.pipes.get(&token).and_then(|pipe| pipe.origin.as_ref()).map(|origin| origin.role.clone());
        let Some(Role::Caller { host, port, .. }) = role else { return };
        let (links, ways): (Vec<_>, Vec<_>) =
            self.ways_to(host, Some(port)).into_iter().map(|(link, way)| (link, way.to_string())).unzip();
        let Some(failing_over) = self.failing_over.get_mut(&token) else { return };
        let chosen = failing_over.failover.choose(now, &ways);
        match chosen.and_then(|at| Some((*links.get(at)?, ways.get(at)?.clone()))) {
            Some((link, way)) => self.ask_to_go_on(token, link, way),
            None => self.hurry(host),
        }
    }

    /// Asks the far daemon whether a stream can go on by this way.
    fn ask_to_go_on(&mut self, token: Token, link: Token, way: String) {
        let (now, from) = (self.now, self.own().name.clone());
        let Some(pipe) = self.pipes.get_mut(&token) else { return };
        let Some(got) = pipe.far().and_then(|far| far.resumable.as_ref()).map(|resumable| resumable.got()) else {
            return;
        };
        let Some(Origin { id, epoch, role: Role::Caller { host, port, .. } }) = &mut pipe.origin else { return };
        *epoch += 1;
        let (id, epoch, host, port) = (id.clone(), *epoch, *host, *port);
        let order = Order {
            host: self.name(host).to_owned(),
            port,
            hops: HOPS,
            from,
            source: None,
            through: Vec::new(),
            question: None,
            id: Some(id),
            resume: Some(Resume { epoch, got }),
        };
        let about = About::Order(order).bytes();
        let mux: Option<&mut Mux> = self.links.get_mut(&link).and_then(Link::mux);
        let opened = mux.and_then(|mux| mux.open(Class::Data, &about).ok());
        let Some(failing_over) = self.failing_over.get_mut(&token) else { return };
        failing_over.failover.ask(now, way.clone());
        let Some(stream) = opened else { return self.way_failed(token, "its link takes no further stream") };
        let stream = (link, stream);
        failing_over.ask = Some(Ask { stream, way, got, received: Vec::new() });
        self.streams.insert(stream, Holder::Move(token));
        self.dirty.insert(link);
    }

    /// The far daemon says whether it agrees.
    pub(crate) fn handle_move(&mut self, token: Token, new: Stream) {
        let verdict = loop {
            let Some(ask) = self.failing_over.get_mut(&token).and_then(|failing_over| failing_over.ask.as_mut()) else {
                return;
            };
            let verdict = Verdict::read(&ask.received);
            let Ok(None) = verdict else { break verdict };
            // Not a byte more than the verdict: what follows is counted.
            let wanted = match ask.received[..] {
                [_, low, high, ..] => 3 + usize::from(u16::from_le_bytes([low, high])) - ask.received.len(),
                _ => 3 - ask.received.len(),
            };
            let mut bytes = vec![0; wanted];
            match self.read_stream(new, &mut bytes) {
                Ok(Got::Bytes(count)) => {
                    let Some(ask) =
                        self.failing_over.get_mut(&token).and_then(|failing_over| failing_over.ask.as_mut())
                    else {
                        return;
                    };
                    ask.received.extend_from_slice(bytes.get(..count).unwrap_or_default());
                }
                Ok(Got::Nothing) => return,
                Ok(Got::End) | Err(_) => return self.way_failed(token, "it ended without a word"),
            }
        };
        match verdict {
            Ok(Some((Verdict::Connected, theirs, _))) => self.go_on(token, new, theirs.parse().ok()),
            // There is nobody who knows of it any more.
            Ok(Some((Verdict::Never, ..))) if self.is_failing_over(token) => self.break_pipe(token, Gone::Ended),
            Ok(Some((_, why, _))) => self.way_failed(token, &why),
            _ => self.way_failed(token, "it answered nonsense"),
        }
    }

    fn is_failing_over(&self, token: Token) -> bool {
        self.failing_over.get(&token).is_some_and(|failing_over| failing_over.failover.is_lost())
    }

    /// It agreed, and is so far.
    fn go_on(&mut self, token: Token, new: Stream, theirs: Option<u64>) {
        let Some(ask) = self.failing_over.remove(&token).and_then(|failing_over| failing_over.ask) else { return };
        let Some(pipe) = self.pipes.get_mut(&token) else { return self.reset_stream(new) };
        let Some(far) = pipe.far() else { return };
        let counted =
            theirs.zip(far.resumable.as_mut()).is_some_and(|(theirs, resumable)| resumable.resume(ask.got, theirs));
        let before = std::mem::replace(&mut far.end, End::Stream(new));
        if let Some(Origin { role: Role::Caller { way, .. }, .. }) = &mut pipe.origin {
            way.clone_from(&ask.way);
        }
        let told = pipe.origin.as_ref().map(Origin::spoken).unwrap_or_default();
        self.streams.insert(new, Holder::Pipe(token));
        if let End::Stream(old) = before {
            self.reset_stream_as(old, Gone::Lost);
        }
        if !counted {
            return self.break_pipe(token, Gone::Ended);
        }
        self.note(&format!("moved: {told}"));
        self.route_moved(token, new, &ask.way);
        self.pump(token);
    }

    /// A way said no, or nothing, or is gone.
    pub(crate) fn way_failed(&mut self, token: Token, why: &str) {
        let now = self.now;
        let Some(failing_over) = self.failing_over.get_mut(&token) else { return };
        let stays = failing_over.failover.fail(now, why);
        if let Some(ask) = failing_over.ask.take() {
            // Should the far daemon agree yet, it is to wait again.
            self.reset_stream_as(ask.stream, Gone::Lost);
        }
        if stays {
            let told = self.stays(token).unwrap_or_default();
            self.note(&format!("not moved: {told}"));
        }
    }

    /// A stream has a way, or needs none any more.
    pub(crate) fn anchor(&mut self, token: Token) {
        if let Some(ask) = self.failing_over.remove(&token).and_then(|failing_over| failing_over.ask) {
            self.reset_stream(ask.stream);
        }
    }

    /// What is to be said of a stream that stays where it is, though there is a better way.
    pub(crate) fn stays(&self, pipe: Token) -> Option<String> {
        let why = self.failing_over.get(&pipe)?.failover.stays()?;
        let origin = self.pipes.get(&pipe)?.origin.as_ref()?;
        Some(format!("{}: {why}", origin.spoken()))
    }

    /// The same of all streams to a host.
    pub(crate) fn staying(&self, host: usize) -> Vec<String> {
        let to = |pipe: &Token| {
            let role = self.pipes.get(pipe).and_then(|pipe| pipe.origin.as_ref()).map(|origin| &origin.role);
            matches!(role, Some(Role::Caller { host: there, .. }) if *there == host)
        };
        self.failing_over.keys().filter(|pipe| to(pipe)).filter_map(|pipe| self.stays(*pipe)).collect()
    }
}
