//! Which stack a link has (`adoc/stripe(32)/tls/tcp`, or `adoc/tls/stripe(32)/tcp`, where somebody says so): what this end offers in its greeting, and what the two ends agree on.
//!
//! Without a configured stack, a link of some distance is compressed where that makes it faster, and has several connections where they carry
//! more than one. Both ends send what they want, and come to the same result by [`madrigal_adapters::stack::agree`].

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _};

use madrigal_adapters::known;
use madrigal_adapters::stack::{Agreed, Element, MOST_STREAMS, Offer, Stack, Versions, agree};
use madrigal_adapters::stripe::count::Congestion;
use madrigal_sys::tcp;

use crate::daemon::Daemon;
use crate::link::Link;
use crate::link::adapters::Adapters;
use crate::link::compressed::Compressed;
use crate::link::congestion::is_by_loss;
use crate::link::striped::Striped;
use crate::poll::Token;
use crate::wire::{Hello, StackOffer};

impl Daemon {
    /// Sets the stack of links without a rule about it.
    pub fn makes_links_of(&mut self, stack: Stack) {
        self.stack = Some(stack);
    }

    /// The offer in the greeting of a connection that we dialled: the stack of its trial, or that of a rule, or else all that this end can
    /// do. Nothing if it joins a link.
    pub(crate) fn stack_offer(&self, link: &Link, tried: Option<&Stack>) -> Option<StackOffer> {
        let (peer, _) = link.dialled.filter(|_| link.joins.is_none())?;
        let offer = self.stack_wanted(link, peer, (true, true));
        Some(match tried {
            Some(stack) => StackOffer { stack: stack.to_string(), strict: true, ..offer },
            None => offer,
        })
    }

    /// This end's answer to an offer: if no rule sets the stack at either end, the adapters that pay off. On a long way several connections
    /// may: where losses slow one down, and where what one may have in flight is less than the way holds.
    fn stack_answer(&self, link: &Link, peer: usize, offer: Option<&StackOffer>) -> StackOffer {
        let has = |name: &str| {
            offer.is_some_and(|offer| offer.stack.split('/').any(|part| part.split('(').next() == Some(name)))
        };
        let insists = offer.is_some_and(|offer| offer.strict);
        // On a shorter way the network is faster than they are.
        let pays = insists || link.channel.is_far();
        self.stack_wanted(link, peer, (has("adoc") && pays, has("stripe") && pays))
    }

    /// The stack of a rule or of [`Self::makes_links_of`], or else one with these adapters.
    fn stack_wanted(&self, link: &Link, peer: usize, (adoc, stripe): (bool, bool)) -> StackOffer {
        let is_tcp = tcp::info(link.channel.as_fd().as_raw_fd()).is_ok();
        let most = self.grid.most_connections(peer).unwrap_or(MOST_STREAMS).min(MOST_STREAMS);
        let tls = link.channel.is_encrypted();
        let (rule, typed) = (self.grid.stack(peer), self.stack.as_ref());
        let mut elements: Vec<Element> = match (rule, typed) {
            (Some(stack), _) => stack.elements().to_vec(),
            // This one is for all links: the grid decides for each whether it is encrypted.
            (None, Some(stack)) => {
                let (adoc, stripe) = (stack.has("adoc"), stack.streams());
                elements(adoc, stripe, tls, stack.is_enciphered_once())
            }
            (None, None) => elements(adoc, (stripe && most > 1).then_some(most), tls, false),
        };
        if !is_tcp {
            // The command encrypts, and there is one connection only.
            elements.retain(|element| matches!(element, Element::Adoc | Element::Tcp));
        }
        let stack = elements.iter().map(Element::to_string).collect::<Vec<_>>().join("/");
        StackOffer { stack, strict: rule.or(typed).is_some(), known: known_here() }
    }

    /// The stack that the two ends of a link agree on from both offers; or why they do not agree.
    pub(crate) fn agree_on_stack(&mut self, token: Token, peer: usize, hello: &Hello) -> Result<Agreed, String> {
        let link = self.links.get(&token).ok_or("gone")?;
        let theirs = hello.stack.as_ref();
        let ours = link.offered.clone().unwrap_or_else(|| self.stack_answer(link, peer, theirs));
        let agreed = agreed(link, &ours, theirs)?;
        if let Some(link) = self.links.get_mut(&token) {
            link.offered = Some(ours);
        }
        Ok(agreed)
    }

    /// The adapters of a link that comes up; none where none were agreed on.
    pub(crate) fn adapters(&self, link: &Link, peer: usize, agreed: &Agreed) -> Option<Box<Adapters>> {
        let mut adapters = Adapters { compressed: None, enciphered: None, striped: None };
        // Matches every element, so that no agreed element is without effect.
        for element in agreed.stack.elements() {
            match *element {
                Element::Adoc => adapters.compressed = Some(Compressed::new()),
                Element::Stripe(most) if most > 1 => adapters.striped = self.striped(link, peer, most),
                Element::Stripe(_) | Element::Tls | Element::Tcp => {}
            }
        }
        (adapters.compressed.is_some() || adapters.striped.is_some()).then(|| Box::new(adapters))
    }

    /// The adapter of a link that may have `most` connections. It begins with as many as the last link ended with.
    fn striped(&self, link: &Link, peer: usize, most: u8) -> Option<Striped> {
        let congestion = if is_by_loss(&link.channel) { Congestion::ByLoss } else { Congestion::ByRate };
        let known = self.known_file.known.way(self.name(peer), link.method()).map_or(0, |known| known.connections);
        let networks = if link.dialled.is_some() { self.networks(link, peer) } else { Vec::new() };
        Striped::new(self.now, [known, most], congestion, networks).ok()
    }
}

/// The offer for a link without adapters, if no rule at the other end insists on some.
pub(super) fn plain_offer(link: &Link) -> StackOffer {
    let stack = if link.channel.is_encrypted() { "tls/tcp" } else { "tcp" }.to_owned();
    StackOffer { stack, strict: false, known: known_here() }
}

/// The adapters of this version, and the oldest and newest version of each. With `tls`: it may stand above `stripe`.
fn known_here() -> BTreeMap<String, [u16; 2]> {
    let known = known().into_iter().map(|(name, versions)| (name, [versions.oldest, versions.newest]));
    known.chain([("tls".to_owned(), [1, 1])]).collect()
}

/// The elements of a stack; `once`: `tls` stands above `stripe`.
fn elements(adoc: bool, stripe: Option<u8>, tls: bool, once: bool) -> Vec<Element> {
    let (adoc, tls) = (adoc.then_some(Element::Adoc), tls.then_some(Element::Tls));
    let stripe = stripe.map(Element::Stripe);
    let middle = if once { [tls, stripe] } else { [stripe, tls] };
    [adoc].into_iter().chain(middle).chain([Some(Element::Tcp)]).flatten().collect()
}

/// The result of both offers; an old peer sends none.
fn agreed(link: &Link, ours: &StackOffer, theirs: Option<&StackOffer>) -> Result<Agreed, String> {
    let plain = StackOffer { known: BTreeMap::new(), ..plain_offer(link) };
    let theirs = match theirs {
        Some(theirs) if theirs.strict => read(theirs)?,
        // A later version may offer what this one does not know.
        Some(theirs) => {
            let stack = Stack::known_of(&theirs.stack).map(|stack| stack.to_string()).unwrap_or(plain.stack.clone());
            read(&StackOffer { stack, ..theirs.clone() })?
        }
        None => read(&plain)?,
    };
    let agreed = agree(&read(ours)?, &theirs).map_err(|refusal| refusal.to_string())?;
    if agreed.stack.has("tls") != link.channel.is_encrypted() {
        let has = if link.channel.is_encrypted() {
            "enciphered: write it with `tls/tcp`"
        } else {
            "not enciphered: write it without `tls`"
        };
        return Err(format!("`{}` was written for a link that is {has}", agreed.stack));
    }
    Ok(agreed)
}

/// An offer of the wire.
fn read(offer: &StackOffer) -> Result<Offer, String> {
    let stack: Stack = offer.stack.parse().map_err(|error| format!("{error}"))?;
    let versions =
        |(name, [oldest, newest]): (&String, &[u16; 2])| (name.clone(), Versions { oldest: *oldest, newest: *newest });
    Ok(Offer { stack, strict: offer.strict, known: offer.known.iter().map(versions).collect() })
}
