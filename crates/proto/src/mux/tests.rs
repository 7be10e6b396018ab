use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

/// Two ends and the connection between them: a delay, a rate, and bytes cut anywhere.
struct Net {
    ends: [Mux; 2],
    /// What is on the way to each end: when it arrives, and the bytes.
    wires: [VecDeque<(u64, Vec<u8>)>; 2],
    /// What was written at once, and goes first.
    at_once: [Vec<u8>; 2],
    now: u64,
    /// Bytes a millisecond and milliseconds, each way.
    rate: usize,
    delay: u64,
    seed: u64,
}

impl Net {
    fn new(limits: Limits, rate: usize, delay: u64, seed: u64) -> Self {
        let ends = [Mux::new(true, limits, 0), Mux::new(false, limits, 0)];
        Self { ends, wires: [VecDeque::new(), VecDeque::new()], at_once: Default::default(), now: 0, rate, delay, seed }
    }

    fn random(&mut self) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize
    }

    /// A millisecond passes.
    fn step(&mut self) {
        self.now += MS;
        for from in 0..2 {
            let mut bytes = std::mem::take(&mut self.at_once[from]);
            self.ends[from].transmit(&mut bytes, self.rate);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, more) = rest.split_at((1 + self.random() % 3000).min(rest.len()));
                self.wires[1 - from].push_back((self.now + self.delay * MS, piece.to_vec()));
                rest = more;
            }
        }
        for to in 0..2 {
            while self.wires[to].front().is_some_and(|(due, _)| *due <= self.now) {
                let (_, bytes) = self.wires[to].pop_front().unwrap();
                self.ends[to].receive(self.now, &bytes).unwrap();
            }
        }
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }
}

/// Everything that can be read, and whether the end came.
fn drain(end: &mut Mux, id: StreamId) -> (Vec<u8>, bool) {
    let (mut out, mut buffer) = (Vec::new(), [0; 5000]);
    loop {
        match end.read(id, &mut buffer) {
            Ok(Read::Bytes(count)) => out.extend_from_slice(&buffer[..count]),
            Ok(Read::Nothing) => return (out, false),
            Ok(Read::End) | Err(Gone(_)) => return (out, true),
        }
    }
}

fn events(end: &mut Mux) -> Vec<Event> {
    std::iter::from_fn(|| end.event()).collect()
}

#[test]
fn a_stream_carries_bytes_and_ends() {
    let mut net = Net::new(Limits::default(), 100_000, 5, 1);
    let id = net.ends[0].open(Class::Data, b"tcp://b1:80").unwrap();
    assert_eq!(net.ends[0].write(id, b"hello"), Ok(5));
    net.steps(6);
    let opened = Event::Opened { stream: id, class: Class::Data, about: b"tcp://b1:80".to_vec() };
    assert_eq!(events(&mut net.ends[1]), [opened, Event::Readable(id)]);
    assert_eq!(drain(&mut net.ends[1], id), (b"hello".to_vec(), false));
    net.ends[1].write(id, b"world").unwrap();
    net.ends[1].finish(id).unwrap();
    assert_eq!(net.ends[1].write(id, b"more"), Err(Gone(id)));
    net.steps(7);
    assert_eq!(drain(&mut net.ends[0], id), (b"world".to_vec(), true));
    net.ends[0].finish(id).unwrap();
    net.steps(7);
    assert_eq!(drain(&mut net.ends[1], id), (vec![], true));
    assert!(net.ends.iter().all(|end| end.is_empty() && end.held() == 0));
}

#[test]
fn what_is_taken_at_once_does_not_wait_and_earns_credit() {
    let limits = Limits { window: 1000, ..Limits::default() };
    let (mut one, mut other) = (Mux::new(true, limits, 0), Mux::new(false, limits, 0));
    let id = one.open(Class::Data, b"").unwrap();
    let sent: Vec<u8> = (0..9000).map(|n| (n % 251) as u8).collect();
    let (mut at, mut came, mut late) = (0, Vec::new(), 0);
    while came.len() < sent.len() {
        at += one.write(id, &sent[at..sent.len().min(at + 700)]).unwrap();
        let (mut there, mut back) = (Vec::new(), Vec::new());
        one.transmit(&mut there, 10_000);
        let (mut taken, mut step) = (Vec::new(), came.len());
        other
            .receive_with(0, &there, &mut |stream, bytes| {
                assert_eq!(stream, id);
                step += 1;
                // All, a part, nothing.
                let count = [bytes.len(), bytes.len() / 3, 0][step % 3];
                taken.extend_from_slice(&bytes[..count]);
                count
            })
            .unwrap();
        came.extend(taken);
        assert!(there.is_empty() || events(&mut other).contains(&Event::Readable(id)));
        let (rest, _) = drain(&mut other, id);
        late += rest.len();
        came.extend(rest);
        other.transmit(&mut back, 10_000);
        one.receive(0, &back).unwrap();
    }
    assert!(came == sent && (1..sent.len()).contains(&late), "{late} bytes waited");
}

#[test]
fn a_reset_drops_what_was_on_its_way() {
    let mut net = Net::new(Limits::default(), 1000, 5, 1);
    let id = net.ends[0].open(Class::Data, b"").unwrap();
    net.ends[0].write(id, &[1; 30_000]).unwrap();
    net.steps(8);
    net.ends[1].reset(id, 42).unwrap();
    net.steps(20);
    assert!(events(&mut net.ends[0]).contains(&Event::Reset { stream: id, code: 42 }));
    assert!(net.ends.iter().all(|end| end.is_empty() && end.held() == 0));
    assert_eq!(net.ends[0].write(id, b"x"), Err(Gone(id)));
}

#[test]
fn who_is_not_read_holds_up_nobody_and_no_more_than_its_window() {
    let limits = Limits { window: 8000, backlog: 10_000, ..Limits::default() };
    let mut net = Net::new(limits, 50_000, 2, 1);
    let ids: Vec<_> = (0..10).map(|_| net.ends[0].open(Class::Data, b"").unwrap()).collect();
    let (stalled, live) = ids.split_first().unwrap();
    let mut got = 0;
    for _ in 0..500 {
        for id in &ids {
            net.ends[0].write(*id, &[7; 10_000]).unwrap();
        }
        net.step();
        got += live.iter().map(|id| drain(&mut net.ends[1], *id).0.len()).sum::<usize>();
        assert!(net.ends[1].held() <= 8000);
    }
    assert!(got > 500 * 50_000 / 2, "{got}");
    assert_eq!(drain(&mut net.ends[1], *stalled).0.len(), 8000);
}

#[test]
fn windows_grow_for_readers_who_keep_up_within_the_budget() {
    let run = |budget| {
        let limits = Limits { window: 16 << 10, widest: 4 << 20, budget, backlog: 1 << 20, ..Limits::default() };
        // 10 MB/s, 40 ms there and back: 400 kB are on the way at full rate.
        let mut net = Net::new(limits, 10_000, 20, 1);
        let id = net.ends[0].open(Class::Data, b"").unwrap();
        let mut got = 0;
        for n in 0..2000 {
            net.ends[0].write(id, &[0; 100_000]).unwrap();
            net.step();
            let more = drain(&mut net.ends[1], id).0.len();
            got += if n < 1000 { 0 } else { more };
            assert!(net.ends[1].budget <= budget);
        }
        net.ends[1].reset(id, 0).unwrap();
        assert_eq!(net.ends[1].budget, budget);
        got as f64 / (1000.0 * 10_000.0)
    };
    let (wide, narrow) = (run(64 << 20), run(0));
    assert!(wide > 0.95, "{wide}");
    assert!((0.02..0.06).contains(&narrow), "{narrow}");
}

#[test]
fn windows_grow_where_ends_take_longer_than_the_line() {
    // 100 Mbit/s, 2 ms there and back on the idle link; then the reader polls every 8 ms.
    let mut net = Net::new(Limits { backlog: 1 << 20, ..Limits::default() }, 12_500, 1, 1);
    net.ends[1].ping(0);
    net.steps(10);
    let id = net.ends[0].open(Class::Data, b"").unwrap();
    let mut got = 0;
    for n in 0..600 {
        net.ends[0].write(id, &[0; 100_000]).unwrap();
        net.step();
        if n % 8 == 0 {
            let more = drain(&mut net.ends[1], id).0.len();
            got += if n < 300 { 0 } else { more };
        }
    }
    assert!(got as f64 > 0.95 * 300.0 * 12_500.0, "{got}");
}

#[test]
fn windows_grow_where_queues_take_longer_than_the_line() {
    // 20 Mbit/s, 20 ms there and back on the idle link; then what waits below both ends takes a second.
    let mut net = Net::new(Limits { backlog: 1 << 20, ..Limits::default() }, 2500, 10, 1);
    net.ends[1].ping(0);
    net.steps(30);
    net.delay = 500;
    let id = net.ends[0].open(Class::Data, b"").unwrap();
    let mut got = 0;
    for n in 0..30_000 {
        net.ends[0].write(id, &[0; 100_000]).unwrap();
        net.step();
        let more = drain(&mut net.ends[1], id).0.len();
        got += if n < 20_000 { 0 } else { more };
    }
    assert!(got as f64 > 0.95 * 10_000.0 * 2500.0, "{got}");
    // A reader that takes a thirtieth of that is given no more than it reads in some trips.
    let slow = net.ends[0].open(Class::Data, b"").unwrap();
    for n in 0..30_000 {
        net.ends[0].write(slow, &[0; 100_000]).unwrap();
        net.step();
        if n % 60 == 0 {
            let _ = net.ends[1].read(slow, &mut [0; 5000]);
        }
    }
    let window = net.ends[1].streams[&slow].window;
    assert!(window <= 1 << 20, "{window}");
}

#[test]
fn streams_share_and_what_is_urgent_goes_first() {
    let mut net = Net::new(Limits { widest: 1 << 20, ..Limits::default() }, 20_000, 1, 1);
    let ids: Vec<_> = (0..50).map(|_| net.ends[0].open(Class::Data, b"").unwrap()).collect();
    let mut got = vec![0; ids.len()];
    for n in 0..3000 {
        for (id, got) in ids.iter().zip(&mut got) {
            net.ends[0].write(*id, &[0; 30_000]).unwrap();
            *got += drain(&mut net.ends[1], *id).0.len();
        }
        net.step();
        if n == 2000 {
            // One that opens while the line is full is there after a trip, and so is a ping's answer.
            let urgent = net.ends[0].open(Class::Urgent, b"now").unwrap();
            net.ends[0].write(urgent, b"!").unwrap();
            let now = net.now;
            net.ends[1].ping(now);
            net.steps(5);
            assert_eq!(drain(&mut net.ends[1], urgent).0, b"!");
            let trip = net.ends[1].round_trip().expect("an answer");
            assert!(trip <= 2 * 2 * MS + MS, "{trip}");
        }
    }
    let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
    assert!(*least > 0 && most * 2 < least * 3, "{least} {most}");
}

/// Beside data bulk has its part of the line, however many streams it has; alone it has all of it.
#[test]
fn bulk_goes_where_there_is_no_data() {
    let mut net = Net::new(Limits { widest: 1 << 20, ..Limits::default() }, 20_000, 1, 1);
    let bulk: Vec<_> = (0..5).map(|_| net.ends[0].open(Class::Bulk, b"").unwrap()).collect();
    let data = net.ends[0].open(Class::Data, b"").unwrap();
    let mut run = |with_data: bool| {
        let mut got = [0, 0];
        for _ in 0..2000 {
            for id in &bulk {
                net.ends[0].write(*id, &[0; 30_000]).unwrap();
                got[1] += drain(&mut net.ends[1], *id).0.len();
            }
            if with_data {
                net.ends[0].write(data, &[0; 30_000]).unwrap();
            }
            got[0] += drain(&mut net.ends[1], data).0.len();
            net.step();
        }
        got
    };
    run(true);
    let [data, bulk] = run(true);
    let share = bulk as f64 / (data + bulk) as f64;
    assert!((0.04..0.09).contains(&share), "{share}");
    run(false);
    let [none, all] = run(false);
    assert!(none == 0 && all as f64 > 0.95 * (data + bulk) as f64, "{none} {all}");
}

#[test]
fn too_many_streams_are_refused_and_the_others_go_on() {
    let mut net = Net::new(Limits { streams: 3, ..Limits::default() }, 10_000, 1, 1);
    let ids: Vec<_> = (0..5).map(|_| net.ends[0].open(Class::Data, b"").unwrap()).collect();
    ids.iter().for_each(|id| assert_eq!(net.ends[0].write(*id, b"x"), Ok(1)));
    net.steps(5);
    let refused: Vec<_> = ids[3..].iter().map(|&stream| Event::Reset { stream, code: TOO_MANY }).collect();
    assert_eq!(events(&mut net.ends[0]), refused);
    assert_eq!((net.ends[0].len(), net.ends[1].len()), (3, 3));
    net.ends[1].reset(ids[0], 0).unwrap();
    net.ends[0].open(Class::Data, b"").unwrap();
    net.steps(5);
    assert_eq!(net.ends[1].len(), 3);
}

#[test]
fn a_silent_peer_is_asked_and_then_given_up() {
    let limits = Limits { idle: 100 * MS, patience: 50 * MS, ..Limits::default() };
    let mut net = Net::new(limits, 1000, 5, 1);
    assert_eq!((net.ends[0].deadline(), net.ends[0].handle_time(99 * MS)), (100 * MS, Ok(())));
    assert!(!net.ends[0].has_output());
    net.now = 100 * MS;
    net.ends[0].handle_time(net.now).unwrap();
    net.steps(15);
    assert!(net.ends[0].round_trip().is_some_and(|trip| (10 * MS..=12 * MS).contains(&trip)));
    let mut alone = Mux::new(true, limits, 0);
    alone.handle_time(100 * MS).unwrap();
    assert_eq!((alone.deadline(), alone.handle_time(149 * MS)), (150 * MS, Ok(())));
    assert_eq!(alone.handle_time(150 * MS), Err(Broken::Silent));
}

#[test]
fn whoever_falls_silent_is_given_up_as_long_after_its_last_word_as_ever() {
    let limits = Limits { idle: 20 * MS, patience: 80 * MS, ..Limits::default() };
    // It got a ping, sent something that is no answer, and then nothing more.
    for last in [20, 21, 60, 99] {
        let mut end = Mux::new(true, limits, 0);
        end.handle_time(20 * MS).unwrap();
        if last > 20 {
            let mut bytes = Vec::new();
            Frame::Ping { token: 7 }.write(&mut bytes);
            end.receive(last * MS, &bytes).unwrap();
            assert_eq!(end.deadline(), (last + 20) * MS);
            end.handle_time(end.deadline()).unwrap();
        }
        let given_up = end.deadline();
        assert_eq!(end.handle_time(given_up), Err(Broken::Silent));
        assert_eq!(given_up, if last > 20 { (last + 100) * MS } else { 100 * MS });
    }
}

fn received(frames: &[Frame<'_>]) -> Result<(), Broken> {
    let mut end = Mux::new(false, Limits { window: 1000, ..Limits::default() }, 0);
    let mut bytes = Vec::new();
    frames.iter().for_each(|frame| frame.write(&mut bytes));
    end.receive(0, &bytes)
}

#[test]
fn who_breaks_the_rules_is_told_apart() {
    let open = Frame::Open { stream: 1, class: Class::Data, about: b"" };
    let data = |stream, bytes| Frame::Data { stream, bytes };
    assert_eq!(received(&[open, data(1, &[0; 1000])]), Ok(()));
    assert_eq!(received(&[open, data(1, &[0; 1001])]), Err(Broken::Credit(1)));
    assert_eq!(received(&[open, data(1, &[0; 600]), data(1, &[0; 401])]), Err(Broken::Credit(1)));
    assert_eq!(received(&[data(1, b"x")]), Err(Broken::Unknown(1)));
    assert_eq!(received(&[open, Frame::Finish { stream: 3 }]), Err(Broken::Unknown(3)));
    assert_eq!(received(&[open, Frame::Credit { stream: 2, bytes: 1 }]), Err(Broken::Unknown(2)));
    assert_eq!(received(&[open, open]), Err(Broken::Unknown(1)));
    assert_eq!(received(&[open, Frame::Finish { stream: 1 }, data(1, b"x")]), Err(Broken::AfterEnd(1)));
    // Frames for a stream that is over here may still come.
    assert_eq!(received(&[open, Frame::Reset { stream: 1, code: 0 }, data(1, b"x")]), Ok(()));
    let mut end = Mux::new(false, Limits::default(), 0);
    assert!(matches!(end.receive(0, b"GET / HTTP/1.1"), Err(Broken::Nonsense(_))));
    let flood: Vec<_> =
        (0..40_000u32).map(|n| Frame::Open { stream: 2 * n + 1, class: Class::Data, about: b"" }).collect();
    assert_eq!(received(&flood), Err(Broken::Flood));
}

proptest! {
    /// Random programs at both ends: every stream's bytes arrive whole and in order, and nothing is held in the end.
    #[test]
    fn all_bytes_arrive_in_order(
        seed: u64,
        rate in 50usize..5000,
        delay in 0u64..20,
        window in 1u32..5000,
        streams in prop::collection::vec((0usize..3, any::<bool>(), 0usize..30_000), 1..12),
    ) {
        let limits = Limits { window, widest: 20_000, budget: 30_000, backlog: 3000, ..Limits::default() };
        let mut net = Net::new(limits, rate, delay, seed);
        let byte = |stream: usize, n: usize| (n * 7 + stream * 31 + n / 251) as u8;
        let mut todo = Vec::new();
        for (n, (class, second, len)) in streams.iter().enumerate() {
            let from = usize::from(*second);
            let class = [Class::Urgent, Class::Data, Class::Bulk][*class];
            let id = net.ends[from].open(class, &[n as u8]).unwrap();
            todo.push((from, id, (0..*len).map(|at| byte(n, at)).collect::<Vec<u8>>(), 0, Vec::new(), false));
        }
        for _ in 0..200_000 {
            for (from, id, bytes, sent, got, ended) in &mut todo {
                if *sent < bytes.len() {
                    let end = (*sent + 1 + net.seed as usize % 4000).min(bytes.len());
                    if net.random().is_multiple_of(2) {
                        let pieces = bytes[*sent..end].split_at((end - *sent) / 3);
                        let room = net.random() % 5000;
                        let out = &mut net.at_once[*from];
                        *sent += net.ends[*from].write_at_once(*id, pieces.into(), out, room);
                    }
                    *sent += net.ends[*from].write(*id, &bytes[*sent..end]).unwrap();
                } else if *sent == bytes.len() {
                    net.ends[*from].finish(*id).unwrap();
                    *sent += 1;
                }
                // Readers rest now and then.
                if !net.random().is_multiple_of(3) && !*ended {
                    let opened = net.ends[1 - *from].streams.contains_key(id);
                    let (more, end) = if opened { drain(&mut net.ends[1 - *from], *id) } else { (vec![], false) };
                    got.extend(more);
                    if end {
                        *ended = true;
                        net.ends[1 - *from].finish(*id).unwrap();
                    }
                }
                drain(&mut net.ends[*from], *id);
            }
            net.step();
            let most = 12 * (u64::from(window) + 3000) + 30_000;
            prop_assert!(net.ends.iter().all(|end| end.held() <= most));
            if todo.iter().all(|one| one.5) && net.ends.iter().all(Mux::is_empty) {
                break;
            }
        }
        for (_, id, bytes, _, got, ended) in &todo {
            prop_assert!(*ended, "stream {} has not ended", id);
            prop_assert!(bytes == got, "stream {}", id);
        }
        prop_assert!(net.ends.iter().all(|end| end.held() == 0 && end.budget == 30_000));
    }

    #[test]
    fn any_bytes_are_taken_or_refused(frames in prop::collection::vec((0u8..8, 0u32..6, any::<u32>(), 0usize..40), 0..200), cut: usize, flip: usize) {
        let mut bytes = Vec::new();
        for (kind, stream, number, len) in frames {
            let mut head = vec![kind];
            head.extend(stream.to_le_bytes());
            match kind {
                0 => head.push((number % 3) as u8),
                3 | 4 => head.extend(number.to_le_bytes()),
                5 | 6 => head.extend(stream.to_le_bytes()),
                _ => {}
            }
            let body = vec![1; if kind < 2 { len } else { 0 }];
            bytes.extend(frame::prefix(head.len(), body.len() as u64).unwrap());
            bytes.extend(head);
            bytes.extend(body);
        }
        if !bytes.is_empty() && flip % 2 == 0 {
            let at = flip % bytes.len();
            bytes[at] ^= 1 << (flip % 8);
        }
        let mut end = Mux::new(true, Limits { window: 500, ..Limits::default() }, 0);
        end.open(Class::Data, b"").unwrap();
        let (first, second) = bytes.split_at(cut % (bytes.len() + 1));
        let _ = end.receive(0, first).and_then(|()| end.receive(1, second));
        let mut out = Vec::new();
        end.transmit(&mut out, usize::MAX / 2);
        prop_assert!(end.held() <= 6 * 500);
    }
}
