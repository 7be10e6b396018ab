//! Links of several connections, by TLS of each (`stripe/tls`) and by one session above all of them (`tls/stripe`): who is let in, what passes on
//! the way, and that certificates hold for the link, whichever of its connections end.
//!
//! Features (docs/features.md): D3, I5, I8.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use madrigal_identity::{DAY, REVOKED, Which};
use serde_json::Value;

use crate::common::bed::{Bed, WATCHDOG, bytes, echo, exchange, free_port, life, name, until};
use crate::common::run;

const BELOW: &str = "stripe(4)/tls/tcp";
const ABOVE: &str = "tls/stripe(4)/tcp";
/// Before the body of a frame.
const HEAD: usize = 9;
/// The first frame of a further connection: it has no more than this.
const JOIN: usize = HEAD + 3000;

/// A connection that was carried: both of its sockets, and what went each way.
struct Carried {
    sockets: [TcpStream; 2],
    went: [Arc<Mutex<Vec<u8>>>; 2],
}

/// What lies between two daemons, and sees and keeps everything.
#[derive(Clone, Default)]
struct Between(Arc<Mutex<Vec<Carried>>>);

impl Between {
    fn start(port: u16, to: u16) -> Self {
        let (listener, between) = (TcpListener::bind(("127.0.0.1", port)).unwrap(), Self::default());
        let all = between.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let went = [(&near, &far), (&far, &near)].map(|(from, to)| carry(from, to));
                all.0.lock().unwrap().push(Carried { sockets: [near, far], went });
            }
        });
        between
    }

    /// What went each way by the nth connection, so far.
    fn went(&self, n: usize) -> Option<[Vec<u8>; 2]> {
        let all = self.0.lock().unwrap();
        Some(all.get(n)?.went.each_ref().map(|went| went.lock().unwrap().clone()))
    }

    /// Ends the nth connection.
    fn cut(&self, n: usize) {
        self.0.lock().unwrap()[n].sockets.iter().for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
    }
}

fn carry(from: &TcpStream, to: &TcpStream) -> Arc<Mutex<Vec<u8>>> {
    let went = Arc::new(Mutex::new(Vec::new()));
    let (kept, mut from, mut to) = (Arc::clone(&went), from.try_clone().unwrap(), to.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut buffer = [0; 65536];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            kept.lock().unwrap().extend_from_slice(&buffer[..count]);
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    went
}

/// a1 calls b1 through what lies between; the link is of that stack, which b1 alone was told, and has three connections once there is a stream.
struct Pair {
    bed: Bed,
    between: Between,
    /// Where b1 listens.
    port: u16,
    _forward: crate::common::Running,
    local: u16,
    stream: TcpStream,
}

impl Pair {
    fn new(what: &str, stack: &str, certificates: i64) -> Self {
        let (seen, port) = (free_port(), free_port());
        let grid = |at: u16| {
            format!(
                "[site.a]\nhosts.a1 = []\nallow = '1-65535'\n[site.b]\nhosts.b1 = '127.0.0.1:{at}'\nallow = '1-65535'\n"
            )
        };
        let mut bed = Bed::new(&format!("tls-{what}"), &grid(seen));
        bed.folder.file("b1.toml", 0o600, &grid(port));
        let between = Between::start(seen, port);
        ["a1", "b1"].iter().for_each(|host| bed.issue(host, life(certificates)));
        remember_three(&bed);
        bed.up_with("b1", "b1", "b1.toml", &["--stack", stack]);
        bed.up("a1");
        bed.linked("a1", "b1");
        let (forward, local) = bed.forward("a1", &format!("b1:{}", echo()));
        let stream = TcpStream::connect(("127.0.0.1", local)).unwrap();
        let mut pair = Self { bed, between, port, _forward: forward, local, stream };
        pair.talk();
        pair.has(3);
        for (host, peer) in [("a1", "b1"), ("b1", "a1")] {
            let link = &pair.bed.links(host, peer)[0];
            assert_eq!((&link["stack"], &link["tls"]), (&stack.into(), &true.into()), "{link:#}");
        }
        pair
    }

    fn talk(&mut self) {
        self.stream.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        self.stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
    }

    /// Both ends have so many connections, each of which was measured.
    fn has(&self, count: usize) {
        for (host, peer) in [("a1", "b1"), ("b1", "a1")] {
            until("connections", || {
                let links = self.bed.links(host, peer);
                let is_so =
                    |link: &Value| link["connections"] == count && link["each"].as_array().unwrap().len() == count;
                links.first().is_some_and(is_so).then_some(())
            });
        }
    }

    /// The numbers of the connections at an end.
    fn numbers(&self, host: &str, peer: &str) -> Vec<u64> {
        let links = self.bed.links(host, peer);
        let each = links.first().map(|link| link["each"].as_array().unwrap().clone()).unwrap_or_default();
        each.iter().map(|one| one["number"].as_u64().unwrap()).collect()
    }

    /// What b1 says to a connection that begins with these bytes.
    fn told(&self, begins: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        stream.write_all(begins).unwrap();
        let mut told = Vec::new();
        let _ = stream.read_to_end(&mut told);
        String::from_utf8_lossy(&told).into_owned()
    }

    /// The link is what it was, and nobody waits to be let in.
    fn goes_on(&mut self) {
        self.talk();
        until("nobody to wait", || (self.bed.status("b1")["unauthenticated"] == 0).then_some(()));
        for host in ["a1", "b1"] {
            let log = self.bed.log(host);
            assert!(!log.contains("no link with a1") && !log.contains("no link with b1"), "{log}");
        }
    }
}

/// The last link was best with three connections.
fn remember_three(bed: &Bed) {
    let file = bed.runtime("a1", "known.json");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(file.parent().unwrap()).unwrap();
    let mut file = std::fs::File::options().create_new(true).write(true).mode(0o600).open(file).unwrap();
    file.write_all(br#"{"version":1,"hosts":{"b1":{"ways":{"direct":{"connections":3}}}}}"#).unwrap();
}

/// One handshake, and records only by all connections: neither names nor bytes of programs.
pub(crate) fn one_session_is_above_all_connections() {
    let pair = Pair::new("above", ABOVE, DAY);
    let sent = bytes(5_000_000);
    assert!(exchange(&TcpStream::connect(("127.0.0.1", pair.local)).unwrap(), &sent) == sent);
    let all: Vec<[Vec<u8>; 2]> = (0..3).map(|n| pair.between.went(n).unwrap()).collect();
    assert_eq!(all[0][0][..2], [0x16, 3]);
    let total: usize = all.iter().flatten().map(Vec::len).sum();
    assert!(total > 10_000_000, "{total} bytes");
    for (n, went) in all.iter().enumerate() {
        assert!(
            n == 0 || went.iter().all(|went| went[..2] == [0xA7, 1] && went[HEAD - 1] == 3),
            "no greeting of one more"
        );
        for went in went {
            let has = |text: &[u8]| went.windows(text.len()).any(|window| window == text);
            assert!(!has(&sent[1_000_000..1_000_032]) && !has(b"\"host\"") && !has(b"host b1"), "{n}");
        }
    }
}

/// A secret that is guessed, or was shown by somebody else, lets nobody in, and costs the link nothing.
pub(crate) fn a_guessed_or_replayed_secret_is_refused() {
    let mut pair = Pair::new("replayed", ABOVE, DAY);
    let shown = pair.between.went(1).unwrap()[0][..JOIN].to_vec();
    let no_proof = "it does not prove that it is a connection of that link";
    let with = |at: usize| {
        let mut bytes = shown.clone();
        bytes[HEAD + at] ^= 1;
        bytes
    };
    // As it was shown; with another secret; for another number; for a link of another name; as the accepting end showed it.
    let number = u32::from_le_bytes(shown[HEAD + 16..HEAD + 20].try_into().unwrap());
    assert!(pair.told(&shown).contains(&format!("the link has a stream {number} already")), "{}", pair.told(&shown));
    assert!(pair.told(&with(20)).contains(no_proof) && pair.told(&with(51)).contains(no_proof));
    assert!(pair.told(&with(17)).contains(no_proof));
    assert!(pair.told(&with(0)).contains("its link is gone"));
    let answered = pair.between.went(1).unwrap()[1][..JOIN].to_vec();
    assert!(pair.told(&answered).contains(no_proof));
    // A frame that is too short, and what is no frame.
    assert!(pair.told(&[0xA7, 1, 4, 0, 0, 0, 0, 0, 3, 1, 2, 3, 4]).contains(no_proof));
    pair.has(3);
    pair.goes_on();
    // A description that is read again ends none of them, though they are plain by themselves.
    let before = pair.numbers("a1", "b1");
    for host in ["a1", "b1"] {
        assert_eq!(run(&mut pair.bed.on(host, &["grid", "reload"])).0, Some(0));
    }
    assert_eq!(pair.numbers("a1", "b1"), before);
    // Nor when the connection that showed it has ended.
    pair.between.cut(1);
    until("its end", || (!pair.numbers("b1", "a1").contains(&number.into())).then_some(()));
    assert!(pair.told(&shown).contains(&format!("the link has a stream {number} already")));
    pair.has(3);
    pair.goes_on();
    pair.bed.expect_log("b1", &["no link with an unauthenticated peer, 127.0.0.1:", no_proof]);
    // Nor on another link: that has another session.
    pair.bed.kill("a1");
    until("the link's end", || pair.bed.links("b1", "a1").is_empty().then_some(()));
    pair.bed.up("a1");
    pair.bed.linked("a1", "b1");
    assert!(pair.told(&shown).contains("its link is gone"));
}

/// What is changed on the way of one connection ends a link with one session: its bytes are delivered to nobody. Streams go on by another link.
pub(crate) fn what_joins_in_the_place_of_another_ends_the_link_and_says_nothing() {
    let mut pair = Pair::new("changed", ABOVE, DAY);
    // A header of a piece that is the next one for b1, far behind what came, and noise.
    let noise = [&(1u64 << 20).to_le_bytes()[..], &1000u32.to_le_bytes(), &[9, 1, 0, 0], &[7; 1000]].concat();
    pair.between.0.lock().unwrap()[1].sockets[1].write_all(&noise).unwrap();
    pair.bed.expect_log("b1", &["no link with a1, ", "stripe: the peer sent a header of kind 9"]);
    pair.talk();
}

/// The first connection ends before certificates are renewed, before they end, and before one is taken back.
pub(crate) fn certificates_hold_for_a_link_whose_first_connection_is_gone() {
    std::thread::scope(|scope| {
        for (what, stack) in [("gone-above", ABOVE), ("gone-below", BELOW)] {
            scope.spawn(move || certificates_hold(what, stack));
        }
    });
}

fn certificates_hold(what: &str, stack: &str) {
    let mut pair = Pair::new(what, stack, 20);
    let end = Instant::now() + Duration::from_secs(21);
    pair.between.cut(0);
    for (host, peer) in [("a1", "b1"), ("b1", "a1")] {
        until("the first one's end", || (!pair.numbers(host, peer).contains(&0)).then_some(()));
    }
    pair.has(3);
    pair.talk();
    ["a1", "b1"].iter().for_each(|host| pair.bed.issue(host, life(DAY)));
    pair.bed.expect_log("a1", &["renewed: host b1 of grid lab, serial "]);
    pair.bed.expect_log("b1", &["renewed: host a1 of grid lab, serial "]);
    until("the end of the first certificates", || (Instant::now() > end).then_some(()));
    pair.goes_on();
    pair.bed.ca.revoke(&Which::Host(name("a1"))).unwrap();
    std::fs::copy(pair.bed.folder.0.join("ca").join(REVOKED), pair.bed.config("b1").join(REVOKED)).unwrap();
    pair.bed.expect_log("b1", &["no link with a1, ", ": revoked: the certificate of host a1 of grid lab, serial "]);
    pair.bed.expect_log("a1", &["no link with b1, ", ": refused by b1: revoked: "]);
}

/// The two ends were told different things: no link, and both say why.
pub(crate) fn ends_that_insist_on_either_order_have_no_link() {
    let (mut bed, _) = Bed::two("order");
    ["a1", "b1"].iter().for_each(|host| bed.issue(host, life(DAY)));
    bed.up_with("b1", "b1", "grid.toml", &["--stack", BELOW]);
    bed.up_with("a1", "a1", "grid.toml", &["--stack", ABOVE]);
    let why = "`tls` is above `stripe` in `tls/stripe(4)/tcp` and below it in `stripe(4)/tls/tcp`: write the same at both ends";
    bed.expect_log("a1", &["no link with b1, ", why]);
    bed.expect_log("b1", &["no link with ", why]);
}
