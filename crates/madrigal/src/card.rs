//! A visiting card: the identity of a process and where it listens, as one word to hand to others.

use core::fmt;
use core::str::FromStr;

use madrigal_base::ids::{HostId, ProcessId, UserId};
use madrigal_base::locator::{Locator, LocatorError};

/// The identity of a process and where it listens.
///
/// Its text is `madrigal:HOST:USER:PID.START:LOCATOR,LOCATOR...`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Card {
    /// Its host.
    pub host: HostId,
    /// Its user.
    pub user: UserId,
    /// The process.
    pub process: ProcessId,
    /// Where it listens, at most once by each driver.
    pub locators: Vec<Locator>,
}

/// Why a text is no [`Card`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// A part is missing or does not read.
    #[error("`{text}` is not a card: no {part}")]
    Missing {
        /// What was given.
        text: String,
        /// Which part.
        part: &'static str,
    },
    /// A locator does not read.
    #[error("not a card: {0}")]
    Locator(#[from] LocatorError),
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "madrigal:{}:{}:{}:", self.host, self.user, self.process)?;
        for (i, locator) in self.locators.iter().enumerate() {
            write!(f, "{}{locator}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for Card {
    type Err = CardError;

    fn from_str(text: &str) -> Result<Self, CardError> {
        let missing = |part| CardError::Missing { text: text.to_owned(), part };
        let mut parts = text.splitn(5, ':');
        let mut next = |part| parts.next().ok_or_else(|| missing(part));
        if next("`madrigal:` in front")? != "madrigal" {
            return Err(missing("`madrigal:` in front"));
        }
        let host = HostId::parse(next("host")?).ok_or_else(|| missing("host"))?;
        let user = next("user")?.parse().map(UserId).map_err(|_| missing("user"))?;
        let process = next("process")?.split_once('.');
        let process = process.and_then(|(pid, start)| Some((pid.parse().ok()?, start.parse().ok()?)));
        let (pid, start) = process.ok_or_else(|| missing("process"))?;
        let listed = next("locators")?;
        let locators = listed.split(',').filter(|l| !l.is_empty()).map(str::parse).collect::<Result<_, _>>()?;
        Ok(Self { host, user, process: ProcessId { pid, start }, locators })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_survives_its_text() {
        let text = "madrigal:0000000000000000000000000000002a:1000:77.123:shm://x,tcp://[::1]:9";
        let card: Card = text.parse().unwrap();
        assert_eq!((card.host, card.process.pid, card.locators.len()), (HostId(42), 77, 2));
        assert_eq!(card.to_string(), text);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let refusal = |text: &str| text.parse::<Card>().unwrap_err().to_string();
        assert_eq!(refusal("hello"), "`hello` is not a card: no `madrigal:` in front");
        assert!(refusal("madrigal:12:1:1.1:").ends_with("no host"));
        let head = "madrigal:0000000000000000000000000000002a:1000";
        assert!(refusal(&format!("{head}:x:")).ends_with("no process"));
        assert!(refusal(&format!("{head}:1.1:shm:/x")).contains("`shm:/x` is not a locator"));
    }
}
