//! The choice of a way between two hosts. In: what is known of each way, and the user's rules. Out: the ways that may be used, the best
//! first, and why each other one lost. Pure, as all of the selector.

use core::fmt;

use serde::{Deserialize, Serialize};

/// What was measured of a way, or of a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    /// The shortest round trip of late, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Bits a second that it carried at least.
    pub rate: Option<u64>,
    /// Of a million bytes so many were sent again.
    pub again_ppm: Option<u32>,
    /// The longest packet, as the kernel knows it.
    pub mtu: Option<u32>,
}

impl Figures {
    /// This part of a way and then `next`.
    pub fn then(&self, next: &Self) -> Self {
        let least = |one: Option<u64>, other: Option<u64>| one.into_iter().chain(other).min();
        let lost = |one: u32, other: u32| one.saturating_add(other).min(1_000_000);
        Self {
            round_trip_us: self.round_trip_us.zip(next.round_trip_us).map(|(one, other)| one.saturating_add(other)),
            rate: least(self.rate, next.rate),
            again_ppm: self.again_ppm.zip(next.again_ppm).map(|(one, other)| lost(one, other)),
            mtu: least(self.mtu.map(u64::from), next.mtu.map(u64::from)).and_then(|mtu| u32::try_from(mtu).ok()),
        }
    }

    /// One number to compare ways by, in microseconds: the round trip, and for every percent that had to be sent again a tenth more.
    pub fn cost(&self) -> u64 {
        let trip = self.round_trip_us.unwrap_or(UNKNOWN);
        trip.saturating_add(trip.saturating_mul(self.again_ppm.unwrap_or(0).into()) / 100_000)
    }
}

/// The cost of a way without measurements.
const UNKNOWN: u64 = 1_000_000;

/// A way to another host.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Way {
    /// A connection that this host made.
    Direct,
    /// One that the other host made.
    Reverse,
    /// The input and output of a command, such as ssh.
    Command,
    /// By these hosts, one after another.
    Through(Vec<String>),
}

impl Way {
    /// What rules call it.
    pub fn method(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Reverse => "reverse",
            Self::Command => "command",
            Self::Through(_) => "relay",
        }
    }

    /// Whether `word` of a rule means this: the method, or a host it leads through.
    pub fn is(&self, word: &str) -> bool {
        let through = match self {
            Self::Through(hosts) => hosts.iter().any(|host| host == word),
            _ => false,
        };
        self.method() == word || through
    }

    /// What the measured cost counts as: others read what a relay or a command carries, and a busy host may hold it up; so each has to be
    /// twice as good as a connection.
    fn weigh(&self, cost: u64) -> u64 {
        match self {
            Self::Direct | Self::Reverse => cost,
            Self::Command => cost.saturating_mul(2).saturating_add(2000),
            Self::Through(hosts) => cost.saturating_mul(2).saturating_add(2000 * hosts.len() as u64),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Through(hosts) => write!(f, "through {}", hosts.join(", ")),
            other => f.write_str(other.method()),
        }
    }
}

/// A way, and what is known of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The way.
    pub way: Way,
    /// Why it cannot be used now; `None`: it can.
    pub closed: Option<String>,
    /// No host reported that it leads there, or another link like it is used.
    pub doubtful: bool,
    /// What was measured.
    pub figures: Figures,
}

/// A rule of the user's that holds for this connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// Methods or relays, the best first, before all that are not named.
    pub prefer: Vec<String>,
    /// Methods or relays that must not be used.
    pub forbid: Vec<String>,
}

impl Rule {
    fn place(&self, way: &Way) -> usize {
        self.prefer.iter().position(|word| way.is(word)).unwrap_or(self.prefer.len())
    }
}

/// Which routes may be used, by their places, the best first; and of each route, why it is not the best one (`None` for that).
pub fn order(routes: &[Route], rules: &[Rule]) -> (Vec<usize>, Vec<Option<String>>) {
    let forbids = |route: &Route| rules.iter().find(|rule| rule.forbid.iter().any(|word| route.way.is(word)));
    let prefers = rules.iter().find(|rule| !rule.prefer.is_empty());
    let rank = |route: &Route| {
        let place = prefers.map_or(0, |rule| rule.place(&route.way));
        (place, route.doubtful, route.way.weigh(route.figures.cost()))
    };
    let open = |(_, route): &(usize, &Route)| route.closed.is_none() && forbids(route).is_none();
    let mut usable: Vec<usize> = routes.iter().enumerate().filter(open).map(|(at, _)| at).collect();
    usable.sort_by_key(|at| routes.get(*at).map(rank));
    let best = usable.first().and_then(|at| Some((*at, routes.get(*at)?)));
    let why = |(at, route): (usize, &Route)| {
        if let Some(rule) = forbids(route) {
            return Some(format!("rule {} forbids it", rule.name));
        }
        if let Some(why) = &route.closed {
            return Some(why.clone());
        }
        let (_, best) = best.filter(|(place, _)| *place != at)?;
        Some(worse(route, best, prefers))
    };
    let why = routes.iter().enumerate().map(why).collect();
    (usable, why)
}

/// Why a route that could be used is not as good as the best one.
fn worse(route: &Route, best: &Route, prefers: Option<&Rule>) -> String {
    if let Some(rule) = prefers.filter(|rule| rule.place(&route.way) > rule.place(&best.way)) {
        return format!("rule {} prefers {}", rule.name, best.way);
    }
    if route.doubtful && !best.doubtful {
        return match route.way {
            Way::Through(_) => format!("nobody says that it leads there, and {} does", best.way),
            _ => "another link with that host is used".to_owned(),
        };
    }
    let (cost, least) = (route.figures.cost(), best.figures.cost());
    if cost <= least && route.way.weigh(cost) > cost {
        return format!("{} of {} is not half of {}", ms(cost), route.way.method(), ms(least));
    }
    format!("{} is better: {} against {}", best.way, ms(least), ms(cost))
}

/// A cost in words.
fn ms(cost: u64) -> String {
    if cost >= UNKNOWN { "unknown".to_owned() } else { format!("{:.1} ms", cost as f64 / 1000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(way: Way, ms: u64) -> Route {
        let figures = Figures { round_trip_us: Some(ms * 1000), ..Figures::default() };
        Route { way, closed: None, doubtful: false, figures }
    }

    fn through(hosts: &[&str], ms: u64) -> Route {
        route(Way::Through(hosts.iter().map(|host| (*host).to_owned()).collect()), ms)
    }

    fn rule(prefer: &[&str], forbid: &[&str]) -> Rule {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Rule { name: "mine".to_owned(), prefer: owned(prefer), forbid: owned(forbid) }
    }

    #[test]
    fn a_connection_wins_unless_a_relay_is_twice_as_good() {
        let (usable, why) = order(&[route(Way::Direct, 20), through(&["r"], 15)], &[]);
        assert_eq!(usable, [0, 1]);
        assert_eq!(why, [None, Some("15.0 ms of relay is not half of 20.0 ms".to_owned())]);
        let (usable, why) = order(&[route(Way::Reverse, 200), through(&["r"], 15), through(&["s", "r"], 10)], &[]);
        assert_eq!(usable, [2, 1, 0]);
        assert_eq!(why[0].as_deref(), Some("through s, r is better: 10.0 ms against 200.0 ms"));
    }

    #[test]
    fn what_is_lost_on_the_way_counts() {
        let mut bad = route(Way::Direct, 20);
        bad.figures.again_ppm = Some(300_000);
        assert_eq!(order(&[bad, through(&["r"], 22)], &[]).0, [1, 0]);
    }

    #[test]
    fn closed_and_doubtful_ways_say_why() {
        let mut closed = route(Way::Direct, 1);
        closed.closed = Some("10.1.0.2:7780: no answer".to_owned());
        let mut doubtful = through(&["s"], 1);
        doubtful.doubtful = true;
        let (usable, why) = order(&[closed, doubtful, through(&["r"], 50)], &[]);
        assert_eq!(usable, [2, 1]);
        assert_eq!(why[0].as_deref(), Some("10.1.0.2:7780: no answer"));
        assert_eq!(why[1].as_deref(), Some("nobody says that it leads there, and through r does"));
    }

    #[test]
    fn rules_forbid_and_prefer() {
        let routes = [route(Way::Direct, 10), through(&["r"], 50), through(&["s"], 40)];
        let (usable, why) = order(&routes, &[rule(&["r", "relay"], &[])]);
        assert_eq!(usable, [1, 2, 0]);
        assert_eq!(why[0].as_deref(), Some("rule mine prefers through r"));
        let (usable, why) = order(&routes, &[rule(&[], &["direct"]), rule(&[], &["s"])]);
        assert_eq!((usable, why[0].as_deref()), (vec![1], Some("rule mine forbids it")));
        assert!(order(&routes, &[rule(&[], &["direct", "relay"])]).0.is_empty());
    }

    #[test]
    fn parts_add_up() {
        let one = Figures { round_trip_us: Some(5000), rate: Some(100), again_ppm: Some(10), mtu: Some(1500) };
        let other = Figures { round_trip_us: Some(7000), rate: None, again_ppm: Some(5), mtu: Some(1280) };
        let both = Figures { round_trip_us: Some(12000), rate: Some(100), again_ppm: Some(15), mtu: Some(1280) };
        assert_eq!(one.then(&other), both);
        assert_eq!(one.then(&Figures::default()).cost(), UNKNOWN);
    }
}
