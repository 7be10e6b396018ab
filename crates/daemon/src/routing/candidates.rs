//! The ways to a host: links with it, and relays that advertise it; which may be used, and in which order.

use madrigal_selector::route::{Figures, Route, Way, order};

use crate::daemon::Daemon;
use crate::poll::Token;
use crate::routing::candidate::{Candidate, relay_refuses};
use crate::routing::known::seconds;
use crate::routing::table;

impl Daemon {
    /// All ways to a host, open or not.
    pub(crate) fn candidates(&self, host: usize) -> Vec<Candidate> {
        let mut all: Vec<Candidate> = [Way::Direct, Way::Reverse].map(|way| self.link_by(host, way)).into();
        if self.grid.hosts.get(host).is_some_and(|host| host.via.is_some())
            || self.method_link(host, "command").is_some()
        {
            all.push(self.link_by(host, Way::Command));
        }
        for (relay, known) in self.grid.hosts.iter().enumerate() {
            if known.relay && relay != host && relay != self.own_index {
                self.ways_by(relay, &known.name, host, &mut all);
            }
        }
        all.iter_mut().for_each(|candidate| self.add_known_figures(host, candidate));
        all
    }

    /// The ways to try for a connection to a port of a host, the best first, each with its link.
    pub(crate) fn ways_to(&self, host: usize, port: Option<u16>) -> Vec<(Token, Way)> {
        let candidates = self.candidates(host);
        let routes: Vec<Route> = candidates.iter().map(|candidate| candidate.route.clone()).collect();
        let rules = self.grid.rules_for(host, port);
        let (usable, _) = order(&routes, &rules);
        // Relays that do not advertise the host come last: they may reach it by now, and if not their reply says why.
        let allowed = |way: &Way| !rules.iter().any(|rule| rule.forbid.iter().any(|word| way.is(word)));
        let closed = candidates.iter().filter(|one| one.route.closed.is_some() && allowed(&one.route.way));
        let chosen = usable.into_iter().filter_map(|at| candidates.get(at)).chain(closed);
        chosen.filter_map(|candidate| Some((candidate.link?, candidate.route.way.clone()))).collect()
    }

    /// The link by which this relay carries a stream on: with the host itself, or with another relay that advertises it.
    pub(crate) fn next_hop(&self, host: usize, passed: &[String]) -> Option<Token> {
        let candidates = self.candidates(host);
        let routes: Vec<Route> = candidates.iter().map(|candidate| candidate.route.clone()).collect();
        candidates.get(table::next_hop(&self.own().name, &routes, passed)?)?.link
    }

    /// The way by a link that was made by one method.
    fn link_by(&self, host: usize, way: Way) -> Candidate {
        let link = self.method_link(host, way.method());
        let closed = match (&link, &way) {
            (Some(_), _) => None,
            (None, Way::Direct) => Some(self.why_no_connection(host)),
            (None, Way::Command) => Some(self.why_no_command(host)),
            (None, _) => Some(format!("{} has not called", self.name(host))),
        };
        let doubtful = link.is_some() && link != self.link_to(host);
        let figures = link.map_or_else(Figures::default, |link| self.figures(link));
        Candidate { route: Route { way, closed, doubtful, figures }, link, ago: None }
    }

    /// The best link with a host of those made by one method.
    fn method_link(&self, host: usize, method: &str) -> Option<Token> {
        let with = self.links.iter().filter(|(_, link)| link.method() == method);
        let with = with.filter_map(|(token, link)| Some((link.up()?, *token)));
        with.filter(|(up, _)| up.peer == host).min_by_key(|(up, _)| &up.rank).map(|(_, token)| token)
    }

    /// The ways by a relay.
    fn ways_by(&self, relay: usize, name: &str, host: usize, all: &mut Vec<Candidate>) {
        let closed = |why: String| Route {
            way: Way::Through(vec![name.to_owned()]),
            closed: Some(why),
            doubtful: true,
            figures: Figures::default(),
        };
        let own = &self.own().name;
        if self.grid.hosts.get(relay).is_some_and(|known| !self.grid.carries(known.site, own)) {
            let route = closed(relay_refuses(name, own));
            return all.push(Candidate { route, link: None, ago: None });
        }
        let Some(link) = self.link_to(relay) else {
            let route = closed(format!("no link with {name}: {}", self.why_no_link(relay)));
            return all.push(Candidate { route, link: None, ago: None });
        };
        let first = self.figures(link);
        let before = all.len();
        let advertised = self.advertisements.received.get(&relay).map(Vec::as_slice).unwrap_or_default();
        let routes = table::ways_by(name, first, advertised, host).into_iter();
        all.extend(routes.map(|route| Candidate { route, link: Some(link), ago: None }));
        if all.len() == before {
            // The relay may not have advertised yet, or may find a way now.
            let unreachable = self
                .advertisements
                .received
                .contains_key(&relay)
                .then(|| format!("{name} has no way to {}", self.name(host)));
            let route = Route { closed: unreachable, ..closed(String::new()) };
            all.push(Candidate { route, link: Some(link), ago: None });
        }
    }

    /// Adds the figures on record to a way that is closed.
    fn add_known_figures(&self, host: usize, candidate: &mut Candidate) {
        let route = &mut candidate.route;
        if route.closed.is_some()
            && let Some(known) = self.known_file.known.way(self.name(host), &route.way.to_string())
        {
            route.figures = known.figures;
            candidate.ago = Some(seconds().saturating_sub(known.at));
        }
    }
}
