//! Proofs of renewed certificates: good for one end of one connection, and nothing else; whatever bytes come, nothing panics.

mod common;

use common::{Folder, Grid, day, past};
use madrigal_identity::{Credentials, Proof, Refusal};
use proptest::prelude::*;

#[test]
fn a_proof_is_good_on_its_connection_alone() {
    let grid = Grid::new("lyon");
    let (ours, theirs) = (grid.credentials("a1"), grid.credentials("b1"));
    let proof = theirs.prove(b"secret of b1's end").unwrap();
    let read = Proof::read(&proof.bytes()).unwrap().unwrap();
    assert_eq!(read, proof);
    assert_eq!(ours.judge_proof(&read, b"secret of b1's end").unwrap().name, "b1");
    let refused = ours.judge_proof(&read, b"secret of a1's end").unwrap_err();
    assert!(refused.to_string().contains("comes without a proof of its key"), "{refused}");
}

#[test]
fn certificates_of_a_proof_are_judged_as_any() {
    let (grid, other) = (Grid::new("lyon"), Grid::new("nice"));
    let ours = grid.credentials("a1");
    let proof = other.credentials("b1").prove(b"secret").unwrap();
    assert!(matches!(ours.judge_proof(&proof, b"secret"), Err(Refusal::WrongGrid { .. })));
    // Certificates of one, signed by the key of another: bytes of both, put together.
    let (b1, c1) = (grid.credentials("b1").prove(b"secret").unwrap(), grid.credentials("c1").prove(b"secret").unwrap());
    let mixed = |one: &Proof, other: &Proof| {
        let (one, other) = (one.bytes(), other.bytes());
        let cut = |bytes: &[u8]| 5 + 2 + usize::from(u16::from_le_bytes([bytes[5], bytes[6]]));
        let body = [&one[4..cut(&one)], &other[cut(&other)..]].concat();
        [&(body.len() as u32).to_le_bytes()[..], &body].concat()
    };
    let forged = Proof::read(&mixed(&b1, &c1)).unwrap().unwrap();
    assert!(matches!(ours.judge_proof(&forged, b"secret"), Err(Refusal::NotAllowed { .. })));
    assert!(ours.judge_proof(&Proof::read(&mixed(&b1, &b1)).unwrap().unwrap(), b"secret").is_ok());
}

#[test]
fn what_is_proved_is_what_is_shown_now() {
    let grid = Grid::new("lyon");
    let (ours, theirs) = (grid.credentials("a1"), grid.credentials("b1"));
    let first = theirs.own().serial;
    let dir = grid.host("b1", day());
    let proof = theirs.prove(b"secret").unwrap();
    let peer = ours.judge_proof(&proof, b"secret").unwrap();
    assert_eq!((peer.serial, peer.name.as_str()), (theirs.own().serial, "b1"));
    assert_ne!(theirs.own().serial, first);
    // An expired one is not loaded, and the one before goes on being shown.
    grid.host("b1", past());
    assert!(Credentials::load(&dir).is_err());
    assert!(ours.judge_proof(&theirs.prove(b"secret").unwrap(), b"secret").is_ok());
}

#[test]
fn the_certificate_of_a_host_is_renewed_with_the_login_that_gave_it() {
    let grid = Grid::new("lyon");
    let (dir, _) = grid.logged_in("ann");
    let host = |dir: &std::path::Path| Credentials::load_as(dir, madrigal_identity::Kind::Host).unwrap().unwrap().own();
    madrigal_identity::issue_host(&dir, &common::name("h1"), day()).unwrap().install(&dir, false).unwrap();
    let before = host(&dir);
    madrigal_identity::login(&dir, None, 2 * 3600).unwrap();
    let after = host(&dir);
    assert_eq!((after.name.as_str(), after.user.as_deref()), ("h1", Some("ann")));
    assert!(after.serial != before.serial && after.not_after > before.not_after);
    // That of the authority is left alone.
    let own = Folder::new();
    grid.ca.issue_host(&common::name("h2"), day()).unwrap().install(&own.0, false).unwrap();
    grid.ca.issue_user(&common::name("bob"), day()).unwrap().install(&own.0, false).unwrap();
    let before = host(&own.0);
    madrigal_identity::login(&own.0, None, 3600).unwrap();
    assert_eq!(host(&own.0).serial, before.serial);
}

proptest! {
    #[test]
    fn any_bytes_are_a_proof_or_not(bytes in prop::collection::vec(any::<u8>(), 0..300), len in 0u32..400) {
        let _ = Proof::read(&bytes);
        let framed = [&len.to_le_bytes()[..], &bytes].concat();
        if let Ok(Some(proof)) = Proof::read(&framed) {
            prop_assert_eq!(&proof.bytes()[4..], &framed[4..4 + len as usize]);
        }
    }
}
