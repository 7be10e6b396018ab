//! What a member knows of its pool, and the events by which it learns it. A view to which all events of a pool are applied is equal to that
//! of every other member.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A member of a pool: the count of those that joined before it. No two members of a pool's life have the same.
pub type MemberId = u64;

/// What a pool knows of a member.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct Member {
    /// Its host and site: `host@site`.
    pub location: String,
    /// What it brought along, such as the address of a port.
    pub blob: Vec<u8>,
    /// Its place among the members of a closed pool, from 0: the one it asked for; else, once the pool is closed, that in the order of joins.
    pub rank: Option<u32>,
    /// What it says of itself.
    pub attributes: BTreeMap<String, Vec<u8>>,
}

/// An election.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Election {
    /// The winner stays the winner when it has left or died.
    pub for_life: bool,
    /// `None`: it has left or died, and nobody has asked since.
    pub winner: Option<MemberId>,
    /// The number of the event by which it was elected. A later winner of the name has a higher one.
    pub number: u64,
}

/// What changed in a pool.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A process joined.
    Joined {
        /// Its id.
        member: MemberId,
        /// What is known of it.
        details: Member,
    },
    /// The pool has as many members as it was to have: nobody is let in any more.
    Closed,
    /// A member left.
    Left {
        /// Which.
        member: MemberId,
    },
    /// A member died, or its host, or the way to it.
    Died {
        /// Which.
        member: MemberId,
    },
    /// An election has a winner.
    Elected {
        /// Its name.
        name: String,
        /// Who.
        winner: MemberId,
        /// See [`Election::for_life`].
        for_life: bool,
    },
    /// The winner of an election has left or died; who asks next wins.
    Vacant {
        /// Its name.
        name: String,
    },
    /// An attribute was set, or taken away.
    Set {
        /// Of this member; of the pool.
        of: Option<MemberId>,
        /// Its name.
        key: String,
        /// `None`: it was taken away.
        value: Option<Vec<u8>>,
    },
    /// A member sends a text.
    Signal {
        /// Which.
        from: MemberId,
        /// What.
        text: String,
    },
    /// The pool was terminated.
    Terminated {
        /// By this member.
        by: MemberId,
    },
}

/// A change, and its place in the order of all changes of a pool. Who is told two changes is told them in this order. Numbers of signals to
/// others are left out.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// From 0.
    pub number: u64,
    /// The change.
    pub change: Change,
}

/// A pool, as a member knows it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// How many members a closed pool is to have; `None` of an open one.
    pub size: Option<u32>,
    /// It has had as many.
    pub closed: bool,
    /// It was terminated.
    pub terminated: bool,
    /// The living members.
    pub members: BTreeMap<MemberId, Member>,
    /// The elections, by name.
    pub elections: BTreeMap<String, Election>,
    /// The pool's attributes.
    pub attributes: BTreeMap<String, Vec<u8>>,
    /// The number of the next event.
    pub next: u64,
}

impl View {
    /// Applies an event.
    pub fn apply(&mut self, event: &Event) {
        self.next = event.number + 1;
        match &event.change {
            Change::Joined { member, details } => drop(self.members.insert(*member, details.clone())),
            Change::Closed => self.close(),
            Change::Left { member } | Change::Died { member } => drop(self.members.remove(member)),
            Change::Elected { name, winner, for_life } => {
                let election = Election { for_life: *for_life, winner: Some(*winner), number: event.number };
                self.elections.insert(name.clone(), election);
            }
            Change::Vacant { name } => {
                if let Some(election) = self.elections.get_mut(name) {
                    election.winner = None;
                }
            }
            Change::Set { of, key, value } => {
                let attributes = match of {
                    Some(member) => self.members.get_mut(member).map(|member| &mut member.attributes),
                    None => Some(&mut self.attributes),
                };
                match (attributes, value) {
                    (Some(all), Some(value)) => drop(all.insert(key.clone(), value.clone())),
                    (Some(all), None) => drop(all.remove(key)),
                    (None, _) => {}
                }
            }
            Change::Signal { .. } => {}
            Change::Terminated { .. } => self.terminated = true,
        }
    }

    fn close(&mut self) {
        self.closed = true;
        for (place, member) in (0..).zip(self.members.values_mut()) {
            member.rank = member.rank.or(Some(place));
        }
    }
}
