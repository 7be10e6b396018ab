//! What a link is made of, top first: `adoc/tls/stripe(8)/tcp`. Read and printed here, and agreed on by the two ends.
//!
//! Each element stands at most once, `tcp` last. Compression stands above encryption, for what is enciphered cannot be compressed, and
//! above `stripe`, for a compressor wants all bytes in order. `tls` stands above `stripe` (one handshake) or below it (one for each
//! stream; links of daemons only).

mod agree;

use core::fmt;
use core::str::FromStr;

use madrigal_base::locator::{LocatorError, Path, Step};

pub use crate::stripe::MOST_STREAMS;
pub use agree::{Agreed, Known, LeftOut, Offer, Refusal, Versions, agree};

/// One part of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Element {
    /// Adaptive compression.
    Adoc,
    /// TLS 1.3.
    Tls,
    /// So many streams as one, at most.
    Stripe(u8),
    /// A stream of the kernel.
    Tcp,
}

/// A link's elements, in an order that makes sense.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Stack(Vec<Element>);

/// Why a text or a list of elements is no [`Stack`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// It is no path at all.
    #[error(transparent)]
    Path(#[from] LocatorError),
    /// A name that nothing has.
    #[error("there is no `{0}`: a stack is made of `adoc`, `tls`, `stripe(1..{MOST_STREAMS})`, and `tcp` below them")]
    Unknown(String),
    /// An argument where none belongs.
    #[error("`{element}({argument})`: {element} takes no argument; write `{element}`")]
    Argument {
        /// The element.
        element: &'static str,
        /// What stands in parentheses.
        argument: String,
    },
    /// A stripe of no number, or of none or too many.
    #[error("`stripe{}`: write `stripe(N)`, N from 1 to {MOST_STREAMS}", .0.as_ref().map_or(String::new(), |n| format!("({n})")))]
    Streams(Option<String>),
    /// Nothing carries it.
    #[error("a stack ends with `tcp`, which carries it: write `{0}/tcp`")]
    Bottom(String),
    /// Something below what carries everything.
    #[error("`{0}` below `tcp`: nothing is below it")]
    BelowTcp(&'static str),
    /// The same twice.
    #[error("`{0}` twice: once is enough")]
    Twice(&'static str),
    /// Compression below encryption.
    #[error("`adoc` below `tls`: what is enciphered cannot be compressed; write `adoc/tls`")]
    CompressedCipher,
    /// Compression below the spreading.
    #[error(
        "`adoc` below `stripe`: it compresses bytes in order, which a stripe's streams do not have; write `adoc/stripe(N)`"
    )]
    CompressedPieces,
}

impl Element {
    /// Its name, without an argument.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adoc => "adoc",
            Self::Tls => "tls",
            Self::Stripe(_) => "stripe",
            Self::Tcp => "tcp",
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if let Self::Stripe(count) = self { write!(f, "({count})") } else { Ok(()) }
    }
}

impl Stack {
    /// The stack of these elements, top first.
    pub fn new(elements: Vec<Element>) -> Result<Self, StackError> {
        let place = |name: &str| elements.iter().position(|element| element.name() == name);
        for (at, element) in elements.iter().enumerate() {
            if place(element.name()) != Some(at) {
                return Err(StackError::Twice(element.name()));
            }
            if let Element::Stripe(count) = element
                && !(1..=MOST_STREAMS).contains(count)
            {
                return Err(StackError::Streams(Some(count.to_string())));
            }
        }
        match (place("tcp"), elements.last()) {
            (Some(_), Some(Element::Tcp)) => {}
            (Some(_), Some(last)) => return Err(StackError::BelowTcp(last.name())),
            _ => return Err(StackError::Bottom(print(&elements))),
        }
        if place("adoc") > place("tls") && place("tls").is_some() {
            return Err(StackError::CompressedCipher);
        }
        if place("adoc") > place("stripe") && place("stripe").is_some() {
            return Err(StackError::CompressedPieces);
        }
        Ok(Self(elements))
    }

    /// The elements, top first; `tcp` is the last.
    pub fn elements(&self) -> &[Element] {
        &self.0
    }

    /// Whether it has an element of that name.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// The most streams of its `stripe`, if it has one.
    pub fn streams(&self) -> Option<u8> {
        match self.find("stripe") {
            Some(Element::Stripe(count)) => Some(count),
            _ => None,
        }
    }

    /// Whether `tls` stands above `stripe`: one handshake for all streams.
    pub fn is_enciphered_once(&self) -> bool {
        let place = |name: &str| self.0.iter().position(|element| element.name() == name);
        place("tls").zip(place("stripe")).is_some_and(|(tls, stripe)| tls < stripe)
    }

    /// The element of that name.
    fn find(&self, name: &str) -> Option<Element> {
        self.0.iter().copied().find(|element| element.name() == name)
    }
}

impl FromStr for Stack {
    type Err = StackError;

    fn from_str(text: &str) -> Result<Self, StackError> {
        let path: Path = text.parse()?;
        Self::new(path.steps().iter().map(element).collect::<Result<_, _>>()?)
    }
}

impl Stack {
    /// The stack that an offer names, without the elements that this version does not know.
    pub fn known_of(text: &str) -> Result<Self, StackError> {
        let path: Path = text.parse()?;
        let all = path.steps().iter().map(element).filter(|one| !matches!(one, Err(StackError::Unknown(_))));
        Self::new(all.collect::<Result<_, _>>()?)
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(&self.0))
    }
}

fn print(elements: &[Element]) -> String {
    elements.iter().map(Element::to_string).collect::<Vec<_>>().join("/")
}

fn element(step: &Step) -> Result<Element, StackError> {
    let plain = match step.name.as_str() {
        "adoc" => Element::Adoc,
        "tls" => Element::Tls,
        "tcp" => Element::Tcp,
        "stripe" => {
            let count = step.argument.as_ref().and_then(|count| count.parse().ok());
            // As it is printed: no sign, no leading zero.
            let count = count.filter(|count: &u8| Some(count.to_string()) == step.argument);
            return count.map(Element::Stripe).ok_or_else(|| StackError::Streams(step.argument.clone()));
        }
        other => return Err(StackError::Unknown(other.to_owned())),
    };
    match &step.argument {
        Some(argument) => Err(StackError::Argument { element: plain.name(), argument: argument.clone() }),
        None => Ok(plain),
    }
}

#[cfg(test)]
mod tests;
