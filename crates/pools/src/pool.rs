//! The state machine of a pool: a record in, events out. It is the same wherever the same records were applied.
//!
//! ```text
//!   nobody --- Join ---> gathering (closed pool, fewer members than its size) --- Join ---> closed
//!     ^   \-- Join ---> open                                                                  |
//!     +------------------------ the last member left or died ---------------------------------+
//!
//!   election:   none --- Elect ---> won --- the winner left or died ---> vacant --- Elect ---> won
//!                                    \--- the same, for life: it stays won
//! ```
//! | who | may |
//! |---|---|
//! | a session that is no member | join |
//! | a session that is a member | all else; what comes after its end is refused, and changes nothing |
//! | any daemon | say that a daemon is lost: its members die, once |

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits;
use crate::record::{Entry, Record, Refusal};
use crate::view::{Change, Event, Member, MemberId, View};

/// A session: its daemon, and its number there.
type Session = (u64, u64);

/// A pool.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct Pool {
    view: View,
    sessions: BTreeMap<Session, MemberId>,
    /// The id of the next member.
    next_member: MemberId,
    /// As [`limits::BYTES`] counts.
    bytes: usize,
}

/// What a record has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// What is told, in this order, each to these members or to all that there are then.
    pub events: Vec<(Event, Option<Vec<MemberId>>)>,
    /// Who asked (after a join: the new member), or why it was refused.
    pub result: Result<Option<MemberId>, Refusal>,
}

impl Pool {
    /// What its members know.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether it has no member. Then it is as it was before the first one.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The daemon and session of a member.
    pub fn session_of(&self, member: MemberId) -> Option<(u64, u64)> {
        self.sessions.iter().find(|(_, id)| **id == member).map(|(session, _)| *session)
    }

    /// The daemons that have members.
    pub fn daemons(&self) -> impl Iterator<Item = u64> {
        self.sessions.keys().map(|(daemon, _)| *daemon)
    }

    /// Applies a record.
    pub fn apply(&mut self, record: &Record) -> Applied {
        let mut events = Vec::new();
        let session = (record.daemon, record.session);
        let result = match (&record.entry, self.sessions.get(&session).copied()) {
            (Entry::Lost { daemon }, _) => {
                self.lose(*daemon, &mut events);
                Ok(None)
            }
            (Entry::Alive, _) => Ok(None),
            (Entry::Join { .. }, None) => self.join(session, &record.entry, &mut events).map(Some),
            (Entry::Join { .. }, Some(_)) => Err(Refusal::Invalid("this process is a member already".to_owned())),
            (_, None) => Err(Refusal::NotMember),
            (entry, Some(me)) => self.request(me, entry, &mut events).map(|()| Some(me)),
        };
        if self.sessions.is_empty() {
            *self = Self::default();
        }
        Applied { events, result }
    }

    fn tell(&mut self, change: Change, to: Option<Vec<MemberId>>, events: &mut Events) {
        let event = Event { number: self.view.next, change };
        self.view.apply(&event);
        events.push((event, to));
    }

    fn request(&mut self, me: MemberId, entry: &Entry, events: &mut Events) -> Result<(), Refusal> {
        limits::check(entry)?;
        match entry {
            Entry::Leave => self.end(me, true, events),
            Entry::Died => self.end(me, false, events),
            Entry::Elect { name, for_life } => return self.elect(me, name, *for_life, events),
            Entry::Signal { to, text } => return self.signal(me, to, text, events),
            Entry::Set { own, key, value } => return self.set(own.then_some(me), key, value.as_deref(), events),
            Entry::Suspect { member } if !self.view.members.contains_key(member) => {
                return Err(Refusal::NoMember(*member));
            }
            Entry::Terminate if !self.view.terminated => self.tell(Change::Terminated { by: me }, None, events),
            Entry::Suspect { .. } | Entry::Terminate => {}
            Entry::Join { .. } | Entry::Alive | Entry::Lost { .. } => {}
        }
        Ok(())
    }

    fn join(&mut self, session: Session, entry: &Entry, events: &mut Events) -> Result<MemberId, Refusal> {
        let Entry::Join { size, rank, location, blob } = entry else { return Err(Refusal::NotMember) };
        self.check_join(*size, *rank)?;
        limits::check(entry)?;
        self.take_room(limits::ENTRY + location.len() + blob.len())?;
        let member = self.next_member;
        self.next_member += 1;
        self.view.size = *size;
        self.sessions.insert(session, member);
        let (location, blob) = (location.clone(), blob.clone());
        let details = Member { location, blob, rank: *rank, attributes: BTreeMap::new() };
        self.tell(Change::Joined { member, details }, None, events);
        if size.is_some_and(|size| self.view.members.len() >= size as usize) {
            self.tell(Change::Closed, None, events);
        }
        Ok(member)
    }

    fn check_join(&self, size: Option<u32>, rank: Option<u32>) -> Result<(), Refusal> {
        let view = &self.view;
        let kind = |size: Option<u32>| size.map_or("open".to_owned(), |size| format!("a closed one of {size} members"));
        if view.terminated {
            return Err(Refusal::Terminated);
        }
        if !self.is_empty() && view.size != size {
            return Err(Refusal::OtherKind { has: kind(view.size), wanted: kind(size) });
        }
        if view.closed {
            return Err(Refusal::Closed { size: size.unwrap_or(0) });
        }
        if size.is_some_and(|size| size == 0 || size as usize > limits::MEMBERS) {
            return Err(Refusal::Invalid(format!("a closed pool has from 1 to {} members", limits::MEMBERS)));
        }
        if view.members.len() >= limits::MEMBERS {
            return Err(Refusal::Full(format!("it has {} members", limits::MEMBERS)));
        }
        let mut ranks = view.members.values().map(|member| member.rank);
        let why = match rank {
            _ if ranks.clone().any(|other| other.is_some() != rank.is_some()) => {
                "all have one from a launcher, or none"
            }
            Some(rank) if size.is_none_or(|size| rank >= size) => "it is not less than the pool's size",
            Some(rank) if ranks.any(|other| other == Some(rank)) => "another member has it",
            _ => return Ok(()),
        };
        Err(Refusal::Rank { rank: rank.unwrap_or(0), why: why.to_owned() })
    }

    fn lose(&mut self, daemon: u64, events: &mut Events) {
        let lost: Vec<MemberId> = self.sessions.range((daemon, 0)..=(daemon, u64::MAX)).map(|(_, id)| *id).collect();
        lost.into_iter().for_each(|member| self.end(member, false, events));
    }

    /// Ends a member, and makes the elections vacant that it has won.
    fn end(&mut self, member: MemberId, left: bool, events: &mut Events) {
        self.sessions.retain(|_, id| *id != member);
        if let Some(details) = self.view.members.get(&member) {
            let attributes = details.attributes.iter().map(|(key, value)| limits::ENTRY + key.len() + value.len());
            let own = limits::ENTRY + details.location.len() + details.blob.len();
            self.bytes = self.bytes.saturating_sub(own + attributes.sum::<usize>());
        }
        self.tell(if left { Change::Left { member } } else { Change::Died { member } }, None, events);
        let vacant = self.view.elections.iter().filter(|(_, one)| one.winner == Some(member) && !one.for_life);
        let names: Vec<String> = vacant.map(|(name, _)| name.clone()).collect();
        names.into_iter().for_each(|name| self.tell(Change::Vacant { name }, None, events));
    }

    fn elect(&mut self, me: MemberId, name: &str, for_life: bool, events: &mut Events) -> Result<(), Refusal> {
        match self.view.elections.get(name) {
            Some(election) if election.for_life != for_life => {
                let rule = if election.for_life { "stays for the pool's life" } else { "is followed by another one" };
                return Err(Refusal::OtherRule { name: name.to_owned(), rule: rule.to_owned() });
            }
            Some(election) if election.winner.is_some() => return Ok(()),
            Some(_) => {}
            None if self.view.elections.len() >= limits::ELECTIONS => {
                return Err(Refusal::Full(format!("it has {} elections", limits::ELECTIONS)));
            }
            None => self.take_room(limits::ENTRY + name.len())?,
        }
        self.tell(Change::Elected { name: name.to_owned(), winner: me, for_life }, None, events);
        Ok(())
    }

    fn signal(&mut self, from: MemberId, to: &[MemberId], text: &str, events: &mut Events) -> Result<(), Refusal> {
        if let Some(missing) = to.iter().find(|member| !self.view.members.contains_key(member)) {
            return Err(Refusal::NoMember(*missing));
        }
        let to = Some(to.to_vec()).filter(|to| !to.is_empty());
        self.tell(Change::Signal { from, text: text.to_owned() }, to, events);
        Ok(())
    }

    fn set(
        &mut self,
        of: Option<MemberId>,
        key: &str,
        value: Option<&[u8]>,
        events: &mut Events,
    ) -> Result<(), Refusal> {
        let attributes = match of {
            Some(member) => self.view.members.get(&member).map(|member| &member.attributes),
            None => Some(&self.view.attributes),
        };
        let had = attributes.and_then(|all| all.get(key)).map_or(0, |had| limits::ENTRY + key.len() + had.len());
        let wanted = value.map_or(0, |value| limits::ENTRY + key.len() + value.len());
        self.bytes = self.bytes.saturating_sub(had);
        if let Err(full) = self.take_room(wanted) {
            self.bytes += had;
            return Err(full);
        }
        self.tell(Change::Set { of, key: key.to_owned(), value: value.map(<[u8]>::to_vec) }, None, events);
        Ok(())
    }

    fn take_room(&mut self, bytes: usize) -> Result<(), Refusal> {
        if self.bytes + bytes > limits::BYTES {
            return Err(Refusal::Full(format!("what its members bring along has {} bytes at most", limits::BYTES)));
        }
        self.bytes += bytes;
        Ok(())
    }
}

type Events = Vec<(Event, Option<Vec<MemberId>>)>;
