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
mod tests;
