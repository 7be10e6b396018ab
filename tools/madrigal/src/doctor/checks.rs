//! The checks, from the reports of daemons: nothing is requested here.

use std::net::{IpAddr, SocketAddr};

use madrigal_daemon::{Certificate, Examination, Explanation, Figures, State, Status};
use serde::Serialize;

/// A larger difference of clocks is a warning.
const CLOCK_WARN: u64 = 2_000_000;
/// With a larger difference certificates are refused: they begin five minutes in the past.
const CLOCK_FAIL: u64 = 240_000_000;
/// A larger share of retransmissions, in parts of a million, is a warning.
const AGAIN_PPM: u32 = 10_000;
/// The least MTU that IPv6 requires of every network.
const LEAST_MTU: u32 = 1280;

/// The result of a check; the number is the exit status.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mark {
    /// As it should be.
    Ok = 0,
    /// It works, and could be better.
    Warning = 1,
    /// It does not work.
    Failed = 2,
}

impl Mark {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "FAILED",
        }
    }
}

/// One check.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Check {
    pub(crate) name: String,
    pub(crate) state: Mark,
    pub(crate) text: String,
    /// What to type.
    pub(crate) fix: Option<String>,
}

impl Check {
    pub(crate) fn ok(name: impl Into<String>, text: String) -> Self {
        Self { name: name.into(), state: Mark::Ok, text, fix: None }
    }

    pub(crate) fn warning(name: impl Into<String>, text: String, fix: &str) -> Self {
        Self { name: name.into(), state: Mark::Warning, text, fix: Some(fix.to_owned()) }
    }

    pub(crate) fn failed(name: impl Into<String>, text: String, fix: &str) -> Self {
        Self { name: name.into(), state: Mark::Failed, text, fix: Some(fix.to_owned()) }
    }

    /// A failure if it `matters`, else a warning.
    fn bad(matters: bool, name: impl Into<String>, text: String, fix: &str) -> Self {
        if matters { Self::failed(name, text, fix) } else { Self::warning(name, text, fix) }
    }

    fn of(name: String, state: &State) -> Self {
        match &state.fix {
            Some(fix) if !state.ok => Self::warning(name, state.text.clone(), fix),
            _ => Self::ok(name, state.text.clone()),
        }
    }
}

/// The fix where neither host can connect to the other.
const RELAY: &str = "have a relay that both reach: madrigal grid add HOST --site SITE --address ADDRESS --relay";
/// The words for a revoked certificate: in the error of the end that refuses, and in the TLS alert to the refused end.
const REVOKED: &str = "revoked";
const REFUSED_AS_REVOKED: &str = "certificate_revoked";

/// The fix where no daemon is up.
fn start(host: &str) -> String {
    format!("on {host}: madrigal up")
}

/// The fix for a host whose certificate was revoked.
fn again(host: &str) -> String {
    format!("if {host} is to be let in: madrigal grid add {host} --again, where the CA is")
}

/// The fix if there is no link because of a revoked certificate: that of `from` if the other end refuses, else that of `to`.
fn revoked(why: &str, from: &str, to: &str) -> Option<String> {
    match why {
        _ if why.contains(REFUSED_AS_REVOKED) => Some(again(from)),
        _ if why.contains(REVOKED) => Some(again(to)),
        _ => None,
    }
}

/// Whether an address means something in its own network only (RFC 1918, 6598, 3927, 4193, 4291).
fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let shared = ip.octets()[0] == 100 && (64..128).contains(&ip.octets()[1]);
            ip.is_private() || ip.is_link_local() || shared
        }
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Whether two addresses are most likely of one network: a /24, or a /64.
fn are_neighbours(one: IpAddr, other: IpAddr) -> bool {
    match (one.to_canonical(), other.to_canonical()) {
        (IpAddr::V4(one), IpAddr::V4(other)) => one.octets()[..3] == other.octets()[..3],
        (IpAddr::V6(one), IpAddr::V6(other)) => one.octets()[..8] == other.octets()[..8],
        _ => false,
    }
}

/// The report of a daemon.
pub(crate) struct Seen {
    pub(crate) examination: Examination,
    /// How far its clock is before ours, and how sure that is.
    pub(crate) clock_us: i64,
    pub(crate) unsure_us: u64,
}

type Side<'a, E> = (&'a str, Result<Seen, E>);

/// All checks between two hosts.
pub(crate) fn of_pair<E: ToString>((from, near): Side<'_, E>, (to, far): Side<'_, E>) -> Vec<Check> {
    let mut checks = vec![resolve(from, to, near.as_ref().ok(), far.as_ref().ok())];
    for (host, seen) in [(from, &near), (to, &far)] {
        checks.push(match seen {
            Ok(seen) => Check::ok(format!("daemon {host}"), format!("answers in {}", ms(seen.unsure_us * 2))),
            Err(error) => {
                let error = error.to_string();
                let fix = revoked(&error, from, to).unwrap_or_else(|| start(host));
                Check::failed(format!("daemon {host}"), error, &fix)
            }
        });
    }
    let (near, far) = (near.ok(), far.ok());
    let ways = [(&near, from, to), (&far, to, from)];
    let works = ways.iter().any(|(seen, ..)| chosen(seen.as_ref()).is_some());
    for (seen, here, there) in ways {
        checks.extend(seen.as_ref().map(|seen| connect(&seen.examination, here, there, works)));
    }
    checks.extend(near.as_ref().map(|near| relay(&near.examination, far.as_ref().map(|far| &far.examination), works)));
    for (seen, here, there) in ways {
        checks.extend(seen.as_ref().and_then(|seen| seen.examination.why.as_ref()).map(|why| way(why, here, there)));
    }
    checks.extend(near.as_ref().and_then(|near| mtu(&near.examination)));
    if let (Some(near), Some(far)) = (&near, &far) {
        checks.push(clock(near, far, from, to));
        checks.push(version(&near.examination, &far.examination));
    }
    for seen in [&near, &far].into_iter().flatten() {
        checks.extend(of_host(&seen.examination, !works));
    }
    checks
}

fn chosen(seen: Option<&Seen>) -> Option<&str> {
    seen?.examination.why.as_ref()?.chosen.as_deref()
}

fn resolve(from: &str, to: &str, near: Option<&Seen>, far: Option<&Seen>) -> Check {
    let spoken =
        |addresses: &[String]| if addresses.is_empty() { "no address".to_owned() } else { addresses.join(", ") };
    for (seen, other, here, there) in [(near, far, from, to), (far, near, to, from)] {
        let (Some(seen), Some(other)) = (seen, other) else { continue };
        let ours: Vec<String> = seen.examination.tried.iter().map(|tried| tried.address.clone()).collect();
        let theirs = &other.examination.health.addresses;
        if ours != *theirs {
            let text = format!("{here} looks for {there} at {}, and {there} is at {}", spoken(&ours), spoken(theirs));
            return Check::warning("resolve", text, "madrigal grid push, where the CA is");
        }
    }
    let told = near.map_or_else(String::new, |near| {
        let at: Vec<String> = near.examination.tried.iter().map(|tried| tried.address.clone()).collect();
        format!("; of {to} it has {}", spoken(&at))
    });
    Check::ok("resolve", format!("the grid has {from} and {to}{told}"))
}

/// Whether one of the two can open a connection to the other.
fn connect(seen: &Examination, from: &str, to: &str, works: bool) -> Check {
    let name = format!("connect {from} -> {to}");
    let other = if works { "another way is used" } else { "and there is no other way" };
    if seen.tried.is_empty() {
        let text = format!("the grid has no address of {to}; {other}");
        if works {
            return Check::ok(name, text);
        }
        return Check::failed(name, text, &format!("write the address of {to} in grid.toml; or {RELAY}"));
    }
    let open = seen.tried.iter().find_map(|tried| Some(format!("{} in {}", tried.address, ms(tried.us?))));
    if let Some(text) = open {
        return Check::ok(name, text);
    }
    let told = |tried: &madrigal_daemon::Tried| format!("{}: {}", tried.address, tried.error.as_deref().unwrap_or("?"));
    let text = seen.tried.iter().map(told).collect::<Vec<_>>().join(", ");
    let text = format!("{text}; {other}");
    if works {
        return Check::ok(name, text);
    }
    let addresses: Vec<SocketAddr> = seen.tried.iter().filter_map(|tried| tried.address.parse().ok()).collect();
    let own: Vec<SocketAddr> = seen.health.addresses.iter().filter_map(|own| own.parse().ok()).collect();
    let is_near = |at: &&SocketAddr| own.iter().any(|own| are_neighbours(own.ip(), at.ip()));
    let fix = match addresses.iter().find(|at| !is_private(at.ip()) || is_near(at)) {
        _ if text.contains("refused") => start(to),
        Some(at) => format!(
            "let TCP port {} of {to} in for {from}, in the firewalls of {to} and of its site; on {to}, nft list ruleset shows what it lets in",
            at.port()
        ),
        None => format!(
            "only the network of {to} itself leads to a private address: write in grid.toml where {from} reaches it; or {RELAY}"
        ),
    };
    Check::failed(name, text, &fix)
}

fn relay(near: &Examination, far: Option<&Examination>, works: bool) -> Check {
    let with = |seen: &Examination| -> Vec<String> {
        let linked = seen.relays.iter().filter(|(_, why)| why.is_none());
        linked.map(|(name, _)| name.clone()).chain([seen.health.host.clone()]).collect()
    };
    let (ours, theirs) = (with(near), far.map(with).unwrap_or_default());
    let both: Vec<&str> =
        near.relays.iter().map(|(name, _)| name.as_str()).filter(|name| ours.iter().any(|one| one == name)).collect();
    let both: Vec<&str> = both.into_iter().filter(|name| theirs.iter().any(|one| one == name)).collect();
    if !both.is_empty() {
        return Check::ok("relay", format!("both have links with {}", both.join(", ")));
    }
    let chosen = near.why.as_ref().and_then(|why| why.chosen.clone()).filter(|way| way.starts_with("through "));
    if let Some(way) = chosen {
        return Check::ok("relay", way);
    }
    if near.relays.is_empty() {
        let text = "the grid has no relay".to_owned();
        let fix = "write relay = [\"NAME\"] below the site of a host that both can reach, in grid.toml";
        return if works { Check::ok("relay", text) } else { Check::failed("relay", text, fix) };
    }
    let missing: Vec<String> = near
        .relays
        .iter()
        .map(|(name, why)| format!("{name}: {}", why.as_deref().unwrap_or("linked here only")))
        .collect();
    let names: Vec<&str> = near.relays.iter().map(|(name, _)| name.as_str()).collect();
    let own = &near.health.host;
    let taken_back = near.relays.iter().find_map(|(name, why)| revoked(why.as_deref()?, own, name));
    let fix = taken_back.unwrap_or_else(|| start(&names.join(" or ")));
    Check::bad(!works, "relay", format!("none has links with both: {}", missing.join("; ")), &fix)
}

fn way(why: &Explanation, from: &str, to: &str) -> Check {
    let name = format!("way {from} -> {to}");
    let Some(best) = why.ways.iter().find(|way| way.chosen) else {
        let told: Vec<String> =
            why.ways.iter().map(|way| format!("{}: {}", way.way, way.why.as_deref().unwrap_or("?"))).collect();
        return Check::failed(name, format!("none: {}", told.join("; ")), &format!("madrigal why {from} {to}"));
    };
    let text = format!("{}, {}", best.way, figures(&best.figures));
    match best.figures.again_ppm.filter(|again| *again >= AGAIN_PPM) {
        Some(_) => Check::warning(
            name,
            text,
            &format!("madrigal why {from} {to}; look for a bad cable, a full line or a policer"),
        ),
        None => Check::ok(name, text),
    }
}

/// The figures that are known, in words.
fn figures(figures: &Figures) -> String {
    let Figures { round_trip_us, rate, again_ppm, .. } = figures;
    let told = [
        round_trip_us.map(|us| format!("round trip {}", ms(us))),
        rate.map(|rate| format!("carried {}", bits(rate))),
        again_ppm.map(|ppm| format!("{} % sent again", f64::from(ppm) / 10_000.0)),
    ];
    let told: Vec<String> = told.into_iter().flatten().collect();
    if told.is_empty() { "nothing measured yet".to_owned() } else { told.join(", ") }
}

fn mtu(seen: &Examination) -> Option<Check> {
    let why = seen.why.as_ref()?;
    // A connection is made with short packets; the certificates that follow need long ones.
    let open = seen.tried.iter().any(|tried| tried.us.is_some());
    let linked = why.ways.iter().any(|way| way.usable && (way.way == "direct" || way.way == "reverse"));
    let silent = |way: &&madrigal_daemon::WayStatus| {
        let why = way.why.as_deref().unwrap_or_default();
        way.way == "direct" && (why.contains("no greeting") || why.contains("silent"))
    };
    if open && !linked && why.ways.iter().any(|way| silent(&way)) {
        let text = "short packets pass and long ones seem to vanish".to_owned();
        return Some(Check::warning("mtu", text, "sysctl net.ipv4.tcp_mtu_probing=1, on both hosts"));
    }
    let mtu = why.ways.iter().find(|way| way.chosen)?.figures.mtu?;
    let text = format!("packets of {mtu} bytes");
    Some(match mtu {
        LEAST_MTU.. => Check::ok("mtu", text),
        _ => Check::warning("mtu", text, "look for a tunnel on the way: tracepath HOST"),
    })
}

fn clock(near: &Seen, far: &Seen, from: &str, to: &str) -> Check {
    let apart = (near.clock_us - far.clock_us).unsigned_abs();
    let unsure = near.unsure_us + far.unsure_us;
    let text = format!("{from} and {to} differ by {}, give or take {}", ms(apart), ms(unsure));
    let fix = "on the host whose clock is wrong: timedatectl set-ntp true";
    match apart.saturating_sub(unsure) {
        0..CLOCK_WARN => Check::ok("clock", text),
        CLOCK_WARN..CLOCK_FAIL => Check::warning("clock", text, fix),
        _ => Check::failed("clock", text, fix),
    }
}

fn version(near: &Examination, far: &Examination) -> Check {
    let (near, far) = (&near.health, &far.health);
    let text = format!("{} has {}, {} has {}", near.host, near.version, far.host, far.version);
    let fix = "make install of the same version on both";
    match (near.links == far.links, near.version == far.version) {
        (true, true) => Check::ok("version", format!("{} on both", near.version)),
        (true, false) => Check::warning("version", text, fix),
        _ => Check::failed("version", text, fix),
    }
}

/// The checks of one host; certificates matter where nothing else works.
pub(crate) fn of_host(seen: &Examination, matters: bool) -> Vec<Check> {
    let health = &seen.health;
    let name = |what: &str| format!("{what} {}", health.host);
    let mut checks = certificates(name("certificate"), &health.certificates, health.trusted, matters);
    checks.push(Check::of(name("shared memory"), &health.shared_memory));
    checks.push(Check::of(name("single copy"), &health.single_copy));
    checks
}

fn certificates(name: String, held: &[Certificate], trusted: bool, matters: bool) -> Vec<Check> {
    let good = held.iter().find(|one| one.problem.is_none());
    if let Some(good) = good {
        let whose = good.whose.as_deref().unwrap_or("?");
        return vec![Check::ok(name, format!("{whose}, until {}", good.until.as_deref().unwrap_or("?")))];
    }
    if held.is_empty() && (trusted || !matters) {
        let why = if trusted { "all networks are trusted" } else { "its links work without" };
        return vec![Check::ok(name, format!("none is needed: {why}"))];
    }
    if held.is_empty() {
        return vec![Check::warning(name, "none".to_owned(), "madrigal login")];
    }
    let told = held.iter().filter_map(|one| one.problem.clone()).collect::<Vec<_>>().join("; ");
    let fix = match told.contains(REVOKED) {
        true => again(name.rsplit(' ').next().unwrap_or("HOST")),
        false => "madrigal login --status says more; madrigal login".to_owned(),
    };
    vec![Check::bad(!trusted, name, told, &fix)]
}

/// The links of this host with all others.
pub(crate) fn of_peers(status: &Status) -> Vec<Check> {
    let check = |peer: &madrigal_daemon::PeerStatus| {
        let name = format!("link {}", peer.host);
        match (peer.links.first(), &peer.why) {
            (None, _) if peer.through.is_some() => Check::ok(name, peer.through.clone().unwrap_or_default()),
            (Some(link), _) => {
                let at = link.address.as_ref().map_or_else(String::new, |at| format!(", {at}"));
                Check::ok(name, format!("{}{at}, {}", link.method, figures(&link.figures)))
            }
            (None, why) => {
                let why = why.clone().unwrap_or_else(|| "none".to_owned());
                let fix = revoked(&why, &status.host, &peer.host);
                let fix = fix.unwrap_or_else(|| format!("madrigal doctor {} {}", status.host, peer.host));
                Check::warning(name, why, &fix)
            }
        }
    };
    status.peers.iter().map(check).collect()
}

fn ms(us: u64) -> String {
    if us >= 10_000_000 { format!("{:.0} s", us as f64 / 1e6) } else { format!("{:.1} ms", us as f64 / 1000.0) }
}

/// A rate in words.
pub(crate) fn bits(rate: u64) -> String {
    match rate {
        1_000_000_000.. => format!("{:.1} Gbit/s", rate as f64 / 1e9),
        1_000_000.. => format!("{:.1} Mbit/s", rate as f64 / 1e6),
        _ => format!("{:.0} kbit/s", rate as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The report of the daemon of `host` about the way to another host.
    fn seen(host: &str, to: &str, tried: Value, ways: Value, relays: Value) -> Seen {
        let good = json!({ "ok": true, "text": "works", "fix": null });
        let chosen = ways.as_array().unwrap().iter().find(|way| way["chosen"] == true).map(|way| way["way"].clone());
        let examination = json!({
            "health": { "host": host, "version": "1", "links": 1, "time_us": 0, "addresses": [format!("{host}:7780")],
                "shared_memory": good, "single_copy": good, "certificates": [], "trusted": true },
            "why": { "from": host, "to": to, "port": null, "chosen": chosen, "ways": ways, "last": null, "rules": [] },
            "tried": tried, "relays": relays,
        });
        Seen { examination: serde_json::from_value(examination).unwrap(), clock_us: 0, unsure_us: 1000 }
    }

    fn way(way: &str, chosen: bool, why: &str) -> Value {
        let figures = json!({ "round_trip_us": 20_000, "rate": null, "again_ppm": 0, "mtu": 1500 });
        let why = if chosen { Value::Null } else { why.into() };
        json!({ "way": way, "chosen": chosen, "usable": chosen, "figures": figures, "measured_ago_s": null, "address": null,
            "tls": null, "why": why })
    }

    fn open(to: &str) -> Value {
        json!([{ "address": format!("{to}:7780"), "us": 300, "error": null }])
    }

    fn shut(to: &str, error: &str) -> Value {
        json!([{ "address": format!("{to}:7780"), "us": null, "error": error }])
    }

    fn states(checks: &[Check]) -> Vec<(&str, Mark)> {
        checks.iter().filter(|check| check.state != Mark::Ok).map(|check| (check.name.as_str(), check.state)).collect()
    }

    #[test]
    fn what_works_has_nothing_to_type() {
        let near = seen("a1", "b1", open("b1"), json!([way("direct", true, "")]), json!([]));
        let far = seen("b1", "a1", open("a1"), json!([way("reverse", true, "")]), json!([]));
        let checks = of_pair::<String>(("a1", Ok(near)), ("b1", Ok(far)));
        assert_eq!(states(&checks), []);
        assert!(checks.iter().all(|check| check.fix.is_none()) && checks.len() > 12, "{checks:?}");
    }

    #[test]
    fn one_open_direction_is_enough_and_none_a_failure() {
        let reverse = |chosen| json!([way("reverse", chosen, "b1 has not called")]);
        let near = seen("a1", "b1", shut("b1", "no answer in 3 s"), reverse(true), json!([]));
        let far = seen("b1", "a1", open("a1"), json!([way("direct", true, "")]), json!([]));
        let checks = of_pair::<String>(("a1", Ok(near)), ("b1", Ok(far)));
        assert_eq!(states(&checks), [], "what works has nothing to type");
        let near = seen("a1", "b1", shut("b1", "Connection refused"), reverse(false), json!([["r", "no answer"]]));
        let checks = of_pair(("a1", Ok(near)), ("b1", Err("cannot connect to b1:0: no link".to_owned())));
        let failed = [
            ("daemon b1", Mark::Failed),
            ("connect a1 -> b1", Mark::Failed),
            ("relay", Mark::Failed),
            ("way a1 -> b1", Mark::Failed),
        ];
        assert_eq!(states(&checks), failed);
        assert!(checks.iter().all(|check| check.fix.is_some() == (check.state != Mark::Ok)), "{checks:?}");
        assert!(checks[3].fix.as_ref().unwrap().contains("madrigal up"), "{checks:?}");
    }

    #[test]
    fn clocks_versions_and_files_that_differ_are_found() {
        let near = seen("a1", "b1", open("b1"), json!([way("direct", true, "")]), json!([]));
        let mut far = seen("b1", "a1", open("a1"), json!([way("reverse", true, "")]), json!([]));
        far.clock_us = 3_000_000;
        far.examination.health.version = "2".to_owned();
        far.examination.health.addresses = vec!["elsewhere:7780".to_owned()];
        let found = [("resolve", Mark::Warning), ("clock", Mark::Warning), ("version", Mark::Warning)];
        assert_eq!(states(&of_pair::<String>(("a1", Ok(near)), ("b1", Ok(far)))), found);
    }

    #[test]
    fn long_packets_that_vanish_are_suspected() {
        let closed = json!([way("through r", true, ""), way("direct", false, "b1:7780: no greeting in time")]);
        let near = seen("a1", "b1", open("b1"), closed, json!([["r", null]]));
        let far = seen("b1", "a1", open("a1"), json!([way("through r", true, "")]), json!([["r", null]]));
        let checks = of_pair::<String>(("a1", Ok(near)), ("b1", Ok(far)));
        assert_eq!(states(&checks), [("mtu", Mark::Warning)]);
    }

    #[test]
    fn advice_is_about_what_is_wrong() {
        let fix = |address: &str, error: &str, daemon: &str| {
            let tried = json!([{ "address": address, "us": null, "error": error }]);
            let near = seen("a1", "b1", tried, json!([way("direct", false, error)]), json!([]));
            let checks = of_pair(("a1", Ok(near)), ("b1", Err(daemon.to_owned())));
            let of = |name: &str| checks.iter().find(|check| check.name == name).unwrap().fix.clone().unwrap();
            (of("connect a1 -> b1"), of("daemon b1"))
        };
        let silent = "no answer in 3 s";
        for private in ["10.2.0.2:7780", "172.20.0.1:7780", "100.64.0.9:1", "[fd00::2]:7780", "[fe80::1]:7780"] {
            let (connect, _) = fix(private, silent, "no link");
            assert!(
                connect.contains("a private address") && connect.contains("--relay") && !connect.contains("nft"),
                "{connect}"
            );
        }
        for public in ["203.0.113.2:7780", "[2001:db8::2]:7780"] {
            let (connect, daemon) = fix(public, silent, "no link");
            assert!(connect.contains("TCP port 7780 of b1") && connect.contains("nft list ruleset"), "{connect}");
            assert_eq!(daemon, "on b1: madrigal up");
        }
        assert_eq!(fix("10.2.0.2:7780", "Connection refused", "no link").0, "on b1: madrigal up");
        let of_one_lan = ["10.1.0.9", "fd00::1"].map(|at| at.parse::<IpAddr>().unwrap());
        let others = ["10.1.0.2", "10.1.1.9", "fd00::ffff", "fd01::1"].map(|at| at.parse::<IpAddr>().unwrap());
        let near = others.map(|other| of_one_lan.iter().any(|own| are_neighbours(*own, other)));
        assert_eq!(near, [true, false, true, false]);
        let mut neighbour =
            seen("a1", "b1", shut("10.1.0.2", silent), json!([way("direct", false, silent)]), json!([]));
        neighbour.examination.health.addresses = vec!["10.1.0.9:7780".to_owned()];
        let check = connect(&neighbour.examination, "a1", "b1", false);
        assert!(check.fix.as_ref().unwrap().contains("nft list ruleset"), "of one network: {check:?}");
        let revoked = "no link with b1: revoked: the certificate of host b1, serial 5C, was taken back";
        assert!(fix("203.0.113.2:1", silent, revoked).1.contains("madrigal grid add b1 --again"));
        let by_them = "no link with b1: TLS: received fatal alert: certificate_revoked";
        assert!(fix("203.0.113.2:1", silent, by_them).1.contains("madrigal grid add a1 --again"));
    }
}
