//! The attempts of a call: one way after another is asked to connect.

use std::os::fd::OwnedFd;

use madrigal_proto::mux::{Class, Mux, StreamId};

use crate::daemon::Daemon;
use crate::link::Link;
use crate::poll::Token;
use crate::routing::table::HOPS;
use crate::socket::{self, Got};
use crate::streams::call::{AGAIN, Ask, Kind};
use crate::streams::pipe::End;
use crate::streams::stream::Holder;
use crate::units::SECOND;
use crate::wire::{About, Order, Verdict};

/// How long one way may take to answer.
const PATIENCE: u64 = 6 * SECOND;

impl Daemon {
    /// Tries the next way of a call.
    pub(crate) fn try_call(&mut self, token: Token) {
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

    pub(crate) fn ask(&mut self, token: Token, link: Token, way: String) {
        let (now, from) = (self.now, self.own().name.clone());
        let Some(call) = self.calls.get_mut(&token) else { return };
        let source = match call.caller.kind {
            Kind::Client => None,
            Kind::Forward => socket::peer(&call.caller.socket).map(|at| at.to_string()),
            Kind::Program(_) => source(&call.caller.socket),
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
}

/// The address that a program's socket has by now.
fn source(socket: &OwnedFd) -> Option<String> {
    socket::own(socket).filter(|at| at.port() != 0).map(|at| at.to_string())
}
