//! Where something can be reached, and by which stack of drivers and adapters.
//!
//! A [`Locator`] is `scheme://address`; the scheme names a driver, the address is a numeric socket address, a host of the grid with a port,
//! or a plain name: `tcp://127.0.0.1:9000`, `tcp://[::1]:0`, `tcp://b1:9000`, `shm://name`, `loopback://name`. The driver decides which
//! form it takes. A [`Path`] is how bytes travel, top first: `shm`, `tcp`, later `tls/tcp` or `stripe(8)/tcp`.

use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;

/// The longest name in a locator, in bytes.
pub const NAME_MAX: usize = 64;

/// Where one end can be reached.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Locator {
    scheme: String,
    address: Address,
}

/// The part of a [`Locator`] after `://`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Address {
    /// A numeric internet address and a port.
    Inet(SocketAddr),
    /// A host of the grid by its name, and a port.
    Host(String, u16),
    /// A plain name: letters, digits, `.`, `-`, `_`; at most [`NAME_MAX`] bytes; no leading dot.
    Name(String),
}

/// Why a text is no [`Locator`] or [`Path`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocatorError {
    /// There is no `://`.
    #[error("`{text}` is not a locator: it has no `://` (try `tcp://{text}` or `shm://{text}`)")]
    NoScheme {
        /// What was given.
        text: String,
    },
    /// The scheme is not a word of lower-case letters and digits.
    #[error("`{text}` is not a locator: `{scheme}` is not a driver's name (lower-case letters and digits)")]
    BadScheme {
        /// What was given.
        text: String,
        /// The part before `://`.
        scheme: String,
    },
    /// There is a colon, but no address and port.
    #[error(
        "`{text}` is not a locator: `{address}` is not a numeric ADDRESS:PORT such as `127.0.0.1:9000` or `[::1]:9000`, nor HOST:PORT"
    )]
    BadInet {
        /// What was given.
        text: String,
        /// The part after `://`.
        address: String,
    },
    /// The name is empty, too long or has other characters.
    #[error(
        "`{text}` is not a locator: `{name}` is not a name of 1 to 64 letters, digits, `.`, `-`, `_` (no leading dot)"
    )]
    BadName {
        /// What was given.
        text: String,
        /// The part after `://`.
        name: String,
    },
    /// A step of a path is not `name` or `name(argument)`.
    #[error("`{text}` is not a path: `{step}` is not `name` or `name(argument)`")]
    BadStep {
        /// What was given.
        text: String,
        /// The step.
        step: String,
    },
}

impl Locator {
    /// A locator of an internet address. The scheme must be a legal one; it is a driver's own constant.
    pub fn inet(scheme: &'static str, address: SocketAddr) -> Self {
        Self { scheme: scheme.to_owned(), address: Address::Inet(address) }
    }

    /// A locator of a port of a host of the grid, if that is a legal name of one.
    pub fn host(scheme: &'static str, host: &str, port: u16) -> Option<Self> {
        is_host(host).then(|| Self { scheme: scheme.to_owned(), address: Address::Host(host.to_owned(), port) })
    }

    /// A locator of a name, if it is a legal one.
    pub fn name(scheme: &'static str, name: &str) -> Result<Self, LocatorError> {
        if is_name(name) {
            return Ok(Self { scheme: scheme.to_owned(), address: Address::Name(name.to_owned()) });
        }
        Err(LocatorError::BadName { text: format!("{scheme}://{name}"), name: name.to_owned() })
    }

    /// The driver's name.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The address for the driver.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether a driver may have that name: a word of lower-case letters and digits.
    pub fn is_scheme(name: &str) -> bool {
        is_word(name)
    }
}

impl FromStr for Locator {
    type Err = LocatorError;

    fn from_str(text: &str) -> Result<Self, LocatorError> {
        let whole = || text.to_owned();
        let (scheme, rest) = text.split_once("://").ok_or_else(|| LocatorError::NoScheme { text: whole() })?;
        if !is_word(scheme) {
            return Err(LocatorError::BadScheme { text: whole(), scheme: scheme.to_owned() });
        }
        let address = match rest.parse::<SocketAddr>() {
            Ok(inet) => Address::Inet(inet),
            Err(_) if rest.contains(':') => {
                let bad = || LocatorError::BadInet { text: whole(), address: rest.to_owned() };
                host_and_port(rest).ok_or_else(bad)?
            }
            Err(_) if is_name(rest) => Address::Name(rest.to_owned()),
            Err(_) => return Err(LocatorError::BadName { text: whole(), name: rest.to_owned() }),
        };
        Ok(Self { scheme: scheme.to_owned(), address })
    }
}

/// `HOST:PORT`.
fn host_and_port(text: &str) -> Option<Address> {
    let (host, port) = text.split_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| is_host(host) && is_port)?;
    Some(Address::Host(host.to_owned(), port))
}

/// What has digits and dots only is a numeric address that is wrong.
fn is_host(text: &str) -> bool {
    is_name(text) && text.bytes().any(|byte| byte != b'.' && !byte.is_ascii_digit())
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(inet) => inet.fmt(f),
            Self::Host(host, port) => write!(f, "{host}:{port}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// How bytes travel: a stack of adapters with a driver at the bottom, top first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Path(Vec<Step>);

/// One adapter or driver of a [`Path`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// What stands in parentheses behind it.
    pub argument: Option<String>,
}

impl Path {
    /// The path of a driver alone.
    pub fn of_driver(name: &str) -> Self {
        Self(vec![Step { name: name.to_owned(), argument: None }])
    }

    /// The steps, top first; never empty.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// The driver at the bottom.
    pub fn driver(&self) -> &str {
        self.0.last().map_or("", |step| &step.name)
    }
}

impl FromStr for Path {
    type Err = LocatorError;

    fn from_str(text: &str) -> Result<Self, LocatorError> {
        let step = |s: &str| parse_step(s).ok_or_else(|| LocatorError::BadStep { text: text.into(), step: s.into() });
        text.split('/').map(step).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "/" })?;
            f.write_str(&step.name)?;
            if let Some(argument) = &step.argument {
                write!(f, "({argument})")?;
            }
        }
        Ok(())
    }
}

fn parse_step(text: &str) -> Option<Step> {
    let (name, argument) = match text.split_once('(') {
        None => (text, None),
        Some((name, rest)) => (name, Some(rest.strip_suffix(')')?)),
    };
    let legal = argument.is_none_or(|a| !a.is_empty() && !a.contains(['(', ')', '/']));
    (is_word(name) && legal).then(|| Step { name: name.to_owned(), argument: argument.map(str::to_owned) })
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

fn is_name(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    (1..=NAME_MAX).contains(&text.len()) && !text.starts_with('.') && text.bytes().all(legal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_documented_forms_are_read_and_printed_alike() {
        for text in ["tcp://127.0.0.1:9000", "tcp://[::1]:0", "tcp://b1.lan:9000", "shm://name", "loopback://a.b-c_D9"]
        {
            assert_eq!(text.parse::<Locator>().unwrap().to_string(), text);
        }
        for text in ["shm", "tcp", "adoc/tls/stripe(8)/tcp", "relay(hub)/tls/tcp"] {
            assert_eq!(text.parse::<Path>().unwrap().to_string(), text);
        }
        assert_eq!("tls/tcp".parse::<Path>().unwrap().driver(), "tcp");
    }

    #[test]
    fn errors_say_what_is_wrong_and_what_would_be_right() {
        let text = |t: &str| t.parse::<Locator>().unwrap_err().to_string();
        assert_eq!(text("h:1"), "`h:1` is not a locator: it has no `://` (try `tcp://h:1` or `shm://h:1`)");
        assert!(text("TCP://x").contains("`TCP` is not a driver's name"));
        for wrong in ["tcp://10.2.0.300:80", "tcp://b1:80000", "tcp://b1:+80", "tcp://b1:", "tcp://b/1:80", "tcp://:80"]
        {
            assert!(text(wrong).contains("not a numeric ADDRESS:PORT"), "{wrong}");
        }
        assert!(text("shm://").contains("`` is not a name"));
        assert!(text("shm://../../etc/passwd").contains("is not a name"));
        assert!("tls(/tcp".parse::<Path>().is_err() && "".parse::<Path>().is_err() && "a(b))".parse::<Path>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(text in "[a-z]{1,5}://[a-zA-Z0-9._:\\[\\]/-]{0,70}") {
            if let Ok(locator) = text.parse::<Locator>() {
                prop_assert_eq!(locator.to_string().parse::<Locator>(), Ok(locator));
            }
        }

        #[test]
        fn no_text_makes_parsing_panic(text in "\\PC{0,90}") {
            let _ = text.parse::<Locator>();
            let _ = text.parse::<Path>();
        }
    }
}
