//! The control socket: programs of the same user send one request each, in one frame.

use std::os::fd::OwnedFd;

use crate::control::connection::ControlConnection;
use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::poll::Token;
use crate::socket::{self, Recv};
use crate::streams::call::{Caller, CallerKind};
use crate::units::SECOND;
use crate::wire::{self, ProgramTarget, Target};

/// The time that a client has to send its request.
const REQUEST_TIMEOUT: u64 = 10 * SECOND;
/// The time that a client has to read a long answer.
const ANSWER_TIMEOUT: u64 = 10 * SECOND;
/// The longest request. Bytes behind it are for the other end of a stream.
const LONGEST_REQUEST: usize = 16 << 10;

impl Daemon {
    /// Accepts connections to the control socket.
    pub(crate) fn accept_clients(&mut self) {
        while let Some(socket) = self.accept_client() {
            let token = self.new_token();
            if !socket::is_same_user(&socket) || self.poll.add(&socket, token).is_err() {
                continue;
            }
            let deadline = self.now + REQUEST_TIMEOUT;
            self.descriptors.insert(token, Descriptor::Client);
            let (inbox, outbox) = Default::default();
            self.clients
                .insert(token, ControlConnection { socket, inbox, passed: None, outbox, deadline, forward: None });
        }
    }

    fn accept_client(&mut self) -> Option<OwnedFd> {
        match socket::accept(&self.listener) {
            Ok(socket) => socket,
            Err(errno) => {
                self.log_line(&format!("cannot take a client: {errno}"));
                None
            }
        }
    }

    /// A control connection is readable, has room, or was closed.
    pub(crate) fn handle_client(&mut self, token: Token) {
        if self.clients.get(&token).is_some_and(|client| !client.outbox.is_empty()) {
            return self.send_outbox(token);
        }
        let mut buffer = [0; 4096];
        loop {
            let Some(client) = self.clients.get_mut(&token) else { return };
            match socket::recv_passing(&client.socket, &mut buffer, &mut client.passed) {
                Ok(Recv::Bytes(count)) if client.forward.is_none() => {
                    client.inbox.extend_from_slice(buffer.get(..count).unwrap_or_default());
                }
                Ok(Recv::Bytes(_)) => {}
                Ok(Recv::WouldBlock) => return,
                Ok(Recv::End) | Err(_) => return self.drop_client(token),
            }
            match wire::take(&client.inbox, LONGEST_REQUEST) {
                Ok(None) => {}
                Ok(Some((kind, body, len))) => {
                    let rest = client.inbox.split_off(len);
                    client.inbox = Vec::new();
                    return self.handle_request(token, kind, &body, rest);
                }
                Err(_) => return self.drop_client(token),
            }
        }
    }

    fn handle_request(&mut self, token: Token, kind: u8, body: &[u8], rest: Vec<u8>) {
        let target = || serde_json::from_slice::<Target>(body).map_err(|error| error.to_string());
        let answer = match kind {
            wire::STATUS => Ok(self.status()),
            wire::STOP => {
                self.stopping = true;
                Ok(Vec::new())
            }
            wire::CONNECT => match target() {
                Ok(target) => {
                    let Some(ControlConnection { socket, .. }) = self.clients.remove(&token) else { return };
                    return self.call(Caller { socket, token, kind: CallerKind::Client, staged: rest }, target);
                }
                Err(wrong) => Err(wrong),
            },
            wire::RELOAD => self.reload(),
            wire::POOL => return self.hand_program_over(token, rest),
            wire::LINK => return self.accept_command_link(token),
            wire::FORWARD => target().and_then(|target| match target.datagrams {
                Some(wanted) => self.begin_datagrams(token, target, wanted),
                None => self.begin_forward(token, target),
            }),
            wire::ROUTE => {
                let client = self.clients.get_mut(&token);
                let (pid, passed) = client.map(|c| (socket::peer_pid(&c.socket), c.passed.take())).unwrap_or_default();
                let request = serde_json::from_slice::<ProgramTarget>(body).map_err(|error| error.to_string());
                match request.and_then(|request| self.check_program_target(passed, request)) {
                    Ok((socket, request)) => return self.begin_connection(token, pid, socket, request),
                    Err(why) => Err(why),
                }
            }
            wire::CONNECTIONS => Ok(self.connections_json()),
            wire::VERDICT => Ok(self.connect_error(body)),
            other => Err(format!("this daemon knows no question {other}")),
        };
        self.reply(token, &answer);
    }

    /// Answers a client. Returns whether its socket took the answer, or a first part of it.
    pub(crate) fn reply(&mut self, token: Token, answer: &Result<Vec<u8>, String>) -> bool {
        let now = self.now;
        let Some(client) = self.clients.get_mut(&token) else { return false };
        let mut frame = match answer {
            Ok(body) => wire::frame(wire::DONE, body),
            Err(why) => wire::frame(wire::FAILED, why.as_bytes()),
        };
        let taken = socket::send(&client.socket, &frame).unwrap_or(0);
        if taken > 0 && taken < frame.len() {
            // The status of many hosts is longer than a socket's buffer.
            client.outbox = frame.split_off(taken);
            client.deadline = now + ANSWER_TIMEOUT;
            self.send_outbox(token);
            return true;
        }
        if client.forward.is_none() || taken == 0 {
            self.drop_client(token);
        }
        taken > 0
    }

    /// Sends more of an answer that is too long for a socket's buffer.
    fn send_outbox(&mut self, token: Token) {
        while let Some(client) = self.clients.get_mut(&token) {
            match socket::send(&client.socket, &client.outbox) {
                Ok(0) => return,
                Ok(count) if count < client.outbox.len() => drop(client.outbox.drain(..count)),
                _ => return self.drop_client(token),
            }
        }
    }

    /// A client connects to another daemon, as by ssh: its connection becomes a link.
    fn accept_command_link(&mut self, token: Token) {
        let Some(socket) = self.take_client(token) else { return };
        if socket::send(&socket, &wire::frame(wire::DONE, b"")).is_ok() {
            let channel = self.channel_from(socket);
            self.add_command_link(channel);
        }
    }

    /// A control connection becomes something else.
    pub(crate) fn take_client(&mut self, token: Token) -> Option<OwnedFd> {
        let ControlConnection { socket, .. } = self.clients.remove(&token)?;
        self.descriptors.remove(&token);
        self.poll.remove(&socket);
        Some(socket)
    }

    /// Closes a control connection, and the port that is forwarded for it.
    pub(crate) fn drop_client(&mut self, token: Token) {
        self.descriptors.remove(&token);
        if let Some(forward) = self.clients.remove(&token).and_then(|client| client.forward) {
            self.descriptors.remove(&forward);
            self.forwards.remove(&forward);
            self.end_datagrams(forward);
        }
    }
}
