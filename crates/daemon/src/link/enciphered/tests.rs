//! Links with one session above all connections, over connections that are queues here: with compression and without, by one connection and by
//! several. Every byte arrives, and none is to be read on the way.

use madrigal_adapters::contract::Lane;
use madrigal_adapters::stripe::count::Congestion;
use madrigal_identity::{Authority, DAY, Name, Validity, server_name};
use madrigal_proto::mux::{Class, Limits, Mux, Read};
use rustls::{ClientConnection, ServerConnection};

use super::*;
use crate::link::adapters::Adapters;
use crate::link::compressed::Compressed;
use crate::link::striped::Striped;

/// Two hosts of a grid.
fn credentials(what: &str) -> [Credentials; 2] {
    let dir = std::env::temp_dir().join(format!("madrigal-once-{}-{what}", std::process::id()));
    let name = |text| Name::parse(text).unwrap();
    let ca = Authority::create(&dir, &name("lyon"), Validity::seconds(DAY), true).unwrap();
    let both = ["a1", "b1"].map(|host| {
        let own = dir.join(host);
        ca.issue_host(&name(host), Validity::seconds(DAY)).unwrap().install(&own, true).unwrap();
        Credentials::load(&own).unwrap()
    });
    let _ = std::fs::remove_dir_all(dir);
    both
}

/// The two ends of a session whose handshake is done.
fn sessions(credentials: &[Credentials; 2]) -> [Connection; 2] {
    let one = ClientConnection::new(credentials[0].client(), server_name()).unwrap();
    let other = ServerConnection::new(credentials[1].server()).unwrap();
    let mut ends = [Connection::from(one), Connection::from(other)];
    for _ in 0..4 {
        for from in [0, 1] {
            let mut wire = Vec::new();
            while ends[from].wants_write() {
                ends[from].write_tls(&mut wire).unwrap();
            }
            let mut rest = wire.as_slice();
            while !rest.is_empty() {
                ends[1 - from].read_tls(&mut rest).unwrap();
                ends[1 - from].process_new_packets().unwrap();
            }
        }
    }
    assert!(ends.iter().all(|end| !end.is_handshaking()));
    ends
}

struct End {
    mux: Mux,
    adapters: Adapters,
}

fn ends(what: &str, adoc: bool, connections: u32) -> [End; 2] {
    let credentials = credentials(what);
    let mut sessions = sessions(&credentials).into_iter();
    [0, 1].map(|at| {
        let mut striped = Striped::new(0, [1, 4], Congestion::ByLoss, Vec::new()).unwrap();
        (1..connections).for_each(|lane| striped.join(0, Lane(lane), lane.into()).unwrap());
        let enciphered = Some(Enciphered::of(sessions.next().unwrap(), &credentials[at]));
        let adapters = Adapters { compressed: adoc.then(Compressed::new), enciphered, striped: Some(striped) };
        End { mux: Mux::new(at == 0, Limits::default(), 0), adapters }
    })
}

/// Carries what an end has for the other one; `see` may change what goes by a connection. Returns what the other end finds wrong.
fn carry(now: u64, ends: &mut [End; 2], from: usize, see: &mut dyn FnMut(&mut Vec<u8>)) -> Result<bool, String> {
    let End { mux, adapters } = &mut ends[from];
    adapters.handle_time(now);
    let mut moved = adapters.take_from(now, mux);
    for (lane, _) in adapters.connections(0) {
        let mut out = Vec::new();
        let End { mux, adapters } = &mut ends[from];
        adapters.transmit(now, lane, mux, 5000, &mut out);
        moved |= !out.is_empty();
        see(&mut out);
        let End { mux, adapters } = &mut ends[1 - from];
        adapters.receive(now, lane, &out, mux, &mut |_, _| 0)?;
    }
    Ok(moved)
}

#[test]
fn every_byte_arrives_and_none_is_read_on_the_way() {
    let text: Vec<u8> = (0..60_000u32).flat_map(|n| format!("PLAIN-TEXT {n}\n").into_bytes()).collect();
    for (adoc, connections) in [(false, 1), (false, 3), (true, 1), (true, 3)] {
        let mut ends = ends(&format!("{adoc}-{connections}"), adoc, connections);
        let stream = ends[0].mux.open(Class::Data, b"test").unwrap();
        let (mut written, mut got, mut wire, mut now) = (0, Vec::new(), 0, 0);
        let mut buffer = [0; 9000];
        while got.len() < text.len() {
            now += 1_000_000;
            written += ends[0].mux.write(stream, &text[written..]).unwrap();
            for from in [0, 1] {
                let mut see = |bytes: &mut Vec<u8>| {
                    wire += bytes.len();
                    assert!(!bytes.windows(10).any(|window| window == b"PLAIN-TEXT"), "it is to be read");
                };
                carry(now, &mut ends, from, &mut see).unwrap();
            }
            ends.iter_mut().for_each(|end| while end.mux.event().is_some() {});
            while let Read::Bytes(count) = ends[1].mux.read(stream, &mut buffer).unwrap_or(Read::Nothing) {
                got.extend_from_slice(&buffer[..count]);
            }
            assert!(now < 60_000_000_000, "it stands still at {}", got.len());
        }
        assert!(got == text, "other bytes");
        assert!(adoc || wire > text.len(), "{wire}");
    }
}

/// What was changed is delivered to nobody, and ends the link.
#[test]
fn what_is_changed_on_the_way_ends_the_link() {
    let mut ends = ends("changed", false, 2);
    let stream = ends[0].mux.open(Class::Data, b"test").unwrap();
    ends[0].mux.write(stream, b"pay one").unwrap();
    let found = (0..20).find_map(|now| {
        let mut change = |bytes: &mut Vec<u8>| {
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
            }
        };
        carry(now * 1_000_000, &mut ends, 0, &mut change).err()
    });
    let why = found.expect("it was changed");
    assert!(why.starts_with("tls: "), "{why}");
    assert!(ends[1].mux.event().is_none());
}

/// An end whose session is broken has nothing to send but the alert, however much there is.
#[test]
fn a_broken_session_takes_nothing_more() {
    let mut ends = ends("broken", false, 1);
    let enciphered = ends[0].adapters.enciphered.as_mut().unwrap();
    assert!(enciphered.receive(0, &[0; 4096], &mut |_| Ok(())).is_err());
    let (mut out, mut given) = (Vec::new(), 0);
    let mut source = |into: &mut Vec<u8>, room: usize| {
        given += room;
        into.resize(into.len() + room, 7);
    };
    for _ in 0..10 {
        enciphered.transmit(0, 1 << 20, &mut out, &mut source);
    }
    assert!(out.len() < 1000 && given <= TAKEN, "{} of {given}", out.len());
}

/// Both ends know the secret of a purpose, and another link has others.
#[test]
fn secrets_are_of_one_link_and_of_one_purpose() {
    let [one, other] = ["one", "other"].map(|what| ends(&format!("secrets-{what}"), false, 1));
    let secret =
        |end: &End, context: &[u8]| end.adapters.enciphered.as_ref().unwrap().secret(b"EXPORTER-test", context);
    assert!(secret(&one[0], b"a").is_some());
    assert_eq!(secret(&one[0], b"a"), secret(&one[1], b"a"));
    assert_ne!(secret(&one[0], b"a"), secret(&one[0], b"b"));
    assert_ne!(secret(&one[0], b"a"), secret(&other[0], b"a"));
}
