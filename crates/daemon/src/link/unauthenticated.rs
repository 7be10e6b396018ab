//! Connections that have not authenticated: their number is bounded, and their handshakes are paced.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;

use crate::daemon::Daemon;
use crate::poll::Token;

impl Daemon {
    /// If there are `most` connections that have not authenticated, or more, closes one: the oldest of the origin that has the most.
    pub(crate) fn evict_unauthenticated(&mut self, most: usize) {
        let unauthenticated = self.links.iter().filter(|(_, link)| link.is_unauthenticated());
        if unauthenticated.clone().count() < most {
            return;
        }
        let mut origins: HashMap<Option<IpAddr>, (usize, Reverse<Token>)> = HashMap::new();
        for (token, link) in unauthenticated {
            let (count, oldest) = origins.entry(link.origin()).or_insert((0, Reverse(*token)));
            (*count, *oldest) = (*count + 1, (*oldest).max(Reverse(*token)));
        }
        if let Some((_, Reverse(oldest))) = origins.into_values().max() {
            self.drop_link(oldest, "too many connections said nothing");
        }
    }

    /// Whether a connection may be read now. If it begins a handshake, and its origin has begun too many, it is delayed.
    pub(crate) fn may_read(&mut self, token: Token) -> bool {
        let Some(link) = self.links.get(&token).filter(|link| link.is_unauthenticated() && link.channel.is_beginning())
        else {
            return true;
        };
        match self.handshakes.begin(self.now, link.origin()) {
            Ok(()) => true,
            Err(due) => {
                self.handshakes.delayed.insert((due, token));
                false
            }
        }
    }

    /// Reads connections whose delay is over.
    pub(crate) fn resume_delayed_handshakes(&mut self) {
        while let Some((due, token)) = self.handshakes.delayed.pop_first() {
            if due > self.now {
                self.handshakes.delayed.insert((due, token));
                return;
            }
            if self.links.contains_key(&token) {
                self.handle_link(token);
            }
        }
    }
}
