//! The attempts of a call: a connect request on one way after another.

use std::os::fd::OwnedFd;

use madrigal_proto::mux::Mux;

use crate::daemon::Daemon;
use crate::link::Link;
use crate::poll::Token;
use crate::routing::table::MOST_RELAYS;
use crate::socket::{self, Recv};
use crate::streams::call::{Attempt, CallerKind, RETRY_AFTER};
use crate::streams::pipe::End;
use crate::streams::stream::{Stream, StreamOwner};
use crate::units::SECOND;
use crate::wire::{ConnectReply, ConnectRequest, StreamHeader};

/// The time that one way has to answer.
const REPLY_TIMEOUT: u64 = 6 * SECOND;

impl Daemon {
    /// Tries the next way of a call.
    pub(crate) fn try_call(&mut self, token: Token) {
        let now = self.now;
        let Some(call) = self.calls.get(&token).filter(|call| call.attempt.is_none() && !call.egress) else { return };
        let (host, port) = (call.host, call.target.port);
        let ways = self.ways_to(host, (!call.target.asks()).then_some(port));
        let is_due = |way: &String| call.tried.get(way).is_none_or(|(next, _)| *next <= now);
        let due = ways.into_iter().map(|(link, way)| (link, way.to_string())).find(|(_, way)| is_due(way));
        let Some(call) = self.calls.get_mut(&token) else { return };
        call.next = now + RETRY_AFTER;
        match due {
            Some((link, way)) => self.attempt(token, link, way),
            None => self.dial_soon(host),
        }
    }

    /// Sends a connect request on a way.
    fn attempt(&mut self, token: Token, link: Token, way: String) {
        let (now, from) = (self.now, self.own().name.clone());
        let Some(class) = self.calls.get(&token).map(|call| self.grid.class(call.host, call.target.port)) else {
            return;
        };
        let link = self.link_for(link, class);
        let Some(call) = self.calls.get_mut(&token) else { return };
        let source = match call.caller.kind {
            CallerKind::Client => None,
            CallerKind::Forward => socket::peer_addr(&call.caller.socket).map(|at| at.to_string()),
            CallerKind::Program(_) => source(&call.caller.socket),
        };
        let (host, port) = (call.target.host.clone(), call.target.port);
        let request = ConnectRequest {
            host,
            port,
            hops: MOST_RELAYS,
            from,
            source,
            through: Vec::new(),
            question: call.target.question.clone(),
            id: Some(call.id.clone()),
            resume: None,
        };
        let header = StreamHeader::Connect(request).bytes();
        let mux: Option<&mut Mux> = self.links.get_mut(&link).and_then(Link::mux);
        match mux.map(|mux| mux.open(class, &header)) {
            Some(Ok(stream)) => {
                let stream = (link, stream);
                call.attempt = Some(Attempt { stream, way, received: Vec::new(), deadline: now + REPLY_TIMEOUT });
                self.streams.insert(stream, StreamOwner::Call(token));
                self.unflushed.insert(link);
            }
            Some(Err(error)) => drop(call.tried.insert(way, (now + RETRY_AFTER, error.to_string()))),
            None => {}
        }
    }

    /// The reply comes, or a part of it.
    pub(crate) fn handle_reply(&mut self, token: Token, stream: Stream) {
        let mut buffer = [0; 1024];
        loop {
            // What follows the reply is payload. It stays in the stream until the caller is connected.
            let attempt = self.calls.get(&token).and_then(|call| call.attempt.as_ref());
            if attempt.is_none_or(|attempt| attempt.stream != stream) {
                return;
            }
            let read = self.read_stream(stream, &mut buffer);
            let Some(attempt) = self.calls.get_mut(&token).and_then(|call| call.attempt.as_mut()) else { return };
            let count = match read {
                Ok(Recv::Bytes(count)) => count,
                Ok(Recv::WouldBlock) => return,
                Ok(Recv::End) | Err(_) => {
                    return self.attempt_failed(token, ConnectReply::Unavailable, "it ended without a word");
                }
            };
            attempt.received.extend_from_slice(buffer.get(..count).unwrap_or_default());
            match ConnectReply::read(&attempt.received) {
                Ok(None) => {}
                Ok(Some((ConnectReply::Connected, _, len))) => {
                    let rest = attempt.received.split_off(len);
                    return self.call_connected(token, End::Stream(stream), rest);
                }
                Ok(Some((reply, why, _))) => return self.attempt_failed(token, reply, &why),
                Err(()) => return self.attempt_failed(token, ConnectReply::Unavailable, "it answered nonsense"),
            }
        }
    }

    /// The stream of an attempt was reset.
    pub(crate) fn attempt_lost(&mut self, token: Token, stream: Stream) {
        let current = self.calls.get(&token).and_then(|call| call.attempt.as_ref());
        if current.is_some_and(|attempt| attempt.stream == stream) {
            self.attempt_failed(token, ConnectReply::Unavailable, "the link broke");
        }
    }

    fn attempt_failed(&mut self, token: Token, reply: ConnectReply, why: &str) {
        let now = self.now;
        let Some(call) = self.calls.get_mut(&token) else { return };
        let Some(attempt) = call.attempt.take() else { return };
        call.next = now;
        call.tried.insert(attempt.way, (now + RETRY_AFTER, why.to_owned()));
        self.reset_stream(attempt.stream);
        if reply == ConnectReply::Refused {
            self.call_failed(token, why);
        }
    }
}

/// The address of a program's socket, if it has a port already.
fn source(socket: &OwnedFd) -> Option<String> {
    socket::local_addr(socket).filter(|at| at.port() != 0).map(|at| at.to_string())
}
