//! Frames and messages: what is written is read, and what is no message is refused.

use proptest::prelude::*;

use super::*;

proptest! {
    /// Any bytes give a frame with their content, an incomplete one, or an error; what waits is bounded.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), mark: bool, head in 0u8..3, len in 0u64..2000) {
        let framed = [&[0xA7, head][..], &len.to_le_bytes()[..6], &bytes].concat();
        let bytes = if mark { &framed } else { &bytes };
        match take(bytes, LONGEST_HELLO) {
            Ok(Some((kind, body, whole))) => prop_assert_eq!(&frame(kind, &body), &bytes[..whole]),
            Ok(None) => prop_assert!(bytes.len() < 9 + LONGEST_HELLO),
            Err(_) => {}
        }
        if let Ok(Some((_, text, whole))) = ConnectReply::read(bytes) {
            prop_assert!(whole <= bytes.len() && text.len() <= 3 * whole);
        }
        let _ = serde_json::from_slice::<StreamHeader>(bytes);
    }
}

#[test]
fn replies_read_back_and_nonsense_is_refused() {
    let bytes = ConnectReply::Unavailable.bytes("no way");
    assert_eq!(bytes, b"\x02\x06\0no way");
    for cut in 0..bytes.len() {
        assert_eq!(ConnectReply::read(&bytes[..cut]), Ok(None));
    }
    assert_eq!(
        ConnectReply::read(&[&bytes[..], b"rest"].concat()),
        Ok(Some((ConnectReply::Unavailable, "no way".into(), 9)))
    );
    assert_eq!(ConnectReply::read(&[3, 0, 0]), Err(()));
    assert!(ConnectReply::Refused.bytes(&"é".repeat(1000)).len() <= 903);
}

#[test]
fn headers_of_streams_are_told_apart() {
    let read = |bytes: &[u8]| serde_json::from_slice::<StreamHeader>(bytes);
    assert_eq!(read(&StreamHeader::RouteUpdate.bytes()).unwrap(), StreamHeader::RouteUpdate);
    let request = read(br#"{"order":{"host":"b1","port":7,"hops":1,"from":"a1"}}"#).unwrap();
    assert!(
        matches!(&request, StreamHeader::Connect(request) if request.through.is_empty() && request.question.is_none())
    );
    assert_eq!(read(&request.bytes()).unwrap(), request);
    assert!(read(b"\"more\"").is_err());
    // The names on the wire stay as they are.
    assert_eq!(StreamHeader::Close("no".into()).bytes(), br#"{"bye":"no"}"#);
    let names = [StreamHeader::RouteUpdate, StreamHeader::Discard, StreamHeader::Renewed].map(|header| header.bytes());
    assert_eq!(names, [&b"\"routeupdate\""[..], b"\"discard\"", b"\"renewed\""]);
}

#[test]
fn what_a_further_connection_shows_reads_back() {
    let shown = Joining { link: [1; 16], lane: 0x0403_0201, secret: [2; 32] };
    let bytes = joining(&shown);
    let (kind, body, len) = take(&bytes, LONGEST_HELLO).unwrap().unwrap();
    assert_eq!((kind, len, Joining::read(&body)), (JOIN, bytes.len(), Some(shown)));
    assert_eq!(body[16..20], [1, 2, 3, 4]);
    assert!(body.len() == SHORTEST_HELLO && Joining::read(&body[..51]).is_none());
}

#[test]
fn frames_read_back_and_long_ones_are_refused() {
    let target = Target { host: "b1".into(), port: 80, ..Target::default() };
    let bytes = json(CONNECT, &target);
    let (kind, body, len) = take(&bytes, LONGEST).unwrap().unwrap();
    assert_eq!((kind, len, serde_json::from_slice::<Target>(&body).unwrap()), (CONNECT, bytes.len(), target));
    assert_eq!(take(&bytes[..bytes.len() - 1], LONGEST), Ok(None));
    assert!(take(&frame(HELLO, &[0; 5000]), LONGEST_HELLO).is_err());
    assert!(take(b"GET / HTTP/1.1", LONGEST_HELLO).is_err());
}
