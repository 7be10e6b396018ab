//! Connections of links end, and links go on. A link's entry has its own connection; further ones have entries of their own, which name the
//! link (`lanes.rs`). When its own ends, another one takes its place: the link keeps its token, and so its streams, its certificates
//! ([`crate::link::Proved`]) and all that is said of it, and its name in greetings.
//!
//! ```text
//!   dialled or accepted -- greeting --> the link's own  --------------------------------------+
//!   dialled or accepted -- greeting --> further -- the own one ended --> the link's own ------+--> ended
//!                                          `----- retired (no more to carry) ----------------+
//! ```
//! * A further connection that ends, retired or not, ends nothing else: others carry what the other end does not have.
//! * The own one that ends is the link's end only where no connection is left but retired ones; or where bytes that were not kept are on
//!   its way (`Stripe::can_lose_one`). A connection that is being made does not keep a link.
//! * Each end does so for itself. What is the own one at the one end may be a further one at the other; nothing depends on it.
//! * What a connection carries that makes no sense, silence, a certificate that is no longer valid, and whatever either end closes, end the
//!   link with all of its connections (`close.rs`).
//! * The end that dialled the link makes another connection in place of any that ended, once there is something to carry.

use crate::daemon::Daemon;
use crate::link::Stage;
use crate::link::channel::Channel;
use crate::link::close::in_black_hole;
use crate::link::striped::Striped;
use crate::poll::Token;
use crate::socket;

impl Daemon {
    /// A connection has ended. Its link goes on where it has another one.
    pub(crate) fn connection_lost(&mut self, token: Token, why: &str) {
        let successor = self.striped_link(token).and_then(Striped::succeed);
        let Some((next, meant)) = successor else { return self.drop_link(token, why) };
        let vanish = self.links.get(&token).and_then(|link| in_black_hole(link, why));
        if !self.take_place(token, next) {
            return self.drop_link(token, why);
        }
        if let Some((peer, address)) = vanish {
            self.toggle_short_segments(peer, address);
        }
        self.log_connections(token, if meant { "one less" } else { why });
        self.unflushed.insert(token);
        self.measure_soon();
    }

    /// The further connection `next` becomes the own one of a link. Returns whether that could be done.
    fn take_place(&mut self, token: Token, next: Token) -> bool {
        self.descriptors.remove(&next);
        let (Some(next), Some(link)) = (self.links.remove(&next), self.links.get_mut(&token)) else { return false };
        let renamed = self.poll.rename(&next.channel, token);
        // Where it joined by a secret, the peer did not say where it sees it: at the same address, if it leaves by the same one here.
        let source = |channel: &Channel| socket::local_addr(channel).map(|at| at.ip());
        let seen = link.seen.filter(|_| source(&link.channel) == source(&next.channel));
        (link.channel, link.counted) = (next.channel, next.counted);
        (link.address, link.seen) = (next.address, next.seen.or(seen));
        if let Stage::Up(up) = &mut link.stage {
            up.measured.forget_counters();
            // The peer has sent something, if only that it made the other connection.
            up.just_greeted = false;
        }
        renamed.is_ok()
    }
}
