//! What holds for every adapter of the table: bytes come out as they went in, the end behind the last one; whatever a peer sends is taken
//! or refused, within bounds. And the table is whole.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use madrigal_adapters::contract::{Adapter, ONLY};
use madrigal_adapters::stack::{Offer, Stack, agree};
use madrigal_adapters::tls::{Role, Tls};
use madrigal_adapters::{ADAPTERS, Parts, chain, known};
use madrigal_identity::{Authority, Credentials, DAY, Name, Validity};
use proptest::prelude::*;

const MILLISECOND: u64 = 1_000_000;
/// More than any adapter holds.
const MOST: usize = 80 << 20;

/// Numbers that follow from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }
}

/// Makes an end of a new link.
type Make = Box<dyn Fn(Role) -> Box<dyn Adapter>>;

/// Each adapter of the table, and each stack of several.
fn all() -> Vec<(String, Make)> {
    let mut all: Vec<(String, Make)> = Vec::new();
    for entry in ADAPTERS {
        all.push((entry.name.to_owned(), Box::new(|role| (entry.make)(&mut parts(role)).expect("all its parts"))));
    }
    for stack in stacks() {
        all.push((
            stack.to_string(),
            Box::new(move |role| chain(&stack, ticks, parts(role)).expect("it has adapters")),
        ));
    }
    assert!(
        all.iter().any(|(name, _)| name.split('/').count() == 4),
        "no stack of three adapters and what carries them"
    );
    all
}

/// Every legal stack of several adapters of the table, over what carries it; but for those whose streams are enciphered each for itself.
fn stacks() -> Vec<Stack> {
    // Some take an argument, and some take none.
    let elements: Vec<String> = ADAPTERS
        .iter()
        .filter_map(|entry| {
            let texts = [entry.name.to_owned(), format!("{}(1)", entry.name)];
            texts.into_iter().find(|text| format!("{text}/tcp").parse::<Stack>().is_ok())
        })
        .collect();
    assert_eq!(elements.len(), ADAPTERS.len());
    let mut texts = vec!["tcp".to_owned()];
    for _ in &elements {
        let longer = texts.iter().flat_map(|below| elements.iter().map(move |above| format!("{above}/{below}")));
        texts = longer.chain(texts.clone()).filter(|text| text.parse::<Stack>().is_ok()).collect();
        texts.sort();
        texts.dedup();
    }
    let stacks = texts.iter().map(|text| text.parse::<Stack>().expect("a stack"));
    let is_chain = |stack: &Stack| !stack.has("stripe") || !stack.has("tls") || stack.is_enciphered_once();
    stacks.filter(|stack| stack.elements().len() > 2 && is_chain(stack)).collect()
}

/// What the adapters of an end are made of, with the certificates of a grid made once.
fn parts(role: Role) -> Parts {
    static MADE: OnceLock<Credentials> = OnceLock::new();
    let credentials = MADE.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("madrigal-contract-{}", std::process::id()));
        let name = |text| Name::parse(text).expect("a name");
        let grid = Authority::create(&dir, &name("test"), Validity::seconds(DAY), false).expect("a CA");
        let host = grid.issue_host(&name("a1"), Validity::seconds(DAY)).expect("a certificate");
        host.install(&dir, false).expect("is installed");
        let credentials = Credentials::load(&dir).expect("credentials");
        std::fs::remove_dir_all(&dir).expect("removes what it made");
        credentials
    });
    Parts { tls: Some(Box::new(Tls::new(credentials, role).expect("an end"))) }
}

/// A clock: each look takes a microsecond.
fn ticks() -> u64 {
    static TIME: AtomicU64 = AtomicU64::new(0);
    TIME.fetch_add(1000, Ordering::Relaxed)
}

/// Two ends with a wire each way, cut anywhere.
struct Pair {
    ends: [Box<dyn Adapter>; 2],
    wires: [Vec<u8>; 2],
    read: [Vec<u8>; 2],
    now: u64,
    random: Random,
}

impl Pair {
    fn new(make: &dyn Fn(Role) -> Box<dyn Adapter>, seed: u64) -> Self {
        let (wires, read) = Default::default();
        Self { ends: [make(Role::Connecting), make(Role::Accepting)], wires, read, now: 0, random: Random(seed) }
    }

    /// A millisecond passes: each end sends a little, takes a little, and is read a little.
    fn step(&mut self) {
        self.now += MILLISECOND;
        for end in 0..2 {
            if self.ends[end].deadline() <= self.now {
                self.ends[end].handle_time(self.now);
                assert!(self.ends[end].deadline() > self.now, "it would turn for ever");
            }
            let room = self.random.below(20_000);
            let before = self.wires[end].len();
            self.ends[end].transmit(self.now, ONLY, room, &mut self.wires[end]);
            assert!(self.ends[end].is_ready() || self.ends[end].front().is_empty(), "bytes of nobody");
            assert!(self.wires[end].len() - before <= room, "more than there is room for");
            let count = self.random.below(30_000).min(self.wires[end].len());
            let other = &mut self.ends[1 - end];
            let taken = other.receive(self.now, ONLY, &self.wires[end][..count]).expect("an honest peer");
            self.wires[end].drain(..taken);
            let front = other.front();
            let count = self.random.below(30_000).min(front.len());
            self.read[1 - end].extend_from_slice(&front[..count]);
            other.consume(count);
        }
        assert!(self.ends.iter().all(|end| end.held() <= MOST));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn bytes_come_out_as_they_went_in_and_the_end_behind_them(seed: u64, lengths in [0usize..400_000, 0usize..400_000]) {
        for (name, make) in all() {
            let mut pair = Pair::new(&make, seed);
            let sent = lengths.map(|length| (0..length).map(|at| (at / 7 * at % 251) as u8).collect::<Vec<u8>>());
            let mut written = [0; 2];
            for _ in 0..5000 {
                for end in 0..2 {
                    let rest = &sent[end][written[end]..];
                    let piece = &rest[..rest.len().min(pair.random.below(40_000))];
                    let room = pair.ends[end].room();
                    let taken = pair.ends[end].write(piece);
                    prop_assert_eq!(taken, piece.len().min(room), "{}", name);
                    written[end] += taken;
                    if written[end] == sent[end].len() {
                        pair.ends[end].finish();
                        prop_assert_eq!(pair.ends[end].write(b"more"), 0);
                    }
                }
                pair.step();
                let over = [0, 1].map(|end| pair.ends[end].is_at_end());
                prop_assert!((0..2).all(|end| !over[end] || pair.read[end].len() == lengths[1 - end]));
                if over == [true; 2] {
                    break;
                }
            }
            for _ in 0..1000 {
                if pair.ends.iter().all(|end| end.is_flushed()) {
                    break;
                }
                pair.step();
            }
            prop_assert!(pair.ends.iter().all(|end| end.is_flushed()), "{name}: something is left");
            prop_assert!(pair.ends.iter().all(|end| end.is_at_end()), "{name} does not come to its end");
            prop_assert!(pair.read[1] == sent[0] && pair.read[0] == sent[1], "{name}: other bytes");
        }
    }

    /// Random bytes, and what an honest peer sends with bytes changed, left out and repeated.
    #[test]
    fn whatever_a_peer_sends_is_taken_or_refused(noise: Vec<u8>, seed: u64, changes in 1usize..6) {
        for (_, make) in all() {
            let mut random = Random(seed);
            let (mut from, mut wire) = (make(Role::Connecting), Vec::new());
            for step in 0..20 {
                from.write(&vec![step as u8; random.below(5000)]);
                from.transmit(step, ONLY, 10_000, &mut wire);
            }
            for _ in 0..changes {
                let (at, length) = (random.below(wire.len()), random.below(40));
                let piece = wire[at..(at + length).min(wire.len())].to_vec();
                match random.below(3) {
                    0 => wire[at] = random.below(256) as u8,
                    1 => drop(wire.drain(at..at + piece.len())),
                    _ => drop(wire.splice(at..at, piece)),
                }
            }
            for bytes in [&noise, &wire] {
                let mut end = make(Role::Accepting);
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let count = 1 + random.below(2000).min(rest.len() - 1);
                    let Ok(taken) = end.receive(0, ONLY, &rest[..count]) else { break };
                    end.transmit(MILLISECOND, ONLY, 1000, &mut Vec::new());
                    end.consume(end.front().len());
                    prop_assert!(taken <= count && end.held() <= MOST);
                    rest = &rest[taken..];
                }
            }
        }
    }
}

#[test]
fn every_adapter_stands_in_stacks_and_is_agreed_on() {
    let unknown = "nosuch/tcp".parse::<Stack>().unwrap_err().to_string();
    for entry in ADAPTERS {
        let texts = [format!("{}/tcp", entry.name), format!("{}(2)/tcp", entry.name)];
        let read: Vec<Stack> = texts.iter().filter_map(|text| text.parse().ok()).collect();
        let [stack] = &read[..] else { panic!("one of {texts:?} is a stack: stack.rs, `Element` and `element`") };
        assert!(texts.contains(&stack.to_string()), "{stack}");
        assert!(unknown.contains(&format!("`{}", entry.name)), "{unknown}: stack.rs, `StackError::Unknown`");
        let offer = |known| Offer { stack: stack.clone(), strict: false, known };
        let agreed = agree(&offer(known()), &offer(known())).unwrap();
        let newest = entry.versions.as_ref().map(|versions| &versions.newest);
        assert_eq!((&agreed.stack, agreed.versions.get(entry.name)), (stack, newest));
        if newest.is_none() {
            continue;
        }
        let without = agree(&offer(known()), &offer(Default::default())).unwrap();
        assert_eq!((without.stack.to_string().as_str(), without.left_out.len()), ("tcp", 1), "{}", entry.name);
    }
}

#[test]
fn every_folder_is_in_the_table_and_in_the_documentation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/adapters.md")).unwrap();
    let mut folders: Vec<String> = std::fs::read_dir(root.join("src"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        // Stacks are what adapters are put together in, and messages are no stream.
        .filter(|folder| folder != "stack" && folder != "vrp")
        .collect();
    folders.sort();
    let names: Vec<&str> = ADAPTERS.iter().map(|entry| entry.name).collect();
    assert_eq!(names, folders);
    assert!(
        names.iter().all(|name| page.contains(&format!("\n## {name}"))),
        "a section is missing in docs/adapters.md"
    );
    assert_eq!(known().len(), ADAPTERS.iter().filter(|entry| entry.versions.is_some()).count());
}
