//! Calls: somebody on this host wants a stream to a port of another one. Ways are tried in order, the best first, as rules and figures
//! have it: links with that host, and relays; again and again until one connects, one says that it never will, or the time is over.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use madrigal_proto::mux::{Class, Mux, StreamId};
use madrigal_sys::process;
use rustix::io::Errno;

use crate::daemon::{Daemon, Holder, MILLISECOND, SECOND, Thing};
use crate::egress::Answer;
use crate::links::Link;
use crate::local;
use crate::origin::{Origin, Role};
use crate::parked::Outcome;
use crate::pipes::{End, Side};
use crate::poll::Token;
use crate::socket::{self, Got};
use crate::ways::HOPS;
use crate::wire::{self, About, Order, Target, Verdict};

/// How long a call may take.
pub(crate) const LIMIT: u64 = 12 * SECOND;
/// How long one way may take to answer.
const PATIENCE: u64 = 6 * SECOND;
/// A way that did not work is tried again after this time.
const AGAIN: u64 = 300 * MILLISECOND;
/// What a way said that said nothing.
const SILENT: &str = "no answer";

/// Who calls.
pub(crate) struct Caller {
    pub(crate) socket: OwnedFd,
    pub(crate) token: Token,
    pub(crate) kind: Kind,
    /// What it sent already, for the other end.
    pub(crate) staged: Vec<u8>,
}

/// What a caller's socket is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A client's, which is told what became of it, and goes on with it.
    Client,
    /// The accepted one of a forwarded port.
    Forward,
    /// A copy of a program's own, whose connect is parked; the number of its route.
    Program(u64),
}

/// A call that waits.
pub(crate) struct Call {
    caller: Caller,
    /// What its stream is called, should it move.
    id: String,
    target: Target,
    host: usize,
    end: u64,
    next: u64,
    ask: Option<Ask>,
    /// When each way may be tried again, and what it said, by its name.
    tried: BTreeMap<String, (u64, String)>,
    /// A port of this host is being connected to.
    egress: bool,
}

/// A way that is being tried.
struct Ask {
    stream: (Token, StreamId),
    way: String,
    received: Vec<u8>,
    deadline: u64,
}

impl Call {
    /// When it is due.
    pub(crate) fn deadline(&self) -> u64 {
        let next = self.ask.as_ref().map_or(self.next, |ask| ask.deadline);
        if self.egress { self.end } else { self.end.min(next) }
    }
}

impl Daemon {
    /// Begins a call.
    pub(crate) fn call(&mut self, caller: Caller, target: Target) {
        let Some((host, _)) = self.grid.host(&target.host) else {
            let why = format!("the grid has no host `{}`; there are {}", target.host, crate::status::names(&self.grid));
            return self.turn_away(caller, &why, Errno::HOSTUNREACH);
        };
        let (token, now) = (self.token(), self.now);
        self.things.insert(caller.token, Thing::Caller(token));
        let (tried, egress) = (BTreeMap::new(), host == self.me);
        let limit = target.within.map_or(LIMIT, |within| LIMIT.min(within.saturating_mul(MILLISECOND)));
        let id = format!("{:016x}{:016x}", process::random(), process::random());
        let call = Call { caller, id, target, host, end: now + limit, next: now, ask: None, tried, egress };
        let (port, question) = (call.target.port, call.target.question.clone());
        self.calls.insert(token, call);
        if let Some(question) = question.filter(|_| egress) {
            self.take_question(question, Answer::Call(token));
        } else if egress {
            self.land(port, Answer::Call(token), "this host", None, Vec::new());
        } else {
            self.hurry(host);
            self.try_call(token);
        }
    }

    /// Tells a caller why not, and lets it go.
    fn turn_away(&mut self, caller: Caller, why: &str, errno: Errno) {
        self.things.remove(&caller.token);
        self.note(&format!("not connected: {why}"));
        match caller.kind {
            Kind::Forward => local::reset_at_close(&caller.socket, true),
            Kind::Client => drop(socket::send(&caller.socket, &wire::frame(wire::FAILED, why.as_bytes()))),
            Kind::Program(route) => {
                self.route_failed(route, why, errno);
                self.park(caller.socket, Outcome::Refuse);
            }
        }
    }

    /// A call ends without a stream: it was refused.
    pub(crate) fn call_failed(&mut self, token: Token, why: &str) {
        self.end_call(token, why, Errno::CONNREFUSED);
    }

    fn end_call(&mut self, token: Token, why: &str, errno: Errno) {
        let Some(call) = self.calls.remove(&token) else { return };
        if let Some(ask) = &call.ask {
            self.reset_stream(ask.stream);
        }
        let why = format!("cannot connect to {}:{}: {why}", call.target.host, call.target.port);
        self.turn_away(call.caller, &why, errno);
    }

    /// A call got its other end; `rest` came from there already.
    pub(crate) fn connected(&mut self, token: Token, far: End, rest: Vec<u8>) {
        let Some(call) = self.calls.remove(&token) else { return self.drop_end(far) };
        let Caller { socket, token, kind, staged } = call.caller;
        let way = call.ask.as_ref().map_or_else(String::new, |ask| ask.way.clone());
        let told = |daemon: &Self| wire::frame(wire::DONE, daemon.path(&far, &way, &call.target.host).as_bytes());
        if kind == Kind::Client && socket::send(&socket, &told(self)).is_err() {
            self.things.remove(&token);
            return self.drop_end(far);
        }
        let told = if way.is_empty() { String::new() } else { format!(", {way}") };
        let line = format!("connected: to {}:{}{told}", call.target.host, call.target.port);
        let is_question = call.target.question.is_some();
        if !is_question {
            self.note(&line);
        }
        if call.ask.is_some() {
            self.remember_way(call.host, &way);
        }
        let origin = call.ask.filter(|_| !is_question).map(|ask| Origin {
            id: call.id,
            epoch: 0,
            role: Role::Caller { host: call.host, port: call.target.port, way: ask.way },
        });
        if let Kind::Program(route) = kind {
            self.things.remove(&token);
            self.route_found(route, &far, &way);
            return self.park(socket, Outcome::Join { far, rest, route, origin, line });
        }
        let near = Side::new(End::Socket { socket, token, is_tcp: kind == Kind::Forward }, staged);
        let pipe = self.join_as(near, Side::new(far, rest), origin);
        if !is_question {
            self.record(pipe, &line);
        }
    }

    /// A call is due: a way took too long, or may be tried again, or the time is over.
    pub(crate) fn call_time(&mut self, token: Token) {
        let now = self.now;
        let Some(call) = self.calls.get_mut(&token) else { return };
        if let Some(ask) = call.ask.take_if(|ask| ask.deadline <= now) {
            call.tried.insert(ask.way, (now + AGAIN, SILENT.to_owned()));
            self.reset_stream(ask.stream);
        }
        let Some(call) = self.calls.get(&token) else { return };
        if call.end <= now {
            let why = self.every_attempt(call);
            // Somebody was asked, and was silent; or nobody could be.
            let silent = call.tried.values().any(|(_, why)| why == SILENT);
            let errno = if silent { Errno::TIMEDOUT } else { Errno::HOSTUNREACH };
            return self.end_call(token, &why, errno);
        }
        self.try_call(token);
    }

    /// What each way gave.
    fn every_attempt(&self, call: &Call) -> String {
        let mut told = Vec::new();
        if self.link_to(call.host).is_none() {
            told.push(format!("no link with {}: {}", call.target.host, self.why_no_link(call.host)));
        }
        told.extend(call.tried.iter().map(|(way, (_, why))| format!("{way}: {why}")));
        for (host, peer) in self.grid.hosts.iter().enumerate() {
            if peer.relay && host != self.me && host != call.host && self.link_to(host).is_none() {
                told.push(format!("no link with relay {}: {}", peer.name, self.why_no_link(host)));
            } else if peer.relay && !self.grid.carries(peer.site, &self.own().name) {
                told.push(crate::egress::carries_not(&peer.name, &self.own().name));
            }
        }
        let rules = self.grid.rules_for(call.host, Some(call.target.port)).into_iter();
        let forbid = rules.filter(|rule| !rule.forbid.is_empty());
        told.extend(forbid.map(|rule| format!("rule {} forbids {}", rule.name, rule.forbid.join(", "))));
        if !self.grid.hosts.iter().any(|host| host.relay) {
            told.push("the grid has no relay".to_owned());
        }
        told.join("; ")
    }

    /// All that wait may have a way now.
    pub(crate) fn wake_calls(&mut self) {
        let now = self.now;
        self.calls.values_mut().for_each(|call| call.next = call.next.min(now));
        self.wake_failovers();
    }

    /// Tries the next way of a call.
    fn try_call(&mut self, token: Token) {
        let now = self.now;
        let Some(call) = self.calls.get(&token).filter(|call| call.ask.is_none() && !call.egress) else { return };
        let (host, port) = (call.host, call.target.port);
        let ways = self.ways_to(host, call.target.question.is_none().then_some(port));
        let is_due = |way: &String| call.tried.get(way).is_none_or(|(next, _)| *next <= now);
        let due = ways.into_iter().map(|(link, way)| (link, way.to_string())).find(|(_, way)| is_due(way));
        let Some(call) = self.calls.get_mut(&token) else { return };
        call.next = now + AGAIN;
        match due {
            Some((link, way)) => self.ask(token, link, way),
            None => self.hurry(host),
        }
    }

    fn ask(&mut self, token: Token, link: Token, way: String) {
        let (now, from) = (self.now, self.own().name.clone());
        let Some(call) = self.calls.get_mut(&token) else { return };
        let source = match call.caller.kind {
            Kind::Client => None,
            Kind::Forward => socket::peer(&call.caller.socket).map(|at| at.to_string()),
            Kind::Program(_) => crate::routes::source(&call.caller.socket),
        };
        let (host, port) = (call.target.host.clone(), call.target.port);
        let order = Order {
            host,
            port,
            hops: HOPS,
            from,
            source,
            through: Vec::new(),
            question: call.target.question.clone(),
            id: Some(call.id.clone()),
            resume: None,
        };
        let about = About::Order(order).bytes();
        let mux: Option<&mut Mux> = self.links.get_mut(&link).and_then(Link::mux);
        match mux.map(|mux| mux.open(Class::Data, &about)) {
            Some(Ok(stream)) => {
                let stream = (link, stream);
                call.ask = Some(Ask { stream, way, received: Vec::new(), deadline: now + PATIENCE });
                self.streams.insert(stream, Holder::Call(token));
                self.dirty.insert(link);
            }
            Some(Err(error)) => drop(call.tried.insert(way, (now + AGAIN, error.to_string()))),
            None => {}
        }
    }

    /// Something came back on a stream that a call opened.
    pub(crate) fn handle_verdict(&mut self, token: Token, link: Token, stream: StreamId) {
        let mut buffer = [0; 1024];
        loop {
            // Once it is answered, what comes is for the program, and stays where it is until its connect is complete.
            let ask = self.calls.get(&token).and_then(|call| call.ask.as_ref());
            if ask.is_none_or(|ask| ask.stream != (link, stream)) {
                return;
            }
            let got = self.read_stream((link, stream), &mut buffer);
            let Some(ask) = self.calls.get_mut(&token).and_then(|call| call.ask.as_mut()) else { return };
            let count = match got {
                Ok(Got::Bytes(count)) => count,
                Ok(Got::Nothing) => return,
                Ok(Got::End) | Err(_) => return self.ask_failed(token, Verdict::NotNow, "it ended without a word"),
            };
            ask.received.extend_from_slice(buffer.get(..count).unwrap_or_default());
            match Verdict::read(&ask.received) {
                Ok(None) => {}
                Ok(Some((Verdict::Connected, _, len))) => {
                    let rest = ask.received.split_off(len);
                    return self.connected(token, End::Stream((link, stream)), rest);
                }
                Ok(Some((verdict, why, _))) => return self.ask_failed(token, verdict, &why),
                Err(()) => return self.ask_failed(token, Verdict::NotNow, "it answered nonsense"),
            }
        }
    }

    /// The link that a call had asked on is gone.
    pub(crate) fn ask_lost(&mut self, token: Token, stream: (Token, StreamId)) {
        let asked = self.calls.get(&token).and_then(|call| call.ask.as_ref());
        if asked.is_some_and(|ask| ask.stream == stream) {
            self.ask_failed(token, Verdict::NotNow, "the link broke");
        }
    }

    fn ask_failed(&mut self, token: Token, verdict: Verdict, why: &str) {
        let now = self.now;
        let Some(call) = self.calls.get_mut(&token) else { return };
        let Some(ask) = call.ask.take() else { return };
        call.next = now;
        call.tried.insert(ask.way, (now + AGAIN, why.to_owned()));
        self.reset_stream(ask.stream);
        if verdict == Verdict::Never {
            self.call_failed(token, why);
        }
    }

    /// A caller that waits did something: if it left, nobody waits. What it sends stays in its socket.
    pub(crate) fn poll_caller(&mut self, token: Token) {
        let Some(call) = self.calls.get(&token) else { return };
        if rustix::net::sockopt::socket_error(&call.caller.socket).is_ok_and(|error| error.is_ok())
            && !socket::is_hung_up(&call.caller.socket)
        {
            return;
        }
        self.call_failed(token, "the caller left");
    }
}
