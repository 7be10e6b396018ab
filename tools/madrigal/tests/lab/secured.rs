//! `madrigal lab up --with-daemons`: a CA, and a daemon on every host; what passes between sites is TLS and nothing else.
//!
//! Features (docs/features.md): L1, B18, D3.

use std::path::Path;
use std::process::{Command, Stdio};

use super::bed::{Home, Who, need_lab, run};
use super::common::bed::{is_root, until};
use super::grid::{Capture, EXCHANGE, Grid};

pub(crate) fn two_sites_with_daemons_show_nothing_but_tls_at_the_border() {
    need_lab(Who::Me);
    let (mut grid, told) = Grid::with_daemons(Who::Me, "two-sites.toml");
    assert!(told.contains("daemons on 5 hosts"), "{told}");
    // All possible links are there when the command returns: behind a NAT no host can be dialled from outside.
    for (host, with) in [("a1", vec!["a2", "r"]), ("b2", vec!["b1", "r"]), ("r", vec!["a1", "a2", "b1", "b2"])] {
        assert_eq!(grid.links(host), with, "{told}");
    }
    // What there was to write: eight lines a site, at most.
    let (_, file, _) = grid.exec("a1", &["sh", "-c", "cat $MADRIGAL_CONFIG_DIR/grid.toml"]);
    let lines = file.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).count();
    assert!((3..=8 * 3).contains(&lines), "{file}");
    // Links made anew while a third party captures the traffic at the border.
    let capture = Capture::start(&grid.bed, "gw-a", "ar");
    grid.stop("r");
    grid.start("r");
    until("links", || (grid.links("r").len() == 4).then_some(()));
    grid.echo("b1", "7000");
    grid.works("a1", "b1");
    let seen = capture.end();
    // Two connections, both ways; the exchange alone is hundreds of records.
    assert!(seen.enciphered() >= 4 && seen.others().is_empty() && !seen.plain, "{seen:?}");
    // The same eyes see what is not enciphered.
    let capture = Capture::start(&grid.bed, "gw-a", "ar");
    grid.echo_at("gw-public", "7780", "");
    assert_eq!(grid.bed.python("a1", EXCHANGE, &["gw-public", "7780", "400000"]), "same");
    let seen = capture.end();
    assert!(seen.plain && !seen.others().is_empty(), "{seen:?}");
    grid.down();
}

pub(crate) fn a_host_of_a_lab_is_shut_out_by_its_ca() {
    need_lab(Who::Me);
    let (grid, _) = Grid::with_daemons(Who::Me, "nat-left.toml");
    assert_eq!(grid.links("b1"), ["a1"]);
    let state = grid.bed.home.runtime().join("madrigal-lab/nat-left/config");
    let mut revoke = Command::new(grid.bed.home.exe());
    revoke.args(["ca", "revoke", "--host", "a1"]).env("MADRIGAL_CONFIG_DIR", &state);
    assert_eq!(run(&mut revoke).0, 0);
    // Its list is brought to b1: that reads it by itself.
    let list = std::fs::read_to_string(state.join("revoked.pem")).unwrap();
    let put = "cat > $MADRIGAL_CONFIG_DIR/.new && mv $MADRIGAL_CONFIG_DIR/.new $MADRIGAL_CONFIG_DIR/revoked.pem";
    let mut child = grid.command("b1", &["sh", "-c", put]).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), list.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    until("the end of the link", || grid.links("b1").is_empty().then_some(()));
    until("the reason", || grid.run("a1", &["status"]).1.contains("certificate_revoked").then_some(()));
    what_doctor_advises_helps(&grid, &state);
    grid.down();
}

/// Every line that `doctor` would have typed for a certificate that was taken back, typed.
fn what_doctor_advises_helps(grid: &Grid, ca: &Path) {
    let (status, out, _) = grid.run("a1", &["doctor", "a1", "b1"]);
    let advice: Vec<_> = out.lines().filter_map(|line| line.trim().strip_prefix("-> ")).collect();
    assert_ne!(status, 0);
    assert!(advice.iter().filter(|line| line.contains("madrigal grid add a1 --again")).count() == 2, "{out}");
    assert!(!out.contains("madrigal up"), "{out}");
    std::fs::write(ca.join("grid.toml"), grid.exec("a1", &["sh", "-c", "cat $MADRIGAL_CONFIG_DIR/grid.toml"]).1)
        .unwrap();
    let mut add = Command::new(grid.bed.home.exe());
    let (status, out, err) = run(add.args(["grid", "add", "a1", "--again"]).env("MADRIGAL_CONFIG_DIR", ca));
    assert_eq!(status, 0, "{out}{err}");
    let join = out
        .lines()
        .find(|line| line.starts_with("madrigal grid join "))
        .unwrap()
        .replace("madrigal", &grid.bed.home.exe());
    let code = out.lines().find(|line| line.starts_with("  ") && line.contains('-')).unwrap().trim();
    let (status, out, err) = grid.exec("a1", &["sh", "-c", &format!("echo {code} | {join}")]);
    assert_eq!(status, 0, "{out}{err}");
    until("a link again", || (grid.run("a1", &["doctor", "a1", "b1"]).0 == 0).then_some(()));
}

pub(crate) fn labs_of_all_shapes_have_daemons() {
    need_lab(Who::Me);
    for (file, host, with) in [
        ("overlapping.toml", "r", vec!["a1", "b1"]),
        ("ipv6-only.toml", "r", vec!["a1", "b1"]),
        ("one-way-firewall.toml", "a1", vec!["b1"]),
        ("docker0-twins.toml", "a1", vec!["a2"]),
    ] {
        let (grid, told) = Grid::with_daemons(Who::Me, file);
        assert_eq!(grid.links(host), with, "{file}: {told}");
        grid.down();
    }
}

pub(crate) fn daemons_need_no_rights() {
    let who = if is_root() { Who::Nobody } else { Who::Me };
    need_lab(who);
    let (grid, _) = Grid::with_daemons(who, "nat-left.toml");
    assert_eq!(grid.links("a1"), ["b1"]);
    grid.down();
}

pub(crate) fn a_lab_whose_daemons_cannot_start_is_not_up() {
    need_lab(Who::Me);
    let home = Home::new(Who::Me);
    // The command itself is out of sight on that host.
    let hidden = Path::new(&home.exe()).parent().unwrap().to_str().unwrap().to_owned();
    let file = home.file(
        "hidden.toml",
        &format!("[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1', 'a2']\n[host.a2]\nprivate = ['{hidden}']\n"),
    );
    let (status, _, err) = run(&mut home.lab(&["up", &file, "--with-daemons"]));
    assert!(status == 1 && err.contains("no daemon on a2: "), "{err}");
    assert_eq!(run(&mut home.lab(&["down"])).1, "no lab was up\n");
}
