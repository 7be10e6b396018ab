//! What the two ends of a stacked link say before it: a line of text each, behind its length in two bytes (little endian).
//!
//! ```text
//!   link 1 ID STRICT STACK KNOWN     a new link: what this end wants, insists on, and knows      <- link 1 - STRICT STACK KNOWN
//!   join 1 ID LANE                   one more connection of that link                            <- join 1
//!   no REASON                        there is none
//! ```
//! The number is the version of this format. KNOWN is `adoc:1-1,stripe:1-2`, or `-`.

use std::sync::Mutex;

use madrigal_adapters::contract::Lane;
use madrigal_adapters::stack::{Known, Offer, Stack, Versions};

use crate::half::Filled;
use crate::op::Handler;
use crate::vlink::VLink;

/// The longest line; a longer one is no greeting.
const LONGEST: usize = 1024;
/// The format that is spoken here.
const VERSION: &str = "1";

/// The number of a link, which the connecting end draws. Whoever knows it may join.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Id(pub(super) u128);

/// A greeting, or the answer to one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Greeting {
    /// A new link; the answer has no number.
    Link(Option<Id>, Offer),
    /// One more connection; the answer has no number.
    Join(Option<(Id, Lane)>),
    /// A refusal.
    No(String),
}

impl Greeting {
    /// The line with its length.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let line = match self {
            Self::Link(id, offer) => {
                let id = id.map_or_else(|| "-".to_owned(), |id| format!("{:032x}", id.0));
                format!("link {VERSION} {id} {} {} {}", u8::from(offer.strict), offer.stack, known_text(&offer.known))
            }
            Self::Join(Some((id, lane))) => format!("join {VERSION} {:032x} {}", id.0, lane.0),
            Self::Join(None) => format!("join {VERSION}"),
            Self::No(why) => format!("no {why}"),
        };
        let line = line.as_bytes().get(..LONGEST).unwrap_or(line.as_bytes());
        let length = u16::try_from(line.len()).unwrap_or(0);
        [&length.to_le_bytes(), line].concat()
    }

    /// Reads a line; or says why it is none.
    fn read(line: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(line).map_err(|_| "a greeting that is no text".to_owned())?;
        if let Some(why) = text.strip_prefix("no ") {
            return Ok(Self::No(why.chars().filter(|c| !c.is_control()).collect()));
        }
        let words: Vec<&str> = text.split(' ').collect();
        if let [_, version, ..] = words[..]
            && version != VERSION
        {
            return Err(format!("it greets by version {version}, and this end by version {VERSION}"));
        }
        let none = || "no greeting of a link with adapters: does the other end have a stack, too?".to_owned();
        let id = |text: &str| u128::from_str_radix(text, 16).map(Id).map_err(|_| none());
        match words[..] {
            ["link", _, number, strict, stack, known] => {
                let number = if number == "-" { None } else { Some(id(number)?) };
                let stack = Stack::known_of(stack).map_err(|error| error.to_string())?;
                let known = read_known(known).ok_or_else(none)?;
                Ok(Self::Link(number, Offer { stack, strict: strict == "1", known }))
            }
            ["join", _] => Ok(Self::Join(None)),
            ["join", _, number, lane] => Ok(Self::Join(Some((id(number)?, Lane(lane.parse().map_err(|_| none())?))))),
            _ => Err(none()),
        }
    }
}

fn known_text(known: &Known) -> String {
    let versions = known.iter().map(|(name, versions)| format!("{name}:{}-{}", versions.oldest, versions.newest));
    let text = versions.collect::<Vec<_>>().join(",");
    if text.is_empty() { "-".to_owned() } else { text }
}

fn read_known(text: &str) -> Option<Known> {
    let one = |part: &str| {
        let (name, versions) = part.split_once(':')?;
        let (oldest, newest) = versions.split_once('-')?;
        Some((name.to_owned(), Versions { oldest: oldest.parse().ok()?, newest: newest.parse().ok()? }))
    };
    if text == "-" { Some(Known::new()) } else { text.split(',').map(one).collect() }
}

/// What a reader of one greeting gets.
pub(super) type Received = Box<dyn FnOnce(&VLink, Result<Greeting, String>) + Send>;

/// Reads a greeting, and no byte behind it.
pub(super) fn receive(link: &VLink, then: Received) {
    collect(
        link,
        Vec::new(),
        2,
        Box::new(|link, length| {
            let length = length.map(|bytes| usize::from(u16::from_le_bytes([bytes[0], bytes[1]])));
            match length {
                Ok(length) if (1..=LONGEST).contains(&length) => {
                    collect(
                        link,
                        Vec::new(),
                        length,
                        Box::new(|link, line| then(link, line.and_then(|line| Greeting::read(&line)))),
                    );
                }
                Ok(_) => then(
                    link,
                    Err("no greeting of a link with adapters: does the other end have a stack, too?".to_owned()),
                ),
                Err(why) => then(link, Err(why)),
            }
        }),
    );
}

type Collected = Box<dyn FnOnce(&VLink, Result<Vec<u8>, String>) + Send>;

/// Reads so many bytes.
fn collect(link: &VLink, mut whole: Vec<u8>, length: usize, then: Collected) {
    let rest = length - whole.len();
    once(
        link,
        rest,
        Box::new(move |link, outcome| match outcome {
            Ok(filled) if filled.len == 0 => {
                then(link, Err("it closed the connection instead of a greeting".to_owned()))
            }
            Ok(filled) => {
                whole.extend_from_slice(filled.bytes());
                if whole.len() == length { then(link, Ok(whole)) } else { collect(link, whole, length, then) }
            }
            Err(error) => then(link, Err(error.to_string())),
        }),
    );
}

type ReadOnce = Box<dyn FnOnce(&VLink, Result<Filled, madrigal_base::error::ReadError>) + Send>;

/// Posts a read whose handler is called once.
fn once(link: &VLink, length: usize, then: ReadOnce) {
    let then = Mutex::new(Some(then));
    let handler = Handler::new(move |link: &VLink, outcome| {
        let then = then.lock().ok().and_then(|mut then| then.take());
        if let Some(then) = then {
            then(link, outcome);
        }
    });
    link.read_with(vec![0; length], handler);
}

/// Posts the write of a greeting. If it fails, so does the read of the answer.
pub(super) fn send(link: &VLink, greeting: &Greeting) {
    link.write_with(greeting.bytes(), Handler::new(|_: &VLink, _| {}));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(stack: &str) -> Offer {
        Offer { stack: stack.parse().expect("a stack"), strict: true, known: madrigal_adapters::known() }
    }

    #[test]
    fn greetings_come_out_as_they_went_in() {
        let id = Id(0xfeed_0000_0000_0000_0000_0000_0000_0001);
        let all = [
            Greeting::Link(Some(id), offer("adoc/stripe(4)/tcp")),
            Greeting::Link(None, Offer { known: Known::new(), ..offer("stripe(1)/tcp") }),
            Greeting::Join(Some((id, Lane(7)))),
            Greeting::Join(None),
            Greeting::No("`tls` is in the one, and not in the other".to_owned()),
        ];
        for greeting in all {
            let bytes = greeting.bytes();
            assert_eq!(usize::from(u16::from_le_bytes([bytes[0], bytes[1]])), bytes.len() - 2);
            assert_eq!(Greeting::read(&bytes[2..]), Ok(greeting));
        }
    }

    #[test]
    fn what_is_none_is_refused_with_the_reason() {
        for (line, why) in [
            ("", "no greeting"),
            ("GET / HTTP/1.1", "version /"),
            ("link 2 - 0 tcp -", "version 2"),
            ("link 1 xyz 0 tcp -", "no greeting"),
            ("link 1 - 0 stripe(99)/tcp -", "stripe(99)"),
            ("link 1 - 0 adoc/tcp adoc", "no greeting"),
            ("join 1 00 -1", "no greeting"),
        ] {
            let told = Greeting::read(line.as_bytes()).expect_err(line);
            assert!(told.contains(why), "{line}: {told}");
        }
        assert!(Greeting::read(&[0xff, 0xfe]).is_err());
    }

    #[test]
    fn an_adapter_of_a_later_version_is_left_out() {
        let line = "link 1 - 0 sum/adoc/tcp adoc:1-1,sum:3-4";
        let Ok(Greeting::Link(None, offer)) = Greeting::read(line.as_bytes()) else { panic!("{line}") };
        assert_eq!((offer.stack.to_string().as_str(), offer.known.len()), ("adoc/tcp", 2));
    }
}
