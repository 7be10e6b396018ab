//! Streams that a peer opens: for a port of this host, where the grid allows it, or for another host, where this one is a relay.

use madrigal_proto::mux::{Class, StreamId};

use crate::daemon::Daemon;
use crate::link::Link;
use crate::poll::Token;
use crate::routing::candidate::relay_refuses;
use crate::streams::egress::Requester;
use crate::streams::origin::{Origin, Role};
use crate::streams::pipe::{End, Side};
use crate::streams::stream::{Stream, StreamOwner};
use crate::wire::{ConnectReply, ConnectRequest, Question, StreamHeader};

impl Daemon {
    /// A peer opened a stream; `header` has its purpose.
    pub(crate) fn handle_open(&mut self, link: Token, (stream, class): (StreamId, Class), header: &[u8]) {
        let from = (link, stream);
        let peer = self.links.get(&link).and_then(Link::up).map(|up| up.peer);
        match serde_json::from_slice(header) {
            Ok(StreamHeader::Connect(request)) => self.handle_connect_request((from, class), peer, request),
            Ok(StreamHeader::RouteUpdate) => self.accept_update(link, stream),
            Ok(StreamHeader::Discard) => drop(self.streams.insert(from, StreamOwner::Discard)),
            Ok(StreamHeader::Close(why)) => {
                let sender = peer.map_or("?", |peer| self.name(peer));
                self.reject_link(link, &format!("refused by {sender}: {why}"));
            }
            Ok(StreamHeader::Renewed) => drop(self.streams.insert(from, StreamOwner::Renewal)),
            Ok(StreamHeader::Lanes(count)) => {
                self.reset_stream(from);
                self.handle_lanes_wanted(link, count);
            }
            Ok(StreamHeader::UrgentLink) => {
                self.reset_stream(from);
                self.make_urgent_link(link);
            }
            Err(_) => self.send_reply(from, ConnectReply::Refused, "the order makes no sense"),
        }
    }

    /// A peer requests a connection to a port of this host or, if this host is a relay, of another one.
    fn handle_connect_request(&mut self, (from, class): (Stream, Class), peer: Option<usize>, request: ConnectRequest) {
        let sender = peer.map_or("?", |peer| self.name(peer)).to_owned();
        let own = self.own();
        // Only relays send requests of other hosts.
        if request.from != sender && !self.grid.host(&sender).is_some_and(|(_, host)| host.relay) {
            self.log_line(&format!("refused: {sender}, which says that it is {}", request.from));
            return self.send_reply(
                from,
                ConnectReply::Refused,
                &format!("{sender} is no relay, and not {}", request.from),
            );
        }
        if request.host != own.name {
            return self.relay_stream((from, class), peer, request);
        }
        if let Some(resume) = request.resume {
            return self.handle_resume(from, &sender, &request, resume);
        }
        if let Some(Question::Punch { at, round_trip_us }) = &request.question {
            return self.handle_punch_request(from, &request.from, at, *round_trip_us);
        }
        let datagrams = match request.question {
            Some(Question::Datagrams { within_ms, tolerance }) => Some((within_ms, tolerance)),
            Some(Question::Pools) => return self.handle_pools_question(Requester::Stream(from), &request.from),
            Some(question) => return self.handle_question(question, Requester::Stream(from)),
            None => None,
        };
        if !own.allow.as_ref().is_some_and(|allow| allow.contains(request.port)) {
            let why =
                format!("{} lets nobody connect to port {}: see `allow` in its grid.toml", own.name, request.port);
            self.log_line(&format!("refused: {} by {sender} to port {}", request.from, request.port));
            return self.send_reply(from, ConnectReply::Refused, &why);
        }
        if !self.grid.lets_in(own.site, &request.from) {
            let why =
                format!("{} lets nothing of {} in: see `from` and `deny` in its grid.toml", own.name, request.from);
            self.log_line(&format!("refused: {} by {sender} to port {}, as the grid says", request.from, request.port));
            return self.send_reply(from, ConnectReply::Refused, &why);
        }
        let via = if request.from == sender { String::new() } else { format!(" by {sender}") };
        let whose = format!("{}{via}", request.from);
        if let Some(wanted) = datagrams {
            return self.begin_far_end(from, (&request.from, request.port, request.id), wanted, &whose);
        }
        let hops = [std::slice::from_ref(&request.from), request.through.as_slice()].concat();
        let origin = request.id.map(|id| Origin { id, epoch: 0, role: Role::Target { from: request.from } });
        self.begin_egress(request.port, Requester::Stream(from), &whose, origin, hops);
    }

    /// Relays a stream to another host, or to the next relay.
    fn relay_stream(&mut self, (from, class): (Stream, Class), peer: Option<usize>, request: ConnectRequest) {
        let own = self.own();
        if !own.relay {
            let why = format!("{} is no relay", own.name);
            return self.send_reply(from, ConnectReply::Unavailable, &why);
        }
        if !self.grid.carries(own.site, &request.from) {
            let why = relay_refuses(&own.name, &request.from);
            self.log_line(&format!("refused: to carry from {} to {}:{}", request.from, request.host, request.port));
            return self.send_reply(from, ConnectReply::Unavailable, &why);
        }
        let Some(hops) = request.hops.checked_sub(1) else {
            return self.send_reply(from, ConnectReply::Unavailable, "no relay may carry it further");
        };
        let Some((host, _)) = self.grid.host(&request.host).filter(|(host, _)| Some(*host) != peer) else {
            let why = format!("the grid of {} has no way to `{}`", own.name, request.host);
            return self.send_reply(from, ConnectReply::Refused, &why);
        };
        if request.through.contains(&own.name) {
            return self.send_reply(from, ConnectReply::Unavailable, "it has been here before");
        }
        let passed: Vec<String> = request.through.iter().chain([&request.from]).cloned().collect();
        let Some(link) = self.next_hop(host, &passed) else {
            self.dial_soon(host);
            let why = format!("{} has no link with {}: {}", self.own().name, request.host, self.why_no_link(host));
            return self.send_reply(from, ConnectReply::Unavailable, &why);
        };
        let link = self.link_for(link, class);
        let line = format!("relayed: from {} to {}:{}", request.from, request.host, request.port);
        let through = [request.through.as_slice(), &[self.own().name.clone()]].concat();
        let header = StreamHeader::Connect(ConnectRequest { hops, through, ..request }).bytes();
        let opened = self.links.get_mut(&link).and_then(Link::mux).map(|mux| mux.open(class, &header));
        match opened {
            Some(Ok(stream)) => {
                self.log_line(&line);
                self.unflushed.insert(link);
                // The reply needs no handling here: it is the first thing on the other stream.
                let ends = [End::Stream(from), End::Stream((link, stream))];
                let [near, far] = ends.map(|end| Side::new(end, Vec::new()));
                let pipe = self.join(near, far);
                self.record(pipe, &line);
            }
            Some(Err(error)) => self.send_reply(from, ConnectReply::Unavailable, &error.to_string()),
            None => self.send_reply(from, ConnectReply::Unavailable, "the link broke"),
        }
    }
}
