//! The default store: the daemon of one host keeps all pools (`keeper.rs`). This is another daemon's side of it, or that daemon's own: a
//! stream to it, made as a program makes one, by the control socket. It is made when the first pool is watched. Where it ends, the keeper
//! takes this daemon for lost; a new one has a new number.

use std::path::PathBuf;

use madrigal_pools::record::{Record, Refusal};
use madrigal_pools::wire::LONGEST_REPLY;

use super::connections::{Connections, Kind};
use super::keeper::{FromKeeper, ToKeeper};
use super::store::{Store, Told};
use crate::poll::Token;
use crate::socket;
use crate::wire::{self, Question, Target};

/// The longest refusal of a daemon.
const LONGEST_ANSWER: usize = 16 << 10;

/// The stream to the keeper.
pub(super) struct KeeperLink {
    /// The control socket of this daemon.
    control: PathBuf,
    /// The host that keeps the pools.
    host: String,
    stream: Option<Token>,
    /// The number of this daemon on that stream.
    daemon: u64,
    /// The daemon has answered that it is connected.
    connected: bool,
}

impl KeeperLink {
    pub(super) fn new(control: PathBuf, host: String) -> Self {
        Self { control, host, stream: None, daemon: 0, connected: false }
    }

    fn next(&mut self, token: Token, connections: &mut Connections) -> Result<Option<FromKeeper>, String> {
        if !self.connected {
            let Some(inbox) = connections.inbox(token) else { return Ok(None) };
            match wire::take(inbox, LONGEST_ANSWER)? {
                None => return Ok(None),
                Some((wire::DONE, _, whole)) => {
                    inbox.drain(..whole);
                    self.connected = true;
                }
                Some((_, why, _)) => return Err(String::from_utf8_lossy(&why).into_owned()),
            }
        }
        connections.next(token, LONGEST_REPLY)
    }

    /// The stream has ended, or is ended.
    fn lost(&mut self, why: &str, connections: &mut Connections) -> Told {
        if let Some(stream) = self.stream.take() {
            connections.close(stream);
        }
        self.connected = false;
        Told::Lost(self.daemon, format!("host {}, whose daemon keeps the pools, is lost: {why}", self.host))
    }

    fn say(&mut self, message: &ToKeeper, connections: &mut Connections) {
        if let Some(stream) = self.stream {
            connections.send(stream, message);
        }
    }

    /// Begins to connect.
    fn connect(&mut self, daemon: u64, connections: &mut Connections) -> Result<(), String> {
        let socket = socket::dial_unix(&self.control).map_err(|errno| format!("its own control socket: {errno}"))?;
        let added = connections.add(Kind::Keeper, socket, None, Vec::new());
        let stream = added.map_err(|errno| format!("epoll_ctl(2): {errno}"))?;
        let target = Target { host: self.host.clone(), question: Some(Question::Pools), ..Target::default() };
        connections.send_bytes(stream, &wire::json(wire::CONNECT, &target));
        connections.send(stream, &ToKeeper::Hello(daemon));
        (self.stream, self.daemon, self.connected) = (Some(stream), daemon, false);
        Ok(())
    }
}

impl Store for KeeperLink {
    fn watch(&mut self, daemon: u64, pool: &str, connections: &mut Connections) -> Result<(), String> {
        if self.stream.is_none() {
            self.connect(daemon, connections)?;
        }
        self.say(&ToKeeper::Watch(pool.to_owned()), connections);
        Ok(())
    }

    fn forget(&mut self, pool: &str, connections: &mut Connections) {
        self.say(&ToKeeper::Forget(pool.to_owned()), connections);
    }

    fn append(&mut self, pool: &str, record: Record, connections: &mut Connections) {
        self.say(&ToKeeper::Append(pool.to_owned(), record), connections);
    }

    fn take_told(&mut self, stream: Option<(Token, bool)>, connections: &mut Connections) -> Vec<Told> {
        let mut told = Vec::new();
        let Some((token, ended)) = stream else { return told };
        if self.stream != Some(token) {
            connections.close(token);
            return told;
        }
        loop {
            match self.next(token, connections) {
                Ok(Some(FromKeeper::Snapshot(pool, state))) => told.push(Told::Snapshot(pool, state)),
                Ok(Some(FromKeeper::Record(pool, record))) => told.push(Told::Record(pool, record)),
                Ok(Some(FromKeeper::Refused(pool, why))) => told.push(Told::Refused(pool, Refusal::Full(why))),
                Ok(None) if ended => told.push(self.lost("the stream to it has ended", connections)),
                Ok(None) => return told,
                Err(why) => told.push(self.lost(&why, connections)),
            }
            if self.stream.is_none() {
                return told;
            }
        }
    }

    fn place(&self) -> String {
        format!("the daemon of {}", self.host)
    }
}
