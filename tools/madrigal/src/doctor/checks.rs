//! The checks, out of what daemons say: nothing is asked here.

use madrigal_daemon::{Certificate, Examination, Explanation, Figures, State, Status};
use serde::Serialize;

/// Clocks that differ by more are worth a word.
const CLOCK_WARN: u64 = 2_000_000;
/// By more than that, certificates are refused, which begin five minutes in the past.
const CLOCK_FAIL: u64 = 240_000_000;
/// A part of a million that was sent again and is worth a word.
const AGAIN_PPM: u32 = 10_000;
/// What IPv6 asks of every network.
const LEAST_MTU: u32 = 1280;

/// How a check came out; the number is the exit status.
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

    /// A failure, or only a warning where it `matters` not.
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

/// What a daemon said.
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
            Err(error) => Check::failed(
                format!("daemon {host}"),
                error.to_string(),
                &format!("on {host}: madrigal status; madrigal up --grid FILE --host {host}"),
            ),
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
            return Check::warning("resolve", text, "bring the same grid.toml to both, and start the daemons again");
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
        return Check::failed(
            name,
            text,
            &format!("write the address of {to} in grid.toml, or name a relay that both can reach"),
        );
    }
    let open = seen.tried.iter().find_map(|tried| Some(format!("{} in {}", tried.address, ms(tried.us?))));
    if let Some(text) = open {
        return Check::ok(name, text);
    }
    let told = |tried: &madrigal_daemon::Tried| format!("{}: {}", tried.address, tried.error.as_deref().unwrap_or("?"));
    let text = seen.tried.iter().map(told).collect::<Vec<_>>().join(", ");
    let refused = text.contains("refused");
    let port = seen.tried.first().and_then(|tried| tried.address.rsplit(':').next()).unwrap_or("7780").to_owned();
    let fix = if refused {
        format!("on {to}: madrigal up --grid FILE --host {to}")
    } else {
        format!("open port {port} of {to} for {from}, such as: nft add rule inet filter input tcp dport {port} accept")
    };
    Check::bad(!works, name, format!("{text}; {other}"), &fix)
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
    let fix = format!("on {}: madrigal status; madrigal up --grid FILE", names.join(" or "));
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
    // A connection is made with short packets; the certificates that come next are long ones.
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
    vec![Check::bad(!trusted, name, told, "madrigal login --status says more; madrigal login")]
}

/// The links of this host with all others.
pub(crate) fn of_peers(status: &Status) -> Vec<Check> {
    let check = |peer: &madrigal_daemon::PeerStatus| {
        let name = format!("link {}", peer.host);
        match (peer.links.first(), &peer.why) {
            (Some(link), _) => {
                let at = link.address.as_ref().map_or_else(String::new, |at| format!(", {at}"));
                Check::ok(name, format!("{}{at}, {}", link.method, figures(&link.figures)))
            }
            (None, why) => Check::warning(
                name,
                why.clone().unwrap_or_else(|| "none".to_owned()),
                &format!("madrigal doctor {} {}", status.host, peer.host),
            ),
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

    /// What the daemon of `host` says of the way to another one.
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
    fn one_open_direction_is_a_warning_and_none_a_failure() {
        let reverse = |chosen| json!([way("reverse", chosen, "b1 has not called")]);
        let near = seen("a1", "b1", shut("b1", "no answer in 3 s"), reverse(true), json!([]));
        let far = seen("b1", "a1", open("a1"), json!([way("direct", true, "")]), json!([]));
        let checks = of_pair::<String>(("a1", Ok(near)), ("b1", Ok(far)));
        assert_eq!(states(&checks), [("connect a1 -> b1", Mark::Warning)]);
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
}
