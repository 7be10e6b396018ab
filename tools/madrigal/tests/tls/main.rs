//! Encrypted links between daemons: accepted and refused peers, the reasons that both sides report, and what unauthenticated peers can do.
//! Real processes, real sockets, certificates that end while links are up.
//!
//! Features (docs/features.md): D3, B18.

#[path = "../common/mod.rs"]
mod common;

mod connections;
mod failover;
mod many;
mod unauthenticated;

use madrigal_tests::trials::need;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use common::bed::{Bed, WATCHDOG, bytes, echo, exchange, free_port, life, name, until};
use common::run;
use madrigal_daemon::LINK_VERSION;
use madrigal_identity::{Authority, DAY, REVOKED, Which};

madrigal_tests::trials![
    bytes_go_both_ways_by_tls,
    a_certificate_that_ends_ends_its_links_with_the_reason,
    who_is_revoked_is_shut_out_at_once,
    another_grid_is_refused,
    who_answers_must_be_who_was_called,
    nobody_passes_for_another_host,
    who_shows_no_certificate_and_who_speaks_plainly_is_refused,
    without_a_certificate_no_daemon_starts_that_needs_one,
    a_server_that_stops_in_the_handshake_is_given_up,
    a_renewed_certificate_keeps_links_and_streams,
    connections::one_session_is_above_all_connections,
    connections::a_guessed_or_replayed_secret_is_refused,
    connections::what_joins_in_the_place_of_another_ends_the_link_and_says_nothing,
    connections::certificates_hold_for_a_link_whose_first_connection_is_gone,
    connections::ends_that_insist_on_either_order_have_no_link,
    failover::a_killed_relay_loses_no_byte_while_there_is_another_one,
    failover::a_killed_relay_loses_nothing_of_streams_that_stand_still,
    failover::a_killed_peer_is_a_reset_and_no_other_way_is_looked_for_in_vain,
    failover::streams_outlive_the_connection_they_go_by,
    many::two_thousand_streams_have_equal_shares_and_bounded_memory,
    unauthenticated::unauthenticated_peers_change_nothing,
    unauthenticated::a_host_gets_in_while_unauthenticated_peers_crowd_the_port,
];

fn bytes_go_both_ways_by_tls() {
    let (mut bed, _) = Bed::two("bytes");
    for host in ["a1", "b1"] {
        bed.issue(host, life(DAY));
        bed.up(host);
    }
    bed.linked("a1", "b1");
    bed.linked("b1", "a1");
    let (port, sent) = (echo(), bytes(5_000_000));
    for (host, to) in [("a1", "b1"), ("b1", "a1")] {
        let (_forward, local) = bed.forward(host, &format!("{to}:{port}"));
        let stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
        assert!(exchange(&stream, &sent) == sent, "{host} to {to}");
    }
    bed.expect_log("a1", &["link with b1, to 127.0.0.1:", "tls, host b1 of grid lab, serial ", ", until "]);
    bed.expect_log("b1", &["link with a1, from 127.0.0.1:", "tls, host a1 of grid lab, serial "]);
}

fn a_certificate_that_ends_ends_its_links_with_the_reason() {
    let (mut bed, _) = Bed::two("expired");
    bed.issue("b1", life(DAY));
    bed.issue("a1", life(10));
    let port = echo();
    bed.up("b1");
    bed.up("a1");
    bed.linked("a1", "b1");
    let (_forward, local) = bed.forward("a1", &format!("b1:{port}"));
    let mut stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    // Both report why; the program sees a reset.
    bed.expect_log("b1", &["no link with a1, ", ": expired: the certificate of host a1 of grid lab ended at "]);
    bed.expect_log("a1", &["no link with b1, ", ": refused by b1: expired: the certificate of host a1 "]);
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    // And it does not come in again.
    bed.expect_log(
        "b1",
        &["no link with an unauthenticated peer, 127.0.0.1:", ": expired: the certificate of host a1 "],
    );
    bed.expect_log(
        "a1",
        &["no link with b1, ", "refused by the peer: certificate_expired: our certificate has expired"],
    );
    until("the reason in the status", || {
        let told = bed.peer("a1", "b1")["why"].as_str().unwrap_or_default().to_owned();
        told.contains("certificate_expired").then_some(())
    });
    // Another one is taken up without a restart.
    bed.issue("a1", life(DAY));
    bed.linked("a1", "b1");
}

fn who_is_revoked_is_shut_out_at_once() {
    let (mut bed, _) = Bed::two("revoked");
    for host in ["a1", "b1"] {
        bed.issue(host, life(DAY));
        bed.up(host);
    }
    bed.linked("b1", "a1");
    assert_eq!(bed.ca.revoke(&Which::Host(name("a1"))).unwrap().len(), 1);
    std::fs::copy(bed.folder.0.join("ca").join(REVOKED), bed.config("b1").join(REVOKED)).unwrap();
    bed.expect_log("b1", &["no link with a1, ", ": revoked: the certificate of host a1 of grid lab, serial "]);
    bed.expect_log("a1", &["no link with b1, ", ": refused by b1: revoked: "]);
    bed.expect_log("b1", &["no link with an unauthenticated peer, ", ": revoked: the certificate of host a1 "]);
    bed.expect_log("a1", &["refused by the peer: certificate_revoked: our certificate was revoked"]);
}

/// Gives `a1` the certificate of another CA.
fn foreign(bed: &Bed, grid: &str) {
    let other = Authority::create(&bed.folder.0.join("other"), &name(grid), life(DAY), false).unwrap();
    other.issue_host(&name("a1"), life(DAY)).unwrap().install(&bed.config("a1"), true).unwrap();
}

fn another_grid_is_refused() {
    for (grid, here, there) in [
        // The dialling end checks the other's certificate first, and reports why it closes the link.
        ("nice", "wrong grid: the peer is host b1 of grid lab, and this is grid nice", "access_denied"),
        ("lab", "not signed by the CA of grid lab: the certificate of host b1", "unknown_ca"),
    ] {
        let (mut bed, _) = Bed::two(&format!("other-{grid}"));
        bed.issue("b1", life(DAY));
        foreign(&bed, grid);
        bed.up("b1");
        bed.up("a1");
        bed.expect_log("a1", &["no link with b1, 127.0.0.1:", here]);
        bed.expect_log("b1", &["no link with an unauthenticated peer, 127.0.0.1:", "refused by the peer: ", there]);
        let (status, _, err) = run(&mut bed.on("a1", &["connect", "b1:1"]));
        assert!(status == Some(1) && err.contains(here), "{err}");
        assert_eq!(bed.peer("b1", "a1")["links"].as_array().unwrap().len(), 0);
    }
}

fn who_answers_must_be_who_was_called() {
    let port = free_port();
    let grid = format!(
        "[site.a]\nhosts.a1 = []\n[site.b]\nhosts = {{ b1 = '127.0.0.1:{port}', c1 = [] }}\nallow = '1-65535'\n"
    );
    let mut bed = Bed::new("tls-wrong-peer", &grid);
    // At the address of b1 sits c1.
    bed.folder.file(
        "other.toml",
        0o600,
        &format!("[site.a]\nhosts.a1 = []\n[site.b]\nhosts = {{ b1 = [], c1 = '127.0.0.1:{port}' }}\n"),
    );
    bed.issue("a1", life(DAY));
    bed.issue("c1", life(DAY));
    bed.up_as("c1", "c1", "other.toml");
    bed.up("a1");
    let why = "wrong peer: called host b1, and host c1 of grid lab answered";
    bed.expect_log("a1", &["no link with b1, 127.0.0.1:", why]);
    bed.expect_log("c1", &["no link with an unauthenticated peer, 127.0.0.1:", "refused: ", why]);
    assert_eq!(bed.status("c1")["peers"][0]["links"].as_array().unwrap().len(), 0);
}

fn nobody_passes_for_another_host() {
    let port = free_port();
    let grid = format!("[site.a]\nhosts = {{ a1 = [], c1 = [] }}\n[site.b]\nhosts.b1 = '127.0.0.1:{port}'\n");
    let mut bed = Bed::new("tls-impostor", &grid);
    bed.issue("b1", life(DAY));
    bed.issue("a1", life(DAY));
    bed.up("b1");
    // It has the certificate of a1, and claims to be c1.
    bed.up_as("a1", "c1", "grid.toml");
    let why = "it says it is c1, and its certificate is that of host a1 of grid lab";
    bed.expect_log("b1", &["no link with an unauthenticated peer, 127.0.0.1:", why]);
    bed.expect_log("a1", &["no link with b1, 127.0.0.1:", "refused: ", why]);
    assert_eq!(bed.peer("b1", "c1")["links"].as_array().unwrap().len(), 0);
}

fn who_shows_no_certificate_and_who_speaks_plainly_is_refused() {
    const NOBODY: &str = "import socket, ssl, sys\n\
        c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE\n\
        s = c.wrap_socket(socket.create_connection(('127.0.0.1', int(sys.argv[1]))))\n\
        print(s.version())\n\
        try: print(s.recv(99))\n\
        except OSError as e: print(e)\n";
    let python = need("python3");
    let (mut bed, port) = Bed::two("nobody");
    bed.issue("b1", life(DAY));
    bed.up("b1");
    let (_, out, err) = run(Command::new(python).args(["-c", NOBODY, &port.to_string()]));
    assert!(out.contains("TLSv1.3") && out.to_lowercase().contains("certificate required"), "{out}{err}");
    bed.expect_log("b1", &["no link with an unauthenticated peer, 127.0.0.1:", "the peer has no certificate"]);
    let body = format!(r#"{{"version":{LINK_VERSION},"host":"a1","instance":1,"number":1}}"#);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    stream.write_all(&[&[0xA7, 1, body.len() as u8, 0, 0, 0, 0, 0, 1], body.as_bytes()].concat()).unwrap();
    let mut told = Vec::new();
    stream.read_to_end(&mut told).unwrap();
    let why = "between b1 and a1 links must be enciphered";
    assert!(String::from_utf8_lossy(&told).contains(why), "{told:?}");
    bed.expect_log("b1", &["no link with an unauthenticated peer, ", why]);
}

fn without_a_certificate_no_daemon_starts_that_needs_one() {
    let (mut bed, _) = Bed::two("none");
    let grid = bed.folder.path("grid.toml");
    let up = |bed: &Bed, host: &str| run(&mut bed.on(host, &["up", "--foreground", "--grid", &grid, "--host", host]));
    for host in ["a1", "b1"] {
        let (status, _, err) = up(&bed, host);
        let told = err.contains("have to be enciphered") && err.contains("ca.pem: there is no certificate of a grid");
        assert!(status == Some(2) && told, "{err}");
    }
    bed.issue("a1", life(-1));
    let (status, _, err) = up(&bed, "a1");
    assert!(status == Some(2) && err.contains("expired: the certificate of host a1 of grid lab ended at"), "{err}");
    // A login gives its host a certificate, which only its own user's daemons believe.
    let dir = bed.config("a1");
    std::fs::remove_dir_all(&dir).unwrap();
    bed.ca.issue_user(&name("ann"), life(DAY)).unwrap().install(&dir, false).unwrap();
    madrigal_identity::login(&dir, None, 3600).unwrap();
    bed.issue("b1", life(DAY));
    bed.up("b1");
    bed.up("a1");
    bed.expect_log(
        "b1",
        &[
            "no link with an unauthenticated peer, ",
            "only a login of ann vouches for host a1 of ann, grid lab, and this daemon is not ann's",
        ],
    );
}

fn a_server_that_stops_in_the_handshake_is_given_up() {
    let (mut bed, port) = Bed::two("mute");
    bed.issue("a1", life(DAY));
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    bed.up("a1");
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(WATCHDOG)).unwrap();
    // It begins by TLS, and has not sent its identity.
    let mut first = Vec::new();
    stream.read_to_end(&mut first).unwrap();
    assert_eq!(first[..2], [0x16, 3]);
    assert!(!first.windows(6).any(|word| word == b"\"host\""), "{first:?}");
    bed.expect_log("a1", &["no link with b1, ", "no greeting in time"]);
}

fn a_renewed_certificate_keeps_links_and_streams() {
    let (mut bed, _) = Bed::two("renewed");
    let port = echo();
    for host in ["a1", "b1"] {
        bed.issue(host, life(15));
        bed.up(host);
    }
    bed.linked("a1", "b1");
    let (_forward, local) = bed.forward("a1", &format!("b1:{port}"));
    let mut stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
    let mut talk = || {
        stream.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
    };
    talk();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(16);
    for host in ["a1", "b1"] {
        bed.issue(host, life(DAY));
    }
    bed.expect_log("a1", &["renewed: host b1 of grid lab, serial "]);
    bed.expect_log("b1", &["renewed: host a1 of grid lab, serial "]);
    // Until the first ones have ended, and judges have come by.
    until("the end of the first certificates", || (std::time::Instant::now() > end).then_some(()));
    bed.expect_log("b1", &["link with a1"]);
    talk();
    for host in ["a1", "b1"] {
        assert!(!bed.log(host).contains("no link"), "{}", bed.log(host));
    }
    // And judged they go on being.
    bed.ca.revoke(&Which::Host(name("a1"))).unwrap();
    std::fs::copy(bed.folder.0.join("ca").join(REVOKED), bed.config("b1").join(REVOKED)).unwrap();
    bed.expect_log("b1", &["no link with a1, ", ": revoked: the certificate of host a1 of grid lab, serial "]);
}
