//! [`Address`]: where a link leads, and what it is made of.

use core::fmt;
use core::str::FromStr;

use madrigal_adapters::stack::{Stack, StackError};
use madrigal_base::locator::{Locator, LocatorError};

/// A locator, with a stack of adapters in front of its driver or without: `tcp://10.1.0.2:9000`, `adoc/stripe(4)/tcp://10.1.0.2:9000`,
/// `vrp/udp://10.1.0.2:9000`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// What is above the driver, whose place the last element (`tcp`) has; none: the driver alone.
    pub stack: Option<Stack>,
    /// What may be lost of a thousand bytes by `vrp(N)` over `udp`, which stands nowhere else; 0 where it is `vrp` alone.
    pub tolerance: Option<u32>,
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
    /// `udp` has `vrp` right in front of it, and nothing else has.
    #[error(
        "`{0}`: write `vrp/udp` or `vrp(N)/udp`, N from 0 to 1000 of a thousand bytes that may be lost; adapters stand in front of it"
    )]
    Vrp(String),
}

impl From<Locator> for Address {
    fn from(locator: Locator) -> Self {
        Self { stack: None, tolerance: None, locator }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        let (above, driver) = scheme.rsplit_once('/').unwrap_or(("", scheme));
        let locator: Locator = text.get(scheme.len() - driver.len()..).unwrap_or_default().parse()?;
        let wrong = || AddressError::Vrp(scheme.to_owned());
        let (above, tolerance) = match above.rsplit_once('/').unwrap_or(("", above)) {
            (above, vrp) if driver == UDP => (above, Some(tolerance(vrp).ok_or_else(wrong)?)),
            _ => (above, None),
        };
        if above.split('/').any(|element| element == VRP || element.starts_with("vrp(")) {
            return Err(wrong());
        }
        let stack = if above.is_empty() { None } else { Some(format!("{above}/tcp").parse()?) };
        Ok(Self { stack, tolerance, locator })
    }
}

/// The driver that is only had below `vrp`.
const UDP: &str = "udp";
const VRP: &str = "vrp";

/// What `vrp` or `vrp(N)` lets be lost.
fn tolerance(element: &str) -> Option<u32> {
    if element == VRP {
        return Some(0);
    }
    let digits = element.strip_prefix("vrp(")?.strip_suffix(')')?;
    let tolerance: u32 = digits.parse().ok()?;
    // As it is printed: no sign, no leading zero.
    (tolerance <= 1000 && tolerance.to_string() == digits).then_some(tolerance)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elements = self.stack.iter().flat_map(|stack| stack.elements().split_last()).flat_map(|(_, above)| above);
        elements.clone().try_for_each(|element| write!(f, "{element}/"))?;
        match self.tolerance {
            None => {}
            Some(0) => write!(f, "{VRP}/")?,
            Some(tolerance) => write!(f, "{VRP}({tolerance})/")?,
        }
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
    fn vrp_stands_in_front_of_udp_and_nowhere_else() {
        for (text, tolerance, stack) in [
            ("vrp/udp://10.1.0.2:9000", 0, None),
            ("vrp(100)/udp://[::1]:9000", 100, None),
            ("adoc/stripe(2)/vrp/udp://10.1.0.2:9000", 0, Some("adoc/stripe(2)/tcp")),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.stack.as_ref().map(Stack::to_string).as_deref(), stack, "{text}");
            assert_eq!((address.tolerance, address.to_string().as_str()), (Some(tolerance), text));
        }
        let wrong =
            ["udp", "adoc/udp", "vrp/tcp", "vrp(1001)/udp", "vrp(01)/udp", "vrp()/udp", "vrp/adoc/udp", "vrp/vrp/udp"];
        for above in wrong {
            let told = format!("{above}://10.1.0.2:9000").parse::<Address>().expect_err(above).to_string();
            assert!(told.contains(&format!("`{above}`: write `vrp/udp`")), "{told}");
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
