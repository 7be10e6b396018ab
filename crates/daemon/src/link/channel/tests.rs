//! Two channels over a pair of sockets: every byte arrives, the peer is known first, and any bytes of an unauthenticated peer are refused.

use std::path::PathBuf;

use madrigal_identity::{Authority, DAY, Name, Validity};
use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use super::*;

/// Two hosts of a grid, and their certificates.
struct Grid(PathBuf, [Credentials; 2]);

impl Grid {
    fn new(what: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("madrigal-channel-{}-{what}", std::process::id()));
        let name = |text| Name::parse(text).unwrap();
        let ca = Authority::create(&dir, &name("lyon"), Validity::seconds(DAY), true).unwrap();
        let host = |host| {
            let own = dir.join(host);
            ca.issue_host(&name(host), Validity::seconds(DAY)).unwrap().install(&own, true).unwrap();
            Credentials::load(&own).unwrap()
        };
        let both = [host("a1"), host("b1")];
        Self(dir, both)
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Two sockets with little room between them.
fn sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    for socket in [&one, &other] {
        sockopt::set_socket_send_buffer_size(socket, 4608).unwrap();
    }
    (one, other)
}

/// Runs both channels until nothing more comes. Returns what came.
fn exchange(ends: &mut [Channel; 2], sent: &[Vec<u8>; 2]) -> [Vec<u8>; 2] {
    let mut buffer = vec![0; 96 << 10];
    let (mut given, mut got) = ([0, 0], [Vec::new(), Vec::new()]);
    while got[0].len() < sent[1].len() || got[1].len() < sent[0].len() {
        for (n, end) in ends.iter_mut().enumerate() {
            let room = end.room().min(sent[n].len() - given[n]);
            end.out().extend(&sent[n][given[n]..given[n] + room]);
            given[n] += room;
            end.flush().unwrap();
            if let Recv::Bytes(count) = end.read(&mut buffer).unwrap() {
                got[n].extend(&buffer[..count]);
            }
        }
    }
    got
}

#[test]
fn all_bytes_arrive_and_both_know_who_is_there() {
    let grid = Grid::new("bytes");
    let (one, other) = sockets();
    let mut ends = [Channel::tls(one, &grid.1[0]).unwrap(), Channel::accepted(other, Some(&grid.1[1]))];
    let sent = [1, 3].map(|step| (0..1_000_000_u32).map(|n| ((n * step) >> 3) as u8).collect::<Vec<_>>());
    assert!(!ends[0].take_handshake_done());
    let got = exchange(&mut ends, &sent);
    assert!(got[0] == sent[1] && got[1] == sent[0]);
    for (n, name) in ["b1", "a1"].into_iter().enumerate() {
        assert!(ends[n].take_handshake_done() && !ends[n].take_handshake_done());
        assert_eq!(grid.1[n].judge(ends[n].chain().unwrap()).unwrap().name, name);
    }
    // Each knows the secret of the other's end, and they are two.
    let secret = |n: usize, ours| ends[n].secret(ours).unwrap();
    assert_eq!((secret(0, true), secret(0, false)), (secret(1, false), secret(1, true)));
    assert_ne!(secret(0, true), secret(0, false));
}

/// What waited is enciphered for the other end of the session; what is added goes as it is, and so does what the other end sends then.
#[test]
fn a_session_that_is_taken_leaves_a_plain_channel_behind_whole_records() {
    let grid = Grid::new("taken");
    let (one, other) = sockets();
    let mut ends = [Channel::tls(one, &grid.1[0]).unwrap(), Channel::accepted(other, Some(&grid.1[1]))];
    let mut buffer = vec![0; 96 << 10];
    ends[0].out().extend([1; 3000]);
    let mut greeting: Vec<u8> = Vec::new();
    while greeting.len() < 3000 {
        for end in &mut ends {
            end.flush().unwrap();
            if let Recv::Bytes(count) = end.read(&mut buffer).unwrap() {
                greeting.extend(&buffer[..count]);
            }
        }
    }
    // The accepting end answers, and has its session above connections from then on.
    ends[1].out().extend([2; 3000]);
    let mut sessions = vec![ends[1].take_session().unwrap()];
    ends[1].out().extend([3; 100]);
    let mut answer: Vec<u8> = Vec::new();
    while answer.len() < 3000 {
        ends[1].flush().unwrap();
        if let Recv::Bytes(count) = ends[0].read(&mut buffer).unwrap() {
            answer.extend(&buffer[..count]);
        }
    }
    assert!(greeting == [1; 3000] && answer == [2; 3000]);
    sessions.push(ends[0].take_session().unwrap());
    assert!(ends.iter().all(|end| !end.is_encrypted()));
    let mut plain: Vec<u8> = Vec::new();
    while plain.len() < 100 {
        ends[1].flush().unwrap();
        if let Recv::Bytes(count) = ends[0].read(&mut buffer).unwrap() {
            plain.extend(&buffer[..count]);
        }
    }
    assert_eq!(plain, [3; 100]);
    // Each session goes on behind its greeting.
    for (from, to) in [(0, 1), (1, 0)] {
        sessions[from].writer().write_all(b"more").unwrap();
        let mut wire = Vec::new();
        sessions[from].write_tls(&mut wire).unwrap();
        sessions[to].read_tls(&mut wire.as_slice()).unwrap();
        sessions[to].process_new_packets().unwrap();
        let mut got = [0; 4];
        std::io::Read::read_exact(&mut sessions[to].reader(), &mut got).unwrap();
        assert_eq!(&got, b"more");
    }
}

#[test]
fn nothing_is_sent_before_the_other_end_is_known() {
    let grid = Grid::new("first");
    let (one, other) = sockets();
    let mut end = Channel::tls(one, &grid.1[0]).unwrap();
    end.out().extend(b"who we are");
    assert_eq!(end.flush().map_err(|broken| broken.to_string()), Ok(false));
    let mut seen = vec![0; 4096];
    let Ok(Recv::Bytes(count)) = socket::recv(&other, &mut seen) else { panic!("no greeting of TLS") };
    assert_eq!(seen[..3], [HANDSHAKE, 3, 1]);
    assert!(!seen[..count].windows(10).any(|window| window == b"who we are"));
}

#[test]
fn who_asks_for_tls_where_there_is_none_is_told() {
    let grid = Grid::new("none");
    let (one, other) = sockets();
    let (mut one, mut other) = (Channel::tls(one, &grid.1[0]).unwrap(), Channel::accepted(other, None));
    one.flush().unwrap();
    let mut buffer = vec![0; 96 << 10];
    assert!(matches!(other.read(&mut buffer), Err(Broken::NoCertificate)));
    let reported = one.read(&mut buffer).unwrap_err().to_string();
    assert!(reported.contains("refused by the peer: handshake_failure"), "{reported}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Any bytes of an unauthenticated peer, in any pieces: nothing panics, little is stored, and the peer never passes as a host.
    #[test]
    fn any_bytes_are_refused_or_waited_for(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..600), 1..40),
        records in prop::collection::vec((20u8..26, 0u16..17000), 0..6),
        tls: bool,
    ) {
        let grid = fixed();
        let (mut unauthenticated, other) = sockets();
        let mut end = Channel::accepted(other, tls.then_some(&grid.1[1]));
        let mut buffer = vec![0; 96 << 10];
        let framed = records.iter().flat_map(|(kind, len)| {
            let mut record = vec![*kind, 3, 3];
            record.extend(len.to_be_bytes());
            record.resize(5 + usize::from(*len), 1);
            record.chunks(1000).map(<[u8]>::to_vec).collect::<Vec<_>>()
        });
        let mut plain = false;
        for piece in framed.chain(pieces) {
            let _ = socket::send(&mut unauthenticated, &piece);
            match end.read(&mut buffer) {
                Ok(Recv::Bytes(_)) => plain = !end.is_encrypted(),
                Ok(_) => {}
                Err(_) => break,
            }
            prop_assert!(plain || end.chain().is_none());
            prop_assert!(!end.take_handshake_done());
        }
    }
}

/// One grid for all cases.
fn fixed() -> &'static Grid {
    static GRID: std::sync::OnceLock<Grid> = std::sync::OnceLock::new();
    GRID.get_or_init(|| Grid::new("any"))
}
