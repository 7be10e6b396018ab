//! How two ends come to one stack. Both compute the same from what both want and know.
//!
//! What only makes a link faster is left out where one end does not want it or cannot do it, with the reason. What makes it safe is never
//! left out in silence: where the two differ there, there is no link, and the reason names the element.

use std::collections::{BTreeMap, BTreeSet};

use super::{Element, Stack};

/// Versions of an adapter's format, from the oldest to the newest that an end speaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Versions {
    /// The oldest.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

/// The adapters that an end has, by name.
pub type Known = BTreeMap<String, Versions>;

/// What one end sends before a link is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// What it wants.
    pub stack: Stack,
    /// It wants no less than that, or nothing: the user configured it.
    pub strict: bool,
    /// The adapters it has. `tls` and `tcp` every end has; who names `tls` here can have it above `stripe`, where the other end insists.
    pub known: Known,
}

/// What both ends do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// The stack.
    pub stack: Stack,
    /// Which version of each adapter in it.
    pub versions: BTreeMap<String, u16>,
    /// What one of them wanted, and the link has not.
    pub left_out: Vec<LeftOut>,
}

/// An element that the link has not, or not as wanted, and why: the same words at both ends.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeftOut {
    /// Only one end wants it.
    #[error("`{0}` is wanted by one end only")]
    Unwanted(Element),
    /// One end has no such adapter.
    #[error("`{0}` is not known to both ends")]
    Unknown(Element),
    /// The ends have no version in common.
    #[error("`{element}`: one end speaks versions {}..{}, the other one {}..{}", .low.oldest, .low.newest, .high.oldest, .high.newest)]
    Versions {
        /// The element.
        element: Element,
        /// The older ones.
        low: Versions,
        /// The newer ones.
        high: Versions,
    },
    /// Both want it, one with fewer streams.
    #[error("`stripe({wanted})`: the other end wants no more than {agreed}")]
    Streams {
        /// What one end wants.
        wanted: u8,
        /// What both want.
        agreed: u8,
    },
}

impl LeftOut {
    /// Whether a stack has more of it than the link.
    fn is_less_than(&self, stack: &Stack) -> bool {
        match self {
            Self::Unwanted(element) | Self::Unknown(element) | Self::Versions { element, .. } => {
                stack.has(element.name())
            }
            Self::Streams { agreed, .. } => stack.streams().is_some_and(|wanted| wanted > *agreed),
        }
    }
}

/// Why the two ends have no stack in common.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// One wants encryption, and the other one does not.
    #[error("`tls` is in `{with}` and not in `{without}`: write the same at both ends")]
    Tls {
        /// The stack that has it.
        with: Stack,
        /// The one that has not.
        without: Stack,
    },
    /// The streams of the one are enciphered, and the link of the other, and none can or will do as the other.
    #[error("`tls` is above `stripe` in `{above}` and below it in `{below}`: write the same at both ends")]
    Order {
        /// The stack of the one.
        above: Stack,
        /// And of the other.
        below: Stack,
    },
    /// Something would be left out, and one end insists.
    #[error("{0}, and one end was told `{1}`")]
    Strict(LeftOut, Stack),
}

/// What two ends with these offers do; the same in either order.
pub fn agree(one: &Offer, other: &Offer) -> Result<Agreed, Refusal> {
    let (one, other) = sorted(one, other);
    let [first, second] = [one, other].map(|offer| (&offer.stack, offer.stack.find("tls").is_some()));
    match (first, second) {
        ((with, true), (without, false)) | ((without, false), (with, true)) => {
            return Err(Refusal::Tls { with: with.clone(), without: without.clone() });
        }
        _ => {}
    }
    let (versions, left_out) = optional(one, other);
    for offer in [one, other].into_iter().filter(|offer| offer.strict) {
        if let Some(left_out) = left_out.iter().find(|left_out| left_out.is_less_than(&offer.stack)) {
            return Err(Refusal::Strict(left_out.clone(), offer.stack.clone()));
        }
    }
    let elements = |offer: &Offer| -> Vec<Element> {
        let kept = offer
            .stack
            .elements()
            .iter()
            .filter(|element| !is_optional(**element) || versions.contains_key(element.name()));
        kept.map(|element| least(*element, one, other)).collect()
    };
    let (ours, theirs) = (elements(one), elements(other));
    let can_follow = |offer: &Offer| !offer.strict && offer.known.contains_key("tls");
    let elements = match () {
        () if ours == theirs || one.strict && can_follow(other) => ours,
        () if other.strict && can_follow(one) => theirs,
        () => return Err(differs(&ours, (one, other))),
    };
    // Less than a stack that makes sense does so, too.
    Ok(Agreed { stack: Stack(elements), versions, left_out })
}

/// `tls` stands above `stripe` for one end, which has these elements, and below it for the other.
fn differs(ours: &[Element], (one, other): (&Offer, &Offer)) -> Refusal {
    let is_above = ours.iter().position(|element| *element == Element::Tls)
        < ours.iter().position(|element| matches!(element, Element::Stripe(_)));
    let (above, below) = if is_above { (one, other) } else { (other, one) };
    Refusal::Order { above: above.stack.clone(), below: below.stack.clone() }
}

/// The elements that a link can be without: the versions that both ends speak, and what is left out.
fn optional(one: &Offer, other: &Offer) -> (BTreeMap<String, u16>, Vec<LeftOut>) {
    let (mut versions, mut left_out) = (BTreeMap::new(), Vec::new());
    let elements = one.stack.elements().iter().chain(other.stack.elements());
    let names: BTreeSet<_> = elements.filter(|element| is_optional(**element)).map(|element| element.name()).collect();
    for name in names {
        let (element, twin) = match (one.stack.find(name), other.stack.find(name)) {
            (Some(element), Some(twin)) => (element, twin),
            (Some(element), None) | (None, Some(element)) => {
                left_out.push(LeftOut::Unwanted(element));
                continue;
            }
            (None, None) => continue,
        };
        let agreed = least(element, one, other);
        let (Some(ours), Some(theirs)) = (one.known.get(name), other.known.get(name)) else {
            left_out.push(LeftOut::Unknown(agreed));
            continue;
        };
        let newest = ours.newest.min(theirs.newest);
        if newest < ours.oldest.max(theirs.oldest) {
            let (low, high) = if ours <= theirs { (*ours, *theirs) } else { (*theirs, *ours) };
            left_out.push(LeftOut::Versions { element: agreed, low, high });
            continue;
        }
        if let (Element::Stripe(ours), Element::Stripe(theirs)) = (element, twin)
            && ours != theirs
        {
            left_out.push(LeftOut::Streams { wanted: ours.max(theirs), agreed: ours.min(theirs) });
        }
        versions.insert(name.to_owned(), newest);
    }
    (versions, left_out)
}

/// Whether a link can be without it. No `_`: a new element must be added here.
fn is_optional(element: Element) -> bool {
    match element {
        Element::Adoc | Element::Stripe(_) => true,
        Element::Tls | Element::Tcp => false,
    }
}

/// As many streams as both want.
fn least(element: Element, one: &Offer, other: &Offer) -> Element {
    match (element, one.stack.find("stripe"), other.stack.find("stripe")) {
        (Element::Stripe(_), Some(Element::Stripe(ours)), Some(Element::Stripe(theirs))) => {
            Element::Stripe(ours.min(theirs))
        }
        _ => element,
    }
}

/// The two in an order that does not depend on the caller.
fn sorted<'a>(one: &'a Offer, other: &'a Offer) -> (&'a Offer, &'a Offer) {
    let key = |offer: &Offer| (offer.stack.to_string(), offer.strict);
    if key(one) <= key(other) { (one, other) } else { (other, one) }
}
