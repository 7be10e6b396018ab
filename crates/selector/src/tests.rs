//! The table: pair x preferences -> path and reasons.

use super::*;

const SAME: Pair = Pair { same_process: true, same_host: true, same_user: true };
const HOST: Pair = Pair { same_process: false, ..SAME };
const OTHER_USER: Pair = Pair { same_user: false, ..HOST };
const FAR: Pair = Pair { same_process: false, same_host: false, same_user: true };

fn drivers() -> Vec<Candidate> {
    vec![
        Candidate::new("loopback", Reach::Process, true),
        Candidate::new("shm", Reach::Host, true),
        Candidate::new("tcp", Reach::Network, false),
    ]
}

fn ask(pair: Pair, methods: &str, change: impl Fn(&mut Candidate)) -> String {
    let mut candidates = drivers();
    candidates.iter_mut().for_each(change);
    let preferences = Preferences { methods: Methods::parse(methods).unwrap() };
    match select(pair, &candidates, &preferences) {
        Ok(choice) => choice.to_string(),
        Err(none) => none.to_string(),
    }
}

fn keep(_: &mut Candidate) {}

fn no_shm(candidate: &mut Candidate) {
    if candidate.driver == "shm" {
        candidate.unusable = Some("/dev/shm is full".to_owned());
    }
}

fn only_tcp_offered(candidate: &mut Candidate) {
    candidate.offered = candidate.driver == "tcp";
}

type Change = fn(&mut Candidate);

const ROWS: &[(Pair, &str, Change, &str)] = &[
    (
        SAME,
        "^none",
        keep,
        "loopback, because it is the best of 3 possible; not shm: loopback is better; not tcp: loopback is better",
    ),
    (
        HOST,
        "^none",
        keep,
        "shm, because it is the best of 2 possible; not loopback: the processes are different; not tcp: shm is better",
    ),
    (
        HOST,
        "shm,tcp",
        keep,
        "shm, because it is the best of 2 possible; not loopback: the preferences forbid it; not tcp: shm is better",
    ),
    (
        HOST,
        "tcp,shm",
        keep,
        "tcp, because it is the best of 2 possible; not loopback: the preferences forbid it; not shm: tcp is better",
    ),
    (
        HOST,
        "^shm",
        keep,
        "tcp, because it is the best of 1 possible; not loopback: the processes are different; not shm: the preferences \
             forbid it",
    ),
    (
        OTHER_USER,
        "shm,tcp",
        keep,
        "tcp, because it is the best of 1 possible; not loopback: the preferences forbid it; not shm: the processes belong \
             to different users",
    ),
    (
        FAR,
        "^none",
        keep,
        "tcp, because it is the best of 1 possible; not loopback: the processes are different; not shm: the processes are \
             on different hosts",
    ),
    (
        HOST,
        "shm,tcp",
        no_shm,
        "tcp, because it is the best of 1 possible; not loopback: the preferences forbid it; not shm: it cannot work here: \
             /dev/shm is full",
    ),
    (
        HOST,
        "^none",
        only_tcp_offered,
        "tcp, because it is the best of 1 possible; not loopback: the processes are different; not shm: the peer does not \
             offer it",
    ),
    (
        FAR,
        "shm",
        keep,
        "no path; not loopback: the preferences forbid it; not shm: the processes are on different hosts; not tcp: the \
             preferences forbid it",
    ),
];

#[test]
fn the_table() {
    for (pair, methods, change, expected) in ROWS {
        assert_eq!(ask(*pair, methods, change), *expected, "{pair:?} {methods}");
    }
}

#[test]
fn no_candidates_is_no_path() {
    assert_eq!(select(SAME, &[], &Preferences::default()).unwrap_err().to_string(), "no path");
}

#[test]
fn equal_candidates_keep_their_order() {
    let twins = [Candidate::new("a", Reach::Network, false), Candidate::new("b", Reach::Network, false)];
    assert_eq!(select(FAR, &twins, &Preferences::default()).unwrap().path.to_string(), "a");
}
