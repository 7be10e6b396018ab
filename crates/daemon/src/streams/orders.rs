//! Streams that a peer opens: for a port of this host, where the grid allows it, or for another host, where this one is a relay.

use madrigal_proto::mux::{Class, StreamId};

use crate::daemon::Daemon;
use crate::link::Link;
use crate::poll::Token;
use crate::routing::ways::carries_not;
use crate::streams::egress::Answer;
use crate::streams::origin::{Origin, Role};
use crate::streams::pipe::{End, Side};
use crate::streams::stream::Holder;
use crate::wire::{About, Order, Verdict};

impl Daemon {
    /// A peer opened a stream, and says what for.
    pub(crate) fn take_order(&mut self, link: Token, stream: StreamId, about: &[u8]) {
        let from = (link, stream);
        let peer = self.links.get(&link).and_then(Link::up).map(|up| up.peer);
        let sender = peer.map_or("?", |peer| self.name(peer)).to_owned();
        let order = match serde_json::from_slice(about) {
            Ok(About::Order(order)) => order,
            Ok(About::RouteUpdate) => return self.accept_update(link, stream),
            Ok(About::Discard) => {
                self.streams.insert(from, Holder::Probe);
                return;
            }
            Ok(About::Bye(why)) => return self.shut_out(link, &format!("refused by {sender}: {why}")),
            Ok(About::Renewed) => {
                self.streams.insert(from, Holder::Renewal);
                return;
            }
            Err(_) => return self.tell(from, Verdict::Never, "the order makes no sense"),
        };
        let own = self.own();
        // Only relays speak for others.
        if order.from != sender && !self.grid.host(&sender).is_some_and(|(_, host)| host.relay) {
            self.note(&format!("refused: {sender}, which says that it is {}", order.from));
            return self.tell(from, Verdict::Never, &format!("{sender} is no relay, and not {}", order.from));
        }
        if order.host != own.name {
            return self.carry_on(from, peer, order);
        }
        if let Some(resume) = order.resume {
            return self.take_move(from, &sender, &order, resume);
        }
        if let Some(question) = order.question {
            return self.take_question(question, Answer::Stream(from));
        }
        if !own.allow.as_ref().is_some_and(|allow| allow.contains(order.port)) {
            let why = format!("{} lets nobody connect to port {}: see `allow` in its grid.toml", own.name, order.port);
            self.note(&format!("refused: {} by {sender} to port {}", order.from, order.port));
            return self.tell(from, Verdict::Never, &why);
        }
        if !self.grid.lets_in(own.site, &order.from) {
            let why = format!("{} lets nothing of {} in: see `from` and `deny` in its grid.toml", own.name, order.from);
            self.note(&format!("refused: {} by {sender} to port {}, as the grid says", order.from, order.port));
            return self.tell(from, Verdict::Never, &why);
        }
        let via = if order.from == sender { String::new() } else { format!(" by {sender}") };
        let whose = format!("{}{via}", order.from);
        let hops = [std::slice::from_ref(&order.from), order.through.as_slice()].concat();
        let origin = order.id.map(|id| Origin { id, epoch: 0, role: Role::Target { from: order.from } });
        self.land(order.port, Answer::Stream(from), &whose, origin, hops);
    }

    /// A stream that is for another host: a relay carries it on.
    fn carry_on(&mut self, from: (Token, StreamId), peer: Option<usize>, order: Order) {
        let own = self.own();
        if !own.relay {
            let why = format!("{} is no relay", own.name);
            return self.tell(from, Verdict::NotNow, &why);
        }
        if !self.grid.carries(own.site, &order.from) {
            let why = carries_not(&own.name, &order.from);
            self.note(&format!("refused: to carry from {} to {}:{}", order.from, order.host, order.port));
            return self.tell(from, Verdict::NotNow, &why);
        }
        let Some(hops) = order.hops.checked_sub(1) else {
            return self.tell(from, Verdict::NotNow, "no relay may carry it further");
        };
        let Some((host, _)) = self.grid.host(&order.host).filter(|(host, _)| Some(*host) != peer) else {
            let why = format!("the grid of {} has no way to `{}`", own.name, order.host);
            return self.tell(from, Verdict::Never, &why);
        };
        if order.through.contains(&own.name) {
            return self.tell(from, Verdict::NotNow, "it has been here before");
        }
        let passed: Vec<String> = order.through.iter().chain([&order.from]).cloned().collect();
        let Some(link) = self.next_hop(host, &passed) else {
            self.hurry(host);
            let why = format!("{} has no link with {}: {}", self.own().name, order.host, self.why_no_link(host));
            return self.tell(from, Verdict::NotNow, &why);
        };
        let line = format!("relayed: from {} to {}:{}", order.from, order.host, order.port);
        let through = [order.through.as_slice(), &[self.own().name.clone()]].concat();
        let about = About::Order(Order { hops, through, ..order }).bytes();
        let opened = self.links.get_mut(&link).and_then(Link::mux).map(|mux| mux.open(Class::Data, &about));
        match opened {
            Some(Ok(stream)) => {
                self.note(&line);
                self.dirty.insert(link);
                // The verdict comes by itself: it is the first thing on the other stream.
                let ends = [End::Stream(from), End::Stream((link, stream))];
                let [near, far] = ends.map(|end| Side::new(end, Vec::new()));
                let pipe = self.join(near, far);
                self.record(pipe, &line);
            }
            Some(Err(error)) => self.tell(from, Verdict::NotNow, &error.to_string()),
            None => self.tell(from, Verdict::NotNow, "the link broke"),
        }
    }
}
