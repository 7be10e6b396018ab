//! [`Address`]: where a link leads, and what it is made of.

use core::fmt;
use core::str::FromStr;

use madrigal_adapters::stack::{Stack, StackError};
use madrigal_base::locator::{Locator, LocatorError};

/// A locator, with a stack of adapters in front of its driver or without: `tcp://10.1.0.2:9000`, `adoc/stripe(4)/tcp://10.1.0.2:9000`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// What is above the driver, whose place the last element (`tcp`) has; none: the driver alone.
    pub stack: Option<Stack>,
    /// Where, and by which driver.
    pub locator: Locator,
}

/// Why a text is no [`Address`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The part from the driver on.
    #[error(transparent)]
    Locator(#[from] LocatorError),
    /// The part in front of it.
    #[error(transparent)]
    Stack(#[from] StackError),
}

impl From<Locator> for Address {
    fn from(locator: Locator) -> Self {
        Self { stack: None, locator }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        let Some((above, _)) = scheme.rsplit_once('/') else { return Ok(Self::from(text.parse::<Locator>()?)) };
        let locator = text.get(above.len() + 1..).unwrap_or_default().parse()?;
        Ok(Self { stack: Some(format!("{above}/tcp").parse()?), locator })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elements = self.stack.iter().flat_map(|stack| stack.elements().split_last()).flat_map(|(_, above)| above);
        elements.clone().try_for_each(|element| write!(f, "{element}/"))?;
        self.locator.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_may_stand_in_front_of_any_driver() {
        for (text, stack) in [
            ("tcp://10.1.0.2:9000", None),
            ("shm://name", None),
            ("adoc/tcp://[::1]:9000", Some("adoc/tcp")),
            ("adoc/stripe(4)/shm://name", Some("adoc/stripe(4)/tcp")),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.stack.as_ref().map(Stack::to_string).as_deref(), stack, "{text}");
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            ("10.1.0.2:9000", "no `://`"),
            ("stripe(99)/tcp://10.1.0.2:9000", "`stripe(99)`"),
            ("stripe(2)/adoc/tcp://10.1.0.2:9000", "`adoc` below `stripe`"),
            ("nosuch/tcp://10.1.0.2:9000", "`nosuch`"),
            ("adoc/tcp://10.1.0.2:x", "numeric ADDRESS:PORT"),
        ] {
            let told = text.parse::<Address>().expect_err(text).to_string();
            assert!(told.contains(why), "{text}: {told}");
        }
    }
}
