//! The routing table: what relays advertise, and what follows from it. Decisions only, without links and clocks, so that
//! `simulation/routing.rs` can run them.
//!
//! There are no loops. A relay does not advertise to a neighbour the ways that lead through it. No host accepts a way on which it is itself.
//! No stream passes a relay twice. Advertisements of hosts that are no relays are ignored.

use madrigal_selector::route::{Figures, Route, Way, order};

use crate::grid::Grid;
use crate::wire::{Reach, RouteUpdate};

/// The most relays on a stream's way.
pub(crate) const MOST_RELAYS: u8 = 4;

/// A host that a relay reaches: the host, the relays behind that one, and the figures of the way from there on.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Advertised {
    pub(crate) to: usize,
    pub(crate) through: Vec<String>,
    pub(crate) figures: Figures,
}

/// What the host `own` accepts of another host's update; `None`: that host is no relay.
pub(crate) fn filter_update(grid: &Grid, own: usize, relay: usize, update: RouteUpdate) -> Option<Vec<Advertised>> {
    grid.hosts.get(relay).filter(|host| host.relay)?;
    let is_relay = |name: &String| grid.host(name).is_some_and(|(at, host)| host.relay && at != own && at != relay);
    let accept = |reach: Reach| {
        let (to, _) = grid.host(&reach.to).filter(|(to, _)| *to != own && *to != relay)?;
        let good = reach.through.len() < usize::from(MOST_RELAYS) && reach.through.iter().all(is_relay);
        good.then_some(Advertised { to, through: reach.through, figures: reach.figures })
    };
    Some(update.reach.into_iter().filter_map(accept).take(grid.hosts.len()).collect())
}

/// The ways to a host by a relay; `link` are the figures of the link with the relay.
pub(crate) fn ways_by(relay: &str, link: Figures, advertised: &[Advertised], host: usize) -> Vec<Route> {
    let of = advertised.iter().filter(|advertised| advertised.to == host);
    let route = |advertised: &Advertised| Route {
        way: Way::Through([&[relay.to_owned()], advertised.through.as_slice()].concat()),
        closed: None,
        doubtful: false,
        figures: link.then(&advertised.figures),
    };
    of.map(route).collect()
}

/// The route that a relay uses for a stream that has passed these hosts.
pub(crate) fn next_hop(own: &str, routes: &[Route], passed: &[String]) -> Option<usize> {
    let is_new = |name: &String| !passed.contains(name) && name != own;
    let is_allowed = |route: &Route| match &route.way {
        Way::Through(hosts) => !route.doubtful && hosts.iter().all(is_new),
        _ => true,
    };
    let places: Vec<usize> =
        routes.iter().enumerate().filter(|(_, route)| is_allowed(route)).map(|(at, _)| at).collect();
    let left: Vec<Route> = places.iter().filter_map(|at| routes.get(*at).cloned()).collect();
    places.get(*order(&left, &[]).0.first()?).copied()
}

/// What a relay advertises of a host, given its own routes there: the best one.
pub(crate) fn reach(to: &str, routes: Vec<Route>) -> Option<Reach> {
    let sure: Vec<Route> = routes.into_iter().filter(|route| !route.doubtful).collect();
    let best = sure.get(*order(&sure, &[]).0.first()?)?;
    let through = if let Way::Through(hosts) = &best.way { hosts.clone() } else { Vec::new() };
    (through.len() < usize::from(MOST_RELAYS)).then(|| Reach { to: to.to_owned(), through, figures: best.figures })
}

/// The part of all advertisements that is for one neighbour.
pub(crate) fn update_for(neighbour: &str, all: &[Reach]) -> RouteUpdate {
    let is_for = |reach: &&Reach| reach.to != neighbour && reach.through.iter().all(|one| one != neighbour);
    RouteUpdate { reach: all.iter().filter(is_for).cloned().collect() }
}
