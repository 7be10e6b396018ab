use std::path::PathBuf;

use madrigal_identity::{Authority, DAY, Name, Validity, login};

use super::*;
use crate::contract::ONLY;

/// Directories with a certificate each, of one grid or of another; removed at the end.
struct Grid {
    dir: PathBuf,
    authority: Authority,
}

impl Grid {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("madrigal-tls-{}-{name}", std::process::id()));
        let life = Validity::seconds(DAY);
        let authority = Authority::create(&dir, &word(name), life, false).expect("a CA");
        Self { dir, authority }
    }

    fn host(&self, name: &str) -> Credentials {
        let issued = self.authority.issue_host(&word(name), Validity::seconds(DAY)).expect("a certificate");
        self.installed(name, |dir| issued.install(dir, false).map(drop).expect("is installed"))
    }

    fn user(&self, name: &str) -> Credentials {
        let issued = self.authority.issue_user(&word(name), Validity::seconds(DAY)).expect("an identity");
        self.installed(name, |dir| {
            issued.install(dir, false).map(drop).expect("is installed");
            login(dir, None, DAY).map(drop).expect("logs in");
        })
    }

    fn installed(&self, name: &str, install: impl Fn(&std::path::Path)) -> Credentials {
        let dir = self.dir.join(name);
        install(&dir);
        Credentials::load(&dir).expect("credentials")
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn word(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

/// What each end finds: nothing wrong, or what.
type Outcome = [Result<(), Broken>; 2];

/// Carries everything that two ends have for each other; `change` may change what the one sends.
fn exchange(ends: &mut [Tls; 2], change: &mut dyn FnMut(usize, &mut Vec<u8>)) -> Outcome {
    let mut outcome = [Ok(()), Ok(())];
    for _ in 0..20 {
        for from in 0..2 {
            let mut wire = Vec::new();
            ends[from].transmit(0, ONLY, 1 << 20, &mut wire);
            change(from, &mut wire);
            if outcome[1 - from].is_ok() {
                outcome[1 - from] = ends[1 - from].receive(0, ONLY, &wire).map(drop);
            }
        }
    }
    outcome
}

fn ends(connecting: &Credentials, accepting: &Credentials) -> [Tls; 2] {
    let end = |credentials, role| Tls::new(credentials, role).expect("an end");
    [end(connecting, Role::Connecting), end(accepting, Role::Accepting)]
}

fn met(connecting: &Credentials, accepting: &Credentials) -> ([Tls; 2], Outcome) {
    let mut ends = ends(connecting, accepting);
    let outcome = exchange(&mut ends, &mut |_, _| {});
    (ends, outcome)
}

#[test]
fn ends_of_one_user_meet_and_hosts_with_everybody() {
    let grid = Grid::new("one");
    let (ann, other, a1) = (grid.user("ann"), grid.user("bob"), grid.host("a1"));
    for (connecting, accepting) in [(&ann, &ann), (&a1, &ann), (&other, &a1), (&a1, &a1)] {
        let (mut ends, outcome) = met(connecting, accepting);
        assert_eq!(outcome, [Ok(()), Ok(())]);
        assert!(ends.iter().all(Adapter::is_ready));
        ends[0].write(b"question");
        ends[1].write(b"answer");
        ends.iter_mut().for_each(Adapter::finish);
        assert_eq!(exchange(&mut ends, &mut |_, _| {}), [Ok(()), Ok(())]);
        assert_eq!((ends[0].front(), ends[1].front()), (&b"answer"[..], &b"question"[..]));
        ends.iter_mut().for_each(|end| end.consume(end.front().len()));
        assert!(ends.iter().all(|end| end.is_at_end() && end.is_flushed()));
    }
}

/// Neither end of such a link is ready, ever; and each says why, or hears it.
fn never_meet(connecting: &Credentials, accepting: &Credentials, why: [&str; 2]) {
    let (ends, outcome) = met(connecting, accepting);
    for (end, (outcome, why)) in ends.iter().zip(outcome.iter().zip(why)) {
        let told = outcome.as_ref().expect_err(why).to_string();
        assert!(told.contains(why), "{told}: not {why}");
        assert!(!end.is_ready() && end.front().is_empty());
    }
}

#[test]
fn others_are_told_apart_and_told_why() {
    let (grid, other) = (Grid::new("two"), Grid::new("three"));
    let (ann, bob, stranger) = (grid.user("ann"), grid.user("bob"), other.user("ann"));
    never_meet(&bob, &ann, ["another user: the peer is user ann", "another user: the peer is user bob"]);
    never_meet(&stranger, &ann, ["wrong grid: the peer is user ann of grid two", "refused by the peer"]);
}

#[test]
fn what_is_changed_on_the_way_ends_the_link_and_what_is_cut_off_is_no_end() {
    let grid = Grid::new("four");
    let ann = grid.user("ann");
    let (mut ends, _) = met(&ann, &ann);
    ends[0].write(b"pay one");
    ends[0].finish();
    let outcome = exchange(&mut ends, &mut |from, wire| {
        if let (0, Some(last)) = (from, wire.last_mut()) {
            *last ^= 1;
        }
    });
    let why = outcome[1].as_ref().expect_err("it was changed").to_string();
    assert!(why.starts_with("tls: no TLS 1.3 of a grid"), "{why}");
    let (mut ends, _) = met(&ann, &ann);
    ends[0].write(&[7; 100_000]);
    let _ = exchange(&mut ends, &mut |_, _| {});
    ends[1].consume(ends[1].front().len());
    assert!(!ends[1].is_at_end());
}

#[test]
fn noise_and_long_handshakes_are_refused() {
    let grid = Grid::new("five");
    let ann = grid.user("ann");
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 64]] {
        let mut end = Tls::new(&ann, Role::Accepting).expect("an end");
        assert!(end.receive(0, ONLY, noise).is_err());
    }
    // A handshake message whose length is told as 16 MiB never comes to its end.
    let mut end = Tls::new(&ann, Role::Accepting).expect("an end");
    let record = [&[22, 3, 1, 0x40, 0][..], &[1, 0xff, 0xff, 0xff], &[0; 0x4000 - 4]].concat();
    let refused = (0..10).find_map(|_| end.receive(0, ONLY, &record).err()).expect("refused");
    assert_eq!(refused.adapter(), "tls");
}
