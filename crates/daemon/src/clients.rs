//! Local clients, on the Unix socket: programs of the same user. Each asks one thing, with one frame.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use crate::calls::{Caller, Kind};
use crate::daemon::{Daemon, SECOND, Thing};
use crate::local;
use crate::poll::Token;
use crate::socket::{self, Got};
use crate::wire::{self, Target, Wanted};

/// How long a client may take to ask.
const PATIENCE: u64 = 10 * SECOND;
/// The longest question; what follows it is for the other end of a stream, and waits in the socket.
const LONGEST: usize = 16 << 10;

/// A client that has not asked, or for which a port is held.
pub(crate) struct Client {
    socket: OwnedFd,
    inbox: Vec<u8>,
    /// A descriptor that came along.
    passed: Option<OwnedFd>,
    pub(crate) deadline: u64,
    forward: Option<Token>,
}

/// A local port that leads to another host.
pub(crate) struct Forward {
    listener: TcpListener,
    target: Target,
}

impl Daemon {
    /// Takes clients.
    pub(crate) fn accept_clients(&mut self) {
        while let Some(socket) = self.accept_client() {
            let token = self.token();
            if !socket::is_ours(&socket) || self.poll.add(&socket, token).is_err() {
                continue;
            }
            let deadline = self.now + PATIENCE;
            self.things.insert(token, Thing::Client);
            self.clients.insert(token, Client { socket, inbox: Vec::new(), passed: None, deadline, forward: None });
        }
    }

    /// A client says something, or left.
    pub(crate) fn handle_client(&mut self, token: Token) {
        let mut buffer = [0; 4096];
        loop {
            let Some(client) = self.clients.get_mut(&token) else { return };
            match socket::recv_passing(&client.socket, &mut buffer, &mut client.passed) {
                Ok(Got::Bytes(count)) if client.forward.is_none() => {
                    client.inbox.extend_from_slice(buffer.get(..count).unwrap_or_default());
                }
                Ok(Got::Bytes(_)) => {}
                Ok(Got::Nothing) => return,
                Ok(Got::End) | Err(_) => return self.drop_client(token),
            }
            match wire::take(&client.inbox, LONGEST) {
                Ok(None) => {}
                Ok(Some((kind, body, len))) => {
                    let rest = client.inbox.split_off(len);
                    client.inbox = Vec::new();
                    return self.answer(token, kind, &body, rest);
                }
                Err(_) => return self.drop_client(token),
            }
        }
    }

    pub(crate) fn drop_client(&mut self, token: Token) {
        self.things.remove(&token);
        if let Some(forward) = self.clients.remove(&token).and_then(|client| client.forward) {
            self.things.remove(&forward);
            self.forwards.remove(&forward);
        }
    }

    fn answer(&mut self, token: Token, kind: u8, body: &[u8], rest: Vec<u8>) {
        let target = || serde_json::from_slice::<Target>(body).map_err(|error| error.to_string());
        let answer = match kind {
            wire::STATUS => Ok(self.status()),
            wire::STOP => {
                self.ending = true;
                Ok(Vec::new())
            }
            wire::CONNECT => match target() {
                Ok(target) => {
                    let Some(Client { socket, .. }) = self.clients.remove(&token) else { return };
                    return self.call(Caller { socket, token, kind: Kind::Client, staged: rest }, target);
                }
                Err(wrong) => Err(wrong),
            },
            wire::RELOAD => self.reload(),
            wire::LINK => return self.lead(token),
            wire::FORWARD => target().and_then(|target| self.forward(token, target)),
            wire::ROUTE => {
                let client = self.clients.get_mut(&token);
                let (pid, passed) = client.map(|c| (socket::process(&c.socket), c.passed.take())).unwrap_or_default();
                let wanted = serde_json::from_slice::<Wanted>(body).map_err(|error| error.to_string());
                match wanted.and_then(|wanted| self.judge_route(passed, wanted)) {
                    Ok((theirs, wanted)) => return self.begin_route(token, pid, theirs, wanted),
                    Err(why) => Err(why),
                }
            }
            wire::ROUTES => Ok(self.tell_programs()),
            wire::VERDICT => Ok(self.verdict(body)),
            other => Err(format!("this daemon knows no question {other}")),
        };
        self.reply(token, &answer);
    }

    /// Answers a client; whether it can have heard.
    pub(crate) fn reply(&mut self, token: Token, answer: &Result<Vec<u8>, String>) -> bool {
        let Some(client) = self.clients.get_mut(&token) else { return false };
        let frame = match answer {
            Ok(body) => wire::frame(wire::DONE, body),
            Err(why) => wire::frame(wire::FAILED, why.as_bytes()),
        };
        let received = socket::send(&client.socket, &frame) == Ok(frame.len());
        if client.forward.is_none() || !received {
            self.drop_client(token);
        }
        received
    }

    /// A client leads to another daemon: its connection becomes a link.
    fn lead(&mut self, token: Token) {
        let Some(Client { socket, .. }) = self.clients.remove(&token) else { return };
        self.things.remove(&token);
        self.poll.remove(&socket);
        if socket::send(&socket, &wire::frame(wire::DONE, b"")).is_ok() {
            let channel = self.channel_from(socket);
            self.add_command_link(channel);
        }
    }

    /// Listens at a local port for a client.
    fn forward(&mut self, client: Token, target: Target) -> Result<Vec<u8>, String> {
        if self.grid.host(&target.host).is_none() {
            return Err(format!(
                "the grid has no host `{}`; there are {}",
                target.host,
                crate::status::names(&self.grid)
            ));
        }
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), target.from);
        let token = self.token();
        let made = local::listen_at(at).and_then(|socket| self.poll.add_listener(&socket, token).map(|()| socket));
        let listener = made.map_err(|errno| format!("cannot listen at {at}: {errno}"))?;
        let port = socket::own(&listener).map_or(0, |at| at.port());
        let Some(client) = self.clients.get_mut(&client) else { return Err("the client left".to_owned()) };
        (client.forward, client.deadline) = (Some(token), u64::MAX);
        self.things.insert(token, Thing::Forward);
        self.forwards.insert(token, Forward { listener, target });
        Ok(port.to_string().into_bytes())
    }

    /// Takes programs that call a forwarded port.
    pub(crate) fn answer_forward(&mut self, forward: Token) {
        while let Some(Forward { listener, target }) = self.forwards.get(&forward) {
            let Some(socket) = local::accept(listener) else { return };
            let target = target.clone();
            let token = self.token();
            if self.poll.add(&socket, token).is_ok() {
                local::reset_at_close(&socket, true);
                self.call(Caller { socket, token, kind: Kind::Forward, staged: Vec::new() }, target);
            }
        }
    }
}
