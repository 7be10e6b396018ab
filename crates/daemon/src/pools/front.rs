//! The programs of this host, and a copy of each pool that has one of them. What programs ask becomes records of the store; what records
//! change is told to the programs.
//!
//! A member that is suspected: the daemon that asks writes `Suspect`, the member's own daemon answers with `Alive` or `Died`. If neither comes
//! within [`ANSWERS_WITHIN`], that daemon is lost, for whoever asked.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use madrigal_pools::pool::{Applied, Pool};
use madrigal_pools::record::{Entry, Record, Refusal};
use madrigal_pools::view::Change;
use madrigal_pools::wire::{LONGEST_REQUEST, Reply, Request};
use madrigal_pools::{MemberId, limits};
use madrigal_sys::process;

use super::connections::Connections;
use super::session::Session;
use super::store::{Store, Told};
use crate::poll::Token;
use crate::units::MILLISECOND;

/// The most pools of the programs of one host.
const POOLS: usize = 256;
/// The time that the daemon of a suspected member has.
const ANSWERS_WITHIN: u64 = 1500 * MILLISECOND;

/// A copy of a pool.
#[derive(Default)]
struct Copy {
    /// `None` until the store has told it.
    pool: Option<Pool>,
    sessions: BTreeSet<Token>,
    /// Daemons that are to answer, and until when.
    suspects: BTreeMap<u64, u64>,
}

/// The programs, and their pools.
pub(super) struct Front {
    /// The number of this daemon in records.
    daemon: u64,
    /// Its host and site.
    location: String,
    sessions: HashMap<Token, Session>,
    copies: BTreeMap<String, Copy>,
}

impl Front {
    pub(super) fn new(location: String) -> Self {
        Self { daemon: process::random(), location, sessions: HashMap::new(), copies: BTreeMap::new() }
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = (&String, &Pool)> {
        self.copies.iter().filter_map(|(name, copy)| Some((name, copy.pool.as_ref()?)))
    }

    pub(super) fn begin(&mut self, token: Token) {
        self.sessions.insert(token, Session::default());
    }

    /// Takes what a program has sent. One that breaks the protocol is dead.
    pub(super) fn handle(&mut self, token: Token, store: &mut dyn Store, connections: &mut Connections) {
        loop {
            match connections.next::<Request>(token, LONGEST_REQUEST) {
                Ok(Some(request)) => {
                    if let Err(wrong) = self.request(token, request, store, connections) {
                        connections.send(token, &Reply::Dead { why: wrong });
                        return self.end(token, store, connections);
                    }
                }
                Ok(None) => return,
                Err(wrong) => {
                    connections.send(token, &Reply::Dead { why: format!("it has sent nonsense: {wrong}") });
                    return self.end(token, store, connections);
                }
            }
            if let Some(session) = self.sessions.get_mut(&token) {
                session.balance(token, connections);
            }
        }
    }

    /// An error: it may not ask that.
    fn request(
        &mut self,
        token: Token,
        request: Request,
        store: &mut dyn Store,
        connections: &mut Connections,
    ) -> Result<(), String> {
        let Some(session) = self.sessions.get_mut(&token) else { return Ok(()) };
        let Request { number, pool, mut entry } = request;
        match &mut entry {
            Entry::Died | Entry::Alive | Entry::Lost { .. } => return Err("only daemons write that".to_owned()),
            Entry::Join { location, .. } if session.pool.is_none() => {
                location.clone_from(&self.location);
                session.joining = Some(number);
                let opened = limits::check(&entry).and_then(|()| self.open(token, &pool, store, connections));
                if let Err(why) = opened {
                    connections.send(token, &Reply::Answer { number, result: Err(why) });
                    self.sessions.remove(&token);
                    connections.close(token);
                    return Ok(());
                }
            }
            Entry::Join { .. } => return Err("this process is a member of a pool, or wants to be".to_owned()),
            _ if session.pool.is_none() => return Err("it has joined no pool".to_owned()),
            Entry::Leave => session.leaves = true,
            _ => {}
        }
        let Some(session) = self.sessions.get_mut(&token) else { return Ok(()) };
        if let Err(why) = limits::check(&entry) {
            session.answer(token, Reply::Answer { number, result: Err(why) }, connections);
            return Ok(());
        }
        session.unanswered += 1;
        let pool = session.pool.clone().unwrap_or_default();
        store.append(&pool, Record { daemon: self.daemon, session: token, request: number, entry }, connections);
        Ok(())
    }

    /// The copy of a pool for a session that wants to join it.
    fn open(
        &mut self,
        token: Token,
        pool: &str,
        store: &mut dyn Store,
        connections: &mut Connections,
    ) -> Result<(), Refusal> {
        if !limits::is_name(pool) {
            return Err(Refusal::Invalid("that is no name of a pool".to_owned()));
        }
        if !self.copies.contains_key(pool) {
            if self.copies.len() >= POOLS {
                return Err(Refusal::Full(format!("programs of one host are in {POOLS} pools at most")));
            }
            store.watch(self.daemon, pool, connections).map_err(Refusal::Store)?;
        }
        self.copies.entry(pool.to_owned()).or_default().sessions.insert(token);
        if let Some(session) = self.sessions.get_mut(&token) {
            session.pool = Some(pool.to_owned());
        }
        Ok(())
    }

    /// A program's socket or process has ended, or is ended: unless it has left, it died.
    pub(super) fn end(&mut self, token: Token, store: &mut dyn Store, connections: &mut Connections) {
        connections.close(token);
        let Some(session) = self.sessions.remove(&token) else { return };
        let Some(name) = session.pool else { return };
        if !session.leaves {
            let died = Record { daemon: self.daemon, session: token, request: 0, entry: Entry::Died };
            store.append(&name, died, connections);
        }
        let Some(copy) = self.copies.get_mut(&name) else { return };
        copy.sessions.remove(&token);
        if copy.sessions.is_empty() {
            self.copies.remove(&name);
            store.forget(&name, connections);
        }
    }

    /// Takes what the store tells.
    pub(super) fn handle_told(&mut self, told: Told, now: u64, store: &mut dyn Store, connections: &mut Connections) {
        match told {
            Told::Snapshot(name, pool) => {
                if let Some(copy) = self.copies.get_mut(&name) {
                    copy.pool = Some(pool);
                }
            }
            Told::Record(name, record) => self.apply(&name, &record, now, store, connections),
            Told::Refused(name, why) => self.refuse(&name, &why, store, connections),
            Told::Lost(daemon, why) if daemon == self.daemon => self.lose(&why, connections),
            // It was told already.
            Told::Lost(..) => {}
        }
    }

    /// A pool cannot be watched: all that want to join it are refused.
    fn refuse(&mut self, name: &str, why: &Refusal, store: &mut dyn Store, connections: &mut Connections) {
        let Some(copy) = self.copies.remove(name) else { return };
        for token in copy.sessions {
            let Some(session) = self.sessions.remove(&token) else { continue };
            let (number, result) = (session.joining.unwrap_or(0), Err(why.clone()));
            connections.send(token, &Reply::Answer { number, result });
            connections.close(token);
        }
        store.forget(name, connections);
    }

    fn apply(&mut self, name: &str, record: &Record, now: u64, store: &mut dyn Store, connections: &mut Connections) {
        let Some(copy) = self.copies.get_mut(name) else { return };
        let Some(pool) = &mut copy.pool else { return };
        let (suspect, from) = (suspected(pool, record), record.daemon);
        let applied = pool.apply(record);
        let own = (from == self.daemon).then_some(record.session);
        let welcomed = matches!(record.entry, Entry::Join { .. }).then_some(own).flatten();
        for (event, to) in &applied.events {
            for token in copy.sessions.iter().filter(|token| Some(**token) != welcomed) {
                let Some(session) = self.sessions.get_mut(token) else { continue };
                let is_meant = |me: MemberId| to.as_ref().is_none_or(|to| to.contains(&me));
                if session.me.is_some_and(is_meant) {
                    session.tell(*token, event, connections);
                }
            }
        }
        copy.suspects.retain(|daemon, _| !answers(*daemon, record));
        if let Some((daemon, session)) = suspect.filter(|_| applied.result.is_ok()) {
            if daemon == self.daemon && self.sessions.contains_key(&session) {
                let alive = Record { daemon, session: 0, request: 0, entry: Entry::Alive };
                store.append(name, alive, connections);
            } else if own.is_some() && daemon != self.daemon {
                copy.suspects.entry(daemon).or_insert(now + ANSWERS_WITHIN);
            }
        }
        if let Some(token) = own {
            self.answer(name, token, record, &applied, connections);
        }
        self.end_dead(name, &applied, store, connections);
    }

    /// Answers the program that asked.
    fn answer(&mut self, name: &str, token: Token, record: &Record, applied: &Applied, connections: &mut Connections) {
        let Some(session) = self.sessions.get_mut(&token).filter(|_| record.request != 0) else { return };
        session.unanswered = session.unanswered.saturating_sub(1);
        if session.joining == Some(record.request) {
            session.joining = None;
            if let Ok(Some(me)) = &applied.result {
                session.me = Some(*me);
                let pool = self.copies.get(name).and_then(|copy| copy.pool.as_ref());
                let view = pool.map(|pool| pool.view().clone()).unwrap_or_default();
                return connections.send(token, &Reply::Welcome { me: *me, view });
            }
            // It is no member, so nothing is to be said when its socket ends.
            session.leaves = true;
        }
        let result = applied.result.clone().map(drop);
        session.answer(token, Reply::Answer { number: record.request, result }, connections);
    }

    /// Members of this host that are dead for the pool, though their programs live: their daemon was taken for lost.
    fn end_dead(&mut self, name: &str, applied: &Applied, store: &mut dyn Store, connections: &mut Connections) {
        for (event, _) in &applied.events {
            let (Change::Died { member } | Change::Left { member }) = &event.change else { continue };
            let Some(copy) = self.copies.get(name) else { return };
            let is_it = |token: &&Token| self.sessions.get(token).is_some_and(|session| session.me == Some(*member));
            let Some(token) = copy.sessions.iter().find(is_it).copied() else { continue };
            let Some(session) = self.sessions.get_mut(&token) else { continue };
            session.me = None;
            if !session.leaves {
                session.leaves = true;
                let why = "its daemon was taken for lost: it was not heard of in time".to_owned();
                connections.send(token, &Reply::Dead { why });
                self.end(token, store, connections);
            }
        }
    }

    /// The store is lost: so is every member of this host.
    fn lose(&mut self, why: &str, connections: &mut Connections) {
        self.daemon = process::random();
        self.copies.clear();
        for (token, session) in core::mem::take(&mut self.sessions) {
            match (session.pool, session.joining) {
                // Nothing was asked of the store for it.
                (None, _) => drop(self.sessions.insert(token, Session::default())),
                (Some(_), Some(number)) => {
                    let result = Err(Refusal::Store(why.to_owned()));
                    connections.send(token, &Reply::Answer { number, result });
                    connections.close(token);
                }
                (Some(_), None) => {
                    connections.send(token, &Reply::Dead { why: why.to_owned() });
                    connections.close(token);
                }
            }
        }
    }

    /// Goes on with programs that have read what waited for them, or were answered.
    pub(super) fn settle(&mut self, store: &mut dyn Store, connections: &mut Connections) {
        let mut going_on = Vec::new();
        for (token, session) in &mut self.sessions {
            let copy = session.pool.as_ref().and_then(|pool| self.copies.get(pool));
            if let Some(pool) = copy.and_then(|copy| copy.pool.as_ref()) {
                session.catch_up(*token, pool.view(), connections);
            }
            if session.balance(*token, connections) {
                going_on.push(*token);
            }
        }
        going_on.into_iter().for_each(|token| self.handle(token, store, connections));
    }

    /// When the next suspected daemon is lost.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.copies.values().flat_map(|copy| copy.suspects.values()).min().copied()
    }

    /// Declares the daemons lost that did not answer in time.
    pub(super) fn handle_timers(&mut self, now: u64, store: &mut dyn Store, connections: &mut Connections) {
        let own = self.daemon;
        for (name, copy) in &mut self.copies {
            let due: Vec<u64> = copy.suspects.iter().filter(|(_, at)| **at <= now).map(|(daemon, _)| *daemon).collect();
            for daemon in due {
                copy.suspects.remove(&daemon);
                let lost = Record { daemon: own, session: 0, request: 0, entry: Entry::Lost { daemon } };
                store.append(name, lost, connections);
            }
        }
    }
}

/// The session of the member that a record suspects.
fn suspected(pool: &Pool, record: &Record) -> Option<(u64, Token)> {
    match record.entry {
        Entry::Suspect { member } => pool.session_of(member),
        _ => None,
    }
}

/// Whether a record says that a daemon is there, or that it is lost.
fn answers(daemon: u64, record: &Record) -> bool {
    let lost = matches!(record.entry, Entry::Lost { daemon: lost } if lost == daemon);
    lost || record.daemon == daemon
}

#[cfg(test)]
mod tests;
