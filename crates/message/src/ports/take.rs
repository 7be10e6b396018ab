//! Messages are taken out of the endpoint for their receive ports: those with long heads come in two steps, and nobody waits in between.

use std::sync::MutexGuard;

use super::error::PortError;
use super::hub::Hub;
use super::state::{Arrived, Coming, Found, Incoming, State};
use super::wire::{LONGEST_HEAD, message_tag};
use crate::endpoint::{Claim, Kind, PeerId, Receive, Status, Taken, Wanted};
use crate::memory::Block;

impl Hub {
    /// The next message of a receive port that is here, without those that only say that a sender leaves. No other one is taken before
    /// [`Hub::is_read`], for arrays that travel alone come in the order of their messages.
    pub(super) fn take(&self, port: u32) -> Result<Found, PortError> {
        let wanted = Wanted { from: None, tag: Some(message_tag(port)), ignore: 0 };
        loop {
            let mut state = self.lock();
            match state.ports.get(&port) {
                None => return Ok(Found::Nothing),
                Some(taken) if taken.coming.is_some() => match self.take_coming(state, port) {
                    Some(found) => return Ok(found),
                    None => continue,
                },
                Some(taken) if taken.is_busy => return Err(PortError::Busy),
                Some(_) => {}
            }
            let (seen, body) = match self.filing.endpoint().take(&wanted) {
                Taken::Message(seen, body) => (seen, body),
                Taken::PlainOnes => return Ok(Found::Calls),
                Taken::Nothing => return Ok(Found::Nothing),
            };
            let counted = state.counted(port, &seen);
            match (counted, body) {
                (Some((connection, from)), Ok(head)) => return Ok(Found::Message(Arrived { connection, from, head })),
                (Some(counted), Err(long)) => {
                    let (connection, peer) = (counted.0, counted.1.peer);
                    if !self.receive_head(&mut state, port, counted, long) {
                        drop(state);
                        self.cut(port, connection, peer);
                    }
                }
                // Nobody's, or a sender's last one.
                (None, Err((_, claim))) => drop(self.filing.endpoint().discard(claim)),
                (None, Ok(_)) => {}
            }
        }
    }

    /// The message whose head is coming. `None`: it does not come.
    fn take_coming(&self, mut state: MutexGuard<'_, State>, number: u32) -> Option<Found> {
        let port = state.ports.get_mut(&number)?;
        let coming = port.coming.take()?;
        // What this thread's progress brings counts, too.
        let done = self.filing.take(Kind::Received, coming.token).or_else(|| {
            self.filing.collect();
            self.filing.take(Kind::Received, coming.token)
        });
        let Some(done) = done else {
            port.coming = Some(coming);
            return Some(Found::Calls);
        };
        drop(state);
        let Coming { connection, from, head, .. } = coming;
        if done.status == Status::Ok && done.len == head.bytes().len() {
            return Some(Found::Message(Arrived { connection, from, head: head.into_bytes() }));
        }
        self.cut(number, connection, from.peer);
        None
    }

    /// Begins to receive a long head. False: it is too long, or its sender is gone.
    fn receive_head(
        &self,
        state: &mut State,
        number: u32,
        (connection, from): (u32, Incoming),
        (len, claim): (usize, Claim),
    ) -> bool {
        let head = if len <= LONGEST_HEAD { Block::try_new(len as u64) } else { None };
        let (Some(mut head), Some(port)) = (head, state.ports.get_mut(&number)) else {
            let _ = self.filing.endpoint().discard(claim);
            return false;
        };
        let (token, parts) = (self.filing.token(), [head.piece()]);
        let receive = Receive { from: None, tag: None, ignore: 0, parts: &parts, token, multi: None };
        let begun = self.filing.endpoint().receive_claimed(claim, &receive).is_ok();
        if begun {
            port.coming = Some(Coming { connection, from, head, token });
        }
        begun
    }

    /// What came is no whole message.
    fn cut(&self, port: u32, connection: u32, peer: PeerId) {
        self.is_read(port);
        let why = self.filing.endpoint().why(peer).map(|why| why.to_string());
        let why = why.as_deref().unwrap_or("its message is longer than one may be, or was cut short");
        self.end(port, connection, why);
    }

    /// A message was read, or thrown away.
    pub(super) fn is_read(&self, port: u32) {
        if let Some(port) = self.lock().ports.get_mut(&port) {
            port.is_busy = false;
        }
    }
}
