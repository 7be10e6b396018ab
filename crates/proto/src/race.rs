//! One peer, many ways to it: all are tried, the likeliest a little earlier, again and again, until one answers or the time is over. Ways
//! are the peer's addresses, and this host's daemon, which gives the addresses a head start where it may.
//!
//! Time counts only while the caller polls: a process that computes for a minute between two polls has spent a second of its patience.
//! While an address is connected but has not answered yet, patience is [`LONGER`] times as long: the kernel of the peer connects, the
//! process may be computing.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;

use madrigal_base::error::Os;

/// How much longer the patience is for a peer that is connected and does not answer.
pub const LONGER: u64 = 40;
/// The next address is tried so much later than the one before, unless that one has failed.
const STAGGER: u64 = 25 * MS;
/// The longest time between two polls that counts.
const ATTENTION: u64 = 1000 * MS;
/// So much earlier than the daemon the first address is tried, unless all fail before.
const HEAD_START: u64 = 250 * MS;
/// The daemon is tried so much later if an address is connected but has not answered yet.
const GRACE: u64 = 2000 * MS;
/// The daemon must report what it tried so long before the time is over.
const REPORT: u64 = 750 * MS;
/// What a daemon refuses may be reachable again soon; it is tried for so long.
const DOUBT: u64 = 1500 * MS;
const MS: u64 = 1_000_000;
/// Its name in messages to the user.
const DAEMON: &str = "the daemon";

/// Where a peer may be found.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Way {
    /// At an address.
    At(SocketAddr),
    /// By this host's daemon, which connects to a port of a host of its grid.
    Daemon {
        /// The host's name in the grid.
        host: String,
        /// The port.
        port: u16,
    },
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => address.fmt(f),
            Self::Daemon { .. } => f.write_str(DAEMON),
        }
    }
}

/// Whether a way is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// It is wanted.
    Wanted,
    /// The user does not want it.
    NotWanted,
    /// Traffic there should be encrypted, by the daemon: it is tried only where no daemon is up.
    Left,
    /// Traffic there must be encrypted: it is never tried.
    Barred,
}

/// Why a way did not do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// The system reported an error.
    System(Os),
    /// Nothing came back.
    Silent,
    /// Another node answered, or closed when the node was named.
    OtherNode,
    /// It is the peer, which kept another connection.
    Lost,
    /// The user does not want it.
    NotWanted,
    /// It is left to the daemon, while there is one; or in any case.
    Left,
    /// See `Left`.
    Barred,
    /// The daemon refused, with this reason.
    Refused(String),
    /// No daemon is up.
    NoDaemon,
}

/// What the caller must do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Connect by the way of that index.
    Dial(usize),
    /// Give up the attempt to connect to it.
    Abandon(usize),
    /// The time is over.
    GiveUp,
}

/// The attempts to reach one peer.
#[derive(Debug)]
pub struct Race {
    tries: Vec<Try>,
    began: u64,
    patience: u64,
    spent: u64,
    seen: u64,
    hurried: bool,
}

#[derive(Debug)]
struct Try {
    to: Way,
    state: State,
    count: u32,
    why: Option<Why>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Due(u64),
    Dialing(u64),
    Open,
    Never,
}

impl Race {
    /// Ways, likeliest first, each with its wish; `patience` in nanoseconds.
    pub fn new(ways: &[(Way, Wish)], patience: u64, now: u64) -> Self {
        let mut at = now;
        let head = ways.iter().any(|(way, wish)| matches!(way, Way::At(_)) && *wish == Wish::Wanted);
        let mut one = |(to, wish): &(Way, Wish)| {
            let (state, why) = match (to, wish) {
                (_, Wish::NotWanted) => (State::Never, Some(Why::NotWanted)),
                (_, Wish::Left) => (State::Never, Some(Why::Left)),
                (_, Wish::Barred) => (State::Never, Some(Why::Barred)),
                (Way::Daemon { .. }, Wish::Wanted) => (State::Due(now + if head { HEAD_START } else { 0 }), None),
                (Way::At(_), Wish::Wanted) => {
                    at += STAGGER;
                    (State::Due(at - STAGGER), None)
                }
            };
            Try { to: to.clone(), state, count: 0, why }
        };
        Self { tries: ways.iter().map(&mut one).collect(), began: now, patience, spent: 0, seen: now, hurried: false }
    }

    /// From now on, what a daemon refuses is given up soon.
    pub fn hurry(&mut self) {
        self.hurried = true;
    }

    /// The next thing to do; call it until there is none. `hope`: the peer has begun to connect to us.
    pub fn next(&mut self, now: u64, hope: bool) -> Option<Act> {
        self.spent += now.saturating_sub(self.seen).min(ATTENTION);
        self.seen = self.seen.max(now);
        if self.spent >= self.limit(hope) {
            return Some(Act::GiveUp);
        }
        for (i, one) in self.tries.iter_mut().enumerate() {
            match one.state {
                State::Due(at) if at <= now => {
                    one.count += 1;
                    one.state = State::Dialing(now);
                    return Some(Act::Dial(i));
                }
                State::Dialing(since) if one.ends(since) <= now => {
                    one.state = State::Due(now);
                    one.why = Some(Why::Silent);
                    return Some(Act::Abandon(i));
                }
                _ => {}
            }
        }
        None
    }

    /// When [`Race::next`] will have something to do if nothing happens.
    pub fn deadline(&self, hope: bool) -> u64 {
        let one = |one: &Try| match one.state {
            State::Due(at) => Some(at),
            State::Dialing(since) => Some(one.ends(since)),
            State::Open | State::Never => None,
        };
        let over = self.seen + self.limit(hope).saturating_sub(self.spent).min(ATTENTION);
        self.tries.iter().filter_map(one).fold(over, u64::min)
    }

    /// The time counts from now on.
    pub fn renew(&mut self, now: u64) {
        (self.spent, self.seen) = (0, self.seen.max(now));
    }

    fn limit(&self, hope: bool) -> u64 {
        let open = hope || self.tries.iter().any(|one| one.state == State::Open);
        if open { self.patience.saturating_mul(LONGER) } else { self.patience }
    }

    /// The way of an index.
    pub fn way(&self, i: usize) -> Option<&Way> {
        self.tries.get(i).map(|one| &one.to)
    }

    /// How long a daemon may try, so that it can still report what it tried.
    pub fn left(&self) -> u64 {
        self.patience.saturating_sub(self.spent).saturating_sub(REPORT).max(REPORT)
    }

    /// A connection is up; its node id is not known yet.
    pub fn connected(&mut self, i: usize) {
        let Some(one) = self.tries.get_mut(i) else { return };
        one.state = State::Open;
        // Not from now on: connections to others that have our peer's address may go on for ever.
        let later = self.began + GRACE;
        for daemon in self.tries.iter_mut().filter(|one| one.is_daemon() && one.count == 0) {
            if let State::Due(at) = &mut daemon.state {
                *at = later.max(*at);
            }
        }
    }

    /// An attempt failed. It will be made again, a little later each time.
    pub fn failed(&mut self, i: usize, why: Why, now: u64) {
        let Some(one) = self.tries.get_mut(i) else { return };
        let (first, most) = match why {
            Why::System(os) if os.0 == REFUSED => (10 * MS, 500 * MS),
            Why::System(_) | Why::Silent => (50 * MS, 1000 * MS),
            _ => (200 * MS, 2000 * MS),
        };
        let later = first.saturating_mul(1 << one.count.saturating_sub(1).min(20)).min(most);
        one.state = State::Due(now + later);
        if self.hurried && matches!(why, Why::Refused(_)) {
            self.patience = self.patience.min(self.spent + DOUBT);
        }
        let alone = why == Why::NoDaemon;
        one.why = Some(why);
        let left = self.tries.iter_mut().filter(|one| alone && one.why == Some(Why::Left));
        left.for_each(|one| (one.state, one.why) = (State::Due(now), None));
        // A way not tried yet does not wait for failed ones; the daemon waits for all addresses.
        let busy = |one: &Try| !one.is_daemon() && matches!(one.state, State::Dialing(_) | State::Open);
        let busy = self.tries.iter().any(busy);
        let mut fresh = self.tries.iter_mut().filter(|one| one.count == 0 && one.state != State::Never);
        if let Some(next) = fresh.find(|one| !one.is_daemon() || !busy) {
            next.state = State::Due(now);
        }
    }

    /// What was tried and gave nothing, with the reasons; `but`: the way that did. `over`: another path is up.
    pub fn rejected(&self, but: Option<usize>, over: bool) -> Vec<(String, String)> {
        let others = self.tries.iter().enumerate().filter(|&(i, _)| Some(i) != but);
        others.map(|(_, one)| (one.to.to_string(), one.outcome(over))).collect()
    }

    /// Whether nothing but addresses leads there, and each refused when it was tried last.
    pub fn is_absent(&self) -> bool {
        let refused =
            |one: &Try| !one.is_daemon() && one.state != State::Open && one.why == Some(Why::System(Os(REFUSED)));
        !self.tries.is_empty() && self.tries.iter().all(refused)
    }

    /// Address by address, what it gave.
    pub fn tried(&self) -> String {
        let mut text = String::new();
        for (way, why) in self.rejected(None, false) {
            let through = if way == DAEMON { "through " } else { "" };
            let _ = write!(text, "{through}{way}: {why}; ");
        }
        let seconds = self.spent as f64 / 1e9;
        let _ = write!(text, "and in {seconds:.1} s it did not connect to us");
        text
    }
}

impl Try {
    fn is_daemon(&self) -> bool {
        matches!(self.to, Way::Daemon { .. })
    }

    /// When an attempt that began at `since` is given up. The daemon reports that itself.
    fn ends(&self, since: u64) -> u64 {
        if self.is_daemon() { u64::MAX } else { since + patience_of(self.count) }
    }

    fn outcome(&self, over: bool) -> String {
        match (&self.why, self.state) {
            (_, State::Open) if over => "slower than another path".to_owned(),
            (_, State::Open) => {
                "connected, but nothing was said: the process there is busy or stopped, or another program".to_owned()
            }
            (Some(Why::System(os)), _) => os.to_string(),
            (Some(Why::Silent), _) | (None, State::Dialing(_)) if !over => {
                format!("no answer (ETIMEDOUT), {} attempt{}", self.count, if self.count == 1 { "" } else { "s" })
            }
            (Some(Why::Silent), _) | (None, State::Dialing(_)) => "no answer before another path was up".to_owned(),
            (Some(Why::OtherNode), _) => "answered by another node".to_owned(),
            (Some(Why::Lost), _) if over => "slower than another path".to_owned(),
            (Some(Why::Lost), _) => "the node kept another connection".to_owned(),
            (Some(Why::NotWanted), _) => "excluded by MADRIGAL_NET".to_owned(),
            (Some(Why::Left | Why::Barred), _) => {
                "not tried, for the network between the sites is not trusted".to_owned()
            }
            (Some(Why::Refused(why)), _) => why.clone(),
            (Some(Why::NoDaemon), _) => "no daemon is up on this host".to_owned(),
            (None, State::Due(_)) => "not tried".to_owned(),
            (None, _) => "slower than another path".to_owned(),
        }
    }
}

/// `ECONNREFUSED`: the host is there, the listener not yet.
const REFUSED: i32 = 111;

/// How long an attempt to connect may take; the kernel would repeat its SYN after a second at the earliest.
fn patience_of(count: u32) -> u64 {
    (400 * MS).wrapping_shl(count.saturating_sub(1).min(4)).min(4000 * MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: u64 = 15_000 * MS;

    fn race(now: u64) -> Race {
        let address = |text: &str| {
            let wish = if text == "10.0.0.3:1" { Wish::NotWanted } else { Wish::Wanted };
            (Way::At(text.parse().unwrap()), wish)
        };
        Race::new(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"].map(address), PATIENCE, now)
    }

    /// Two addresses with this wish, and the daemon.
    fn with_daemon(wish: Wish) -> Race {
        let at = |text: &str| (Way::At(text.parse().unwrap()), wish);
        let daemon = Way::Daemon { host: "b1".to_owned(), port: 1 };
        Race::new(&[at("10.0.0.1:1"), at("10.0.0.2:1"), (daemon, Wish::Wanted)], PATIENCE, 0)
    }

    fn all(race: &mut Race, now: u64) -> Vec<Act> {
        std::iter::from_fn(|| race.next(now, false)).take(10).collect()
    }

    #[test]
    fn the_second_address_waits_for_a_moment_or_a_failure() {
        let mut slow = race(0);
        assert_eq!(all(&mut slow, 0), [Act::Dial(0)]);
        assert_eq!(slow.deadline(false), STAGGER);
        assert_eq!(all(&mut slow, STAGGER), [Act::Dial(1)]);
        let mut refused = race(0);
        assert_eq!(all(&mut refused, 0), [Act::Dial(0)]);
        refused.failed(0, Why::System(Os(REFUSED)), MS);
        assert_eq!(all(&mut refused, MS), [Act::Dial(1)]);
        assert_eq!(all(&mut refused, 11 * MS), [Act::Dial(0)]);
    }

    #[test]
    fn the_daemon_waits_for_the_addresses() {
        let mut slow = with_daemon(Wish::Wanted);
        assert_eq!(all(&mut slow, STAGGER), [Act::Dial(0), Act::Dial(1)]);
        slow.failed(0, Why::OtherNode, STAGGER);
        assert_eq!(all(&mut slow, HEAD_START - 1), [Act::Dial(0)], "the other one may still answer");
        assert_eq!(all(&mut slow, HEAD_START), [Act::Dial(2)]);
        let mut refused = with_daemon(Wish::Wanted);
        assert_eq!(all(&mut refused, STAGGER), [Act::Dial(0), Act::Dial(1)]);
        refused.failed(0, Why::System(Os(113)), STAGGER);
        refused.failed(1, Why::System(Os(113)), STAGGER);
        assert_eq!(all(&mut refused, STAGGER), [Act::Dial(2)]);
        let mut open = with_daemon(Wish::Wanted);
        assert_eq!(all(&mut open, 0), [Act::Dial(0)]);
        open.connected(0);
        assert_eq!(all(&mut open, GRACE - 1), [Act::Dial(1)]);
        assert!(all(&mut open, GRACE).contains(&Act::Dial(2)));
    }

    #[test]
    fn what_is_left_to_the_daemon_is_tried_where_there_is_none() {
        let mut race = with_daemon(Wish::Left);
        assert_eq!(all(&mut race, 0), [Act::Dial(2)]);
        race.failed(2, Why::Refused("no way".to_owned()), MS);
        assert_eq!(all(&mut race, 2 * GRACE), [Act::Dial(2)]);
        let expected = "10.0.0.1:1: not tried, for the network between the sites is not trusted; 10.0.0.2:1: not tried, for the \
                    network between the sites is not trusted; through the daemon: no way; ";
        assert!(race.tried().starts_with(expected), "{}", race.tried());
        race.failed(2, Why::NoDaemon, 3 * GRACE);
        assert_eq!(all(&mut race, 3 * GRACE), [Act::Dial(0), Act::Dial(1)]);
        assert!(race.tried().contains("through the daemon: no daemon is up on this host"), "{}", race.tried());
    }

    #[test]
    fn the_daemon_says_what_it_tried_before_the_time_is_over() {
        let (mut race, mut now) = (with_daemon(Wish::Wanted), 0);
        let mut asked = None;
        while !all(&mut race, now).contains(&Act::GiveUp) {
            if asked.is_none() && race.tries[2].count > 0 {
                asked = Some(now + race.left());
            }
            now = race.deadline(false);
        }
        assert_eq!((asked, now, race.tries[2].count), (Some(PATIENCE - REPORT), PATIENCE, 1));
    }

    #[test]
    fn it_ends_in_time_and_says_everything() {
        let (mut race, mut now, mut dialed) = (race(7), 7, 0);
        loop {
            match all(&mut race, now)[..] {
                [.., Act::GiveUp] => break,
                ref acts => dialed += acts.iter().filter(|act| matches!(act, Act::Dial(_))).count(),
            }
            let next = race.deadline(false);
            assert!(next > now, "{next} {now}");
            now = next;
        }
        assert_eq!(now, 7 + PATIENCE);
        assert!((8..20).contains(&dialed), "{dialed}");
        let expected = "10.0.0.1:1: no answer (ETIMEDOUT), 7 attempts; 10.0.0.2:1: no answer (ETIMEDOUT), 7 attempts; \
                    10.0.0.3:1: excluded by MADRIGAL_NET; and in 15.0 s it did not connect to us";
        assert_eq!(race.tried(), expected);
    }

    #[test]
    fn a_peer_is_absent_if_all_its_addresses_refuse() {
        let refuse =
            |race: &mut Race, ways: &[usize]| ways.iter().for_each(|i| race.failed(*i, Why::System(Os(REFUSED)), MS));
        let mut two = Race::new(
            &race(0).tries[..2].iter().map(|one| (one.to.clone(), Wish::Wanted)).collect::<Vec<_>>(),
            PATIENCE,
            0,
        );
        all(&mut two, STAGGER);
        refuse(&mut two, &[0]);
        assert!(!two.is_absent(), "one may still answer");
        refuse(&mut two, &[1]);
        assert!(two.is_absent());
        two.connected(1);
        assert!(!two.is_absent(), "something is there");
        for mut other in [race(0), with_daemon(Wish::Wanted)] {
            all(&mut other, STAGGER);
            refuse(&mut other, &[0, 1]);
            assert!(!other.is_absent(), "an address that is not wanted, or a daemon, may lead there");
        }
    }

    #[test]
    fn time_counts_while_somebody_looks() {
        let mut race = race(0);
        all(&mut race, 0);
        assert!(!all(&mut race, 100 * PATIENCE).contains(&Act::GiveUp));
    }

    #[test]
    fn an_attempt_that_is_renewed_has_its_whole_time_again() {
        let (mut race, mut now) = (race(0), 0);
        while now < PATIENCE / 2 {
            assert!(!all(&mut race, now).contains(&Act::GiveUp));
            now = race.deadline(false);
        }
        let renewed = now;
        race.renew(now);
        while !all(&mut race, now).contains(&Act::GiveUp) {
            now = race.deadline(false);
        }
        assert_eq!(now, renewed + PATIENCE);
    }

    #[test]
    fn who_is_in_a_hurry_does_not_ask_a_daemon_for_long_that_refuses() {
        let (mut race, mut now) = (with_daemon(Wish::Left), 0);
        race.hurry();
        while !all(&mut race, now).contains(&Act::GiveUp) {
            if race.tries[2].state == State::Dialing(now) {
                race.failed(2, Why::Refused("no way".to_owned()), now);
            }
            now = race.deadline(false);
        }
        assert_eq!(now, DOUBT);
    }

    #[test]
    fn a_connection_without_an_answer_is_waited_for_longer() {
        let mut race = race(0);
        all(&mut race, 0);
        race.connected(0);
        let mut now = 0;
        while !all(&mut race, now).contains(&Act::GiveUp) {
            now = race.deadline(false);
        }
        assert_eq!(now, LONGER * PATIENCE);
        assert!(race.tried().starts_with("10.0.0.1:1: connected, but nothing was said"));
    }
}
