//! A program's membership. Its calls block, each with a deadline of [`madrigal_sys::time::now_ns`]; there is no thread. Of several threads
//! that wait, one reads the socket for all. Not for a child of fork(2): its parent goes on using the same socket.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use madrigal_sys::time::now_ns;

mod channel;
mod failure;

use channel::Channel;
pub use failure::PoolError;

use crate::limits;
use crate::record::Entry;
use crate::view::{Change, Election, Event, MemberId, View};
use crate::wire::{Reply, Request};

/// Events that are kept until the program takes them; of more the oldest are dropped, and counted.
const KEPT: usize = 16_384;

/// The number of the request to join, the first one.
const JOIN: u64 = 1;

/// How a process joins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wish {
    /// The pool's name.
    pub pool: String,
    /// How many members the pool is to have before it closes; `None`: it is open. All members must say the same.
    pub size: Option<u32>,
    /// The rank in a closed pool; all members have one, or none.
    pub rank: Option<u32>,
    /// What others are to know of this member, such as an address; 4,096 bytes at most.
    pub blob: Vec<u8>,
}

/// A change of the pool, or how many of them are missing here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// A change.
    Event(Event),
    /// So many were not taken in time, and are gone. [`Membership::view`] has what they led to.
    Missed(u64),
}

/// A process's place in a pool. When it is dropped, the process leaves; when the process ends without that, it has died.
#[derive(Debug)]
pub struct Membership {
    pool: String,
    size: Option<u32>,
    me: OnceLock<MemberId>,
    shared: Mutex<Shared>,
    /// Whoever has read the socket notifies it.
    read: Condvar,
    channel: Channel,
}

#[derive(Debug, Default)]
struct Shared {
    view: View,
    me: Option<MemberId>,
    told: VecDeque<Told>,
    /// Dropped before the first of those.
    missed: u64,
    answers: BTreeMap<u64, Result<(), crate::Refusal>>,
    /// The requests whose answers somebody wants.
    awaited: BTreeSet<u64>,
    /// Requests to be elected that were not waited for to their end, by name and rule: they are in the log, or will be.
    candidacies: BTreeMap<(String, bool), u64>,
    last_request: u64,
    /// Why it is no member any more.
    dead: Option<String>,
    closed: bool,
    /// A thread is in poll(2) for all.
    reading: bool,
}

impl Membership {
    /// Joins a pool by the daemon whose control socket is in one of `directories`. Waits until the daemon and the pool's store have
    /// answered, and of a closed pool until all its members have joined.
    pub fn join(directories: &[PathBuf], wish: Wish, deadline: Option<u64>) -> Result<Self, PoolError> {
        let this = Self::begin(directories, wish, deadline)?;
        this.wait_joined(deadline)?;
        Ok(this)
    }

    /// Asks to join, and waits for the daemon of this host only: [`Self::wait_joined`] waits for the rest.
    pub fn begin(directories: &[PathBuf], wish: Wish, deadline: Option<u64>) -> Result<Self, PoolError> {
        if !limits::is_name(&wish.pool) {
            return Err(PoolError::Invalid(format!("`{}` is no name of a pool", wish.pool)));
        }
        let channel = Channel::open(directories, deadline)?;
        let Wish { pool, size, rank, blob } = wish;
        let this = Self { pool, size, me: OnceLock::new(), shared: Mutex::default(), read: Condvar::new(), channel };
        this.ask(Entry::Join { size, rank, location: String::new(), blob })?;
        Ok(this)
    }

    /// Waits until this process is a member, and of a closed pool until all members have joined.
    pub fn wait_joined(&self, deadline: Option<u64>) -> Result<(), PoolError> {
        let what = "the store of the pool has not answered: `madrigal status` shows whether its host is reached";
        self.wait(
            deadline,
            || what.to_owned(),
            |shared| match (shared.me, shared.answers.get(&JOIN)) {
                (_, Some(Err(refusal))) => Some(Err(PoolError::Refused(refusal.clone()))),
                (Some(_), _) => Some(Ok(())),
                (None, _) => None,
            },
        )?;
        let Some(size) = self.size else { return Ok(()) };
        let all_here = self.wait(deadline, String::new, |shared| shared.view.closed.then_some(Ok(())));
        if let Err(PoolError::TimedOut(_)) = all_here {
            let here = self.view(|view| view.members.len());
            let lacking = format!("{here} of {size} members of pool {} have joined: start the others", self.pool);
            return Err(PoolError::TimedOut(lacking));
        }
        all_here
    }

    /// This member, once it is one.
    pub fn id(&self) -> Option<MemberId> {
        self.me.get().copied()
    }

    /// The pool's name.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Reads what is known of the pool, without blocking: all events that have come, taken by the program or not. `read` must not call this
    /// membership, but for its id: it is locked meanwhile.
    pub fn view<R>(&self, read: impl FnOnce(&View) -> R) -> R {
        let mut shared = self.lock();
        self.take_in(&mut shared);
        read(&shared.view)
    }

    /// Why this process is no member any more.
    pub fn dead(&self) -> Option<String> {
        let mut shared = self.lock();
        self.take_in(&mut shared);
        shared.dead.clone()
    }

    /// Takes the next event; `None` if none came in time. The first ones tell of all members, elections and attributes that there were at
    /// the join. After the last one, [`PoolError::Lost`] if it is no member any more.
    pub fn next_event(&self, deadline: Option<u64>) -> Result<Option<Told>, PoolError> {
        let took = self.wait(deadline, String::new, |shared| {
            let missed = core::mem::take(&mut shared.missed);
            if missed > 0 {
                return Some(Ok(Told::Missed(missed)));
            }
            let told = shared.told.pop_front().map(Ok);
            self.channel.show(!shared.told.is_empty());
            told
        });
        match took {
            Ok(told) => Ok(Some(told)),
            Err(PoolError::TimedOut(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Wants to win an election, and waits until somebody has: the winner, and the number of its election. If that has left or died since,
    /// who asks next wins, unless the winner is one `for_life` of the pool; all candidates must say the same. Who did not wait long enough
    /// stays a candidate, and may have won; the next call goes on with that.
    pub fn elect(&self, name: &str, for_life: bool, deadline: Option<u64>) -> Result<(MemberId, u64), PoolError> {
        let key = (name.to_owned(), for_life);
        loop {
            let before = self.lock().candidacies.remove(&key);
            let number = match before {
                Some(number) => number,
                None => self.ask(Entry::Elect { name: name.to_owned(), for_life })?,
            };
            match self.answer(number, deadline) {
                Err(late @ PoolError::TimedOut(_)) => {
                    self.lock().candidacies.insert(key, number);
                    return Err(late);
                }
                answered => answered?,
            }
            // The winner of this order may have died in the next event.
            if let Some(won) = self.view(|view| view.elections.get(name).and_then(won)) {
                return Ok(won);
            }
        }
    }

    /// The winner of an election in which this process is no candidate, and the election's number. Waits until there is one.
    pub fn winner(&self, name: &str, deadline: Option<u64>) -> Result<(MemberId, u64), PoolError> {
        let what = || format!("nobody was elected {name} in pool {}", self.pool);
        self.wait(deadline, what, |shared| shared.view.elections.get(name).and_then(won).map(Ok))
    }

    /// Sends a text to members, or to all if `to` is empty. When this returns the signal has its place in the order.
    pub fn signal(&self, to: &[MemberId], text: &str, deadline: Option<u64>) -> Result<(), PoolError> {
        self.request(Entry::Signal { to: to.to_vec(), text: text.to_owned() }, deadline)
    }

    /// Sets an attribute of the pool, or its `own`; `None` takes it away.
    pub fn set(&self, own: bool, key: &str, value: Option<&[u8]>, deadline: Option<u64>) -> Result<(), PoolError> {
        self.request(Entry::Set { own, key: key.to_owned(), value: value.map(<[u8]>::to_vec) }, deadline)
    }

    /// Has a member checked that may be dead. If it is, or its daemon does not answer within 1.5 s, all are told that it died.
    pub fn suspect(&self, member: MemberId, deadline: Option<u64>) -> Result<(), PoolError> {
        self.request(Entry::Suspect { member }, deadline)
    }

    /// Ends the pool for all: nobody joins any more, and those that wait for it are told.
    pub fn terminate(&self, deadline: Option<u64>) -> Result<(), PoolError> {
        self.request(Entry::Terminate, deadline)
    }

    /// Waits until a member has terminated the pool.
    pub fn wait_terminated(&self, deadline: Option<u64>) -> Result<(), PoolError> {
        let what = || format!("nobody has terminated pool {}", self.pool);
        self.wait(deadline, what, |shared| shared.view.terminated.then_some(Ok(())))
    }

    /// Leaves, and waits until that has its place in the order.
    pub fn leave(&self, deadline: Option<u64>) -> Result<(), PoolError> {
        self.request(Entry::Leave, deadline)
    }

    /// Leaves without waiting. Every call that waits, in any thread, ends with [`PoolError::Lost`].
    pub fn close(&self) {
        // What fits at once: if it does not, the end of the socket says that it died.
        let _ = self.ask(Entry::Leave);
        let mut shared = self.lock();
        shared.closed = true;
        shared.dead.get_or_insert_with(|| "it was closed here".to_owned());
        drop(shared);
        self.channel.end();
        self.read.notify_all();
    }

    /// A descriptor that poll(2) shows as readable while there is an event, or something on the socket that may be one.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Whether it was closed here.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// The socket to the daemon: while this process lives and has it open, it is a member.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.channel.socket()
    }

    fn request(&self, entry: Entry, deadline: Option<u64>) -> Result<(), PoolError> {
        let number = self.ask(entry)?;
        let answered = self.answer(number, deadline);
        self.lock().awaited.remove(&number);
        answered
    }

    /// Waits for the answer to a request.
    fn answer(&self, number: u64, deadline: Option<u64>) -> Result<(), PoolError> {
        let what = || format!("the store of pool {} has not answered", self.pool);
        self.wait(deadline, what, |shared| {
            shared.answers.remove(&number).map(|result| result.map_err(PoolError::Refused))
        })
    }

    /// Sends a request. Returns its number.
    fn ask(&self, entry: Entry) -> Result<u64, PoolError> {
        limits::check(&entry)?;
        let mut shared = self.lock();
        if let Some(why) = &shared.dead {
            return Err(PoolError::Lost(why.clone()));
        }
        shared.last_request += 1;
        let number = shared.last_request;
        shared.awaited.insert(number);
        self.channel.send(&Request { number, pool: self.pool.clone(), entry });
        Ok(number)
    }

    /// Reads the socket until `done` finds what it looks for; `what` was waited for in vain otherwise.
    fn wait<R>(
        &self,
        deadline: Option<u64>,
        what: impl FnOnce() -> String,
        mut done: impl FnMut(&mut Shared) -> Option<Result<R, PoolError>>,
    ) -> Result<R, PoolError> {
        let mut shared = self.lock();
        loop {
            self.take_in(&mut shared);
            if let Some(found) = done(&mut shared) {
                return found;
            }
            if let Some(why) = &shared.dead {
                return Err(PoolError::Lost(why.clone()));
            }
            let left = deadline.map(|deadline| deadline.saturating_sub(now_ns()));
            if left == Some(0) {
                drop(shared);
                return Err(PoolError::TimedOut(what()));
            }
            if shared.reading {
                let limit = Duration::from_nanos(left.unwrap_or(u64::MAX));
                shared = match left {
                    Some(_) => self.read.wait_timeout(shared, limit).unwrap_or_else(PoisonError::into_inner).0,
                    None => self.read.wait(shared).unwrap_or_else(PoisonError::into_inner),
                };
                continue;
            }
            shared.reading = true;
            drop(shared);
            let slept = self.channel.sleep(left);
            shared = self.lock();
            shared.reading = false;
            if let Err(errno) = slept {
                shared.dead = Some(format!("poll(2): {errno}"));
            }
            self.take_in(&mut shared);
            self.read.notify_all();
        }
    }

    /// Takes in what has come, without blocking. While a thread sleeps for all, that one does: it would not wake for what is gone.
    fn take_in(&self, shared: &mut Shared) {
        if shared.dead.is_some() || shared.reading {
            return;
        }
        let ended = self.channel.receive(|reply| shared.handle(reply)).err();
        shared.dead = shared.dead.take().or(ended);
        if let Some(me) = shared.me {
            let _ = self.me.set(me);
        }
        self.channel.show(!shared.told.is_empty() || shared.missed > 0);
        // Another thread's answer, or end, may be among it.
        self.read.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn handle(&mut self, reply: Reply) {
        match reply {
            Reply::Welcome { me, view } => {
                self.me = Some(me);
                self.told.extend(history(&view).into_iter().map(Told::Event));
                self.view = view;
            }
            Reply::Event(event) => {
                self.view.apply(&event);
                self.told.push_back(Told::Event(event));
                if self.told.len() > KEPT {
                    self.missed += match self.told.pop_front() {
                        Some(Told::Missed(count)) => count,
                        _ => 1,
                    };
                }
            }
            Reply::Missed { count, view } => {
                self.told.push_back(Told::Missed(count));
                self.view = view;
            }
            Reply::Answer { number, result } if self.awaited.remove(&number) => {
                self.answers.insert(number, result);
            }
            Reply::Answer { .. } => {}
            Reply::Dead { why } => self.dead = Some(why),
        }
    }
}

/// A winner that is one still, and the number of its election.
fn won(election: &Election) -> Option<(MemberId, u64)> {
    election.winner.map(|winner| (winner, election.number))
}

/// The events that lead to a pool as a new member finds it: in order, but with the number of its join.
fn history(view: &View) -> Vec<Event> {
    let joined = view.members.iter().map(|(id, details)| Change::Joined { member: *id, details: details.clone() });
    let elected = view.elections.iter().filter_map(|(name, election)| {
        let (name, for_life) = (name.clone(), election.for_life);
        Some(Change::Elected { name, winner: election.winner?, for_life })
    });
    let set = view.attributes.iter().map(|(key, value)| Change::Set {
        of: None,
        key: key.clone(),
        value: Some(value.clone()),
    });
    let closed = view.closed.then_some(Change::Closed);
    let number = view.next.saturating_sub(1);
    joined.chain(elected).chain(set).chain(closed).map(|change| Event { number, change }).collect()
}
