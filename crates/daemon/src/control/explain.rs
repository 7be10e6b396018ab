//! Explains which way a connection takes, and why not the others.

use madrigal_selector::route::{Route, order};

use crate::control::status::{Explanation, WayStatus};
use crate::daemon::Daemon;
use crate::link::congestion::congestion;
use crate::link::{Link, Up};

impl Daemon {
    /// The ways of a connection to a port of a host: which is used, and why not the others.
    pub(crate) fn explain(&self, host: usize, port: Option<u16>) -> Explanation {
        let candidates = self.candidates(host);
        let routes: Vec<Route> = candidates.iter().map(|candidate| candidate.route.clone()).collect();
        let rules = self.grid.rules_for(host, port);
        let (usable, why) = order(&routes, &rules);
        let ways = candidates.into_iter().zip(why).enumerate().map(|(at, (candidate, why))| {
            let link = candidate.link.and_then(|link| self.links.get(&link));
            let up = link.and_then(Link::up);
            let agreed = up.map(|up| &up.agreed);
            WayStatus {
                way: candidate.route.way.to_string(),
                chosen: usable.first() == Some(&at),
                usable: usable.contains(&at),
                figures: candidate.route.figures,
                measured_ago_s: candidate.ago,
                address: link.and_then(|link| link.address).map(|at| at.to_string()),
                tls: link.map(|link| link.is_enciphered()),
                stack: agreed.map(|agreed| agreed.stack.to_string()),
                connections: up.map_or(0, Up::connections),
                each: candidate.link.map_or_else(Vec::new, |link| self.connections_of(link)),
                congestion: link.and_then(|link| congestion(&link.channel)),
                left_out: agreed
                    .map_or_else(Vec::new, |agreed| agreed.left_out.iter().map(ToString::to_string).collect()),
                why,
            }
        });
        let mut ways: Vec<WayStatus> = ways.collect();
        ways.sort_by_key(|way| (!way.chosen, !way.usable));
        Explanation {
            from: self.own().name.clone(),
            to: self.name(host).to_owned(),
            port,
            chosen: ways.iter().find(|way| way.chosen).map(|way| way.way.clone()),
            ways,
            last: self.known_file.known.last(self.name(host)).map(str::to_owned),
            rules: rules.into_iter().map(|rule| rule.name).collect(),
            class: format!("{:?}", self.grid.class(host, port.unwrap_or(0))).to_lowercase(),
            cap: port
                .and_then(|port| self.grid.capped_by(host, port))
                .and_then(|rule| self.grid.cap(rule))
                .map(|cap| cap * 8),
            staying: self.staying(host),
        }
    }
}
