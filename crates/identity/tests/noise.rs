//! Random bytes: no handshake panics, and none succeeds by luck.
//!
//! Features (docs/features.md): D7.

mod common;

use std::sync::OnceLock;

use common::{Grid, Pair, Raw, day, feed};
use madrigal_identity::{Credentials, HOST};
use proptest::prelude::*;
use rustls::pki_types::CertificateDer;

struct Bed {
    _grid: Grid,
    a: Credentials,
    b: Credentials,
    chain: Vec<CertificateDer<'static>>,
    user: Vec<CertificateDer<'static>>,
}

fn bed() -> &'static Bed {
    static BED: OnceLock<Bed> = OnceLock::new();
    BED.get_or_init(|| {
        let grid = Grid::new("lyon");
        let (a, b) = (grid.credentials("a1"), grid.credentials("b1"));
        let chain = Raw::read(&grid.host("b2", day()).join(HOST)).chain;
        let user = Raw::read(&grid.logged_in("ann").0.join("user.pem")).chain;
        Bed { _grid: grid, a, b, chain, user }
    })
}

fn change(bytes: &mut Vec<u8>, at: &prop::sample::Index, how: u8, with: u8) {
    let i = at.index(bytes.len().max(1));
    match how {
        0 => bytes.truncate(i),
        1 => bytes.insert(i.min(bytes.len()), with),
        2 => drop(bytes.drain(i..(i + usize::from(with)).min(bytes.len()))),
        _ => bytes.iter_mut().skip(i).take(1).for_each(|byte| *byte ^= with | 1),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn noise_into_either_end(bytes in prop::collection::vec(any::<u8>(), 1..2000), tls in any::<bool>()) {
        let mut bytes = bytes;
        if tls {
            // A head that makes it a record of a handshake.
            let len = u16::try_from(bytes.len()).unwrap().to_be_bytes();
            bytes.splice(0..0, [22, 3, 3, len[0], len[1]]);
        }
        let mut pair = Pair::new(bed().a.client(), bed().b.server());
        let mut errors = [None, None];
        feed(&mut pair.client, &bytes, &mut errors[0]);
        feed(&mut pair.server, &bytes, &mut errors[1]);
        prop_assert!(pair.client.is_handshaking() && pair.server.is_handshaking());
    }

    #[test]
    fn somebody_in_the_middle(from_client in any::<bool>(), flight in 0..3usize, at: prop::sample::Index, how in 0..4u8, with: u8) {
        let mut pair = Pair::new(bed().a.client(), bed().b.server());
        let mut seen = 0;
        let mut changed = false;
        let errors = pair.shake_with(|client, bytes| {
            if client == from_client {
                if seen == flight {
                    let before = bytes.clone();
                    change(bytes, &at, how, with);
                    changed = *bytes != before;
                }
                seen += 1;
            }
        });
        let open = !pair.client.is_handshaking() && !pair.server.is_handshaking();
        // Bytes lost at the end leave both waiting for more; the version in a record's head is not checked.
        prop_assert!(changed || (open && errors == [None, None]), "{errors:?}");
        if open && errors == [None, None] {
            prop_assert!(!changed || how == 3 || seen <= flight, "a changed flight passed");
        }
    }

    #[test]
    fn a_changed_certificate_is_another_one(which in 0..4usize, at: prop::sample::Index, how in 0..4u8, with: u8) {
        let mut chain = if which == 0 { bed().chain.clone() } else { bed().user.clone() };
        prop_assert!(bed().a.judge(&chain).is_ok());
        let one = &mut chain[which.saturating_sub(1)];
        let mut bytes = one.to_vec();
        change(&mut bytes, &at, how, with);
        let same = bytes == one.to_vec();
        *one = bytes.into();
        match bed().a.judge(&chain) {
            Ok(_) => prop_assert!(same),
            Err(refusal) => prop_assert!(!same && !refusal.to_string().contains('\n'), "{refusal}"),
        }
        let _ = madrigal_identity::peer(&chain);
    }
}
