//! A better way was found: streams that go another one are moved, at an exact byte, while both ends go on. Where a call began, a second
//! stream is opened the new way, with the number of the first. If the far daemon agrees, each of the two ends its direction of the first
//! stream behind what it wrote there, and goes on with the second; who reads takes the first to its end, then the second. No byte is
//! counted, kept or sent again.
//!
//! ```text
//!  a1                            b1
//!   |== first stream, by r =====|      data both ways
//!   |-- second: move NUMBER --->|      a1 keeps the end of its data back, lest it be taken for the move
//!   |<----------------- agreed -|      b1 ends the first, writes on the second
//!   |-- end of the first ------>|      a1 writes on the second
//! ```

use madrigal_proto::mux::{Class, Mux, StreamId};
use madrigal_selector::route::Way;

use crate::daemon::{Daemon, Holder};
use crate::links::Link;
use crate::pipes::{Origin, Role};
use crate::poll::Token;
use crate::socket::Got;
use crate::ways::HOPS;
use crate::wire::{About, Order, Verdict};

impl Daemon {
    /// There is a new connection with a host: streams to it that go another way may move.
    pub(crate) fn move_all(&mut self, host: usize) {
        let to = |origin: &Origin| matches!(origin.role, Role::Caller { host: there, .. } if there == host);
        let pipes: Vec<Token> =
            self.pipes.iter().filter(|(_, pipe)| pipe.origin.as_ref().is_some_and(to)).map(|(t, _)| *t).collect();
        pipes.into_iter().for_each(|pipe| self.move_one(pipe));
    }

    /// Asks the far daemon to move a stream, if its best way is a connection now, and was not.
    fn move_one(&mut self, token: Token) {
        let Some(pipe) = self.pipes.get(&token) else { return };
        let Some(Origin { id, role: Role::Caller { host, port, way } }) = pipe.origin.clone() else { return };
        let Some((link, best)) = self.ways_to(host, Some(port)).into_iter().next() else { return };
        let better = [Way::Direct, Way::Reverse].contains(&best) && !["direct", "reverse"].contains(&way.as_str());
        if !better || !pipe.can_move() {
            return;
        }
        let order = Order {
            host: self.name(host).to_owned(),
            port,
            hops: HOPS,
            from: self.own().name.clone(),
            source: None,
            through: Vec::new(),
            question: None,
            id: Some(id),
            moves: true,
        };
        let about = About::Order(order).bytes();
        let mux: Option<&mut Mux> = self.links.get_mut(&link).and_then(Link::mux);
        let Some(Ok(stream)) = mux.map(|mux| mux.open(Class::Data, &about)) else { return };
        self.streams.insert((link, stream), Holder::Move(token));
        self.dirty.insert(link);
        if let Some(pipe) = self.pipes.get_mut(&token) {
            pipe.ask((link, stream), best.to_string());
        }
    }

    /// The far daemon says whether it agrees.
    pub(crate) fn hear_move(&mut self, token: Token, link: Token, stream: StreamId) {
        let new = (link, stream);
        let mut heard = Vec::new();
        // Not a byte more than the verdict: what follows is the program's.
        let mut wanted = 3;
        let verdict = loop {
            let mut byte = vec![0; wanted];
            match self.read_stream(new, &mut byte) {
                Ok(Got::Bytes(count)) => heard.extend_from_slice(byte.get(..count).unwrap_or_default()),
                Ok(Got::Nothing) if heard.is_empty() => return,
                _ => break None,
            }
            match Verdict::read(&heard) {
                Ok(Some((verdict, ..))) => break Some(verdict),
                Ok(None) => wanted = if heard.len() < 3 { 3 - heard.len() } else { 1 },
                Err(()) => break None,
            }
        };
        let Some(pipe) = self.pipes.get_mut(&token) else { return self.reset_stream(new) };
        if verdict == Some(Verdict::Connected) && pipe.agree(new) {
            self.streams.insert(new, Holder::Pipe(token));
            let told = pipe.origin.as_ref().map(|origin| origin.spoken()).unwrap_or_default();
            self.note(&format!("moved: {told}"));
            self.pump(token);
        } else {
            let lost = verdict.is_none();
            self.reset_stream(new);
            self.move_off(token, lost);
        }
    }

    /// Nothing came of it. Where the far daemon may have agreed and nobody will ever know, an end that was seen is no end of the data.
    pub(crate) fn move_off(&mut self, token: Token, lost: bool) {
        match self.pipes.get_mut(&token).map(|pipe| pipe.disagree(lost)) {
            Some(true) => self.pump(token),
            Some(false) => self.break_pipe(token),
            None => {}
        }
    }

    /// A stream is to be moved that ends here.
    pub(crate) fn take_move(&mut self, from: (Token, StreamId), sender: &str, order: &Order) {
        let token = order.id.as_ref().and_then(|id| self.movable.get(id)).copied();
        let pipe = token.and_then(|token| Some((token, self.pipes.get_mut(&token)?)));
        // Only where it began, and over a link of its own, can a stream be moved from.
        let good = pipe.filter(|(_, pipe)| {
            let same = |origin: &Origin| matches!(&origin.role, Role::Target { from } if from == sender && *from == order.from);
            pipe.origin.as_ref().is_some_and(same) && pipe.can_move()
        });
        let Some((token, pipe)) = good else {
            return self.tell(from, Verdict::NotNow, "it cannot be moved");
        };
        pipe.ask(from, String::new());
        pipe.agree(from);
        self.tell(from, Verdict::Connected, "");
        self.streams.insert(from, Holder::Pipe(token));
        self.note(&format!("moved: a stream of {sender} to port {}", order.port));
        self.pump(token);
    }
}
