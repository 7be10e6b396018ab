//! What other processes call for.

use std::sync::Arc;

use super::buffer::Buffer;
use super::error::MailError;
use super::header::{Load, Policy};
use super::hub::Hub;
use super::inbox::{Body, Holder, Item};
use super::lines::Incoming;
use super::state::{Answer, State};
use super::wire::{ALL, Call, Envelope, Lies};
use crate::endpoint::PeerId;
use crate::ports::{Change, PortAddress, is_name};

/// The most senders of the mailboxes of a process.
const MOST_LINES: usize = 1 << 16;
/// The most places that are believed of another process.
pub(super) const MOST_PLACES: u32 = 1 << 16;

impl Hub {
    pub(super) fn handle_call(&self, state: &mut State, from: PeerId, call: Call) {
        match call {
            Call::Open { line, to, from: name } => self.open(state, from, line, (&to, &name)),
            Call::Opened { line, theirs, places } => self.opened(state, from, line, (theirs, places)),
            Call::Refused { line, why } => {
                if let Some(out) = state.outgoing.get_mut(&line).filter(|out| out.peer == from) {
                    out.end(MailError::Refused { to: out.to.name.clone(), why: why.escape_debug().to_string() });
                }
            }
            Call::Header { theirs, envelope } => self.header(state, from, theirs, envelope),
            Call::Taken { line, kind, count } => {
                if let Some(out) = state.outgoing.get_mut(&line).filter(|out| out.peer == from) {
                    out.give_places(kind, count);
                }
            }
            Call::Waits { theirs, kind } => {
                let Some(line) = state.incoming.get_mut(&theirs).filter(|line| line.peer == from) else { return };
                if let Some(count) = line.sender_waits(kind) {
                    let line = line.theirs;
                    self.tell(state, from, &Call::Taken { line, kind, count });
                }
            }
            Call::Closed { line } => self.closed(state, from, line),
            Call::Leaves { theirs } => {
                if state.incoming.get(&theirs).is_some_and(|line| line.peer == from) {
                    state.end_incoming(theirs, |from| Change::Left { from });
                }
            }
            Call::Over => {
                state.over.insert(from);
                self.fetches_fail(state, from);
                self.look_for_the_gone(state);
            }
            Call::Holds => {}
            data => self.handle_data_call(state, from, data),
        }
    }

    /// Those of data.
    fn handle_data_call(&self, state: &mut State, from: PeerId, call: Call) {
        match call {
            Call::Fetch { key, token } => match state.store.get(from, key) {
                Some(data) => {
                    let its = state.requests.values_mut().filter(|asked| (asked.asked, asked.key) == (from, key));
                    its.for_each(|asked| asked.has_begun = true);
                    self.answer_data(state, from, token, data);
                }
                None => drop(self.answer(state, from, &Call::Missing { token })),
            },
            // It completes as one that was taken back.
            Call::Missing { token } if state.fetches.get(&token).is_some_and(|fetch| fetch.from == from) => {
                self.filing.endpoint().cancel(token);
            }
            Call::Release { key } => state.store.release(from, key),
            Call::Store { request, size, data, holders } => {
                self.store(state, from, (request, size), data, &holders);
            }
            Call::Stored { request, data, load } => {
                let key = data.key;
                if !answered(state, from, request, load, Ok(data)) {
                    // Nobody waits any more: no header will name it.
                    self.answer(state, from, &Call::Sent { key, missed: ALL.to_vec() });
                }
            }
            Call::Full { request, load, why } => {
                answered(state, from, request, load, Err(why.escape_debug().to_string()));
            }
            Call::Sent { key, missed } => state.store.sent(from, key, &missed),
            _ => {}
        }
    }

    /// A mailbox of another process wants to send to one here.
    fn open(&self, state: &mut State, from: PeerId, line: u32, (to, name): (&str, &str)) {
        let refused = |why: String| Call::Refused { line, why };
        if !is_name(name) {
            self.answer(state, from, &refused(format!("`{}` is no name of a mailbox", name.escape_debug())));
            return;
        }
        let source = self.filing.endpoint().who(from);
        let Some(number) = state.named(to) else {
            self.answer(state, from, &refused(format!("there is no mailbox `{}`", to.escape_debug())));
            return;
        };
        let Some(node) = source.filter(|_| state.incoming.len() < MOST_LINES) else {
            self.answer(state, from, &refused("it has as many senders as it may have".to_owned()));
            return;
        };
        let source = Arc::new(PortAddress { name: name.to_owned(), node });
        let theirs = state.number();
        let Some(inbox) = state.boxes.get_mut(&number) else { return };
        let places = inbox.places;
        if self.answer(state, from, &Call::Opened { line, theirs, places }) {
            if let Some(inbox) = state.boxes.get_mut(&number) {
                inbox.note(Change::Connected { from: source.to_string() });
            }
            state.incoming.insert(theirs, Incoming::new(number, from, line, source));
        }
    }

    /// An answer counts where it comes from the process that was asked. Nobody waits any more: the line is given back.
    fn opened(&self, state: &mut State, from: PeerId, line: u32, (theirs, places): (u32, u32)) {
        match state.outgoing.get_mut(&line).filter(|out| out.peer == from) {
            Some(out) => out.opened(theirs, places.clamp(1, MOST_PLACES)),
            None => drop(self.answer(state, from, &Call::Leaves { theirs })),
        }
    }

    /// A receiver takes nothing more.
    fn closed(&self, state: &mut State, from: PeerId, line: u32) {
        let Some(out) = state.outgoing.get_mut(&line).filter(|out| out.peer == from) else { return };
        let theirs = out.theirs();
        out.end(MailError::Refused { to: out.to.name.clone(), why: "it is closed".to_owned() });
        if let Some(theirs) = theirs {
            self.tell(state, from, &Call::Leaves { theirs });
        }
    }

    /// A message.
    fn header(&self, state: &mut State, from: PeerId, theirs: u32, envelope: Envelope) {
        let Some(line) = state.incoming.get_mut(&theirs).filter(|line| line.peer == from) else { return };
        let (number, source) = (line.to, Arc::clone(&line.source));
        let Some(inbox) = state.boxes.get_mut(&number) else { return };
        let Envelope { kind, policy, tag, sequence, size, lies } = envelope;
        let body = match lies {
            Lies::Inline(bytes) => Body::Here(Buffer::from(bytes), 0),
            Lies::AtSender(kept) => Body::Away(Holder { at: source.node.clone(), kept }),
            Lies::Elsewhere(at, kept) => Body::Away(Holder { at, kept }),
        };
        let is_away = matches!(body, Body::Away(_));
        let item = Item { line: theirs, source, tag, kind, size, sequence, policy, body, failed: None };
        if let Err(why) = line.comes(kind, sequence, inbox.places) {
            let line = line.theirs;
            state.end_incoming(theirs, |from| Change::Lost { from, why: why.to_owned() });
            self.tell(state, from, &Call::Closed { line });
            return;
        }
        if inbox.name.is_none() {
            // It is closed, and the sender does not know yet. It gets no place back: no more comes than it had places for.
            self.let_go_of_data(state, item.body, size);
            return;
        }
        let id = inbox.add(item);
        if is_away && policy == Policy::Receiver {
            state.add_early(number, id);
        }
    }
}

/// A process that was asked to keep data has answered. False: nobody waits for it.
fn answered(state: &mut State, from: PeerId, request: u64, load: Load, answer: Answer) -> bool {
    if let Some(store) = state.stores.iter_mut().find(|store| store.peer == from) {
        store.load = load;
    }
    let asked = state.requests.get_mut(&request).filter(|asked| asked.asked == from && asked.answer.is_none());
    asked.map(|asked| asked.answer = Some(answer)).is_some()
}

impl State {
    /// A sender's line is over: what it had sent stays.
    pub(super) fn end_incoming(&mut self, line: u32, change: impl FnOnce(String) -> Change) {
        let Some(gone) = self.incoming.remove(&line) else { return };
        let Some(inbox) = self.boxes.get_mut(&gone.to) else { return };
        inbox.note(change(gone.source.to_string()));
        if inbox.name.is_none() && !self.incoming.values().any(|other| other.to == gone.to) {
            self.boxes.remove(&gone.to);
        }
    }
}
