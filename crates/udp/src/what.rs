//! What the two ends of a link have to agree on: whether it carries bytes or messages, and the classes of these.

use core::fmt;

use madrigal_adapters::vrp::{Class, MOST_CLASSES, MOST_GRANULARITY, MOST_WINDOW};

/// What a link carries. Both ends name the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct What {
    kind: Kind,
    classes: Vec<Class>,
}

/// See [`What`]; the number goes over the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Bytes in order.
    Stream = 0,
    /// Messages, of which a part may be lost.
    Messages = 1,
}

/// Why there are no links with such classes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClassError {
    /// Too many, or none.
    #[error("{0} classes of messages: there may be 1 to {most}", most = What::MOST_CLASSES)]
    Count(usize),
    /// A number of one is out of bounds.
    #[error("class {class}: {what} is {value}, and may be {least} to {most}")]
    Bounds {
        /// Which class.
        class: usize,
        /// Which of its numbers.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        least: u64,
        /// See `least`.
        most: u64,
    },
}

impl What {
    /// The most classes of messages: one more is the links' own.
    pub const MOST_CLASSES: usize = MOST_CLASSES - 1;

    /// A stream of bytes: all of them come, in order.
    pub fn stream() -> Self {
        Self { kind: Kind::Stream, classes: vec![Class::default()] }
    }

    /// Messages of these classes, which are counted from 0.
    pub fn messages(classes: &[Class]) -> Result<Self, ClassError> {
        if !(1..=Self::MOST_CLASSES).contains(&classes.len()) {
            return Err(ClassError::Count(classes.len()));
        }
        for (at, class) in classes.iter().enumerate() {
            let within = |what, value: u64, least, most| {
                let fits = (least..=most).contains(&value);
                if fits { Ok(()) } else { Err(ClassError::Bounds { class: at, what, value, least, most }) }
            };
            within("the tolerance", class.tolerance.into(), 0, 1000)?;
            within("the window", class.window, 1, MOST_WINDOW)?;
            within("the granularity", class.granularity.into(), 1, MOST_GRANULARITY.into())?;
        }
        Ok(Self { kind: Kind::Messages, classes: classes.to_vec() })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// How many classes there are.
    pub(crate) fn count(&self) -> u8 {
        self.classes.len() as u8
    }

    /// The classes of a connection: the links' own, and then these.
    pub(crate) fn of_connection(&self) -> Vec<Class> {
        [Class::default()].iter().chain(&self.classes).copied().collect()
    }

    /// What is said to an end that wants a link of another kind (its number), or whose connection has other classes. `None`: it wants the
    /// same.
    pub(crate) fn refuses(&self, kind: u8, classes: &[Class]) -> Option<String> {
        if kind == self.kind as u8 && classes == self.of_connection() {
            return None;
        }
        let (_, theirs) = classes.split_first()?;
        let theirs = if kind == Kind::Stream as u8 {
            Self::stream()
        } else {
            Self { kind: Kind::Messages, classes: theirs.to_vec() }
        };
        Some(format!("one end has {theirs}, the other one {self}"))
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == Kind::Stream {
            return f.write_str("a stream of bytes");
        }
        f.write_str("messages of")?;
        for (at, class) in self.classes.iter().enumerate() {
            let Class { tolerance, window, granularity, must } = class;
            let apart = if at == 0 { " " } else { ", " };
            write!(f, "{apart}tolerance {tolerance} of {window} bytes, granularity {granularity}, must {must}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_is_agreed_on_and_the_difference_is_named() {
        let lossy = |tolerance| What::messages(&[Class { tolerance, ..Class::default() }]).unwrap();
        let asks = |one: &What, other: &What| one.refuses(other.kind as u8, &other.of_connection());
        for what in [What::stream(), lossy(0), lossy(100)] {
            assert_eq!(asks(&what, &what), None);
        }
        let why = asks(&lossy(100), &lossy(50)).unwrap();
        assert!(why.contains("tolerance 50 of") && why.contains("tolerance 100 of"), "{why}");
        let why = asks(&lossy(0), &What::stream()).unwrap();
        assert!(why.contains("one end has a stream of bytes, the other one messages of tolerance 0"), "{why}");
    }

    #[test]
    fn classes_out_of_bounds_are_refused_with_the_bounds() {
        let of = |class| What::messages(&[Class::default(), class]).unwrap_err().to_string();
        let class = Class::default();
        assert_eq!(of(Class { tolerance: 1001, ..class }), "class 1: the tolerance is 1001, and may be 0 to 1000");
        assert!(of(Class { window: 0, ..class }).contains("the window is 0"));
        assert!(of(Class { granularity: 1001, ..class }).contains("1 to 1000"));
        assert_eq!(What::messages(&[]), Err(ClassError::Count(0)));
        assert_eq!(What::messages(&[class; 16]), Err(ClassError::Count(16)));
        assert!(What::messages(&[class; 15]).is_ok());
    }
}
