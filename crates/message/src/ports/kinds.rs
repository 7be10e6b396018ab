//! Types of ports: keys and values, the same at both ends.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;

/// The most keys of a type.
const MOST_KEYS: usize = 64;
/// The longest key, and the longest value, in bytes.
const LONGEST_KEY: usize = 64;
/// See [`LONGEST_KEY`].
const LONGEST_VALUE: usize = 256;

/// What a port is: keys and values. A send port and a receive port connect only if theirs are the same (NetIbis, section 3).
///
/// Three keys mean something here: `connection` (`one-to-one`, `one-to-many`, `many-to-one`, `many-to-many`, which is what is taken without
/// one) bounds how many connections each end has, and `receive` (`explicit`, which is what is taken without one, or `upcall`) says how a
/// receive port is read. `stack` (such as `adoc/tls/stripe(4)/tcp`) is what carries the messages of such ports, and nothing else does, on one host
/// neither. All others belong to the program.
///
/// ```
/// use madrigal_message::ports::PortType;
/// let kind: PortType = "connection=one-to-one, unit=metre".parse()?;
/// assert_eq!(kind.get("unit"), Some("metre"));
/// # Ok::<(), madrigal_message::ports::TypeError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct PortType(BTreeMap<String, String>);

/// Why a text is no [`PortType`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TypeError {
    /// Not `key=value`.
    #[error("`{0}` in a type of ports: write key=value, several with commas between them")]
    Pair(String),
    /// A key or a value that cannot be.
    #[error(
        "`{0}` in a type of ports: a key has a-z, 0-9, `.` and `-`, at most {LONGEST_KEY}, a value no comma and no control character, at most {LONGEST_VALUE} bytes"
    )]
    Word(String),
    /// A key twice.
    #[error("`{0}` twice in a type of ports")]
    Twice(String),
    /// Too many keys.
    #[error("a type of ports has at most {MOST_KEYS} keys")]
    Many,
    /// A value that has no meaning.
    #[error("`{key}={value}`: {key} is one of {known}")]
    Value {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        known: &'static str,
    },
}

/// How many connections a port may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Of a send port.
    pub(super) to_many: bool,
    /// Of a receive port.
    pub(super) from_many: bool,
}

impl PortType {
    /// With that key, in place of an earlier value.
    pub fn with(mut self, key: &str, value: &str) -> Result<Self, TypeError> {
        judge(key, value)?;
        self.0.insert(key.to_owned(), value.to_owned());
        if self.0.len() > MOST_KEYS { Err(TypeError::Many) } else { Ok(self) }
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// The first key in which two types differ, in words; `None`: they are the same.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let keys = self.0.keys().chain(other.0.keys());
        let key = keys.filter(|key| self.0.get(*key) != other.0.get(*key)).min()?;
        Some(differ(key, self.get(key), other.get(key)))
    }

    /// What carries the messages, if that is written.
    pub(super) fn stack(&self) -> Option<&str> {
        self.get("stack")
    }

    pub(super) fn shape(&self) -> Shape {
        let value = self.get("connection").unwrap_or("many-to-many");
        Shape { to_many: value.ends_with("-to-many"), from_many: value.starts_with("many-") }
    }
}

/// What a key is at a send port, and at a receive port.
pub(super) fn differ(key: &str, send: Option<&str>, receive: Option<&str>) -> String {
    let shown = |value: Option<&str>| value.map_or_else(|| format!("no {key}"), |value| format!("{key}={value}"));
    format!("the send port has {}, the receive port {}", shown(send), shown(receive))
}

/// Whether a key may have that value.
fn judge(key: &str, value: &str) -> Result<(), TypeError> {
    let is_key = !key.is_empty()
        && key.len() <= LONGEST_KEY
        && key.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '.' | '-'));
    let is_value = value.len() <= LONGEST_VALUE && !value.chars().any(|c| c == ',' || c.is_control());
    if !is_key || !is_value {
        return Err(TypeError::Word(format!("{}={}", key.escape_debug(), value.escape_debug())));
    }
    let known = match key {
        "connection" => ("connection", "one-to-one, one-to-many, many-to-one, many-to-many"),
        "receive" => ("receive", "explicit, upcall"),
        _ => return Ok(()),
    };
    if known.1.split(", ").any(|one| one == value) {
        Ok(())
    } else {
        Err(TypeError::Value { key: known.0, value: value.to_owned(), known: known.1 })
    }
}

impl FromStr for PortType {
    type Err = TypeError;

    fn from_str(text: &str) -> Result<Self, TypeError> {
        let mut kind = Self::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| TypeError::Pair(pair.to_owned()))?;
            let (key, value) = (key.trim(), value.trim());
            if kind.0.contains_key(key) {
                return Err(TypeError::Twice(key.to_owned()));
            }
            kind = kind.with(key, value)?;
        }
        Ok(kind)
    }
}

impl fmt::Display for PortType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (key, value)) in self.0.iter().enumerate() {
            write!(f, "{}{key}={value}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> PortType {
        text.parse().expect(text)
    }

    #[test]
    fn a_type_survives_its_text() {
        for text in ["", "connection=one-to-one", "receive=upcall, unit=metre per second"] {
            assert_eq!(kind(text).to_string(), text);
        }
        assert_eq!(kind(" b=2,a = 1 ,").to_string(), "a=1, b=2");
    }

    #[test]
    fn the_first_difference_is_named() {
        let told = kind("a=1, b=2").difference(&kind("a=1, b=3, c=4"));
        assert_eq!(told.as_deref(), Some("the send port has b=2, the receive port b=3"));
        let told = kind("").difference(&kind("c=4"));
        assert_eq!(told.as_deref(), Some("the send port has no c, the receive port c=4"));
        assert_eq!(kind("a=1").difference(&kind("a=1")), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, why) in [
            ("a", "key=value"),
            ("A=1", "a-z"),
            ("=1", "a-z"),
            ("a=\u{7}", "control"),
            ("a=1, a=2", "twice"),
            ("connection=few", "one-to-one"),
            ("receive=never", "explicit, upcall"),
        ] {
            let told = text.parse::<PortType>().expect_err(text).to_string();
            assert!(told.contains(why), "{text}: {told}");
        }
        let many: Vec<String> = (0..65).map(|n| format!("k{n}=1")).collect();
        assert_eq!(many.join(",").parse::<PortType>(), Err(TypeError::Many));
    }

    #[test]
    fn the_shape_is_what_is_written() {
        let shape = |text: &str| (kind(text).shape().to_many, kind(text).shape().from_many);
        assert_eq!(shape(""), (true, true));
        assert_eq!(shape("connection=one-to-one"), (false, false));
        assert_eq!(shape("connection=one-to-many"), (true, false));
        assert_eq!(shape("connection=many-to-one"), (false, true));
    }
}
