//! A mailbox, for its program.

use std::sync::Arc;

use super::buffer::Buffer;
use super::error::MailError;
use super::header::{Filter, Header, Letter};
use super::hub::Hub;
use super::inbox::{Body, Inbox};
use super::put::Data;
use super::state::State;
use super::wire::Call;
use crate::ports::{Change, PortAddress};

/// A mailbox: messages come to it, and are put into others from it. Dropped, it is closed.
pub struct Mailbox {
    hub: Arc<Hub>,
    number: u32,
    name: String,
}

impl Mailbox {
    pub(super) fn open(hub: Arc<Hub>, name: &str, places: u32) -> Result<Self, MailError> {
        let mut state = hub.lock();
        if state.named(name).is_some() {
            return Err(MailError::InUse(name.to_owned()));
        }
        let number = state.number();
        state.boxes.insert(number, Inbox::new(name, places));
        drop(state);
        Ok(Self { hub, number, name: name.to_owned() })
    }

    /// What others put messages to.
    pub fn address(&self) -> PortAddress {
        self.hub.address(&self.name)
    }

    /// Puts a message into mailboxes, each of them once: how many have it. Where some are lost while it is sent it goes to the others; any
    /// other error is of all, and nobody has anything of it.
    ///
    /// The header goes to each receiver's mailbox. The data go with it, or stay with a process where all receivers find them, one copy for all.
    /// Waits, at most until `deadline` (nanoseconds of the monotonic clock): for the first answer of a receiver, for a place in a full
    /// mailbox ([`MailError::Full`]), for memory of this process ([`MailError::NoRoom`]) or of a third one ([`MailError::NoStorage`]). Data
    /// that lie at this process are there as long as [`Mailboxes`](super::Mailboxes) is.
    pub fn put(
        &self,
        to: &[PortAddress],
        letter: Letter,
        data: Data<'_>,
        deadline: Option<u64>,
    ) -> Result<usize, MailError> {
        self.hub.put(self.number, to, letter, data, deadline)
    }

    /// The headers of the messages in it that are meant, at most so many: urgent ones first, each kind as they came; those of one sender in
    /// the order in which they were put. No data move. Does not block.
    pub fn list(&self, filter: &Filter, most: usize) -> Vec<Header> {
        self.hub.handle();
        let state = self.hub.lock();
        state.boxes.get(&self.number).map(|inbox| inbox.list(filter, most)).unwrap_or_default()
    }

    /// The header of that message. `None`: it is not there.
    pub fn header(&self, id: u64) -> Option<Header> {
        self.hub.handle();
        self.hub.lock().boxes.get(&self.number)?.header(id)
    }

    /// Waits for a message that is meant until `deadline` (nanoseconds of the monotonic clock; 0: only looks); it stays. `None`: there is
    /// none.
    pub fn wait(&self, filter: &Filter, deadline: Option<u64>) -> Result<Option<Header>, MailError> {
        self.hub.until(deadline, |state| Ok(self.inbox(state)?.first(filter)))
    }

    /// Takes a message out: its data, wherever they lie. Waits for them until `deadline`. Where that fails the message stays, with its place,
    /// to be got again or dropped: [`MailError::Late`], [`MailError::DataLost`], [`MailError::NoMemory`].
    pub fn get(&self, id: u64, deadline: Option<u64>) -> Result<Buffer, MailError> {
        let got = self.hub.until(deadline, |state| {
            let item = self.inbox(state)?.item(id).ok_or(MailError::Gone(id))?;
            if let Some(failed) = item.failed.take() {
                return Err(failed);
            }
            if matches!(item.body, Body::Away(_)) {
                self.hub.bring(state, self.number, id);
            }
            self.take_here(state, id)
        })?;
        got.map_or_else(|| self.get_late(id), Ok)
    }

    /// Takes a message out without its data, which are freed where they lie if nobody else holds them. Does not block.
    pub fn discard(&self, id: u64) -> Result<(), MailError> {
        self.hub.handle();
        let mut state = self.hub.lock();
        let item = self.inbox(&mut state)?.take(id).ok_or(MailError::Gone(id))?;
        self.hub.let_go(&mut state, item);
        Ok(())
    }

    /// What became of those who send to it, since the last call; each named by its address.
    pub fn changes(&self) -> Vec<Change> {
        self.hub.handle();
        let mut state = self.hub.lock();
        state.boxes.get_mut(&self.number).map(Inbox::take_changes).unwrap_or_default()
    }

    /// Closes it, as dropping it does: its messages are dropped, its senders are told, and threads that wait return with
    /// [`MailError::Closed`]. What it has put stays. More than once is nothing.
    pub fn close(&self) {
        let mut state = self.hub.lock();
        let Some(inbox) = state.boxes.get_mut(&self.number).filter(|inbox| inbox.name.is_some()) else { return };
        inbox.name = None;
        for item in inbox.take_all() {
            self.hub.let_go(&mut state, item);
        }
        let from = state.incoming.values().filter(|line| line.to == self.number);
        let senders: Vec<_> = from.map(|line| (line.peer, line.theirs)).collect();
        if senders.is_empty() {
            state.boxes.remove(&self.number);
        }
        for (peer, line) in senders {
            self.hub.tell(&mut state, peer, &Call::Closed { line });
        }
        let lines = state.outgoing.iter().filter(|(_, out)| out.by == self.number);
        let lines: Vec<u32> = lines.map(|(line, _)| *line).collect();
        for line in lines {
            if let Some(out) = state.remove_route(line)
                && let Some(theirs) = out.theirs()
            {
                self.hub.tell(&mut state, out.peer, &Call::Leaves { theirs });
            }
        }
    }

    fn inbox<'s>(&self, state: &'s mut State) -> Result<&'s mut Inbox, MailError> {
        let inbox = state.boxes.get_mut(&self.number).filter(|inbox| inbox.name.is_some());
        inbox.ok_or(MailError::Closed)
    }

    /// Takes a message out if its data are here.
    fn take_here(&self, state: &mut State, id: u64) -> Result<Option<Buffer>, MailError> {
        let inbox = self.inbox(state)?;
        let Some(item) = inbox.item(id).filter(|item| matches!(item.body, Body::Here(..))) else {
            return Ok(None);
        };
        let Body::Here(buffer, _) = &item.body else { return Ok(None) };
        let buffer = buffer.clone();
        if let Some(item) = inbox.take(id) {
            self.hub.let_go(state, item);
        }
        Ok(Some(buffer))
    }

    /// A message whose time is up: it, if another thread has just handled its arrival; or why it was not got.
    fn get_late(&self, id: u64) -> Result<Buffer, MailError> {
        let mut state = self.hub.lock();
        if let Some(buffer) = self.take_here(&mut state, id)? {
            return Ok(buffer);
        }
        let item = self.inbox(&mut state)?.item(id).ok_or(MailError::Gone(id))?;
        if let Some(failed) = item.failed.take() {
            return Err(failed);
        }
        match &item.body {
            Body::Away(holder) | Body::Coming(holder, _) => {
                Err(MailError::Late { id, holder: format!("node {}", holder.at.id) })
            }
            Body::Here(..) => Err(MailError::Gone(id)),
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.close();
    }
}
