//! Programs whose daemon is not up, or hangs: connections that must be encrypted stay so, the others go directly, and failed connections
//! report why.
//!
//! Features (docs/features.md): B18, D3, L7.

use std::path::Path;

use serde_json::Value;

use super::bed::{Bed, Who, need_lab};
use super::common::bed::until;
use super::grid::Grid;

/// Two sites that reach each other.
const OPEN: &str = "[site.a]\nnetwork = '10.1.0.0/24'\nhosts = ['a1']\n[site.b]\nnetwork = '10.2.0.0/24'\nhosts = ['b1']\n\
    [link.ab]\nbetween = ['a', 'b']\ndelay = '1ms'\n";

/// Has a word with port 7000 of `argv[2]`, `argv[3]` times; what came of each, how long all took, and what `madrigal why` says of this
/// process and of the last connection.
const TALK: &str = "import errno, json, os, socket, subprocess, sys, time\n\
    told = []; b = time.monotonic(); s = None\n\
    for _ in range(int(sys.argv[3])):\n    \
        try:\n        \
            s = socket.create_connection((sys.argv[2], 7000)); s.sendall(b'MADRIGAL-PLAIN-TEXT.'); told.append(s.recv(20).decode()[:8])\n    \
        except OSError as e: told.append(errno.errorcode[e.errno])\n\
    e = time.monotonic()\n\
    env = {k: v for k, v in os.environ.items() if k != 'LD_PRELOAD'}\n\
    why = subprocess.run([sys.argv[1], 'why', str(os.getpid())], stdout=-1, env=env).stdout.decode()\n\
    print(json.dumps({'told': told, 'seconds': e - b, 'why': why}))\n";

/// What came of so many connections from a1 to an address.
fn talk(grid: &Grid, to: &str, times: &str) -> (Vec<String>, f64, String) {
    let _ = super::common::madrigal();
    let exe = super::common::exe().to_str().unwrap();
    let told = grid.wrapped("a1", &["/usr/bin/python3", "-c", TALK, exe, to, times]);
    let told: Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("{told}"));
    let each = told["told"].as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect();
    (each, told["seconds"].as_f64().unwrap(), told["why"].as_str().unwrap().to_owned())
}

pub(crate) fn what_must_be_enciphered_is_not_connected_without_a_daemon() {
    need_lab(Who::Me);
    let allow = "allow = '7000'\n";
    let text = format!("[site.a]\nhosts.a1 = '10.1.0.2'\n{allow}[site.b]\nhosts.b1 = '10.2.0.2'\n{allow}");
    let mut grid = Grid::on(Bed::up_text(OPEN), &text, &["a1", "b1"]);
    grid.echo_at("b1", "7000", "0.0.0.0");
    grid.linked("a1", "b1");
    let (told, _, why) = talk(&grid, "10.2.0.2", "1");
    assert!(told == ["MADRIGAL"] && why.contains("a1 > b1:7000 (tls)"), "{told:?} {why}");
    // Killed, or ended as it should be.
    let refused = "to 10.2.0.2:7000: refused: not connected: the network between is not trusted, and no daemon is up";
    for killed in [true, false] {
        if killed {
            grid.kill("a1")
        } else {
            grid.stop("a1")
        }
        let (told, _, why) = talk(&grid, "10.2.0.2", "1");
        assert!(told == ["EHOSTUNREACH"] && why.contains(refused), "{killed}: {told:?} {why}");
        grid.start("a1");
        grid.linked("a1", "b1");
        assert_eq!(talk(&grid, "10.2.0.2", "1").0, ["MADRIGAL"]);
    }
    grid.stop("a1");
    // If none was ever up, but the grid is described, `exec` reports that, too.
    let folder = grid.bed.home.folder();
    let own = Path::new(&folder).join("config-a1/grid.toml");
    std::fs::write(&own, &text).unwrap();
    let forget = "rm -r ${XDG_RUNTIME_DIR:-/nonexistent}/madrigal /dev/shm/madrigal-run-* 2>/dev/null; true";
    grid.exec("a1", &["sh", "-c", forget]);
    assert_eq!(talk(&grid, "10.2.0.2", "1").0, ["EHOSTUNREACH"]);
    let (status, _, err) = super::bed::run(&mut grid.wrap("a1", &["true"]));
    assert!(status == 0 && err.contains("no daemon is up: what goes to other sites"), "{err}");
    // Connections that the user allows go plainly, which is reported.
    std::fs::write(&own, format!("plain = true\n{text}")).unwrap();
    let (told, _, why) = talk(&grid, "10.2.0.2", "1");
    assert!(told == ["MADRIGAL"] && !why.contains("not connected"), "{told:?} {why}");
    grid.bed.home.file("grid.toml", &text.replace("[site.b]\n", "[site.b]\nplain = true\n"));
    grid.start("a1");
    grid.linked("a1", "b1");
    let (told, _, why) = talk(&grid, "10.2.0.2", "1");
    assert!(told == ["MADRIGAL"] && why.contains("a1 > b1:7000 (tls)"), "{told:?} {why}");
    grid.kill("a1");
    let (told, _, why) = talk(&grid, "10.2.0.2", "1");
    assert!(told == ["MADRIGAL"] && why.contains("no-daemon: "), "{told:?} {why}");
    grid.down();
}

pub(crate) fn a_daemon_that_hangs_holds_up_no_connect_that_can_go_by_itself() {
    need_lab(Who::Me);
    // Daemons cannot reach each other directly, programs can.
    let lab = format!("{OPEN}[host.b1]\nfirewall = 'in'\nopen = [7000]\n[host.a1]\nfirewall = 'in'\n");
    let allow = "allow = '7000'\n";
    let text =
        format!("trusted = true\n[site.a]\nhosts.a1 = '10.1.0.2'\n{allow}[site.b]\nhosts.b1 = '10.2.0.2'\n{allow}");
    let mut grid = Grid::on(Bed::up_text(&lab), &text, &["a1", "b1"]);
    grid.echo_at("b1", "7000", "0.0.0.0");
    let hosts =
        "cat ${XDG_RUNTIME_DIR:-/nonexistent}/madrigal/daemon.hosts /dev/shm/madrigal-run-*/daemon.hosts 2>/dev/null";
    until("a word that the way is shut", || {
        grid.exec("a1", &["sh", "-c", hosts]).1.contains("b1 daemon ").then_some(())
    });
    let pid = grid.status("a1")["pid"].to_string();
    assert_eq!(grid.exec("a1", &["kill", "-STOP", &pid]).0, 0);
    // Each would wait for two seconds.
    let (told, seconds, why) = talk(&grid, "10.2.0.2", "20");
    assert_eq!(grid.exec("a1", &["kill", "-CONT", &pid]).0, 0);
    println!("20 connects while the daemon hangs: {seconds:.2} s");
    assert!(told == vec!["MADRIGAL"; 20] && seconds < 30.0 && why.contains("no-daemon: "), "{seconds}: {told:?} {why}");
    // When it wakes it notices that no program waits for its answers.
    until("its word", || (grid.run("a1", &["status"]).0 == 0).then_some(()));
    assert_eq!(grid.status("a1")["calls"], 0);
    grid.down();
}
