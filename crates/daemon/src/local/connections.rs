//! Connections of unmodified programs through this daemon. The preloaded library asks for them.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt;

use crate::daemon::Daemon;
use crate::local::connection::{Route, RouteStatus};
use crate::local::decoy::turn_off;
use crate::poll::Token;
use crate::streams::call::{Caller, Kind};
use crate::streams::pipe::End;
use crate::streams::stream::Stream;
use crate::units::SECOND;
use crate::wire::{Target, Wanted};

/// Routes that are over, or failed, and still told about.
const REMEMBERED: usize = 64;
/// Routes that are told at once.
const MOST: usize = 400;

impl Daemon {
    /// A program wants its socket, of which a copy came along, connected to a port of a host: whether that can be.
    pub(crate) fn judge_route(&self, passed: Option<OwnedFd>, wanted: Wanted) -> Result<(OwnedFd, Wanted), String> {
        let theirs = passed.ok_or("no socket came along")?;
        let known = self.grid.host(&wanted.host).ok_or_else(|| format!("the grid has no host `{}`", wanted.host));
        match self.decoys.judge(&theirs).and(known) {
            Ok(_) => Ok((theirs, wanted)),
            Err(why) => {
                // The program may not have waited for the answer.
                if !wanted.waits {
                    turn_off(&theirs);
                }
                Err(why)
            }
        }
    }

    /// Tells a program at which ports its socket is to wait, and calls. One that waits for that word, and went on without it, wants nothing
    /// any more: its socket may be on its way elsewhere.
    pub(crate) fn begin_route(&mut self, client: Token, pid: u32, theirs: OwnedFd, wanted: Wanted) {
        let ports = self.decoys.ports().map(|port| port.to_string()).join(" ").into_bytes();
        if !self.reply(client, &Ok(ports)) && wanted.waits {
            return;
        }
        let Some((peer, _)) = self.grid.host(&wanted.host) else { return };
        let asked = wanted.asked.parse::<SocketAddr>().ok();
        let told = RouteStatus {
            pid,
            asked: wanted.asked.clone(),
            host: wanted.host.clone(),
            port: wanted.port,
            why: self.why_daemon(peer, asked),
            ..RouteStatus::default()
        };
        let cookie = sockopt::socket_cookie(&theirs).unwrap_or(0);
        let id = self.keep_route(Route { id: 0, cookie, since: self.now, pipe: None, errno: None, told });
        let token = self.token();
        let target = Target { host: wanted.host, port: wanted.port, from: 0, within: None, question: None };
        self.call(Caller { socket: theirs, token, kind: Kind::Program(id), staged: Vec::new() }, target);
    }

    fn keep_route(&mut self, mut route: Route) -> u64 {
        self.routes.last += 1;
        let id = self.routes.last;
        route.id = id;
        let over = |daemon: &Self, route: &Route| match route.pipe {
            Some(pipe) => !daemon.pipes.contains_key(&pipe),
            None => route.errno.is_some(),
        };
        let ended = self.routes.all.iter().filter(|route| over(self, route)).count();
        if ended > REMEMBERED {
            let mut all = std::mem::take(&mut self.routes.all);
            let mut surplus = ended - REMEMBERED;
            all.retain(|route| {
                let goes = surplus > 0 && over(self, route);
                surplus -= usize::from(goes);
                !goes
            });
            self.routes.all = all;
        }
        self.routes.all.push_back(route);
        id
    }

    fn route(&mut self, id: u64) -> Option<&mut Route> {
        self.routes.all.iter_mut().rev().find(|route| route.id == id)
    }

    /// A way was found; what it is called.
    pub(crate) fn route_found(&mut self, id: u64, far: &End, way: &str) {
        let tls = self.is_enciphered(far);
        let Some(host) = self.route(id).map(|route| route.told.host.clone()) else { return };
        let hops = self.hops(way, &host);
        if let Some(route) = self.route(id) {
            (route.told.hops, route.told.tls) = (hops, tls);
        }
    }

    /// A pipe goes on by another way.
    pub(crate) fn route_moved(&mut self, pipe: Token, stream: Stream, way: &str) {
        if let Some(id) = self.routes.all.iter().find(|route| route.pipe == Some(pipe)).map(|route| route.id) {
            self.route_found(id, &End::Stream(stream), way);
        }
    }

    /// The program's end is connected, too.
    pub(crate) fn route_joined(&mut self, id: u64, local: Option<SocketAddr>, pipe: Token) {
        if let Some(route) = self.route(id) {
            route.pipe = Some(pipe);
            route.told.local = local.map(|at| SocketAddr::new(at.ip().to_canonical(), at.port()).to_string());
        }
    }

    /// A connection from another host was made to a server of this one: from this address of the daemon's to that of the server's.
    pub(crate) fn route_let_in(
        &mut self,
        pipe: Token,
        near: Option<SocketAddr>,
        server: SocketAddr,
        (hops, tls): (Vec<String>, bool),
    ) {
        let told = RouteStatus {
            local: near.map(|at| at.to_string()),
            host: self.own().name.clone(),
            port: server.port(),
            hops: [hops.as_slice(), &[self.own().name.clone()]].concat(),
            tls,
            why: "let in by the daemon".to_owned(),
            server: Some(server.to_string()),
            ..RouteStatus::default()
        };
        self.keep_route(Route { id: 0, cookie: 0, since: self.now, pipe: Some(pipe), errno: None, told });
    }

    /// It comes by another way now.
    pub(crate) fn route_let_in_moved(&mut self, pipe: Token, stream: Stream, hops: &[String]) {
        let (tls, own) = (self.is_enciphered(&End::Stream(stream)), self.own().name.clone());
        if let Some(route) = self.routes.all.iter_mut().find(|route| route.pipe == Some(pipe)) {
            (route.told.hops, route.told.tls) = ([hops, &[own]].concat(), tls);
        }
    }

    /// There is none.
    pub(crate) fn route_failed(&mut self, id: u64, why: &str, errno: Errno) {
        if let Some(route) = self.route(id) {
            route.errno = Some(errno);
            route.told.error = Some(why.to_owned());
        }
    }

    /// Why the call of the socket of this name failed, as the number of an error; 0 where it did not.
    pub(crate) fn verdict(&self, cookie: &[u8]) -> Vec<u8> {
        let cookie = std::str::from_utf8(cookie).ok().and_then(|text| text.parse::<u64>().ok());
        let route = self.routes.all.iter().rev().find(|route| Some(route.cookie) == cookie);
        let errno = route.and_then(|route| route.errno).map_or(0, Errno::raw_os_error);
        errno.to_string().into_bytes()
    }

    /// All of them, as JSON.
    pub(crate) fn tell_programs(&self) -> Vec<u8> {
        let told = self.routes.all.iter().rev().take(MOST).map(|route| RouteStatus {
            open: route.pipe.is_some_and(|pipe| self.pipes.contains_key(&pipe)),
            age: self.now.saturating_sub(route.since) / SECOND,
            stays: route.pipe.and_then(|pipe| self.stays(pipe)),
            ..route.told.clone()
        });
        serde_json::to_vec(&told.collect::<Vec<_>>()).unwrap_or_default()
    }
}
