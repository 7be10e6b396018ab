//! Any bytes of a peer or a client are parsed and read back as the same, or are refused: nothing panics, and nothing grows beyond what came.

use proptest::prelude::*;
use proptest::sample::Index;
use serde::de::DeserializeOwned;

use super::*;

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z][a-z0-9]{0,6}", ".{0,12}", Just("\u{0}\"\\\u{7f}\u{10ffff}".to_owned())]
}

fn question() -> impl Strategy<Value = Question> {
    prop_oneof![
        (text(), any::<Option<u16>>()).prop_map(|(to, port)| Question::Why { to, port }),
        prop::option::of(text()).prop_map(|to| Question::Check { to }),
        Just(Question::Status),
        (text(), text(), any::<bool>(), any::<u64>()).prop_map(|(to, stack, text, milliseconds)| Question::Trial {
            to,
            stack,
            text,
            milliseconds
        }),
        (text(), any::<u64>()).prop_map(|(at, round_trip_us)| Question::Punch { at, round_trip_us }),
    ]
}

fn figures() -> impl Strategy<Value = Figures> {
    any::<(Option<u64>, Option<u64>, Option<u32>, Option<u32>)>()
        .prop_map(|(round_trip_us, rate, again_ppm, mtu)| Figures { round_trip_us, rate, again_ppm, mtu })
}

fn update() -> impl Strategy<Value = RouteUpdate> {
    let reach = (text(), prop::collection::vec(text(), 0..6), figures());
    let reach = reach.prop_map(|(to, through, figures)| Reach { to, through, figures });
    prop::collection::vec(reach, 0..20).prop_map(|reach| RouteUpdate { reach })
}

fn request() -> impl Strategy<Value = ConnectRequest> {
    let first = (text(), any::<u16>(), any::<u8>(), text(), prop::option::of(text()));
    let resume = any::<Option<(u32, u64)>>().prop_map(|some| some.map(|(epoch, got)| Resume { epoch, got }));
    let second = (prop::collection::vec(text(), 0..5), prop::option::of(question()), prop::option::of(text()), resume);
    (first, second).prop_map(|((host, port, hops, from, source), (through, question, id, resume))| ConnectRequest {
        host,
        port,
        hops,
        from,
        source,
        through,
        question,
        id,
        resume,
    })
}

fn header() -> impl Strategy<Value = StreamHeader> {
    prop_oneof![
        4 => request().prop_map(StreamHeader::Connect),
        1 => Just(StreamHeader::RouteUpdate),
        1 => Just(StreamHeader::Discard),
        1 => text().prop_map(StreamHeader::Close),
        1 => Just(StreamHeader::Renewed),
        1 => any::<u8>().prop_map(StreamHeader::Lanes),
        1 => Just(StreamHeader::UrgentLink),
    ]
}

fn hello() -> impl Strategy<Value = Hello> {
    let known = prop::collection::btree_map(text(), any::<[u16; 2]>(), 0..4);
    let stack = (text(), any::<bool>(), known);
    let stack = stack.prop_map(|(stack, strict, known)| StackOffer { stack, strict, known });
    let stack = proptest::option::of(stack);
    let joins = proptest::option::of(any::<(u64, u32)>());
    let joins = joins.prop_map(|of| of.map(|(link, lane)| Joins { link, lane }));
    let seen = prop::option::of(text());
    (any::<(u32, u64, u64, bool, bool)>(), text(), stack, joins, seen).prop_map(
        |((version, instance, number, trial, urgent), host, stack, joins, seen)| Hello {
            version,
            host,
            instance,
            number,
            stack,
            joins,
            trial,
            urgent,
            seen,
        },
    )
}

/// How bytes are spoilt.
#[derive(Clone, Debug)]
enum Spoil {
    Set(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    /// The bytes between two places come twice.
    Repeat(Index, Index),
}

fn spoil() -> impl Strategy<Value = Vec<Spoil>> {
    let pieces = prop_oneof![
        Just(b"[".repeat(3000)),
        Just(b"{\"to\":".repeat(500)),
        Just(b"1e999999".to_vec()),
        Just(b"18446744073709551616".to_vec()),
        Just(b"\\ud800".to_vec()),
        prop::collection::vec(any::<u8>(), 1..20),
    ];
    let one = prop_oneof![
        any::<(Index, u8)>().prop_map(|(at, byte)| Spoil::Set(at, byte)),
        any::<Index>().prop_map(Spoil::Cut),
        (any::<Index>(), pieces).prop_map(|(at, bytes)| Spoil::Insert(at, bytes)),
        any::<(Index, Index)>().prop_map(|(from, to)| Spoil::Repeat(from, to)),
    ];
    prop::collection::vec(one, 0..4)
}

fn spoilt(mut bytes: Vec<u8>, how: Vec<Spoil>) -> Vec<u8> {
    for one in how {
        let place = |index: Index| index.index(bytes.len() + 1);
        match one {
            Spoil::Set(at, byte) => {
                let at = place(at);
                bytes.get_mut(at).into_iter().for_each(|old| *old = byte);
            }
            Spoil::Cut(at) => {
                let at = place(at);
                bytes.truncate(at);
            }
            Spoil::Insert(at, new) => {
                let at = place(at);
                bytes.splice(at..at, new);
            }
            Spoil::Repeat(from, to) => {
                let (from, to) = (place(from).min(place(to)), place(from).max(place(to)));
                let piece = bytes[from..to].to_vec();
                bytes.splice(to..to, piece);
            }
        }
    }
    bytes
}

/// What is read reads back as the same.
fn reads_back<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let again = serde_json::to_vec(&value).unwrap();
    assert_eq!(serde_json::from_slice::<T>(&again).unwrap(), value);
    Some(value)
}

proptest! {
    /// A daemon of this version reads what another one writes.
    #[test]
    fn everything_reads_back(header in header(), update in update(), hello in hello(), question in question()) {
        prop_assert_eq!(reads_back(&header.bytes()), Some(header));
        prop_assert_eq!(reads_back(&serde_json::to_vec(&update).unwrap()), Some(update));
        prop_assert_eq!(reads_back(&serde_json::to_vec(&question).unwrap()), Some(question));
        let bytes = json(HELLO, &hello);
        let (kind, body, len) = take(&bytes, LONGEST).unwrap().unwrap();
        prop_assert_eq!((kind, len, reads_back(&body)), (HELLO, bytes.len(), Some(hello)));
    }

    #[test]
    fn spoilt_updates_are_read_or_refused(update in update(), how in spoil()) {
        let bytes = spoilt(serde_json::to_vec(&update).unwrap(), how);
        if let Some(RouteUpdate { reach }) = reads_back::<RouteUpdate>(&bytes) {
            let names: usize = reach.iter().map(|one| one.to.len() + one.through.iter().map(String::len).sum::<usize>()).sum();
            prop_assert!(reach.len() * 9 <= bytes.len() && names <= bytes.len());
        }
    }

    #[test]
    fn spoilt_requests_and_questions_are_read_or_refused(header in header(), question in question(), how in spoil()) {
        let bytes = spoilt(header.bytes(), how.clone());
        if let Some(StreamHeader::Connect(request)) = reads_back::<StreamHeader>(&bytes) {
            prop_assert!(request.through.len() * 3 <= bytes.len());
        }
        let bytes = spoilt(serde_json::to_vec(&question).unwrap(), how);
        reads_back::<Question>(&bytes);
        reads_back::<Target>(&bytes);
        reads_back::<ProgramTarget>(&bytes);
    }

    /// A greeting: whole, in part with a bounded rest to wait for, or refused.
    #[test]
    fn spoilt_greetings_are_read_or_refused(hello in hello(), how in spoil()) {
        let bytes = spoilt(json(HELLO, &hello), how);
        match take(&bytes, LONGEST_HELLO) {
            Ok(Some((kind, body, len))) => {
                prop_assert!(len <= bytes.len() && body.len() <= LONGEST_HELLO);
                prop_assert_eq!(&frame(kind, &body), &bytes[..len]);
                reads_back::<Hello>(&body);
            }
            Ok(None) => prop_assert!(bytes.len() < 9 + LONGEST_HELLO),
            Err(_) => {}
        }
    }

    #[test]
    fn any_reply_is_read_or_refused(bytes in prop::collection::vec(prop_oneof![0u8..5, any::<u8>()], 0..80)) {
        match ConnectReply::read(&bytes) {
            Ok(Some((reply, text, len))) if text.len() <= 900 && std::str::from_utf8(&bytes[3..len]).is_ok() => {
                prop_assert_eq!(&reply.bytes(&text), &bytes[..len]);
            }
            Ok(Some((.., len))) => prop_assert!(len <= bytes.len()),
            Ok(None) => prop_assert!(bytes.len() < 3 + usize::from(u16::MAX)),
            Err(()) => prop_assert!(bytes[0] > 2),
        }
    }
}
