//! A message is put into mailboxes: lines, places, data that are kept, headers.

use core::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use super::buffer::Buffer;
use super::error::MailError;
use super::header::{Letter, Policy};
use super::hub::Hub;
use super::state::State;
use super::wire::{Call, Envelope, INLINE, Kept, Lies, MOST_RECEIVERS};
use crate::endpoint::{PeerId, PostError};
use crate::ports::PortAddress;

/// Data of a message.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Bytes, which are free when it is put.
    Bytes(&'a [u8]),
    /// A buffer, which is not copied. A shared one goes by reference to processes of this host.
    Buffer(&'a Buffer),
}

/// A message on its way to several receivers.
struct Put<'p> {
    by: u32,
    to: &'p [PortAddress],
    letter: Letter,
    deadline: Option<u64>,
}

/// A receiver's line, on which a place is taken.
#[derive(Clone, Copy)]
struct Place {
    line: u32,
    peer: PeerId,
}

impl Data<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Buffer(buffer) => buffer,
        }
    }

    fn buffer(&self) -> Buffer {
        match self {
            Self::Bytes(bytes) => Buffer::from(bytes.to_vec()),
            Self::Buffer(buffer) => (*buffer).clone(),
        }
    }

    fn is_inline(&self, policy: Policy) -> bool {
        let is_shared = matches!(self, Self::Buffer(buffer) if buffer.is_shared());
        policy == Policy::Receiver && self.bytes().len() <= INLINE && !is_shared
    }
}

impl Hub {
    /// Puts a message into mailboxes: how many have it. Nobody has anything of it when this fails.
    pub(super) fn put(
        &self,
        by: u32,
        to: &[PortAddress],
        letter: Letter,
        data: Data<'_>,
        deadline: Option<u64>,
    ) -> Result<usize, MailError> {
        let keys: HashSet<_> = to.iter().map(|to| (to.node.id, to.node.channel, &to.name)).collect();
        if to.is_empty() || to.len() > MOST_RECEIVERS || keys.len() != to.len() {
            return Err(MailError::Receivers { most: MOST_RECEIVERS });
        }
        self.handle();
        let put = Put { by, to, letter, deadline };
        let places = self.take_places(&put)?;
        let (lies, cleaned) = match self.lay(&put, &places, data) {
            Ok(laid) => laid,
            Err(error) => {
                self.lock().give_back(&places, &put);
                return Err(error);
            }
        };
        let size = data.bytes().len() as u64;
        let Letter { tag, kind, policy } = letter;
        let envelope = Envelope { kind, policy, tag, sequence: 0, size, lies };
        let (missed, error) = self.send_headers(&put, &places, envelope);
        self.clean(cleaned, &places, &missed);
        match error {
            Some(error) if missed.len() == places.len() => Err(error),
            _ => Ok(places.len() - missed.len()),
        }
    }

    /// A place at every receiver, or none at any.
    fn take_places(&self, put: &Put<'_>) -> Result<Vec<Place>, MailError> {
        let taken = self.until(put.deadline, |state| {
            let mut places = Vec::with_capacity(put.to.len());
            for to in put.to {
                places.extend(self.place(state, put, to)?);
            }
            if places.len() < put.to.len() {
                return Ok(None);
            }
            for place in &places {
                if let Some(out) = state.outgoing.get_mut(&place.line) {
                    out.take_place(put.letter.kind);
                }
            }
            Ok(Some(places))
        })?;
        taken.ok_or_else(|| self.lock().why_no_place(put))
    }

    /// The line of a receiver, if it has a place; else that is asked for.
    fn place(&self, state: &mut State, put: &Put<'_>, to: &PortAddress) -> Result<Option<Place>, MailError> {
        if state.boxes.get(&put.by).is_none_or(|inbox| inbox.name.is_none()) {
            return Err(MailError::Closed);
        }
        let Some(line) = state.route(put.by, to) else {
            let peer = self.filing.endpoint().peer(&to.node);
            let from = state.boxes.get(&put.by).and_then(|inbox| inbox.name.clone()).unwrap_or_default();
            let line = state.add_route(put.by, to, peer);
            self.tell(state, peer, &Call::Open { line, to: to.name.clone(), from });
            return Ok(None);
        };
        self.check_peer(state, line);
        if !state.is_open(line)? {
            return Ok(None);
        }
        let Some(out) = state.outgoing.get_mut(&line) else { return Err(MailError::Closed) };
        let (peer, kind) = (out.peer, put.letter.kind);
        if out.has_place(kind) {
            return Ok(Some(Place { line, peer }));
        }
        if out.waits(kind)
            && let Some(theirs) = out.theirs()
        {
            self.tell(state, peer, &Call::Waits { theirs, kind });
        }
        Ok(None)
    }

    /// A line to a process that is gone is over at once.
    fn check_peer(&self, state: &mut State, line: u32) {
        let Some(peer) = state.outgoing.get(&line).map(|out| out.peer) else { return };
        if let Some(why) = self.why(state, peer)
            && let Some(out) = state.outgoing.get_mut(&line)
        {
            out.end(MailError::Lost { to: out.to.name.clone(), why });
        }
    }

    /// Where the data lie for the receivers; and what is to be told to the one who keeps them, if that is another.
    fn lay(&self, put: &Put<'_>, places: &[Place], data: Data<'_>) -> Result<(Lies, Keeper), MailError> {
        if data.is_inline(put.letter.policy) {
            return Ok((Lies::Inline(data.bytes().to_vec()), Keeper::Nobody));
        }
        if put.letter.policy == Policy::Elsewhere {
            let (at, peer, kept) = self.keep_elsewhere(put, places, data.buffer())?;
            return Ok((Lies::Elsewhere(at.node.clone(), kept.clone()), Keeper::Other(peer, kept.key)));
        }
        let holders: Vec<PeerId> = places.iter().map(|place| place.peer).collect();
        let kept = self.keep(put, &data.buffer(), &holders)?;
        let key = kept.key;
        Ok((Lies::AtSender(kept), Keeper::Own(key)))
    }

    /// Keeps data here, once there is room.
    fn keep(&self, put: &Put<'_>, buffer: &Buffer, holders: &[PeerId]) -> Result<Kept, MailError> {
        let size = buffer.len() as u64;
        let cost = if buffer.is_shared() { 0 } else { size };
        let kept = self.until(put.deadline, |state| {
            Ok(state.store.has_room(cost).then(|| state.store.keep(buffer.clone(), holders.to_vec())))
        })?;
        let key = kept.ok_or_else(|| {
            let mut state = self.lock();
            let (held, most) = state.store.own();
            let to = state.who_reads_late().or_else(|| Some(put.to.first()?.name.clone())).unwrap_or_default();
            MailError::NoRoom { size, held, most, to }
        })?;
        Ok(Kept { key, shared: buffer.found() })
    }

    /// Has a third process keep data.
    fn keep_elsewhere(
        &self,
        put: &Put<'_>,
        places: &[Place],
        buffer: Buffer,
    ) -> Result<(Arc<PortAddress>, PeerId, Kept), MailError> {
        let holders: Vec<_> = put.to.iter().map(|to| to.node.clone()).collect();
        let mut parties: Vec<PeerId> = places.iter().map(|place| place.peer).collect();
        parties.push(self.filing.endpoint().peer(&self.filing.endpoint().address()));
        self.ask_stores(put.deadline, &parties, &holders, &buffer)
    }

    /// Sends the headers: the receivers that were missed, and why the first of these.
    fn send_headers(&self, put: &Put<'_>, places: &[Place], mut envelope: Envelope) -> (Vec<u16>, Option<MailError>) {
        let (mut missed, mut error) = (Vec::new(), None);
        for (at, place) in places.iter().enumerate() {
            let sent = self.until(put.deadline, |state| {
                let gone = state.why_no_line(put, at);
                if state.outgoing.contains_key(&place.line) {
                    state.is_open(place.line)?;
                }
                let Some(out) = state.outgoing.get_mut(&place.line) else { return Err(gone) };
                let Some(theirs) = out.theirs() else { return Err(gone) };
                envelope.sequence = out.sequence + 1;
                let call = Call::Header { theirs, envelope: envelope.clone() };
                match self.post(place.peer, &call.bytes()) {
                    Ok(()) => {
                        out.sequence += 1;
                        Ok(Some(()))
                    }
                    Err(PostError::Again) => Ok(None),
                    Err(why) => {
                        let to = out.to.name.clone();
                        let why = self.why(state, place.peer).unwrap_or_else(|| why.to_string());
                        Err(MailError::Lost { to, why })
                    }
                }
            });
            let failed = match sent {
                Ok(Some(())) => continue,
                Ok(None) => MailError::Silent(put.to[at].name.clone()),
                Err(failed) => failed,
            };
            self.lock().give_back(core::slice::from_ref(place), put);
            missed.push(at as u16);
            error.get_or_insert(failed);
        }
        (missed, error)
    }

    /// The headers are sent, but to these: for them nothing is kept.
    fn clean(&self, keeper: Keeper, places: &[Place], missed: &[u16]) {
        let mut state = self.lock();
        match keeper {
            Keeper::Nobody => {}
            Keeper::Own(key) => {
                let missed = missed.iter().filter_map(|at| places.get(usize::from(*at)));
                missed.for_each(|place| state.store.release(place.peer, key));
            }
            Keeper::Other(peer, key) => {
                self.tell(&mut state, peer, &Call::Sent { key, missed: missed.to_vec() });
            }
        }
    }
}

/// Who keeps the data of a message.
enum Keeper {
    Nobody,
    Own(u64),
    Other(PeerId, u64),
}

impl State {
    /// Places that were taken and are not used.
    fn give_back(&mut self, places: &[Place], put: &Put<'_>) {
        for place in places {
            if let Some(out) = self.outgoing.get_mut(&place.line) {
                out.give_places(put.letter.kind, 1);
            }
        }
    }

    /// Of the mailboxes of processes that hold data of ours, the one with the most messages that may be unread.
    fn who_reads_late(&mut self) -> Option<String> {
        let holders = self.store.parties();
        let lines = self.outgoing.iter().filter(|(_, out)| holders.contains(&out.peer));
        let (_, out) = lines.max_by_key(|(line, out)| (out.unread(), Reverse(**line)))?;
        Some(out.to.name.clone())
    }

    /// Why a receiver's line, which was there when the message was begun, is no more: another thread may have told why it ended.
    fn why_no_line(&self, put: &Put<'_>, at: usize) -> MailError {
        if self.boxes.get(&put.by).is_none_or(|inbox| inbox.name.is_none()) {
            return MailError::Closed;
        }
        let to = put.to.get(at).map_or_else(String::new, |to| to.name.clone());
        MailError::Lost { to, why: "its line has ended".to_owned() }
    }

    /// Which receiver had no place, and why.
    fn why_no_place(&self, put: &Put<'_>) -> MailError {
        let kind = put.letter.kind;
        let lines = put.to.iter().map(|to| (to, self.route(put.by, to).and_then(|line| self.outgoing.get(&line))));
        let mut silent = None;
        for (to, out) in lines {
            match out {
                Some(out) if out.theirs().is_some() && !out.has_place(kind) => return out.full(kind),
                Some(out) if out.theirs().is_some() => {}
                _ => silent = silent.or(Some(to)),
            }
        }
        MailError::Silent(silent.or(put.to.first()).map_or_else(String::new, |to| to.name.clone()))
    }
}
