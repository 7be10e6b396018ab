//! A program that is, or wants to be, a member of a pool: what it was told, and how much of it may wait.
//!
//! ```text
//!   new --- Join asked ---> joining --- welcomed ---> member --- its socket ended, Leave, given up ---> gone
//!                             \--- refused ---> gone
//! ```
//! Who reads slowly misses events, and gets the pool as it is then instead: a program that computes for an hour without a call is a member
//! all the time, and costs a bounded piece of memory.

use madrigal_pools::wire::Reply;
use madrigal_pools::{Event, MemberId, View};

use super::connections::Connections;
use crate::poll::Token;

/// Bytes that may wait for a program before it misses events.
const WAITING: usize = 1 << 20;
/// Requests without an answer; more are not read.
const UNANSWERED: usize = 64;

/// A program's session.
#[derive(Default)]
pub(super) struct Session {
    /// The pool that it is in, or wants to join.
    pub(super) pool: Option<String>,
    /// The number of its join, until that is answered.
    pub(super) joining: Option<u64>,
    pub(super) me: Option<MemberId>,
    /// It has said that it leaves.
    pub(super) leaves: bool,
    /// Requests that are not answered.
    pub(super) unanswered: usize,
    /// Events that it has missed since it reads too slowly.
    missed: u64,
    /// Answers that wait for what it has missed: an answer comes behind all that led to it.
    owed: Vec<Reply>,
    /// Nothing is read from it.
    paused: bool,
}

impl Session {
    /// Tells it of an event, or counts that it missed it.
    pub(super) fn tell(&mut self, token: Token, event: &Event, connections: &mut Connections) {
        if self.missed > 0 || connections.waiting(token) > WAITING {
            self.missed += 1;
        } else {
            connections.send(token, &Reply::Event(event.clone()));
        }
    }

    /// Answers it, or owes it the answer.
    pub(super) fn answer(&mut self, token: Token, reply: Reply, connections: &mut Connections) {
        if self.missed > 0 {
            self.owed.push(reply);
        } else {
            connections.send(token, &reply);
        }
    }

    /// Once it has read all, what it missed is made good.
    pub(super) fn catch_up(&mut self, token: Token, view: &View, connections: &mut Connections) {
        if self.missed > 0 && connections.waiting(token) == 0 {
            let count = core::mem::take(&mut self.missed);
            connections.send(token, &Reply::Missed { count, view: view.clone() });
            self.owed.drain(..).for_each(|reply| connections.send(token, &reply));
        }
    }

    /// Stops reading from it, or goes on. Returns whether it goes on.
    pub(super) fn balance(&mut self, token: Token, connections: &mut Connections) -> bool {
        let paused = self.unanswered + self.owed.len() >= UNANSWERED || connections.waiting(token) > WAITING;
        let goes_on = self.paused && !paused;
        self.paused = paused;
        connections.pause(token, paused);
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use madrigal_pools::Change;
    use madrigal_pools::wire::{LONGEST_REPLY, decode};
    use rustix::event::epoll;

    use super::*;
    use crate::pools::connections::Kind;

    #[test]
    fn an_answer_comes_behind_what_was_missed() {
        let (ours, mut its) = UnixStream::pair().unwrap();
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let mut connections = Connections::new(set);
        let token = connections.add(Kind::Program, ours.into(), None, Vec::new()).unwrap();
        let mut session = Session::default();
        let text = "x".repeat(4000);
        for number in 0..600 {
            let event = Event { number, change: Change::Signal { from: 0, text: text.clone() } };
            session.tell(token, &event, &mut connections);
        }
        session.answer(token, Reply::Answer { number: 7, result: Ok(()) }, &mut connections);
        let (mut inbox, mut replies) = (Vec::new(), Vec::new());
        its.set_nonblocking(true).unwrap();
        while !matches!(replies.last(), Some(Reply::Answer { .. })) {
            connections.flush_all();
            session.catch_up(token, &View::default(), &mut connections);
            let _ = its.read_to_end(&mut inbox);
            while let Some((reply, whole)) = decode::<Reply>(&inbox, LONGEST_REPLY).unwrap() {
                replies.push(reply);
                inbox.drain(..whole);
            }
        }
        let behind = &replies[replies.len() - 2];
        assert!(matches!(behind, Reply::Missed { count: 1.., .. }), "{behind:?}");
    }
}
