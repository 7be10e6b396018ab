//! Streams go on by another way: because a better one was found, or because the one they had broke. What goes over them is counted
//! ([`madrigal_proto::tally`]), and kept until the other end has it. Where a call began, a second stream is opened the new way, with the
//! number of the first and how far it is; the far daemon answers how far that is, and both go on from there.
//!
//! ```text
//!  a1                            b1
//!   |== first stream, by r =====|      data both ways; then r is no more
//!   |-- second: NUMBER, 4711 -->|      a1 has 4711 bytes
//!   |<----------- agreed, 815 --|      b1 has 815, and sends what follows 4711
//!   |-- what follows 815 ------>|
//! ```
//! While neither end knows the other they wait, but not for long: programs are to hear soon that their peer is gone. Where a way was closed,
//! as by a killed daemon, a second and a half; where it fell silent, as by a cut cable, the far end may notice much earlier or later.

use std::collections::BTreeMap;

use madrigal_proto::mux::{Class, Mux};
use madrigal_selector::route::Way;

use crate::daemon::{Daemon, Holder, MILLISECOND, SECOND};
use crate::links::Link;
use crate::pipes::{End, Origin, Role, Stream};
use crate::poll::Token;
use crate::socket::Got;
use crate::ways::HOPS;
use crate::wire::{About, Gone, Order, Resume, Verdict};

/// How long a stream waits for another way where it began, and where it ends: when its way was closed, and when it fell silent.
const CALLER: (u64, u64) = (1500 * MILLISECOND, 3 * SECOND);
const TARGET: (u64, u64) = (1800 * MILLISECOND, 12 * SECOND);
/// How long a way may take to answer.
const PATIENCE: u64 = SECOND;
/// A way that did not work is tried again after this time.
const AGAIN: u64 = 150 * MILLISECOND;

/// A stream that is to go on by another way.
pub(crate) struct Adrift {
    /// When it is given up; never, while the way that it has still works.
    end: u64,
    next: u64,
    ask: Option<Ask>,
    /// When each way may be tried again.
    tried: BTreeMap<String, u64>,
    /// How often the far daemon did not agree, while the way that it has works.
    refused: u32,
}

/// A way that was asked for.
struct Ask {
    stream: Stream,
    way: String,
    /// How far we said that we are.
    got: u64,
    heard: Vec<u8>,
    deadline: u64,
}

impl Adrift {
    fn new() -> Self {
        Self { end: u64::MAX, next: u64::MAX, ask: None, tried: BTreeMap::new(), refused: 0 }
    }

    /// When it is due.
    pub(crate) fn deadline(&self) -> u64 {
        self.ask.as_ref().map_or(self.next, |ask| ask.deadline).min(self.end)
    }
}

impl Daemon {
    /// There is a new connection with a host: streams to it that go another way may move.
    pub(crate) fn move_all(&mut self, host: usize) {
        let to = |origin: &Origin| matches!(origin.role, Role::Caller { host: there, .. } if there == host);
        let pipes: Vec<Token> =
            self.pipes.iter().filter(|(_, pipe)| pipe.origin.as_ref().is_some_and(to)).map(|(t, _)| *t).collect();
        pipes.into_iter().for_each(|pipe| self.move_one(pipe));
    }

    /// Asks the far daemon to move a stream, if its best way is a connection now, and was not.
    fn move_one(&mut self, token: Token) {
        let Some(pipe) = self.pipes.get(&token).filter(|pipe| !pipe.is_over()) else { return };
        let Some(Origin { role: Role::Caller { host, port, way }, .. }) = pipe.origin.clone() else { return };
        let Some((link, best)) = self.ways_to(host, Some(port)).into_iter().next() else { return };
        let better = [Way::Direct, Way::Reverse].contains(&best) && !["direct", "reverse"].contains(&way.as_str());
        if self.adrift.get(&token).is_some_and(|adrift| adrift.ask.is_some() || adrift.end < u64::MAX) {
            return;
        }
        if better {
            self.adrift.entry(token).or_insert_with(Adrift::new).next = u64::MAX;
            self.ask_to_go_on(token, link, best.to_string());
        } else {
            self.adrift.remove(&token);
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
        let before = std::mem::replace(&mut far.end, End::Adrift);
        let adrift = self.adrift.entry(token).or_insert_with(Adrift::new);
        let limits = if is_caller { CALLER } else { TARGET };
        adrift.end = adrift.end.min(now + if why == Gone::Silent { limits.1 } else { limits.0 });
        adrift.next = if is_caller { now } else { u64::MAX };
        if let End::Stream(stream) = before {
            self.streams.remove(&stream);
        }
    }

    /// All that wait for a way may have one now.
    pub(crate) fn wake_adrift(&mut self) {
        let now = self.now;
        self.adrift.values_mut().filter(|one| one.next < u64::MAX).for_each(|one| one.next = one.next.min(now));
    }

    /// A stream without a way is due.
    pub(crate) fn adrift_time(&mut self, token: Token) {
        let now = self.now;
        let Some(adrift) = self.adrift.get_mut(&token) else { return };
        if adrift.end <= now {
            return self.break_pipe(token, Gone::Ended);
        }
        if adrift.ask.as_ref().is_some_and(|ask| ask.deadline <= now) {
            return self.way_failed(token);
        }
        if adrift.end == u64::MAX {
            adrift.next = u64::MAX;
            return self.move_one(token);
        }
        self.look_for_way(token);
    }

    fn look_for_way(&mut self, token: Token) {
        let now = self.now;
        let role = self.pipes.get(&token).and_then(|pipe| pipe.origin.as_ref()).map(|origin| origin.role.clone());
        let Some(Role::Caller { host, port, .. }) = role else { return };
        let ways = self.ways_to(host, Some(port));
        let Some(adrift) = self.adrift.get_mut(&token).filter(|adrift| adrift.ask.is_none()) else { return };
        adrift.next = now + AGAIN;
        let is_due = |way: &String| adrift.tried.get(way).is_none_or(|next| *next <= now);
        let due = ways.into_iter().map(|(link, way)| (link, way.to_string())).find(|(_, way)| is_due(way));
        match due {
            Some((link, way)) => self.ask_to_go_on(token, link, way),
            None => self.hurry(host),
        }
    }

    /// Asks the far daemon whether a stream can go on by this way.
    fn ask_to_go_on(&mut self, token: Token, link: Token, way: String) {
        let (now, from) = (self.now, self.own().name.clone());
        let Some(pipe) = self.pipes.get_mut(&token) else { return };
        let Some(got) = pipe.far().and_then(|far| far.tally.as_ref()).map(|tally| tally.got()) else { return };
        let Some(Origin { id, turn, role: Role::Caller { host, port, .. } }) = &mut pipe.origin else { return };
        *turn += 1;
        let (id, turn, host, port) = (id.clone(), *turn, *host, *port);
        let order = Order {
            host: self.name(host).to_owned(),
            port,
            hops: HOPS,
            from,
            source: None,
            through: Vec::new(),
            question: None,
            id: Some(id),
            resume: Some(Resume { turn, got }),
        };
        let about = About::Order(order).bytes();
        let mux: Option<&mut Mux> = self.links.get_mut(&link).and_then(Link::mux);
        let opened = mux.and_then(|mux| mux.open(Class::Data, &about).ok());
        let Some(adrift) = self.adrift.get_mut(&token) else { return };
        let Some(stream) = opened else {
            adrift.tried.insert(way, now + AGAIN);
            return;
        };
        let stream = (link, stream);
        adrift.ask = Some(Ask { stream, way, got, heard: Vec::new(), deadline: now + PATIENCE });
        self.streams.insert(stream, Holder::Move(token));
        self.dirty.insert(link);
    }

    /// A way said no, or nothing, or is gone.
    pub(crate) fn way_failed(&mut self, token: Token) {
        let now = self.now;
        let Some(adrift) = self.adrift.get_mut(&token) else { return };
        if let Some(ask) = adrift.ask.take() {
            adrift.tried.insert(ask.way, now + AGAIN);
            // Should the far daemon agree yet, it is to wait again.
            self.reset_stream_as(ask.stream, Gone::Lost);
        }
        let Some(adrift) = self.adrift.get_mut(&token) else { return };
        if adrift.end == u64::MAX {
            // The way that it has still works. More may have been said there than we knew of when we asked: again, with longer pauses.
            adrift.next = now + (AGAIN << adrift.refused.min(8));
            adrift.refused += 1;
        } else {
            adrift.next = now;
        }
    }

    /// The far daemon says whether it agrees.
    pub(crate) fn hear_move(&mut self, token: Token, new: Stream) {
        let verdict = loop {
            let Some(ask) = self.adrift.get_mut(&token).and_then(|adrift| adrift.ask.as_mut()) else { return };
            let verdict = Verdict::read(&ask.heard);
            let Ok(None) = verdict else { break verdict };
            // Not a byte more than the verdict: what follows is counted.
            let wanted = match ask.heard[..] {
                [_, low, high, ..] => 3 + usize::from(u16::from_le_bytes([low, high])) - ask.heard.len(),
                _ => 3 - ask.heard.len(),
            };
            let mut bytes = vec![0; wanted];
            match self.read_stream(new, &mut bytes) {
                Ok(Got::Bytes(count)) => {
                    let Some(ask) = self.adrift.get_mut(&token).and_then(|adrift| adrift.ask.as_mut()) else { return };
                    ask.heard.extend_from_slice(bytes.get(..count).unwrap_or_default());
                }
                Ok(Got::Nothing) => return,
                Ok(Got::End) | Err(_) => return self.way_failed(token),
            }
        };
        match verdict {
            Ok(Some((Verdict::Connected, theirs, _))) => self.go_on(token, new, theirs.parse().ok()),
            // There is nobody who knows of it any more.
            Ok(Some((Verdict::Never, ..))) if self.is_adrift(token) => self.break_pipe(token, Gone::Ended),
            _ => self.way_failed(token),
        }
    }

    fn is_adrift(&self, token: Token) -> bool {
        self.adrift.get(&token).is_some_and(|adrift| adrift.end < u64::MAX)
    }

    /// It agreed, and is so far.
    fn go_on(&mut self, token: Token, new: Stream, theirs: Option<u64>) {
        let Some(ask) = self.adrift.remove(&token).and_then(|adrift| adrift.ask) else { return };
        let Some(pipe) = self.pipes.get_mut(&token) else { return self.reset_stream(new) };
        let Some(far) = pipe.far() else { return };
        let counted = theirs.zip(far.tally.as_mut()).is_some_and(|(theirs, tally)| tally.resume(ask.got, theirs));
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

    /// A stream is to go on by another way that ends here.
    pub(crate) fn take_move(&mut self, from: Stream, sender: &str, order: &Order, resume: Resume) {
        let by_relay = self.grid.host(sender).is_some_and(|(_, host)| host.relay);
        let token = order.id.as_ref().and_then(|id| self.movable.get(id)).copied();
        // Only for whom it began, and not by a word that comes late.
        let is_theirs = |origin: &Origin| {
            let same = matches!(&origin.role, Role::Target { from } if *from == order.from);
            same && (sender == order.from || by_relay) && resume.turn > origin.turn
        };
        let pipe = token.and_then(|token| self.pipes.get_mut(&token));
        let pipe = pipe.filter(|pipe| pipe.origin.as_ref().is_some_and(is_theirs));
        let (Some(token), Some(pipe)) = (token, pipe) else {
            return self.tell(from, Verdict::Never, "there is no such stream");
        };
        if let Some(origin) = &mut pipe.origin {
            origin.turn = resume.turn;
        }
        let Some(far) = pipe.far() else { return };
        let (got, acked) = far.tally.as_ref().map_or((0, 0), |tally| (tally.got(), tally.acked()));
        if resume.got < acked {
            // It was on its way for so long that more was said meanwhile by the old one.
            return self.tell(from, Verdict::NotNow, "it is further by now");
        }
        if !far.tally.as_mut().is_some_and(|tally| tally.resume(got, resume.got)) {
            return self.tell(from, Verdict::Never, "what it has not got is kept no longer");
        }
        let before = std::mem::replace(&mut far.end, End::Stream(from));
        self.anchor(token);
        if let End::Stream(old) = before {
            self.reset_stream_as(old, Gone::Lost);
        }
        self.tell(from, Verdict::Connected, &got.to_string());
        self.streams.insert(from, Holder::Pipe(token));
        self.note(&format!("moved: a stream of {} to port {}, by {sender} now", order.from, order.port));
        self.pump(token);
    }

    /// A stream has a way, or needs none any more.
    pub(crate) fn anchor(&mut self, token: Token) {
        if let Some(ask) = self.adrift.remove(&token).and_then(|adrift| adrift.ask) {
            self.reset_stream(ask.stream);
        }
    }
}
