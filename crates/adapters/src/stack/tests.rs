use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[test]
fn what_only_a_later_version_knows_is_left_out_of_an_offer() {
    let known = |text| Stack::known_of(text).map(|stack| stack.to_string());
    assert_eq!(known("adoc/later(3)/stripe(2)/tcp").as_deref(), Ok("adoc/stripe(2)/tcp"));
    assert_eq!(known("later/tls/tcp").as_deref(), Ok("tls/tcp"));
    assert!(known("adoc/later").is_err() && known("stripe(0)/later/tcp").is_err());
}

fn stack(text: &str) -> Stack {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refused(text: &str) -> String {
    text.parse::<Stack>().map(|stack| stack.to_string()).expect_err(text).to_string()
}

fn known(adapters: &[(&str, u16, u16)]) -> Known {
    let versions =
        |(name, oldest, newest): &(&str, u16, u16)| (name.to_string(), Versions { oldest: *oldest, newest: *newest });
    adapters.iter().map(versions).collect()
}

fn offer(text: &str) -> Offer {
    Offer { stack: stack(text), strict: false, known: known(&[("adoc", 1, 2), ("stripe", 1, 1)]) }
}

/// What both ends find, which is the same.
fn both(one: &Offer, other: &Offer) -> Result<Agreed, Refusal> {
    let agreed = agree(one, other);
    assert_eq!(agreed, agree(other, one));
    agreed
}

fn found(one: &Offer, other: &Offer) -> (String, Vec<String>) {
    let agreed = both(one, other).unwrap();
    (agreed.stack.to_string(), agreed.left_out.iter().map(LeftOut::to_string).collect())
}

#[test]
fn legal_orders_are_read_and_printed_alike() {
    for text in [
        "tcp",
        "tls/tcp",
        "stripe(1)/tcp",
        "stripe(16)/tls/tcp",
        "adoc/stripe(2)/tcp",
        "adoc/tls/stripe(8)/tcp",
        "adoc/stripe(8)/tls/tcp",
    ] {
        assert_eq!(stack(text).to_string(), text);
    }
    let elements = [Element::Adoc, Element::Tls, Element::Stripe(8), Element::Tcp];
    assert_eq!(stack("adoc/tls/stripe(8)/tcp").elements(), elements);
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    for (text, reason) in [
        ("tls/adoc/tcp", "`adoc` below `tls`: what is enciphered cannot be compressed; write `adoc/tls`"),
        ("stripe(2)/adoc/tcp", "`adoc` below `stripe`"),
        ("tcp/tls", "`tls` below `tcp`: nothing is below it"),
        ("adoc/tls", "a stack ends with `tcp`, which carries it: write `adoc/tls/tcp`"),
        ("stripe(2)/stripe(2)/tcp", "`stripe` twice"),
        ("stripe(2)/tls/stripe(4)/tcp", "`stripe` twice"),
        ("tcp/tcp", "`tcp` twice"),
        ("stripe(0)/tcp", "`stripe(0)`: write `stripe(N)`, N from 1 to 32"),
        ("stripe(33)/tcp", "`stripe(33)`: write"),
        ("stripe(256)/tcp", "`stripe(256)`: write"),
        ("stripe(+8)/tcp", "`stripe(+8)`: write"),
        ("stripe(08)/tcp", "`stripe(08)`: write"),
        ("stripe/tcp", "`stripe`: write"),
        ("tls(1)/tcp", "`tls(1)`: tls takes no argument; write `tls`"),
        ("gzip/tcp", "there is no `gzip`: a stack is made of `adoc`, "),
        ("", "is not a path"),
        ("tls//tcp", "is not a path"),
    ] {
        assert!(refused(text).contains(reason), "{text}: {}", refused(text));
    }
}

#[test]
fn equal_wishes_are_agreed_with_the_newest_version_of_both() {
    let mut newer = offer("adoc/tls/stripe(8)/tcp");
    newer.known = known(&[("adoc", 2, 5), ("stripe", 1, 9), ("relay", 1, 1)]);
    let agreed = both(&offer("adoc/tls/stripe(8)/tcp"), &newer).unwrap();
    assert_eq!((agreed.stack.to_string().as_str(), agreed.left_out.len()), ("adoc/tls/stripe(8)/tcp", 0));
    assert_eq!(agreed.versions, BTreeMap::from([("adoc".to_owned(), 2), ("stripe".to_owned(), 1)]));
}

#[test]
fn what_makes_it_faster_is_left_out_where_an_end_cannot_or_will_not() {
    let full = offer("adoc/tls/stripe(8)/tcp");
    let reasons = |text: &str| vec![text.to_owned()];
    let fewer = offer("adoc/tls/stripe(3)/tcp");
    let streams = reasons("`stripe(8)`: the other end wants no more than 3");
    assert_eq!(found(&full, &fewer), ("adoc/tls/stripe(3)/tcp".into(), streams));
    let none = reasons("`stripe(8)` is wanted by one end only");
    assert_eq!(found(&full, &offer("adoc/tls/tcp")), ("adoc/tls/tcp".into(), none));
    let old = Offer { known: known(&[("stripe", 1, 1)]), ..full.clone() };
    assert_eq!(found(&full, &old), ("tls/stripe(8)/tcp".into(), reasons("`adoc` is not known to both ends")));
    let new = Offer { known: known(&[("adoc", 3, 4), ("stripe", 1, 1)]), ..full.clone() };
    let skew = reasons("`adoc`: one end speaks versions 1..2, the other one 3..4");
    assert_eq!(found(&full, &new), ("tls/stripe(8)/tcp".into(), skew));
}

#[test]
fn what_makes_it_safe_is_never_left_out_and_who_insists_gets_it_or_nothing() {
    let refusal = |one: &Offer, other: &Offer| both(one, other).unwrap_err().to_string();
    let (full, plain) = (offer("adoc/tls/stripe(8)/tcp"), offer("adoc/stripe(8)/tcp"));
    let tls = "`tls` is in `adoc/tls/stripe(8)/tcp` and not in `adoc/stripe(8)/tcp`: write the same at both ends";
    assert_eq!(refusal(&full, &plain), tls);
    let order = "`tls` is above `stripe` in `tls/stripe(8)/tcp` and below it in `stripe(8)/tls/tcp`: write the same at both ends";
    assert_eq!(refusal(&offer("stripe(8)/tls/tcp"), &offer("tls/stripe(8)/tcp")), order);
    let strict = Offer { strict: true, ..full.clone() };
    let insists = "`stripe(8)`: the other end wants no more than 2, and one end was told `adoc/tls/stripe(8)/tcp`";
    assert_eq!(refusal(&strict, &offer("adoc/tls/stripe(2)/tcp")), insists);
    assert_eq!(both(&strict, &full).unwrap().stack, full.stack);
    // What the other end wants beyond it is left out.
    let less = Offer { strict: true, ..offer("tls/stripe(2)/tcp") };
    let left_out = ["`adoc` is wanted by one end only", "`stripe(8)`: the other end wants no more than 2"];
    assert_eq!(found(&less, &full), ("tls/stripe(2)/tcp".into(), left_out.map(str::to_owned).to_vec()));
    // Who does not insist, and can have `tls` on either side, follows who does.
    let above = Offer { strict: true, ..offer("tls/stripe(8)/tcp") };
    let able = Offer { known: known(&[("adoc", 1, 2), ("stripe", 1, 1), ("tls", 1, 1)]), ..offer("stripe(8)/tls/tcp") };
    assert_eq!(both(&above, &able).unwrap().stack, above.stack);
    assert_eq!(refusal(&above, &offer("stripe(8)/tls/tcp")), order);
    assert_eq!(refusal(&above, &Offer { strict: true, ..able.clone() }), order);
    // Where the stripe is left out, the order does not matter.
    let old = Offer { known: known(&[]), ..offer("stripe(8)/tls/tcp") };
    assert_eq!(both(&old, &offer("tls/stripe(8)/tcp")).unwrap().stack, stack("tls/tcp"));
}

fn any_elements() -> impl Strategy<Value = Vec<Element>> {
    let one =
        prop_oneof![Just(Element::Adoc), Just(Element::Tls), Just(Element::Tcp), (0u8..20).prop_map(Element::Stripe)];
    prop::collection::vec(one, 0..5)
}

fn any_stack() -> impl Strategy<Value = Stack> {
    (any::<[bool; 4]>(), 1..=MOST_STREAMS).prop_map(|([adoc, tls, stripe, above], count)| {
        let mut elements = vec![Element::Tcp];
        elements.extend(tls.then_some(Element::Tls));
        if stripe {
            elements.insert(if above { 1 } else { elements.len() }, Element::Stripe(count));
        }
        elements.extend(adoc.then_some(Element::Adoc));
        elements.reverse();
        Stack::new(elements).unwrap()
    })
}

fn any_offer() -> impl Strategy<Value = Offer> {
    let versions = (0u16..4, 0u16..4).prop_map(|(oldest, newest)| Versions { oldest, newest });
    let names = prop_oneof![Just("adoc".to_owned()), Just("stripe".to_owned()), Just("tls".to_owned()), "[a-z]{1,3}"];
    let known = prop::collection::btree_map(names, versions, 0..4);
    (any_stack(), any::<bool>(), known).prop_map(|(stack, strict, known)| Offer { stack, strict, known })
}

proptest! {
    #[test]
    fn what_is_printed_reads_back(stack in any_stack()) {
        prop_assert_eq!(stack.to_string().parse(), Ok(stack));
    }

    #[test]
    fn a_list_is_legal_where_its_text_is(elements in any_elements()) {
        prop_assert_eq!(Stack::new(elements.clone()).is_ok(), print(&elements).parse::<Stack>().is_ok());
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,60}", near in "((adoc|tls|stripe|tcp)?(\\([0-9+a-z]{0,4}\\)?)?/?){0,6}") {
        for text in [text, near] {
            if let Ok(stack) = text.parse::<Stack>() {
                prop_assert_eq!(stack.to_string(), text);
            }
        }
    }

    /// Both ends find the same; it is a stack that makes sense, of what both want and speak; nothing safe is left out.
    #[test]
    fn what_is_agreed_is_what_both_want_and_can(one in any_offer(), other in any_offer()) {
        let Ok(agreed) = both(&one, &other) else { return Ok(()) };
        prop_assert_eq!(Stack::new(agreed.stack.elements().to_vec()), Ok(agreed.stack.clone()));
        for offer in [&one, &other] {
            prop_assert_eq!(agreed.stack.find("tls").is_some(), offer.stack.find("tls").is_some());
            for (name, version) in &agreed.versions {
                let versions = offer.known[name];
                prop_assert!(versions.oldest <= *version && *version <= versions.newest);
            }
            if offer.strict {
                let has = agreed.stack.elements().iter().filter(|element| offer.stack.find(element.name()) == Some(**element));
                prop_assert_eq!(has.count(), offer.stack.elements().len(), "less than it insists on");
            }
            for element in agreed.stack.elements() {
                let wanted = offer.stack.find(element.name());
                prop_assert!(wanted.is_some(), "{element} was not wanted");
                if let (Element::Stripe(count), Some(Element::Stripe(wanted))) = (element, wanted) {
                    prop_assert!(*count <= wanted);
                }
            }
        }
    }
}
