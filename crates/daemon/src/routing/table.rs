//! What relays say of hosts that they lead to, and what follows from it: decisions only, without links and clocks, so that thousands of
//! grids can be played through (`simulation/ways.rs`).
//!
//! A relay says nothing of ways that lead back to whom it tells, nobody believes a way on which it stands itself, and a stream passes no
//! relay twice: so there are no loops. Who is no relay is not believed.

use madrigal_selector::route::{Figures, Route, Way, order};

use crate::grid::Grid;
use crate::wire::{Reach, RouteUpdate};

/// Relays that may carry a stream, one after another.
pub(crate) const HOPS: u8 = 4;

/// What a relay says it leads to: the host, the relays behind it, and the figures of the way from there on.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Told {
    pub(crate) to: usize,
    pub(crate) through: Vec<String>,
    pub(crate) figures: Figures,
}

/// What the host `me` believes of what another one says; `None`: nothing, for that is no relay.
pub(crate) fn believed(grid: &Grid, me: usize, relay: usize, update: RouteUpdate) -> Option<Vec<Told>> {
    grid.hosts.get(relay).filter(|host| host.relay)?;
    let is_relay = |name: &String| grid.host(name).is_some_and(|(at, host)| host.relay && at != me && at != relay);
    let believed = |reach: Reach| {
        let (to, _) = grid.host(&reach.to).filter(|(to, _)| *to != me && *to != relay)?;
        let good = reach.through.len() < usize::from(HOPS) && reach.through.iter().all(is_relay);
        good.then_some(Told { to, through: reach.through, figures: reach.figures })
    };
    Some(update.reach.into_iter().filter_map(believed).take(grid.hosts.len()).collect())
}

/// The ways to a host by a relay, with which there is a link of these figures.
pub(crate) fn ways_by(relay: &str, link: Figures, told: &[Told], host: usize) -> Vec<Route> {
    let of = told.iter().filter(|told| told.to == host);
    let route = |told: &Told| Route {
        way: Way::Through([&[relay.to_owned()], told.through.as_slice()].concat()),
        closed: None,
        doubtful: false,
        figures: link.then(&told.figures),
    };
    of.map(route).collect()
}

/// By which of these a relay carries a stream on that has passed those hosts: to the host itself, or to another relay that says it leads
/// there.
pub(crate) fn next_hop(own: &str, routes: &[Route], passed: &[String]) -> Option<usize> {
    let is_new = |name: &String| !passed.contains(name) && name != own;
    let may = |route: &Route| match &route.way {
        Way::Through(hosts) => !route.doubtful && hosts.iter().all(is_new),
        _ => true,
    };
    let places: Vec<usize> = routes.iter().enumerate().filter(|(_, route)| may(route)).map(|(at, _)| at).collect();
    let left: Vec<Route> = places.iter().filter_map(|at| routes.get(*at).cloned()).collect();
    places.get(*order(&left, &[]).0.first()?).copied()
}

/// The best of these ways to a host, for others to use.
pub(crate) fn reach(to: &str, routes: Vec<Route>) -> Option<Reach> {
    let sure: Vec<Route> = routes.into_iter().filter(|route| !route.doubtful).collect();
    let best = sure.get(*order(&sure, &[]).0.first()?)?;
    let through = if let Way::Through(hosts) = &best.way { hosts.clone() } else { Vec::new() };
    (through.len() < usize::from(HOPS)).then(|| Reach { to: to.to_owned(), through, figures: best.figures })
}

/// What a neighbour is told of all that there is.
pub(crate) fn update_for(neighbour: &str, all: &[Reach]) -> RouteUpdate {
    let is_for = |reach: &&Reach| reach.to != neighbour && reach.through.iter().all(|one| one != neighbour);
    RouteUpdate { reach: all.iter().filter(is_for).cloned().collect() }
}
