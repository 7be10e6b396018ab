//! Data that are fetched: from the process that keeps them, for a message here or to be kept for others.

use madrigal_base::node::NodeAddress;

use super::buffer::Buffer;
use super::error::MailError;
use super::hub::Hub;
use super::inbox::{Body, Holder, Item};
use super::state::{Fetch, State, Wanted};
use super::wire::{ALL, Call, Kept, data_tag};
use crate::endpoint::{Completion, Kind, PeerId, Receive, Status};
use crate::memory::Block;

/// Data that may come at once because they are to lie here: fewer than the answers that a holder keeps ([`Hub::answer_data`]).
const MOST_COMING: usize = 2048;
/// What keeping anything for others costs beside its bytes.
const EACH: u64 = 4096;

impl Hub {
    /// Fetches data that are to lie here, as long as there is room.
    pub(super) fn fetch_early(&self, state: &mut State) {
        while state.fetches.len() < MOST_COMING
            && let Some(&(inbox, id)) = state.early.front()
        {
            let item = state.boxes.get_mut(&inbox).and_then(|inbox| inbox.item(id));
            if let Some(size) = item.filter(|item| matches!(item.body, Body::Away(_))).map(|item| item.size) {
                let has_room = state.received.checked_add(size).is_some_and(|all| all <= state.most_received);
                if !has_room && state.received > 0 {
                    return;
                }
                if has_room {
                    self.bring(state, inbox, id);
                }
            }
            state.early.pop_front();
        }
    }

    /// Has the data of a message come: mapped at once if they are a shared buffer of this host, else fetched.
    pub(super) fn bring(&self, state: &mut State, inbox: u32, id: u64) {
        let Some(item) = state.boxes.get_mut(&inbox).and_then(|inbox| inbox.item(id)) else { return };
        let Body::Away(holder) = &item.body else { return };
        let (holder, size) = (holder.clone(), item.size);
        if let Some(buffer) = holder.kept.shared.and_then(|found| Buffer::open(found, size)) {
            item.body = Body::Here(buffer, 0);
            let peer = self.filing.endpoint().peer(&holder.at);
            self.tell(state, peer, &Call::Release { key: holder.kept.key });
            return;
        }
        let peer = self.filing.endpoint().peer(&holder.at);
        let begun = self.fetch(state, peer, holder.kept.key, size, Wanted::Message { inbox, id });
        let Some(item) = state.boxes.get_mut(&inbox).and_then(|inbox| inbox.item(id)) else { return };
        match begun {
            Ok(token) => {
                item.body = Body::Coming(holder, token);
                state.received += size;
            }
            Err(None) => item.failed = Some(MailError::NoMemory(size)),
            Err(Some(why)) => item.failed = Some(lost(id, &holder, why)),
        }
    }

    /// Asks for data: the token. An error: the process is gone, and why; or there is no memory.
    fn fetch(
        &self,
        state: &mut State,
        from: PeerId,
        key: u64,
        size: u64,
        wanted: Wanted,
    ) -> Result<u64, Option<String>> {
        if let Some(why) = self.why(state, from) {
            return Err(Some(why));
        }
        let mut block = Block::try_new(size).ok_or(None)?;
        let (token, parts) = (self.filing.token(), [block.piece()]);
        let tag = Some(data_tag(token));
        let receive = Receive { from: Some(from), tag, ignore: 0, parts: &parts, token, multi: None };
        let posted = self.filing.endpoint().receive(&receive);
        posted.map_err(|error| Some(self.why(state, from).unwrap_or_else(|| error.to_string())))?;
        state.fetches.insert(token, Fetch { from, key, block, wanted });
        self.tell(state, from, &Call::Fetch { key, token });
        Ok(token)
    }

    /// What has come, or does not come; how much there was. Memory that was sent is free.
    pub(super) fn complete(&self, state: &mut State) -> usize {
        let sent: Vec<u64> =
            state.sending.keys().copied().filter(|token| self.filing.take(Kind::Sent, *token).is_some()).collect();
        sent.iter().for_each(|token| drop(state.sending.remove(token)));
        let done = |token: &u64| self.filing.take(Kind::Received, *token);
        let done: Vec<_> = state.fetches.keys().filter_map(|token| Some((*token, done(token)?))).collect();
        let count = sent.len() + done.len();
        for (token, done) in done {
            self.fetched(state, token, &done);
        }
        count
    }

    fn fetched(&self, state: &mut State, token: u64, done: &Completion) {
        let Some(Fetch { from, key, block, wanted }) = state.fetches.remove(&token) else { return };
        let size = block.bytes().len();
        let came = match done.status {
            Status::Ok if done.len == size => Ok(Buffer::from(block.into_bytes())),
            Status::Ok | Status::Truncated(_) => Err("it sent others".to_owned()),
            Status::Canceled => Err("it has them no more".to_owned()),
            _ => Err(self.why(state, from).unwrap_or_else(|| "it is gone".to_owned())),
        };
        match wanted {
            Wanted::Nothing(size) => state.received -= size,
            Wanted::Message { inbox, id } => self.message_fetched(state, (inbox, id), (from, key), came),
            Wanted::Storage { by, request, holders } => {
                if came.is_ok() {
                    self.tell(state, from, &Call::Release { key });
                }
                self.stored(state, (by, request), (size as u64, came), holders);
            }
        }
    }

    fn message_fetched(
        &self,
        state: &mut State,
        (inbox, id): (u32, u64),
        (from, key): (PeerId, u64),
        came: Result<Buffer, String>,
    ) {
        let Some(item) = state.boxes.get_mut(&inbox).and_then(|inbox| inbox.item(id)) else { return };
        let Body::Coming(holder, _) = &item.body else { return };
        match came {
            Ok(buffer) => {
                item.body = Body::Here(buffer, item.size);
                self.tell(state, from, &Call::Release { key });
            }
            Err(why) => {
                let holder = holder.clone();
                item.failed = Some(lost(id, &holder, why));
                item.body = Body::Away(holder);
                state.received -= item.size;
            }
        }
    }

    /// Fetches from a process that has no mailboxes any more do not complete by themselves.
    pub(super) fn fetches_fail(&self, state: &mut State, from: PeerId) {
        for (token, _) in state.fetches.iter().filter(|(_, fetch)| fetch.from == from) {
            self.filing.endpoint().cancel(*token);
        }
    }

    /// A message is out of its mailbox: its data are let go of, and its place is the sender's again.
    pub(super) fn let_go(&self, state: &mut State, item: Item) {
        self.let_go_of_data(state, item.body, item.size);
        let Some(line) = state.incoming.get_mut(&item.line) else { return };
        let Some(places) = state.boxes.get(&line.to).map(|inbox| inbox.places) else { return };
        if let Some(count) = line.taken(item.kind, places) {
            let (peer, line) = (line.peer, line.theirs);
            self.tell(state, peer, &Call::Taken { line, kind: item.kind, count });
        }
    }

    /// The data of a message that nobody wants.
    pub(super) fn let_go_of_data(&self, state: &mut State, body: Body, size: u64) {
        match body {
            Body::Here(_, cost) => state.received -= cost,
            Body::Away(holder) => self.release(state, &holder),
            Body::Coming(holder, token) => {
                // The holder is asked by now, and answers: what no receive took would stay, with it too.
                if let Some(fetch) = state.fetches.get_mut(&token) {
                    fetch.wanted = Wanted::Nothing(size);
                }
                self.release(state, &holder);
            }
        }
    }

    fn release(&self, state: &mut State, holder: &Holder) {
        let peer = self.filing.endpoint().peer(&holder.at);
        self.tell(state, peer, &Call::Release { key: holder.kept.key });
    }

    /// Another process asks that data be kept, which lie with it now.
    pub(super) fn store(
        &self,
        state: &mut State,
        by: PeerId,
        (request, size): (u64, u64),
        data: Kept,
        holders: &[NodeAddress],
    ) {
        if !size.checked_add(EACH).is_some_and(|cost| state.store.ask(cost)) {
            let load = state.store.load();
            let why = format!("{} of {} bytes are in use or asked for", load.held + load.asked, load.offers);
            self.answer(state, by, &Call::Full { request, load, why });
            return;
        }
        let holders: Vec<_> = holders.iter().map(|holder| self.filing.endpoint().peer(holder)).collect();
        if let Some(buffer) = data.shared.and_then(|found| Buffer::open(found, size)) {
            self.tell(state, by, &Call::Release { key: data.key });
            self.stored(state, (by, request), (size, Ok(buffer)), holders);
            return;
        }
        let wanted = Wanted::Storage { by, request, holders };
        if let Err(why) = self.fetch(state, by, data.key, size, wanted) {
            let why = why.unwrap_or_else(|| "there is no memory".to_owned());
            self.stored(state, (by, request), (size, Err(why)), Vec::new());
        }
    }

    /// Data that were to be kept have come, or do not.
    fn stored(
        &self,
        state: &mut State,
        (by, request): (PeerId, u64),
        (size, came): (u64, Result<Buffer, String>),
        holders: Vec<PeerId>,
    ) {
        match came {
            Ok(buffer) => {
                let shared = buffer.found();
                // That they are there, and whether they still are, is known from the link.
                holders.iter().for_each(|holder| self.tell(state, *holder, &Call::Holds));
                let key = state.store.keep_for(by, (buffer, size + EACH), holders);
                let (data, load) = (Kept { key, shared }, state.store.load());
                if !self.answer(state, by, &Call::Stored { request, data, load }) {
                    state.store.sent(by, key, &ALL);
                }
            }
            Err(why) => {
                state.store.give_up(size + EACH);
                let load = state.store.load();
                self.answer(state, by, &Call::Full { request, load, why });
            }
        }
    }
}

fn lost(id: u64, holder: &Holder, why: String) -> MailError {
    MailError::DataLost { id, holder: format!("node {}", holder.at.id), why }
}
