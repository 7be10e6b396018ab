//! The checks of `doctor` on made-up examinations: what is found, and what is to be typed.

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
    let mut neighbour = seen("a1", "b1", shut("10.1.0.2", silent), json!([way("direct", false, silent)]), json!([]));
    neighbour.examination.health.addresses = vec!["10.1.0.9:7780".to_owned()];
    let check = connect(&neighbour.examination, "a1", "b1", false);
    assert!(check.fix.as_ref().unwrap().contains("nft list ruleset"), "of one network: {check:?}");
    let revoked = "no link with b1: revoked: the certificate of host b1, serial 5C, was taken back";
    assert!(fix("203.0.113.2:1", silent, revoked).1.contains("madrigal grid add b1 --again"));
    let by_them = "no link with b1: TLS: received fatal alert: certificate_revoked";
    assert!(fix("203.0.113.2:1", silent, by_them).1.contains("madrigal grid add a1 --again"));
}
