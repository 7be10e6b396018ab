//! Connections that have not authenticated: their number is bounded, and their handshakes are paced.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;

use crate::daemon::Daemon;
use crate::poll::Token;

impl Daemon {
    /// Of as many connections that have not said who they are, or more, one goes: the oldest from where the most come.
    pub(crate) fn make_room(&mut self, most: usize) {
        let unauthenticated = self.links.iter().filter(|(_, link)| link.is_unauthenticated());
        if unauthenticated.clone().count() < most {
            return;
        }
        let mut crowds: HashMap<Option<IpAddr>, (usize, Reverse<Token>)> = HashMap::new();
        for (token, link) in unauthenticated {
            let (count, oldest) = crowds.entry(link.origin()).or_insert((0, Reverse(*token)));
            (*count, *oldest) = (*count + 1, (*oldest).max(Reverse(*token)));
        }
        if let Some((_, Reverse(oldest))) = crowds.into_values().max() {
            self.drop_link(oldest, "too many connections said nothing");
        }
    }

    /// Whether a connection may be read now. If it would begin a handshake, and its origin has begun too many of late, it waits.
    pub(crate) fn may_begin(&mut self, token: Token) -> bool {
        let Some(link) = self.links.get(&token).filter(|link| link.is_unauthenticated() && link.channel.is_beginning())
        else {
            return true;
        };
        match self.handshakes.begin(self.now, link.origin()) {
            Ok(()) => true,
            Err(due) => {
                self.handshakes.late.insert((due, token));
                false
            }
        }
    }

    /// Those who waited long enough are read.
    pub(crate) fn begin_late(&mut self) {
        while let Some((due, token)) = self.handshakes.late.pop_first() {
            if due > self.now {
                self.handshakes.late.insert((due, token));
                return;
            }
            if self.links.contains_key(&token) {
                self.handle_link(token);
            }
        }
    }
}
