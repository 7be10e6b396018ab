//! Real TLS connections: which peers are let in, which are not, and what each side reports.
//!
//! Features (docs/features.md): B9, B10, D7.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use common::{Grid, Pair, Raw, day, future, name, nobody, past};
use madrigal_identity::{Credentials, HOST, Kind, LOGIN, Refusal, USER, Which, peer};

/// Both ends as they see each other; `None`: it came to no connection.
fn meet(client: &Credentials, server: &Credentials) -> Option<[String; 2]> {
    let mut pair = Pair::new(client.client(), server.server());
    if pair.shake() != [None, None] {
        return None;
    }
    let seen = |end: &rustls::Connection| peer(end.peer_certificates().unwrap_or_default()).unwrap().to_string();
    pair.client.writer().write_all(b"hello").unwrap();
    assert_eq!(pair.shake(), [None, None]);
    let mut received = [0; 5];
    pair.server.reader().read_exact(&mut received).unwrap();
    assert_eq!(&received, b"hello");
    Some([seen(&pair.client), seen(&pair.server)])
}

/// What both sides report when `bad` connects to `good` and when `good` connects to `bad`: refuser first.
fn refused(good: &Credentials, bad: &Raw) -> [[Refusal; 2]; 2] {
    let [reported, own] = Pair::new(bad.client(), good.server()).shake();
    let [own_too, reported_too] = Pair::new(good.client(), bad.server()).shake();
    [[own.unwrap(), reported.unwrap()], [own_too.unwrap(), reported_too.unwrap()]]
}

/// Refused both ways for this reason, and reported by this alert.
fn expect(good: &Credentials, bad: &Raw, name: &str, words: &[&str], alert: &str) {
    for [own, reported] in refused(good, bad) {
        assert_eq!(own.name(), name, "{own}");
        assert!(words.iter().all(|word| own.to_string().contains(word)), "{own}");
        assert!(reported.to_string().starts_with(&format!("refused by the peer: {alert}: ")), "{reported}");
    }
}

#[test]
fn hosts_and_users_of_a_grid_meet() {
    let grid = Grid::new("lyon");
    let (a, b) = (grid.credentials("a1"), grid.credentials("b1"));
    let (dir, ann) = grid.logged_in("ann");
    assert_eq!(meet(&a, &b).unwrap(), ["host b1 of grid lyon", "host a1 of grid lyon"]);
    assert_eq!(meet(&ann, &b).unwrap(), ["host b1 of grid lyon", "user ann of grid lyon"]);
    // One login serves every site: it signs for daemons of its user.
    let there = grid.dir().join("there");
    madrigal_identity::issue_host(&dir, &name("c1"), day()).unwrap().install(&there, false).unwrap();
    let c = Credentials::load(&there).unwrap();
    assert_eq!(meet(&ann, &c).unwrap(), ["host c1 of ann, grid lyon", "user ann of grid lyon"]);
    let own = c.own();
    assert_eq!((own.kind, own.name.as_str(), own.user.as_deref()), (Kind::Host, "c1", Some("ann")));
    assert!(own.is("c1", Some("ann")).is_ok() && own.not_after <= ann.own().not_after);
    for (host, user) in [("c1", Some("bob")), ("c1", None), ("c2", Some("ann"))] {
        let refusal = own.is(host, user).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            format!("wrong peer: called host {host}, and host c1 of ann, grid lyon answered")
        );
    }
    assert!(
        b.own().is("b1", None).is_ok() && b.own().is("b1", Some("bob")).is_ok() && b.own().is("ann", None).is_err()
    );
    assert!(ann.own().is("ann", Some("ann")).is_err(), "a user is no host");
}

#[test]
fn another_authority_of_the_same_name_is_refused() {
    let (grid, other) = (Grid::new("lyon"), Grid::new("lyon"));
    let bad = Raw::read(&other.host("b1", day()).join(HOST));
    expect(
        &grid.credentials("a1"),
        &bad,
        "not-signed",
        &["host b1 of grid lyon", "not signed by the CA"],
        "unknown_ca",
    );
}

#[test]
fn another_grid_is_refused() {
    let (grid, other) = (Grid::new("lyon"), Grid::new("nice"));
    let bad = Raw::read(&other.host("b1", day()).join(HOST));
    expect(
        &grid.credentials("a1"),
        &bad,
        "wrong-grid",
        &["host b1 of grid nice", "this is grid lyon"],
        "access_denied",
    );
    let both = Pair::new(other.credentials("b2").client(), grid.credentials("a2").server()).shake();
    assert_eq!(both[0].as_ref().unwrap().name(), "wrong-grid", "{both:?}");
    assert!(matches!(both[1], Some(Refusal::ByPeer(_))), "{both:?}");
}

#[test]
fn too_late_and_too_early_are_refused() {
    let grid = Grid::new("lyon");
    let good = grid.credentials("a1");
    let late = Raw::read(&grid.host("b1", past()).join(HOST));
    expect(
        &good,
        &late,
        "expired",
        &["expired: the certificate of host b1 of grid lyon ended at 20", "UTC"],
        "certificate_expired",
    );
    let early = Raw::read(&grid.host("b1", future()).join(HOST));
    expect(&good, &early, "not-yet-valid", &["not yet valid", "host b1", "is a clock wrong?"], "certificate_expired");
}

#[test]
fn a_certificate_that_is_taken_back_is_refused_from_the_next_connection_on() {
    let grid = Grid::new("lyon");
    // This one reads the list in the authority's own directory.
    grid.ca.issue_host(&name("a1"), day()).unwrap().install(grid.dir(), false).unwrap();
    let good = Credentials::load(grid.dir()).unwrap();
    let dir = grid.host("b1", day());
    let (there, bad) = (Credentials::load(&dir).unwrap(), Raw::read(&dir.join(HOST)));
    let (ann_dir, ann) = grid.logged_in("ann");
    assert!(meet(&there, &good).is_some() && meet(&ann, &good).is_some());
    let old = std::fs::read(grid.dir().join("revoked.pem")).unwrap();

    let taken = grid.ca.revoke(&Which::Host(name("b1"))).unwrap();
    assert_eq!(taken.len(), 1);
    let words = ["revoked: the certificate of host b1 of grid lyon", &taken[0].serial];
    expect(&good, &bad, "revoked", &words, "certificate_revoked");
    assert!(meet(&ann, &good).is_some());

    // An identity takes its logins along; a login has a number of its own.
    let login = Raw::read(&ann_dir.join(USER));
    grid.ca.revoke(&Which::Serial(ann.own().serial)).unwrap();
    expect(&good, &login, "revoked", &["user ann"], "certificate_revoked");
    madrigal_identity::login(&ann_dir, None, 3600).unwrap();
    assert!(meet(&ann, &good).is_some(), "a new login is shown at once");
    grid.ca.revoke(&Which::User(name("ann"))).unwrap();
    expect(&good, &Raw::read(&ann_dir.join(USER)), "revoked", &["identity ann"], "certificate_revoked");

    // Neither an older list nor a lost one lets a peer in again.
    for bytes in [Some(old), Some(b"noise".to_vec()), None] {
        let path = grid.dir().join("revoked.pem");
        std::fs::remove_file(&path).unwrap_or_default();
        bytes.into_iter().for_each(|bytes| std::fs::write(&path, bytes).unwrap());
        assert_eq!(refused(&good, &bad)[0][0].name(), "revoked");
    }
}

#[test]
fn whoever_shows_nothing_is_refused() {
    let good = Grid::new("lyon").credentials("a1");
    let [reported, own] = Pair::new(nobody(), good.server()).shake();
    assert_eq!(own, Some(Refusal::NoCertificate));
    assert!(
        reported.unwrap().to_string().contains("certificate_required: it asks for a certificate, and we have none")
    );
    assert_eq!(peer(&[]), Err(Refusal::NoCertificate));
}

/// The first message of a client of TLS 1.2 (RFC 5246, 7.4.1.2): ECDHE with ECDSA on P-256, and no later version.
fn older_hello() -> Vec<u8> {
    let extensions =
        [[0x00, 0x0a, 0, 4, 0, 2, 0, 0x17].as_slice(), &[0x00, 0x0b, 0, 2, 1, 0], &[0x00, 0x0d, 0, 4, 0, 2, 4, 3]]
            .concat();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0, 0, u8::try_from(extensions.len()).unwrap()]);
    body.extend(extensions);
    let len = u8::try_from(body.len()).unwrap();
    [&[22, 3, 1, 0, len + 4, 1, 0, 0, len], &*body].concat()
}

#[test]
fn older_tls_is_refused() {
    let good = Grid::new("lyon").credentials("a1");
    let mut server = rustls::ServerConnection::new(good.server()).unwrap();
    server.read_tls(&mut &*older_hello()).unwrap();
    let own = Refusal::of(&server.process_new_packets().unwrap_err());
    assert_eq!(own.name(), "protocol", "{own}");
    let mut reported = Vec::new();
    server.write_tls(&mut reported).unwrap();
    // A fatal alert, protocol_version (70).
    assert_eq!((reported[0], &reported[5..]), (21, [2, 70].as_slice()), "{own}");
    let reported = Refusal::ByPeer(rustls::AlertDescription::from(70)).to_string();
    assert!(reported.contains("protocol_version: it speaks TLS 1.3 only"), "{reported}");
}

/// Signs by hand what our own signers would not.
fn forge(by: &Raw, signer: &str, uri: &str, serial: u64) -> Raw {
    use rcgen::{CertificateParams, DnType, Issuer, KeyPair, SanType, SerialNumber};
    let key = |key: &Raw| KeyPair::from_pkcs8_der_and_sign_algo(&key.key, &rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let mut above = CertificateParams::default();
    above.distinguished_name = rcgen::DistinguishedName::new();
    above.distinguished_name.push(DnType::CommonName, signer);
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
    params.serial_number = Some(SerialNumber::from(serial));
    let own = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&own, &Issuer::new(above, key(by))).unwrap();
    let mut chain = vec![certificate.der().clone()];
    chain.extend(by.chain.iter().cloned());
    Raw { chain, key: own.serialize_der().into() }
}

#[test]
fn nobody_signs_more_than_it_may() {
    let grid = Grid::new("lyon");
    let good = grid.credentials("a1");
    let (dir, _) = grid.logged_in("ann");
    let (identity, login) = (Raw::read(&dir.join("identity.pem")), Raw::read(&dir.join(LOGIN)));
    let host = Raw::read(&grid.host("b1", day()).join(HOST));
    let ways = [
        (&identity, "identity ann of grid lyon", "madrigal://lyon/host/b2", "not-allowed"),
        (&identity, "identity ann of grid lyon", "madrigal://lyon/user/ann", "not-allowed"),
        (&login, "login ann of grid lyon", "madrigal://lyon/user/bob", "not-allowed"),
        (&login, "login ann of grid lyon", "madrigal://lyon/identity/bob", "not-allowed"),
        (&login, "login ann of grid lyon", "madrigal://nice/user/ann", "wrong-grid"),
        (&login, "login ann of grid lyon", "https://lyon/user/ann", "malformed"),
        (&login, "login ann of grid lyon", "madrigal://lyon/user/ann/x", "malformed"),
    ];
    for (by, signer, uri, name) in ways {
        for [own, reported] in refused(&good, &forge(by, signer, uri, 7)) {
            assert_eq!(own.name(), name, "{uri} by {signer}: {own}");
            assert!(matches!(reported, Refusal::ByPeer(_)), "{reported}");
        }
    }
    // A host's certificate signs nothing at all, whatever webpki calls that.
    let by_host = refused(&good, &forge(&host, "host b1 of grid lyon", "madrigal://lyon/host/b2", 7));
    assert!(by_host.iter().all(|[own, _]| !matches!(own, Refusal::ByPeer(_) | Refusal::Protocol(_))), "{by_host:?}");
    // What may sign cannot connect.
    for signer in [&identity, &login] {
        for [own, _] in refused(&good, signer) {
            assert_eq!(own.name(), "not-allowed", "{own}");
        }
    }
}

#[test]
fn a_chain_with_something_beside_the_way_is_refused() {
    let grid = Grid::new("lyon");
    let good = grid.credentials("a1");
    let login = Raw::read(&grid.logged_in("ann").0.join(LOGIN));
    let mut host = Raw::read(&grid.host("b1", day()).join(HOST));
    // Would make the host one of ann's, if it were believed.
    host.chain.push(login.chain[0].clone());
    expect(&good, &host, "not-allowed", &["comes with others that did not sign it"], "unsupported_certificate");
    host.chain.extend(login.chain.iter().cloned().cycle().take(5));
    expect(&good, &host, "malformed", &["a chain of 7 certificates"], "bad_certificate");
}

#[test]
fn what_expires_while_it_runs_ends_cleanly_and_renews() {
    let grid = Grid::new("lyon");
    let good = grid.credentials("a1");
    let dir = grid.user("ann", day());
    madrigal_identity::login(&dir, None, 2).unwrap();
    let ann = Credentials::load(&dir).unwrap();
    let first = ann.own();
    while madrigal_identity::Moment::now() <= first.not_after {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let [reported, own] = Pair::new(ann.client(), good.server()).shake();
    assert_eq!(own.unwrap().name(), "expired");
    assert!(reported.unwrap().to_string().contains("certificate_expired: our certificate has expired"));
    let error = Credentials::load(&dir).err().unwrap().to_string();
    assert!(error.contains("user.pem: expired: ") && error.ends_with("type madrigal login"), "{error}");
    let renewed = madrigal_identity::renew(&dir).unwrap().unwrap();
    assert_eq!(madrigal_identity::renew(&dir).unwrap(), None);
    assert!(meet(&ann, &good).is_some(), "what runs takes up the new login");
    assert_eq!(ann.own(), renewed);
}

#[test]
fn over_real_sockets_too() {
    let grid = Grid::new("lyon");
    let (a, b) = (grid.credentials("a1"), grid.credentials("b1"));
    let other = Grid::new("nice").credentials("b1");
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let serve = |mut socket: TcpStream| {
            let mut tls = rustls::ServerConnection::new(a.server()).unwrap();
            while tls.is_handshaking() {
                if let Err(error) = tls.complete_io(&mut socket) {
                    return Err(error.to_string());
                }
            }
            let seen = peer(tls.peer_certificates().unwrap()).unwrap();
            rustls::Stream::new(&mut tls, &mut socket).write_all(seen.to_string().as_bytes()).unwrap();
            tls.send_close_notify();
            tls.complete_io(&mut socket).unwrap();
            Ok(seen)
        };
        listener.incoming().take(2).map(|socket| serve(socket.unwrap())).collect::<Vec<_>>()
    });
    let call = |with: &Credentials| {
        let mut socket = TcpStream::connect(at).unwrap();
        let mut tls = rustls::ClientConnection::new(with.client(), madrigal_identity::server_name()).unwrap();
        let mut text = String::new();
        rustls::Stream::new(&mut tls, &mut socket).read_to_string(&mut text).map(|_| text)
    };
    assert_eq!(call(&b).unwrap(), "host b1 of grid lyon");
    assert!(call(&other).is_err());
    let served = server.join().unwrap();
    assert_eq!(served[0].as_ref().unwrap().serial, b.own().serial);
    assert!(served[1].is_err());
}
