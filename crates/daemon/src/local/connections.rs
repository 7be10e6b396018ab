//! Connections of unmodified programs through this daemon. The preloaded library requests them.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt;

use crate::daemon::Daemon;
use crate::local::connection::{Connection, ConnectionStatus};
use crate::local::parked::Outcome;
use crate::poll::Token;
use crate::socket;
use crate::streams::call::{Caller, CallerKind};
use crate::streams::pipe::End;
use crate::streams::stream::Stream;
use crate::units::SECOND;
use crate::wire::{self, ProgramTarget, Target};

/// Connections that ended or failed, and are still reported.
const KEPT_AFTER_END: usize = 64;
/// Connections in one report.
const MOST_REPORTED: usize = 400;

impl Daemon {
    /// Whether a program's socket, of which `passed` is a copy, can be connected to `target`.
    pub(crate) fn check_program_target(
        &mut self,
        passed: Option<OwnedFd>,
        target: ProgramTarget,
    ) -> Result<(OwnedFd, ProgramTarget), String> {
        let theirs = passed.ok_or("no socket came along")?;
        let known = self.grid.host(&target.host).ok_or_else(|| format!("the grid has no host `{}`", target.host));
        match self.decoys.check(&theirs).and(known) {
            Ok(_) => Ok((theirs, target)),
            Err(why) => {
                // The program does not wait for the answer: its connect is parked already, or will be.
                if !target.waits {
                    self.park(theirs, Outcome::Refuse);
                }
                Err(why)
            }
        }
    }

    /// Sends a program the ports of the decoys, and begins the call. If a program that waits for this answer has closed its connection, it
    /// has given up, and its socket may be connecting elsewhere.
    pub(crate) fn begin_connection(&mut self, client: Token, pid: u32, theirs: OwnedFd, target: ProgramTarget) {
        let ports = self.decoys.ports().map(|port| port.to_string()).join(" ").into_bytes();
        let told = if target.told { self.take_client(client) } else { None };
        let answered = match &told {
            Some(socket) => socket::send(socket, &wire::frame(wire::DONE, &ports)).is_ok(),
            None => self.reply(client, &Ok(ports)),
        };
        if !answered && target.waits {
            return;
        }
        let Some((peer, _)) = self.grid.host(&target.host) else { return };
        let asked = target.asked.parse::<SocketAddr>().ok();
        let status = ConnectionStatus {
            pid,
            asked: target.asked.clone(),
            host: target.host.clone(),
            port: target.port,
            why: self.why_daemon(peer, asked),
            ..ConnectionStatus::default()
        };
        let cookie = sockopt::socket_cookie(&theirs).unwrap_or(0);
        let (since, pipe, errno) = (self.now, None, None);
        let id = self.add_connection(Connection { id: 0, cookie, since, pipe, errno, told, status });
        let token = self.new_token();
        let call_target = Target { host: target.host, port: target.port, ..Target::default() };
        self.call(Caller { socket: theirs, token, kind: CallerKind::Program(id), staged: Vec::new() }, call_target);
    }

    fn add_connection(&mut self, mut connection: Connection) -> u64 {
        self.connections.last += 1;
        let id = self.connections.last;
        connection.id = id;
        let over = |daemon: &Self, connection: &Connection| match connection.pipe {
            Some(pipe) => !daemon.pipes.contains_key(&pipe),
            None => connection.errno.is_some(),
        };
        let ended = self.connections.all.iter().filter(|connection| over(self, connection)).count();
        if ended > KEPT_AFTER_END {
            let mut all = std::mem::take(&mut self.connections.all);
            let mut surplus = ended - KEPT_AFTER_END;
            all.retain(|connection| {
                let remove = surplus > 0 && over(self, connection);
                surplus -= usize::from(remove);
                !remove
            });
            self.connections.all = all;
        }
        self.connections.all.push_back(connection);
        id
    }

    fn connection(&mut self, id: u64) -> Option<&mut Connection> {
        self.connections.all.iter_mut().rev().find(|connection| connection.id == id)
    }

    /// A call of a program found a way.
    pub(crate) fn connection_found(&mut self, id: u64, far: &End, way: &str) {
        let tls = self.is_encrypted(far);
        let Some(host) = self.connection(id).map(|connection| connection.status.host.clone()) else { return };
        let hops = self.hops(way, &host);
        if let Some(connection) = self.connection(id) {
            (connection.status.hops, connection.status.tls) = (hops, tls);
        }
    }

    /// A pipe migrated to another way.
    pub(crate) fn connection_migrated(&mut self, pipe: Token, stream: Stream, way: &str) {
        if let Some(id) =
            self.connections.all.iter().find(|connection| connection.pipe == Some(pipe)).map(|connection| connection.id)
        {
            self.connection_found(id, &End::Stream(stream), way);
        }
    }

    /// The program's socket is connected to the pipe.
    pub(crate) fn connection_joined(&mut self, id: u64, local: Option<SocketAddr>, pipe: Token) {
        if let Some(connection) = self.connection(id) {
            (connection.pipe, connection.told) = (Some(pipe), None);
            connection.status.local = local.map(|at| SocketAddr::new(at.ip().to_canonical(), at.port()).to_string());
        }
    }

    /// A connection from another host was made to a server of this one; `near` is the daemon's end of it.
    pub(crate) fn connection_let_in(
        &mut self,
        pipe: Token,
        near: Option<SocketAddr>,
        server: SocketAddr,
        (hops, tls): (Vec<String>, bool),
    ) {
        let status = ConnectionStatus {
            local: near.map(|at| at.to_string()),
            host: self.own().name.clone(),
            port: server.port(),
            hops: [hops.as_slice(), &[self.own().name.clone()]].concat(),
            tls,
            why: "let in by the daemon".to_owned(),
            server: Some(server.to_string()),
            ..ConnectionStatus::default()
        };
        let (since, pipe, errno, told) = (self.now, Some(pipe), None, None);
        self.add_connection(Connection { id: 0, cookie: 0, since, pipe, errno, told, status });
    }

    /// A connection from another host migrated to another way.
    pub(crate) fn let_in_migrated(&mut self, pipe: Token, stream: Stream, hops: &[String]) {
        let (tls, own) = (self.is_encrypted(&End::Stream(stream)), self.own().name.clone());
        if let Some(connection) = self.connections.all.iter_mut().find(|connection| connection.pipe == Some(pipe)) {
            (connection.status.hops, connection.status.tls) = ([hops, &[own]].concat(), tls);
        }
    }

    /// A program's call failed.
    pub(crate) fn connection_failed(&mut self, id: u64, why: &str, errno: Errno) {
        if let Some(connection) = self.connection(id) {
            connection.errno = Some(errno);
            connection.status.error = Some(why.to_owned());
            if let Some(told) = connection.told.take() {
                // Who has left is told nothing.
                let _ = socket::send(&told, &wire::frame(wire::FAILED, why.as_bytes()));
            }
        }
    }

    /// The error number of the connect of the socket with this cookie; 0 if it has not failed.
    pub(crate) fn connect_error(&self, cookie: &[u8]) -> Vec<u8> {
        let cookie = std::str::from_utf8(cookie).ok().and_then(|text| text.parse::<u64>().ok());
        let connection = self.connections.all.iter().rev().find(|connection| Some(connection.cookie) == cookie);
        let errno = connection.and_then(|connection| connection.errno).map_or(0, Errno::raw_os_error);
        errno.to_string().into_bytes()
    }

    /// All connections, as JSON.
    pub(crate) fn connections_json(&self) -> Vec<u8> {
        let status = self.connections.all.iter().rev().take(MOST_REPORTED).map(|connection| ConnectionStatus {
            open: connection.pipe.is_some_and(|pipe| self.pipes.contains_key(&pipe)),
            age: self.now.saturating_sub(connection.since) / SECOND,
            stays: connection.pipe.and_then(|pipe| self.stays(pipe)),
            ..connection.status.clone()
        });
        serde_json::to_vec(&status.collect::<Vec<_>>()).unwrap_or_default()
    }
}
