//! `madrigal why A B`: the ways between two hosts of the grid, what was measured of each, and why one is used and the others are not.

use madrigal_daemon::{Explanation, LinkConnection, Runtime, WayStatus, client};

use crate::out;

/// Runs the command.
pub(super) fn run(from: &str, to: &str, port: Option<u16>, json: bool) -> i32 {
    if from == to {
        return out::usage("give two different hosts, by their names in the grid");
    }
    match client::why(&Runtime::find(), from, to, port) {
        Ok(why) => {
            if json {
                out::print_json(&why);
            } else {
                out::print(&describe(&why));
            }
            if why.chosen.is_some() { out::FOUND } else { out::FAILED }
        }
        Err(error) => out::fail(&error.to_string()),
    }
}

fn describe(why: &Explanation) -> String {
    let port = why.port.map_or_else(String::new, |port| format!(":{port}"));
    let chosen = why.chosen.as_deref().unwrap_or("no way");
    // All this may come from the daemon of another host: one line each.
    let line = |text: &str| format!("{}\n", out::one_line(text));
    let mut text = line(&format!("{} to {}{port}: {chosen}", why.from, why.to));
    if !why.rules.is_empty() {
        text += &line(&format!("rules: {}", why.rules.join(", ")));
    }
    if !["", "data"].contains(&why.class.as_str()) {
        text += &line(&format!("class: {}", why.class));
    }
    if let Some(cap) = why.cap {
        text += &line(&format!("cap: {}", crate::doctor::bits(cap)));
    }
    text.push('\n');
    let heading = ["", "way", "round trip", "carried", "sent again", "mtu", "measured", ""];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(why.ways.iter().map(row));
    text += &out::table(&rows, &[2, 3, 4, 5]);
    for way in why.ways.iter().filter(|way| !way.each.is_empty()) {
        text.push('\n');
        text += &connections(way);
    }
    why.staying.iter().for_each(|stays| text += &line(stays));
    text
}

/// The connections of the first link of a way.
fn connections(way: &WayStatus) -> String {
    let heading = ["", &way.way, "round trip", "carries", "sent again", "unsent", "held back by", ""];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(way.each.iter().map(connection));
    out::table(&rows, &[2, 3, 4, 5])
}

fn connection(one: &LinkConnection) -> Vec<String> {
    let LinkConnection { number, again_ppm, unsent, busy, receiver, buffer, .. } = one;
    let part = |permille: &u32| format!("{} %", permille / 10);
    let held = match one.held_back_by.as_deref() {
        Some("receiver") => format!("the receiver's window, {} of the time", part(receiver)),
        Some("buffer") => format!("this end's buffer, {} of the time", part(buffer)),
        Some("congestion") => "congestion".to_owned(),
        Some("application") => format!("the application, something was on its way {} of the time", part(busy)),
        Some(other) => other.to_owned(),
        None => String::new(),
    };
    let anew = (one.renewed > 0).then(|| format!("rate found anew {} times", one.renewed));
    let ends = one.local.as_ref().zip(one.address.as_ref()).map(|(here, there)| format!("{here} to {there}"));
    vec![
        String::new(),
        format!("connection {number}"),
        one.round_trip_us.map_or_else(String::new, |us| format!("{:.1} ms", f64::from(us) / 1000.0)),
        one.rate.map_or_else(String::new, crate::doctor::bits),
        format!("{:.2} %", f64::from(*again_ppm) / 10_000.0),
        format!("{} KiB", unsent.div_ceil(1024)),
        held,
        [one.congestion.clone(), ends, anew].into_iter().flatten().collect::<Vec<_>>().join(", "),
    ]
}

fn row(way: &WayStatus) -> Vec<String> {
    let mark = if way.chosen { "*" } else { "" };
    let figures = &way.figures;
    let known = figures.round_trip_us.is_some() || figures.rate.is_some();
    let when = match way.measured_ago_s {
        Some(ago) => format!("{ago} s ago"),
        None if known => "now".to_owned(),
        None => String::new(),
    };
    let several = (way.connections > 1).then(|| format!("{} connections", way.connections));
    let parts = [way.stack.clone(), several, way.congestion.clone(), way.address.clone()];
    let at = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    vec![
        mark.to_owned(),
        way.way.clone(),
        figures.round_trip_us.map_or_else(String::new, |us| format!("{:.1} ms", us as f64 / 1000.0)),
        figures.rate.map_or_else(String::new, crate::doctor::bits),
        figures.again_ppm.map_or_else(String::new, |ppm| format!("{:.2} %", f64::from(ppm) / 10_000.0)),
        figures.mtu.map_or_else(String::new, |mtu| mtu.to_string()),
        when,
        way.why.clone().unwrap_or(at),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_host_forges_no_line() {
        let evil = || "x\nok  all is well".to_owned();
        let why = Explanation {
            from: evil(),
            to: evil(),
            port: None,
            chosen: Some(evil()),
            ways: Vec::new(),
            last: None,
            class: evil(),
            cap: None,
            rules: vec![evil()],
            staying: vec![evil()],
        };
        assert!(describe(&why).lines().all(|line| !line.starts_with("ok")), "{}", describe(&why));
    }
}
