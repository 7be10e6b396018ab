//! Ends of a striped link over connections that are queues here: every byte arrives, whatever the connections do.

use madrigal_proto::mux::{Class, Event, Limits as MuxLimits, Mux, Read};

use super::*;

/// One end of a link over connections that are queues here.
struct End {
    mux: Mux,
    striped: Striped,
}

impl End {
    fn new(dialled: bool, connections: u32) -> Self {
        let mut striped = Striped::new(0, [1, 4], Congestion::ByLoss, Vec::new()).expect("a link");
        for lane in 1..connections {
            striped.join(0, Lane(lane), lane.into()).expect("a connection");
        }
        striped.carries.insert(ONLY, Carries { rate: Some(FAST), round_trip: 0 });
        Self { mux: Mux::new(dialled, MuxLimits::default(), 0), striped }
    }

    /// Gives each connection up to `room` bytes for the other end. Returns whether there were any.
    fn send(&mut self, now: u64, room: usize, to: &mut Self) -> bool {
        let mux = &mut self.mux;
        let mut source = |out: &mut Vec<u8>, room| mux.transmit(out, room);
        let mut moved = self.striped.take_from(&mut source);
        for (lane, _) in self.striped.connections(0) {
            let mut out = Vec::new();
            self.striped.transmit(now, lane, room, &mut out, &mut source);
            moved |= !out.is_empty();
            let mux = &mut to.mux;
            let mut deliver = |bytes: &[u8]| mux.receive(now, bytes).map_err(|broken| broken.to_string());
            to.striped.receive(now, lane, &out, &mut deliver).expect("frames");
        }
        moved
    }
}

#[test]
fn a_peer_that_answers_with_none_has_one() {
    let mut striped = Striped::new(0, [0, 0], Congestion::ByLoss, networks(1)).expect("a link");
    striped.handle_wanted(200);
    assert_eq!((striped.wanted(), striped.adjust(0)), (1, Vec::new()));
}

fn networks(count: u8) -> Vec<SocketAddr> {
    (0..count).map(|at| SocketAddr::from(([10, at, 0, 2], 7780))).collect()
}

/// Each network has a connection, the further ones are spread, and none loses its last.
#[test]
fn every_network_that_answers_has_a_connection() {
    let all = networks(3);
    let mut striped = Striped::new(0, [0, 8], Congestion::ByRate, all.clone()).expect("a link");
    let made = striped.adjust(0);
    assert_eq!(made, [(Lane(1), all[1]), (Lane(2), all[2])]);
    striped.join(0, Lane(1), 11).expect("a connection");
    striped.not_made(0, Lane(2));
    assert_eq!(striped.adjust(1), Vec::new());
    striped.handle_wanted(5);
    let places = |made: Vec<(Lane, SocketAddr)>| made.into_iter().map(|(_, at)| at).collect::<Vec<_>>();
    assert_eq!(places(striped.adjust(1)), [all[0], all[1], all[0]]);
    for lane in 3..6 {
        striped.join(1, Lane(lane), 10 + u64::from(lane)).expect("a connection");
    }
    // The third one answers by now.
    striped.handle_wanted(1);
    let made = striped.adjust(PAUSE);
    assert_eq!(places(made), [all[2]]);
    striped.join(PAUSE, Lane(6), 16).expect("a connection");
    assert_eq!(striped.retired, [3, 4, 5].map(Lane).into());
}

/// A single connection takes all that waits; each of several takes what it carries soon.
#[test]
fn a_connection_of_several_is_given_what_it_carries_soon() {
    let mut striped = Striped::new(0, [1, 4], Congestion::ByLoss, Vec::new()).expect("a link");
    assert_eq!(striped.most_unsent(ONLY), UNSENT);
    striped.join(0, Lane(1), 11).expect("a connection");
    assert_eq!(striped.most_unsent(ONLY), 16 << 10);
    assert_eq!([8_000_000, 1_000_000_000].map(|rate| carried_in(AHEAD, rate)), [50_000, 6_250_000]);
}

/// Frames of the multiplexer are longer than there is room now and then: nothing of them is lost.
#[test]
fn every_byte_arrives_by_one_connection_or_several_whatever_the_room() {
    for (room, connections) in [(40, 3), (1000, 3), (70_000, 3), (40, 1), (1000, 1), (70_000, 1)] {
        let (mut one, mut other) = (End::new(true, connections), End::new(false, connections));
        let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let stream = one.mux.open(Class::Data, b"test").expect("a stream");
        let (mut sent, mut got, mut now) = (0, Vec::new(), 0);
        let (mut buffer, mut kept) = ([0; 9000], 0);
        while got.len() < bytes.len() {
            now += 1_000_000;
            sent += one.mux.write(stream, &bytes[sent..]).expect("it is open");
            one.striped.handle_time(now);
            other.striped.handle_time(now);
            let moved = one.send(now, room, &mut other) | other.send(now, room, &mut one);
            while let Some(event) = other.mux.event() {
                assert!(!matches!(event, Event::Reset { .. }));
            }
            // Behind the first credit.
            if got.len() > 1_000_000 {
                kept = kept.max(one.striped.stripe.held());
            }
            let before = got.len();
            while let Read::Bytes(count) = other.mux.read(stream, &mut buffer).unwrap_or(Read::Nothing) {
                got.extend_from_slice(&buffer[..count]);
            }
            assert!(moved || got.len() > before || now < 60_000_000_000, "it stands still at {}", got.len());
        }
        assert!(got == bytes, "room {room}");
        // What goes by one connection is not kept: only memory that is spare.
        assert!(kept <= 8 * (64 << 10) || connections > 1, "{kept} bytes kept, room {room}");
    }
}
