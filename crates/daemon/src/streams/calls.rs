//! Begins and ends calls. The ways are tried in order of rules and figures, again and again, until one connects, one refuses for good,
//! or the time is over (`attempts.rs`).

use std::collections::BTreeMap;

use madrigal_sys::process;
use rustix::io::Errno;

use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::local::libc_socket;
use crate::local::parked::Outcome;
use crate::poll::Token;
use crate::routing::candidate::relay_refuses;
use crate::socket;
use crate::streams::call::{CALL_TIMEOUT, Call, Caller, CallerKind, NO_ANSWER, RETRY_AFTER};
use crate::streams::egress::Requester;
use crate::streams::origin::{Origin, Role};
use crate::streams::pipe::{End, Side};
use crate::units::MILLISECOND;
use crate::wire::{self, Target};

impl Daemon {
    /// Begins a call.
    pub(crate) fn call(&mut self, caller: Caller, target: Target) {
        let Some((host, _)) = self.grid.host(&target.host) else {
            let why = format!("the grid has no host `{}`; there are {}", target.host, self.grid.names());
            return self.reject_caller(caller, &why, Errno::HOSTUNREACH);
        };
        let (token, now) = (self.new_token(), self.now);
        self.descriptors.insert(caller.token, Descriptor::Caller(token));
        let (tried, egress) = (BTreeMap::new(), host == self.own_index);
        let limit = target.within.map_or(CALL_TIMEOUT, |within| CALL_TIMEOUT.min(within.saturating_mul(MILLISECOND)));
        let id = format!("{:016x}{:016x}", process::random(), process::random());
        let call = Call { caller, id, target, host, end: now + limit, next: now, attempt: None, tried, egress };
        let (port, question) = (call.target.port, call.target.question.clone());
        self.calls.insert(token, call);
        if let Some(question) = question.filter(|_| egress) {
            self.handle_question(question, Requester::Call(token));
        } else if egress {
            self.begin_egress(port, Requester::Call(token), "this host", None, Vec::new());
        } else {
            self.dial_soon(host);
            self.try_call(token);
        }
    }

    /// A call is connected to its other end; `rest` came from there already.
    pub(crate) fn call_connected(&mut self, token: Token, far: End, rest: Vec<u8>) {
        let Some(call) = self.calls.remove(&token) else { return self.discard_end(far) };
        let Caller { socket, token, kind, staged } = call.caller;
        let way = call.attempt.as_ref().map_or_else(String::new, |attempt| attempt.way.clone());
        let reply = |daemon: &Self| wire::frame(wire::DONE, daemon.path(&far, &way, &call.target.host).as_bytes());
        if kind == CallerKind::Client && socket::send(&socket, &reply(self)).is_err() {
            self.descriptors.remove(&token);
            return self.discard_end(far);
        }
        let by = if way.is_empty() { String::new() } else { format!(", {way}") };
        let line = format!("connected: to {}:{}{by}", call.target.host, call.target.port);
        let is_question = call.target.asks();
        if !is_question {
            self.log_line(&line);
        }
        if call.attempt.is_some() {
            self.save_way(call.host, &way);
        }
        if let End::Stream((link, _)) = far
            && !is_question
            && self.links.get(&link).is_some_and(|link| !link.leads_to(call.host))
        {
            self.seek_direct_way(call.host, link);
        }
        let origin = call.attempt.filter(|_| !is_question).map(|attempt| Origin {
            id: call.id,
            epoch: 0,
            role: Role::Caller { host: call.host, port: call.target.port, way: attempt.way },
        });
        if let CallerKind::Program(connection) = kind {
            self.descriptors.remove(&token);
            self.connection_found(connection, &far, &way);
            return self.park(socket, Outcome::Join { far, rest, connection, origin, line });
        }
        let near = Side::new(End::Socket { socket, token, is_tcp: kind == CallerKind::Forward }, staged);
        let pipe = self.join_as(near, Side::new(far, rest), origin);
        if !is_question {
            self.record(pipe, &line);
        }
    }

    /// A call fails: it was refused.
    pub(crate) fn call_failed(&mut self, token: Token, why: &str) {
        self.end_call(token, why, Errno::CONNREFUSED);
    }

    fn end_call(&mut self, token: Token, why: &str, errno: Errno) {
        let Some(call) = self.calls.remove(&token) else { return };
        if let Some(attempt) = &call.attempt {
            self.reset_stream(attempt.stream);
        }
        let why = format!("cannot connect to {}:{}: {why}", call.target.host, call.target.port);
        self.reject_caller(call.caller, &why, errno);
    }

    /// Closes a caller, with the reason as far as its kind allows.
    fn reject_caller(&mut self, caller: Caller, why: &str, errno: Errno) {
        self.descriptors.remove(&caller.token);
        self.log_line(&format!("not connected: {why}"));
        match caller.kind {
            CallerKind::Forward => libc_socket::reset_at_close(&caller.socket, true),
            CallerKind::Client => drop(socket::send(&caller.socket, &wire::frame(wire::FAILED, why.as_bytes()))),
            CallerKind::Program(connection) => {
                self.connection_failed(connection, why, errno);
                self.park(caller.socket, Outcome::Refuse);
            }
        }
    }

    /// A deadline of a call: a way has not answered, or may be tried again, or the time is over.
    pub(crate) fn call_timer(&mut self, token: Token) {
        let now = self.now;
        let Some(call) = self.calls.get_mut(&token) else { return };
        if let Some(attempt) = call.attempt.take_if(|attempt| attempt.deadline <= now) {
            call.tried.insert(attempt.way, (now + RETRY_AFTER, NO_ANSWER.to_owned()));
            self.reset_stream(attempt.stream);
        }
        let Some(call) = self.calls.get(&token) else { return };
        if call.end <= now {
            let why = self.describe_attempts(call);
            // Either a way did not answer in time, or there was no way.
            let silent = call.tried.values().any(|(_, why)| why == NO_ANSWER);
            let errno = if silent { Errno::TIMEDOUT } else { Errno::HOSTUNREACH };
            return self.end_call(token, &why, errno);
        }
        self.try_call(token);
    }

    /// A waiting caller's socket changed. If it was closed, the call ends. What the caller sends stays in the socket.
    pub(crate) fn poll_caller(&mut self, token: Token) {
        let Some(call) = self.calls.get(&token) else { return };
        if rustix::net::sockopt::socket_error(&call.caller.socket).is_ok_and(|error| error.is_ok())
            && !socket::is_hung_up(&call.caller.socket)
        {
            return;
        }
        self.call_failed(token, "the caller left");
    }

    /// There may be a new way: waiting calls and migrations try it.
    pub(crate) fn wake_calls(&mut self) {
        let now = self.now;
        self.calls.values_mut().for_each(|call| call.next = call.next.min(now));
        self.wake_migrations();
    }

    /// Why no way worked, in words.
    fn describe_attempts(&self, call: &Call) -> String {
        let mut reasons = Vec::new();
        if self.link_to(call.host).is_none() {
            reasons.push(format!("no link with {}: {}", call.target.host, self.why_no_link(call.host)));
        }
        reasons.extend(call.tried.iter().map(|(way, (_, why))| format!("{way}: {why}")));
        for (host, peer) in self.grid.hosts.iter().enumerate() {
            if peer.relay && host != self.own_index && host != call.host && self.link_to(host).is_none() {
                reasons.push(format!("no link with relay {}: {}", peer.name, self.why_no_link(host)));
            } else if peer.relay && !self.grid.carries(peer.site, &self.own().name) {
                reasons.push(relay_refuses(&peer.name, &self.own().name));
            }
        }
        let rules = self.grid.rules_for(call.host, Some(call.target.port)).into_iter();
        let forbid = rules.filter(|rule| !rule.forbid.is_empty());
        reasons.extend(forbid.map(|rule| format!("rule {} forbids {}", rule.name, rule.forbid.join(", "))));
        if !self.grid.hosts.iter().any(|host| host.relay) {
            reasons.push("the grid has no relay".to_owned());
        }
        reasons.join("; ")
    }
}
