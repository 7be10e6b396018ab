//! Calls begin and end here. The ways are tried in order of rules and figures, again and again, until one connects, one refuses for good,
//! or the time is over (`attempts.rs`).

use std::collections::BTreeMap;

use madrigal_sys::process;
use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::descriptor::Thing;
use crate::local::libc_socket;
use crate::local::parked::Outcome;
use crate::poll::Token;
use crate::routing::ways::carries_not;
use crate::socket;
use crate::streams::call::{AGAIN, Call, Caller, Kind, LIMIT, SILENT};
use crate::streams::egress::Answer;
use crate::streams::origin::{Origin, Role};
use crate::streams::pipe::{End, Side};
use crate::units::MILLISECOND;
use crate::wire::{self, Target};

impl Daemon {
    /// Begins a call.
    pub(crate) fn call(&mut self, caller: Caller, target: Target) {
        let Some((host, _)) = self.grid.host(&target.host) else {
            let why = format!("the grid has no host `{}`; there are {}", target.host, self.grid.names());
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

    /// Tells a caller why not, and lets it go.
    fn turn_away(&mut self, caller: Caller, why: &str, errno: Errno) {
        self.things.remove(&caller.token);
        self.note(&format!("not connected: {why}"));
        match caller.kind {
            Kind::Forward => libc_socket::reset_at_close(&caller.socket, true),
            Kind::Client => drop(socket::send(&caller.socket, &wire::frame(wire::FAILED, why.as_bytes()))),
            Kind::Program(route) => {
                self.route_failed(route, why, errno);
                self.park(caller.socket, Outcome::Refuse);
            }
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

    /// All that wait may have a way now.
    pub(crate) fn wake_calls(&mut self) {
        let now = self.now;
        self.calls.values_mut().for_each(|call| call.next = call.next.min(now));
        self.wake_failovers();
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
                told.push(carries_not(&peer.name, &self.own().name));
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
}
