//! Programs of the library between two hosts, unchanged and without `madrigal exec`: a link, a circuit and a port of each, by the daemons
//! where those are the way.
//!
//! Features (docs/features.md): B2, B6, B18.

use madrigal_tests::host;

use super::bed::{Who, need_lab};
use super::common;
use super::common::bed::until;
use super::daemons::{ALLOW_ALL, two_sites};
use super::grid::Grid;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab/library.py");
const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../personalities/python/src");

/// Settings of a program.
type With<'a> = &'a [(&'a str, &'a str)];

/// The program as a command on a host.
fn words(with: With<'_>, rest: &[&str]) -> Vec<String> {
    let _ = common::madrigal();
    let library = host::release().join("libmadrigal.so.0");
    assert!(library.exists(), "no {}: make build", library.display());
    let set = [("PYTHONPATH", PACKAGE), ("MADRIGAL_LIBRARY", library.to_str().unwrap())];
    let set = set.iter().chain(with).map(|(key, value)| format!("{key}={value}"));
    let rest = ["python3", PROGRAM].iter().chain(rest).map(ToString::to_string);
    [String::from("env")].into_iter().chain(set).chain(rest).collect()
}

/// Everything from one host to another, which is called `to` there, and where the program listens at `at`.
fn works(grid: &mut Grid, (from, on): (&str, &str), to: &str, at: &str) {
    works_by(grid, (from, on), (to, at), &[]);
}

fn works_by(grid: &mut Grid, (from, on): (&str, &str), (to, at): (&str, &str), with: With<'_>) {
    let serve = words(with, &["serve", at]);
    let line = grid.ready(on, &serve.iter().map(String::as_str).collect::<Vec<_>>());
    let (_, port) = line.trim().split_once(' ').unwrap_or_else(|| panic!("{on}: {line:?}"));
    let (status, out, err) = ask(grid, from, (to, port), with);
    let peer = to.find("tcp://").or(to.find("shm://")).and_then(|place| to.get(place..)).unwrap_or_default();
    assert_eq!(
        (status, out.as_str()),
        (0, format!("link {peer}\ncircuit\nport numbers True\n").as_str()),
        "{to}: {err}"
    );
}

fn ask(grid: &Grid, from: &str, (to, port): (&str, &str), with: With<'_>) -> (i32, String, String) {
    let ask = words(with, &["ask", to, port]);
    grid.exec(from, &ask.iter().map(String::as_str).collect::<Vec<_>>())
}

pub(crate) fn programs_of_the_library_between_two_sites_behind_nat() {
    need_lab(Who::Me);
    let text = two_sites().replace("allow = '7000,2809,5201,6379,8080,8730'\n", ALLOW_ALL);
    let mut grid = Grid::up("two-sites.toml", &text, &["r", "a1", "a2", "b1"]);
    grid.linked("a1", "r");
    grid.linked("b1", "r");
    grid.linked("a1", "a2");
    // By name, by address, by alias; and the other way round. A server that is for its own host alone is found, too.
    works(&mut grid, ("a1", "b1"), "tcp://b1:7000", "tcp://127.0.0.1:7000");
    works(&mut grid, ("a1", "b1"), "tcp://10.2.0.2:7001", "tcp://0.0.0.0:7001");
    works(&mut grid, ("b1", "a1"), "tcp://127.77.0.1:7002", "tcp://127.0.0.1:7002");
    // With adapters, each of whose connections goes there.
    works(&mut grid, ("a1", "b1"), "adoc/stripe(2)/tcp://b1:7003", "adoc/stripe(2)/tcp://127.0.0.1:7003");
    // The same of messages: by the daemon between the sites, straight inside of one.
    let stack: With<'_> = &[("MADRIGAL_MESSAGE_STACK", "adoc/stripe(2)/tcp")];
    works_by(&mut grid, ("a1", "b1"), ("tcp://b1:7008", "tcp://127.0.0.1:7008"), stack);
    works_by(&mut grid, ("a1", "a2"), ("tcp://a2:7009", "tcp://10.1.0.3:7009"), stack);
    // Inside a site directly, inside a host whatever it is called.
    works(&mut grid, ("a1", "a2"), "tcp://a2:7004", "tcp://10.1.0.3:7004");
    works(&mut grid, ("a1", "a1"), "tcp://a1:7005", "tcp://127.0.0.1:7005");
    // Each way by itself.
    for (methods, to, at) in [
        ("shm", "shm://one", "shm://one"),
        ("tcp", "tcp://localhost:7006", "tcp://localhost:7006"),
        ("shm,tcp", "shm://two", "shm://two"),
    ] {
        works_by(&mut grid, ("a1", "a1"), (to, at), &[("MADRIGAL_METHODS", methods)]);
    }
    let refused = |grid: &Grid, to: &str| {
        let (status, _, err) = ask(grid, "a1", (to, "none"), &[]);
        assert_ne!(status, 0, "{to}");
        err
    };
    let told = refused(&grid, "tcp://b1:7999");
    assert!(told.contains("cannot connect to b1:7999") && told.contains("refused"), "{told}");
    let told = refused(&grid, "tcp://nowhere:7000");
    assert!(told.contains("the grid has no host `nowhere`; there are a1, a2, b1, b2, r"), "{told}");
    // Without the daemon nothing is sent plainly that it is to encipher.
    grid.kill("a1");
    until("no daemon", || refused(&grid, "tcp://b1:7000").contains("none of yours is up").then_some(()));
    grid.down();
}
