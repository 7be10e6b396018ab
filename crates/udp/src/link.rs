//! One end of a link: what of it is to be read, and how far it is. No socket, no lock.
//!
//! ```text
//!   connecting  SHAKING --certificates--> GREETING --welcome--> OPEN --all settled, or lost--> OVER
//!   accepting             (admitted) ---> GREETING --hello----> OPEN
//!   any --refused, broken, silent, closed by the other end--> OVER, with the reason
//! ```
//! An end that closes says how many messages it sent (`Note::End`) and waits until all are settled; so the other end knows where the link
//! ends, whatever becomes of the connection. One that closes with something unread does not say it: the other end is to see no proper end.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem;
use std::sync::Arc;

use madrigal_adapters::vrp::{Arrived, LEAST_WINDOW, Message, Refused, Settled};
use madrigal_progress::bell::Bell;
use madrigal_progress::driver::Waker;
use madrigal_quic::{Broken, Connection, Key, Messages};

use crate::note::Note;
use crate::what::{Kind, What};

/// The class of notes, which both ends have whatever they want. Those of the program are behind it.
const NOTES: u8 = 0;
/// Bytes of messages that are kept until they are settled.
const BACKLOG: usize = 16 << 20;
/// The longest message of a stream.
const CHUNK: usize = 64 << 10;
/// Reports of what became of messages that wait to be asked for; beyond them the oldest is dropped.
const MOST_REPORTS: usize = 1 << 16;
/// How long the other end may take to be known, and to agree, in nanoseconds.
pub(crate) const PATIENCE: u64 = 10_000_000_000;
/// How long the end of a link waits for the other end to take anything of what was sent.
const LINGER: u64 = 10_000_000_000;

/// Why there is no link any more, or never was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// Nobody takes connections there.
    Refused,
    /// The other end does not answer.
    Silent,
    /// The other end is gone, or closed it.
    Gone,
    /// The other end sent what it must not send.
    Corrupt,
    /// Certificates, or what the ends want, forbid it.
    Forbidden(String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Shaking,
    Greeting,
    Open,
    Over(Why),
}

/// One end.
pub(crate) struct Link {
    what: What,
    pub(crate) state: State,
    /// The connection, while there is one.
    pub(crate) key: Option<Key>,
    messages: Messages,
    accepted: bool,
    was_open: bool,
    /// Messages of each class that were sent, and that were read.
    sent: Vec<u32>,
    taken: Vec<u32>,
    /// The class that is read next.
    next: u8,
    /// How many there are of each class, once the other end has said so.
    theirs: Option<Vec<u32>>,
    /// Messages, notes too, of which it is not known what became of them.
    unsettled: usize,
    settled: VecDeque<Settled>,
    /// Of a stream: the message that is read, and how far.
    front: Vec<u8>,
    read: usize,
    /// Who waits is told by it, if the reader has found nothing more, or the writer no room.
    bell: Option<Arc<Bell>>,
    pub(crate) reader_waits: bool,
    pub(crate) writer_waits: bool,
    /// Nobody reads any more.
    pub(crate) is_deaf: bool,
    /// The other end is still to be told how many messages there were.
    owes_end: bool,
    /// It has had as many messages as a class can have.
    is_spent: bool,
    closing: Option<Closing>,
    /// When it is over, if it is not open until then.
    until: u64,
}

/// The end of the link waits until everything sent is settled.
struct Closing {
    then: Option<Waker>,
    /// How much was unsettled when the time began to run.
    since: usize,
    until: u64,
}

impl Link {
    /// The connecting end.
    pub(crate) fn dialled(now: u64, what: What, key: Key, bell: Option<Arc<Bell>>) -> Self {
        let messages = Messages::dial(&what.of_connection(), LEAST_WINDOW, BACKLOG);
        Self::new(now, what, (key, messages), bell)
    }

    /// The accepting end, of a peer that is admitted.
    pub(crate) fn accepted(now: u64, what: What, key: Key, bell: Option<Arc<Bell>>) -> Self {
        let messages = Messages::accept(LEAST_WINDOW, BACKLOG);
        Self { accepted: true, state: State::Greeting, ..Self::new(now, what, (key, messages), bell) }
    }

    fn new(now: u64, what: What, (key, messages): (Key, Messages), bell: Option<Arc<Bell>>) -> Self {
        let count = usize::from(what.count());
        Self {
            what,
            state: State::Shaking,
            key: Some(key),
            messages,
            accepted: false,
            was_open: false,
            sent: vec![0; count],
            taken: vec![0; count],
            next: 0,
            theirs: None,
            unsettled: 0,
            settled: VecDeque::new(),
            front: Vec::new(),
            read: 0,
            bell,
            reader_waits: true,
            writer_waits: false,
            is_deaf: false,
            owes_end: false,
            is_spent: false,
            closing: None,
            until: now + PATIENCE,
        }
    }

    pub(crate) fn bell(&self) -> Option<Arc<Bell>> {
        self.bell.clone()
    }

    /// It is decided whether there is a link: rings for who connects.
    pub(crate) fn opened(&self) {
        if let Some(bell) = self.bell.as_ref().filter(|_| !self.accepted) {
            bell.ring();
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether it is over, and nobody has it: it was not accepted.
    pub(crate) fn is_nobodys(&self) -> bool {
        self.accepted && !self.was_open && self.why().is_some()
    }

    /// Why it is over, if it is.
    pub(crate) fn why(&self) -> Option<&Why> {
        if let State::Over(why) = &self.state { Some(why) } else { None }
    }

    // --- the connection's side ------------------------------------------------------------------------------------------------

    /// The other end is known, and admitted: the connecting end says what it wants.
    pub(crate) fn greet(&mut self) {
        self.state = State::Greeting;
        self.note(&Note::Hello(self.what.kind() as u8));
    }

    /// Passes on what came and what goes. An error: the connection is to be closed with that reason.
    pub(crate) fn pump(&mut self, now: u64, connection: &mut Connection) -> Result<(), (Why, String)> {
        let broken = |broken: Broken| (Why::Corrupt, broken.to_string());
        self.send_end();
        self.messages.pump(now, connection).map_err(broken)?;
        let before = self.unsettled;
        while let Some(note) = self.messages.take_of(NOTES) {
            self.take_note(&note.bytes)?;
        }
        if self.is_deaf {
            while self.take_any().is_some() {}
        }
        while let Some(settled) = self.messages.settled() {
            self.unsettled = self.unsettled.saturating_sub(1);
            self.keep(settled);
        }
        // What was answered goes at once.
        if self.unsettled > before || self.messages.owes() {
            self.messages.pump(now, connection).map_err(broken)?;
        }
        self.go_on_closing(now);
        if self.is_spent {
            return Err((Why::Gone, "the link has had all messages that it can carry".to_owned()));
        }
        if self.state != State::Open && now >= self.until {
            return Err((Why::Silent, "the other end does not say what it wants".to_owned()));
        }
        Ok(())
    }

    fn take_note(&mut self, bytes: &[u8]) -> Result<(), (Why, String)> {
        let corrupt = |why: String| (Why::Corrupt, why);
        match (Note::read(bytes).map_err(corrupt)?, &self.state) {
            (Note::Hello(kind), State::Greeting) if self.accepted => {
                if let Some(why) = self.what.refuses(kind, self.messages.classes()) {
                    return Err((Why::Forbidden(why.clone()), why));
                }
                (self.state, self.was_open) = (State::Open, true);
                self.note(&Note::Welcome);
            }
            (Note::Welcome, State::Greeting) if !self.accepted => (self.state, self.was_open) = (State::Open, true),
            (Note::End(counts), State::Open) if counts.len() == self.taken.len() && self.theirs.is_none() => {
                self.theirs = Some(counts);
            }
            (note, _) => return Err(corrupt(format!("a note that does not belong there: {note:?}"))),
        }
        Ok(())
    }

    fn note(&mut self, note: &Note) {
        // Few and short: there is room for them, where a stream or a program leaves some.
        let message = Message { bytes: note.bytes(), deadline: None };
        self.unsettled += usize::from(self.messages.send(NOTES, message).is_ok());
    }

    /// There is no connection any more.
    pub(crate) fn lose(&mut self, why: Why) {
        self.key = None;
        if self.why().is_none() {
            self.state = State::Over(why);
        }
    }

    /// When [`Link::pump`] is due; never: `u64::MAX`.
    pub(crate) fn deadline(&self) -> u64 {
        let own = if self.state == State::Open { u64::MAX } else { self.until };
        let closing = self.closing.as_ref().map_or(u64::MAX, |closing| closing.until);
        if self.key.is_none() { u64::MAX } else { self.messages.deadline().min(own).min(closing) }
    }

    /// Rings, if something is to be reported.
    pub(crate) fn wake(&mut self) {
        let over = self.why().is_some();
        let reader = self.reader_waits && (self.is_readable() || over);
        let writer = self.writer_waits && (self.room() > 0 || over);
        self.reader_waits &= !reader;
        self.writer_waits &= !writer;
        if let Some(bell) = self.bell.as_ref().filter(|_| reader || writer) {
            bell.ring();
        }
    }

    // --- the program's side ---------------------------------------------------------------------------------------------------

    /// How many bytes would be taken. A little room is none, for many short messages cost more than few long ones.
    pub(crate) fn room(&self) -> usize {
        let room = if self.is_open() && self.closing.is_none() { self.messages.room() } else { 0 };
        if room < CHUNK { 0 } else { room }
    }

    /// Whether a message of so many bytes would be taken.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.messages.room() >= bytes || self.is_settled()
    }

    /// Takes a message; its number in its class.
    pub(crate) fn send(&mut self, class: u8, message: Message) -> Result<u32, Refused> {
        if class >= self.what.count() {
            return Err(Refused::Class(class));
        }
        let number = self.messages.send(class + 1, message)?;
        if let Some(sent) = self.sent.get_mut(usize::from(class)) {
            *sent = number + 1;
        }
        self.unsettled += 1;
        Ok(number)
    }

    /// Takes bytes of a stream; how many.
    pub(crate) fn write(&mut self, bufs: &[IoSlice<'_>]) -> usize {
        let (mut taken, mut chunk) = (0, Vec::new());
        let mut parts = bufs.iter().flat_map(|buf| buf.chunks(CHUNK)).peekable();
        while self.room() >= CHUNK && parts.peek().is_some() {
            // Short pieces go together.
            while let Some(part) = parts.next_if(|part| chunk.len() + part.len() <= CHUNK) {
                chunk.extend_from_slice(part);
            }
            let len = chunk.len();
            if self.send(0, Message { bytes: mem::take(&mut chunk), deadline: None }).is_err() {
                // A link has had all that it can carry: the connection is closed for that.
                self.is_spent = true;
                break;
            }
            taken += len;
        }
        taken
    }

    /// The next message, of each class in turn.
    pub(crate) fn take_any(&mut self) -> Option<Arrived> {
        let count = self.what.count();
        let next = (0..count).map(|step| (self.next + step) % count).find(|class| self.messages.has(class + 1))?;
        let arrived = self.messages.take_of(next + 1)?;
        if let Some(taken) = self.taken.get_mut(usize::from(next)) {
            *taken += 1;
        }
        self.next = next + 1;
        Some(Arrived { class: next, ..arrived })
    }

    /// Whether there is a message, or a byte, or the end.
    pub(crate) fn is_readable(&self) -> bool {
        self.has_more() || self.is_at_end()
    }

    fn has_more(&self) -> bool {
        self.read < self.front.len() || (1..=self.what.count()).any(|class| self.messages.has(class))
    }

    /// Whether everything was read, and there will be nothing more.
    pub(crate) fn is_at_end(&self) -> bool {
        self.theirs.as_ref() == Some(&self.taken) && self.read == self.front.len()
    }

    /// Reads bytes of a stream; how many.
    pub(crate) fn read(&mut self, room: &mut [u8]) -> usize {
        let mut done = 0;
        while done < room.len() {
            if self.read == self.front.len() {
                let Some(next) = self.take_any() else { break };
                (self.front, self.read) = (next.bytes, 0);
            }
            let rest = self.front.get(self.read..).unwrap_or_default();
            let count = rest.len().min(room.len() - done);
            if let (Some(place), Some(bytes)) = (room.get_mut(done..done + count), rest.get(..count)) {
                place.copy_from_slice(bytes);
            }
            (self.read, done) = (self.read + count, done + count);
        }
        if self.read == self.front.len() {
            (self.front, self.read) = (Vec::new(), 0);
        }
        done
    }

    /// Whether the other end is to be told of what was read.
    pub(crate) fn owes(&self) -> bool {
        self.messages.owes()
    }

    /// What became of a message that was sent.
    pub(crate) fn report(&mut self) -> Option<Settled> {
        self.settled.pop_front()
    }

    pub(crate) fn has_report(&self) -> bool {
        !self.settled.is_empty()
    }

    /// Whether it is known of every message what became of it.
    pub(crate) fn is_settled(&self) -> bool {
        self.unsettled == 0
    }

    fn keep(&mut self, settled: Settled) {
        if let (Kind::Messages, Some(class)) = (self.what.kind(), settled.class.checked_sub(1)) {
            if self.settled.len() == MOST_REPORTS {
                self.settled.pop_front();
            }
            self.settled.push_back(Settled { class, ..settled });
        }
    }

    // --- the end --------------------------------------------------------------------------------------------------------------

    /// Nothing more will be sent. `then` is called once everything is settled, or never will be.
    pub(crate) fn finish(&mut self, then: Option<Waker>) {
        match &mut self.closing {
            Some(closing) => closing.then = then.or(closing.then.take()),
            None => {
                self.owes_end = self.is_open() && !self.has_more();
                self.closing = Some(Closing { then, since: usize::MAX, until: 0 });
            }
        }
        self.is_deaf = true;
    }

    /// Says how many messages there were, once there is room for that.
    fn send_end(&mut self) {
        let before = self.unsettled;
        if self.owes_end {
            self.note(&Note::End(self.sent.clone()));
            self.owes_end = self.unsettled == before;
        }
    }

    fn go_on_closing(&mut self, now: u64) {
        let unsettled = self.unsettled;
        if let Some(closing) = &mut self.closing
            && unsettled < closing.since
        {
            (closing.since, closing.until) = (unsettled, now + LINGER);
        }
    }

    /// Whether it closes, and waits for nothing more.
    pub(crate) fn is_finished(&self, now: u64) -> bool {
        let is_late = |closing: &Closing| closing.until > 0 && now >= closing.until;
        let over = (self.is_settled() && !self.owes_end) || self.why().is_some();
        self.closing.as_ref().is_some_and(|closing| over || is_late(closing))
    }

    /// Who waits for the end.
    pub(crate) fn waker(&mut self) -> Option<Waker> {
        self.closing.as_mut()?.then.take()
    }
}
